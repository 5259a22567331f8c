//! The provider: where a program begins.

use std::rc::Rc;

use super::cm::{Manager, OtherProtocol, OtherStreams};
use super::config::Config;
use super::device::COMPLETIONS_MAX;
use super::driver::IwarpEngine;
use super::receives::{RECEIVES_MAX, SGES_MAX};
use super::sq::SENDS_MAX;
use crate::contract::{ConnectionManager, Device, DeviceAttributes, RdmaError, Transport};

/// The user-space iWARP provider of one thread.
pub struct Provider {
    engine: Rc<IwarpEngine>,
}

impl Provider {
    /// A provider for the calling thread.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(config: Config) -> Result<Self, RdmaError> {
        let attributes = attributes(&config);
        Ok(Self {
            engine: IwarpEngine::new(config, attributes)?,
        })
    }

    /// A connection manager; several share the provider's one device.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn connection_manager(&self) -> Result<Box<dyn ConnectionManager>, RdmaError> {
        Ok(Box::new(Manager::new(&self.engine, None)?))
    }

    /// The same, whose listeners take connections of another protocol as well: those of
    /// `protocol`.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn connection_manager_beside(
        &self,
        protocol: OtherProtocol,
    ) -> Result<(Box<dyn ConnectionManager>, Rc<OtherStreams>), RdmaError> {
        let others = Rc::new(OtherStreams::new(protocol));
        let manager = Manager::new(&self.engine, Some(Rc::clone(&others)))?;
        Ok((Box::new(manager), others))
    }

    /// The provider's device, for memory that is registered before the first connection.
    #[must_use]
    pub fn device(&self) -> Rc<dyn Device> {
        self.engine.clone()
    }
}

/// What the provider can do.
pub(super) fn attributes(config: &Config) -> DeviceAttributes {
    DeviceAttributes {
        name: "iwarp0".into(),
        transport: Transport::Iwarp,
        qp_wr_max: SENDS_MAX.min(RECEIVES_MAX),
        sge_max: SGES_MAX,
        sge_rd_max: 1,
        cqe_max: COMPLETIONS_MAX,
        srq_wr_max: RECEIVES_MAX,
        responder_resources_max: config.responder_resources_max,
        initiator_depth_max: config.initiator_depth_max,
        // RFC 5041 §4.3: message offsets have 32 bits.
        message_bytes_max: u32::MAX,
        memory_windows: true,
        send_with_invalidate: true,
        // The sink of a Read is known by a STag that opens nothing else.
        read_sink_needs_remote_write: false,
        vendor_id: 0,
    }
}
