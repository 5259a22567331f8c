//! The discovery controller and its log page.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{AdminCommand, GetLogPage, Identify, SetFeatures};
use capstan_nvme_proto::features::{AsyncEventConfiguration, FeatureId};
use capstan_nvme_proto::identify::{Cns, ControllerType, IdentifyController};
use capstan_nvme_proto::log::{
    DiscoveryLog, DiscoverySubsystemType, LogPageId, RdmaProviderType, SupportedLogPages,
};
use capstan_nvme_proto::nqn::{DISCOVERY_NQN, Nqn};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;

use crate::bounds::{DISCOVERY_CONTROLLERS_MAX, DISCOVERY_KATO_MS};
use crate::testing::{Association, Bench, PORT, address, host, nqn, subnqn, subsystem_config};
use crate::{DisconnectReason, HostPolicy, PortConfig, PortId, SubsystemConfig, TargetConfig};

fn discover(bench: &mut Bench, number: u8) -> Association {
    let association = bench.associate(host(number), Nqn::discovery(), 0).unwrap();
    bench.enable(&association);
    association
}

fn read_page(bench: &mut Bench, association: &Association, offset: u64, length: u64) -> Vec<u8> {
    let get = GetLogPage {
        nsid: 0,
        offset,
        ..GetLogPage::new(LogPageId::DISCOVERY, length)
    };
    let (cqe, data) = bench.admin(association, &AdminCommand::GetLogPage(get));
    assert_eq!(cqe.status(), Status::SUCCESS);
    data
}

/// Subsystem, address and port of each record, without the discovery service itself.
fn records(bench: &mut Bench, association: &Association) -> Vec<(String, String)> {
    let page = read_page(bench, association, 0, 16 * 1024);
    let log = DiscoveryLog::parse(&page).unwrap();
    assert!(log.is_complete());
    log.entries
        .iter()
        .filter(|entry| entry.subtype == DiscoverySubsystemType::NVM)
        .map(|entry| {
            let address = alloc::format!(
                "{}:{}",
                entry.transport_address(),
                entry.transport_service_id()
            );
            (entry.subsystem_nqn().unwrap().as_str().to_string(), address)
        })
        .collect()
}

#[test]
fn a_host_sees_what_it_may_use_at_addresses_it_can_reach() {
    let mut bench = Bench::new();
    let other = PortConfig {
        id: PortId(2),
        address: address("[fd00::7]:4421"),
        rdma: Some(RdmaProviderType::ROCE_V2),
        tcp: false,
        tcp_port: None,
    };
    bench.target.add_port(other).unwrap();
    let open = SubsystemConfig {
        nqn: nqn("nqn.2024-01.org.example:open"),
        hosts: HostPolicy::Any,
        ports: [PORT, PortId(2)].into(),
        ..subsystem_config()
    };
    bench.target.add_subsystem(open).unwrap();

    let volume = (subnqn().as_str().into(), "10.0.0.5:4420".into());
    let open = "nqn.2024-01.org.example:open";
    let open_1 = (open.into(), "10.0.0.5:4420".into());
    let open_2 = (open.into(), "fd00::7:4421".into());
    let known = discover(&mut bench, 1);
    let stranger = discover(&mut bench, 9);
    assert_eq!(
        records(&mut bench, &known),
        [open_1.clone(), open_2.clone(), volume]
    );
    assert_eq!(records(&mut bench, &stranger), [open_1, open_2]);
}

/// Where RDMA has a port for itself, NVMe/TCP has another one.
#[test]
fn each_transport_of_a_listener_is_told_with_its_port() {
    let mut bench = Bench::new();
    let rdma = Some(RdmaProviderType::IWARP);
    bench.target.set_port_transports(PORT, rdma, true).unwrap();
    let known = discover(&mut bench, 1);
    let at = |bench: &mut Bench| {
        let records = records(bench, &known).into_iter();
        records.map(|(_, address)| address).collect::<Vec<_>>()
    };
    assert_eq!(at(&mut bench), ["10.0.0.5:4420", "10.0.0.5:4420"]);
    bench.target.set_tcp_port(PORT, 4421).unwrap();
    assert_eq!(at(&mut bench), ["10.0.0.5:4420", "10.0.0.5:4421"]);
}

#[test]
fn records_carry_what_a_host_needs_to_connect() {
    let mut bench = Bench::new();
    let association = discover(&mut bench, 1);
    let page = read_page(&mut bench, &association, 0, 3 * 1024);
    let log = DiscoveryLog::parse(&page).unwrap();
    let [current, volume] = log.entries else {
        panic!("{} entries", log.entries.len());
    };
    assert_eq!(current.subtype, DiscoverySubsystemType::CURRENT);
    assert_eq!(current.subsystem_nqn().unwrap().as_str(), DISCOVERY_NQN);
    assert_eq!((volume.portid.get(), volume.cntlid.get()), (1, 0xFFFF));
    assert_eq!(volume.asqsz.get(), 32);
    let tsas = volume.rdma_tsas().unwrap();
    assert_eq!(tsas.prtype, RdmaProviderType::IWARP);
    assert!(volume.treq.disable_sq_flow_control_supported());
}

#[test]
fn the_page_may_be_read_in_pieces() {
    let mut bench = Bench::new();
    let association = discover(&mut bench, 1);
    let whole = read_page(&mut bench, &association, 0, 4096);
    let pieces: Vec<u8> = [(0, 1000), (1000, 24), (1024, 2000), (3024, 48)]
        .into_iter()
        .flat_map(|(offset, length)| read_page(&mut bench, &association, offset, length))
        .collect();
    assert_eq!(pieces, whole[..3072]);
    assert!(whole[3072..].iter().all(|byte| *byte == 0));
    let beyond = AdminCommand::GetLogPage(GetLogPage {
        nsid: 0,
        offset: 3076,
        ..GetLogPage::new(LogPageId::DISCOVERY, 4)
    });
    let (cqe, _) = bench.admin(&association, &beyond);
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
    let large = read_page(&mut bench, &association, 0, 1 << 20);
    assert_eq!(large, whole, "no more than there is");
}

#[test]
fn a_change_moves_genctr_and_wakes_the_hosts_it_concerns() {
    let mut bench = Bench::new();
    let associations = [discover(&mut bench, 1), discover(&mut bench, 9)];
    for (cid, association) in (1..).zip(&associations) {
        let wanted = AsyncEventConfiguration::DISCOVERY_LOG_CHANGE.bits();
        let set = SetFeatures::new(FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION, wanted);
        let (cqe, _) = bench.admin(association, &AdminCommand::SetFeatures(set));
        assert!(cqe.status().is_success());
        let request = AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY);
        assert!(bench.send_admin(association.conn, &request).is_none());
    }
    let genctr = |bench: &mut Bench| {
        let page = read_page(bench, &associations[0], 0, 1024);
        DiscoveryLog::parse(&page).unwrap().header.genctr.get()
    };
    let before = genctr(&mut bench);
    let private = SubsystemConfig {
        nqn: nqn("nqn.2024-01.org.example:private"),
        ..subsystem_config()
    };
    bench.target.add_subsystem(private).unwrap();
    bench.poll();
    let [(conn, cqe)] = bench.completions[..] else {
        panic!("{:?}", bench.completions);
    };
    assert_eq!(conn, associations[0].conn);
    assert_eq!(
        AsyncEvent::decode(cqe.dw0.get()),
        AsyncEvent::DISCOVERY_LOG_CHANGE
    );
    assert!(genctr(&mut bench) > before);
}

#[test]
fn a_discovery_controller_is_no_io_controller() {
    let mut bench = Bench::new();
    let association = discover(&mut bench, 1);
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let (_, data) = bench.admin(&association, &identify);
    let data = IdentifyController::from_data(&data).unwrap();
    assert_eq!(data.cntrltype, ControllerType::DISCOVERY);
    assert_eq!(data.subsystem_nqn().unwrap().as_str(), DISCOVERY_NQN);
    assert_eq!(
        AsyncEventConfiguration::from_bits_retain(data.oaes.get()),
        AsyncEventConfiguration::DISCOVERY_LOG_CHANGE
    );
    let list = AdminCommand::Identify(Identify::new(Cns::ACTIVE_NAMESPACES, 0));
    let (cqe, _) = bench.admin(&association, &list);
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());

    let get = |lid| {
        AdminCommand::GetLogPage(GetLogPage {
            nsid: 0,
            rae: true,
            ..GetLogPage::new(lid, 1024)
        })
    };
    let (cqe, _) = bench.admin(&association, &get(LogPageId::HEALTH));
    assert_eq!(cqe.status(), Status::INVALID_LOG_PAGE.dnr().more());
    let (_, data) = bench.admin(&association, &get(LogPageId::SUPPORTED_LOG_PAGES));
    let pages = SupportedLogPages::from_data(&data).unwrap();
    assert!(pages.supports(LogPageId::DISCOVERY) && !pages.supports(LogPageId::HEALTH));
}

#[test]
fn discovery_controllers_are_few_and_take_no_place_of_others() {
    let mut bench = Bench::with(TargetConfig {
        controllers: 2,
        ..TargetConfig::default()
    });
    bench.peer = address("10.0.0.1:1000");
    let alone = discover(&mut bench, 1);
    bench.peer = address("10.0.0.2:1000");
    let of_one_address: Vec<_> = (1..DISCOVERY_CONTROLLERS_MAX)
        .map(|_| discover(&mut bench, 9))
        .collect();
    assert!(bench.disconnects.is_empty());
    // A new one is let in, and those of the address that has most make room, the oldest first.
    for last in 3..13 {
        bench.peer = address(&alloc::format!("10.0.0.{last}:1000"));
        discover(&mut bench, 2);
    }
    let controllers = DISCOVERY_CONTROLLERS_MAX;
    let expected: Vec<_> = of_one_address[..10]
        .iter()
        .map(|association| (association.conn, DisconnectReason::MadeRoom { controllers }))
        .collect();
    assert_eq!(bench.disconnects, expected);
    bench.close();
    // It is still there, and as many hosts as there may be come in as before.
    assert!(!records(&mut bench, &alone).is_empty());
    bench.ready();
    let last = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&last);
    let one_more = bench.associate(host(2), subnqn(), 0).unwrap_err();
    assert_eq!(one_more.status(), Status::CONNECT_CONTROLLER_BUSY);
}

#[test]
fn a_discovery_controller_of_which_nothing_is_heard_goes_after_two_minutes() {
    for asked_ms in [0, DISCOVERY_KATO_MS, u32::MAX] {
        let mut bench = Bench::new();
        let association = bench
            .associate(host(1), Nqn::discovery(), asked_ms)
            .unwrap();
        bench.wait_us(u64::from(DISCOVERY_KATO_MS) * 1000 - 1);
        assert!(bench.disconnects.is_empty(), "{asked_ms}");
        bench.wait_us(1);
        let kato_ms = DISCOVERY_KATO_MS;
        let expired = DisconnectReason::KeepAliveExpired { kato_ms };
        assert_eq!(bench.disconnects, [(association.conn, expired)]);
    }
}

#[test]
fn a_discovery_controller_gets_no_longer_time_by_set_features() {
    for asked_ms in [0, DISCOVERY_KATO_MS + 1, u32::MAX] {
        let mut bench = Bench::new();
        let association = bench.associate(host(1), Nqn::discovery(), 10_000).unwrap();
        bench.enable(&association);
        let set = SetFeatures::new(FeatureId::KEEP_ALIVE_TIMER, asked_ms);
        let set = AdminCommand::SetFeatures(set);
        assert!(bench.admin(&association, &set).0.status().is_success());
        // The first of these times had traffic.
        bench.wait_us(u64::from(DISCOVERY_KATO_MS) * 1000);
        bench.wait_us(u64::from(DISCOVERY_KATO_MS) * 1000);
        let kato_ms = DISCOVERY_KATO_MS;
        let expired = DisconnectReason::KeepAliveExpired { kato_ms };
        assert_eq!(bench.disconnects, [(association.conn, expired)]);
    }
}
