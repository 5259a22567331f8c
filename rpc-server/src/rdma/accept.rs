//! How a connection begins.

use std::net::SocketAddr;
use std::rc::Rc;

use capstan_rdma::contract::{
    CmError, CmId, ConnectParam, PrivateData, QpConfig, RdmaError, ReceiveSource,
};
use capstan_rpcrdma::limits::{CREDITS_INITIAL, CREDITS_PER_CONNECTION_MAX, INLINE_OFFER_BYTES};
use capstan_rpcrdma::private::{Agreed, Offer};

use super::Rdma;
use super::connection::{Connection, Parts};
use super::device::Device;
use crate::common::{Common, End};
use crate::limits::{READS_MAX, SEND_WRS};
use crate::program::{ConnectionNumber, Wire};
use crate::turns::Place;

/// A connection that cannot be accepted.
#[derive(Debug, thiserror::Error)]
enum AcceptError {
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    #[error(transparent)]
    Cm(#[from] CmError),
    #[error("there are as many RDMA connections as there may be: raise their number")]
    Connections,
    #[error("{0}")]
    Receives(String),
}

impl Rdma {
    /// Takes a connection that is asked for, or refuses it.
    pub(super) fn take_request(
        &mut self,
        manager: usize,
        id: CmId,
        param: &ConnectParam,
        common: &mut Common,
    ) {
        let addresses = self
            .managers
            .get(manager)
            .and_then(|of| of.cm.addresses(id));
        let begun = addresses.and_then(|(_, peer)| Some((peer, common.begin(Wire::Rdma, peer)?)));
        let Some((peer, (number, place))) = begun else {
            return self.reject(manager, id);
        };
        match self.accept((manager, id), (number, place, peer), param, common) {
            Ok(connection) => {
                if let Some(manager) = self.managers.get_mut(manager) {
                    manager.connections.insert(id, number);
                }
                self.connections.insert(number, connection);
                self.is_awaited(common.now_us);
            }
            Err(error) => {
                tracing::warn!(
                    target: capstan_rdma::PEER_CAUSED,
                    %peer,
                    "refused a connection: {error}"
                );
                self.reject(manager, id);
                common.end((Wire::Rdma, number), peer, 0);
            }
        }
    }

    fn reject(&mut self, manager: usize, id: CmId) {
        if let Some(manager) = self.managers.get_mut(manager) {
            manager.reject(id);
        }
    }

    /// The place of the device that a request came to.
    fn device(&mut self, manager: usize, id: CmId) -> Result<usize, RdmaError> {
        let gone = || RdmaError::Invalid("the request is gone");
        let device = self.managers.get(manager).and_then(|of| of.cm.device(id));
        let device = device.ok_or_else(gone)?;
        let is_of = |place: &Option<Device>| place.as_ref().is_some_and(|of| of.is_of(&device));
        if let Some(at) = self.devices.iter().position(is_of) {
            return Ok(at);
        }
        let opened = Device::open(device, &self.memory)?;
        match self.devices.iter().position(Option::is_none) {
            Some(at) => {
                if let Some(place) = self.devices.get_mut(at) {
                    *place = Some(opened);
                }
                Ok(at)
            }
            None => {
                self.devices.push(Some(opened));
                Ok(self.devices.len().saturating_sub(1))
            }
        }
    }

    fn accept(
        &mut self,
        (manager, id): (usize, CmId),
        (number, place, peer): (ConnectionNumber, Place, SocketAddr),
        param: &ConnectParam,
        common: &mut Common,
    ) -> Result<Connection, AcceptError> {
        let at = self.device(manager, id)?;
        let (Some(Some(device)), Some(of)) = (self.devices.get(at), self.managers.get_mut(manager))
        else {
            return Err(RdmaError::Invalid("the request is gone").into());
        };
        let attributes = device.attributes();
        let send_wrs_max = SEND_WRS.min(attributes.qp_wr_max);
        let reads_max = READS_MAX
            .min(attributes.initiator_depth_max)
            .min(param.responder_resources);
        let own = Offer {
            send_bytes: INLINE_OFFER_BYTES,
            receive_bytes: INLINE_OFFER_BYTES,
            remote_invalidation: attributes.send_with_invalidate,
        };
        let agreed = Agreed::new(&own, &Offer::parse(param.private_data.as_bytes()));
        let config = QpConfig {
            send_cq: Rc::clone(device.cq()),
            recv_cq: Rc::clone(device.cq()),
            send_wr_max: send_wrs_max,
            receives: ReceiveSource::Own(CREDITS_PER_CONNECTION_MAX.min(attributes.qp_wr_max)),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        let qp = of.cm.create_qp(id, device.pd(), &config)?;
        let (account, credits) = self
            .shares
            .join(peer, &self.memory, &mut self.credits)
            .ok_or(AcceptError::Connections)?;
        let parts = Parts {
            qp: qp.into(),
            number,
            peer,
            place,
            manager,
            id,
            device: at,
            credits,
            account,
            agreed,
            invalidates: agreed.remote_invalidation,
            reads_max: reads_max.into(),
            send_wrs_max,
            now_us: common.now_us,
        };
        let accept = ConnectParam {
            private_data: own
                .encode()
                .and_then(|bytes| PrivateData::new(&bytes))
                .unwrap_or(PrivateData::EMPTY),
            // A client only sends; it never reads memory of the server.
            responder_resources: 0,
            initiator_depth: reads_max,
            rnr_retry_count: 7,
        };
        self.accept_with(Connection::new(parts), &accept, common)
    }

    /// Posts the first receives of a connection, and accepts it.
    fn accept_with(
        &mut self,
        mut connection: Connection,
        accept: &ConnectParam,
        common: &mut Common,
    ) -> Result<Connection, AcceptError> {
        let (manager, id) = (connection.parts.manager, connection.parts.id);
        let number = connection.parts.number;
        let mut accepted = Err(AcceptError::Receives("its device is gone".to_owned()));
        if let Some((world, managers)) = self.world(connection.parts.device, common)
            && let Some(of) = managers.get_mut(manager)
        {
            world.device.add(connection.qp_num(), number);
            // Before it is accepted: the client may send at once.
            accepted = match connection.post_receives(CREDITS_INITIAL, &world) {
                Ok(()) => of.cm.accept(id, accept).map_err(AcceptError::from),
                Err(End::Closed(why) | End::Fault(why)) => Err(AcceptError::Receives(why)),
            };
        }
        match accepted {
            Ok(()) => Ok(connection),
            Err(error) => {
                let qp = connection.qp_num();
                let closed = connection.close();
                if let Some(Some(device)) = self.devices.get_mut(closed.device) {
                    device.remove(qp);
                }
                self.leave(closed.peer, closed.credits);
                Err(error)
            }
        }
    }
}
