//! What tells one file or device from another, also under another path and after a restart.
//!
//! Facts are kept, and compared one by one, because not all of them are known everywhere: a kernel
//! or file system that says more than the last one has not changed the medium.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{self, BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType};
use nix::sys::statvfs;

use crate::file::kind_in_words;
use crate::loop_device::{self, Backing, DEPTH_MAX, What};
use crate::{mounts, sys};

/// Where the kernel tells of block devices by their numbers.
const DEVICES: &str = "/sys/dev/block";
/// Each is other than that of another kind of medium, whatever else is known.
const KIND: &str = "kind";
/// Which bytes of what the other facts name: known wherever these are.
const PART: &str = "part";
const WHOLE: &str = "all";
/// In front of what is known of the device under the file system of a file: a copy of a file system
/// has all else that the original has.
const ON: &str = "on_";
/// The major number of file systems that are on no block device of their own.
const NO_DEVICE: u64 = 0;
/// Names of a block device that last, the best first (`Documentation/ABI/` of Linux, `sysfs-block`,
/// `sysfs-block-device`, `sysfs-block-dm`): NVMe; SCSI; LVM, dm-crypt, multipath; MD; virtio; MMC.
const DEVICE_NAMES: [(&str, &str); 6] = [
    ("wwid", "wwid"),
    ("wwid", "device/wwid"),
    ("dm", "dm/uuid"),
    ("md", "md/uuid"),
    ("serial", "serial"),
    ("cid", "device/cid"),
];
/// `linux/magic.h`; file systems that give a file another inode number each time they are mounted,
/// or may: FAT, exFAT, FUSE, SMB and CIFS, 9P.
const INODES_DO_NOT_LAST: [FsType; 6] = [
    FsType(0x4d44),
    FsType(0x2011_bab0),
    FsType(0x6573_5546),
    FsType(0xfe53_4d42),
    FsType(0xff53_4d42),
    FsType(0x0102_1997),
];

/// What a file or device is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediumId(BTreeMap<String, String>);

impl MediumId {
    /// That of what a path leads to.
    ///
    /// # Errors
    /// It leads to nothing, or to what is no file and no block device.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            let what = kind_in_words(metadata.file_type());
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("it is {what}, expected a file or a block device"),
            ));
        }
        Ok(Self::of(path, &metadata))
    }

    /// That of what a path led to when it was opened, with this state.
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            of_device(Path::new(DEVICES), metadata.rdev(), DEPTH_MAX)
        } else {
            of_file(path, metadata, DEPTH_MAX)
        }
    }

    /// Whether two are the same medium; `None` when what is known does not tell.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> Option<bool> {
        if self.0.get(KIND) != other.0.get(KIND) {
            return Some(false);
        }
        let compared = self.0.iter().filter(|(fact, _)| *fact != KIND);
        compared
            .filter_map(|(fact, value)| Some(value == other.0.get(fact)?))
            .reduce(|a, b| a && b)
    }

    /// Whether one of two has the bytes of the other, as a disk has those of its partitions: they
    /// are the same, or parts of the same of which one is in the other. A part that begins behind
    /// the start of another is taken to be in it.
    #[must_use]
    pub fn shares_bytes(&self, other: &Self) -> bool {
        let whole_of = |id: &Self| {
            let mut id = id.clone();
            id.0.remove(PART);
            id
        };
        let parts = [self, other].map(|id| id.0.get(PART).map_or(WHOLE, String::as_str));
        let [one, another] = parts.map(|part| if part == WHOLE { "" } else { part });
        let is_in = one.starts_with(another) || another.starts_with(one);
        is_in && whole_of(self).is_same(&whole_of(other)) == Some(true)
    }

    /// Whether anything but its path tells it from others.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.0.keys().any(|fact| fact != KIND)
    }

    /// With what is known of the same medium from before, and not now.
    #[must_use]
    pub fn and(mut self, before: &Self) -> Self {
        for (fact, value) in &before.0 {
            self.0.entry(fact.clone()).or_insert_with(|| value.clone());
        }
        self
    }

    /// What is known, to be kept; [`From`] takes it back.
    #[must_use]
    pub fn facts(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    fn new(kind: &str) -> Self {
        Self(BTreeMap::from([(KIND.to_owned(), kind.to_owned())]))
    }

    fn add(&mut self, fact: &str, value: impl Into<String>) {
        self.0.insert(fact.to_owned(), value.into());
    }

    /// Of a file: what the device under its file system is.
    fn add_below(&mut self, below: Self) {
        if below.is_known() {
            let facts = below.0.into_iter();
            self.0
                .extend(facts.map(|(fact, value)| (format!("{ON}{fact}"), value)));
        }
    }
}

impl From<BTreeMap<String, String>> for MediumId {
    fn from(facts: BTreeMap<String, String>) -> Self {
        Self(facts)
    }
}

impl fmt::Display for MediumId {
    /// The same text for the same facts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts: Vec<_> = self.0.iter().map(|(k, v)| format!("{k} {v}")).collect();
        f.write_str(&facts.join(", "))
    }
}

fn of_file(path: &Path, metadata: &Metadata, depth: u32) -> MediumId {
    let mut id = of_inode(path, metadata.ino());
    if !id.is_known() {
        return id;
    }
    // An inode number is given again to a file that is made later. Where nothing says when (ext4
    // with small inodes), the file system may count how often.
    if let Ok(Ok(born)) = metadata.created().map(|at| at.duration_since(UNIX_EPOCH)) {
        id.add(
            "born",
            format!("{}.{:09}", born.as_secs(), born.subsec_nanos()),
        );
    } else if let Some(generation) = generation(path, metadata) {
        id.add("generation", generation.to_string());
    }
    if let Some(device) = device_below(path, metadata.dev()) {
        id.add_below(of_device(Path::new(DEVICES), device, depth));
    }
    id
}

/// What is known of a file by its inode, and by another path of its file system.
fn of_inode(at: &Path, inode: u64) -> MediumId {
    let mut id = MediumId::new("file");
    let kind = statfs::statfs(at)
        .ok()
        .map(|system| system.filesystem_type());
    if kind.is_none_or(|kind| INODES_DO_NOT_LAST.contains(&kind)) {
        return id;
    }
    id.add(PART, WHOLE);
    id.add("inode", inode.to_string());
    // Snapshots have the same files. These make the number of their UUID (and subvolume); that of
    // others comes with the device and changes.
    if matches!(kind, Some(EXT4_SUPER_MAGIC | BTRFS_SUPER_MAGIC))
        && let Ok(system) = statvfs::statvfs(at)
    {
        id.add("filesystem", format!("{:016x}", system.filesystem_id()));
    }
    id
}

/// The block device of the file system that has a file, where it is on one.
fn device_below(path: &Path, device: u64) -> Option<u64> {
    if major(device) != NO_DEVICE {
        return Some(device);
    }
    // btrfs may be on several, and each of its subvolumes has a number of its own.
    let is_btrfs = statfs::statfs(path).ok()?.filesystem_type() == BTRFS_SUPER_MAGIC;
    let source = is_btrfs.then(|| mounts::source_of(path))??;
    let metadata = fs::metadata(&source).ok()?;
    let name = source.canonicalize().ok()?;
    let is_alone = |system: &fs::DirEntry| {
        let devices = fs::read_dir(system.path().join("devices"));
        let names: Vec<_> = devices.into_iter().flatten().flatten().collect();
        names.len() == 1
            && names
                .iter()
                .any(|of| Some(&*of.file_name()) == name.file_name())
    };
    let mut systems = fs::read_dir("/sys/fs/btrfs").ok()?.flatten();
    systems
        .any(|system| is_alone(&system))
        .then(|| metadata.rdev())
}

/// The generation of the inode, of file systems that tell it.
fn generation(path: &Path, metadata: &Metadata) -> Option<u32> {
    let mut options = File::options();
    // What has come under the path since is not waited for.
    let options = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).ok()?;
    let opened = file.metadata().ok()?;
    let is_same = (opened.dev(), opened.ino()) == (metadata.dev(), metadata.ino());
    is_same.then(|| sys::inode_generation(&file).ok()).flatten()
}

fn of_device(devices: &Path, device: u64, depth: u32) -> MediumId {
    let place = devices.join(format!("{}:{}", major(device), minor(device)));
    let read = |from: &Path, name: &str| {
        let text = fs::read_to_string(from.join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let partition = read(&place, "partition");
    let whole = match &partition {
        Some(_) => place.join(".."),
        None => place.clone(),
    };
    let mut id = MediumId::new("device");
    let mut part = WHOLE.to_owned();
    if let Some(backing) = loop_device::backing(devices, device) {
        id = match depth.checked_sub(1) {
            Some(depth) => of_backing(devices, &backing, depth),
            None => return id,
        };
        if let Some(below) = id.0.get(PART) {
            part.clone_from(below);
        }
        if backing.offset != 0 {
            part = match &*part {
                WHOLE => format!("from {}", backing.offset),
                below => format!("{below}, from {}", backing.offset),
            };
        }
    } else {
        let mut names = DEVICE_NAMES.iter();
        let Some((fact, name)) = names.find_map(|(fact, file)| Some((fact, read(&whole, file)?)))
        else {
            return id;
        };
        id.add(fact, name);
    }
    if let Some(number) = partition {
        let start = read(&place, "start").unwrap_or_default();
        part = format!("{part}, partition {number} at {start}");
    }
    if id.is_known() {
        id.add(PART, part);
    }
    id
}

/// A loop device is what it is on, also where the path of that leads nowhere, or to another one.
fn of_backing(devices: &Path, backing: &Backing, depth: u32) -> MediumId {
    match (backing.what, backing.metadata()) {
        (Some(What::Device(below)), _) => of_device(devices, below, depth),
        (_, Some(metadata)) if metadata.file_type().is_block_device() => {
            of_device(devices, metadata.rdev(), depth)
        }
        (_, Some(metadata)) => of_file(&backing.path, &metadata, depth),
        (Some(What::File { device, inode }), None) => match mounts::point_of(device) {
            Some(point) => {
                let mut id = of_inode(&point, inode);
                if let Some(device) = device_below(&point, device).filter(|_| id.is_known()) {
                    id.add_below(of_device(devices, device, depth));
                }
                id
            }
            None => MediumId::new("device"),
        },
        (None, None) => MediumId::new("device"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;
    use std::process;

    use nix::sys::stat::makedev;

    use super::{MediumId, generation, of_device};

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("capstan-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn id(facts: &[(&str, &str)]) -> MediumId {
        let facts = facts.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        MediumId::from(facts.collect::<std::collections::BTreeMap<String, String>>())
    }

    #[test]
    fn a_file_keeps_what_it_is_under_every_name_and_another_one_does_not_get_it() {
        let folder = Folder::new("medium-id");
        let (a, b) = (folder.0.join("a"), folder.0.join("b"));
        File::create(&a).unwrap().set_len(4096).unwrap();
        let first = MediumId::at(&a).unwrap();
        assert!(first.is_known(), "{first}");
        fs::rename(&a, &b).unwrap();
        assert_eq!(MediumId::at(&b).unwrap(), first);
        symlink(&b, folder.0.join("link")).unwrap();
        assert_eq!(MediumId::at(&folder.0.join("link")).unwrap(), first);
        File::options()
            .write(true)
            .open(&b)
            .unwrap()
            .set_len(8192)
            .unwrap();
        assert_eq!(MediumId::at(&b).unwrap(), first, "longer");
        // Deleted and made anew, perhaps with the same inode number.
        fs::remove_file(&b).unwrap();
        File::create(&b).unwrap();
        assert_eq!(first.is_same(&MediumId::at(&b).unwrap()), Some(false));
        assert!(MediumId::at(&folder.0).is_err(), "a folder");
        assert!(MediumId::at(&folder.0.join("none")).is_err());
        assert!(MediumId::at(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn where_a_file_system_counts_inodes_a_file_made_anew_has_another_generation() {
        let folder = Folder::new("generation");
        let file = folder.0.join("a");
        let make = || {
            File::create(&file).unwrap();
            let metadata = fs::metadata(&file).unwrap();
            (metadata.ino(), generation(&file, &metadata))
        };
        let first = make();
        let Some(of_first) = first.1 else {
            eprintln!("skipped: {} does not tell generations", folder.0.display());
            return;
        };
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(generation(&file, &metadata), Some(of_first), "it stays");
        fs::remove_file(&file).unwrap();
        assert_ne!(make(), first);
        // What has come under the path since says nothing of the one before.
        fs::rename(&file, folder.0.join("b")).unwrap();
        File::create(&file).unwrap();
        let metadata = fs::metadata(folder.0.join("b")).unwrap();
        assert_eq!(generation(&file, &metadata), None);
    }

    #[test]
    fn what_is_known_on_one_side_only_tells_nothing() {
        let file = id(&[("kind", "file"), ("inode", "7")]);
        let born = id(&[("kind", "file"), ("inode", "7"), ("born", "1.5")]);
        let reborn = id(&[("kind", "file"), ("inode", "7"), ("born", "2.5")]);
        let nameless = id(&[("kind", "file")]);
        let device = id(&[("kind", "device")]);
        let serial = id(&[("kind", "device"), ("serial", "S")]);
        let wwid = id(&[("kind", "device"), ("wwid", "naa.5")]);
        for (a, b, same) in [
            (&file, &born, Some(true)),
            (&born, &reborn, Some(false)),
            (&file, &nameless, None),
            (&nameless, &nameless, None),
            (&nameless, &device, Some(false)),
            (&serial, &wwid, None),
            (&wwid, &wwid, Some(true)),
        ] {
            assert_eq!(a.is_same(b), same, "{a} and {b}");
            assert_eq!(b.is_same(a), same, "{b} and {a}");
        }
        assert!(!device.is_known() && serial.is_known());
    }

    #[test]
    fn devices_are_known_by_the_names_that_last() {
        let folder = Folder::new("device-id");
        let (sys, devices) = (folder.0.join("sys"), folder.0.join("dev"));
        fs::create_dir_all(&devices).unwrap();
        let write = |name: &str, text: &str| {
            let file = sys.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let image = folder.0.join("image");
        fs::write(&image, "x").unwrap();
        write("nvme0n1/wwid", "eui.0025\n");
        write("sda/device/wwid", "naa.5000\n");
        write("sda/sda1/partition", "1\n");
        write("sda/sda1/start", "2048\n");
        write("sda/sda2/partition", "2\n");
        write("sda/sda2/start", "4096\n");
        write("dm-0/dm/uuid", "LVM-abc\n");
        write("dm-1/dm/uuid", "\n");
        write("vda/serial", "disk7\n");
        write("vdb/serial", "");
        let backing = format!("{}\n", image.display());
        write("loop0/loop/backing_file", &backing);
        write("loop0/loop/offset", "0\n");
        write("loop1/loop/backing_file", &backing);
        write("loop1/loop/offset", "4096\n");
        let names = [
            "nvme0n1", "sda", "sda/sda1", "sda/sda2", "dm-0", "dm-1", "vda", "vdb", "loop0",
            "loop1",
        ];
        let ids: Vec<_> = names
            .iter()
            .zip(0_u64..)
            .map(|(name, at)| {
                symlink(sys.join(name), devices.join(format!("8:{at}"))).unwrap();
                of_device(&devices, makedev(8, at), 8)
            })
            .collect();
        let texts: Vec<_> = ids.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts[..8],
            [
                "kind device, part all, wwid eui.0025",
                "kind device, part all, wwid naa.5000",
                "kind device, part all, partition 1 at 2048, wwid naa.5000",
                "kind device, part all, partition 2 at 4096, wwid naa.5000",
                "dm LVM-abc, kind device, part all",
                "kind device",
                "kind device, part all, serial disk7",
                "kind device",
            ]
        );
        // The whole has the bytes of each part, and no part those of another.
        let [sda, sda1, sda2] = [&ids[1], &ids[2], &ids[3]];
        for (one, other, shares) in [
            (sda, sda1, true),
            (sda1, sda1, true),
            (sda1, sda2, false),
            (sda, &ids[0], false),
            (&ids[8], &ids[9], true),
            (&ids[5], &ids[7], false),
        ] {
            assert_eq!(one.shares_bytes(other), shares, "{one} and {other}");
            assert_eq!(other.shares_bytes(one), shares, "{other} and {one}");
        }
        // A loop device is its file, from its beginning or not.
        let file = MediumId::at(&image).unwrap();
        assert_eq!(file.is_same(&ids[8]), Some(true));
        assert_eq!(file.is_same(&ids[9]), Some(false));
        assert_eq!(
            of_device(&devices, makedev(9, 9), 8).to_string(),
            "kind device"
        );
    }
}
