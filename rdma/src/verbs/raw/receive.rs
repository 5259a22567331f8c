//! Receives: shared receive queues, and the form both kinds of receive queue take requests in.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::super::sys;
use super::memory::Pd;
use super::pair::Pair;
use super::{errno, left_behind};
use crate::contract::Sge;

/// Most SGEs of a work request, whatever the device could take: receives are gathered on the stack.
pub(super) const SGES_MAX: u32 = 32;

const EMPTY: sys::ibv_sge = sys::ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

pub(super) fn sge(sge: &Sge) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: sge.addr,
        length: sge.len_bytes,
        lkey: sge.lkey.0,
    }
}

/// Calls `post` with a receive work request of `sges`.
fn with_request(
    wr_id: u64,
    sges: &[Sge],
    post: impl Fn(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> io::Result<()> {
    let mut array = [const { MaybeUninit::<sys::ibv_sge>::uninit() }; SGES_MAX as usize];
    let Some(used) = array.get_mut(..sges.len()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    for (to, from) in used.iter_mut().zip(sges) {
        to.write(sge(from));
    }
    if sges.is_empty() {
        array[0].write(EMPTY);
    }
    let mut wr = sys::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: array.as_mut_ptr().cast(),
        num_sge: i32::try_from(sges.len()).unwrap_or(0),
    };
    let mut bad = ptr::null_mut();
    let mut answer = post(&raw mut wr, &raw mut bad);
    if answer != 0 && sges.is_empty() {
        // Some devices (siw) want an SGE even when nothing is to be received: an empty one.
        wr.num_sge = 1;
        answer = post(&raw mut wr, &raw mut bad);
    }
    errno::number(answer)
}

/// A shared receive queue.
pub(in crate::verbs) struct Srq {
    srq: NonNull<sys::ibv_srq>,
    _pd: Rc<Pd>,
}

impl Srq {
    pub(in crate::verbs) fn new(pd: &Rc<Pd>, depth: u32, sge_max: u32) -> io::Result<Self> {
        let mut attr = sys::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: sys::ibv_srq_attr {
                max_wr: depth,
                max_sge: sge_max,
                srq_limit: 0,
            },
        };
        // SAFETY: domain and attributes are live.
        let srq = errno::pointer(unsafe { sys::ibv_create_srq(pd.as_ptr(), &raw mut attr) })?;
        Ok(Self {
            srq,
            _pd: Rc::clone(pd),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.srq.as_ptr()
    }

    pub(in crate::verbs) fn post(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        with_request(wr_id, sges, |wr, bad| {
            // SAFETY: the queue and the request are live; the device checks keys and bounds.
            unsafe { sys::ibv_post_srq_recv(self.as_ptr(), wr, bad) }
        })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; queue pairs hold an `Rc` of their queue.
        let answer = unsafe { sys::ibv_destroy_srq(self.as_ptr()) };
        left_behind("a shared receive queue", errno::number(answer));
    }
}

impl Pair {
    /// Posts a receive on the pair's own queue.
    pub(in crate::verbs) fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        with_request(wr_id, sges, |wr, bad| {
            // SAFETY: as for the shared queue.
            unsafe { sys::ibv_post_recv(self.as_ptr(), wr, bad) }
        })
    }
}
