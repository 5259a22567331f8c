//! Which files and devices have the bytes of a path: a loop device has those of what it is on, and
//! a partition some of its device's.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::stat::{major, makedev, minor};

use crate::loop_device::{DEPTH_MAX, What, backing};

const DEVICES: &str = "/sys/dev/block";

/// A file or block device, and what is under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers(Vec<Layer>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layer {
    what: What,
    /// Not just a partition of it.
    is_whole: bool,
}

impl Layers {
    /// Those of what a path leads to.
    ///
    /// # Errors
    /// It leads to nothing.
    pub fn of(path: &Path) -> io::Result<Self> {
        let what = What::of(&fs::metadata(path)?);
        Ok(Self::under(Path::new(DEVICES), what))
    }

    fn under(devices: &Path, what: What) -> Self {
        let mut layer = Layer {
            what,
            is_whole: true,
        };
        let mut layers = vec![layer];
        for _ in 0..2 * DEPTH_MAX {
            let Some(next) = below(devices, layer) else {
                break;
            };
            layer = next;
            layers.push(layer);
        }
        Self(layers)
    }

    /// Whether both have the same bytes, or some of them. Two partitions of one device have not.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let others = || other.0.iter();
        let is_in_other = |of: &Layer| {
            others().any(|there| there.what == of.what && (there.is_whole || of.is_whole))
        };
        self.0.iter().any(is_in_other)
    }

    /// The file under all of it, by device and inode; `None` where there is none.
    #[must_use]
    pub fn file(&self) -> Option<(u64, u64)> {
        match self.0.last()?.what {
            What::File { device, inode } => Some((device, inode)),
            What::Device(_) => None,
        }
    }
}

/// What a loop device or a partition is on.
fn below(devices: &Path, of: Layer) -> Option<Layer> {
    let What::Device(device) = of.what else {
        return None;
    };
    let place = devices.join(format!("{}:{}", major(device), minor(device)));
    if place.join("partition").exists() {
        let whole = fs::read_to_string(place.join("../dev")).ok()?;
        let (major, minor) = whole.trim().split_once(':')?;
        let whole = makedev(major.parse().ok()?, minor.parse().ok()?);
        return Some(Layer {
            what: What::Device(whole),
            is_whole: false,
        });
    }
    let backing = backing(devices, device)?;
    let at_path = || backing.metadata().map(|metadata| What::of(&metadata));
    Some(Layer {
        what: backing.what.or_else(at_path)?,
        ..of
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;
    use std::{fs, process};

    use nix::sys::stat::makedev;

    use super::{Layers, What};

    /// A disk with two partitions, and a loop device with two on a file.
    fn devices(sys: &Path, file: &Path) -> Vec<What> {
        let devices = sys.join("dev");
        fs::create_dir_all(&devices).unwrap();
        let numbers = [
            "sda", "sda/sda1", "sda/sda2", "loop3", "loop3/p1", "loop3/p2",
        ];
        let made = numbers.iter().zip(0..).map(|(name, minor)| {
            let place = sys.join(name);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("dev"), format!("8:{minor}\n")).unwrap();
            if name.contains('/') {
                fs::write(place.join("partition"), "1\n").unwrap();
            }
            symlink(place, devices.join(format!("8:{minor}"))).unwrap();
            What::Device(makedev(8, minor))
        });
        let made = made.collect();
        fs::create_dir(sys.join("loop3/loop")).unwrap();
        let text = format!("{}\n", file.display());
        fs::write(sys.join("loop3/loop/backing_file"), text).unwrap();
        made
    }

    #[test]
    fn a_device_overlaps_what_it_is_on_and_a_partition_not_the_next_one() {
        let sys = std::env::temp_dir().join(format!("capstan-layers-{}", process::id()));
        let _ = fs::remove_dir_all(&sys);
        fs::create_dir(&sys).unwrap();
        let image = sys.join("image");
        fs::write(&image, "x").unwrap();
        let numbers = devices(&sys, &image);
        let of = |at: usize| Layers::under(&sys.join("dev"), numbers[at]);
        let metadata = fs::metadata(&image).unwrap();
        let file = Layers::under(&sys.join("dev"), What::of(&metadata));
        let (disk, on_disk) = (of(0), [of(1), of(2)]);
        let (device, on_device) = (of(3), [of(4), of(5)]);
        for (a, b) in [
            (&disk, &on_disk[0]),
            (&device, &file),
            (&on_device[1], &file),
            (&on_device[0], &device),
            (&file, &file),
        ] {
            assert!(a.overlaps(b) && b.overlaps(a), "{a:?} and {b:?}");
        }
        for (a, b) in [
            (&disk, &device),
            (&on_disk[0], &on_disk[1]),
            (&on_device[0], &on_device[1]),
            (&disk, &file),
        ] {
            assert!(!a.overlaps(b) && !b.overlaps(a), "{a:?} and {b:?}");
        }
        let inode = Some((metadata.dev(), metadata.ino()));
        assert_eq!((device.file(), on_device[0].file()), (inode, inode));
        assert_eq!(disk.file(), None);
        fs::remove_dir_all(&sys).unwrap();
    }
}
