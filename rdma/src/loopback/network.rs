//! The network that a test or a simulation builds.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::faults::{Fault, Faults};
use super::keys::KeyTable;
use super::manager::Manager;
use super::state::{Core, Host, Net, NetRef};
use super::trace::TraceEvent;
use crate::contract::{DeviceAttributes, RdmaError, Transport};

/// A network in memory. One thread owns it and everything made of it.
///
/// Its clock is set by callers: [`Network::advance_to`], and the `now_us` of every
/// connection-manager call. Polling anything handles all that is due, for both sides.
#[derive(Clone)]
pub struct Network {
    net: NetRef,
    identity: Arc<()>,
}

impl Network {
    /// A network where nothing goes wrong. The seed decides everything random.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_faults(seed, Faults::NONE)
    }

    /// A network where `faults` strike.
    #[must_use]
    pub fn with_faults(seed: u64, faults: Faults) -> Self {
        let core = RefCell::new(Core::new(seed, faults));
        Self {
            net: Rc::new(Net { core }),
            identity: Arc::new(()),
        }
    }

    /// A machine with one device, reachable at `addresses`; each address belongs to one machine.
    ///
    /// # Errors
    /// An address of another provider.
    pub fn provider(
        &self,
        addresses: &[IpAddr],
        attributes: DeviceAttributes,
    ) -> Result<Provider, RdmaError> {
        let mut core = self.net.core.borrow_mut();
        if addresses.iter().any(|&ip| core.host_of(ip).is_some()) {
            return Err(RdmaError::Invalid("the address is of another provider"));
        }
        let Ok(index) = u32::try_from(core.hosts.len()) else {
            return Err(RdmaError::Invalid("too many providers"));
        };
        core.hosts.push(Host {
            addresses: addresses.to_vec(),
            attributes,
            keys: KeyTable::new(),
            removed: false,
            restored: 0,
            next_port: 0,
        });
        Ok(Provider {
            net: Rc::clone(&self.net),
            identity: Arc::clone(&self.identity),
            index,
        })
    }

    /// Lets time pass until `now_us` (never back) and handles what is due.
    pub fn advance_to(&self, now_us: u64) {
        self.net.core.borrow_mut().advance(now_us);
    }

    /// The network's clock in microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.net.core.borrow().now_us
    }

    /// When the next thing happens; a simulation may jump there. `None` when nothing is under way.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.net.core.borrow().next_deadline_us()
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.net.core.borrow_mut().set_faults(faults);
    }

    /// Lets a fault that is planned for a time strike at once.
    pub fn strike(&self, fault: Fault) {
        self.net.core.borrow_mut().strike(fault);
    }

    /// Starts keeping the events themselves, without bound; forgets those kept so far.
    pub fn keep_trace(&self) {
        self.net.core.borrow_mut().trace.log = Some(Vec::new());
    }

    /// What happened since [`Network::keep_trace`].
    #[must_use]
    pub fn trace(&self) -> Vec<TraceEvent> {
        self.net.core.borrow().trace.log.clone().unwrap_or_default()
    }

    /// A digest of all that ever happened; equal for two equal runs of the same build.
    #[must_use]
    pub fn trace_digest(&self) -> u64 {
        self.net.core.borrow().trace.digest()
    }
}

/// A machine on a [`Network`].
#[derive(Clone)]
pub struct Provider {
    net: NetRef,
    identity: Arc<()>,
    index: u32,
}

impl Provider {
    /// A connection manager. Several of one provider stand for several threads of one program.
    ///
    /// # Errors
    /// No descriptor for its eventfd.
    pub fn manager(&self) -> Result<Manager, RdmaError> {
        Manager::create(&self.net, &self.identity, self.index)
    }

    /// Its number in a [`Fault`]: 0 for the network's first.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// A device that can do all the contract knows.
#[must_use]
pub fn attributes() -> DeviceAttributes {
    DeviceAttributes {
        name: "loopback".into(),
        transport: Transport::Loopback,
        qp_wr_max: 16_384,
        sge_max: 16,
        sge_rd_max: 16,
        cqe_max: 1 << 20,
        srq_wr_max: 32_768,
        responder_resources_max: 16,
        initiator_depth_max: 16,
        message_bytes_max: 1 << 30,
        memory_windows: true,
        send_with_invalidate: true,
        read_sink_needs_remote_write: false,
        vendor_id: 0,
    }
}
