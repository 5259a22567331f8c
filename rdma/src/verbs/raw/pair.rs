//! Queue pairs.
#![expect(unsafe_code, reason = "calls libibverbs and librdmacm")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::super::sys;
use super::cm::Id;
use super::completion::Cq;
use super::memory::Pd;
use super::receive::Srq;
use super::{errno, left_behind};

/// How large to make a queue pair.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Size {
    pub(in crate::verbs) send_wr_max: u32,
    /// 0 with a shared receive queue.
    pub(in crate::verbs) recv_wr_max: u32,
    pub(in crate::verbs) send_sge_max: u32,
    pub(in crate::verbs) recv_sge_max: u32,
    pub(in crate::verbs) inline_bytes: u32,
}

/// What a queue pair is made with.
#[derive(Clone)]
pub(in crate::verbs) struct Parts {
    pub(in crate::verbs) id: Rc<Id>,
    pub(in crate::verbs) pd: Rc<Pd>,
    pub(in crate::verbs) send_cq: Rc<Cq>,
    pub(in crate::verbs) recv_cq: Rc<Cq>,
    pub(in crate::verbs) srq: Option<Rc<Srq>>,
}

/// Timers of the transport, as the device has them.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Timers {
    /// Time to an acknowledgement before a retry: 4.096 µs · 2^n.
    pub(in crate::verbs) ack_timeout_exponent: u8,
    pub(in crate::verbs) retry_count: u8,
    pub(in crate::verbs) rnr_retry_count: u8,
}

/// A reliable connected queue pair that belongs to a connection-manager id.
pub(in crate::verbs) struct Pair {
    qp: NonNull<sys::ibv_qp>,
    inline_bytes_max: u32,
    /// Outlive the queue pair.
    parts: Parts,
}

impl Pair {
    /// Makes the queue pair of an id.
    pub(in crate::verbs) fn new(parts: Parts, size: Size) -> io::Result<Self> {
        // A device without inline data, or with less, refuses to make the queue pair.
        Self::make(&parts, size, size.inline_bytes)
            .or_else(|_| Self::make(&parts, size, 0))
            .map(|(qp, inline_bytes_max)| Self {
                qp,
                // Some devices have more than was asked for, which would be memory for nothing.
                inline_bytes_max: inline_bytes_max.min(size.inline_bytes),
                parts,
            })
    }

    fn make(
        parts: &Parts,
        size: Size,
        inline_bytes: u32,
    ) -> io::Result<(NonNull<sys::ibv_qp>, u32)> {
        let srq = parts.srq.as_ref();
        let mut attr = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: parts.send_cq.as_ptr(),
            recv_cq: parts.recv_cq.as_ptr(),
            srq: srq.map_or(ptr::null_mut(), |srq| srq.as_ptr()),
            cap: sys::ibv_qp_cap {
                max_send_wr: size.send_wr_max,
                max_recv_wr: size.recv_wr_max,
                max_send_sge: size.send_sge_max,
                max_recv_sge: size.recv_sge_max,
                max_inline_data: inline_bytes,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let (id, pd) = (parts.id.as_ptr(), parts.pd.as_ptr());
        // SAFETY: id, domain, queues and attributes are live, and `Pair` holds all of them until
        // the queue pair is destroyed.
        errno::minus_one(unsafe { sys::rdma_create_qp(id, pd, &raw mut attr) })?;
        // SAFETY: the id is live; the call has just set the field.
        let qp = unsafe { (*id).qp };
        Ok((errno::pointer(qp)?, attr.cap.max_inline_data))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.qp.as_ptr()
    }

    /// The device's number for it.
    pub(in crate::verbs) fn num(&self) -> u32 {
        // SAFETY: live until `self` is dropped; the field does not change.
        unsafe { (*self.as_ptr()).qp_num }
    }

    /// Most bytes that a work request can carry itself.
    pub(in crate::verbs) fn inline_bytes_max(&self) -> usize {
        self.inline_bytes_max as usize
    }

    pub(in crate::verbs) fn id(&self) -> &Id {
        &self.parts.id
    }

    /// Moves it to the error state: the device flushes everything outstanding.
    pub(in crate::verbs) fn modify_to_error(&self) -> io::Result<()> {
        let attr = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        // SAFETY: integers, for which zero is a value.
        let mut attr = unsafe { attr.assume_init() };
        attr.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
        let mask = i32::try_from(mask).unwrap_or(0);
        // SAFETY: queue pair and attributes are live; only the state is looked at.
        errno::number(unsafe { sys::ibv_modify_qp(self.as_ptr(), &raw mut attr, mask) })
    }

    /// The timers in force.
    pub(in crate::verbs) fn timers(&self) -> io::Result<Timers> {
        let mut attr = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        let mut init = MaybeUninit::<sys::ibv_qp_init_attr>::zeroed();
        let mask = sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | sys::ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | sys::ibv_qp_attr_mask::IBV_QP_RNR_RETRY;
        let mask = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: queue pair and out parameters are live.
        let answer =
            unsafe { sys::ibv_query_qp(self.as_ptr(), attr.as_mut_ptr(), mask, init.as_mut_ptr()) };
        errno::number(answer)?;
        // SAFETY: integers, all zero before the call filled them.
        let attr = unsafe { attr.assume_init() };
        Ok(Timers {
            ack_timeout_exponent: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry_count: attr.rnr_retry,
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; `parts` are dropped afterwards.
        let answer = unsafe { sys::ibv_destroy_qp(self.as_ptr()) };
        left_behind("a queue pair", errno::number(answer));
        // SAFETY: the id is live. librdmacm must not touch the queue pair any more.
        unsafe { (*self.parts.id.as_ptr()).qp = ptr::null_mut() };
    }
}
