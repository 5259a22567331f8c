//! Hosts of a target that runs: which may connect, and which connection is meant.

use capstan_control::answer::{Connection, Disconnected};
use capstan_control::{AddNamespace, AddSubsystem, DisconnectWhich, Kind, Request};
use capstan_initiator::Controller;
use capstan_nvme_proto::nqn::Nqn;
use capstan_tests::host::options;
use capstan_tests::steered_volume::{SteeredVolume, change, refused, said};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;

#[test]
fn a_controller_is_meant_by_its_number_where_one_subsystem_has_it() {
    let target = SteeredVolume::start();
    let mut client = target.client();
    let other = "nqn.2026-11.org.example:other".to_owned();
    let add_subsystem = AddSubsystem {
        nqn: other.clone(),
        allow_any_host: true,
        ..AddSubsystem::default()
    };
    change(&mut client, &Request::SubsystemAdd(add_subsystem));
    let add_namespace = AddNamespace {
        subsystem: other.clone(),
        ram: Some("1MiB".to_owned()),
        nsid: Some(5),
        ..AddNamespace::default()
    };
    let added = change(&mut client, &Request::NamespaceAdd(add_namespace));
    assert_eq!(added.nsid, Some(5));
    let first = target.connect();
    let mut to_other = options(target.at, 1);
    to_other.subnqn = Nqn::new(&other).expect("an NQN");
    let second = Controller::connect(to_other).expect("connects");
    let connections: Vec<Connection> = client
        .ask(&Request::ConnectionList {})
        .expect("connections");
    let numbers: Vec<_> = connections.iter().map(|one| one.cntlid).collect();
    assert!(
        matches!(numbers[..], [one, two] if one == two),
        "{numbers:?}"
    );
    let which = |subsystem| {
        Request::ConnectionDisconnect(DisconnectWhich {
            cntlid: Some(numbers[0]),
            subsystem,
            ..Default::default()
        })
    };
    let both = refused(&mut client, &which(None));
    assert_eq!(both.data.kind, Some(Kind::WrongParameters), "{both}");
    assert_eq!(both.data.field.as_deref(), Some("subsystem"), "{both}");
    let ended: Disconnected = client.ask(&which(Some(other))).expect("it ends");
    assert_eq!(ended.ended.len(), 1, "{ended:?}");
    drop((first, second));
}

#[test]
fn any_host_is_let_in_and_kept_out_by_command() {
    let target = SteeredVolume::start();
    let host = || {
        let mut options = options(target.at, 7);
        options.hostnqn = Nqn::new("nqn.2026-11.org.example:stranger").expect("an NQN");
        Controller::connect(options)
    };
    let run = |word: &str| {
        let ran = target.run(&["host", word, SUBNQN, "--any"]);
        assert!(ran.status.success(), "{}", said(&ran));
    };
    assert!(host().is_err());
    run("allow");
    let stranger = host().expect("it is let in");
    run("deny");
    let mut client = target.client();
    wait_until("it is disconnected", || {
        let left: Vec<Connection> = client
            .ask(&Request::ConnectionList {})
            .expect("connections");
        left.is_empty()
    });
    drop(stranger);
}
