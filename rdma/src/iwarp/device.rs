//! The provider's one device, and the queue pairs that are made of its objects.

use std::any::Any;
use std::rc::Rc;

use super::cq::Completions;
use super::driver::IwarpEngine;
use super::driver::notice::Link2Cm;
use super::memory::Domain;
use super::qp::QpHandle;
use super::receives::{ReceiveRing, Receives};
use super::srq::SharedQueue;
use crate::contract::{
    CompletionQueue, Device, DeviceAttributes, ProtectionDomain, QpConfig, RdmaError, ReceiveSource,
};
use crate::ids::{check_limit, check_qp};

/// Most entries of a completion queue.
pub(super) const COMPLETIONS_MAX: u32 = 1 << 20;

impl Device for IwarpEngine {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Software in this process cannot be removed.
    fn is_removed(&self) -> bool {
        false
    }

    fn allocate_pd(&self) -> Result<Rc<dyn ProtectionDomain>, RdmaError> {
        let engine = self.rc()?;
        let id = self.next_pd_id();
        Ok(Rc::new(Domain::new(engine, id)))
    }

    fn create_cq(&self, depth: u32) -> Result<Rc<dyn CompletionQueue>, RdmaError> {
        check_limit("entries of a completion queue", depth, COMPLETIONS_MAX)?;
        let cq = Completions::new(&self.rc()?, depth)?;
        Ok(cq)
    }
}

/// Makes a queue pair of the domain `pd`.
pub(super) fn create_qp(
    engine: &Rc<IwarpEngine>,
    pd: &Rc<dyn ProtectionDomain>,
    config: &QpConfig,
    cm: Link2Cm,
) -> Result<QpHandle, RdmaError> {
    check_qp(&engine.attributes, config)?;
    let domain = own::<Domain>(pd.clone()).filter(|d| d.is_of(engine));
    let pd = domain.map(|d| d.id()).ok_or(RdmaError::Invalid(
        "the protection domain is not of this provider",
    ))?;
    let send_cq = own_cq(engine, &config.send_cq)?;
    let recv_cq = own_cq(engine, &config.recv_cq)?;
    let receives = match &config.receives {
        ReceiveSource::Own(depth) => Receives::Own(ReceiveRing::new(*depth, config.recv_sge_max)),
        ReceiveSource::Shared(srq) => {
            let srq = own::<SharedQueue>(srq.clone());
            let srq = srq.filter(|srq| srq.is_of(engine, pd));
            let srq = srq.ok_or(RdmaError::Invalid(
                "the shared receive queue is not of the queue pair's protection domain",
            ))?;
            Receives::Shared(Rc::clone(srq.receives()))
        }
    };
    let sends = (config.send_wr_max, config.send_sge_max);
    let rings = (Rc::clone(send_cq.ring()), Rc::clone(recv_cq.ring()));
    let cell = engine.add_qp(pd, sends, receives, rings, cm)?;
    Ok(QpHandle::new(engine, cell))
}

fn own_cq(
    engine: &Rc<IwarpEngine>,
    cq: &Rc<dyn CompletionQueue>,
) -> Result<Rc<Completions>, RdmaError> {
    let cq = own::<Completions>(cq.clone()).filter(|cq| cq.is_of(engine));
    cq.ok_or(RdmaError::Invalid(
        "the completion queue is not of this provider",
    ))
}

/// This provider's own type behind a trait object.
fn own<T: Any>(object: Rc<dyn Any>) -> Option<Rc<T>> {
    object.downcast().ok()
}
