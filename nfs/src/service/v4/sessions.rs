//! Operations on clients, sessions and stateids (RFC 8881, sections 18.33 to 18.38, 18.46 and 18.48
//! to 18.51).

use capstan_nfs_proto::codec::{List, Opaque};
use capstan_nfs_proto::v4::args;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{BindConnToSessionOk, ExchangeIdOk, StateProtected};
use capstan_nfs_proto::v4::types::{ClientId, OwnerBytes, ServerOwner, SessionId, Stateid};

use capstan_rpc_server::PEER_CAUSED;

use super::context::{Context, Outcome, Results};
use crate::service::{owner_shown, random};
use crate::state::DestroySessionPlace;

/// Stateids that are tested while the state is locked: some 0.1 ms.
const TESTED_AT_ONCE: usize = 256;

impl Context<'_> {
    pub(super) fn exchange_id(
        &mut self,
        arguments: &args::ExchangeId<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let peer = self.peer();
        let minor_version = self.minor_version.to_wire();
        let [unguessable, _] = halves(random()?);
        let exchanged = self.service.with_state(|state, now_us| {
            state.exchange_id(arguments, minor_version, &peer, unguessable, now_us)
        })??;
        let owner: OwnerBytes<'_> = Opaque(&self.service.owner);
        Ok(results.push(&OpResult::ExchangeId(ExchangeIdOk {
            clientid: exchanged.client,
            sequenceid: exchanged.sequence,
            flags: exchanged.flags,
            state_protect: StateProtected::None,
            server_owner: ServerOwner {
                minor_id: 0,
                major_id: owner,
            },
            server_scope: owner,
            server_impl_id: None,
        }))?)
    }

    pub(super) fn create_session(
        &mut self,
        arguments: &args::CreateSession<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let peer = self.peer();
        let unguessable = random()?;
        // A mount has several EXCHANGE_IDs, and confirms one of them.
        let mut come = None;
        let created = self.service.with_state(|state, now_us| {
            let owner = state.unconfirmed_owner(arguments.clientid);
            let created = state.create_session(arguments, &peer, unguessable, now_us);
            come = owner.filter(|_| created.is_ok());
            created
        });
        if let Some(owner) = come {
            let shown = owner_shown(&owner);
            tracing::info!(
                target: PEER_CAUSED,
                "{} has come: NFS 4.{}, owner {shown}",
                self.call.peer.ip().to_canonical(),
                self.minor_version.to_wire()
            );
        }
        Ok(results.push(&OpResult::CreateSession(created??))?)
    }

    pub(super) fn bind_connection(
        &mut self,
        arguments: &args::BindConnToSession,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let peer = self.peer();
        let dir = self.service.with_state(|state, _now_us| {
            state.bind_conn_to_session(arguments.sessid, arguments.dir, &peer)
        })??;
        Ok(
            results.push(&OpResult::BindConnToSession(BindConnToSessionOk {
                sessid: arguments.sessid,
                dir,
                // Connections are RDMA's from their start, or never.
                use_conn_in_rdma_mode: false,
            }))?,
        )
    }

    pub(super) fn destroy_session(
        &mut self,
        id: SessionId,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let peer = self.peer();
        let place = match &self.in_session {
            Some(request) => DestroySessionPlace::InSession {
                session: request.session,
                is_last: self.is_last,
            },
            None => DestroySessionPlace::First {
                is_only: self.is_last,
            },
        };
        self.service
            .with_state(|state, _now_us| state.destroy_session(id, place, &peer))??;
        Ok(results.push(&OpResult::Done(OpNum::DESTROY_SESSION))?)
    }

    pub(super) fn destroy_client(
        &mut self,
        client: ClientId,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        self.service
            .with_state(|state, now_us| state.destroy_clientid(client, now_us))??;
        Ok(results.push(&OpResult::Done(OpNum::DESTROY_CLIENTID))?)
    }

    pub(super) fn reclaim_complete(
        &mut self,
        one_fs: bool,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        if one_fs {
            self.object()?;
        }
        self.service
            .with_state(|state, now_us| state.reclaim_complete(client, one_fs, now_us))??;
        Ok(results.push(&OpResult::Done(OpNum::RECLAIM_COMPLETE))?)
    }

    pub(super) fn test_stateids(
        &mut self,
        stateids: List<'_, Stateid>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let mut stateids = stateids.iter();
        let mut statuses = Vec::new();
        // As many as a request can have, and others have their turn in between.
        loop {
            let before = statuses.len();
            self.service.with_state(|state, _now_us| {
                let some = stateids.by_ref().take(TESTED_AT_ONCE);
                statuses.extend(some.map(|stateid| state.test_stateid(client, stateid)));
            })?;
            if statuses.len() == before {
                break;
            }
        }
        Ok(results.push(&OpResult::TestStateid(List::of(&statuses)))?)
    }

    pub(super) fn free_stateid(
        &mut self,
        stateid: Stateid,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let stateid = self.stateids.resolve(stateid)?;
        self.service
            .with_state(|state, _now_us| state.free_stateid(client, stateid))??;
        Ok(results.push(&OpResult::Done(OpNum::FREE_STATEID))?)
    }

    /// BACKCHANNEL_CTL: there is no back channel whose parameters could change.
    pub(super) fn backchannel_ctl(&mut self, results: &mut Results<'_, '_>) -> Outcome {
        self.client()?;
        Ok(results.push(&OpResult::Done(OpNum::BACKCHANNEL_CTL))?)
    }
}

fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}
