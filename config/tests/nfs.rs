//! `[nfs]` and `[[export]]`: what they mean, and what an operator reads when they are wrong.

use std::time::Duration;

use capstan_config::{Config, Nfs, ProviderChoice};
use capstan_exports::clients::{Access, Anonymous, ClientRule, Squash};
use capstan_exports::name::NameRule;
use capstan_exports::{ExportId, FileSystemId};

const NFS: &str = "[nfs]\naddresses = [\"192.0.2.10\"]\n";
const EXPORT: &str = "[[export]]\npath = \"/srv/a\"\nclients = [\"192.0.2.0/24\"]\n";
const HOSTS: &str = "[[listener]]\naddress = \"192.0.2.7\"\n[[subsystem]]\n\
    nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n[[subsystem.namespace]]\nram = 4096\n";

fn nfs(text: &str) -> Nfs {
    let config = Config::from_toml(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    config.nfs.expect("an export")
}

fn error(text: &str) -> String {
    match Config::from_toml(text) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string(),
    }
}

fn export_error(keys: &str) -> String {
    error(&format!("{NFS}[[export]]\n{keys}\n"))
}

fn nfs_error(keys: &str) -> String {
    error(&format!("{NFS}{keys}\n{EXPORT}"))
}

#[test]
fn a_directory_alone_is_served_with_defaults() {
    let config = Config::from_toml(&format!("{NFS}{EXPORT}")).unwrap();
    assert!(config.listeners.is_empty() && config.subsystems.is_empty());
    let nfs = config.nfs.unwrap();
    assert_eq!(nfs.tcp, ["192.0.2.10:2049".parse().unwrap()]);
    assert_eq!(nfs.rdma, ["192.0.2.10:20049".parse().unwrap()]);
    assert_eq!(nfs.provider, ProviderChoice::Auto);
    let both = [nfs.lease_time, nfs.grace_time];
    assert_eq!(both, [Duration::from_secs(90); 2]);
    assert_eq!([1, 4, 64].map(|cores| nfs.threads(cores)), [4, 8, 32]);
    let export = &nfs.exports[0];
    assert_eq!(
        (export.path.to_str(), &*export.client_path),
        (Some("/srv/a"), "/srv/a")
    );
    assert_eq!((export.id, export.file_system), (None, None));
    assert_eq!((export.names, export.crossmnt), (NameRule::Utf8, false));
    assert!(!export.direct);
    assert_eq!(
        export.clients.rules(),
        [ClientRule {
            network: "192.0.2.0/24".parse().unwrap(),
            access: Access::ReadOnly,
            squash: Squash::Root,
            anonymous: Anonymous {
                uid: 65534,
                gid: 65534
            },
            secure_ports: false,
        }]
    );
}

#[test]
fn everything_that_can_be_written_is_taken() {
    let nfs = nfs(
        "[nfs]\naddresses = [\"192.0.2.10\", \"2001:db8::1\"]\nport = 0\nrdma_port = 20050\n\
         transports = [\"tcp\", \"rdma\"]\nprovider = \"iwarp\"\nlease_time = \"10s\"\n\
         grace_time = \"20s\"\nthreads = 3\nmemory = \"1 GiB\"\n\
         [[export]]\npath = \"/srv//b/\"\npseudo = \"/b/\"\n\
         access = \"read-write\"\nsquash = \"all\"\n\
         anonuid = 7\nanongid = 8\nsecure_ports = true\nnames = \"raw\"\ncrossmnt = true\n\
         direct = true\nid = 9\n\
         file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n\
         clients = [\"192.0.2.1\", { network = \"::/0\", access = \"read-only\", squash = \"none\", \
         anonuid = 1, secure_ports = false }]\n",
    );
    assert_eq!(nfs.tcp.len(), 2);
    assert_eq!(nfs.rdma[1], "[2001:db8::1]:20050".parse().unwrap());
    assert_eq!((nfs.provider, nfs.threads(64)), (ProviderChoice::Iwarp, 3));
    assert_eq!(nfs.memory_bytes, 1 << 30);
    let both = [nfs.lease_time, nfs.grace_time];
    assert_eq!(both, [10, 20].map(Duration::from_secs));
    let export = &nfs.exports[0];
    assert_eq!(
        (export.path.to_str(), &*export.client_path),
        (Some("/srv/b"), "/b")
    );
    assert_eq!((export.names, export.crossmnt), (NameRule::Raw, true));
    assert!(export.direct);
    assert_eq!(export.id, Some(ExportId(9)));
    assert_eq!(export.file_system.map(|FileSystemId(id)| id[0]), Some(10));
    let all = ClientRule {
        network: "192.0.2.1".parse().unwrap(),
        access: Access::ReadWrite,
        squash: Squash::All,
        anonymous: Anonymous { uid: 7, gid: 8 },
        secure_ports: true,
    };
    let other = ClientRule {
        network: "::/0".parse().unwrap(),
        access: Access::ReadOnly,
        squash: Squash::None,
        anonymous: Anonymous { uid: 1, gid: 8 },
        secure_ports: false,
    };
    assert_eq!(export.clients.rules(), [all, other]);
}

#[test]
fn a_grace_time_that_is_left_out_is_no_shorter_than_the_lease() {
    let of = |lease: &str| {
        let nfs = nfs(&format!("{NFS}lease_time = \"{lease}\"\n{EXPORT}"));
        nfs.grace_time.as_secs()
    };
    assert_eq!((of("5s"), of("2m")), (90, 120));
}

#[test]
fn addresses_that_are_left_out_are_those_of_the_listeners_each_once() {
    let of = |more: &str| {
        let nfs = nfs(&format!("{EXPORT}{HOSTS}{more}"));
        let tcp = nfs.tcp.iter().map(ToString::to_string);
        tcp.collect::<Vec<_>>()
    };
    let listener = |keys: &str| format!("[[listener]]\naddress = {keys}\n");
    assert_eq!(of(""), ["192.0.2.7:2049"]);
    let more = [listener("\"192.0.2.7\"\nport = 4421"), listener("\"::1\"")].concat();
    assert_eq!(of(&more), ["192.0.2.7:2049", "[::1]:2049"]);
    let every = listener("\"0.0.0.0\"\nport = 4421");
    assert_eq!(of(&every), ["0.0.0.0:2049"]);
    assert_eq!(
        error(EXPORT),
        "nfs.addresses: missing; write `addresses = [\"0.0.0.0\"]` below [nfs], or the addresses of this \
         machine that clients are to reach"
    );
}

#[test]
fn a_listener_beside_exports_needs_no_subsystem_and_one_beside_nothing_does() {
    let listener = "[[listener]]\naddress = \"::1\"\n";
    let config = Config::from_toml(&format!("{EXPORT}{listener}")).unwrap();
    assert_eq!((config.listeners.len(), config.subsystems.len()), (1, 0));
    let (warnings, _) = config.look_at_machine();
    let told = warnings.iter().map(ToString::to_string);
    assert_eq!(
        told.filter(|line| line.starts_with("listener: there is no [[subsystem]]"))
            .count(),
        1
    );
    let said = error(listener);
    assert!(
        said.starts_with("subsystem: missing; write a [[subsystem]]")
            && said.contains("[[export]]"),
        "{said}"
    );
}

#[test]
fn a_path_below_that_of_another_export_says_which_key_is_to_be_changed() {
    let export = |path: &str, pseudo: &str| {
        format!("[[export]]\npath = {path:?}\npseudo = {pseudo:?}\nclients = [\"192.0.2.0/24\"]\n")
    };
    let of = |exports: [String; 2]| error(&format!("{NFS}{}", exports.concat()));
    let said = of([export("/srv/a", "/"), export("/srv/b", "/data")]);
    for words in [
        "line 9: export[1].pseudo: clients come to /data through the export / (line 5: export[0].pseudo), and do not \
         find /srv/b there",
        "give that export a `pseudo` with a name",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let said = of([export("/srv/a", "/a"), export("/srv/b", "/a/b")]);
    assert!(
        said.contains("give it a `pseudo` that is not below /a"),
        "{said}"
    );
    let mounted = [export("/srv/a", "/a"), export("/srv/a/b", "/a/b")].concat();
    Config::from_toml(&format!("{NFS}{mounted}")).unwrap();
}

#[test]
fn clients_as_exports_5_has_them_are_told_as_they_are_written_here() {
    let of = |clients: &str| {
        let export = EXPORT.replace("[\"192.0.2.0/24\"]", clients);
        error(&format!("{NFS}{export}"))
    };
    for (clients, words) in [
        (
            "[\"*(rw)\"]",
            "write { network = \"0.0.0.0/0\", access = \"read-write\" } in its place",
        ),
        (
            "[\"192.0.2.0/24(rw,sync,no_root_squash)\"]",
            "write { network = \"192.0.2.0/24\", access = \"read-write\", squash = \"none\" } in its place",
        ),
        ("192.0.2.0/24", "write clients = [\"192.0.2.0/24\"]"),
        ("[\"host(rw)\"]", "names of machines are not resolved"),
    ] {
        let said = of(clients);
        assert!(said.contains(words), "{clients}: {said}");
    }
}

#[test]
fn what_nfs_cannot_be_set_to_says_what_it_can() {
    for (keys, words) in [
        (
            "port = 70000",
            "line 3: nfs.port: 70000 is not allowed; allowed: 0 to 65535",
        ),
        (
            "threads = 0",
            "line 3: nfs.threads: 0 is not allowed; allowed: 1 to 256",
        ),
        (
            "memory = \"31MiB\"",
            "line 3: nfs.memory: 31 MiB is not allowed; allowed: 32 MiB to 64 GiB",
        ),
        (
            "transports = [\"tcp\"]\nmemory = \"32MiB\"",
            "line 4: nfs.memory: has no effect without NFS over RDMA; leave it out",
        ),
        (
            "lease_time = \"2h\"",
            "line 3: nfs.lease_time: \"2h\" is not allowed; allowed: 1s to 1h with a unit, such as \"90s\"",
        ),
        (
            "lease_time = 90",
            "line 3: nfs.lease_time: invalid type: integer `90`, expected a string with a unit, such as \"90s\"",
        ),
        (
            "lease_time = \"2m\"\ngrace_time = \"90s\"",
            "line 4: nfs.grace_time: \"90s\" is not allowed; allowed: 2m to 1h with a unit, such as \"90s\"",
        ),
        (
            "transports = [\"udp\"]",
            "line 3: nfs.transports: \"udp\" is not allowed; allowed: \"rdma\", \"tcp\" or both",
        ),
        (
            "transports = [\"tcp\"]\nprovider = \"verbs\"\nrdma_port = 1",
            "line 4: nfs.provider: has no effect without NFS over RDMA; leave it out\n\
             line 5: nfs.rdma_port: has no effect without NFS over RDMA, which transports leaves out; leave it out",
        ),
        (
            "rdma_port = 2049",
            "line 3: nfs.rdma_port: 2049 is not allowed; allowed: another port than that of the other transport",
        ),
        (
            "leasetime = \"90s\"",
            "line 3: nfs.leasetime: there is no such key; did you mean `lease_time`?",
        ),
        (
            "[[nfs.export]]",
            "line 3: nfs.export: there is no such key; each directory is an [[export]], not below [nfs]",
        ),
    ] {
        assert_eq!(nfs_error(keys), words);
    }
    for (addresses, words) in [
        (
            "[]",
            "line 2: nfs.addresses: [] is not allowed; allowed: one address at least",
        ),
        (
            "\"::1\"",
            "line 2: nfs.addresses: is a list; write addresses = [\"::1\"]",
        ),
        (
            "[\"192.0.2.1:2049\"]",
            "allowed: an address alone; the ports go to `port = …`",
        ),
        (
            "[\"server\"]",
            "line 2: nfs.addresses: `server` is not an address",
        ),
        (
            "[\"::1\", \"::1\"]",
            "line 2: nfs.addresses: ::1 is already used at line 2: nfs.addresses",
        ),
        (
            "[\"::\", \"::1\"]",
            "::1 and :: at line 2: nfs.addresses overlap",
        ),
    ] {
        let said = error(&format!("[nfs]\naddresses = {addresses}\n{EXPORT}"));
        assert!(said.contains(words), "{addresses}: {said}");
    }
    // A reload takes the last export away.
    assert_eq!(nfs(&format!("{HOSTS}[nfs]\nthreads = 5\n")).exports, []);
    assert_eq!(nfs(NFS).exports, []);
    let said = error(&format!("{HOSTS}{EXPORT}[nfs]\nport = 4420\n"));
    assert_eq!(
        said,
        "nfs: 192.0.2.7:4420 and 192.0.2.7:4420 at line 1: listener[0] overlap; remove the one or the other"
    );
}

#[test]
fn what_an_export_cannot_be_says_what_it_can() {
    let path = "path = \"/srv/a\"";
    let mine = "path = \"/srv/a\"\nclients = [\"192.0.2.1\"]";
    for (keys, words) in [
        (
            path.to_owned(),
            "line 3: export[0].clients: no client may use it; list networks, such as `clients = \
             [\"192.0.2.0/24\"]` (every address is \"0.0.0.0/0\" and \"::/0\")",
        ),
        (
            "clients = [\"::1\"]".to_owned(),
            "line 3: export[0].path: missing; write `path = \"/…\"`, a directory of this machine",
        ),
        (
            "path = \"srv\"\nclients = [\"::1\"]".to_owned(),
            "line 4: export[0].path: \"srv\" is not allowed; allowed: an absolute path; the daemon has no \
             folder to start from",
        ),
        (
            "path = \"/srv/../a\"\nclients = [\"::1\"]".to_owned(),
            "line 4: export[0].path: \"/srv/../a\" is not allowed; allowed: a path without .., as clients see it \
             unless `pseudo` says another one",
        ),
        (
            format!("{mine}\npseudo = \"a\""),
            "line 6: export[0].pseudo: \"a\" is no path of an export: it does not begin with /; write one such \
             as /projects",
        ),
        (
            format!("{mine}\naccess = \"read-wirte\""),
            "line 6: export[0].access: unknown word `read-wirte`, expected `read-only` or `read-write`; did you \
             mean `read-write`?",
        ),
        (
            format!("{mine}\npseudo = \"/a/../b\""),
            "line 6: export[0].pseudo: \"/a/../b\" is not allowed; allowed: a path without . and .., such as /projects",
        ),
        (
            format!("{mine}\nsquash = false"),
            "line 6: export[0].squash: is a word; write `squash = \"root\"` (as it is without it), `squash = \"all\"` \
             or `squash = \"none\"`",
        ),
        (
            format!("{mine}\nno_root_squash = true\ninsecure = true\nfsid = 0"),
            "line 6: export[0].no_root_squash: there is no such key; write `squash = \"none\"`\n\
             line 7: export[0].insecure: there is no such key; write `secure_ports = false`, as it is without it\n\
             line 8: export[0].fsid: there is no such key; the id of a file system is `file_system`, a UUID; the root \
             of version 4 (fsid=0) is there by itself",
        ),
        (
            format!("{mine}\nsquash = \"everyone\""),
            "line 6: export[0].squash: unknown word `everyone`, expected one of `root`, `all`, `none`",
        ),
        (
            format!("{mine}\nanonuid = 4294967295"),
            "line 6: export[0].anonuid: 4294967295 is not allowed; allowed: 0 to 4294967294",
        ),
        (
            format!("{mine}\nid = 4294967296"),
            "line 6: export[0].id: 4294967296 is not allowed; allowed: 0 to 4294967295",
        ),
        (
            format!("{mine}\nfile_system = \"ext4\""),
            "line 6: export[0].file_system: \"ext4\" is not allowed; allowed: a UUID that is not all zeroes \
             (`uuidgen` makes one), which has to stay the same; without this key it is the file system's own",
        ),
        (
            format!("{mine}\npsuedo = \"/a\""),
            "line 6: export[0].psuedo: there is no such key; did you mean `pseudo`?",
        ),
    ] {
        assert_eq!(export_error(&keys), words);
    }
    assert_eq!(
        error(&format!("{NFS}{EXPORT}id = 5\n{EXPORT}id = 5\n")),
        "line 8: export[1].path: /srv/a is already used at line 4: export[0].path; put the networks of both into the \
         `clients` of one, each with what it may, such as { network = \"192.0.2.9\", access = \"read-write\" }; or give \
         one of them a `pseudo`\n\
         line 10: export[1].id: 5 is already used at line 6: export[0].id"
    );
}

#[test]
fn clients_that_cannot_be_are_told_by_their_place() {
    for (clients, words) in [
        (
            "\"192.0.2.0/24\"",
            "line 5: export[0].clients: is a list; write clients = [\"192.0.2.0/24\"]",
        ),
        (
            "[\"*\"]",
            "line 5: export[0].clients[0].network: \"*\" is not allowed; allowed: addresses and networks; \
             \"0.0.0.0/0\" and \"::/0\" are all of them",
        ),
        (
            "[\"::1\", \"host\"]",
            "line 5: export[0].clients[1].network: \"host\" is not allowed; allowed: addresses and networks, such as \
             192.0.2.0/24; names of machines are not resolved",
        ),
        (
            "[\"192.0.2.1/24\"]",
            "line 5: export[0].clients[0].network: \"192.0.2.1/24\" has bits behind its prefix; write \
             192.0.2.0/24 for the network, or leave the prefix out for the one address",
        ),
        (
            "[\"192.0.2.1\", \"192.0.2.1/32\"]",
            "line 5: export[0].clients[1]: 192.0.2.1/32 is already used at line 5: export[0].clients[0]",
        ),
        (
            "[{ access = \"read-write\" }]",
            "line 5: export[0].clients[0].network: missing; write `network = \"…\"`, such as \"192.0.2.0/24\"",
        ),
        (
            "[{ networks = \"::1\", anonuid = -1 }]",
            "line 5: export[0].clients[0].networks: there is no such key; did you mean `network`?\n\
             line 5: export[0].clients[0].anonuid: invalid value: integer `-1`, expected a whole number from 0 on",
        ),
        (
            "[5]",
            "line 5: export[0].clients[0]: is not a table; write [[export.clients]], and its keys below",
        ),
        (
            "5",
            "line 5: export[0].clients: there may be several, and each is a table; write [[export.clients]]",
        ),
    ] {
        assert_eq!(
            export_error(&format!("path = \"/srv/a\"\nclients = {clients}")),
            words
        );
    }
    let mut many = String::new();
    for last in 0..257 {
        many.push_str(&format!("\"2001:db8::{last:x}\", "));
    }
    assert_eq!(
        export_error(&format!("path = \"/srv/a\"\nclients = [{many}]")),
        "export[0].clients: 257 of them; at most 256"
    );
}

#[test]
fn a_list_of_clients_and_tables_of_them_are_one_key() {
    let said = error(&format!(
        "{NFS}{EXPORT}[[export.clients]]\nnetwork = \"::1\"\n"
    ));
    assert!(said.contains("clients above it is the same list"), "{said}");
}
