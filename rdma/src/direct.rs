//! Direct verbs, as mlx5dv(7) and efadv(7) call what a provider can do beyond libibverbs: calls
//! that spare the user-space iWARP provider, and some devices, work requests, completions and
//! copies.
//!
//! Each says whether it was done. Where a provider cannot do it, now or ever, work requests are
//! posted instead, and a program that does only that gets along without any of them.

use std::any::Any;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use crate::contract::{
    Access, ConnectionManager, DeviceAttributes, MemoryRegion, ProtectionDomain, RKey, RdmaError,
    Remote, WcOpcode,
};
use crate::iwarp::{Domain, QpHandle};
use crate::pair::{Kind, Pair};
#[cfg(feature = "verbs")]
use crate::verbs::Manager;

/// The completion of a message that took no receive ([`Pair::enable_zero_copy_receive`]): the
/// opcode that `enum ibv_wc_opcode` leaves to drivers.
pub const WC_ZERO_COPY: WcOpcode = WcOpcode::Driver1;

/// The longest head of a message that takes no receive: a cache line, which is copied as a whole.
pub const ZERO_COPY_HEAD_BYTES_MAX: usize = 64;

/// Number of the vendor under which Soft-RoCE describes itself.
pub(crate) const RXE_VENDOR_ID: u32 = 0xff_ffff;
/// The same of siw.
pub(crate) const SIW_VENDOR_ID: u32 = 0x62_6d74;

/// Whether the kernel of this machine does the device's work on the machine's cores (Soft-RoCE,
/// `siw`): a thread that spins takes one of them from it.
#[must_use]
pub fn works_in_kernel(device: &DeviceAttributes) -> bool {
    [RXE_VENDOR_ID, SIW_VENDOR_ID].contains(&device.vendor_id)
}

/// Registers a whole slab of zeroes for sending only. Nothing writes to it as long as the region
/// lives, so a provider in software need not look at its bytes.
///
/// # Errors
/// As for [`ProtectionDomain::register`].
pub fn register_zeroes(
    pd: &Rc<dyn ProtectionDomain>,
    slab: &Arc<Slab>,
) -> Result<Rc<dyn MemoryRegion>, RdmaError> {
    let object: &dyn Any = &**pd;
    match object.downcast_ref::<Domain>() {
        Some(domain) => domain.register_zeroes(slab),
        None => pd.register(slab, 0, slab.len_bytes(), Access::empty()),
    }
}

/// Hint: the descriptor of `cm` was not readable when a wait after [`ConnectionManager::arm`]
/// ended, at `now_us`, so that [`ConnectionManager::poll`] need not look there at once.
pub fn was_not_readable(cm: &mut (dyn ConnectionManager + 'static), now_us: u64) {
    #[cfg(feature = "verbs")]
    {
        let object: &mut dyn Any = cm;
        if let Some(manager) = object.downcast_mut::<Manager>() {
            manager.was_not_readable(now_us);
        }
    }
    #[cfg(not(feature = "verbs"))]
    let _ = (cm, now_us);
}

/// Calls its argument with the bytes of an RDMA WRITE, piece by piece.
pub type WriteSource<'a> = dyn FnMut(&mut dyn FnMut(&[u8])) + 'a;

/// What carries it.
impl Pair {
    /// Whether shared memory has taken the place of TCP, as between two ends on one machine where
    /// both have the user-space iWARP provider.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.shares_memory(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => false,
            Kind::Other(_) => false,
        }
    }
}

/// Sending without a work request.
impl Pair {
    /// An RDMA WRITE of `len_bytes` that `source` has, registered or not, behind everything posted
    /// so far; it has been copied when this returns, as data is with `IBV_SEND_INLINE`
    /// (ibv_post_send(3)).
    ///
    /// `source` is called once with where to put the bytes. The peer may see them only with the
    /// next [doorbell](crate::contract::QueuePair::ring_doorbell). `false`, and nothing is written,
    /// where a provider cannot copy right now, or never.
    #[inline]
    pub fn write_inline(
        &mut self,
        remote: Remote,
        len_bytes: u32,
        source: &mut WriteSource<'_>,
    ) -> bool {
        self.iwarp()
            .is_some_and(|pair| pair.write_inline(remote, len_bytes, source))
    }

    /// An RDMA WRITE of the bytes `range` of `slab`, registered or not, behind everything posted so
    /// far; the slab stays mapped until the peer has the bytes.
    ///
    /// They leave with the next [doorbell](crate::contract::QueuePair::ring_doorbell) or later.
    /// Each page is sent as it was at one moment until then, provided that only the calling thread
    /// writes there. `false`, and nothing is written, where a provider cannot, now or ever, and
    /// when the range is empty or not inside the slab.
    #[inline]
    pub fn write_from_slab(
        &mut self,
        remote: Remote,
        slab: &Arc<Slab>,
        range: Range<usize>,
    ) -> bool {
        self.iwarp()
            .is_some_and(|pair| pair.write_from_slab(remote, slab, range))
    }

    /// Whether [`Pair::write_from_slab`] takes nothing only because the device is full, as
    /// `EWOULDBLOCK` says of a socket.
    ///
    /// It takes something again when something has left, which makes the descriptor of the
    /// completion queues readable once they are armed.
    #[must_use]
    #[inline]
    pub fn write_would_block(&self) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.write_would_block(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => false,
            Kind::Other(_) => false,
        }
    }

    /// A Send of `bytes`, with `invalidate` a Send with Invalidate, behind everything posted so
    /// far: they are copied now, as with `IBV_SEND_INLINE` (ibv_post_send(3)), and it has no
    /// completion.
    ///
    /// It leaves with the next [doorbell](crate::contract::QueuePair::ring_doorbell) or later.
    /// `false`, and nothing is sent, where a provider cannot, now or ever: the Send is to be posted
    /// then.
    #[inline]
    pub fn send_inline(&mut self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        match &mut self.0 {
            Kind::Iwarp(pair) => pair.send_inline(bytes, invalidate),
            #[cfg(feature = "verbs")]
            Kind::Verbs(pair) => pair.send_inline(bytes, invalidate),
            Kind::Other(_) => false,
        }
    }

    /// Whether something that [`Pair::write_from_slab`] or [`Pair::send_inline`] took has not left
    /// yet, as far as is known: ending the connection now would lose it.
    ///
    /// To be asked after a [doorbell](crate::contract::QueuePair::ring_doorbell). The completion
    /// queue's descriptor becomes readable, once armed, when more is known.
    #[must_use]
    #[inline]
    pub fn needs_drain(&self) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.needs_drain(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(pair) => pair.needs_drain(),
            Kind::Other(_) => false,
        }
    }

    /// How many work requests and messages were outstanding behind the one that the device
    /// completed last, when it did: as many more responses the peer had coming. 0 where that is not
    /// known.
    #[must_use]
    #[inline]
    pub fn outstanding_at_completion(&self) -> u32 {
        match &self.0 {
            #[cfg(feature = "verbs")]
            Kind::Verbs(pair) => pair.outstanding_at_completion(),
            Kind::Iwarp(_) | Kind::Other(_) => 0,
        }
    }

    /// Work requests after which to ring the doorbell at the latest, so that the peer can begin,
    /// where that costs next to nothing; `u32::MAX` elsewhere: the fewer doorbells, the better.
    #[must_use]
    #[inline]
    pub fn doorbell_batch_max(&self) -> u32 {
        match &self.0 {
            Kind::Iwarp(pair) => pair.doorbell_batch_max(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => u32::MAX,
            Kind::Other(_) => u32::MAX,
        }
    }
}

/// Receiving without a copy.
impl Pair {
    /// From now on messages with a head of `head_bytes` may stay where they arrived and take no
    /// receive, though one is reserved for each.
    ///
    /// A head is at most [`ZERO_COPY_HEAD_BYTES_MAX`]: a longer one changes nothing, and the first
    /// length stays. Messages shorter than that maximum go into their receives.
    /// Their completions are [`WC_ZERO_COPY`], with a number of the message as `wr_id`, for the
    /// other calls. For each of them the program calls [`Pair::zero_copy_head`] and, when there are
    /// more bytes, [`Pair::take_zero_copy`] until it has taken them, or [`Pair::copy_to_receive`].
    /// It does so before it polls a completion queue again: what is left then is copied.
    #[inline]
    pub fn enable_zero_copy_receive(&mut self, head_bytes: u32) {
        if let Some(pair) = self.iwarp() {
            pair.enable_zero_copy_receive(head_bytes);
        }
    }

    /// The head of a message that took no receive, at the start of a cache line whose rest means
    /// nothing, and the end of that message when it has no more; `None` when there is no such
    /// message.
    #[inline]
    pub fn zero_copy_head(&mut self, message: u64) -> Option<[u8; ZERO_COPY_HEAD_BYTES_MAX]> {
        self.iwarp()?.zero_copy_head(message)
    }

    /// Calls `take` with what follows the head of a message that took no receive, where it arrived;
    /// `true`, and the message has ended, when `take` says that it has what it wants.
    ///
    /// Another process may write there meanwhile. `take` may also say so when it will have copied
    /// the bytes before a completion queue is polled or armed again or this queue pair is dropped:
    /// until then they may be read there.
    #[inline]
    pub fn take_zero_copy(
        &mut self,
        message: u64,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        self.iwarp()
            .is_some_and(|pair| pair.take_zero_copy(message, take))
    }

    /// Copies a message that took no receive, head included, into one after all, and returns the
    /// `wr_id` of that; `None` when there is no such message, or the queue pair has ended and with
    /// it its receives.
    #[inline]
    pub fn copy_to_receive(&mut self, message: u64) -> Option<u64> {
        self.iwarp()?.copy_to_receive(message)
    }
}

/// What has arrived and has no completion yet: in a socket, or in shared memory. What has arrived
/// at a device has its completion.
impl Pair {
    /// A mark behind everything of the peer that has arrived here by now; [`Pair::has_passed`] says
    /// when the provider is beyond it.
    pub fn arrival_mark(&mut self) -> u64 {
        self.iwarp().map_or(0, QpHandle::arrival_mark)
    }

    /// Whether every message that had arrived as a whole when [`Pair::arrival_mark`] returned
    /// `mark` has its completion in a completion queue, or had one, or never will: a poll that
    /// leaves that queue empty has then returned all of them.
    ///
    /// A message of which a part was still on its way is not waited for. Polling brings the
    /// provider there, provided that there are receives.
    #[must_use]
    pub fn has_passed(&self, mark: u64) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.has_passed(mark),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => true,
            Kind::Other(_) => true,
        }
    }

    /// As [`Pair::has_passed`], but every message of which any byte had arrived is waited for. A
    /// device shows nothing of a message before its completion: it answers as there.
    #[must_use]
    pub fn has_passed_begun(&self, mark: u64) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.has_passed_begun(mark),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => true,
            Kind::Other(_) => true,
        }
    }
}
