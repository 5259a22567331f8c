//! Opening a path: what it is, how it is opened, and the shape of what it has.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::{LOCK_TRIES, LOCK_WAIT, PAGE_BYTES, queue_attribute};
use crate::claim;
use crate::error::{LockHolder, OpenError, in_words};
use crate::geometry::Geometry;
use crate::spec::DirectIo;
use crate::sys;

/// What does not change while a path is being opened.
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    pub(super) name: &'a Arc<str>,
    pub(super) read_only: bool,
}

impl Opening<'_> {
    pub(super) fn error(&self, action: &'static str, reason: io::Error) -> OpenError {
        OpenError::System {
            volume: Arc::clone(self.name),
            action,
            reason,
        }
    }

    pub(super) fn metadata(&self) -> Result<Metadata, OpenError> {
        fs::metadata(self.path).map_err(|e| self.error("open", e))
    }

    pub(super) fn is_block_device(&self, metadata: &Metadata) -> Result<bool, OpenError> {
        let kind = metadata.file_type();
        if kind.is_block_device() {
            return Ok(true);
        }
        if kind.is_file() {
            return Ok(false);
        }
        let what = kind_in_words(kind);
        Err(OpenError::NotAVolume {
            volume: Arc::clone(self.name),
            what,
        })
    }

    /// Opens with `O_DIRECT` unless it is not wanted or refused; says which.
    pub(super) fn open(
        &self,
        block_device: bool,
        direct: DirectIo,
    ) -> Result<(File, bool), OpenError> {
        if direct != DirectIo::Off {
            match self.open_with(block_device, libc::O_DIRECT) {
                Ok(file) => return Ok((file, true)),
                Err((error, holder)) if error.raw_os_error() != Some(libc::EINVAL) => {
                    return Err(self.open_error(block_device, error, holder));
                }
                Err((error, _)) if direct == DirectIo::On => {
                    let reason = format!("the file system refuses it ({})", in_words(&error));
                    return Err(OpenError::NotDirect {
                        volume: Arc::clone(self.name),
                        reason,
                    });
                }
                Err((error, _)) => {
                    tracing::info!(volume = %self.name, %error, "without O_DIRECT: refused");
                }
            }
        }
        let file = self.open_with(block_device, 0);
        let refused = |(error, holder)| self.open_error(block_device, error, holder);
        Ok((file.map_err(refused)?, false))
    }

    /// An error comes with the holder of the lock as it was before the last try.
    fn open_with(&self, block_device: bool, flags: i32) -> Result<File, (io::Error, LockHolder)> {
        // On a block device O_EXCL claims it: it cannot be opened while it is mounted, nor mounted
        // while it is open here (open(2)).
        let claim = if block_device && !self.read_only {
            libc::O_EXCL
        } else {
            0
        };
        let mut options = OpenOptions::new();
        options.read(true).write(!self.read_only);
        options.custom_flags(flags | claim | libc::O_CLOEXEC | libc::O_NOCTTY);
        let mut tries = 1;
        let mut before = LockHolder::Unknown;
        loop {
            match options.open(self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < LOCK_TRIES => {
                    tries += 1;
                    thread::sleep(LOCK_WAIT);
                    if tries == LOCK_TRIES {
                        before = self.lock_holder();
                    }
                }
                result => return result.map_err(|error| (error, before)),
            }
        }
    }

    fn lock_holder(&self) -> LockHolder {
        let metadata = self.metadata();
        metadata.map_or(LockHolder::Unknown, |metadata| {
            claim::lock_holder(&metadata)
        })
    }

    fn open_error(&self, block_device: bool, error: io::Error, before: LockHolder) -> OpenError {
        if block_device && error.raw_os_error() == Some(libc::EBUSY) {
            let volume = Arc::clone(self.name);
            // An export of it has the lock as well.
            return match claim::holder_at_try(before, self.lock_holder()) {
                LockHolder::Ended { pid } => OpenError::Unfinished { volume, pid },
                LockHolder::Unknown => OpenError::Busy { volume },
                holder => OpenError::Locked {
                    volume,
                    holder,
                    through: None,
                },
            };
        }
        self.error(
            if self.read_only {
                "open for reading"
            } else {
                "open for writing"
            },
            error,
        )
    }

    /// Everything but the size, which is looked at once the lock is held.
    pub(super) fn geometry(
        &self,
        file: &File,
        block_device: bool,
        lba_bytes: Option<u32>,
        metadata: &Metadata,
    ) -> Result<Geometry, OpenError> {
        let volume = || Arc::clone(self.name);
        let mut optimal_io_bytes = u32::try_from(metadata.blksize()).unwrap_or(PAGE_BYTES);
        let mut chosen = lba_bytes.unwrap_or(4096);
        if block_device {
            let block_bytes = sys::logical_block_bytes(file)
                .map_err(|e| self.error("read the block size of it", e))?;
            chosen = lba_bytes.unwrap_or(block_bytes);
            if chosen < block_bytes && Geometry::supports_lba_bytes(chosen) {
                return Err(OpenError::LbaBelowBlock {
                    volume: volume(),
                    lba_bytes: chosen,
                    block_bytes,
                });
            }
            let physical_bytes = sys::physical_block_bytes(file)
                .map_err(|e| self.error("read the physical block size of it", e))?;
            let told = queue_attribute(metadata, "optimal_io_size").and_then(|v| v.parse().ok());
            optimal_io_bytes = told.unwrap_or(0).max(physical_bytes);
        }
        if !Geometry::supports_lba_bytes(chosen) {
            return Err(OpenError::LbaSize {
                volume: volume(),
                lba_bytes: chosen,
            });
        }
        Ok(Geometry {
            lba_bytes: chosen,
            lbas: 0,
            volatile_write_cache: true,
            discard: false,
            discard_zeroes: false,
            optimal_io_bytes,
            atomic_lbas: 1,
            read_only: self.read_only,
        })
    }
}

/// What is no volume, in words.
pub(crate) fn kind_in_words(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_fifo() {
        "a named pipe"
    } else {
        "a socket"
    }
}
