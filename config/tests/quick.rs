//! `serve --export … --listen …` as a configuration.

use capstan_config::{
    Access, Backing, Config, LbaSize, ProviderChoice, QueueBounds, QuickExport, Target, Transports,
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
