//! Memory that two processes map.
#![expect(unsafe_code, reason = "maps and unmaps shared memory")]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use super::ring::{LINES_BYTES, RING_BYTES};

/// Positions of both rings in the first page, then the bytes of each.
const LEN_BYTES: usize = 4096 + 2 * RING_BYTES;
const _: () = assert!(2 * LINES_BYTES <= 4096);

/// Shared memory with room for two rings. Zero at first; the peer may change any byte at any time.
pub(in crate::iwarp) struct Memory {
    base: NonNull<u8>,
}

/// Where one ring lies. Valid as long as its [`Memory`].
pub(in crate::iwarp) struct Place {
    /// The positions: [`LINES_BYTES`], aligned to them.
    pub lines: *mut u8,
    /// The bytes: [`RING_BYTES`].
    pub bytes: *mut u8,
}

impl Memory {
    /// New memory, and the descriptor that another process maps it by.
    ///
    /// # Errors
    /// The system has no memory or descriptors left.
    pub(in crate::iwarp) fn create() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(
            c"capstan-iwarp",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        let length = i64::try_from(LEN_BYTES).map_err(io::Error::other)?;
        ftruncate(&fd, length)?;
        // Pages can no longer be taken away, so no access ends in SIGBUS.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok((Self::map(&fd)?, fd))
    }

    /// Maps what another process has created.
    ///
    /// # Errors
    /// It is not what [`Memory::create`] makes, or cannot be mapped.
    pub(in crate::iwarp) fn open(fd: &OwnedFd) -> io::Result<Self> {
        // Only a memfd knows seals: this refuses any other kind of file, too.
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|error| {
            io::Error::other(format!(
                "no shared memory but another kind of file has come ({}); a memfd of {LEN_BYTES} \
                 bytes that cannot shrink is expected",
                error.desc()
            ))
        })?;
        let seals = SealFlag::from_bits_retain(seals);
        let length = usize::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || length != LEN_BYTES {
            return Err(io::Error::other(format!(
                "shared memory of {length} bytes with seals {seals:?}; {LEN_BYTES} bytes that \
                 cannot shrink are expected"
            )));
        }
        Self::map(fd)
    }

    fn map(fd: impl AsFd) -> io::Result<Self> {
        let length = NonZeroUsize::new(LEN_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, fd, 0)? };
        Ok(Self { base: base.cast() })
    }

    /// Where a ring lies. The process that created the memory sends through the first, the other
    /// through the `second`.
    pub(in crate::iwarp) fn place(&self, second: bool) -> Place {
        let n = usize::from(second);
        let base = self.base.as_ptr();
        Place {
            lines: base.wrapping_add(n * LINES_BYTES),
            bytes: base.wrapping_add(4096 + n * RING_BYTES),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; the rings that point into it are dropped with
        // the link, which owned both, and what was lent in them is not read any more
        // (`Lent::rings`).
        let _ = unsafe { munmap(self.base.cast(), LEN_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(length: usize, seals: SealFlag) -> OwnedFd {
        let fd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&fd, i64::try_from(length).unwrap()).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        fd
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let (first, fd) = Memory::create().unwrap();
        let second = Memory::open(&fd).unwrap();
        for n in [false, true] {
            let (a, b) = (first.place(n).bytes, second.place(n).bytes);
            for (value, at) in [(7, 0), (8, RING_BYTES - 1)] {
                // SAFETY: mapped, and nothing else knows it.
                unsafe { a.wrapping_add(at).write(value) };
                // SAFETY: as above.
                assert_eq!(unsafe { b.wrapping_add(at).read() }, value);
            }
        }
    }

    #[test]
    fn memory_that_can_shrink_or_is_of_another_size_is_refused() {
        assert!(Memory::open(&memfd(LEN_BYTES, SealFlag::F_SEAL_SHRINK)).is_ok());
        let error = Memory::open(&memfd(LEN_BYTES, SealFlag::empty()))
            .err()
            .unwrap();
        assert!(error.to_string().contains("cannot shrink"), "{error}");
        for length in [0, LEN_BYTES - 4096, LEN_BYTES + 1] {
            let error = Memory::open(&memfd(length, SealFlag::F_SEAL_SHRINK))
                .err()
                .unwrap();
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
    }

    #[test]
    fn other_kinds_of_files_are_refused() {
        for path in ["/proc/self/exe", "/dev/zero"] {
            let file = OwnedFd::from(std::fs::File::open(path).unwrap());
            let error = Memory::open(&file).err().unwrap().to_string();
            assert!(error.starts_with("no shared memory"), "{path}: {error}");
        }
    }
}
