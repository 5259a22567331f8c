//! A configuration as a file that says all of it, defaults as well.

use std::net::SocketAddr;
use std::time::Duration;

use capstan_exports::ExportSettings;
use capstan_exports::clients::ClientRule;
use capstan_exports::name::NameRule;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, Value};
use uuid::Uuid;

use crate::{
    Access, Backing, Config, DirectIo, ExactSize, LbaSize, Listener, Namespace, Nfs, Reactors,
    Subsystem, Transports,
};

impl Config {
    /// The same, with what is chosen by default written down where it can be: NSIDs, the `id` of
    /// exports and, of a process that may run on `cores_available` cores, the threads of NFS.
    #[must_use]
    pub fn complete(&self, cores_available: usize) -> Self {
        let mut config = self.clone();
        for subsystem in &mut config.subsystems {
            let namespaces = subsystem.namespaces.iter_mut();
            let all = namespaces.chain(&mut subsystem.absent);
            all.for_each(|namespace| namespace.nsid_is_written = true);
        }
        if let Some(nfs) = &mut config.nfs {
            nfs.threads_written = Some(nfs.threads(cores_available));
            let exports = nfs.exports.iter_mut().chain(&mut nfs.absent);
            exports.for_each(|export| export.id = Some(export.handle_id()));
        }
        config
    }

    /// A file that says the same, with every key that has a value.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut document = DocumentMut::new();
        let root = document.as_table_mut();
        root.insert("target", Item::Table(self.target_table()));
        let mut queues = Table::new();
        put(
            &mut queues,
            "io_queues_max",
            i64::from(self.queues.io_queues_max),
        );
        put(&mut queues, "depth_max", i64::from(self.queues.depth_max));
        root.insert("queues", Item::Table(queues));
        put_all(root, "listener", self.listeners.iter().map(listener));
        put_all(
            root,
            "subsystem",
            self.subsystems
                .iter()
                .map(|of| subsystem(of, &self.listeners)),
        );
        if let Some(nfs) = &self.nfs {
            root.insert("nfs", Item::Table(nfs_table(nfs)));
            put_all(
                root,
                "export",
                nfs.exports.iter().chain(&nfs.absent).map(export),
            );
        }
        let mut metrics = Table::new();
        if let Some(listen) = self.metrics.listen {
            put(&mut metrics, "listen", listen.to_string());
        }
        put(&mut metrics, "sample", i64::from(self.metrics.sample));
        root.insert("metrics", Item::Table(metrics));
        document.to_string()
    }

    fn target_table(&self) -> Table {
        let target = &self.target;
        let mut table = Table::new();
        match &target.reactors {
            Reactors::Auto => put(&mut table, "reactors", "auto"),
            Reactors::Count(count) => put(&mut table, "reactors", whole(*count)),
            Reactors::Cores(cores) => {
                let cores: Array = cores.iter().map(|core| whole(*core)).collect();
                put(&mut table, "reactors", cores);
            }
        }
        let memory_budget = ExactSize(target.memory_budget_bytes).to_string();
        put(&mut table, "memory_budget", memory_budget);
        put(&mut table, "spin", time(target.spin));
        put(&mut table, "log", target.log.as_str());
        put(&mut table, "hosts_max", i64::from(target.hosts_max));
        put(
            &mut table,
            "shared_receive_queue",
            target.shared_receive_queue,
        );
        put(&mut table, "serial_prefix", target.serial_prefix.as_str());
        put(&mut table, "model", target.model.as_str());
        put(&mut table, "vendor_id", i64::from(target.vendor_id));
        put(
            &mut table,
            "subsystem_vendor_id",
            i64::from(target.subsystem_vendor_id),
        );
        table
    }
}

/// A key with its value.
pub(crate) fn put(table: &mut Table, key: &str, value: impl Into<Value>) {
    table.insert(key, Item::Value(value.into()));
}

/// Nothing of a list without tables.
pub(crate) fn put_all(within: &mut Table, key: &str, tables: impl Iterator<Item = Table>) {
    let all: ArrayOfTables = tables.collect();
    if !all.is_empty() {
        within.insert(key, Item::ArrayOfTables(all));
    }
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn time(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn transports(table: &mut Table, of: Transports) {
    let named = [(of.rdma, "rdma"), (of.tcp, "tcp")];
    let named = named.iter().filter(|(has, _)| *has).map(|(_, word)| *word);
    put(table, "transports", named.collect::<Array>());
}

fn listener(listener: &Listener) -> Table {
    let mut table = Table::new();
    put(&mut table, "address", listener.address.ip().to_string());
    put(&mut table, "port", i64::from(listener.address.port()));
    put(&mut table, "provider", listener.provider.as_str());
    // Both by default is both as far as the port allows, which no list says.
    if !listener.transports.by_default {
        transports(&mut table, listener.transports);
    }
    table
}

fn subsystem(subsystem: &Subsystem, listeners: &[Listener]) -> Table {
    let mut table = Table::new();
    put(&mut table, "nqn", subsystem.nqn.as_str());
    put(&mut table, "serial", subsystem.serial.as_str());
    put(&mut table, "model", subsystem.model.as_str());
    match &subsystem.access {
        Access::AnyHost => put(&mut table, "allow_any_host", true),
        Access::Hosts(hosts) => {
            let hosts: Array = hosts.iter().map(|host| host.as_str()).collect();
            put(&mut table, "allowed_hosts", hosts);
            put(&mut table, "allow_any_host", false);
        }
    }
    put(
        &mut table,
        "end_older_association",
        subsystem.end_older_association,
    );
    let states = subsystem.ana.iter().map(|((listener, group), state)| {
        let mut table = Table::new();
        put(&mut table, "group", i64::from(*group));
        put(&mut table, "state", state.as_str());
        let at = listeners.get(*listener).map(|of| of.address.to_string());
        put(&mut table, "listeners", at.into_iter().collect::<Array>());
        table
    });
    put_all(&mut table, "ana", states);
    let mut namespaces: Vec<_> = subsystem.configured().collect();
    namespaces.sort_by_key(|of| of.nsid);
    let namespaces = namespaces.into_iter().map(namespace);
    put_all(&mut table, "namespace", namespaces);
    table
}

fn namespace(namespace: &Namespace) -> Table {
    let mut table = Table::new();
    if namespace.nsid_is_written {
        put(&mut table, "nsid", i64::from(namespace.nsid));
    }
    match &namespace.backing {
        Backing::Path(path) => put(&mut table, "path", path.to_string_lossy().as_ref()),
        Backing::Ram { size_bytes } | Backing::Null { size_bytes } => {
            let size = ExactSize(*size_bytes).to_string();
            put(&mut table, namespace.backing.kind(), size);
        }
    }
    put(&mut table, "ana_group", i64::from(namespace.ana_group));
    if let Some(lba) = namespace.lba.map(LbaSize::bytes) {
        put(&mut table, "lba", i64::from(lba));
    }
    if let Some(uuid) = namespace.uuid {
        put(&mut table, "uuid", uuid.to_string());
    }
    if let Some(nguid) = namespace.nguid {
        put(
            &mut table,
            "nguid",
            Uuid::from_bytes(nguid).simple().to_string(),
        );
    }
    put(&mut table, "read_only", namespace.read_only);
    match namespace.direct {
        DirectIo::WherePossible => {}
        DirectIo::Required => put(&mut table, "direct", true),
        DirectIo::Off => put(&mut table, "direct", false),
    }
    table
}

fn nfs_table(nfs: &Nfs) -> Table {
    let mut table = Table::new();
    let (tcp, rdma) = (!nfs.tcp.is_empty(), !nfs.rdma.is_empty());
    let all = if tcp { &nfs.tcp } else { &nfs.rdma };
    let addresses: Array = all.iter().map(|at| at.ip().to_string()).collect();
    put(&mut table, "addresses", addresses);
    let port = |of: &[SocketAddr]| of.first().map(|at| i64::from(at.port()));
    for (key, port) in [("port", port(&nfs.tcp)), ("rdma_port", port(&nfs.rdma))] {
        if let Some(port) = port {
            put(&mut table, key, port);
        }
    }
    transports(&mut table, Transports::named(rdma, tcp));
    put(&mut table, "provider", nfs.provider.as_str());
    if rdma {
        let memory = ExactSize(nfs.memory_bytes).to_string();
        put(&mut table, "memory", memory);
    }
    put(&mut table, "lease_time", time(nfs.lease_time));
    put(&mut table, "grace_time", time(nfs.grace_time));
    if let Some(threads) = nfs.threads_written {
        put(&mut table, "threads", whole(threads));
    }
    table
}

fn export(export: &ExportSettings) -> Table {
    let mut table = Table::new();
    put(&mut table, "path", export.path.to_string_lossy().as_ref());
    put(&mut table, "pseudo", export.client_path.as_str());
    let names = match export.names {
        NameRule::Utf8 => "utf8",
        NameRule::Raw => "raw",
    };
    put(&mut table, "names", names);
    put(&mut table, "crossmnt", export.crossmnt);
    put(&mut table, "direct", export.direct);
    put(&mut table, "mount_point", export.mount_point);
    if let Some(id) = export.id {
        put(&mut table, "id", i64::from(id.0));
    }
    if let Some(id) = export.file_system {
        put(
            &mut table,
            "file_system",
            Uuid::from_bytes(id.0).to_string(),
        );
    }
    put_all(
        &mut table,
        "clients",
        export.clients.rules().iter().map(client),
    );
    table
}

fn client(rule: &ClientRule) -> Table {
    let mut table = Table::new();
    put(&mut table, "network", rule.network.to_string());
    put(&mut table, "access", rule.access.to_string());
    put(&mut table, "squash", rule.squash.to_string());
    put(&mut table, "anonuid", i64::from(rule.anonymous.uid));
    put(&mut table, "anongid", i64::from(rule.anonymous.gid));
    put(&mut table, "secure_ports", rule.secure_ports);
    table
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::schema::TableKind;
    use crate::{Config, QuickExport, Transports};

    fn same(config: &Config, of: &str) {
        let text = config.to_toml();
        let again =
            Config::from_toml(&text).unwrap_or_else(|error| panic!("{of}: {error}\n{text}"));
        assert_eq!(again, *config, "{of}\n{text}");
        let complete = config.complete(3);
        let text = complete.to_toml();
        assert_eq!(Config::from_toml(&text).unwrap(), complete, "{of}\n{text}");
    }

    /// The keys that a complete configuration may be without, and why.
    const LEFT_OUT: [(TableKind, &str, &str); 16] = [
        (TableKind::Metrics, "listen", "by default nowhere"),
        (TableKind::Subsystem, "allowed_hosts", "any host is"),
        (
            TableKind::Listener,
            "transports",
            "by default both as far as the port allows",
        ),
        (TableKind::Namespace, "path", "ram or null"),
        (TableKind::Namespace, "ram", "path or null"),
        (TableKind::Namespace, "null", "path or ram"),
        (TableKind::Namespace, "lba", "of what is not there"),
        (
            TableKind::Namespace,
            "uuid",
            "of memory, or of what is not there",
        ),
        (
            TableKind::Namespace,
            "nguid",
            "of memory, or of what is not there",
        ),
        (TableKind::Namespace, "direct", "by default where possible"),
        (
            TableKind::Export,
            "access",
            "each of its clients has its own",
        ),
        (
            TableKind::Export,
            "squash",
            "each of its clients has its own",
        ),
        (
            TableKind::Export,
            "anonuid",
            "each of its clients has its own",
        ),
        (
            TableKind::Export,
            "anongid",
            "each of its clients has its own",
        ),
        (
            TableKind::Export,
            "secure_ports",
            "each of its clients has its own",
        ),
        (
            TableKind::Export,
            "file_system",
            "by default that of the file system",
        ),
    ];

    #[test]
    fn a_complete_configuration_has_every_key_but_those_that_have_no_value() {
        let least = r#"
            [[listener]]
            address = "::1"
            [[subsystem]]
            nqn = "nqn.2026-11.org.example:a"
            allow_any_host = true
            [[subsystem.namespace]]
            path = "/srv/a"
            [[subsystem.ana]]
            group = 1
            state = "optimized"
            [[export]]
            path = "/srv/e"
            clients = ["192.0.2.0/24"]
        "#;
        let config = Config::from_toml(least).unwrap().complete(3);
        let text = config.to_toml();
        assert_eq!(Config::from_toml(&text).unwrap(), config, "{text}");
        let file: toml::Table = text.parse().unwrap();
        let mut found = vec![(TableKind::Root, file)];
        let mut missing = Vec::new();
        while let Some((kind, table)) = found.pop() {
            missing.extend(
                kind.keys()
                    .iter()
                    .filter(|key| !table.contains_key(**key))
                    .map(|key| (kind, *key)),
            );
            for (key, inner, _) in kind.tables() {
                let one = match table.get(*key) {
                    Some(toml::Value::Array(all)) => all.first(),
                    one => one,
                };
                let one = one.and_then(toml::Value::as_table).expect(key);
                found.push((*inner, one.clone()));
            }
        }
        missing.retain(|(kind, key)| !LEFT_OUT.iter().any(|of| (of.0, of.1) == (*kind, *key)));
        assert!(missing.is_empty(), "{missing:?}\n{text}");
    }

    #[test]
    fn what_every_sample_says_is_said_again() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
        for sample in fs::read_dir(samples).unwrap() {
            let path = sample.unwrap().path();
            same(
                &Config::from_file(&path).unwrap(),
                &path.display().to_string(),
            );
        }
    }

    #[test]
    fn what_options_say_is_said_in_a_file() {
        let quick = QuickExport {
            backing: "ram:1MiB".parse().unwrap(),
            lba: None,
            listen: "127.0.0.1:0".parse().unwrap(),
            nqn: None,
            provider: crate::ProviderChoice::Auto,
            transports: Transports::named(false, true),
            read_only: true,
            allow_any_host: true,
        };
        same(&Config::quick(&quick, "machine").unwrap(), "options");
    }

    #[test]
    fn every_key_is_said_again() {
        let text = r#"
            [target]
            reactors = [0, 2]
            memory_budget = "300MiB"
            spin = "1ms 500us"
            log = "warn"
            hosts_max = 7
            shared_receive_queue = true
            serial_prefix = "P"
            model = "Of all"
            vendor_id = 0x1234
            [queues]
            depth_max = 32
            io_queues_max = 3
            [[listener]]
            address = "::"
            port = 4421
            provider = "iwarp"
            transports = ["rdma"]
            [[subsystem]]
            nqn = "nqn.2026-11.org.example:a"
            serial = "S 1"
            model = "M"
            allowed_hosts = []
            end_older_association = true
            [[subsystem.ana]]
            group = 4
            state = "non-optimized"
            [[subsystem.namespace]]
            ana_group = 4
            nsid = 3
            path = "/srv/a"
            lba = 512
            uuid = "0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1"
            nguid = "0a6d2c9e55f14a378a5c52b6c4a5f7a2"
            read_only = true
            direct = false
            [[subsystem.namespace]]
            ram = "1MiB"
            [nfs]
            addresses = ["192.0.2.1", "::1"]
            port = 0
            transports = ["tcp"]
            lease_time = "20s"
            grace_time = "1m"
            threads = 9
            [[export]]
            path = "/srv/e"
            pseudo = "/e"
            names = "raw"
            crossmnt = true
            mount_point = true
            direct = true
            id = 9
            file_system = "0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a3"
            access = "read-write"
            squash = "all"
            anonuid = 1
            anongid = 2
            secure_ports = true
            clients = ["192.0.2.0/24", { network = "::/0", squash = "none" }]
            [metrics]
            listen = "[::1]:9899"
            sample = 7
        "#;
        same(&Config::from_toml(text).unwrap(), "every key");
    }
}
