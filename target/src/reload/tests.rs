//! What a reload does, and what it refuses.

use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::path::Path;

use capstan_config::{Config, Namespace, Nqn};

use super::{Difference, difference};

const HEAD: &str = "[[listener]]\naddress = \"127.0.0.1\"\n";

fn config(rest: &str) -> Config {
    Config::from_toml(&format!("{HEAD}{rest}")).unwrap()
}

fn subsystem(name: &str, rest: &str) -> String {
    format!("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:{name}\"\n{rest}\n")
}

fn ram(nsid: u32, size: &str) -> String {
    format!("[[subsystem.namespace]]\nnsid = {nsid}\nram = \"{size}\"\n")
}

const ANY: &str = "allow_any_host = true";

#[test]
fn the_difference_is_what_has_changed() {
    let before = config(&[subsystem("a", ANY), ram(1, "1MiB"), ram(2, "1MiB")].concat());
    assert_eq!(difference(&before, &before).unwrap(), Difference::default());
    let hosts = "allowed_hosts = [\"nqn.2026-11.org.example:host\"]";
    let after = [
        subsystem("a", hosts),
        ram(1, "2MiB"),
        ram(3, "1MiB"),
        subsystem("b", ANY),
        ram(1, "1MiB"),
    ];
    let found = difference(&before, &config(&after.concat())).unwrap();
    let nsids = |namespaces: &[(Nqn, Namespace)]| -> Vec<_> {
        let names = namespaces.iter();
        names
            .map(|(nqn, n)| (nqn.as_str().chars().last(), n.nsid))
            .collect()
    };
    let removed: Vec<u32> = found.namespaces_removed.iter().map(|(_, n)| *n).collect();
    assert_eq!(removed, [1, 2]);
    assert_eq!(
        nsids(&found.namespaces_added),
        [(Some('a'), 1), (Some('a'), 3), (Some('b'), 1)]
    );
    assert_eq!(
        found.to_string(),
        "subsystems added: 1, subsystems with other hosts: 1, namespaces added: 3, \
         namespaces removed: 2"
    );
}

#[test]
fn groups_states_and_protection_change_in_use() {
    let ana = |state: &str| format!("[[subsystem.ana]]\ngroup = 2\nstate = \"{state}\"\n");
    let with = |keys: &str, ana: &str| {
        let namespace = [&ram(1, "1MiB"), keys, "\n"].concat();
        config(&[&subsystem("a", ANY), &*namespace, ana].concat())
    };
    let before = with("", "");
    for (after, words, lines) in [
        (
            with("ana_group = 2", ""),
            "namespaces changed in use: 1",
            vec!["namespace 1 of nqn.2026-11.org.example:a: ANA group 2, and no longer 1"],
        ),
        (
            with("ana_group = 3\nread_only = true", ""),
            "namespaces changed in use: 1",
            vec![
                "namespace 1 of nqn.2026-11.org.example:a: ANA group 3, and no longer 1; hosts can \
                 only read it from now on",
            ],
        ),
        (
            with("", &ana("non-optimized")),
            "subsystems with other ANA states: 1",
            vec![
                "ANA group 2 of nqn.2026-11.org.example:a through 127.0.0.1:4420: non-optimized \
                 from now on",
            ],
        ),
        // As it is without it.
        (
            with("ana_group = 1", &ana("optimized")),
            "nothing has changed",
            vec![],
        ),
    ] {
        let found = difference(&before, &after).unwrap();
        assert_eq!(found.to_string(), words);
        let told = found.of_namespaces();
        let told: Vec<_> = told.chain(found.of_groups(&after.listeners)).collect();
        assert_eq!(told, lines);
        // And back.
        let back = difference(&after, &before).unwrap();
        assert_eq!(back.to_string(), words);
        let told = back.of_namespaces().chain(back.of_groups(&after.listeners));
        assert_eq!(told.count(), lines.len());
    }
}

#[test]
fn the_only_namespace_goes_and_comes_back() {
    let full = config(&[subsystem("a", ANY), ram(1, "1MiB")].concat());
    let empty = config(&subsystem("a", ANY));
    for (before, after, words) in [
        (&full, &empty, "namespaces removed: 1"),
        (&empty, &full, "namespaces added: 1"),
    ] {
        let found = difference(before, after).unwrap();
        assert_eq!(found.to_string(), words);
    }
}

#[test]
fn what_needs_more_than_a_reload_is_refused_by_name() {
    let before = config(&[subsystem("a", ANY), ram(1, "1MiB")].concat());
    for (after, why) in [
        (
            [
                "[target]\nreactors = 1\n".to_owned(),
                subsystem("a", ANY),
                ram(1, "1MiB"),
            ]
            .concat(),
            "a change of target.reactors from \"auto\" to 1 needs a restart; nothing was changed",
        ),
        (
            [
                subsystem("a", &format!("{ANY}\nserial = \"S\"")),
                ram(1, "1MiB"),
            ]
            .concat(),
            " to S needs a restart",
        ),
        (
            [
                subsystem("a", ANY),
                ram(1, "1MiB"),
                "lba = 512\nread_only = true\n".to_owned(),
            ]
            .concat(),
            "namespace 1 of nqn.2026-11.org.example:a has changed (lba from what is left out to 512): take \
             it out of the file",
        ),
        // All of them at once, with their values.
        (
            [
                "[target]\nmemory_budget = \"512MiB\"\nspin = \"1ms\"\n".to_owned(),
                "[queues]\ndepth_max = 64\n".to_owned(),
                subsystem("a", &format!("{ANY}\nend_older_association = true")),
                ram(1, "1MiB"),
                "lba = 512\n".to_owned(),
            ]
            .concat(),
            "a change of target.memory_budget from 256 MiB to 512 MiB needs a restart; a change of \
             target.spin from 50µs to 1ms needs a restart; \
             a change of queues.depth_max from 128 to 64 needs a restart; a change of end_older_association of nqn.2026-11.org.example:a from false to true \
             needs a restart; namespace 1 of nqn.2026-11.org.example:a has changed (lba from what is left \
             out to 512): take it out of the file, reload, put it back in, and reload again; nothing was \
             changed",
        ),
    ] {
        let error = difference(&before, &config(&after))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// The keys of the tables in `docs/configuration.md` with their last column.
fn changes_in_the_reference() -> BTreeMap<(String, String), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = fs::read_to_string(path).unwrap();
    let mut table = "";
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## `") {
            table = name.trim_end_matches('`');
        } else if let Some((key, _)) = line.strip_prefix("| `").and_then(|r| r.split_once('`')) {
            let change = line.trim_end_matches(" |").rsplit(" | ").next().unwrap();
            rows.insert((table.to_owned(), key.to_owned()), change.to_owned());
        }
    }
    rows
}

const BODIES: [(&str, &str); 10] = [
    ("[target]", ""),
    ("[queues]", ""),
    (
        "[[listener]]",
        "address = \"127.0.0.1\"\n[[listener]]\naddress = \"127.0.0.2\"",
    ),
    ("[[subsystem]]", "nqn = \"a\"\nallow_any_host = true"),
    ("[[subsystem.namespace]]", "nsid = 1\npath = \"/srv/a\""),
    ("[[subsystem.ana]]", "group = 1\nstate = \"change\""),
    ("[nfs]", "addresses = [\"127.0.0.1\"]"),
    ("[[export]]", "path = \"/srv/b\""),
    ("[[export.clients]]", "network = \"192.0.2.1\""),
    ("[metrics]", ""),
];

/// The body of a table, and what it is changed to; of a key that is added, that.
const CHANGES: [(&str, &str, &str, &str); 65] = [
    ("[metrics]", "listen", "", "listen = \"127.0.0.1:9899\""),
    ("[metrics]", "sample", "", "sample = 1"),
    (
        "[[subsystem.ana]]",
        "group",
        "group = 1\nstate = \"change\"",
        "group = 2\nstate = \"change\"",
    ),
    (
        "[[subsystem.ana]]",
        "state",
        "group = 1\nstate = \"change\"",
        "group = 1\nstate = \"inaccessible\"",
    ),
    (
        "[[subsystem.ana]]",
        "listeners",
        "group = 1\nstate = \"change\"",
        "group = 1\nstate = \"change\"\nlisteners = [\"127.0.0.2:4420\"]",
    ),
    ("[[subsystem.namespace]]", "ana_group", "", "ana_group = 2"),
    ("[target]", "reactors", "", "reactors = 1"),
    ("[target]", "memory_budget", "", "memory_budget = \"64MiB\""),
    ("[target]", "spin", "", "spin = \"0s\""),
    ("[target]", "log", "", "log = \"debug\""),
    ("[target]", "hosts_max", "", "hosts_max = 2"),
    (
        "[target]",
        "shared_receive_queue",
        "",
        "shared_receive_queue = true",
    ),
    ("[target]", "serial_prefix", "", "serial_prefix = \"RACK\""),
    ("[target]", "model", "", "model = \"Other\""),
    ("[target]", "vendor_id", "", "vendor_id = 1"),
    (
        "[target]",
        "subsystem_vendor_id",
        "",
        "subsystem_vendor_id = 1",
    ),
    ("[queues]", "io_queues_max", "", "io_queues_max = 1"),
    ("[queues]", "depth_max", "", "depth_max = 32"),
    (
        "[[listener]]",
        "address",
        "address = \"127.0.0.1\"",
        "address = \"::1\"",
    ),
    ("[[listener]]", "port", "", "port = 1"),
    ("[[listener]]", "provider", "", "provider = \"iwarp\""),
    ("[[listener]]", "transports", "", "transports = [\"tcp\"]"),
    (
        "[[subsystem]]",
        "nqn",
        "nqn = \"a\"\nallow_any_host = true",
        "nqn = \"b\"\nallow_any_host = true",
    ),
    ("[[subsystem]]", "serial", "", "serial = \"S\""),
    ("[[subsystem]]", "model", "", "model = \"M\""),
    (
        "[[subsystem]]",
        "allowed_hosts",
        "nqn = \"a\"\nallowed_hosts = [\"b\"]",
        "nqn = \"a\"\nallowed_hosts = [\"c\"]",
    ),
    (
        "[[subsystem]]",
        "allow_any_host",
        "nqn = \"a\"\nallowed_hosts = [\"b\"]",
        "nqn = \"a\"\nallow_any_host = true",
    ),
    (
        "[[subsystem]]",
        "end_older_association",
        "",
        "end_older_association = true",
    ),
    (
        "[[subsystem.namespace]]",
        "nsid",
        "nsid = 1\npath = \"/srv/a\"",
        "nsid = 2\npath = \"/srv/a\"",
    ),
    (
        "[[subsystem.namespace]]",
        "path",
        "path = \"/srv/a\"",
        "path = \"/srv/b\"",
    ),
    (
        "[[subsystem.namespace]]",
        "ram",
        "ram = \"1MiB\"",
        "ram = \"2MiB\"",
    ),
    (
        "[[subsystem.namespace]]",
        "null",
        "null = \"1MiB\"",
        "null = \"2MiB\"",
    ),
    ("[[subsystem.namespace]]", "lba", "", "lba = 512"),
    (
        "[[subsystem.namespace]]",
        "uuid",
        "",
        "uuid = \"2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\"",
    ),
    (
        "[[subsystem.namespace]]",
        "nguid",
        "",
        "nguid = \"2d9a6f349a434d0b8a648f9b1d0c7e55\"",
    ),
    (
        "[[subsystem.namespace]]",
        "read_only",
        "",
        "read_only = true",
    ),
    ("[[subsystem.namespace]]", "direct", "", "direct = false"),
    (
        "[nfs]",
        "addresses",
        "addresses = [\"127.0.0.1\"]",
        "addresses = [\"::1\"]",
    ),
    ("[nfs]", "port", "", "port = 1"),
    ("[nfs]", "rdma_port", "", "rdma_port = 1"),
    ("[nfs]", "transports", "", "transports = [\"tcp\"]"),
    ("[nfs]", "provider", "", "provider = \"iwarp\""),
    ("[nfs]", "lease_time", "", "lease_time = \"30s\""),
    ("[nfs]", "grace_time", "", "grace_time = \"2m\""),
    ("[nfs]", "threads", "", "threads = 5"),
    ("[nfs]", "memory", "", "memory = \"1GiB\""),
    (
        "[[export]]",
        "path",
        "path = \"/srv/b\"\npseudo = \"/b\"",
        "path = \"/srv/c\"\npseudo = \"/b\"",
    ),
    ("[[export]]", "pseudo", "", "pseudo = \"/other\""),
    ("[[export]]", "access", "", "access = \"read-write\""),
    ("[[export]]", "squash", "", "squash = \"all\""),
    ("[[export]]", "anonuid", "", "anonuid = 1"),
    ("[[export]]", "anongid", "", "anongid = 1"),
    ("[[export]]", "secure_ports", "", "secure_ports = true"),
    ("[[export]]", "names", "", "names = \"raw\""),
    ("[[export]]", "crossmnt", "", "crossmnt = true"),
    ("[[export]]", "direct", "", "direct = true"),
    ("[[export]]", "mount_point", "", "mount_point = true"),
    ("[[export]]", "id", "", "id = 1"),
    (
        "[[export]]",
        "file_system",
        "",
        "file_system = \"2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\"",
    ),
    (
        "[[export.clients]]",
        "network",
        "network = \"192.0.2.1\"",
        "network = \"192.0.2.2\"",
    ),
    (
        "[[export.clients]]",
        "access",
        "",
        "access = \"read-write\"",
    ),
    ("[[export.clients]]", "squash", "", "squash = \"all\""),
    ("[[export.clients]]", "anonuid", "", "anonuid = 1"),
    ("[[export.clients]]", "anongid", "", "anongid = 1"),
    (
        "[[export.clients]]",
        "secure_ports",
        "",
        "secure_ports = true",
    ),
];

/// The configuration of `BODIES` with another one for `table`.
fn with_body(table: &str, changed: &str) -> Config {
    let parts = BODIES.map(|(of, body)| {
        let body = if of == table { changed } else { body };
        format!("{of}\n{body}\n")
    });
    Config::from_toml(&parts.concat()).unwrap()
}

#[test]
fn the_reference_says_what_a_change_of_each_key_needs() {
    let mut found = BTreeMap::new();
    for (table, key, before, after) in CHANGES {
        let [before, after] = match before {
            "" => {
                let body = BODIES.into_iter().find(|(of, _)| *of == table).unwrap().1;
                [body.to_owned(), format!("{body}\n{after}")]
            }
            before => [before, after].map(str::to_owned),
        };
        let [before, after] = [before, after].map(|body| with_body(table, &body));
        let change = match difference(&before, &after).map_err(|error| error.to_string()) {
            Ok(found) => {
                assert_ne!(found, Difference::default(), "{key}");
                "reload"
            }
            Err(why) if why.contains("needs a restart") => {
                let halves = why.split_once(" from ").and_then(|(_, rest)| {
                    rest.split_once(" needs a restart")?.0.split_once(" to ")
                });
                let (served, wanted) = halves.unwrap_or_else(|| panic!("{key}: {why}"));
                assert_ne!(served, wanted, "{key}: {why}");
                "restart"
            }
            Err(why) if why.contains("take it out of the file") => "two reloads",
            Err(why) => panic!("{key}: {why}"),
        };
        found.insert((table.to_owned(), key.to_owned()), change.to_owned());
    }
    assert_eq!(found, changes_in_the_reference());
}

#[test]
fn exports_that_answer_again_or_no_more_are_counted() {
    let served = Config::from_toml(
        "[nfs]\naddresses = [\"127.0.0.1\"]\n[[export]]\npath = \"/a\"\nclients = [\"127.0.0.1\"]\n",
    )
    .unwrap();
    let mut away = served.clone();
    let nfs = away.nfs.as_mut().unwrap();
    nfs.absent = mem::take(&mut nfs.exports);
    let count = super::exports::absent_and_served;
    assert_eq!((count(&away, &served), count(&served, &away)), (1, 0));
    assert_eq!((count(&away, &away), count(&served, &served)), (0, 0));
    // Which is no change of the configuration.
    assert_eq!(difference(&away, &served).unwrap(), Difference::default());
}
