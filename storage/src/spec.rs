//! What to export, and opening it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::OpenError;
use crate::file::FileStore;
use crate::gate::{Gate, Gated};
use crate::geometry::Geometry;
use crate::lifetime::Lifetime;
use crate::medium::Look;
use crate::medium_id::MediumId;
use crate::null::NullVolume;
use crate::ram::{RamStore, RamVolume};
use crate::uring::{Engine, UringVolume};
use crate::volume::Volume;

/// The LBA size of RAM and null volumes that say nothing else.
const DEFAULT_LBA_BYTES: u32 = 4096;

/// Whether a file or device is opened with `O_DIRECT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DirectIo {
    /// Where the file system and the LBA size allow it.
    #[default]
    Auto,
    /// Always; opening fails where that is not possible.
    On,
    /// Never: through the page cache.
    Off,
}

/// What to export. `PATH|ram:SIZE|null:SIZE` parses into one; `SIZE` is bytes or has one of the
/// suffixes KiB, MiB, GiB and TiB.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeSpec {
    /// A file or block device.
    Path {
        /// Where it is.
        path: PathBuf,
        /// 512 or 4096; `None` takes what the device has, and 4096 for a file, whatever its size.
        lba_bytes: Option<u32>,
        /// Whether it is opened for reading only. Otherwise it is locked against a second export.
        read_only: bool,
        /// Whether the page cache is bypassed.
        direct: DirectIo,
    },
    /// Memory that is zeroed at start and gone at exit.
    Ram {
        /// Size, a multiple of `lba_bytes`.
        bytes: u64,
        /// 512 or 4096.
        lba_bytes: u32,
    },
    /// Nothing: writes are dropped, reads return zeroes.
    Null {
        /// Size, a multiple of `lba_bytes`.
        bytes: u64,
        /// 512 or 4096.
        lba_bytes: u32,
    },
}

/// An export that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No text at all.
    #[error("an empty export; expected PATH, ram:SIZE or null:SIZE")]
    Empty,
    /// What should be a size is none.
    #[error(
        "bad size {size:?} in export {export:?}; expected bytes or a number with KiB, MiB, GiB or TiB, such as 64MiB"
    )]
    Size {
        /// The whole text.
        export: String,
        /// The part that is not a size.
        size: String,
    },
}

impl VolumeSpec {
    /// Sets the LBA size, like an option that stands beside a parsed export. Whether it fits is
    /// checked by [`VolumeSpec::prepare`].
    #[must_use]
    pub fn with_lba_bytes(mut self, bytes: u32) -> Self {
        match &mut self {
            Self::Path { lba_bytes, .. } => *lba_bytes = Some(bytes),
            Self::Ram { lba_bytes, .. } | Self::Null { lba_bytes, .. } => *lba_bytes = bytes,
        }
        self
    }

    /// Opens the file or device, or makes the memory, once per process: every reactor opens its
    /// volume from the same [`Store`].
    ///
    /// # Errors
    /// [`OpenError`], naming the volume and what to do.
    pub fn prepare(&self) -> Result<Store, OpenError> {
        self.prepare_for(false)
    }

    /// [`VolumeSpec::prepare`] for a single reactor: the store has one volume at a time, which
    /// makes one in memory faster.
    ///
    /// # Errors
    /// As [`VolumeSpec::prepare`].
    pub fn prepare_alone(&self) -> Result<Store, OpenError> {
        self.prepare_for(true)
    }

    fn prepare_for(&self, alone: bool) -> Result<Store, OpenError> {
        let name: Arc<str> = Arc::from(self.to_string());
        let kind = match self {
            Self::Path {
                path,
                lba_bytes,
                read_only,
                direct,
            } => {
                let store = FileStore::open(path, &name, *lba_bytes, *read_only, *direct)?;
                StoreKind::File(Arc::new(store))
            }
            &Self::Ram { bytes, lba_bytes } => {
                let lbas = lbas(&name, bytes, lba_bytes)?;
                let size = |_| OpenError::Size {
                    volume: Arc::clone(&name),
                    bytes,
                    lba_bytes,
                };
                let store = RamStore::new(usize::try_from(bytes).map_err(size)?, alone);
                let memory = |reason| OpenError::Memory {
                    volume: Arc::clone(&name),
                    reason,
                };
                StoreKind::Ram {
                    store: Arc::new(store.map_err(memory)?),
                    lba_bytes,
                    lbas,
                }
            }
            &Self::Null { bytes, lba_bytes } => StoreKind::Null {
                lba_bytes,
                lbas: lbas(&name, bytes, lba_bytes)?,
            },
        };
        Ok(Store {
            kind,
            name,
            gate: None,
        })
    }

    /// [`VolumeSpec::prepare_alone`] and [`Store::open`] in one.
    ///
    /// # Errors
    /// As those two.
    pub fn open(&self, engine: &Rc<Engine>) -> Result<Box<dyn Volume>, OpenError> {
        self.prepare_alone()?.open(engine)
    }
}

fn lbas(volume: &Arc<str>, bytes: u64, lba_bytes: u32) -> Result<u64, OpenError> {
    let volume = Arc::clone(volume);
    if !Geometry::supports_lba_bytes(lba_bytes) {
        return Err(OpenError::LbaSize { volume, lba_bytes });
    }
    if bytes == 0 || !bytes.is_multiple_of(u64::from(lba_bytes)) {
        return Err(OpenError::Size {
            volume,
            bytes,
            lba_bytes,
        });
    }
    Ok(bytes / u64::from(lba_bytes))
}

/// An opened export, which any thread may hold; cloning it is cheap and shares the bytes. The file
/// is closed, or the memory freed, when the last clone and the last volume are gone.
#[derive(Clone, Debug)]
pub struct Store {
    kind: StoreKind,
    name: Arc<str>,
    gate: Option<Gate>,
}

#[derive(Clone, Debug)]
enum StoreKind {
    File(Arc<FileStore>),
    Ram {
        store: Arc<RamStore>,
        lba_bytes: u32,
        lbas: u64,
    },
    Null {
        lba_bytes: u32,
        lbas: u64,
    },
}

impl Store {
    /// Makes the volume of one reactor.
    ///
    /// # Errors
    /// [`OpenError::Taken`] for memory that was prepared for one volume and has it.
    pub fn open(&self, engine: &Rc<Engine>) -> Result<Box<dyn Volume>, OpenError> {
        let volume = self.open_own(engine)?;
        Ok(match &self.gate {
            Some(gate) => Box::new(Gated::new(volume, gate.clone())),
            None => volume,
        })
    }

    /// Puts `gate` in front of every volume that is made from now on: for tests.
    pub fn set_gate(&mut self, gate: Gate) {
        self.gate = Some(gate);
    }

    fn open_own(&self, engine: &Rc<Engine>) -> Result<Box<dyn Volume>, OpenError> {
        let name = Arc::clone(&self.name);
        Ok(match &self.kind {
            StoreKind::File(store) => Box::new(UringVolume::new(engine, store)),
            &StoreKind::Ram {
                ref store,
                lba_bytes,
                lbas,
            } => {
                let store = Arc::clone(store);
                let volume = RamVolume::new(store, lba_bytes, lbas, Arc::clone(&name));
                Box::new(volume.ok_or(OpenError::Taken { volume: name })?)
            }
            &StoreKind::Null { lba_bytes, lbas } => {
                Box::new(NullVolume::new(lba_bytes, lbas, name))
            }
        })
    }

    /// The shape its volumes have.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        match &self.kind {
            StoreKind::File(store) => store.geometry(),
            &StoreKind::Ram {
                lba_bytes, lbas, ..
            } => RamVolume::geometry_of(lba_bytes, lbas),
            &StoreKind::Null { lba_bytes, lbas } => NullVolume::geometry_of(lba_bytes, lbas),
        }
    }

    /// The size of the file, device or memory, including what is behind the last whole LBA.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            StoreKind::File(store) => store.bytes(),
            &(StoreKind::Ram {
                lba_bytes, lbas, ..
            }
            | StoreKind::Null { lba_bytes, lbas }) => lbas * u64::from(lba_bytes),
        }
    }

    /// Looks at the file or device: every volume of the store has its size from here on. `None` for
    /// memory, which does not change from outside. It may wait for the file system.
    #[must_use]
    pub fn look(&self) -> Option<Look> {
        match &self.kind {
            StoreKind::File(store) => Some(store.look()),
            StoreKind::Ram { .. } | StoreKind::Null { .. } => None,
        }
    }

    /// Extents of `lbas` that may hold something other than zeroes, in ascending order and not
    /// touching one another: the first `extents_max` at most. What is in none of them reads as
    /// zeroes. Of a device and of memory that is everything. It takes two system calls an extent
    /// and may wait for the file system.
    #[must_use]
    pub fn allocated(&self, lbas: Range<u64>, extents_max: usize) -> Vec<Range<u64>> {
        match &self.kind {
            StoreKind::File(store) => store.allocated(lbas, extents_max),
            StoreKind::Ram { .. } => vec![lbas],
            StoreKind::Null { .. } => Vec::new(),
        }
    }

    /// Acknowledged writes were lost for this reason (positive errno) before it was prepared: its
    /// volumes fail whatever promises that something is on the medium.
    pub fn lost_before(&self, errno: i32) {
        if let StoreKind::File(store) = &self.kind {
            store.loss().came_with(errno);
        }
    }

    /// Whether one of its volumes has found it shorter than it was, and fails Flushes for that.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        match &self.kind {
            StoreKind::File(store) => store.loss().is_cut(),
            StoreKind::Ram { .. } | StoreKind::Null { .. } => false,
        }
    }

    /// The operator has looked at what was lost. Volumes that were made before may still be told of
    /// it by the kernel, so each is to be made anew first.
    pub fn clear_loss(&self) {
        if let StoreKind::File(store) = &self.kind {
            store.clear_loss();
        }
    }

    /// For how long its content lasts.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        match &self.kind {
            StoreKind::File(store) => store.lifetime(),
            StoreKind::Ram { .. } | StoreKind::Null { .. } => Lifetime::Store,
        }
    }

    /// What distinguishes the file or device from others; `None` for memory, which cannot be found
    /// again.
    #[must_use]
    pub fn medium_id(&self) -> Option<&MediumId> {
        match &self.kind {
            StoreKind::File(store) => Some(store.id()),
            StoreKind::Ram { .. } | StoreKind::Null { .. } => None,
        }
    }

    /// The volume's name in messages.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl FromStr for VolumeSpec {
    type Err = SpecError;

    fn from_str(export: &str) -> Result<Self, SpecError> {
        if let Some(size) = export.strip_prefix("ram:") {
            let bytes = parse_size(export, size)?;
            return Ok(Self::Ram {
                bytes,
                lba_bytes: DEFAULT_LBA_BYTES,
            });
        }
        if let Some(size) = export.strip_prefix("null:") {
            let bytes = parse_size(export, size)?;
            return Ok(Self::Null {
                bytes,
                lba_bytes: DEFAULT_LBA_BYTES,
            });
        }
        if export.is_empty() {
            return Err(SpecError::Empty);
        }
        let (path, direct) = (Path::new(export).to_path_buf(), DirectIo::Auto);
        Ok(Self::Path {
            path,
            lba_bytes: None,
            read_only: false,
            direct,
        })
    }
}

/// Binary suffixes and their shifts, largest first. Decimal ones (MB) are refused, because disks
/// and people disagree about what they mean.
const SUFFIXES: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("", 0)];

/// Exact, unlike the `bytesize` crate's parser, which goes through `f64` and saturates.
fn parse_size(export: &str, size: &str) -> Result<u64, SpecError> {
    let parse = |(suffix, shift): (&str, u32)| {
        let digits = size.strip_suffix(suffix)?;
        let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let number = whole.then(|| digits.parse::<u64>().ok()).flatten()?;
        number.checked_mul(1 << shift)
    };
    SUFFIXES
        .into_iter()
        .find_map(parse)
        .ok_or_else(|| SpecError::Size {
            export: export.to_owned(),
            size: size.to_owned(),
        })
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { path, .. } => write!(f, "{}", path.display()),
            Self::Ram { bytes, .. } => write!(f, "ram:{}", exact_size(*bytes)),
            Self::Null { bytes, .. } => write!(f, "null:{}", exact_size(*bytes)),
        }
    }
}

/// The shortest spelling that parses back to the same number.
fn exact_size(bytes: u64) -> String {
    let fits = |(_, shift): &(&str, u32)| bytes.trailing_zeros() >= *shift;
    let (suffix, shift) = SUFFIXES.into_iter().find(fits).unwrap_or(("", 0));
    format!("{}{suffix}", bytes >> shift)
}

#[cfg(test)]
mod tests {
    use super::{DirectIo, OpenError, SpecError, VolumeSpec};

    #[test]
    fn exports_parse_and_print_back() {
        let ram = |bytes| {
            Ok(VolumeSpec::Ram {
                bytes,
                lba_bytes: 4096,
            })
        };
        assert_eq!("ram:64MiB".parse(), ram(64 << 20));
        assert_eq!("ram:1536KiB".parse(), ram(3 << 19));
        assert_eq!("ram:8192".parse(), ram(8192));
        let null: VolumeSpec = "null:1TiB".parse().unwrap();
        assert_eq!(
            null,
            VolumeSpec::Null {
                bytes: 1 << 40,
                lba_bytes: 4096
            }
        );
        for export in [
            "ram:64MiB",
            "ram:1536KiB",
            "ram:8193",
            "null:1TiB",
            "/dev/vdb",
        ] {
            assert_eq!(export.parse::<VolumeSpec>().unwrap().to_string(), export);
        }
        let path: VolumeSpec = "/srv/ram:1".parse().unwrap();
        let expected = VolumeSpec::Path {
            path: "/srv/ram:1".into(),
            lba_bytes: None,
            read_only: false,
            direct: DirectIo::Auto,
        };
        assert_eq!(path, expected);
    }

    #[test]
    fn sizes_that_are_not_exact_are_refused() {
        for size in [
            "",
            "MiB",
            "1.5GiB",
            "64MB",
            "64M",
            "-1",
            "64 MiB",
            "99999999TiB",
            "1e3",
            "0x10",
        ] {
            let error = format!("ram:{size}").parse::<VolumeSpec>();
            assert!(
                matches!(error, Err(SpecError::Size { .. })),
                "{size:?}: {error:?}"
            );
        }
        assert_eq!("".parse::<VolumeSpec>(), Err(SpecError::Empty));
    }

    #[test]
    fn lba_size_and_volume_size_are_checked() {
        let ram = |bytes, lba_bytes| VolumeSpec::Ram { bytes, lba_bytes }.prepare();
        assert!(matches!(
            ram(4096, 1024),
            Err(OpenError::LbaSize {
                lba_bytes: 1024,
                ..
            })
        ));
        assert!(matches!(ram(0, 512), Err(OpenError::Size { .. })));
        assert!(matches!(ram(4096 + 512, 4096), Err(OpenError::Size { .. })));
        let memory = ram(1 << 62, 4096).unwrap_err();
        assert!(matches!(memory, OpenError::Memory { .. }));
        assert!(std::error::Error::source(&memory).is_none(), "said already");
    }
}
