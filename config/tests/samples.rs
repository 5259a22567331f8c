//! Every sample configuration is valid, and says what its comments say.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use capstan_config::{
    Access, AnaState, Backing, Config, DirectIo, LbaSize, Nqn, ProviderChoice, Reactors,
    Transports, namespace_uuid,
};
use capstan_exports::ExportSettings;
use capstan_exports::clients::{self, Squash};

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

fn sample(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("samples")
        .join(name);
    Config::from_file(&path).unwrap_or_else(|error| panic!("{name}:\n{error}"))
}

#[test]
fn every_sample_is_valid_and_each_is_named_in_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in &names {
        sample(name);
    }
    assert_eq!(
        names,
        [
            "block-device.toml",
            "exports.toml",
            "image-file.toml",
            "nvme-tcp.toml",
            "ram-benchmark.toml",
            "several-hosts.toml",
            "wildcard-ipv6.toml"
        ]
    );
}

#[test]
fn block_device() {
    let config = sample("block-device.toml");
    assert_eq!(config.target.reactors, Reactors::Count(1));
    assert_eq!(config.target.memory_budget_bytes, 128 << 20);
    let subsystem = &config.subsystems[0];
    assert!(subsystem.access.allows(&nqn(
        "nqn.2014-08.org.nvmexpress:uuid:0A6D2C9E-55F1-4A37-8A5C-52B6C4A5F7A1"
    )));
    assert!(
        !subsystem
            .access
            .allows(&nqn("nqn.2026-11.com.example:stranger"))
    );
    assert_eq!(subsystem.namespaces[0].lba, None);
    assert_eq!(subsystem.namespaces[0].direct, DirectIo::WherePossible);
}

#[test]
fn exports() {
    let nfs = sample("exports.toml").nfs.unwrap();
    assert_eq!(nfs.tcp, ["192.0.2.10:2049".parse().unwrap()]);
    assert_eq!(nfs.rdma, ["192.0.2.10:20049".parse().unwrap()]);
    let [projects, media] = nfs.exports.as_slice() else {
        panic!("two exports")
    };
    let rule = |export: &ExportSettings, client: &str| {
        let peer = format!("{client}:1000").parse().unwrap();
        let rule = export.clients.for_client(peer);
        rule.map(|rule| (rule.access, rule.squash)).ok()
    };
    assert_eq!(projects.client_path, "/srv/projects");
    let written = Some((clients::Access::ReadWrite, Squash::Root));
    assert_eq!(rule(projects, "192.0.2.7"), written);
    assert_eq!(rule(projects, "198.51.100.1"), None);
    assert_eq!(media.client_path, "/media");
    let read = Some((clients::Access::ReadOnly, Squash::All));
    assert_eq!(rule(media, "192.0.2.7"), read);
    assert_eq!(rule(media, "192.0.2.20"), written);
}

#[test]
fn image_file() {
    let config = sample("image-file.toml");
    let subsystem = &config.subsystems[0];
    assert_eq!(
        (subsystem.serial.as_str(), subsystem.model.as_str()),
        ("IMG-0001", "Capstan image")
    );
    assert_eq!(subsystem.access, Access::AnyHost);
    assert_eq!(config.listeners[0].provider, ProviderChoice::Iwarp);
    let [writable, golden] = subsystem.namespaces.as_slice() else {
        panic!("two namespaces")
    };
    assert_eq!(
        (writable.lba, writable.direct),
        (Some(LbaSize::B4096), DirectIo::Required)
    );
    assert!(golden.read_only && !writable.read_only);
    let written = golden.uuid.expect("written down");
    assert_eq!(golden.nguid, Some(written.into_bytes()));
}

#[test]
fn nvme_tcp() {
    let transports = sample("nvme-tcp.toml").listeners[0].transports;
    assert_eq!(transports, Transports::named(false, true));
}

#[test]
fn ram_benchmark() {
    let config = sample("ram-benchmark.toml");
    assert_eq!(config.target.reactors, Reactors::Cores(vec![0, 1]));
    assert_eq!(config.target.spin, Duration::from_micros(200));
    assert_eq!(config.queues.depth_max, 256);
    let backings: Vec<_> = config.subsystems[0]
        .namespaces
        .iter()
        .map(|n| &n.backing)
        .collect();
    assert_eq!(
        backings,
        [
            &Backing::Ram {
                size_bytes: 1 << 30
            },
            &Backing::Null {
                size_bytes: 1 << 40
            }
        ]
    );
}

#[test]
fn several_hosts() {
    let config = sample("several-hosts.toml");
    let [databases, cache] = config.subsystems.as_slice() else {
        panic!("two subsystems")
    };
    assert!(
        cache
            .access
            .allows(&nqn("nqn.2026-11.com.example:host:builder"))
    );
    assert!(
        !databases
            .access
            .allows(&nqn("nqn.2026-11.com.example:host:builder"))
    );
    assert!(databases.serial.starts_with("RACK7-") && databases.serial != cache.serial);
    assert_eq!(databases.model, "Rack 7 storage");
    let listen = "127.0.0.1:9899".parse().unwrap();
    assert_eq!(config.metrics.listen, Some(listen));
    // A user of the sample keeps what is mounted while `capstan doctor` looks.
    assert!(config.subsystems.iter().all(|s| !s.end_older_association));
    let names = config.subsystems.iter().flat_map(|subsystem| {
        let namespaces = subsystem.namespaces.iter();
        namespaces.map(|n| namespace_uuid(&subsystem.nqn, n.nsid))
    });
    let uuids: BTreeSet<_> = names.collect();
    assert_eq!(uuids.len(), 3, "derived UUIDs differ");
    let states: Vec<_> = databases.ana_states().collect();
    assert_eq!(states, [(0, 2, AnaState::NonOptimized)]);
    assert_eq!(databases.namespaces[1].ana_group, 2);
}

#[test]
fn wildcard_ipv6() {
    let addresses: Vec<_> = sample("wildcard-ipv6.toml")
        .listeners
        .iter()
        .map(|l| l.address.to_string())
        .collect();
    assert_eq!(
        addresses,
        ["0.0.0.0:4420", "[::]:4420", "[fd00:0:0:7::10]:4421"]
    );
}
