//! `readv` and `writev` between descriptors and leased memory, which is never borrowed as a slice:
//! where a device has no memory windows, the target could write to it at any time.
#![expect(
    unsafe_code,
    reason = "names memory that devices address to system calls"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use capstan_memory::Buffer;
use nix::libc;

/// Parts of one system call.
pub(crate) const PARTS_MAX: usize = 64;

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Of this process alone.
    Bytes(&'a [u8]),
    /// `len_bytes` of a lease from `start` on.
    Lease {
        /// The lease.
        lease: &'a Buffer,
        /// First byte.
        start: u32,
        /// Bytes.
        len_bytes: u32,
    },
}

impl Part<'_> {
    /// Nothing.
    pub(crate) const EMPTY: Self = Part::Bytes(&[]);

    /// Bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Lease { len_bytes, .. } => *len_bytes as usize,
        }
    }

    /// A copy of the bytes, where there is no descriptor.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn copied(self) -> Vec<u8> {
        match self {
            Part::Bytes(bytes) => bytes.to_vec(),
            Part::Lease {
                lease,
                start,
                len_bytes,
            } => {
                let mut bytes = vec![0; len_bytes as usize];
                lease.copy_to(start as usize, &mut bytes);
                bytes
            }
        }
    }
}

/// Where to receive.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    /// Memory of this process alone.
    Bytes(&'a mut [u8]),
    /// `len_bytes` of a lease from `start` on.
    Lease {
        /// The lease.
        lease: &'a mut Buffer,
        /// First byte.
        start: u32,
        /// Bytes.
        len_bytes: u32,
    },
}

impl Place<'_> {
    /// Bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        match self {
            Place::Bytes(bytes) => bytes.len(),
            Place::Lease { len_bytes, .. } => *len_bytes as usize,
        }
    }
}

/// Sends `parts`, at most [`PARTS_MAX`] of them, with one call.
///
/// # Errors
/// writev(2).
pub(super) fn send(fd: BorrowedFd<'_>, parts: &[Part<'_>]) -> io::Result<usize> {
    let mut iovecs = [EMPTY; PARTS_MAX];
    let mut count = 0;
    for (iovec, part) in iovecs.iter_mut().zip(parts) {
        *iovec = match *part {
            Part::Bytes(bytes) => libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            },
            Part::Lease {
                lease,
                start,
                len_bytes,
            } => within(lease, start, len_bytes),
        };
        count += 1;
    }
    // SAFETY: each entry of the `count` that are set names memory that the borrows in `parts` keep
    // alive through the call, which only reads it.
    let sent = unsafe { libc::writev(fd.as_raw_fd(), iovecs.as_ptr(), count) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `places`, at most [`PARTS_MAX`] of them, with one call.
///
/// # Errors
/// readv(2).
pub(super) fn receive(fd: BorrowedFd<'_>, places: &mut [Place<'_>]) -> io::Result<usize> {
    let mut iovecs = [EMPTY; PARTS_MAX];
    let mut count = 0;
    for (iovec, place) in iovecs.iter_mut().zip(places) {
        *iovec = match place {
            Place::Bytes(bytes) => libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            },
            Place::Lease {
                lease,
                start,
                len_bytes,
            } => within(lease, *start, *len_bytes),
        };
        count += 1;
    }
    // SAFETY: each entry of the `count` that are set names memory that the exclusive borrows in
    // `places` keep alive through the call. No reference to leased memory exists anywhere, and an
    // I/O in flight owns its lease, so the owner of one may have it written.
    let received = unsafe { libc::readv(fd.as_raw_fd(), iovecs.as_ptr(), count) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// A range of a lease, cut to what is leased.
fn within(lease: &Buffer, start: u32, len_bytes: u32) -> libc::iovec {
    let start = start.min(lease.len_bytes());
    let len_bytes = len_bytes.min(lease.len_bytes() - start);
    libc::iovec {
        iov_base: lease.base().as_ptr().wrapping_add(start as usize).cast(),
        iov_len: len_bytes as usize,
    }
}

const EMPTY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use capstan_memory::{Pages, Pool};

    use super::{Part, Place, receive, send};

    #[test]
    fn bytes_go_through_a_pipe_and_not_past_a_lease() {
        let pool = Pool::new(1 << 16, Pages::Ordinary).unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        let mut lease = pool.take(10).unwrap();
        lease.copy_from(0, b"0123456789");
        let parts = [
            Part::Bytes(b"ab"),
            Part::Lease {
                lease: &lease,
                start: 7,
                len_bytes: 100,
            },
        ];
        assert_eq!(send(write.as_fd(), &parts).unwrap(), 5);
        let mut head = [0; 1];
        let mut places = [
            Place::Bytes(&mut head),
            Place::Lease {
                lease: &mut lease,
                start: 0,
                len_bytes: 10,
            },
        ];
        assert_eq!(receive(read.as_fd(), &mut places).unwrap(), 5);
        let part = Part::Lease {
            lease: &lease,
            start: 0,
            len_bytes: 10,
        };
        assert_eq!((head, part.copied()), ([b'a'], b"b789456789".to_vec()));
    }
}
