//! Slabs registered with the ring: the kernel maps and pins their pages once instead of per
//! operation.
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

/// The kernel's limit for one registered buffer (`io_uring_register(2)`).
const BUFFER_MAX_BYTES: usize = 1 << 30;
/// Places in the ring's table: 256 GiB of slabs, at a few bytes of kernel memory each.
const PLACES: u16 = 256;

/// How [`Engine::register_slab`](crate::Engine::register_slab) ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedBuffers {
    /// Operations on this slab spare the kernel mapping its pages each time.
    Registered,
    /// Operations on this slab work without.
    NotRegistered {
        /// Why, and what would change it; to be logged once.
        reason: String,
    },
}

/// The registered slabs of one ring, in the order of their places.
#[derive(Debug)]
pub(crate) struct FixedTable {
    slabs: Vec<(Arc<Slab>, u16)>,
    /// What the slabs count against RLIMIT_MEMLOCK; given back after the ring, with the table.
    shares: Vec<Share>,
    used: u16,
    /// Whether the ring has an empty table to fill (Linux 5.19).
    sparse: bool,
}

impl FixedTable {
    pub(crate) fn new(ring: &IoUring) -> Self {
        let sparse = ring
            .submitter()
            .register_buffers_sparse(u32::from(PLACES))
            .is_ok();
        Self {
            slabs: Vec::new(),
            shares: Vec::new(),
            used: 0,
            sparse,
        }
    }

    /// Registers a slab that is not worth a share of what may be locked: only where that is not
    /// limited.
    pub(crate) fn register_if_free(&mut self, ring: &IoUring, slab: &Arc<Slab>) {
        if lock_limit_bytes().is_none() {
            self.register(ring, slab);
        }
    }

    /// Registers a slab. It stays mapped until [`FixedTable::clear`] and the ring are gone.
    pub(crate) fn register(&mut self, ring: &IoUring, slab: &Arc<Slab>) -> FixedBuffers {
        if self.slabs.iter().any(|(known, _)| known.id() == slab.id()) {
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
        let places = slab.len_bytes().div_ceil(BUFFER_MAX_BYTES);
        let fits = u16::try_from(places)
            .ok()
            .filter(|&n| n <= PLACES - self.used);
        let Some(places) = fits else {
            return not(format!(
                "{places} more buffers of 1 GiB do not fit the ring's table of {PLACES}, of which \
                 {} are used",
                self.used
            ));
        };
        let share = match Share::take(slab.len_bytes() as u64, lock_limit_bytes()) {
            Ok(share) => share,
            Err(reason) => return not(reason),
        };
        for place in 0..places {
            if let Err(error) = update(ring, self.used + place, piece(slab, place)) {
                for undone in 0..place {
                    // An empty piece takes the place back; on failure it stays pinned, no worse.
                    let _ = update(ring, self.used + undone, EMPTY);
                }
                return not(refused(&error, slab.len_bytes()));
            }
        }
        self.slabs.push((Arc::clone(slab), self.used));
        self.shares.extend(share);
        self.used += places;
        FixedBuffers::Registered
    }

    /// The place to name for `len_bytes` at `memory`, when they are registered.
    pub(crate) fn place(&self, memory: usize, len_bytes: u32) -> Option<u16> {
        let last = memory.checked_add((len_bytes as usize).checked_sub(1)?)?;
        self.slabs.iter().find_map(|(slab, first)| {
            let base = slab.base().as_ptr().addr();
            let start = memory.checked_sub(base)?;
            let end = last
                .checked_sub(base)
                .filter(|&end| end < slab.len_bytes())?;
            let place = start / BUFFER_MAX_BYTES;
            // One operation names one buffer: a piece that straddles two goes unregistered.
            (end / BUFFER_MAX_BYTES == place)
                .then(|| u16::try_from(place).ok()?.checked_add(*first))?
        })
    }

    /// Takes every slab back from the kernel. Nothing may be in flight.
    pub(crate) fn clear(&mut self, ring: &IoUring) {
        if self.sparse {
            // The ring is closed right after this, which would do the same a little later.
            let _ = ring.submitter().unregister_buffers();
        }
    }
}

/// Bytes this process has registered with its rings under a limit.
static SHARED_BYTES: AtomicU64 = AtomicU64::new(0);

/// A part of what may be locked.
#[derive(Debug)]
struct Share {
    len_bytes: u64,
}

impl Share {
    /// Takes `len_bytes` of the half of the limit that registered buffers may have. The kernel
    /// counts rings as well (seen on Linux 6.18): were the limit used up by buffers, the next
    /// reactor could not make its ring. `None` where nothing limits.
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
                "RLIMIT_MEMLOCK is {limit_bytes} bytes, of which half is for buffers and \
                 {used_bytes} are used, and the slab has {len_bytes}: {REMEDY}"
            )),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        SHARED_BYTES.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
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

const EMPTY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// The part of `slab` that is its `place`-th buffer.
fn piece(slab: &Slab, place: u16) -> libc::iovec {
    let start = usize::from(place) * BUFFER_MAX_BYTES;
    libc::iovec {
        iov_base: slab.base().as_ptr().wrapping_add(start).cast(),
        iov_len: (slab.len_bytes() - start).min(BUFFER_MAX_BYTES),
    }
}

fn update(ring: &IoUring, place: u16, piece: libc::iovec) -> io::Result<()> {
    let place = u32::from(place);
    // SAFETY: the piece is empty or lies inside a slab whose `Arc` the table holds until the ring
    // is gone; a slab that fails half way is taken back before its `Arc` is let go, and what the
    // kernel pinned stays valid physical memory in any case.
    unsafe {
        ring.submitter()
            .register_buffers_update(place, &[piece], None)
    }
}

fn refused(error: &io::Error, len_bytes: usize) -> String {
    match (error.raw_os_error(), getrlimit(Resource::RLIMIT_MEMLOCK)) {
        (Some(libc::ENOMEM), Ok((limit_bytes, _))) if limit_bytes < u64::MAX => format!(
            "RLIMIT_MEMLOCK is {limit_bytes} bytes, shared by all processes of this user, and the \
             slab has {len_bytes}: {REMEDY}"
        ),
        _ => format!("the kernel refuses to pin {len_bytes} bytes: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use capstan_memory::{Pages, Slab};

    use super::{BUFFER_MAX_BYTES, FixedBuffers, FixedTable, Share, has_ipc_lock};
    use crate::uring::setup::{self, Mode};

    #[test]
    fn a_place_is_named_only_for_memory_inside_one_buffer() {
        // 2.5 GiB of addresses, of which no page is touched.
        let large = Slab::new(5 * BUFFER_MAX_BYTES / 2, Pages::Ordinary).unwrap();
        let small = Slab::new(8192, Pages::Ordinary).unwrap();
        let slabs = vec![(Arc::clone(&large), 4), (Arc::clone(&small), 7)];
        let table = FixedTable {
            slabs,
            shares: Vec::new(),
            used: 8,
            sparse: true,
        };
        let at = |slab: &Slab, offset: usize, len| {
            table.place(slab.base().as_ptr().addr() + offset, len)
        };
        assert_eq!(at(&large, 0, 4096), Some(4));
        assert_eq!(at(&large, BUFFER_MAX_BYTES - 4096, 4096), Some(4));
        assert_eq!(at(&large, BUFFER_MAX_BYTES - 4096, 4097), None);
        assert_eq!(at(&large, BUFFER_MAX_BYTES, 4096), Some(5));
        assert_eq!(at(&large, 5 * BUFFER_MAX_BYTES / 2 - 1, 1), Some(6));
        assert_eq!(at(&small, 64, 8192 - 64), Some(7));
        assert_eq!(at(&small, 64, 8192), None);
        assert_eq!(at(&small, 0, 0), None);
        assert_eq!(table.place(usize::MAX, 2), None);
        assert_eq!(table.place(4096, 1), None);
    }

    #[test]
    fn buffers_have_half_of_what_may_be_locked_and_give_it_back() {
        // Far above what other tests of this process may have taken.
        let limit_bytes = Some(1 << 50);
        assert!(Share::take(1 << 60, None).unwrap().is_none());
        let error = Share::take((1 << 49) + 1, limit_bytes).unwrap_err();
        assert!(error.contains("half is for buffers"), "{error}");
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

    #[test]
    fn a_full_table_and_a_slab_known_already_are_told_apart() {
        let (ring, _) = setup::ring(8, 8, Mode::Plain).unwrap();
        let mut table = FixedTable::new(&ring);
        let slab = Slab::new(1 << 20, Pages::Ordinary).unwrap();
        assert_eq!(table.register(&ring, &slab), FixedBuffers::Registered);
        let used = table.used;
        assert_eq!(table.register(&ring, &slab), FixedBuffers::Registered);
        assert_eq!(table.used, used);
        table.used = 256;
        let other = Slab::new(4096, Pages::Ordinary).unwrap();
        let FixedBuffers::NotRegistered { reason } = table.register(&ring, &other) else {
            panic!("a place behind the end of the table");
        };
        assert!(reason.contains("table of 256"), "{reason}");
        let mut old = FixedTable {
            slabs: Vec::new(),
            shares: Vec::new(),
            used: 0,
            sparse: false,
        };
        let FixedBuffers::NotRegistered { reason } = old.register(&ring, &other) else {
            panic!("registered without a table");
        };
        assert!(reason.contains("5.19"), "{reason}");
        table.clear(&ring);
    }
}
