//! Slabs registered with the ring: the kernel maps and pins their pages once instead of per
//! operation. It does so in pieces, each when an operation first names it, so that memory which was
//! never used is not resident.
#![expect(
    unsafe_code,
    reason = "the kernel keeps addresses of registered memory"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use capstan_memory::Slab;
use io_uring::IoUring;
use nix::sys::resource::{Resource, getrlimit};

/// The smallest piece. The largest lease of a [`capstan_memory::Pool`] fits and, being aligned to
/// its own size, never straddles two. Making a piece resident and pinning it takes about a
/// millisecond, for which other operations of the reactor wait.
const PIECE_MIN_BYTES: usize = 4 << 20;
/// The kernel's limit for one registered buffer (`io_uring_register(2)`), and so the largest piece.
const PIECE_MAX_BYTES: usize = 1 << 30;
/// Pieces a slab is divided into, unless they would be too small or too large for that.
const PIECES: usize = 4096;
/// Entries of the ring's table, as many as the kernel allows; 8 bytes of kernel memory each.
const PLACES: u16 = 1 << 14;

/// How [`Engine::register_slab`](crate::Engine::register_slab) ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedBuffers {
    /// The kernel need not map the pages for each operation on this slab. Its pieces are registered
    /// as they are first used; one that the kernel refuses then works without, and the log says so.
    Registered,
    /// Operations on this slab work without.
    NotRegistered {
        /// Why, and what would change it; to be logged once.
        reason: String,
    },
}

/// The state of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// No operation has named it yet.
    Unused,
    Registered,
    /// The kernel would not pin it.
    Refused,
}

/// A slab and its entries in the table.
#[derive(Debug)]
struct Known {
    slab: Arc<Slab>,
    first: u16,
    piece_bytes: usize,
    pieces: Box<[Piece]>,
    /// What the whole slab counts against RLIMIT_MEMLOCK, so that its pieces can be pinned later.
    /// Released after the ring, with the table.
    _share: Option<Share>,
}

impl Known {
    fn new(slab: &Arc<Slab>, first: u16, share: Option<Share>) -> Self {
        let piece_bytes = piece_bytes(slab.len_bytes());
        Self {
            slab: Arc::clone(slab),
            first,
            piece_bytes,
            pieces: vec![Piece::Unused; slab.len_bytes().div_ceil(piece_bytes)].into(),
            _share: share,
        }
    }

    /// The piece that holds `len_bytes` at `memory`. Bytes that straddle two are in none: one
    /// operation names one buffer.
    fn piece_of(&self, memory: usize, len_bytes: u32) -> Option<usize> {
        let start = memory.checked_sub(self.slab.base().as_ptr().addr())?;
        let end = start.checked_add((len_bytes as usize).checked_sub(1)?)?;
        let piece = start / self.piece_bytes;
        (end < self.slab.len_bytes() && end / self.piece_bytes == piece).then_some(piece)
    }

    /// The bytes of a piece.
    fn bytes(&self, piece: usize) -> libc::iovec {
        let start = piece * self.piece_bytes;
        libc::iovec {
            iov_base: self.slab.base().as_ptr().wrapping_add(start).cast(),
            iov_len: (self.slab.len_bytes() - start).min(self.piece_bytes),
        }
    }
}

/// How large the pieces of a slab are: a power of two.
fn piece_bytes(len_bytes: usize) -> usize {
    let wanted = len_bytes.div_ceil(PIECES).next_power_of_two();
    wanted.clamp(PIECE_MIN_BYTES, PIECE_MAX_BYTES)
}

/// The slabs of one ring, in the order of their entries.
#[derive(Debug)]
pub(crate) struct FixedTable {
    slabs: Vec<Known>,
    used: u16,
    /// Whether the ring has an empty table to fill (Linux 5.19).
    sparse: bool,
    /// Whether a refused piece has been logged already.
    told: bool,
}

impl FixedTable {
    pub(crate) fn new(ring: &IoUring) -> Self {
        let sparse = ring
            .submitter()
            .register_buffers_sparse(u32::from(PLACES))
            .is_ok();
        Self {
            slabs: Vec::new(),
            used: 0,
            sparse,
            told: false,
        }
    }

    /// Registers a slab for which none of what may be locked is to be set aside: only where that is
    /// not limited.
    pub(crate) fn register_if_free(&mut self, slab: &Arc<Slab>) {
        if lock_limit_bytes().is_none() {
            self.register(slab);
        }
    }

    /// Registers a slab, piece by piece when each is first used. It stays mapped until
    /// [`FixedTable::clear`] and the ring are gone.
    pub(crate) fn register(&mut self, slab: &Arc<Slab>) -> FixedBuffers {
        if self.slabs.iter().any(|known| known.slab.id() == slab.id()) {
            return FixedBuffers::Registered;
        }
        let not = |reason| FixedBuffers::NotRegistered { reason };
        if !self.sparse {
            return not(
                "the kernel is older than Linux 5.19, which brings tables of buffers that \
                 are filled later"
                    .to_owned(),
            );
        }
        let pieces = slab.len_bytes().div_ceil(piece_bytes(slab.len_bytes()));
        let fits = u16::try_from(pieces)
            .ok()
            .filter(|&n| n <= PLACES - self.used);
        let Some(places) = fits else {
            return not(format!(
                "{pieces} more buffers do not fit the ring's table of {PLACES}, of which {} are \
                 used",
                self.used
            ));
        };
        let share = match Share::take(slab.len_bytes() as u64, lock_limit_bytes()) {
            Ok(share) => share,
            Err(reason) => return not(reason),
        };
        self.slabs.push(Known::new(slab, self.used, share));
        self.used += places;
        FixedBuffers::Registered
    }

    /// The table's index to name for `len_bytes` at `memory`, when their slab is registered. The
    /// first use of a piece registers it.
    pub(crate) fn place(&mut self, ring: &IoUring, memory: usize, len_bytes: u32) -> Option<u16> {
        let (known, piece) = self.slabs.iter_mut().find_map(|known| {
            let piece = known.piece_of(memory, len_bytes)?;
            Some((known, piece))
        })?;
        let place = known.first + u16::try_from(piece).ok()?;
        if known.pieces[piece] == Piece::Unused {
            let bytes = known.bytes(piece);
            known.pieces[piece] = match update(ring, place, bytes) {
                Ok(()) => Piece::Registered,
                Err(error) => {
                    if !std::mem::replace(&mut self.told, true) {
                        let reason = refused(&error, bytes.iov_len);
                        tracing::warn!("some disk I/O goes without fixed buffers: {reason}");
                    }
                    Piece::Refused
                }
            };
        }
        (known.pieces[piece] == Piece::Registered).then_some(place)
    }

    /// Unregisters every slab. Nothing may be in flight.
    pub(crate) fn clear(&mut self, ring: &IoUring) {
        if self.sparse {
            // The ring is closed right after this, which would do the same a little later.
            let _ = ring.submitter().unregister_buffers();
        }
    }
}

/// Bytes this process has registered with its rings, or may yet, under a limit.
static SHARED_BYTES: AtomicU64 = AtomicU64::new(0);

/// A part of what may be locked.
#[derive(Debug)]
struct Share {
    len_bytes: u64,
}

impl Share {
    /// Takes `len_bytes` of the half of the limit that registered buffers may have. The kernel
    /// counts rings as well (seen on Linux 6.18): if buffers used up the limit, the next reactor
    /// could not make its ring. `None` where there is no limit.
    fn take(len_bytes: u64, limit_bytes: Option<u64>) -> Result<Option<Self>, String> {
        let Some(limit_bytes) = limit_bytes else {
            return Ok(None);
        };
        let taken = SHARED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used_bytes| {
            let sum = used_bytes.checked_add(len_bytes);
            sum.filter(|&sum| sum <= limit_bytes / 2)
        });
        match taken {
            Ok(_) => Ok(Some(Self { len_bytes })),
            Err(used_bytes) => Err(format!(
                "RLIMIT_MEMLOCK is {}, buffers may have half of it and have {} of that, and {} more are \
                 wanted: {REMEDY}",
                kib(limit_bytes),
                kib(used_bytes),
                kib(len_bytes)
            )),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        SHARED_BYTES.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes / 1024)
}

const REMEDY: &str =
    "raise it with `ulimit -l unlimited` or LimitMEMLOCK=infinity in the systemd unit";

/// RLIMIT_MEMLOCK where it binds this thread: neither unlimited nor exempt by CAP_IPC_LOCK.
fn lock_limit_bytes() -> Option<u64> {
    let (limit_bytes, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    (limit_bytes < libc::RLIM_INFINITY && !has_ipc_lock(&status)).then_some(limit_bytes)
}

/// Whether the effective capabilities in `/proc/PID/status` hold CAP_IPC_LOCK.
fn has_ipc_lock(status: &str) -> bool {
    /// `linux/capability.h`.
    const CAP_IPC_LOCK: u32 = 14;
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & 1 << CAP_IPC_LOCK != 0)
}

/// Fills an entry of the table. The pages become resident and are pinned.
fn update(ring: &IoUring, place: u16, bytes: libc::iovec) -> io::Result<()> {
    // SAFETY: the bytes lie inside a slab whose `Arc` the table holds until the ring is gone.
    unsafe {
        ring.submitter()
            .register_buffers_update(u32::from(place), &[bytes], None)
    }
}

fn refused(error: &io::Error, len_bytes: usize) -> String {
    match (error.raw_os_error(), getrlimit(Resource::RLIMIT_MEMLOCK)) {
        (Some(libc::ENOMEM), Ok((limit_bytes, _))) if limit_bytes < u64::MAX => format!(
            "RLIMIT_MEMLOCK is {}, shared by all processes of this user, and {} more are wanted: {REMEDY}",
            kib(limit_bytes),
            kib(len_bytes as u64)
        ),
        _ => format!("the kernel refuses to pin {len_bytes} bytes: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use capstan_memory::{Pages, Slab};

    use super::{
        FixedBuffers, FixedTable, Known, PIECE_MIN_BYTES, Piece, Share, has_ipc_lock, piece_bytes,
    };
    use crate::uring::setup::{self, Mode};

    #[test]
    fn only_memory_inside_one_piece_is_in_a_piece() {
        // 10 MiB of addresses, of which no page is touched.
        let large = Slab::new(5 * PIECE_MIN_BYTES / 2, Pages::Ordinary).unwrap();
        let small = Slab::new(8192, Pages::Ordinary).unwrap();
        let at = |slab: &Arc<Slab>, offset: usize, len| {
            let known = Known::new(slab, 4, None);
            known.piece_of(slab.base().as_ptr().addr() + offset, len)
        };
        assert_eq!(at(&large, 0, 4096), Some(0));
        assert_eq!(at(&large, PIECE_MIN_BYTES - 4096, 4096), Some(0));
        assert_eq!(at(&large, PIECE_MIN_BYTES - 4096, 4097), None);
        assert_eq!(at(&large, PIECE_MIN_BYTES, 4096), Some(1));
        assert_eq!(at(&large, 5 * PIECE_MIN_BYTES / 2 - 1, 1), Some(2));
        assert_eq!(at(&small, 64, 8192 - 64), Some(0));
        assert_eq!(at(&small, 64, 8192), None);
        assert_eq!(at(&small, 0, 0), None);
        let known = Known::new(&small, 0, None);
        assert_eq!(known.piece_of(usize::MAX, 2), None);
        assert_eq!(known.piece_of(4096, 1), None);
    }

    #[test]
    fn pieces_grow_with_the_slab_so_that_four_of_64_gib_fit_the_table() {
        assert_eq!(piece_bytes(4096), 4 << 20);
        assert_eq!(piece_bytes(16 << 30), 4 << 20);
        assert_eq!(piece_bytes((16 << 30) + 1), 8 << 20);
        assert_eq!(piece_bytes(64 << 30), 16 << 20);
        assert_eq!(piece_bytes(1 << 50), 1 << 30);
    }

    /// Bytes of this process that devices and rings have pinned.
    fn pinned_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmPin:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }

    #[test]
    fn a_piece_is_pinned_when_it_is_first_used_and_not_before() {
        let (ring, _) = setup::ring(8, 8, Mode::Plain).unwrap();
        let mut table = FixedTable::new(&ring);
        let slab = Slab::new(4 * PIECE_MIN_BYTES, Pages::Ordinary).unwrap();
        let before = pinned_bytes();
        // Without a share, which a user's usual limit does not allow.
        table.slabs.push(Known::new(&slab, 0, None));
        let base = slab.base().as_ptr().addr();
        assert_eq!(table.place(&ring, base + PIECE_MIN_BYTES, 4096), Some(1));
        assert_eq!(
            table.place(&ring, base + PIECE_MIN_BYTES + 8192, 4096),
            Some(1)
        );
        assert!(pinned_bytes() >= before + PIECE_MIN_BYTES as u64);
        let pieces = &table.slabs[0].pieces;
        let (unused, registered) = (Piece::Unused, Piece::Registered);
        assert_eq!(**pieces, [unused, registered, unused, unused]);
        table.clear(&ring);
    }

    #[test]
    fn a_piece_the_kernel_refuses_goes_without_and_is_not_asked_for_again() {
        let (ring, _) = setup::ring(8, 8, Mode::Plain).unwrap();
        let mut table = FixedTable::new(&ring);
        let slab = Slab::new(2 * PIECE_MIN_BYTES, Pages::Ordinary).unwrap();
        table.slabs.push(Known::new(&slab, 0, None));
        let base = slab.base().as_ptr().addr();
        // A table that is gone refuses every entry.
        table.clear(&ring);
        assert_eq!(table.place(&ring, base, 4096), None);
        assert!(table.told);
        assert_eq!(*table.slabs[0].pieces, [Piece::Refused, Piece::Unused]);
        table.told = false;
        assert_eq!(table.place(&ring, base, 4096), None);
        assert!(!table.told, "the kernel was asked again");
    }

    #[test]
    fn a_full_table_and_a_slab_known_already_are_told_apart() {
        let (ring, _) = setup::ring(8, 8, Mode::Plain).unwrap();
        let mut table = FixedTable::new(&ring);
        let slab = Slab::new(1 << 20, Pages::Ordinary).unwrap();
        assert_eq!(table.register(&slab), FixedBuffers::Registered);
        let used = table.used;
        assert_eq!(table.register(&slab), FixedBuffers::Registered);
        assert_eq!(table.used, used);
        table.used = 1 << 14;
        let other = Slab::new(4096, Pages::Ordinary).unwrap();
        let FixedBuffers::NotRegistered { reason } = table.register(&other) else {
            panic!("a place behind the end of the table");
        };
        assert!(reason.contains("table of 16384"), "{reason}");
        let mut old = FixedTable {
            sparse: false,
            ..FixedTable::new(&ring)
        };
        let FixedBuffers::NotRegistered { reason } = old.register(&other) else {
            panic!("registered without a table");
        };
        assert!(reason.contains("5.19"), "{reason}");
        table.clear(&ring);
    }

    #[test]
    fn buffers_have_half_of_what_may_be_locked_and_give_it_back() {
        // Far above what other tests of this process may have taken.
        let limit_bytes = Some(1 << 50);
        assert!(Share::take(1 << 60, None).unwrap().is_none());
        let error = Share::take((1 << 49) + 1, limit_bytes).unwrap_err();
        assert!(error.contains("may have half of it"), "{error}");
        let first = Share::take(1 << 48, limit_bytes).unwrap();
        let second = Share::take((1 << 48) - (1 << 40), limit_bytes).unwrap();
        assert!(Share::take(1 << 48, limit_bytes).is_err());
        drop(first);
        let third = Share::take(1 << 48, limit_bytes).unwrap();
        assert!(second.is_some() && third.is_some());
    }

    #[test]
    fn the_capability_is_read_from_the_effective_set() {
        let status = |bits: &str| format!("CapPrm:\t000001ffffffffff\nCapEff:\t{bits}\n");
        assert!(has_ipc_lock(&status("000001ffffffffff")));
        assert!(has_ipc_lock(&status("0000000000004000")));
        assert!(!has_ipc_lock(&status("00000000a80425fb")));
        assert!(!has_ipc_lock(""));
    }
}
