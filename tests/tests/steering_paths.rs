//! What the control socket changes of namespaces while hosts use them: whether they may be written,
//! and their ANA groups and states.

use capstan_control::answer::{AnaGroup, Status, Subsystem};
use capstan_control::{AnaPlace, Client, Kind, Request, SetAna, SetNamespace};
use capstan_nvme_proto::command::{IoCommand, LbaRange, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status as Answer;
use capstan_tests::program::own_address;
use capstan_tests::steered_volume::{SteeredVolume, change, refused, said};
use capstan_tests::target::SUBNQN;
use capstan_tests::wire_host::{Data, Queue, WireHost};
use serde_json::Value;

const LBA_BYTES: usize = 4096;

fn write(host: &mut WireHost) -> Answer {
    let command = IoCommand::Write(Write::new(1, LbaRange { slba: 0, nlb: 1 }));
    let sqe = command.encode(0, Sgl::EMPTY);
    let (cqe, _) = host.run(Queue::Io, sqe, Data::InCapsule(&[7; LBA_BYTES]));
    cqe.status().code()
}

fn set(read_only: Option<bool>, ana_group: Option<u32>) -> Request {
    Request::NamespaceSet(SetNamespace {
        subsystem: SUBNQN.to_owned(),
        nsid: 1,
        read_only,
        ana_group,
    })
}

#[test]
fn a_namespace_is_made_read_only_and_writable_again_under_a_host() {
    let target = SteeredVolume::start();
    let mut host = WireHost::connect(target.at, 1);
    assert_eq!(write(&mut host), Answer::SUCCESS);
    let mut client = target.client();
    let done = change(&mut client, &set(Some(true), None));
    assert!(done.changes.contains("hosts can only read it"), "{done:?}");
    assert_eq!(done.unsaved, 1);
    assert_eq!(write(&mut host), Answer::NAMESPACE_IS_WRITE_PROTECTED);
    let twice = refused(&mut client, &set(Some(true), None));
    assert_eq!(twice.data.kind, Some(Kind::Exists), "{twice}");
    let cli = target.run(&["namespace", "set", SUBNQN, "1", "--read-only", "false"]);
    assert!(
        cli.status.success() && said(&cli).contains("hosts can write it"),
        "{}",
        said(&cli)
    );
    assert_eq!(write(&mut host), Answer::SUCCESS);
    // It is as the file says.
    let status: Status = client.ask(&Request::Status {}).expect("a status");
    assert!(status.config.unsaved.is_empty(), "{:?}", status.config);
    change(&mut client, &set(None, Some(9)));
    let shown: Vec<Subsystem> = client
        .ask(&Request::SubsystemShow { nqn: None })
        .expect("subsystems");
    assert_eq!(shown[0].namespaces[0].ana_group, 9);
    let none = refused(&mut client, &set(None, None));
    assert_eq!(none.data.kind, Some(Kind::WrongParameters), "{none}");
    let high = refused(&mut client, &set(None, Some(129)));
    assert_eq!(
        (high.data.kind, high.data.field.as_deref()),
        (
            Some(Kind::Invalid),
            Some("subsystem[0].namespace[0].ana_group")
        ),
        "{high}"
    );
    let without = target.run(&["namespace", "set", SUBNQN, "1"]);
    assert_eq!(without.status.code(), Some(2), "{}", said(&without));
}

#[test]
fn an_ana_state_is_set_shown_and_taken_back_under_a_host() {
    let target = SteeredVolume::start();
    let mut host = WireHost::connect(target.at, 1);
    let mut client = target.client();
    let at = target.at.to_string();
    let cli = target.run(&["ana", "set", SUBNQN, "1", "inaccessible", "--listener", &at]);
    assert!(
        cli.status.success() && said(&cli).contains("inaccessible from now on"),
        "{}",
        said(&cli)
    );
    let inaccessible = Answer::ASYMMETRIC_ACCESS_INACCESSIBLE;
    assert_eq!(write(&mut host), inaccessible);
    let status = said(&target.run(&["status"]));
    assert!(
        status.contains(&format!("ANA group 1 of {SUBNQN}: hosts can use")),
        "{status}"
    );
    let shown = target.run(&["ana", "show", "-o", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(
        shown,
        serde_json::json!([{
            "subsystem": SUBNQN, "group": 1, "namespaces": [1],
            "paths": [{ "listener": at, "state": "inaccessible" }],
        }])
    );
    let text = said(&target.run(&["ana", "show", SUBNQN]));
    assert!(
        text.contains("inaccessible") && text.contains(&at),
        "{text}"
    );
    let ana = |group: u32, state: &str, listeners: &[&str]| {
        Request::AnaSet(SetAna {
            subsystem: SUBNQN.to_owned(),
            group,
            state: state.to_owned(),
            listeners: listeners.iter().map(ToString::to_string).collect(),
        })
    };
    let twice = refused(&mut client, &ana(1, "inaccessible", &[]));
    assert_eq!(twice.data.kind, Some(Kind::Exists), "{twice}");
    let slip = refused(&mut client, &ana(1, "optimised", &[]));
    assert_eq!(slip.data.field.as_deref(), Some("state"), "{slip}");
    let nowhere = refused(&mut client, &ana(1, "change", &["127.0.0.1:1"]));
    assert_eq!(
        (nowhere.data.kind, nowhere.data.field.as_deref()),
        (Some(Kind::NotFound), Some("listeners")),
        "{nowhere}"
    );
    let high = refused(&mut client, &ana(129, "change", &[]));
    assert_eq!(high.data.kind, Some(Kind::Invalid), "{high}");
    change(&mut client, &ana(1, "non-optimized", &[&at]));
    assert_eq!(write(&mut host), Answer::SUCCESS);
    let removed = AnaPlace {
        subsystem: SUBNQN.to_owned(),
        group: 1,
        listeners: Vec::new(),
    };
    let removed = Request::AnaRemove(removed);
    assert_eq!(change(&mut client, &removed).unsaved, 0);
    let again = refused(&mut client, &removed);
    assert_eq!(again.data.kind, Some(Kind::NotFound), "{again}");
    let shown: Vec<AnaGroup> = client
        .ask(&Request::AnaShow { subsystem: None })
        .expect("groups");
    assert_eq!(shown[0].paths[0].state, "optimized");
}

#[test]
fn a_state_is_of_the_listener_that_was_named_and_goes_with_it() {
    let target = SteeredVolume::start();
    let mut client = target.client();
    let at = target.at.to_string();
    let cli = target.run(&[
        "ana",
        "set",
        SUBNQN,
        "1",
        "non-optimized",
        "--listener",
        &at,
    ]);
    assert!(cli.status.success(), "{}", said(&cli));
    let other = own_address();
    let (address, port) = (other.ip().to_string(), other.port().to_string());
    let added = target.run(&["listener", "add", &address, "--port", &port]);
    assert!(added.status.success(), "{}", said(&added));
    assert!(said(&added).contains("listener add"), "{}", said(&added));
    let states = |client: &mut Client| {
        let show = Request::AnaShow { subsystem: None };
        let shown: Vec<AnaGroup> = client.ask(&show).expect("groups");
        let paths = shown.into_iter().flat_map(|group| group.paths);
        let states = paths.map(|path| (path.listener, path.state));
        states.collect::<Vec<_>>()
    };
    let both = [
        (at.clone(), "non-optimized"),
        (other.to_string(), "optimized"),
    ];
    assert_eq!(
        states(&mut client),
        both.map(|(listener, state)| (listener, state.to_owned()))
    );
    let removed = target.run(&["listener", "remove", &at]);
    let text = said(&removed);
    assert!(
        removed.status.success() && text.contains("listener remove"),
        "{text}"
    );
    assert!(!text.contains("ANA group"), "a path that is gone: {text}");
    assert_eq!(
        states(&mut client),
        [(other.to_string(), "optimized".to_owned())]
    );
    let shown = said(&target.run(&["config", "show"]));
    assert!(!shown.contains("subsystem.ana"), "{shown}");
}
