//! Connects of any kind, and what becomes of their queues.

use alloc::collections::BTreeSet;

use capstan_nvme_proto::command::{FabricsCommand, IoCommand as WireCommand, LbaRange, Write};
use capstan_nvme_proto::fabrics::{
    CNTLID_DYNAMIC, Cattr, Connect, ConnectParameters, ConnectResponse, PropertySet,
};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::opcode::{AdminOpcode, FabricsCommandType};
use capstan_nvme_proto::property::{Cc, Property, PropertySize};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use zerocopy::FromBytes;

use super::super::actions::ConnectAction;
use super::super::{Bench, PORT, address, announced, buffer, host, locate, subnqn};
use super::{Model, RARE, pick, send_admin, send_io, settle};
use crate::{ConnId, ConnectOutcome, ConnectRequest, RefuseReason, Target, Transport};

pub(super) fn connect(bench: &mut Bench, model: &mut Model, action: &ConnectAction) {
    let (command, parameters, entries) = match action {
        ConnectAction::Admin {
            host: number,
            discovery,
            sqsize_z,
            cattr,
            kato_ms,
            cntlid,
            enable: _,
        } => {
            // Most have left something behind.
            let left = (*number >= RARE).then(|| leave_a_write(bench, model, *number));
            let number = left.flatten().unwrap_or(number & 0b11);
            let subnqn = if *discovery {
                Nqn::discovery()
            } else {
                subnqn()
            };
            let parameters = ConnectParameters {
                hostid: HostId([number; 16]),
                cntlid: match *cntlid >> 6 {
                    0 => u16::from(*cntlid),
                    _ => CNTLID_DYNAMIC,
                },
                subnqn,
                hostnqn: host(number),
            };
            let command = Connect {
                qid: 0,
                sqsize: u32::from(*sqsize_z & 0x3F).saturating_add(1),
                cattr: Cattr(*cattr),
                kato_ms: u32::from(*kato_ms).saturating_mul(100),
            };
            (command, parameters, 32)
        }
        ConnectAction::Io {
            association,
            qid,
            sqsize_z,
            other_host,
        } => {
            let Some((_, parameters)) = pick(&model.admin, *association).cloned() else {
                return;
            };
            let hostid = if *other_host < RARE {
                HostId([2; 16])
            } else {
                parameters.hostid
            };
            let command = Connect {
                qid: u16::from(*qid & 0b111),
                sqsize: u32::from(*sqsize_z & 0xF).saturating_add(1),
                cattr: Cattr(0),
                kato_ms: 0,
            };
            (
                command,
                ConnectParameters {
                    hostid,
                    ..parameters
                },
                16,
            )
        }
        ConnectAction::Raw { sqe, data } => {
            return connect_raw(bench, model, sqe, &data.bytes());
        }
    };
    let (conn, outcome) = bench.connect(command, &parameters, entries);
    connected(bench, model, conn, outcome, parameters);
    if let ConnectAction::Admin { enable: true, .. } = action
        && model.outstanding.contains_key(&conn)
    {
        let set = PropertySet {
            property: Property::CC,
            size: PropertySize::Four,
            value: Cc::ENABLE_NVM.encode().into(),
        };
        let sqe = FabricsCommand::PropertySet(set).encode(0, Sgl::EMPTY);
        send_admin(bench, model, conn, &sqe, &[]);
        let enabled = model.admin.iter().find(|(other, _)| *other == conn);
        model
            .hurry
            .extend(enabled.map(|(_, parameters)| parameters.clone()));
    }
}

/// A host gives its disk something to do: which host.
fn leave_a_write(bench: &mut Bench, model: &mut Model, which: u8) -> Option<u8> {
    let conn = *pick(&model.io, which)?;
    let [number, ..] = bench.target.host_of_queue(conn)?;
    let write = Write::new(1, LbaRange { slba: 0, nlb: 1 });
    let write = WireCommand::Write(write).encode(bench.new_cid(), buffer(512));
    send_io(bench, model, conn, &write, &[]);
    settle(bench, model);
    Some(number)
}

/// Connects an I/O queue of each association that waits to be ready, if that may be now.
pub(super) fn connect_in_a_hurry(bench: &mut Bench, model: &mut Model) {
    for parameters in core::mem::take(&mut model.hurry) {
        if !model.admin.iter().any(|(_, live)| *live == parameters) {
            continue;
        }
        let io = Connect {
            qid: 1,
            sqsize: 8,
            cattr: Cattr(0),
            kato_ms: 0,
        };
        let waits = model.medium.waits_for_earlier(parameters.cntlid);
        let (conn, outcome) = bench.connect(io, &parameters, 16);
        match &outcome {
            ConnectOutcome::Refused {
                why: RefuseReason::NotReady { .. },
                ..
            } if waits => {
                model.reached.kept_out = model.reached.kept_out.saturating_add(1);
                model.hurry.push(parameters.clone());
            }
            ConnectOutcome::IoQueue { .. }
                if model.medium.waited_for_earlier(parameters.cntlid) =>
            {
                model.reached.let_in = model.reached.let_in.saturating_add(1);
            }
            ConnectOutcome::AdminQueue { .. }
            | ConnectOutcome::IoQueue { .. }
            | ConnectOutcome::Refused { .. } => {}
        }
        connected(bench, model, conn, outcome, parameters);
        settle(bench, model);
    }
}

fn connect_raw(bench: &mut Bench, model: &mut Model, sqe: &[u8; 64], data: &[u8]) {
    let Ok(mut sqe) = Sqe::read_from_bytes(sqe) else {
        return;
    };
    let conn = bench.new_conn();
    if sqe.flags & 1 == 1 {
        sqe.opcode = AdminOpcode::FABRICS.0;
        sqe.nsid = u32::from(FabricsCommandType::CONNECT.0).into();
    }
    if let Err(error) = locate(Transport::Rdma, &sqe, Target::connect_data(&sqe), data) {
        let _cqe = Target::refuse_connect_data(&sqe, error);
    }
    // QID of a Connect; what is compared with another one is refused at once.
    let qid = (sqe.cdw10.get() >> 16) as u16;
    let request = ConnectRequest {
        conn,
        port: PORT,
        local: address("[::1]:4420"),
        peer: address("[::1]:50000"),
        sizes: announced(qid, 16),
        over: "NVMe/RDMA",
        sqe: &sqe,
        data,
    };
    let outcome = bench
        .target
        .handle_connect(&request, &mut |_| Ok(()), bench.now_us);
    let parameters = ConnectParameters {
        hostid: HostId([1; 16]),
        cntlid: 0,
        subnqn: subnqn(),
        hostnqn: host(1),
    };
    connected(bench, model, conn, outcome, parameters);
}

fn connected(
    bench: &mut Bench,
    model: &mut Model,
    conn: ConnId,
    outcome: ConnectOutcome,
    parameters: ConnectParameters,
) {
    match outcome {
        ConnectOutcome::AdminQueue { cqe, association } => {
            let cntlid = ConnectResponse::decode(cqe.dw0.get()).cntlid;
            model.outstanding.insert(conn, BTreeSet::new());
            // Discovery controllers have identifiers of their own, which may be the same.
            if !association.subnqn.is_discovery() {
                model.medium.associated(cntlid, parameters.hostid.0);
            }
            model.admin.push((
                conn,
                ConnectParameters {
                    cntlid,
                    ..parameters
                },
            ));
        }
        ConnectOutcome::IoQueue {
            queue, association, ..
        } => {
            model.medium.queue_connected(association.cntlid);
            model.outstanding.insert(conn, BTreeSet::new());
            model.io.push(conn);
            bench.queues.insert(conn, queue);
        }
        ConnectOutcome::Refused { cqe, .. } => assert!(!cqe.status().is_success()),
    }
}
