//! Connect, what it refuses, and what a refusal tells.

use alloc::format;
use alloc::string::ToString;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::fabrics::{CNTLID_DYNAMIC, Cattr, Connect, ConnectData, ConnectParameters};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::rdma_cm::{CmRequest, RejectStatus};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::transfer::DataTransfer;
use zerocopy::IntoBytes;

use crate::testing::{
    Bench, PORT, address, announced, buffer, host, locate, nqn, subnqn, subsystem_config,
};
use crate::{
    ConnId, ConnectOutcome, ConnectRequest, HostPolicy, PortId, QueueSizes, RefuseReason, Settle,
    Share, SubsystemConfig, Target, TargetConfig, Transport,
};

const ADMIN: Connect = Connect {
    qid: 0,
    sqsize: 32,
    cattr: Cattr(0),
    kato_ms: 0,
};
const IO: Connect = Connect {
    qid: 1,
    sqsize: 8,
    cattr: Cattr(0),
    kato_ms: 0,
};

fn parameters() -> ConnectParameters {
    ConnectParameters {
        hostid: HostId([1; 16]),
        cntlid: CNTLID_DYNAMIC,
        subnqn: subnqn(),
        hostnqn: host(1),
    }
}

/// Status and the parameter at fault of a refused Connect.
fn refused(
    bench: &mut Bench,
    connect: Connect,
    parameters: &ConnectParameters,
) -> (Status, ErrorLocation) {
    let (_, outcome) = bench.connect(connect, parameters, 32);
    let ConnectOutcome::Refused { cqe, .. } = outcome else {
        panic!("{outcome:?}");
    };
    (cqe.status(), ErrorLocation::from_connect_dw0(cqe.dw0.get()))
}

/// As nvmet compares them; RFC 9562 reads either as the same UUID, and so it is told.
#[test]
fn the_uuid_of_a_subsystem_in_the_other_case_is_refused_with_the_name_that_is_there() {
    const UUID: &str = "0A6D2C9E-55F1-4A37-8A5C-52B6C4A5F7A1";
    let of = |uuid: &str| nqn(&["nqn.2014-08.org.nvmexpress:uuid:", uuid].concat());
    let (upper, lower) = (of(UUID), of(&UUID.to_lowercase()));
    for (there, asked) in [(&lower, &upper), (&upper, &lower)] {
        let mut bench = Bench::new();
        bench
            .target
            .add_subsystem(SubsystemConfig {
                nqn: there.clone(),
                ..subsystem_config()
            })
            .unwrap();
        let to = |subnqn: &Nqn| ConnectParameters {
            subnqn: subnqn.clone(),
            ..parameters()
        };
        assert_eq!(
            refused(&mut bench, ADMIN, &to(asked)),
            (
                Status::CONNECT_INVALID_PARAMETERS.dnr(),
                ConnectData::SUBNQN_LOCATION
            )
        );
        let why = bench.target.refusals().last().unwrap().why.to_string();
        assert_eq!(
            why,
            format!(
                "subsystem {asked} does not exist, but {there} does: names of subsystems are compared byte \
                 by byte, the digits of a UUID too; have the host connect to that name"
            )
        );
        // And then it is taken.
        let (_, outcome) = bench.connect(ADMIN, &to(there), 32);
        assert!(
            matches!(outcome, ConnectOutcome::AdminQueue { .. }),
            "{outcome:?}"
        );
    }
}

#[test]
fn an_admin_queue_gets_a_controller_and_sqhd_moves() {
    let mut bench = Bench::new();
    let (_, outcome) = bench.connect(ADMIN, &parameters(), 32);
    let ConnectOutcome::AdminQueue { cqe, association } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(cqe.status(), Status::SUCCESS);
    assert_eq!((cqe.dw0.get(), cqe.sqhd.get()), (1, 1));
    assert_eq!(association.hostnqn, host(1));
    assert_eq!(
        bench.log,
        [
            "host connected hostnqn=nqn.2024-01.org.example:host1 peer=10.0.0.9:50000 \
          subnqn=nqn.2024-01.org.example:volume cntlid=1 transport=\"NVMe/RDMA\" kato_ms=0"
        ]
    );
}

#[test]
fn flow_control_is_disabled_when_asked() {
    let mut bench = Bench::new();
    let connect = Connect {
        cattr: Cattr(1 << 2),
        ..ADMIN
    };
    let (_, outcome) = bench.connect(connect, &parameters(), 32);
    let ConnectOutcome::AdminQueue { cqe, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(cqe.sqhd.get(), Cqe::SQHD_FLOW_CONTROL_DISABLED);
}

#[test]
fn refusals_of_an_admin_queue_point_at_the_parameter() {
    let mut bench = Bench::new();
    let good = parameters();
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let unknown = ConnectParameters {
        subnqn: nqn("nqn.2024-01.org.example:other"),
        ..good.clone()
    };
    let stranger = ConnectParameters {
        hostnqn: host(3),
        ..good.clone()
    };
    let fixed = ConnectParameters {
        cntlid: 7,
        ..good.clone()
    };
    let large = Connect {
        sqsize: 33,
        ..ADMIN
    };
    let one_entry = Connect { sqsize: 1, ..ADMIN };
    let no_entry = Connect { sqsize: 0, ..ADMIN };
    let cases = [
        (ADMIN, &unknown, invalid, ConnectData::SUBNQN_LOCATION),
        (
            ADMIN,
            &stranger,
            Status::CONNECT_INVALID_HOST.dnr(),
            // Only Connect Invalid Parameters has a dword 0.
            ErrorLocation::Unspecified,
        ),
        (ADMIN, &fixed, invalid, ConnectData::CNTLID_LOCATION),
        (large, &good, invalid, ErrorLocation::sqe(44)),
        (one_entry, &good, invalid, ErrorLocation::sqe(44)),
        (no_entry, &good, invalid, ErrorLocation::sqe(44)),
    ];
    for (connect, parameters, status, location) in cases {
        assert_eq!(
            refused(&mut bench, connect, parameters),
            (status, location),
            "{connect:?} {parameters:?}"
        );
    }
    let kept: alloc::vec::Vec<_> = bench
        .target
        .refusals()
        .map(|refusal| refusal.why.to_string())
        .collect();
    assert_eq!(kept.len(), cases.len());
    assert_eq!(
        kept[1],
        "host nqn.2024-01.org.example:host3 is not allowed to use subsystem \
         nqn.2024-01.org.example:volume; add it to allowed_hosts"
    );
    // It is known to be of a Connect: the status has no name of another command.
    let answer = "expected 1 to FFFFh (a queue of at least 2 entries): answer Connect Invalid Parameters (SCT 1h, SC 82h, DNR)";
    let begin = "SQSIZE is 0h in byte 44 of the command, ";
    assert_eq!(kept[5], [begin, answer].concat());
}

/// SPDK's tools leave the Host NQN empty unless they are told one.
#[test]
fn a_host_without_a_name_is_taken_where_any_host_is() {
    let mut bench = Bench::new();
    let nameless = ConnectParameters {
        hostnqn: Nqn::NONE,
        ..parameters()
    };
    // Discovery is for everybody, and shows nothing that this host could not use.
    let discovery = bench.associate(Nqn::NONE, Nqn::discovery(), 0).unwrap();
    assert_eq!(discovery.parameters.hostnqn, Nqn::NONE);
    let (status, _) = refused(&mut bench, ADMIN, &nameless);
    assert_eq!(status, Status::CONNECT_INVALID_HOST.dnr());
    let why = bench.target.refusals().last().unwrap().why.to_string();
    assert!(
        why.starts_with("the host gives no name (HOSTNQN is empty), and subsystem nqn.2024-01."),
        "{why}"
    );
    bench.target.set_hosts(&subnqn(), HostPolicy::Any).unwrap();
    let association = bench.associate(Nqn::NONE, subnqn(), 0).unwrap();
    assert!(
        bench.log.last().unwrap().contains("hostnqn=(no name)"),
        "{:?}",
        bench.log
    );
    bench.enable(&association);
    bench.io_queue(&association, 1).unwrap();
    // The name belongs to the controller all the same.
    let named = ConnectParameters {
        hostnqn: host(1),
        ..association.parameters.clone()
    };
    assert_eq!(
        refused(&mut bench, Connect { qid: 2, ..IO }, &named).0,
        Status::CONNECT_INVALID_HOST.dnr()
    );
}

#[test]
fn an_io_queue_needs_a_ready_controller_of_the_same_host() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    let good = association.parameters.clone();
    let sequence = Status::COMMAND_SEQUENCE_ERROR;
    assert_eq!(refused(&mut bench, IO, &good).0, sequence);
    bench.enable(&association);

    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let other_id = ConnectParameters {
        hostid: HostId([2; 16]),
        ..good.clone()
    };
    let other_name = ConnectParameters {
        hostnqn: host(2),
        ..good.clone()
    };
    let other_controller = ConnectParameters {
        cntlid: good.cntlid + 1,
        ..good.clone()
    };
    for parameters in [&other_id, &other_name] {
        assert_eq!(
            refused(&mut bench, IO, parameters).0,
            Status::CONNECT_INVALID_HOST.dnr()
        );
    }
    assert_eq!(
        refused(&mut bench, IO, &other_controller),
        (invalid, ConnectData::CNTLID_LOCATION)
    );
    let too_many = Connect { qid: 129, ..IO };
    assert_eq!(
        refused(&mut bench, too_many, &good),
        (invalid, ErrorLocation::sqe(42))
    );
    let too_large = Connect { sqsize: 129, ..IO };
    assert_eq!(
        refused(&mut bench, too_large, &good),
        (invalid, ErrorLocation::sqe(44))
    );

    let conn = bench.io_queue(&association, 1).unwrap();
    assert_eq!(refused(&mut bench, IO, &good).0, sequence);
    bench.disconnect(conn);
    assert!(bench.io_queue(&association, 1).is_ok());
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let mut bench = Bench::new();
    let association = bench.associate(host(9), Nqn::discovery(), 0).unwrap();
    bench.enable(&association);
    let why = bench.io_queue(&association, 1).unwrap_err();
    assert_eq!(why, RefuseReason::QidOutOfRange { qid: 1, queues: 0 });
}

#[test]
fn controllers_are_bounded_and_their_identifiers_are_reused_late() {
    let mut bench = Bench::new();
    bench.target = {
        let config = TargetConfig {
            controllers: 2,
            ..TargetConfig::default()
        };
        let mut target = Target::new(config, 0).unwrap();
        target
            .add_port(crate::PortConfig {
                id: PORT,
                address: address("0.0.0.0:4420"),
                rdma: Some(capstan_nvme_proto::log::RdmaProviderType::IWARP),
                tcp: false,
                tcp_port: None,
            })
            .unwrap();
        let mut subsystem = subsystem_config();
        subsystem.hosts = HostPolicy::Any;
        target.add_subsystem(subsystem).unwrap();
        target
    };
    let first = bench.associate(host(1), subnqn(), 0).unwrap();
    let second = bench.associate(host(2), subnqn(), 0).unwrap();
    assert_eq!((first.cntlid, second.cntlid), (1, 2));
    let (status, _) = refused(&mut bench, ADMIN, &parameters());
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    bench.disconnect(first.conn);
    assert_eq!(bench.associate(host(1), subnqn(), 0).unwrap().cntlid, 3);
}

#[test]
fn the_first_command_must_be_connect_and_there_is_one() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let identify = Sqe::new(AdminOpcode::IDENTIFY.0, 9, 0);
    let request = ConnectRequest {
        conn: ConnId(99),
        port: PORT,
        local: address("10.0.0.5:4420"),
        peer: address("10.0.0.9:50000"),
        sizes: announced(0, 32),
        over: "NVMe/RDMA",
        sqe: &identify,
        data: &[],
    };
    let answer = |bench: &mut Bench, request: &ConnectRequest<'_>| {
        let outcome = bench.target.handle_connect(request, &mut |_| Ok(()), 0);
        let ConnectOutcome::Refused { cqe, .. } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(cqe.cid, request.sqe.cid);
        cqe.status()
    };
    let sequence = Status::COMMAND_SEQUENCE_ERROR.dnr();
    assert_eq!(answer(&mut bench, &request), sequence);
    assert_eq!(Target::connect_data(&identify), DataTransfer::None);
    let again = ConnectRequest {
        conn: association.conn,
        ..request
    };
    assert_eq!(answer(&mut bench, &again), sequence);
}

#[test]
fn a_connect_asks_for_the_queue_that_its_connection_request_announced() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let mut ask = |sizes, connect, parameters: &ConnectParameters| {
        let conn = bench.new_conn();
        let sqe =
            capstan_nvme_proto::command::FabricsCommand::Connect(connect).encode(5, buffer(1024));
        let data = parameters.encode();
        let request = ConnectRequest {
            conn,
            port: PORT,
            local: address("10.0.0.5:4420"),
            peer: address("10.0.0.9:50000"),
            sizes,
            over: "NVMe/RDMA",
            sqe: &sqe,
            data: data.as_bytes(),
        };
        match bench.target.handle_connect(&request, &mut |_| Ok(()), 0) {
            ConnectOutcome::Refused { cqe, why } => Err((
                cqe.status(),
                ErrorLocation::from_connect_dw0(cqe.dw0.get()),
                why.to_string(),
            )),
            ConnectOutcome::AdminQueue { .. } | ConnectOutcome::IoQueue { .. } => Ok(()),
        }
    };
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let of_controller = &association.parameters;
    let (status, location, why) = ask(announced(1, 32), ADMIN, &parameters()).unwrap_err();
    assert_eq!((status, location), (invalid, ErrorLocation::sqe(42)));
    assert!(why.starts_with("QID is 0, expected 1"), "{why}");
    let io_2 = Connect { qid: 2, ..IO };
    for (sizes, connect) in [(announced(0, 32), io_2), (announced(3, 32), io_2)] {
        let (status, location, _) = ask(sizes, connect, of_controller).unwrap_err();
        assert_eq!((status, location), (invalid, ErrorLocation::sqe(42)));
    }
    let with_cntlid = |cntlid| QueueSizes {
        cntlid,
        ..announced(2, 32)
    };
    let other = with_cntlid(of_controller.cntlid + 1);
    let (status, location, _) = ask(other, io_2, of_controller).unwrap_err();
    assert_eq!((status, location), (invalid, ConnectData::CNTLID_LOCATION));
    ask(with_cntlid(of_controller.cntlid), io_2, of_controller).unwrap();
    // A host older than transport revision 1.1 announces none.
    let io_3 = Connect { qid: 3, ..IO };
    ask(announced(3, 32), io_3, of_controller).unwrap();
}

#[test]
fn connect_data_is_found_before_anything_is_decided() {
    let sqe = |length| {
        capstan_nvme_proto::command::FabricsCommand::Connect(ADMIN).encode(5, buffer(length))
    };
    let transfer = Target::connect_data(&sqe(1024));
    assert_eq!(transfer, DataTransfer::HostToController { bytes: 1024 });
    locate(Transport::Rdma, &sqe(1024), transfer, &[]).unwrap();
    let short = locate(Transport::Rdma, &sqe(1023), transfer, &[]).unwrap_err();
    let short = Target::refuse_connect_data(&sqe(1023), short);
    assert_eq!(short.status(), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let inline = capstan_nvme_proto::sgl::Sgl::InCapsule {
        offset_bytes: 0,
        length_bytes: 1024,
    };
    let sqe = capstan_nvme_proto::command::FabricsCommand::Connect(IO).encode(5, inline);
    let data = parameters().encode();
    let transfer = Target::connect_data(&sqe);
    locate(Transport::Rdma, &sqe, transfer, data.as_bytes()).unwrap();
}

#[test]
fn connection_requests_are_checked_before_a_queue_is_built() {
    let bench = Bench::new();
    let good = CmRequest {
        qid: 0,
        hrqsize: 32,
        hsqsize: 32,
        cntlid: 0,
    };
    let ask = |port, request: CmRequest, length: usize| {
        let data = request.encode().unwrap();
        bench
            .target
            .handle_cm_request(port, &data.as_bytes()[..length])
            .map_err(|refusal| refusal.reject_status())
    };
    let sizes = ask(PORT, good, 32).unwrap();
    assert_eq!((sizes.qid, sizes.entries, sizes.host_receives), (0, 32, 32));
    let io = CmRequest {
        qid: 128,
        hsqsize: 128,
        ..good
    };
    assert_eq!(ask(PORT, io, 32).unwrap().entries, 128);
    let cases = [
        (PORT, good, 31, RejectStatus::INVALID_PRIVATE_DATA_LENGTH),
        (PortId(9), good, 32, RejectStatus::NO_RESOURCES),
        (
            PORT,
            CmRequest { qid: 129, ..io },
            32,
            RejectStatus::INVALID_QID,
        ),
        (
            PORT,
            CmRequest {
                hsqsize: 33,
                ..good
            },
            32,
            RejectStatus::INVALID_HSQSIZE,
        ),
        (
            PORT,
            CmRequest { hsqsize: 129, ..io },
            32,
            RejectStatus::INVALID_HSQSIZE,
        ),
    ];
    for (port, request, length, status) in cases {
        assert_eq!(ask(port, request, length), Err(status), "{request:?}");
    }
}

#[test]
fn resources_are_taken_for_hosts_that_are_permitted_and_a_lack_of_them_is_told() {
    let mut bench = Bench::new();
    let sqe = capstan_nvme_proto::command::FabricsCommand::Connect(ADMIN).encode(5, buffer(1024));
    let mut connect = |parameters: &ConnectParameters, settle: Settle<'_>| {
        let data = parameters.encode();
        let request = ConnectRequest {
            conn: bench.new_conn(),
            port: PORT,
            local: address("10.0.0.5:4420"),
            peer: address("10.0.0.9:50000"),
            sizes: announced(0, 32),
            over: "NVMe/RDMA",
            sqe: &sqe,
            data: data.as_bytes(),
        };
        bench.target.handle_connect(&request, settle, 0)
    };
    let stranger = ConnectParameters {
        hostnqn: host(9),
        ..parameters()
    };
    let outcome = connect(&stranger, &mut |_| panic!("it is not permitted"));
    assert!(matches!(outcome, ConnectOutcome::Refused { .. }));
    let discovery = ConnectParameters {
        subnqn: Nqn::discovery(),
        ..stranger
    };
    let outcome = connect(&discovery, &mut |_| panic!("it serves no I/O"));
    assert!(matches!(outcome, ConnectOutcome::AdminQueue { .. }));
    let outcome = connect(&parameters(), &mut |_| Err("no memory".into()));
    let ConnectOutcome::Refused { cqe, why } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(cqe.status(), Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(alloc::format!("{why}"), "no memory");
    let mut taken = None;
    let outcome = connect(&parameters(), &mut |share| {
        assert_eq!(taken.replace(share), None, "once");
        Ok(())
    });
    assert!(matches!(outcome, ConnectOutcome::AdminQueue { .. }));
    assert_eq!(taken, Some(Share::Listed));
}
