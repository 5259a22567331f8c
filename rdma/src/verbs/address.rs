//! Which RDMA device has an address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::device_names;
use super::raw::cm::{Channel, Id};
use super::raw::context::{any_active_port, name_and_flaw};
use crate::ids::local_address;

/// The folder of device nodes.
pub(super) const NODES: &str = "/dev/infiniband";
/// The node of the kernel's connection manager (module `rdma_ucm`).
const CM_DEVICE: &str = "/dev/infiniband/rdma_cm";

/// Whether librdmacm has a kernel to talk to; checked first, because librdmacm writes to stderr
/// otherwise.
pub(super) fn check_kernel() -> io::Result<()> {
    if Path::new(CM_DEVICE).exists() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("{CM_DEVICE} is missing; load the module with: modprobe rdma_ucm"),
    ))
}

/// The device that has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressDevice {
    /// Its name, or those of all devices for a wildcard address.
    pub name: String,
    /// It is `siw`, which completes transfers of 4 KiB and more while TCP may still read their
    /// memory, so that the peer may get what is written there next.
    pub completes_early: bool,
}

/// The RDMA device that has `addr`, or that reaches it when it is another machine's. The error
/// says, for a log line, why there is none.
///
/// # Errors
/// No device, no kernel support, or no device for this address.
pub fn device_for(addr: IpAddr) -> Result<AddressDevice, String> {
    let names = device_names().map_err(|error| match error.raw_os_error() {
        // ibv_get_device_list(3): the kernel has no RDMA support.
        Some(libc::ENOSYS) => "no RDMA device on this machine".to_owned(),
        _ => format!("no RDMA device can be listed: {error}"),
    })?;
    if names.is_empty() {
        return Err("no RDMA device on this machine".to_owned());
    }
    let names = names.join(", ");
    check_kernel().map_err(|error| format!("RDMA device {names}, but {error}"))?;
    if addr.is_unspecified() {
        let none = || format!("no RDMA device ({names}) has an active port");
        let honest = any_active_port().ok_or_else(none)?;
        return Ok(AddressDevice {
            name: names,
            completes_early: !honest,
        });
    }
    // The discard port; any port will do.
    let source = local_address(SocketAddr::new(addr, 9), None)
        .map_err(|error| format!("no route to {addr}: {error}"))?;
    let unusable = |error: io::Error| format!("the RDMA connection manager is unusable: {error}");
    let channel = Channel::new().map_err(unusable)?;
    let id = Id::new(&channel).map_err(unusable)?;
    let bound = id.bind(source).ok();
    let (name, completes_early) = bound.and_then(|()| name_and_flaw(id)).ok_or_else(|| {
        let source = source.ip();
        format!("no RDMA device ({names}) owns {source}, from where {addr} is reached")
    })?;
    Ok(AddressDevice {
        name,
        completes_early,
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::device_for;

    /// 127.0.0.1 belongs to no RDMA device, whatever the machine has.
    #[test]
    fn loopback_has_no_device_and_the_reason_is_told() {
        let why = device_for(Ipv4Addr::LOCALHOST.into()).unwrap_err();
        assert!(why.contains("RDMA"), "{why}");
    }
}
