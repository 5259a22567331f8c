//! What a saved configuration of nvmet becomes, and what is told of the rest.

use serde_json::{Value, json};

use super::{IMPORT_BYTES_MAX, ImportError, Imported, nvmet};
use crate::{Access, AnaState, Config, DirectIo};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1";

/// A file as `nvmetcli save` writes it, with what there is no like of here.
const SAVED: &str = include_str!("../../tests/data/nvmet.json");

fn convert(json: &Value) -> Result<Imported, ImportError> {
    nvmet(json.to_string().as_bytes())
}

fn saved() -> Value {
    serde_json::from_str(SAVED).unwrap()
}

/// The saved file with another value at a place.
fn with(place: &str, value: Value) -> Value {
    let mut all = saved();
    *all.pointer_mut(place)
        .unwrap_or_else(|| panic!("{place} is there")) = value;
    all
}

fn config(imported: &Imported) -> Config {
    Config::from_toml(&imported.toml).unwrap()
}

fn notes(imported: &Imported) -> String {
    let lines: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn a_saved_configuration_becomes_ours() {
    let imported = convert(&saved()).unwrap();
    let config = config(&imported);
    let listeners: Vec<_> = config
        .listeners
        .iter()
        .map(|of| {
            (
                of.address.to_string(),
                of.transports.rdma,
                of.transports.tcp,
            )
        })
        .collect();
    assert_eq!(
        listeners,
        [
            ("192.0.2.10:4420".to_owned(), true, true),
            ("[2001:db8::10]:4421".to_owned(), false, true),
        ]
    );
    let [databases, open] = &config.subsystems[..] else {
        panic!("{}", imported.toml)
    };
    assert_eq!(databases.nqn.as_str(), "nqn.2026-11.com.example:databases");
    assert_eq!(
        (&*databases.serial, &*databases.model),
        ("8d1f2c3b4a596877", "Linux")
    );
    assert_eq!(databases.access, Access::Hosts(vec![HOST.parse().unwrap()]));
    let [log, data] = &databases.namespaces[..] else {
        panic!("{}", imported.toml)
    };
    assert_eq!((log.nsid, data.nsid), (1, 3));
    assert_eq!(log.backing.to_string(), "/dev/vg0/log");
    assert_eq!(
        log.uuid.unwrap().to_string(),
        "d592cdf3-5d1c-44e0-8412-3fcf7d99df27"
    );
    assert_eq!(log.nguid, None);
    assert_eq!(data.nguid.unwrap()[..4], [0xEF, 0x90, 0x68, 0x9C]);
    assert_eq!((log.ana_group, data.ana_group), (1, 2));
    assert_eq!(log.direct, DirectIo::WherePossible);
    // The second port has no group 2, and so the kernel has it inaccessible there.
    let states: Vec<_> = databases.ana_states().collect();
    assert_eq!(
        states,
        [
            (0, 2, AnaState::NonOptimized),
            (1, 2, AnaState::Inaccessible)
        ]
    );
    assert_eq!(open.access, Access::AnyHost);
}

#[test]
fn what_is_left_out_is_told_by_its_place() {
    let imported = convert(&saved()).unwrap();
    let told = notes(&imported);
    for (place, words) in [
        (
            "left out: hosts[0].dhchap.key",
            "a host that gives this NQN is believed",
        ),
        (
            "left out: ports[0].param.inline_data_size and 2 more",
            "8 KiB",
        ),
        ("left out: ports[0].referrals[0]", "discovery log"),
        ("left out: ports[3]", "\"loop\""),
        (
            "left out: subsystems[0].attr.version and 1 more",
            "told what holds",
        ),
        (
            "left out: subsystems[0].attr.qid_max",
            "`queues.io_queues_max`",
        ),
        ("left out: subsystems[0].namespaces[1]", "not enabled"),
        (
            "left out: subsystems[0].namespaces[0].resv.enable and 2 more",
            "reservations of every namespace",
        ),
        ("warning: subsystems[1]", "[2001:db8::10]:4421"),
        ("left out: subsystems[2].passthru[0]", "passed through"),
        ("left out: subsystems[3]", "linked to no port"),
    ] {
        let found = imported
            .notes
            .iter()
            .map(ToString::to_string)
            .any(|line| line.starts_with(&format!("{place}: ")) && line.contains(words));
        assert!(found, "{place} {words}\n{told}");
    }
    // What a host and this target know of each other is in no message.
    assert!(!told.contains("DHHC-1"), "{told}");
    // What is as the kernel has it unasked is no news.
    for key in ["pi_enable", "cntlid", "treq", "portid"] {
        assert!(!told.contains(key), "{key}: {told}");
    }
}

#[test]
fn a_mistake_is_told_by_its_place() {
    for (place, value, at, words) in [
        (
            "/subsystems/0/nqn",
            json!("a\nb"),
            "subsystems[0].nqn: ",
            "control",
        ),
        (
            "/subsystems/0/nqn",
            json!("nqn.2014-08.org.nvmexpress.discovery"),
            "subsystems[0].nqn: ",
            "discovery",
        ),
        (
            "/subsystems/0/nqn",
            json!(null),
            "subsystems[0].nqn: ",
            "missing",
        ),
        (
            "/subsystems/1/nqn",
            json!("nqn.2026-11.com.example:databases"),
            "subsystems[1].nqn: ",
            "is that of subsystems[0].nqn",
        ),
        ("/hosts/0/nqn", json!(""), "hosts[0].nqn: ", "empty"),
        (
            "/subsystems/0/allowed_hosts/0",
            json!("x".repeat(300)),
            "subsystems[0].allowed_hosts[0]: ",
            "223",
        ),
        (
            "/ports/0/subsystems/0",
            json!("nqn.2026-11.com.example:other"),
            "ports[0].subsystems[0]: ",
            "expected the NQN of one of the subsystems",
        ),
        (
            "/ports/0/addr/traddr",
            json!("storage.example"),
            "ports[0].addr.traddr: ",
            "not an address",
        ),
        (
            "/ports/0/addr/trsvcid",
            json!("70000"),
            "ports[0].addr.trsvcid: ",
            "65535",
        ),
        (
            "/ports/0/ana_groups/1/grpid",
            json!(129),
            "ports[0].ana_groups[1].grpid: ",
            "1 to 128",
        ),
        (
            "/ports/0/ana_groups/1/ana/state",
            json!("bad"),
            "ports[0].ana_groups[1].ana.state: ",
            "optimized",
        ),
        ("/ports", json!(7), "ports: 7, ", "a list"),
        (
            "/subsystems/0/namespaces/0/device/path",
            json!("disk.img"),
            "subsystems[0].namespaces[0].device.path: ",
            "an absolute path",
        ),
        (
            "/subsystems/0/namespaces/0/device/uuid",
            json!("x"),
            "subsystems[0].namespaces[0].device.uuid: ",
            "expected a UUID",
        ),
        (
            "/subsystems/0/namespaces/2/nsid",
            json!(1),
            "subsystems[0].namespaces[2].nsid: ",
            "each once",
        ),
        (
            "/subsystems/0/namespaces/0/enable",
            json!(3),
            "subsystems[0].namespaces[0].enable: ",
            "0 or 1",
        ),
    ] {
        let error = convert(&with(place, value)).unwrap_err();
        assert!(matches!(error, ImportError::Invalid(_)), "{error}");
        let error = error.to_string();
        let found = error
            .lines()
            .any(|line| line.starts_with(at) && line.contains(words));
        assert!(found, "{at}{words}: {error}");
    }
}

#[test]
fn every_mistake_is_told_at_once() {
    let mut all = with("/subsystems/0/nqn", json!("a\nb"));
    *all.pointer_mut("/ports/0/addr/traddr").unwrap() = json!("x");
    let error = convert(&all).unwrap_err().to_string();
    assert!(error.contains("subsystems[0].nqn") && error.contains("ports[0].addr.traddr"));
}

/// What the kernel lets be and this target does not.
#[test]
fn what_may_be_there_once_is_there_once() {
    let first = saved()
        .pointer("/subsystems/0/namespaces/0/device/path")
        .cloned();
    let imported = convert(&with(
        "/subsystems/1/namespaces/0/device/path",
        first.unwrap(),
    ))
    .unwrap();
    assert!(config(&imported).subsystems[1].namespaces.is_empty());
    assert!(notes(&imported).contains("subsystems[0].namespaces[0].device.path has the same path"));
    let uuid = json!("d592cdf3-5d1c-44e0-8412-3fcf7d99df27");
    let imported = convert(&with("/subsystems/1/namespaces/0/device/uuid", uuid)).unwrap();
    assert_eq!(config(&imported).subsystems[1].namespaces[0].uuid, None);
    assert!(notes(&imported).contains("left out: subsystems[1].namespaces[0].device.uuid: "));
    let imported = convert(&with(
        "/subsystems/1/attr/serial",
        json!("8d1f2c3b4a596877"),
    ))
    .unwrap();
    assert!(notes(&imported).contains("left out: subsystems[1].attr.serial: "));
    config(&imported);
}

#[test]
fn a_port_whose_hosts_have_to_use_tls_is_not_opened_without() {
    let mut all = saved();
    all["ports"][2]["addr"]["tsas"] = json!("tls1.3");
    all["ports"][2]["addr"]["treq"] = json!("required");
    let imported = convert(&all).unwrap();
    assert_eq!(config(&imported).listeners.len(), 1);
    assert!(notes(&imported).contains("left out: ports[2]: its hosts have to use TLS"));
    all["ports"][2]["addr"]["treq"] = json!("not required");
    let imported = convert(&all).unwrap();
    assert_eq!(config(&imported).listeners.len(), 2);
    assert!(notes(&imported).contains("left out: ports[2].addr.tsas: "));
}

#[test]
fn what_older_versions_have_saved_is_taken() {
    let imported = convert(&json!({
        "hosts": [{"nqn": "hostnqn"}],
        "ports": [{
            "addr": {"adrfam": "ipv4", "traddr": "192.0.2.1", "treq": "not specified", "trsvcid": "4420", "trtype": "rdma"},
            "portid": 2, "referrals": [], "subsystems": ["testnqn"]
        }],
        "subsystems": [{
            "allowed_hosts": [], "attr": {"allow_any_host": "1"}, "nqn": "testnqn",
            "namespaces": [{
                "device": {"nguid": "ef90689c-6c46-d44c-89c1-4067801309a8", "path": "/dev/nvme0n1"},
                "enable": 1, "nsid": 1
            }]
        }]
    }))
    .unwrap();
    assert_eq!(imported.notes, []);
    assert_eq!(config(&imported).subsystems[0].ana_states().count(), 0);
}

#[test]
fn what_is_left_decides_whether_there_is_something_to_serve() {
    for empty in [
        json!({}),
        json!({"subsystems": [{"nqn": "a"}], "ports": []}),
    ] {
        let error = convert(&empty).unwrap_err().to_string();
        assert!(
            error.contains("nothing is left to serve: there is no port"),
            "{error}"
        );
    }
    let mut all = saved();
    for port in [0, 1, 2] {
        all["ports"][port]["addr"]["trtype"] = json!("fc");
    }
    let error = convert(&all).unwrap_err().to_string();
    assert!(
        error.contains("left out: ports[0]: its transport (trtype) is \"fc\""),
        "{error}"
    );
}

#[test]
fn what_is_no_saved_configuration_is_said_to_be_none() {
    for (bytes, words) in [
        (&b""[..], "not JSON"),
        (b"[]", "not JSON"),
        (b"\xff", "not JSON"),
        (b"nqn = \"a\"", "line 1 column"),
    ] {
        let error = nvmet(bytes).unwrap_err().to_string();
        assert!(
            error.contains(words) && error.contains("nvmetcli save"),
            "{error}"
        );
    }
    let deep = "[".repeat(100_000);
    assert!(
        nvmet(deep.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("recursion limit")
    );
    let long = vec![b' '; usize::try_from(IMPORT_BYTES_MAX).unwrap() + 1];
    assert!(matches!(nvmet(&long), Err(ImportError::TooLarge)));
}

/// Also as newer versions may write it.
#[test]
fn reservations_are_told_of_where_they_were_off() {
    for (value, is_told) in [(json!("1"), false), (json!(true), false), (json!(0), true)] {
        let mut all = saved();
        let namespace = &mut all["subsystems"][0]["namespaces"][0];
        namespace.as_object_mut().unwrap().remove("resv");
        namespace["resv_enable"] = value.clone();
        let told = notes(&convert(&all).unwrap());
        let note = "left out: subsystems[0].namespaces[0].resv_enable: hosts may have reservations";
        assert_eq!(told.contains(note), is_told, "{value}: {told}");
        assert_eq!(told.contains("resv_enable"), is_told, "{value}: {told}");
    }
}

/// What nothing is known of is not lost in silence.
#[test]
fn keys_that_are_not_known_are_told() {
    let mut all = saved();
    all["ports"][0]["addr"]["trnew\u{1b}"] = json!("1");
    all["subsystems"][0]["namespaces"][0]["device"]["new"] = json!({"a": [1]});
    let told = notes(&convert(&all).unwrap());
    assert!(
        told.contains("left out: ports[0].addr.trnew\\u{1b}: nothing is known"),
        "{told}"
    );
    assert!(
        told.contains("left out: subsystems[0].namespaces[0].device.new: nothing"),
        "{told}"
    );
}
