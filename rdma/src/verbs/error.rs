//! System errors in the contract's terms.

use std::io;

use crate::contract::{CmError, RdmaError};

/// A resource that could not be made.
pub(super) fn resource(what: &'static str) -> impl FnOnce(io::Error) -> RdmaError {
    move |source| {
        let hint = match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => {
                "; raise the limit of open files (ulimit -n, LimitNOFILE=)"
            }
            Some(libc::ENOMEM | libc::EAGAIN) => {
                "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK=) or ask for less"
            }
            Some(libc::ENODEV) => "; the RDMA device has gone (rdma link)",
            Some(libc::EACCES | libc::EPERM) => {
                "; this user may not open /dev/infiniband/* (group rdma, or root)"
            }
            _ => "",
        };
        RdmaError::System { what, source, hint }
    }
}

/// A step of a connection that the system refused.
pub(super) fn step(what: impl Into<String>, error: &io::Error) -> CmError {
    let errno = error.raw_os_error();
    let next = match errno {
        Some(libc::ENODEV) => ": no RDMA device has or reaches the address (rdma link, ip addr)",
        Some(libc::EADDRNOTAVAIL) => ": the address is not one of this machine's RDMA devices",
        Some(libc::EADDRINUSE) => ": another listener has the port",
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            ": check the route and that the peer is up (ip route get, ping)"
        }
        Some(libc::ECONNRESET) => ": the peer ended it; the peer's log says why",
        _ => "",
    };
    CmError::System {
        what: what.into(),
        message: format!("{error}{next}"),
        errno,
    }
}

/// A negative `rdma_cm_event.status`.
pub(super) fn of_status(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status.saturating_abs())
}
