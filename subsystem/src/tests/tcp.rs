//! Hosts that connect over NVMe/TCP.

use alloc::string::ToString;
use alloc::vec::Vec;

use capstan_nvme_proto::command::{
    AdminCommand, FabricsCommand, GetLogPage, Identify, IoCommand, LbaRange, Read,
};
use capstan_nvme_proto::fabrics::{Cattr, Connect};
use capstan_nvme_proto::identify::{Cns, IdentifyController, SglSupport};
use capstan_nvme_proto::log::{DiscoveryLog, LogPageId, TcpSecurityType, TransportType};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::transfer::DataTransfer;

use crate::testing::{Bench, PORT, buffer, host, locate, subnqn};
use crate::{IoStep, QueueSizes, RefuseReason, Target, Transport};

/// A bench whose port speaks NVMe/TCP as well, and whose hosts use that.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let rdma = Some(capstan_nvme_proto::log::RdmaProviderType::IWARP);
    bench.target.set_port_transports(PORT, rdma, true).unwrap();
    bench.transport = Transport::Tcp;
    bench
}

fn by_transport(length_bytes: u32) -> Sgl {
    Sgl::Transport { length_bytes }
}

#[test]
fn a_controller_says_what_its_transport_has() {
    let mut bench = bench();
    let association = bench.ready();
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let sqe = identify.encode(1, by_transport(4096));
    let (cqe, data) = bench.send_admin(association.conn, &sqe).unwrap();
    assert_eq!(cqe.status(), Status::SUCCESS);
    let data = IdentifyController::from_data(&data).unwrap();
    let sgls = SglSupport::from_bits_retain(data.sgls.get());
    assert!(sgls.contains(SglSupport::TRANSPORT | SglSupport::OFFSET | SglSupport::OVERSIZED));
    assert!(!sgls.contains(SglSupport::KEYED));
    assert_eq!((data.icdoff_16bytes.get(), data.msdbd), (0, 1));
    assert_eq!(data.in_capsule_data_bytes(), 8192);
}

#[test]
fn data_is_located_by_the_rules_of_the_transport() {
    let mut bench = bench();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    let queue = bench.queues.get_mut(&conn).unwrap();
    let read = IoCommand::Read(Read::new(1, LbaRange { slba: 0, nlb: 8 }));
    let located =
        queue.handle_capsule_over(Transport::Tcp, &read.encode(7, by_transport(8192)), &[]);
    let IoStep::Execute(command) = located else {
        panic!("{located:?}");
    };
    let expected = DataTransfer::ControllerToHost { bytes: 4096 };
    assert_eq!(command.data_transfer(), expected);
    let _cqe = queue.complete(command.permit, Status::SUCCESS, 0);
    // A key opens nothing here, as nothing does over RDMA without one.
    for (transport, sgl) in [
        (Transport::Tcp, buffer(4096)),
        (Transport::Rdma, by_transport(4096)),
    ] {
        let mut bench = self::bench();
        bench.transport = transport;
        let association = bench.ready();
        let conn = bench.io_queue(&association, 1).unwrap();
        let queue = bench.queues.get_mut(&conn).unwrap();
        match queue.handle_capsule_over(transport, &read.encode(8, sgl), &[]) {
            IoStep::Complete(cqe) => {
                assert_eq!(cqe.status().code(), Status::SGL_DESCRIPTOR_TYPE_INVALID);
            }
            step => panic!("{transport:?}: {step:?}"),
        }
    }
}

#[test]
fn a_connect_says_how_large_its_queue_is() {
    let bench = bench();
    let connect = |qid, sqsize| {
        let connect = Connect {
            qid,
            sqsize,
            cattr: Cattr(0),
            kato_ms: 0,
        };
        FabricsCommand::Connect(connect).encode(0, by_transport(1024))
    };
    let sizes = |qid, entries| QueueSizes {
        transport: Transport::Tcp,
        qid,
        entries,
        host_receives: entries,
        cntlid: 0,
    };
    let of = |sqe| bench.target.sizes_of_connect(&sqe);
    assert_eq!(of(connect(0, 32)), sizes(0, 32));
    assert_eq!(of(connect(3, 128)), sizes(3, 128));
    // No more than there may be; that it asks for more is refused later.
    assert_eq!(of(connect(3, 1024)), sizes(3, 128));
    assert_eq!(
        of(AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0)).encode(0, by_transport(0))),
        sizes(0, 1)
    );
    let transfer = Target::connect_data(&connect(0, 32));
    assert_eq!(transfer.bytes(), 1024);
    locate(Transport::Tcp, &connect(0, 32), transfer, &[]).unwrap();
}

#[test]
fn all_queues_of_a_controller_use_one_transport() {
    let mut bench = bench();
    let association = bench.ready();
    bench.transport = Transport::Rdma;
    let refused = bench.io_queue(&association, 1).unwrap_err();
    let cntlid = association.cntlid;
    let transport = Transport::Tcp;
    assert_eq!(refused, RefuseReason::OtherTransport { cntlid, transport });
    bench.transport = Transport::Tcp;
    bench.io_queue(&association, 1).unwrap();
}

#[test]
fn a_host_that_asks_for_what_a_port_does_not_speak_is_told_so() {
    let mut bench = Bench::new();
    bench.transport = Transport::Tcp;
    let refused = bench.associate(host(1), subnqn(), 0).unwrap_err();
    let why = refused.to_string();
    assert!(
        why.contains("by NVMe/TCP, which the listener at 0.0.0.0:4420"),
        "{why}"
    );
    assert_eq!(
        refused.status(),
        Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(),
        "no single parameter is wrong"
    );
    assert!(why.contains("transports"), "{why}");
    bench.target.set_port_transports(PORT, None, true).unwrap();
    bench.associate(host(1), subnqn(), 0).unwrap();
    bench.transport = Transport::Rdma;
    let refused = bench.associate(host(1), subnqn(), 0).unwrap_err();
    assert!(refused.to_string().contains("by NVMe/RDMA"), "{refused}");
}

#[test]
fn the_discovery_log_has_each_transport_of_a_port() {
    let mut bench = bench();
    let association = bench.associate(host(1), Nqn::discovery(), 0).unwrap();
    bench.enable(&association);
    let get = GetLogPage::new(LogPageId::DISCOVERY, 8192);
    let sqe = AdminCommand::GetLogPage(get).encode(1, by_transport(8192));
    let (cqe, page) = bench.send_admin(association.conn, &sqe).unwrap();
    assert_eq!(cqe.status(), Status::SUCCESS);
    let log = DiscoveryLog::parse(&page).unwrap();
    let entries: Vec<_> = log
        .entries
        .iter()
        .map(|entry| {
            let security = entry.tcp_tsas().map(|tsas| tsas.sectype);
            let service = entry.transport_service_id().to_string();
            (entry.trtype, entry.portid.get(), service, security)
        })
        .collect();
    let rdma = (TransportType::RDMA, 1, "4420".into(), None);
    let tcp = (
        TransportType::TCP,
        1,
        "4420".into(),
        Some(TcpSecurityType::NONE),
    );
    assert_eq!(entries, [rdma.clone(), tcp.clone(), rdma, tcp]);
}
