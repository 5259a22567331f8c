//! A queue pair of any provider, with what its provider does beyond verbs.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use crate::contract::{PostError, QpNum, QpState, QueuePair, RKey, Remote, SendWr, Sge};
use crate::iwarp::QpHandle;
#[cfg(feature = "verbs")]
use crate::verbs::Handle;

/// Length of the first bytes of a lent message, which are copied out of the place where it arrived.
pub const LENT_HEAD_BYTES: usize = 64;

/// Calls its argument with the bytes of an RDMA WRITE, piece by piece.
pub type WriteSource<'a> = dyn FnMut(&mut dyn FnMut(&[u8])) + 'a;

/// A queue pair. Beside verbs it has calls that spare the user-space iWARP provider and some
/// devices work requests, completions and copies. Each says whether it was done; where a provider
/// cannot do it, now or ever, work requests are posted instead.
pub struct Pair(Kind);

enum Kind {
    Iwarp(Box<QpHandle>),
    #[cfg(feature = "verbs")]
    Verbs(Box<Handle>),
    Other(Box<dyn QueuePair>),
}

impl From<Box<dyn QueuePair>> for Pair {
    fn from(pair: Box<dyn QueuePair>) -> Self {
        let pair = match downcast(pair) {
            Ok(pair) => return Self(Kind::Iwarp(pair)),
            Err(pair) => pair,
        };
        #[cfg(feature = "verbs")]
        let pair = match downcast(pair) {
            Ok(pair) => return Self(Kind::Verbs(pair)),
            Err(pair) => pair,
        };
        Self(Kind::Other(pair))
    }
}

fn downcast<T: QueuePair>(pair: Box<dyn QueuePair>) -> Result<Box<T>, Box<dyn QueuePair>> {
    let object: &dyn Any = &*pair;
    if !object.is::<T>() {
        return Err(pair);
    }
    let object: Box<dyn Any> = pair;
    Ok(object.downcast().expect("its type was looked at"))
}

/// What is done with the queue pair of each provider.
macro_rules! each {
    ($kind:expr, $pair:ident => $done:expr) => {
        match $kind {
            Kind::Iwarp($pair) => $done,
            #[cfg(feature = "verbs")]
            Kind::Verbs($pair) => $done,
            Kind::Other($pair) => $done,
        }
    };
}

impl QueuePair for Pair {
    fn num(&self) -> QpNum {
        each!(&self.0, pair => pair.num())
    }

    fn state(&self) -> QpState {
        each!(&self.0, pair => pair.state())
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        each!(&mut self.0, pair => pair.post_recv(wr_id, sges))
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        each!(&mut self.0, pair => pair.post_send(wr))
    }

    fn arrived(&mut self) -> u64 {
        each!(&mut self.0, pair => pair.arrived())
    }

    fn has_passed(&self, mark: u64) -> bool {
        each!(&self.0, pair => pair.has_passed(mark))
    }

    fn has_passed_begun(&self, mark: u64) -> bool {
        each!(&self.0, pair => pair.has_passed_begun(mark))
    }

    fn ring_doorbell(&mut self) {
        each!(&mut self.0, pair => pair.ring_doorbell());
    }
}

impl Pair {
    fn iwarp(&mut self) -> Option<&mut QpHandle> {
        match &mut self.0 {
            Kind::Iwarp(pair) => Some(pair),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => None,
            Kind::Other(_) => None,
        }
    }

    /// An RDMA WRITE of bytes that `source` has, registered or not, which has ended when this
    /// returns. It comes after everything posted so far, which is handed to the device; the peer
    /// may see both only with the next [`QueuePair::ring_doorbell`]. `source` is called once with
    /// where to put the bytes, `len_bytes` in all.
    ///
    /// `false`, and nothing is written, where a provider cannot copy right now, or never: the WRITE
    /// is to be posted then.
    #[inline]
    pub fn write_now(
        &mut self,
        remote: Remote,
        len_bytes: u32,
        source: &mut WriteSource<'_>,
    ) -> bool {
        self.iwarp()
            .is_some_and(|pair| pair.write_now(remote, len_bytes, source))
    }

    /// An RDMA WRITE of the bytes `range` of `slab`, registered or not, behind everything posted so
    /// far. It takes no work request: the slab stays mapped until the peer has the bytes, which
    /// leave with the next [`QueuePair::ring_doorbell`] or later. Each page is sent as it was at
    /// one moment until then, provided that only the calling thread writes there.
    ///
    /// `false`, and nothing is written, where a provider cannot, now or ever, and when the range is
    /// empty or not inside the slab.
    #[inline]
    pub fn write_in_place(
        &mut self,
        remote: Remote,
        slab: &Arc<Slab>,
        range: Range<usize>,
    ) -> bool {
        self.iwarp()
            .is_some_and(|pair| pair.write_in_place(remote, slab, range))
    }

    /// Whether [`Pair::write_in_place`] takes nothing only because the device is full: it does
    /// again when something has left, which makes the descriptor of the completion queues readable
    /// once they are armed.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.is_full(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => false,
            Kind::Other(_) => false,
        }
    }

    /// A Send of `bytes`, which are copied, behind everything posted so far; with `invalidate` a
    /// Send with Invalidate. It takes no work request and has no completion: it leaves with the
    /// next [`QueuePair::ring_doorbell`] or later.
    ///
    /// `false`, and nothing is sent, where a provider cannot, now or ever: the Send is to be posted
    /// then.
    #[inline]
    pub fn send_now(&mut self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        match &mut self.0 {
            Kind::Iwarp(pair) => pair.send_now(bytes, invalidate),
            #[cfg(feature = "verbs")]
            Kind::Verbs(pair) => pair.send_now(bytes, invalidate),
            Kind::Other(_) => false,
        }
    }

    /// Whether, after a [`QueuePair::ring_doorbell`], something that [`Pair::write_in_place`]
    /// or [`Pair::send_now`] took has not left yet, as far as is known: ending the connection
    /// now would lose it. Where it is so, the completion queue's descriptor becomes readable, once
    /// armed, when more is known.
    #[must_use]
    #[inline]
    pub fn has_unsent(&self) -> bool {
        match &self.0 {
            Kind::Iwarp(pair) => pair.has_unsent(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(pair) => pair.has_unsent(),
            Kind::Other(_) => false,
        }
    }

    /// At the time of the device's last completion: how many work requests and messages were queued
    /// behind the one that completed, which is how many more responses the peer had coming. 0 where
    /// that is not known.
    #[must_use]
    #[inline]
    pub fn sent_behind(&self) -> u32 {
        match &self.0 {
            #[cfg(feature = "verbs")]
            Kind::Verbs(pair) => pair.sent_behind(),
            Kind::Iwarp(_) | Kind::Other(_) => 0,
        }
    }

    /// From now on messages of [`LENT_HEAD_BYTES`] or more may stay where they arrived and take no
    /// receive, though one is reserved for each. Their completions are
    /// [`WcOpcode::RecvLent`](crate::contract::WcOpcode), with a number of the message as `wr_id`,
    /// for the other calls. For each of them the program calls [`Pair::lent_head`] and, when there
    /// are more bytes, [`Pair::take_lent`] until it has taken them, or [`Pair::land_lent`]. It does
    /// so before it polls a completion queue again: what is left then is copied.
    #[inline]
    pub fn lend_messages(&mut self) {
        if let Some(pair) = self.iwarp() {
            pair.lend_messages();
        }
    }

    /// The first bytes of a lent message. They end a message that has no more. `None` when no such
    /// message is lent.
    #[inline]
    pub fn lent_head(&mut self, message: u64) -> Option<[u8; LENT_HEAD_BYTES]> {
        self.iwarp()?.lent_head(message)
    }

    /// Calls `take` with what follows the head of a lent message; another process may write it
    /// meanwhile. `true` when `take` says that it has what it wants, or will have copied it before
    /// a completion queue is polled or armed again or this queue pair is dropped: until then it may
    /// be read there. That ends the message.
    #[inline]
    pub fn take_lent(&mut self, message: u64, take: &mut dyn FnMut(RawBytes<'_>) -> bool) -> bool {
        self.iwarp()
            .is_some_and(|pair| pair.take_lent(message, take))
    }

    /// Puts a lent message into a receive after all, head included; returns the `wr_id` of that.
    /// `None` when no such message is lent, or the queue pair has ended and with it its receives.
    #[inline]
    pub fn land_lent(&mut self, message: u64) -> Option<u64> {
        self.iwarp()?.land_lent(message)
    }

    /// Work requests after which to ring at the latest, so that the peer can begin, where a
    /// doorbell costs next to nothing. Elsewhere `u32::MAX`: the fewer, the better.
    #[must_use]
    #[inline]
    pub fn doorbell_interval(&self) -> u32 {
        match &self.0 {
            Kind::Iwarp(pair) => pair.doorbell_interval(),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => u32::MAX,
            Kind::Other(_) => u32::MAX,
        }
    }
}
