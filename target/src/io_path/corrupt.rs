//! Commands whose data has changed on the way, as its digest tells: they fail with Transient
//! Transport Error, and the queue goes on (NVMe over TCP Transport 1.1, section 3.3.1.1).

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::PEER_CAUSED;
use capstan_subsystem::{AdminStep, IoStep};
use capstan_transport::Capsule;

use super::cause::Cause;
use super::command::Work;
use super::connection::Connection;
use super::phase::Phase;
use super::{Resources, admin, execute, respond};

/// Says whose data has changed on the way, of which command.
pub(super) fn tell(connection: &Connection, cid: u16) {
    const WORDS: &str = "the CRC32C of the data did not match: it was corrupted on the way; the command fails with \
                         Transient Transport Error, after which its host sends it again or fails it";
    let (peer, qid) = (connection.identity.peer, connection.identity.sizes.qid);
    let reason = "corrupted";
    match &connection.association {
        Some(association) => {
            let (hostnqn, subnqn) = (association.hostnqn.to_string(), association.subnqn.as_str());
            let cntlid = association.cntlid;
            tracing::warn!(
                target: PEER_CAUSED,
                %peer, hostnqn, subnqn, cntlid, qid, cid, reason,
                "{WORDS}"
            );
        }
        None => tracing::warn!(target: PEER_CAUSED, %peer, qid, cid, reason, "{WORDS}"),
    }
}

/// Answers a command whose data has changed in its capsule.
pub(super) fn on_capsule(
    resources: &mut Resources,
    connection: &mut Connection,
    capsule: &mut Capsule,
) {
    tell(connection, capsule.sqe.cid.get());
    let status = Status::TRANSIENT_TRANSPORT_ERROR;
    let now_us = resources.now_us;
    let cqe = match connection.phase {
        Phase::Io => {
            let Connection {
                queue: Some(queue),
                transport,
                ..
            } = connection
            else {
                return;
            };
            let mut step = queue.handle_command(&capsule.sqe);
            if let Err(error) = execute::find_data(transport, capsule, &step) {
                step = queue.refuse_data(step, &error);
            }
            match step {
                IoStep::Execute(io) => Ok(queue.complete(io.permit, status, 0)),
                IoStep::Control(control) => Ok(queue.complete(control.permit, status, 0)),
                IoStep::Complete(cqe) => Ok(cqe),
                IoStep::DeleteQueue(permit) => Ok(queue.complete(permit, status, 0)),
                IoStep::Disconnect(why) => Err(Cause::from(why)),
            }
        }
        Phase::Admin => resources.control.with(|target| {
            let conn = connection.identity.id;
            match admin::take_in(target, (conn, &connection.transport), capsule, now_us).0 {
                AdminStep::Execute(request) => (target.fail_admin(request, status))
                    .ok_or_else(|| "its controller is gone".into()),
                AdminStep::Complete(cqe) => Ok(cqe),
                AdminStep::Disconnect(why) => Err(why.into()),
            }
        }),
        Phase::AwaitingConnect { .. } | Phase::AwaitingData { .. } => {
            connection.phase = Phase::refused(now_us);
            Ok(Cqe::new(capsule.sqe.cid.get(), 0, status, 0))
        }
        Phase::Refused { .. } | Phase::Closing { .. } => return,
    };
    connection.transport.give_back(capsule.data.take());
    match cqe {
        Ok(cqe) => {
            respond::send_alone(resources, connection, &cqe, None);
            respond::settle(resources, connection);
        }
        Err(why) => resources.end(connection, why),
    }
}

/// Answers a command whose data has come and has changed on the way, and that is no I/O command.
pub(super) fn refuse(
    resources: &mut Resources,
    connection: &mut Connection,
    work: Work,
    status: Status,
) {
    let cqe = match work {
        Work::Admin(request) => {
            let failed = resources
                .control
                .with(|target| target.fail_admin(*request, status));
            let Some(cqe) = failed else { return };
            cqe
        }
        Work::Connect(connect) => {
            connection.phase = Phase::refused(resources.now_us);
            Cqe::new(connect.sqe.cid.get(), 0, status, 0)
        }
        Work::Io(_) | Work::Control(_) => return,
    };
    respond::send_alone(resources, connection, &cqe, None);
}
