//! Asynchronous events of a device.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::mem::{MaybeUninit, offset_of};

use super::super::sys;
use super::context::Context;
use super::errno;

/// What an event is about. The numbers are those of `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum About {
    /// The device's number of a queue pair.
    Pair(u32),
    Port(i32),
    /// The device, or one of its queues.
    Other,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct AsyncEvent {
    pub(in crate::verbs) kind: u32,
    pub(in crate::verbs) about: About,
}

impl AsyncEvent {
    pub(in crate::verbs) const CQ_ERR: u32 = 0;
    pub(in crate::verbs) const QP_FATAL: u32 = 1;
    pub(in crate::verbs) const QP_REQ_ERR: u32 = 2;
    pub(in crate::verbs) const QP_ACCESS_ERR: u32 = 3;
    pub(in crate::verbs) const COMM_EST: u32 = 4;
    pub(in crate::verbs) const PATH_MIG_ERR: u32 = 7;
    pub(in crate::verbs) const DEVICE_FATAL: u32 = 8;
    pub(in crate::verbs) const PORT_ACTIVE: u32 = 9;
    pub(in crate::verbs) const PORT_ERR: u32 = 10;
    pub(in crate::verbs) const SRQ_ERR: u32 = 14;

    const SQ_DRAINED: u32 = 5;
    const PATH_MIG: u32 = 6;
    const PKEY_CHANGE: u32 = 12;
    const LID_CHANGE: u32 = 11;
    const SM_CHANGE: u32 = 13;
    const QP_LAST_WQE_REACHED: u32 = 16;
    const CLIENT_REREGISTER: u32 = 17;
    const GID_CHANGE: u32 = 18;
}

/// `struct ibv_async_event` with its kind as a number: a newer kernel may report one that the
/// binding's Rust enum does not have.
#[repr(C)]
struct Raw {
    element: sys::ibv_async_event_element_t,
    kind: u32,
}

const _: () = assert!(
    size_of::<Raw>() == size_of::<sys::ibv_async_event>()
        && offset_of!(Raw, kind) == offset_of!(sys::ibv_async_event, event_type)
);

/// Takes the next event of the device, if there is one.
pub(in crate::verbs) fn next(context: &Context) -> Option<AsyncEvent> {
    let mut event = MaybeUninit::<Raw>::zeroed();
    let at: *mut sys::ibv_async_event = event.as_mut_ptr().cast();
    // SAFETY: the context is open and does not block; the out parameter is live.
    errno::number(unsafe { sys::ibv_get_async_event(context.as_ptr(), at) }).ok()?;
    // SAFETY: all zero before the call filled it; every value of its fields is valid.
    let Raw { element, kind } = unsafe { event.assume_init() };
    let about = match kind {
        AsyncEvent::QP_FATAL..=AsyncEvent::COMM_EST
        | AsyncEvent::SQ_DRAINED
        | AsyncEvent::PATH_MIG
        | AsyncEvent::PATH_MIG_ERR
        | AsyncEvent::QP_LAST_WQE_REACHED => {
            // SAFETY: events of these kinds carry a queue pair.
            let qp = unsafe { element.qp };
            // SAFETY: `ibv_destroy_qp` waits for the acknowledgement below, so it still exists,
            // whichever thread owns it.
            About::Pair(unsafe { (*qp).qp_num })
        }
        AsyncEvent::PORT_ACTIVE
        | AsyncEvent::PORT_ERR
        | AsyncEvent::LID_CHANGE
        | AsyncEvent::PKEY_CHANGE
        | AsyncEvent::SM_CHANGE
        | AsyncEvent::CLIENT_REREGISTER
        | AsyncEvent::GID_CHANGE => {
            // SAFETY: events of these kinds carry a port number.
            About::Port(unsafe { element.port_num })
        }
        _ => About::Other,
    };
    // SAFETY: acknowledged once.
    unsafe { sys::ibv_ack_async_event(at) };
    Some(AsyncEvent { kind, about })
}
