//! An opened device.
#![expect(unsafe_code, reason = "calls libibverbs and librdmacm")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::dup3_raw;

use super::super::devices::DeviceList;
use super::super::sys;
use super::cm::{Channel, Id, ParkedId};
use super::receive::SGES_MAX;
use super::{errno, left_behind};
use crate::contract::{DeviceAttributes, Transport};
use crate::direct::{RXE_VENDOR_ID, SIW_VENDOR_ID};

/// A device that librdmacm has opened, kept open. librdmacm opens each device once per process, so
/// several threads may hold the same one.
pub(in crate::verbs) struct Context {
    context: NonNull<sys::ibv_context>,
    /// Bound to the device, which stays open with it: dropped last. Events of the device arrive on
    /// its channel.
    anchor: Id,
}

/// An open device and its holders.
struct Held {
    /// [`Context::key`].
    key: usize,
    holders: usize,
    /// The device is gone; its descriptors are closed with the last holder.
    gone: bool,
}

/// The open devices of the process.
static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<Held>> {
    // Nothing panics while the lock is held.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Keeps the device of `id` open, and asks for its events on `channel`.
    ///
    /// # Errors
    /// The device has just gone, or the address of `id` leads to another one.
    pub(in crate::verbs) fn hold(id: &Id, channel: &Rc<Channel>) -> io::Result<Rc<Self>> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let context = id.verbs().ok_or_else(gone)?;
        let mut local = id.addresses().0.ok_or_else(gone)?;
        local.set_port(0);
        let anchor = Id::new(channel)?;
        anchor.bind(local)?;
        if anchor.verbs() != Some(context) {
            // SAFETY: `id` lives, and keeps its device open.
            let name = unsafe { device_name(context) };
            return Err(io::Error::other(format!(
                "{local} belongs to another RDMA device than {name}; listen at an address instead \
                 of all of them"
            )));
        }
        let key = context.addr().get();
        let mut all = held();
        match all.iter_mut().find(|held| held.key == key) {
            Some(held) => held.holders += 1,
            None => all.push(Held {
                key,
                holders: 1,
                gone: false,
            }),
        }
        drop(all);
        let context = Self { context, anchor };
        // Several threads may read its events; none of them may block.
        let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        fcntl(context.async_fd(), flags)?;
        Ok(Rc::new(context))
    }

    /// Whether `key` is the [`Id::key`] of the id whose events are the device's.
    pub(in crate::verbs) fn is_anchored_by(&self, key: usize) -> bool {
        self.anchor.key() == key
    }

    /// Name of the device's node.
    pub(in crate::verbs) fn node(&self) -> String {
        // SAFETY: the anchor keeps the context open.
        unsafe { node_name(self.context) }
    }

    /// The device is gone; see [`removed`].
    pub(in crate::verbs) fn removed(&self) {
        removed(&self.anchor);
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }

    /// Identifies the device within this process.
    pub(in crate::verbs) fn key(&self) -> usize {
        self.context.addr().get()
    }

    fn context(&self) -> &sys::ibv_context {
        // SAFETY: the anchor keeps the context alive, and libibverbs does not change its fields.
        unsafe { self.context.as_ref() }
    }

    fn device(&self) -> &sys::ibv_device {
        // SAFETY: an open context has a device that lives as long; its fields do not change.
        unsafe { &*self.context().device }
    }

    /// Becomes readable when there are asynchronous events.
    pub(in crate::verbs) fn async_fd(&self) -> BorrowedFd<'_> {
        let fd: RawFd = self.context().async_fd;
        // SAFETY: it is open as long as the context, which outlives the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Whether it completes transfers while their memory is still read (siw).
    pub(in crate::verbs) fn completes_early(&self) -> bool {
        // SAFETY: the anchor keeps the context open.
        unsafe { query_device(self.as_ptr()) }.is_ok_and(|attr| is_siw(&attr))
    }

    /// Asks what the device can do.
    pub(in crate::verbs) fn query(&self) -> io::Result<DeviceAttributes> {
        // SAFETY: `self` keeps the context open.
        let attr = unsafe { query_device(self.as_ptr()) }?;
        let transport = match self.device().transport_type {
            sys::ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::InfiniBand,
        };
        let iwarp = transport == Transport::Iwarp;
        let has = |flag: sys::ibv_device_cap_flags| attr.device_cap_flags & flag.0 != 0;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        // 255 means "the most there is" to librdmacm.
        let reads = |value: i32| u8::try_from(value.clamp(0, 254)).unwrap_or(0);
        let type_2 = has(sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
            || has(sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B);
        Ok(DeviceAttributes {
            // SAFETY: as above.
            name: unsafe { device_name(self.context) },
            transport,
            qp_wr_max: count(attr.max_qp_wr),
            sge_max: count(attr.max_sge).min(SGES_MAX),
            // 0 from devices that do not report it.
            sge_rd_max: match count(attr.max_sge_rd) {
                0 if iwarp => 1,
                0 => count(attr.max_sge),
                told => told,
            },
            cqe_max: count(attr.max_cqe),
            srq_wr_max: if attr.max_srq > 0 {
                count(attr.max_srq_wr)
            } else {
                0
            },
            responder_resources_max: reads(attr.max_qp_rd_atom),
            initiator_depth_max: reads(attr.max_qp_init_rd_atom),
            message_bytes_max: self.message_bytes_max(),
            memory_windows: type_2 && attr.max_mw > 0 && !is_rxe(&attr),
            send_with_invalidate: has(sys::ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS),
            read_sink_needs_remote_write: iwarp,
            vendor_id: attr.vendor_id,
        })
    }

    fn message_bytes_max(&self) -> u32 {
        let mut attr = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: context and out parameter are live; this symbol fills the fields up to
        // `phys_state`, a prefix of the structure given.
        let answer = unsafe { sys::ibv_query_port(self.as_ptr(), 1, attr.as_mut_ptr().cast()) };
        // SAFETY: integers, all zero before the call.
        let attr = unsafe { attr.assume_init() };
        match errno::number(answer) {
            Ok(()) if attr.max_msg_sz > 0 => attr.max_msg_sz,
            // The least every transport carries (InfiniBand: 2^31 bytes).
            _ => 1 << 31,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let key = self.key();
        let mut all = held();
        let Some(at) = all.iter().position(|held| held.key == key) else {
            return;
        };
        all[at].holders -= 1;
        if all[at].holders == 0 && all.swap_remove(at).gone {
            // SAFETY: the anchor keeps the context open. Everything made of it holds a `Context`,
            // and this was the last one of the process.
            unsafe { close_descriptors(self.context) };
        }
    }
}

/// The device of `id` is gone: its descriptors in this process are closed, with its last holder.
///
/// librdmacm closes a device that is gone only when it opens another one. Until then, removing the
/// device of a driver that cannot disassociate its users (Soft-RoCE, siw) hangs
/// (`ib_uverbs_remove_one` in Linux).
pub(in crate::verbs) fn removed(id: &Id) {
    if let Some(context) = id.verbs() {
        // SAFETY: `id` keeps it open.
        unsafe { close_with_last_holder(context) };
    }
}

/// # Safety
/// The context is open.
unsafe fn close_with_last_holder(context: NonNull<sys::ibv_context>) {
    let key = context.addr().get();
    let mut all = held();
    match all.iter_mut().find(|held| held.key == key) {
        Some(held) => held.gone = true,
        // SAFETY: the caller's promise; nothing was made of it.
        None => unsafe { close_descriptors(context) },
    }
}

/// Devices that were opened to be looked at ([`name_and_flaw`]), and the names of their nodes:
/// librdmacm keeps them open, whether they are used or not.
static LOOKED_AT: Mutex<Vec<(String, ParkedId)>> = Mutex::new(Vec::new());

fn looked_at() -> MutexGuard<'static, Vec<(String, ParkedId)>> {
    // Nothing panics while the lock is held.
    LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The node of a device has gone: closes the device if it was only looked at.
pub(in crate::verbs) fn node_removed(node: &str) {
    for (_, id) in looked_at().extract_if(.., |(name, _)| name == node) {
        if let Some(context) = id.verbs() {
            // SAFETY: `id` keeps it open.
            unsafe { close_with_last_holder(context) };
        }
    }
}

/// Closes the descriptors of a device, and leaves inert descriptors with the same numbers for
/// librdmacm to close.
///
/// # Safety
/// The context is open, and nothing that was made of it is used any more.
unsafe fn close_descriptors(context: NonNull<sys::ibv_context>) {
    // SAFETY: the caller's promise; the fields do not change.
    let context = unsafe { context.as_ref() };
    let replaced = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .and_then(|null| {
            for fd in [context.cmd_fd, context.async_fd] {
                // SAFETY: the number stays librdmacm's, which owns it: the owner made here is
                // dissolved.
                let same = unsafe { dup3_raw(&null, fd, OFlag::O_CLOEXEC) }?;
                let _ = same.into_raw_fd();
            }
            Ok(())
        });
    if let Err(error) = replaced {
        tracing::error!("an RDMA device that is gone cannot be closed: {error}");
    }
}

/// Name as `rdma link` shows it.
///
/// # Safety
/// The context is open.
unsafe fn device_name(context: NonNull<sys::ibv_context>) -> String {
    // SAFETY: the caller's promise.
    let device = unsafe { (*context.as_ptr()).device };
    // SAFETY: an open context has a device that lives as long; the place of a field.
    let name = unsafe { &raw const (*device).name };
    // SAFETY: libibverbs ends the name with a zero byte.
    let name = unsafe { CStr::from_ptr(name.cast()) };
    name.to_string_lossy().into_owned()
}

/// Name of the device's node.
///
/// # Safety
/// The context is open.
unsafe fn node_name(context: NonNull<sys::ibv_context>) -> String {
    // SAFETY: the caller's promise.
    let device = unsafe { (*context.as_ptr()).device };
    // SAFETY: an open context has a device that lives as long; the place of a field.
    let name = unsafe { &raw const (*device).dev_name };
    // SAFETY: libibverbs ends the name with a zero byte.
    let name = unsafe { CStr::from_ptr(name.cast()) };
    name.to_string_lossy().into_owned()
}

/// Name of the device an id is bound to, and whether it completes transfers while their memory is
/// still read (siw). From here on a provider of this process closes the device when it is removed.
pub(in crate::verbs) fn name_and_flaw(id: Id) -> Option<(String, bool)> {
    let context = id.verbs()?;
    // SAFETY: the id keeps its device open.
    let name = unsafe { device_name(context) };
    // SAFETY: as above.
    let attr = unsafe { query_device(context.as_ptr()) };
    // SAFETY: as above.
    let node = unsafe { node_name(context) };
    let mut all = looked_at();
    if !all.iter().any(|(known, _)| *known == node)
        && let Ok(parked) = id.park()
    {
        all.push((node, parked));
    }
    Some((name, attr.is_ok_and(|attr| is_siw(&attr))))
}

/// Soft-RoCE says that it has type 2 windows, but they protect nothing (Linux 6.12):
/// * it checks a range against the whole region under the window, not against the window
///   (`check_rkey` in `rxe_resp.c` calls `mr_check_range` only);
/// * a peer on any connection can invalidate it, of any domain (`rxe_invalidate_mw` looks at the
///   key alone);
/// * a program does not learn which key was invalidated: the completion carries the kernel's flag
///   (`IB_WC_WITH_INVALIDATE`, 4), which user space reads as `IBV_WC_IP_CSUM_OK` (`do_complete`).
fn is_rxe(attr: &sys::ibv_device_attr) -> bool {
    attr.vendor_id == RXE_VENDOR_ID
}

/// `siw` gives TCP the pages of transfers from 4 KiB up and completes them while TCP may still read
/// them (`zcopy_tx` in Linux 6.12, `siw_qp_tx.c`): what the program writes there next can reach the
/// peer instead.
fn is_siw(attr: &sys::ibv_device_attr) -> bool {
    attr.vendor_id == SIW_VENDOR_ID
}

/// # Safety
/// The context is open.
unsafe fn query_device(context: *mut sys::ibv_context) -> io::Result<sys::ibv_device_attr> {
    let mut attr = MaybeUninit::<sys::ibv_device_attr>::zeroed();
    // SAFETY: the caller's promise; the out parameter is live.
    errno::number(unsafe { sys::ibv_query_device(context, attr.as_mut_ptr()) })?;
    // SAFETY: integers, all zero before the call filled them.
    Ok(unsafe { attr.assume_init() })
}

/// Whether the first port is up.
///
/// # Safety
/// The context is open.
unsafe fn is_active(context: *mut sys::ibv_context) -> bool {
    let mut attr = MaybeUninit::<sys::ibv_port_attr>::zeroed();
    // SAFETY: the caller's promise; this symbol fills the fields up to `phys_state`, a prefix of
    // the structure given.
    let answer = unsafe { sys::ibv_query_port(context, 1, attr.as_mut_ptr().cast()) };
    // SAFETY: integers, all zero before the call.
    let attr = unsafe { attr.assume_init() };
    errno::number(answer).is_ok() && attr.state == sys::ibv_port_state::IBV_PORT_ACTIVE
}

/// Whether any device has an active port, and whether one of those completes transfers only when
/// their memory is free ([`name_and_flaw`]).
pub(in crate::verbs) fn any_active_port() -> Option<bool> {
    let list = DeviceList::open().ok()?;
    let mut found = None;
    for device in list.devices() {
        // SAFETY: the device belongs to a list that is still open.
        let context = unsafe { sys::ibv_open_device(device) };
        if context.is_null() {
            continue;
        }
        // SAFETY: it was just opened.
        if unsafe { is_active(context) } {
            // SAFETY: as above.
            let attr = unsafe { query_device(context) };
            let honest = attr.is_ok_and(|attr| !is_siw(&attr));
            found = Some(found.unwrap_or(false) || honest);
        }
        // SAFETY: opened here, closed once.
        let answer = unsafe { sys::ibv_close_device(context) };
        left_behind("an open RDMA device", errno::number(answer));
    }
    found
}
