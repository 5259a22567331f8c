//! A file or block device, opened once per process: what it is, what it can do, and the lock
//! against a second export.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::sys::stat::{major, minor};

use crate::allocation;
use crate::claim;
use crate::error::{LockHolder, OpenError, in_words};
use crate::geometry::Geometry;
use crate::lifetime::{self, Lifetime};
use crate::loop_device::{self, Backing};
use crate::loss::Loss;
use crate::medium::{self, Look, Size};
use crate::medium_id::MediumId;
use crate::spec::DirectIo;
use crate::sys::{self, DirectAlignment};

mod opening;

use opening::Opening;
pub(crate) use opening::kind_in_words;

/// A lock that is taken now is tried again for 40 × 25 ms: udev locks a block device for a moment
/// when it appears, and the lock of a process that was killed is released a little after its end.
/// (What its operations hold for longer is [`OpenError::Unfinished`], for the caller to wait for.)
const LOCK_TRIES: u32 = 40;
const LOCK_WAIT: Duration = Duration::from_millis(25);
/// Alignment of memory when the kernel does not say what `O_DIRECT` needs.
const PAGE_BYTES: u32 = 4096;

/// An open file or block device.
#[derive(Debug)]
pub(crate) struct FileStore {
    file: File,
    /// The file under a loop device that may be written: locked, and never read.
    backing: Option<File>,
    path: PathBuf,
    name: Arc<str>,
    /// All but the number of LBAs, which is in `size`.
    geometry: Geometry,
    size: Size,
    block_device: bool,
    /// The alignment that transfers need; `None` when they go through the page cache.
    direct: Option<DirectAlignment>,
    loss: Loss,
    lifetime: Lifetime,
    id: MediumId,
}

impl FileStore {
    pub(crate) fn open(
        path: &Path,
        name: &Arc<str>,
        lba_bytes: Option<u32>,
        read_only: bool,
        direct: DirectIo,
    ) -> Result<Self, OpenError> {
        let opening = Opening {
            path,
            name,
            read_only,
        };
        // The type first: opening a FIFO would wait, and opening a tape would wind it.
        let block_device = opening.is_block_device(&opening.metadata()?)?;
        let (file, has_direct) = opening.open(block_device, direct)?;
        let metadata = file
            .metadata()
            .map_err(|e| opening.error("read the state of it", e))?;
        if opening.is_block_device(&metadata)? != block_device {
            return Err(opening.error("open", io::Error::other("it was replaced meanwhile")));
        }
        let geometry = opening.geometry(&file, block_device, lba_bytes, &metadata)?;
        let lifetime = lifetime::of(&file, &metadata);
        let mut store = Self {
            file,
            backing: None,
            path: path.to_owned(),
            name: Arc::clone(name),
            size: Size::new(0, geometry.lba_bytes),
            geometry,
            block_device,
            direct: None,
            loss: Loss::default(),
            lifetime,
            id: MediumId::of(path, &metadata),
        };
        if !read_only {
            store.lock(&store.file, false, &store.name)?;
            store.backing = store.lock_backing(&metadata)?;
        }
        store.find_size()?;
        if has_direct {
            store.settle_direct(direct)?;
        }
        store.settle_abilities(&metadata);
        if store.direct.is_none() {
            store.forget_cached();
        }
        Ok(store)
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            lbas: self.lbas(),
            ..self.geometry
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.size.bytes()
    }

    /// The LBAs it had at the last look.
    pub(crate) fn lbas(&self) -> u64 {
        self.size.lbas()
    }

    /// The most LBAs it has had since it was opened.
    pub(crate) fn most_lbas(&self) -> u64 {
        self.size.most_lbas()
    }

    /// Looks at the size, for every reactor. What is written to has lost what was behind its end
    /// when it is shorter. When the look fails, or a device has no bytes any more, the old size
    /// stays: a read or write there returns the reason.
    pub(crate) fn look_at_size(&self) {
        let looked = medium::bytes_of(&self.file, self.block_device);
        let looked = looked.ok().filter(|&bytes| bytes > 0 || !self.block_device);
        if let Some(bytes) = looked
            && self.size.set(bytes)
            && !self.geometry.read_only
        {
            self.loss.cut();
        }
    }

    /// Looks at the size and the path.
    pub(crate) fn look(&self) -> Look {
        let (bytes, place) = medium::look(&self.file, &self.path);
        self.size.set(bytes);
        let geometry = self.geometry();
        Look {
            bytes,
            least_bytes: self.size.take_least_bytes(),
            geometry,
            place,
        }
    }

    /// Extents of `lbas` that may hold something other than zeroes: see
    /// [`Store::allocated`](crate::Store::allocated).
    pub(crate) fn allocated(&self, lbas: Range<u64>, extents_max: usize) -> Vec<Range<u64>> {
        // A device says nothing about its blocks, and reads find out what a file has lost.
        if self.block_device || lbas.end > self.lbas() {
            return vec![lbas];
        }
        allocation::of_file(&self.file, self.geometry.lba_bytes, lbas, extents_max)
    }

    pub(crate) fn is_block_device(&self) -> bool {
        self.block_device
    }

    pub(crate) fn direct(&self) -> Option<DirectAlignment> {
        self.direct
    }

    pub(crate) fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    pub(crate) fn id(&self) -> &MediumId {
        &self.id
    }

    pub(crate) fn loss(&self) -> &Loss {
        &self.loss
    }

    /// The operator takes care of what was lost: hosts are to read the medium, as from a volume
    /// that is opened anew.
    pub(crate) fn clear_loss(&self) {
        self.forget_cached();
        self.loss.clear();
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The same file or device, opened once more: the kernel reports a failed write-back to each
    /// open file description, so whatever syncs through one of its own misses none. It holds
    /// neither the lock nor the claim.
    pub(crate) fn open_to_sync(&self) -> Option<File> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOCTTY);
        let path = format!("/proc/self/fd/{}", self.raw_fd());
        let opened = options.open(path);
        opened
            .inspect_err(|error| {
                tracing::warn!(
                    volume = %self.name, %error,
                    "cannot be opened once more for Flush: of several reactors only one may hear of a failed write-back \
                     at first; is /proc mounted?"
                );
            })
            .ok()
    }

    /// The same file with another alignment for `O_DIRECT`, to test what follows from it.
    #[cfg(test)]
    pub(crate) fn with_alignment(mut self, align: Option<(u32, u32)>) -> Self {
        self.direct = align.map(|(memory_bytes, offset_bytes)| DirectAlignment {
            memory_bytes,
            offset_bytes,
        });
        self
    }

    fn error(&self, action: &'static str, reason: io::Error) -> OpenError {
        OpenError::System {
            volume: Arc::clone(&self.name),
            action,
            reason,
        }
    }

    /// Keeps a second target from exporting the same bytes for writing, for as long as this one or
    /// an operation of it can write them (see [`claim`]). Advisory: it binds only programs that
    /// take the lock, as every Capstan target does.
    fn lock(&self, file: &File, is_shared: bool, name: &Arc<str>) -> Result<(), OpenError> {
        let mut tries = 1;
        let mut before = LockHolder::Unknown;
        loop {
            let Err(error) = sys::flock(file, is_shared) else {
                return Ok(());
            };
            match error.raw_os_error() {
                Some(libc::EWOULDBLOCK) if tries < LOCK_TRIES => {
                    tries += 1;
                    thread::sleep(LOCK_WAIT);
                    if tries == LOCK_TRIES {
                        let metadata = file.metadata().ok();
                        before = metadata.map_or(LockHolder::Unknown, |m| claim::lock_holder(&m));
                    }
                }
                Some(libc::EWOULDBLOCK) => {
                    let volume = Arc::clone(name);
                    let metadata = file.metadata();
                    let metadata = metadata.map_err(|e| self.error("read the state of it", e))?;
                    let behind = claim::lock_holder(&metadata);
                    return Err(match claim::holder_at_try(before, behind) {
                        LockHolder::Ended { pid } => OpenError::Unfinished { volume, pid },
                        holder => {
                            let through = loop_device::through(&metadata, &holder);
                            OpenError::Locked {
                                volume,
                                holder,
                                through,
                            }
                        }
                    });
                }
                // File systems without locks (some network and FUSE ones).
                Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => {
                    tracing::warn!(
                        volume = %name, %error,
                        "the file system has no locks: nothing keeps a second export away"
                    );
                    return Ok(());
                }
                _ => return Err(self.error("lock", error)),
            }
        }
    }

    /// Keeps another export away from the file under a loop device, which has the same bytes.
    fn lock_backing(&self, metadata: &Metadata) -> Result<Option<File>, OpenError> {
        let devices = Path::new("/sys/dev/block");
        let backing = self
            .block_device
            .then(|| loop_device::backing(devices, metadata.rdev()));
        // A path that does not lead to it is in another mount namespace, or it was deleted.
        let Some(backing) = backing.flatten().filter(|of| of.metadata().is_some()) else {
            return Ok(None);
        };
        let Backing {
            path, is_shared, ..
        } = backing;
        let Ok(file) = File::open(&path) else {
            return Ok(None);
        };
        let name = format!("{}, a loop device on {},", self.name, path.display());
        self.lock(&file, is_shared, &name.into())?;
        Ok(Some(file))
    }

    /// Pages that could not be written back stay in the page cache, and nothing distinguishes them
    /// from those that were: hosts, and the operator's check, are to read the medium.
    fn forget_cached(&self) {
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        if let Err(error) = posix_fadvise(&self.file, 0, 0, advice) {
            tracing::debug!(volume = %self.name, %error, "what is cached of it stays");
        }
    }

    /// Discovers the number of LBAs.
    fn find_size(&mut self) -> Result<(), OpenError> {
        let bytes = medium::bytes_of(&self.file, self.block_device)
            .map_err(|e| self.error("read the size of it", e))?;
        self.size.set(bytes);
        let geometry = &mut self.geometry;
        let lba_bytes = geometry.lba_bytes;
        geometry.optimal_io_bytes = geometry.optimal_io_bytes.max(lba_bytes);
        if self.size.lbas() == 0 {
            return Err(OpenError::Size {
                volume: Arc::clone(&self.name),
                bytes,
                lba_bytes,
            });
        }
        Ok(())
    }

    /// Finds out what `O_DIRECT` needs here, and gives `O_DIRECT` up when LBAs of this size are too
    /// small for it: then only the page cache can read and write them.
    fn settle_direct(&mut self, wanted: DirectIo) -> Result<(), OpenError> {
        let lba_bytes = self.geometry.lba_bytes;
        let reason = match self.probe_direct() {
            Ok(alignment) if alignment.offset_bytes <= lba_bytes => {
                self.direct = Some(alignment);
                return Ok(());
            }
            Ok(alignment) => format!(
                "it needs transfers of {} bytes, more than an LBA of {lba_bytes}",
                alignment.offset_bytes
            ),
            Err(error) => format!("the file system refuses it ({})", in_words(&error)),
        };
        if wanted == DirectIo::On {
            return Err(OpenError::NotDirect {
                volume: Arc::clone(&self.name),
                reason,
            });
        }
        tracing::info!(volume = %self.name, "without O_DIRECT: {reason}");
        let flags = nix::fcntl::fcntl(&self.file, nix::fcntl::F_GETFL)
            .map(nix::fcntl::OFlag::from_bits_retain)
            .map_err(|e| self.error("read its flags", e.into()))?;
        let flags = nix::fcntl::F_SETFL(flags - nix::fcntl::OFlag::O_DIRECT);
        nix::fcntl::fcntl(&self.file, flags).map_err(|e| self.error("set its flags", e.into()))?;
        Ok(())
    }

    /// The alignment that `O_DIRECT` needs: queried (Linux 6.1), otherwise tried.
    fn probe_direct(&self) -> io::Result<DirectAlignment> {
        let told = sys::direct_alignment(&self.file).ok().flatten();
        let alignment = match told {
            Some(
                DirectAlignment {
                    memory_bytes: 0, ..
                }
                | DirectAlignment {
                    offset_bytes: 0, ..
                },
            ) => {
                return Err(io::Error::other("it says that it cannot"));
            }
            Some(alignment) => alignment,
            None => DirectAlignment {
                memory_bytes: PAGE_BYTES,
                offset_bytes: self.geometry.lba_bytes,
            },
        };
        if alignment.offset_bytes > self.geometry.lba_bytes {
            return Ok(alignment);
        }
        let lba_bytes = self.geometry.lba_bytes as usize;
        let mut memory = vec![0; 2 * PAGE_BYTES as usize + lba_bytes];
        let start = memory.as_ptr().align_offset(PAGE_BYTES as usize);
        // The last LBA is the least aligned one in every respect that can matter.
        let offset = self.geometry().bytes() - u64::from(self.geometry.lba_bytes);
        match self
            .file
            .read_at(&mut memory[start..start + lba_bytes], offset)
        {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(error),
            // A bad block is for the host to find; here only a refusal means something.
            Err(_) | Ok(_) => Ok(alignment),
        }
    }

    fn settle_abilities(&mut self, metadata: &Metadata) {
        let geometry = &mut self.geometry;
        geometry.discard = !geometry.read_only
            && if self.block_device {
                queue_attribute(metadata, "discard_max_bytes").is_some_and(|v| v != "0")
            } else {
                // Beyond the end there is nothing to punch: this only finds out whether it can be
                // done.
                let mode =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                i64::try_from(metadata.len()).is_ok_and(|end| {
                    fallocate(&self.file, mode, end, i64::from(geometry.lba_bytes)).is_ok()
                })
            };
        geometry.discard_zeroes = geometry.discard && !self.block_device;
        // A device that writes through, used without the page cache, has nothing volatile. A file
        // has the caches of its file system and disk, whatever these are.
        geometry.volatile_write_cache = !(self.block_device
            && self.direct.is_some()
            && queue_attribute(metadata, "write_cache").as_deref() == Some("write through"));
    }
}

/// An attribute of a block device's queue in sysfs; a partition has that of its disk.
fn queue_attribute(metadata: &Metadata, attribute: &str) -> Option<String> {
    let device = metadata.rdev();
    let base = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |path: String| fs::read_to_string(path).ok();
    let value = read(format!("{base}/queue/{attribute}"))
        .or_else(|| read(format!("{base}/../queue/{attribute}")))?;
    Some(value.trim().to_owned())
}
