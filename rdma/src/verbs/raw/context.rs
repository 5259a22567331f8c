//! An opened device.
#![expect(unsafe_code, reason = "calls libibverbs and librdmacm")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::super::sys;
use super::errno;
use super::receive::SGES_MAX;
use crate::contract::{DeviceAttributes, Transport};

/// A device that librdmacm has opened, kept open. librdmacm opens each device once per process, so
/// two of these may name the same one.
pub(in crate::verbs) struct Context {
    context: NonNull<sys::ibv_context>,
    /// Keeps it open: dropped last.
    _open: OpenDevices,
}

/// The answer of `rdma_get_devices`, which counts a reference on every device in it.
struct OpenDevices(NonNull<*mut sys::ibv_context>);

impl OpenDevices {
    fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the out parameter is a live integer.
        let list = unsafe { sys::rdma_get_devices(&raw mut count) };
        errno::pointer(list).map(Self)
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<sys::ibv_context>> + '_ {
        let mut at = self.0;
        std::iter::from_fn(move || {
            // SAFETY: the array ends with a NULL entry, and the iterator does not go past it.
            let entry = NonNull::new(unsafe { at.read() })?;
            // SAFETY: this entry is not the last one.
            at = unsafe { at.add(1) };
            Some(entry)
        })
    }
}

impl Drop for OpenDevices {
    fn drop(&mut self) {
        // SAFETY: it came from `rdma_get_devices` and is freed once.
        unsafe { sys::rdma_free_devices(self.0.as_ptr()) };
    }
}

impl Context {
    /// Keeps the device of a connection open.
    ///
    /// # Safety
    /// `context` is the device of an id that lives until this returns.
    ///
    /// # Errors
    /// The device has just gone.
    pub(super) unsafe fn hold(context: NonNull<sys::ibv_context>) -> io::Result<Rc<Self>> {
        let open = OpenDevices::new()?;
        if !open.iter().any(|entry| entry == context) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let held = Self {
            context,
            _open: open,
        };
        // Several threads may read its events; none of them may block.
        let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        fcntl(held.async_fd(), flags)?;
        Ok(Rc::new(held))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }

    /// What names the device within this process.
    pub(in crate::verbs) fn key(&self) -> usize {
        self.context.addr().get()
    }

    fn context(&self) -> &sys::ibv_context {
        // SAFETY: `_open` keeps the context alive, and libibverbs does not change its fields.
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

    /// Name as `rdma link` shows it.
    pub(in crate::verbs) fn name(&self) -> String {
        // SAFETY: libibverbs ends the name with a zero byte.
        let name = unsafe { CStr::from_ptr(self.device().name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    /// Whether it completes transfers while their memory is still read (siw).
    pub(in crate::verbs) fn completes_early(&self) -> bool {
        // SAFETY: `self` keeps the context open.
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
            name: self.name(),
            transport,
            qp_wr_max: count(attr.max_qp_wr),
            sge_max: count(attr.max_sge).min(SGES_MAX),
            // 0 from devices that do not tell it.
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

/// Soft-RoCE says that it has type 2 windows. But it checks a range against the whole region under
/// the window, lets every connection invalidate it, and does not tell user space which key was
/// invalidated (Linux 6.12, `check_rkey`, `rxe_invalidate_mw`, `do_complete`), so they protect
/// nothing.
fn is_rxe(attr: &sys::ibv_device_attr) -> bool {
    const RXE_VENDOR_ID: u32 = 0xff_ffff;
    attr.vendor_id == RXE_VENDOR_ID
}

/// `siw` gives TCP the pages of transfers from 4 KiB up and completes them while TCP may still read
/// them (`zcopy_tx` in Linux 6.12, `siw_qp_tx.c`): what the program writes there next can reach the
/// peer instead.
fn is_siw(attr: &sys::ibv_device_attr) -> bool {
    const SIW_VENDOR_ID: u32 = 0x62_6d74;
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
    // SAFETY: the caller's promise; this symbol fills the fields up to `phys_state`, a prefix of the
    // structure given.
    let answer = unsafe { sys::ibv_query_port(context, 1, attr.as_mut_ptr().cast()) };
    // SAFETY: integers, all zero before the call.
    let attr = unsafe { attr.assume_init() };
    errno::number(answer).is_ok() && attr.state == sys::ibv_port_state::IBV_PORT_ACTIVE
}

/// Whether any device has an active port, and whether such a device keeps its completions honest
/// ([`Context::completes_early`]).
pub(in crate::verbs) fn any_active_port() -> Option<bool> {
    let open = OpenDevices::new().ok()?;
    let mut found = None;
    for context in open.iter() {
        // SAFETY: the list keeps the context open.
        if !unsafe { is_active(context.as_ptr()) } {
            continue;
        }
        // SAFETY: as above.
        let attr = unsafe { query_device(context.as_ptr()) };
        let honest = attr.is_ok_and(|attr| !is_siw(&attr));
        found = Some(found.unwrap_or(false) || honest);
    }
    found
}
