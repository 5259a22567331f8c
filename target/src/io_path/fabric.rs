//! A provider's connection manager and the devices behind it.

use std::rc::Rc;

use capstan_rdma::contract::Device;
use capstan_transport::manager::Manager;
use capstan_transport::rdma::DevicePort;
use capstan_transport::{Memory, Wire, tcp};

use super::accept::Refusal;

/// One RDMA provider on this reactor.
pub(super) struct Fabric {
    pub(super) name: &'static str,
    /// Its connections, and those of NVMe/TCP that come to its listeners.
    pub(super) manager: Manager,
    /// Whether queues share their receives where the device can.
    pub(super) shared_receive_queue: bool,
    /// Empty entries are those of devices that have gone.
    pub(super) ports: Vec<Option<DevicePort>>,
}

/// The open ports of all fabrics, always in the same order.
pub(super) fn ports(fabrics: &[Fabric]) -> impl Iterator<Item = &DevicePort> {
    fabrics.iter().flat_map(|fabric| &fabric.ports).flatten()
}

/// All wires: of each device, and of the sockets of NVMe/TCP where there are any. Always in the
/// same order.
pub(super) fn wires<'a>(
    fabrics: &'a mut [Fabric],
    sockets: &'a mut tcp::wire::Wire,
) -> impl Iterator<Item = Wire<'a>> {
    let ports = fabrics.iter_mut().flat_map(|fabric| &mut fabric.ports);
    let sockets = (!sockets.is_empty()).then_some(Wire::Tcp(sockets));
    let devices = ports.flatten().map(|port| Wire::Rdma(&mut port.wire));
    devices.chain(sockets)
}

impl Fabric {
    /// The port of `device`, opening it when it is new.
    pub(super) fn port_of(
        &mut self,
        device: &Rc<dyn Device>,
        memory: &Memory,
    ) -> Result<usize, Refusal> {
        let is_it = |port: &DevicePort| Rc::ptr_eq(&port.device, device);
        let mut ports = self.ports.iter();
        if let Some(at) = ports.position(|port| port.as_ref().is_some_and(is_it)) {
            return Ok(at);
        }
        let port = DevicePort::open(device, memory, self.shared_receive_queue)?;
        let at = self.ports.iter().position(Option::is_none);
        let at = at.unwrap_or_else(|| {
            self.ports.push(None);
            self.ports.len() - 1
        });
        self.ports[at] = Some(port);
        Ok(at)
    }

    /// The port at an index that [`Fabric::port_of`] returned, as long as it has connections.
    pub(super) fn port(&mut self, at: usize) -> Option<&mut DevicePort> {
        self.ports.get_mut(at)?.as_mut()
    }

    /// Releases devices that were removed, once their connections are gone.
    pub(super) fn drop_removed_ports(&mut self) {
        for place in &mut self.ports {
            let over = |port: &mut DevicePort| port.device.is_removed() && port.wire.is_empty();
            if let Some(port) = place.take_if(over) {
                let device = &port.device.attributes().name;
                tracing::info!(device, "closed the RDMA device that was removed");
            }
        }
    }
}
