//! `serve --export … --listen …` as a configuration.

use capstan_config::{
    Access, Backing, Config, LbaSize, ProviderChoice, QueueBounds, QuickDirectory, QuickExport,
    Target, Transports,
};

fn export(backing: &str, listen: &str) -> QuickExport {
    QuickExport {
        backing: backing.parse().unwrap(),
        lba: None,
        listen: listen.parse().unwrap(),
        nqn: None,
        provider: ProviderChoice::Auto,
        transports: Transports::default(),
        read_only: false,
        allow_any_host: false,
    }
}

fn error(export: &QuickExport) -> String {
    Config::quick(export, "machine").unwrap_err().to_string()
}

#[test]
fn a_quick_export_is_the_file_with_the_same_words() {
    let quick = Config::quick(
        &QuickExport {
            nqn: Some("nqn.2026-11.com.example:a".into()),
            lba: Some(LbaSize::B4096),
            read_only: true,
            ..export("ram:1GiB", "127.0.0.1:4420")
        },
        "machine",
    )
    .unwrap();
    let file = Config::from_toml(
        "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\nram = \"1GiB\"\nlba = 4096\nread_only = true\n",
    )
    .unwrap();
    assert_eq!(quick, file);
    assert_eq!(quick.target, Target::default());
    assert_eq!(quick.queues, QueueBounds::default());
}

#[test]
fn a_path_is_made_canonical_and_its_identity_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("disk.img");
    std::fs::write(&path, [0; 4096]).unwrap();
    let detour = folder
        .path()
        .join("./../")
        .join(folder.path().file_name().unwrap());
    let detour = detour.join("disk.img").display().to_string();
    let first = Config::quick(&export(&detour, "127.0.0.1:4420"), "machine").unwrap();
    assert_eq!(
        first.subsystems[0].namespaces[0].backing,
        Backing::Path(path.clone())
    );
    let again = export(&path.display().to_string(), "127.0.0.1:4420");
    assert_eq!(Config::quick(&again, "machine").unwrap(), first);
    assert_ne!(
        Config::quick(&again, "another").unwrap().subsystems,
        first.subsystems
    );
    assert_eq!(first.subsystems[0].access, Access::AnyHost);
    // What is derived passes the checks of what is written.
    assert_eq!(first.subsystems[0].nqn.check_form(), Ok(()));
}

#[test]
fn an_export_that_strangers_reach_must_be_meant() {
    let mut open = export("null:1GiB", "0.0.0.0:4420");
    assert_eq!(
        error(&open),
        "--listen: 0.0.0.0:4420 can be reached from other machines, and every host could write to \
         the export; listen on 127.0.0.1 or [::1], add --allow-any-host, or name the hosts in a \
         configuration file (allowed_hosts)"
    );
    open.allow_any_host = true;
    assert!(Config::quick(&open, "machine").is_ok());
    for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
        assert!(
            Config::quick(&export("null:1GiB", loopback), "machine").is_ok(),
            "{loopback}"
        );
    }
}

#[test]
fn every_wrong_option_is_named() {
    let wrong = QuickExport {
        nqn: Some("two\nlines".into()),
        lba: Some(LbaSize::B4096),
        ..export("ram:512", "10.0.0.1:4420")
    };
    let text = error(&wrong);
    let fields: Vec<_> = text
        .lines()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert_eq!(fields, ["--export", "--listen", "--nqn"], "{text}");
    assert_eq!(
        error(&export("/no/such/file", "127.0.0.1:1")),
        "--export: cannot open /no/such/file: No such file or directory (os error 2); there is no folder \
         /no: make it, or mount what has it"
    );
}

#[test]
fn the_machine_has_an_id() {
    assert_eq!(Config::machine_id(), Config::machine_id());
    assert!(!Config::machine_id().is_empty());
}

fn directory(path: &std::path::Path, listen: &str) -> QuickDirectory {
    QuickDirectory {
        path: path.to_owned(),
        listen: listen.parse().unwrap(),
        clients: Vec::new(),
        provider: ProviderChoice::Auto,
        transports: Transports::default(),
        read_only: false,
    }
}

#[test]
fn a_directory_is_the_file_with_the_same_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let file = |nfs: &str, export: &str| {
        Config::from_toml(&format!(
            "[nfs]\n{nfs}\n[[export]]\npath = {path:?}\n{export}\n"
        ))
        .unwrap()
    };
    let quick = |of: &QuickDirectory| Config::quick_directory(of).unwrap();
    let written = "access = \"read-write\"\nclients = [\"127.0.0.0/8\", \"::1\"]";
    let detour = path.join("./../").join(path.file_name().unwrap());
    assert_eq!(
        quick(&directory(&detour, "127.0.0.1")),
        file("addresses = [\"127.0.0.1\"]", written)
    );
    assert_eq!(
        quick(&directory(&path, "[::1]:0")),
        file("addresses = [\"::1\"]\nport = 0\nrdma_port = 0", written)
    );
    let open = QuickDirectory {
        clients: vec!["192.0.2.0/24".parse().unwrap()],
        transports: Transports::named(false, true),
        read_only: true,
        ..directory(&path, "192.0.2.7:4420")
    };
    assert_eq!(
        quick(&open),
        file(
            "addresses = [\"192.0.2.7\"]\nport = 4420\ntransports = [\"tcp\"]",
            "clients = [\"192.0.2.0/24\"]"
        )
    );
}

#[test]
fn what_keeps_a_directory_from_clients_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let told = |of: &QuickDirectory| Config::quick_directory(of).unwrap_err().to_string();
    let said = told(&directory(&path.join("missing"), "0.0.0.0"));
    for words in [
        "--export-dir: cannot open ",
        "--clients: missing; write `--clients 192.0.2.0/24`",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let said = told(&directory(path, "127.0.0.1:20049"));
    assert_eq!(
        said,
        "--listen: port 20049 is not allowed; allowed: another port, as this one is that of NFS over \
         RDMA"
    );
    let network = "192.0.2.0/24".parse().unwrap();
    let twice = QuickDirectory {
        clients: vec![network; 2],
        ..directory(path, "127.0.0.1")
    };
    let said = told(&twice);
    assert!(
        said.starts_with("--clients: ") && said.contains("192.0.2.0/24"),
        "{said}"
    );
}
