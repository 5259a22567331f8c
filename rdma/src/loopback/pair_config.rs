//! The configuration of a queue pair, checked to be of this provider.

use std::any::Any;
use std::collections::VecDeque;
use std::rc::Rc;

use super::completion::{Cq, Srq};
use super::device::Pd;
use super::pair::{Agreed, Pair, Receives};
use super::state::NetRef;
use crate::contract::{
    CompletionQueue, ProtectionDomain, QpConfig, QpState, RdmaError, ReceiveSource,
};

/// A [`QpConfig`] in this provider's own terms.
pub(super) struct PairConfig {
    pub(super) pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) send_wr_max: u32,
    pub(super) send_sge_max: u32,
    pub(super) recv_sge_max: u32,
    pub(super) receives: Receives,
}

impl PairConfig {
    pub(super) fn new(
        net: &NetRef,
        host: u32,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Self, RdmaError> {
        let pd: &dyn Any = pd.as_ref();
        let pd = pd.downcast_ref::<Pd>();
        let pd = pd.filter(|pd| Rc::ptr_eq(&pd.net, net) && pd.host == host);
        let pd = pd.ok_or(RdmaError::Invalid(
            "the protection domain is of another device",
        ))?;
        let cq = |cq: &Rc<dyn CompletionQueue>| {
            let cq: &dyn Any = cq.as_ref();
            let cq = cq.downcast_ref::<Cq>();
            let cq = cq.filter(|cq| Rc::ptr_eq(&cq.net, net) && cq.host == host);
            cq.map(|cq| cq.cq).ok_or(RdmaError::Invalid(
                "the completion queue is of another device",
            ))
        };
        let receives = match &config.receives {
            ReceiveSource::Own(depth) => Receives::Own {
                depth: *depth,
                outstanding: 0,
                queue: VecDeque::new(),
            },
            ReceiveSource::Shared(srq) => {
                let srq: &dyn Any = srq.as_ref();
                let srq = srq.downcast_ref::<Srq>();
                let srq = srq.filter(|srq| Rc::ptr_eq(&srq.net, net) && srq.pd == pd.pd);
                let srq = srq.ok_or(RdmaError::Invalid(
                    "the shared receive queue is of another protection domain",
                ))?;
                Receives::Shared(srq.srq)
            }
        };
        Ok(Self {
            pd: pd.pd,
            send_cq: cq(&config.send_cq)?,
            recv_cq: cq(&config.recv_cq)?,
            send_wr_max: config.send_wr_max,
            send_sge_max: config.send_sge_max,
            recv_sge_max: config.recv_sge_max,
            receives,
        })
    }

    pub(super) fn pair(&self, num: u32, host: u32, id: u64, active: bool) -> Pair {
        let receives = match self.receives {
            Receives::Own { depth, .. } => Receives::Own {
                depth,
                outstanding: 0,
                queue: VecDeque::new(),
            },
            Receives::Shared(srq) => Receives::Shared(srq),
        };
        Pair {
            num,
            host,
            pd: self.pd,
            id,
            active,
            peer: None,
            connection: None,
            state: QpState::Init,
            cut: false,
            agreed: Agreed::default(),
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            send_wr_max: self.send_wr_max,
            send_sge_max: self.send_sge_max,
            recv_sge_max: self.recv_sge_max,
            sends: VecDeque::new(),
            first: 0,
            start: 0,
            rung: 0,
            send_outstanding: 0,
            unsignaled: 0,
            reads_outstanding: 0,
            failed: None,
            unanswered: false,
            receives,
            receiving: None,
            stalled: false,
            stalls: 0,
            held_back: VecDeque::new(),
            reads_served: 0,
            request_last_us: 0,
            response_last_us: 0,
        }
    }
}
