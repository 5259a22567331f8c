//! Queries the limits of a device.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::devices::{DeviceList, name as name_of};
use super::sys;
use crate::DeviceLimits;

/// Opens the device that is called `name`, queries it, and closes it. `None` when libibverbs knows
/// no such device.
///
/// # Errors
/// The devices cannot be listed, or this one cannot be opened or queried.
pub(crate) fn device_limits(name: &str) -> io::Result<Option<DeviceLimits>> {
    let list = DeviceList::open()?;
    let Some(device) = list
        .devices()
        .find(|&device| name_of(device).as_deref() == Some(name))
    else {
        return Ok(None);
    };
    // SAFETY: the device belongs to a list that is still open.
    let context = unsafe { sys::ibv_open_device(device) };
    // It returns NULL and sets errno on failure.
    let context = Opened(NonNull::new(context).ok_or_else(io::Error::last_os_error)?);
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the context is open, and the out parameter is memory for one structure.
    let errno = unsafe { sys::ibv_query_device(context.0.as_ptr(), attributes.as_mut_ptr()) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno.abs()));
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let attributes: sys::ibv_device_attr = unsafe { attributes.assume_init() };
    // Counts are C integers; a device that answers a negative one has none.
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    Ok(Some(DeviceLimits {
        qps: count(attributes.max_qp),
        cqs: count(attributes.max_cq),
        mrs: count(attributes.max_mr),
        mr_bytes: attributes.max_mr_size,
        mws: count(attributes.max_mw),
        srqs: count(attributes.max_srq),
        qp_wrs: count(attributes.max_qp_wr),
        cqes: count(attributes.max_cqe),
        srq_wrs: count(attributes.max_srq_wr),
        sges: count(attributes.max_sge),
        reads: count(attributes.max_qp_rd_atom),
    }))
}

/// An open device, closed when it is dropped.
struct Opened(NonNull<sys::ibv_context>);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_open_device`, nothing was made of it, and it is closed once. A
        // failure leaves the descriptor to the end of the process.
        let _ = unsafe { sys::ibv_close_device(self.0.as_ptr()) };
    }
}
