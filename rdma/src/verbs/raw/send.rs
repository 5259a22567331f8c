//! Send work requests: gathered until the doorbell, then handed to the device as one list.
#![expect(unsafe_code, reason = "fills and posts the structures of libibverbs")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::rc::Rc;

use super::super::sys;
use super::errno;
use super::memory::{Mr, Mw};
use super::pair::Pair;
use super::receive::sge;
use crate::contract::{RKey, Remote, SendOp, SendWr};

/// How often a post is retried on a device that reports a full queue. Completions were counted, so
/// there is room; some devices free an entry just after they have reported its completion.
const FULL_RETRIES: u32 = 10_000;

/// The keys of a bind; the objects behind them are looked up when the doorbell rings.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct BindKeys {
    pub(in crate::verbs) lkey: u32,
    pub(in crate::verbs) rkey: u32,
}

/// The device stopped at a work request of the list.
#[derive(Debug)]
pub(in crate::verbs) struct Broken {
    /// How many the device has taken.
    pub(in crate::verbs) taken: usize,
    pub(in crate::verbs) error: io::Error,
}

/// Work requests on their way to the device, in memory allocated once.
pub(in crate::verbs) struct Chain {
    /// Pointers in here are set just before the list is posted, and not used afterwards.
    wrs: Vec<sys::ibv_send_wr>,
    sges: Vec<sys::ibv_sge>,
    /// Per request, its inline data.
    inline: Vec<u8>,
    binds: Vec<Option<BindKeys>>,
    sges_each: usize,
    inline_each: usize,
    len: usize,
    /// Of the binds of the list being posted: alive until the device has them.
    bound: Vec<(Rc<Mr>, Rc<Mw>, u32)>,
}

/// The opcode of a Send, and the key that it invalidates.
fn send_opcode(invalidate: Option<RKey>) -> (sys::ibv_wr_opcode::Type, u32) {
    match invalidate {
        Some(key) => (sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV, key.0),
        None => (sys::ibv_wr_opcode::IBV_WR_SEND, 0),
    }
}

const NOWHERE: sys::rdma_t = sys::rdma_t {
    remote_addr: 0,
    rkey: 0,
};

fn rdma(at: Remote) -> sys::rdma_t {
    sys::rdma_t {
        remote_addr: at.addr,
        rkey: at.rkey.0,
    }
}

/// The SGE of data in the request itself: its address is set when the list is linked.
fn inline_sge(bytes: usize) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: 0,
        length: u32::try_from(bytes).unwrap_or(0),
        lkey: 0,
    }
}

impl Chain {
    pub(in crate::verbs) fn new(depth: usize, sges_each: usize, inline_each: usize) -> Self {
        let sges_each = sges_each.max(1);
        let blank = || {
            // SAFETY: integers, pointers and unions of them, for which zero is a value.
            unsafe { MaybeUninit::<sys::ibv_send_wr>::zeroed().assume_init() }
        };
        Self {
            wrs: (0..depth).map(|_| blank()).collect(),
            sges: vec![inline_sge(0); depth * sges_each],
            inline: vec![0; depth * inline_each],
            binds: vec![None; depth],
            sges_each,
            inline_each,
            len: 0,
            bound: Vec::new(),
        }
    }

    pub(in crate::verbs) fn len(&self) -> usize {
        self.len
    }

    /// Drops everything gathered; returns how many requests that were.
    pub(in crate::verbs) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.len)
    }

    /// Room for the inline data of the next request.
    pub(in crate::verbs) fn inline_room(&mut self) -> &mut [u8] {
        let start = self.len * self.inline_each;
        self.inline
            .get_mut(start..start + self.inline_each)
            .unwrap_or_default()
    }

    /// Adds a request. With `inline_bytes`, so many bytes of [`Chain::inline_room`] are sent and
    /// the SGEs are not looked at. The caller keeps to the depth and to the SGEs per request.
    pub(in crate::verbs) fn push(
        &mut self,
        wr_id: u64,
        wr: &SendWr<'_>,
        signaled: bool,
        inline_bytes: Option<usize>,
    ) {
        let at = self.len;
        let (Some(to), Some(bind)) = (self.wrs.get_mut(at), self.binds.get_mut(at)) else {
            return;
        };
        let sges = &mut self.sges[at * self.sges_each..][..self.sges_each];
        let mut count = 0;
        // Empty SGEs have no meaning, and siw's `siw_tx_hdt` follows a null pointer for one that
        // comes before others.
        let filled = wr.sges.iter().filter(|sge| sge.len_bytes > 0);
        for (to, from) in sges.iter_mut().zip(filled) {
            *to = sge(from);
            count += 1;
        }
        let mut flags = 0;
        for (set, flag) in [
            (signaled, sys::ibv_send_flags::IBV_SEND_SIGNALED),
            (wr.fence, sys::ibv_send_flags::IBV_SEND_FENCE),
            (inline_bytes.is_some(), sys::ibv_send_flags::IBV_SEND_INLINE),
        ] {
            flags |= if set { flag.0 } else { 0 };
        }
        *bind = None;
        let (mut invalidate, mut remote) = (0, NOWHERE);
        to.opcode = match wr.op {
            SendOp::Send {
                invalidate: key,
                solicited,
            } => {
                if solicited {
                    flags |= sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
                }
                let opcode;
                (opcode, invalidate) = send_opcode(key);
                // libsiw takes the key from here.
                remote.rkey = invalidate;
                opcode
            }
            SendOp::Write(to) => {
                remote = rdma(to);
                sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE
            }
            SendOp::Read(from) => {
                remote = rdma(from);
                if count == 0 {
                    // iWARP names the sink of an empty READ, too.
                    sges[0] = inline_sge(0);
                    count = 1;
                }
                sys::ibv_wr_opcode::IBV_WR_RDMA_READ
            }
            SendOp::BindWindow {
                rkey,
                lkey,
                addr,
                len_bytes,
                access,
            } => {
                *bind = Some(BindKeys {
                    lkey: lkey.0,
                    rkey: rkey.0,
                });
                to.bind_mw_tso_union = sys::bind_mw_tso_union_t {
                    bind_mw: sys::bind_mw_t {
                        mw: ptr::null_mut(),
                        rkey: rkey.0,
                        bind_info: sys::ibv_mw_bind_info {
                            mr: ptr::null_mut(),
                            addr,
                            length: len_bytes,
                            mw_access_flags: access.bits(),
                        },
                    },
                };
                sys::ibv_wr_opcode::IBV_WR_BIND_MW
            }
            SendOp::LocalInvalidate(key) => {
                invalidate = key.0;
                sys::ibv_wr_opcode::IBV_WR_LOCAL_INV
            }
        };
        if let Some(bytes) = inline_bytes {
            sges[0] = inline_sge(bytes.min(self.inline_each));
            count = 1;
        }
        to.wr_id = wr_id;
        to.num_sge = count;
        to.send_flags = flags;
        to.imm_data_invalidated_rkey_union.invalidated_rkey = invalidate;
        to.wr.rdma = remote;
        self.len += 1;
    }

    /// Adds a Send of `bytes`, which travel in the request; the caller has checked that they fit,
    /// and keeps to the depth.
    pub(in crate::verbs) fn push_message(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        invalidate: Option<RKey>,
        signaled: bool,
    ) {
        let at = self.len;
        let room = at * self.inline_each;
        let room = self.inline.get_mut(room..room + bytes.len());
        let (Some(to), Some(sge), Some(bind), Some(room)) = (
            self.wrs.get_mut(at),
            self.sges.get_mut(at * self.sges_each),
            self.binds.get_mut(at),
            room,
        ) else {
            return;
        };
        room.copy_from_slice(bytes);
        *sge = inline_sge(bytes.len());
        *bind = None;
        let signaled = if signaled {
            sys::ibv_send_flags::IBV_SEND_SIGNALED.0
        } else {
            0
        };
        let key;
        (to.opcode, key) = send_opcode(invalidate);
        to.wr_id = wr_id;
        (to.num_sge, to.send_flags) = if bytes.is_empty() {
            (0, signaled)
        } else {
            (1, signaled | sys::ibv_send_flags::IBV_SEND_INLINE.0)
        };
        to.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        to.wr.rdma = sys::rdma_t {
            remote_addr: 0,
            rkey: key,
        };
        self.len += 1;
    }

    /// How many of the first `most` requests can go when `reads` RDMA READs may be among them, and
    /// how many READs are.
    pub(in crate::verbs) fn with_reads(&self, most: usize, reads: u32) -> (usize, u32) {
        let mut found = 0;
        let most = most.min(self.len);
        for (at, wr) in self.wrs[..most].iter().enumerate() {
            if wr.opcode == sys::ibv_wr_opcode::IBV_WR_RDMA_READ {
                if found == reads {
                    return (at, found);
                }
                found += 1;
            }
        }
        (most, found)
    }

    /// Drops the first `count` requests.
    fn advance(&mut self, count: usize) {
        let count = count.min(self.len);
        if count < self.len {
            let (sges, inline) = (self.sges_each, self.inline_each);
            for at in count..self.len {
                self.wrs.swap(at - count, at);
            }
            self.binds.copy_within(count..self.len, 0);
            self.sges.copy_within(count * sges..self.len * sges, 0);
            self.inline
                .copy_within(count * inline..self.len * inline, 0);
        }
        self.len -= count;
    }

    /// Resolves the binds in `from..to` and links the requests up to, not including, the answer:
    /// `to`, or a second bind of one window (which needs the first to be posted). The error is that
    /// of a bind whose region or window is gone.
    fn link(
        &mut self,
        from: usize,
        to: usize,
        lookup: &dyn Fn(BindKeys) -> Option<(Rc<Mr>, Rc<Mw>)>,
    ) -> (usize, Option<io::Error>) {
        self.bound.clear();
        let (mut end, mut gone) = (to, None);
        for at in from..to {
            let Some(keys) = self.binds[at] else {
                continue;
            };
            let Some((mr, mw)) = lookup(keys) else {
                (end, gone) = (at, Some(io::Error::from_raw_os_error(libc::EINVAL)));
                break;
            };
            if self
                .bound
                .iter()
                .any(|(_, other, _)| Rc::ptr_eq(other, &mw))
            {
                end = at;
                break;
            }
            // SAFETY: `push` wrote this member of the union for every request with keys.
            let bind = unsafe { &mut self.wrs[at].bind_mw_tso_union.bind_mw };
            bind.mw = mw.as_ptr();
            bind.bind_info.mr = mr.as_ptr();
            self.bound.push((mr, mw, keys.rkey));
        }
        let (sges, sges_each) = (self.sges.as_mut_ptr(), self.sges_each);
        let (inline, inline_each) = (self.inline.as_ptr(), self.inline_each);
        let mut next = ptr::null_mut();
        for (at, wr) in self.wrs[..end].iter_mut().enumerate().skip(from).rev() {
            wr.next = next;
            // SAFETY: `sges` has `sges_each` entries for every request.
            wr.sg_list = unsafe { sges.add(at * sges_each) };
            if wr.send_flags & sys::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                // SAFETY: `inline` has `inline_each` bytes for every request.
                let data = unsafe { inline.add(at * inline_each) };
                // SAFETY: the first of this request's SGEs.
                unsafe { (*wr.sg_list).addr = data.expose_provenance() as u64 };
            }
            next = ptr::from_mut(wr);
        }
        (end, gone)
    }
}

impl Pair {
    /// Hands the first `count` requests of the chain to the device with one doorbell (one more for
    /// a window that is bound twice). After an error the chain is empty.
    pub(in crate::verbs) fn post_chain(
        &self,
        chain: &mut Chain,
        count: usize,
        lookup: &dyn Fn(BindKeys) -> Option<(Rc<Mr>, Rc<Mw>)>,
    ) -> Result<(), Broken> {
        let mut from = 0;
        let mut result = Ok(());
        let count = count.min(chain.len);
        while from < count && result.is_ok() {
            let (end, gone) = chain.link(from, count, lookup);
            result = self.post_linked(chain, from, end);
            for (_, mw, rkey) in chain.bound.drain(..) {
                mw.set_rkey(rkey);
            }
            if let (Ok(()), Some(error)) = (&result, gone) {
                result = Err(Broken { taken: end, error });
            }
            from = end;
        }
        chain.advance(if result.is_ok() { count } else { chain.len });
        result
    }

    /// Posts the requests `from..end`, which are linked.
    fn post_linked(&self, chain: &mut Chain, from: usize, end: usize) -> Result<(), Broken> {
        if from == end {
            return Ok(());
        }
        let base = chain.wrs.as_mut_ptr();
        let mut at = from;
        let mut tries = 0;
        loop {
            let mut bad = ptr::null_mut();
            // SAFETY: `at` is inside the vector.
            let first = unsafe { base.add(at) };
            // SAFETY: the queue pair is live; the list, its SGEs, its inline data and the objects
            // of its binds (`bound`) live until the call returns, and the device keeps none of
            // these pointers. What the SGEs name is checked by the device against its regions;
            // inline data is the chain's own.
            let answer = unsafe { sys::ibv_post_send(self.as_ptr(), first, &raw mut bad) };
            let Err(error) = errno::number(answer) else {
                return Ok(());
            };
            // Where it stopped; with NULL all were taken and only the doorbell failed.
            at = if bad.is_null() {
                end
            } else {
                let offset = bad.addr().wrapping_sub(base.addr());
                (offset / size_of::<sys::ibv_send_wr>()).clamp(at, end)
            };
            let full = error.raw_os_error() == Some(libc::ENOMEM) && at < end;
            if !full || tries >= FULL_RETRIES {
                return Err(Broken { taken: at, error });
            }
            tries += 1;
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Chain;
    use crate::contract::{LKey, SendOp, SendWr, Sge};

    #[test]
    fn empty_sges_stay_here() {
        let mut chain = Chain::new(1, 3, 0);
        let sge = |len_bytes| Sge {
            addr: 0x1000,
            len_bytes,
            lkey: LKey(7),
        };
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send {
                invalidate: None,
                solicited: false,
            },
            sges: &[sge(0), sge(5), sge(0)],
            signaled: true,
            fence: false,
        };
        chain.push(1, &wr, true, None);
        assert_eq!((chain.wrs[0].num_sge, chain.sges[0].length), (1, 5));
    }
}
