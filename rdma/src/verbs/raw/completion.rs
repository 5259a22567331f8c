//! Completion queues and their channels.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::super::sys;
use super::context::Context;
use super::{errno, left_behind};

/// Completions taken from the device at once.
const BATCH: usize = 32;

/// A completion channel of its own for each queue.
struct Channel {
    channel: NonNull<sys::ibv_comp_channel>,
    _context: Rc<Context>,
}

impl Channel {
    fn new(context: &Rc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let channel = errno::pointer(unsafe { sys::ibv_create_comp_channel(context.as_ptr()) })?;
        let channel = Self {
            channel,
            _context: Rc::clone(context),
        };
        // SAFETY: the descriptor is open as long as the channel.
        let fd = unsafe { BorrowedFd::borrow_raw(channel.fd()) };
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(channel)
    }

    fn fd(&self) -> RawFd {
        // SAFETY: live until `self` is dropped; the field does not change.
        unsafe { (*self.channel.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once, after the queue that used it.
        let answer = unsafe { sys::ibv_destroy_comp_channel(self.channel.as_ptr()) };
        left_behind("a completion channel", errno::number(answer));
    }
}

/// A completion as the device reports it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Wc {
    pub(in crate::verbs) wr_id: u64,
    pub(in crate::verbs) status: sys::ibv_wc_status::Type,
    pub(in crate::verbs) opcode: sys::ibv_wc_opcode::Type,
    pub(in crate::verbs) vendor_err: u32,
    pub(in crate::verbs) byte_len: u32,
    pub(in crate::verbs) invalidated: Option<u32>,
    pub(in crate::verbs) qp_num: u32,
}

impl Wc {
    fn new(wc: &sys::ibv_wc) -> Self {
        let with_inv = wc.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
        Self {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            // SAFETY: both members of the union are plain 32-bit integers.
            invalidated: with_inv
                .then_some(unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey }),
            qp_num: wc.qp_num,
        }
    }
}

/// A completion queue.
pub(in crate::verbs) struct Cq {
    cq: NonNull<sys::ibv_cq>,
    channel: Channel,
}

impl Cq {
    pub(in crate::verbs) fn new(context: &Rc<Context>, depth: i32) -> io::Result<Self> {
        let channel = Channel::new(context)?;
        let ch = channel.channel.as_ptr();
        // SAFETY: context and channel are live; the channel is dropped after the queue.
        let cq = unsafe { sys::ibv_create_cq(context.as_ptr(), depth, ptr::null_mut(), ch, 0) };
        Ok(Self {
            cq: errno::pointer(cq)?,
            channel,
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.cq.as_ptr()
    }

    pub(in crate::verbs) fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    /// Takes up to `most` completions and passes each to `take`; returns how many there were.
    ///
    /// # Errors
    /// The queue has overrun or the device has failed.
    pub(in crate::verbs) fn poll(
        &self,
        most: usize,
        mut take: impl FnMut(&Wc),
    ) -> io::Result<usize> {
        let mut batch = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; BATCH];
        let room = i32::try_from(most.min(BATCH)).unwrap_or(1);
        // SAFETY: the queue is live and the array has room for `room` completions.
        let count = unsafe { sys::ibv_poll_cq(self.as_ptr(), room, batch.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        for wc in batch.iter().take(count) {
            // SAFETY: the call has filled the first `count` entries.
            take(&Wc::new(unsafe { wc.assume_init_ref() }));
        }
        Ok(count)
    }

    /// Asks for an event at the next completion.
    pub(in crate::verbs) fn request_notify(&self) -> io::Result<()> {
        // SAFETY: the queue is live.
        errno::number(unsafe { sys::ibv_req_notify_cq(self.as_ptr(), 0) })
    }

    /// Takes one event off the channel, if there is one.
    pub(in crate::verbs) fn take_event(&self) -> bool {
        let (mut cq, mut data) = (ptr::null_mut(), ptr::null_mut());
        let channel = self.channel.channel.as_ptr();
        // SAFETY: the channel is live and does not block; the out parameters are live.
        let answer = unsafe { sys::ibv_get_cq_event(channel, &raw mut cq, &raw mut data) };
        if answer != 0 {
            return false;
        }
        // SAFETY: the event was of this queue, the only one on its channel. Acknowledged at once,
        // so that destroying the queue never waits.
        unsafe { sys::ibv_ack_cq_events(self.as_ptr(), 1) };
        true
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; queue pairs hold an `Rc` of their queues.
        let answer = unsafe { sys::ibv_destroy_cq(self.as_ptr()) };
        left_behind("a completion queue", errno::number(answer));
    }
}
