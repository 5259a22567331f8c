//! Exports of a target, on a file system of the test's own.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use capstan_config::Config;
use capstan_doctor::{Check, Machine, Verdict};
use capstan_exports::{FileError, Key, Node, OpenAccess, mountinfo};
use capstan_nfs::state::stable::file::StableFile;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::checks::{checks, shows_key, state_folder};
use super::{Changed, Files, renamed};

/// A tmpfs in mounts of the thread's own, with the folders `pub`, `other` and `state`.
struct Place {
    folder: tempfile::TempDir,
}

const ID: &str = "file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"";

impl Place {
    fn new() -> Self {
        let none = None::<&str>;
        let folder = tempfile::tempdir().unwrap();
        unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
            .and_then(|()| {
                let options = Some("size=16m,mode=755");
                mount(none, folder.path(), Some("tmpfs"), MsFlags::empty(), options)
            })
            .unwrap_or_else(|reason| {
                panic!(
                    "no mounts of its own: {reason}; this test needs root, leave it out with: cargo \
                     nextest run -E 'not test(/root_/)'"
                )
            });
        for name in ["pub", "other", "state"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("pub/disk.img"), [0; 8192]).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An export of `name` under its name, with more keys.
    fn export(&self, name: &str, keys: &str) -> String {
        let path = self.path(name);
        format!(
            "[[export]]\npath = {path:?}\npseudo = \"/{name}\"\n{ID}\nclients = [\"127.0.0.1\"]\n{keys}\n"
        )
    }

    /// A configuration with these exports, and the namespace in `pub`.
    fn config(&self, exports: &str, namespace: &str) -> Config {
        let path = self.path("pub/disk.img");
        Config::from_toml(&format!(
            "[nfs]\nport = 0\nrdma_port = 0\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 7\npath = {path:?}\n{namespace}\n{exports}"
        ))
        .unwrap()
    }

    fn open(&self, config: &Config) -> anyhow::Result<Files> {
        let state = self.path("state");
        Files::open_with(config, config.nfs.as_ref().unwrap(), Some(&state))
    }
}

const WRITTEN: &str = "access = \"read-write\"\nsquash = \"none\"";

/// What a client is told that opens the namespace's file for writing.
fn write(files: &Files) -> Result<capstan_exports::OpenFile, FileError> {
    let export = files.exports.by_client_path("/pub").unwrap();
    let credentials = capstan_exports::Credentials {
        uid: 0,
        gid: 0,
        groups: &[],
    };
    let caller = export.caller("127.0.0.1:700".parse().unwrap(), &credentials);
    let caller = caller.unwrap();
    let rule = capstan_exports::name::NameRule::Utf8;
    let name = capstan_exports::Name::new(b"disk.img", rule).unwrap();
    let root = Node::root(&export).unwrap();
    let node = root.lookup(&files.exports, &caller, name)?;
    node.open(&caller, OpenAccess::Write, false)
}

#[test]
fn root_files_that_hosts_write_are_claimed_for_as_long_as_they_are_namespaces() {
    let place = Place::new();
    let export = place.export("pub", WRITTEN);
    let config = place.config(&export, "");
    let mut files = place.open(&config).unwrap();
    assert_eq!(write(&files).unwrap_err(), FileError::Namespace { nsid: 7 });

    let subsystem = &config.subsystems[0];
    let namespace = (&subsystem.nqn, &subsystem.namespaces[0]);
    let gone = (subsystem.nqn.clone(), 7);
    files.keep(Default::default(), &[gone]);
    let client = write(&files).unwrap();
    let refused = files
        .claim([namespace].into_iter())
        .unwrap_err()
        .to_string();
    let path = place.path("pub/disk.img");
    let name = format!("namespace 7 of {} ({})", subsystem.nqn, path.display());
    assert!(refused.contains(&name), "{refused}");
    drop(client);
    let claims = files.claim([namespace].into_iter()).unwrap();
    files.keep(claims, &[]);
    assert_eq!(write(&files).unwrap_err(), FileError::Namespace { nsid: 7 });

    let reads = place.config(&export, "read_only = true");
    write(&place.open(&reads).unwrap()).unwrap();
}

#[test]
fn root_the_key_is_the_state_folders_and_without_one_nothing_is_exported() {
    let place = Place::new();
    let config = place.config(&place.export("pub", WRITTEN), "");
    let handle = |files: &Files| {
        let export = files.exports.by_client_path("/pub").unwrap();
        files.exports.handle(&Node::root(&export).unwrap())
    };
    let first = handle(&place.open(&config).unwrap());
    let again = place.open(&config).unwrap();
    assert_eq!(handle(&again).bytes(), first.bytes());
    assert!(again.exports.node(first.bytes()).is_ok());
    let without = Files::open_with(&config, config.nfs.as_ref().unwrap(), None);
    let said = without.unwrap_err().to_string();
    assert!(said.starts_with("NFS: /"), "{said}");
    let inside = place.config(&place.export("state", WRITTEN), "");
    let said = place.open(&inside).unwrap_err().to_string();
    assert!(said.starts_with("the state folder /"), "{said}");
    place
        .open(&place.config(&place.export("state", ""), ""))
        .unwrap();
}

#[test]
fn root_a_reload_prepares_all_exports_before_it_replaces_one() {
    let place = Place::new();
    let export = place.export("pub", WRITTEN);
    let files = place.open(&place.config(&export, "")).unwrap();
    let prepare = |exports: &str| {
        let wanted = place.config(exports, "");
        files.prepare(wanted.nfs.as_ref().unwrap())
    };
    let missing = prepare(&[place.export("other", ""), place.export("gone", "")].concat());
    let said = format!("{:#}", missing.unwrap_err());
    assert!(
        said.contains("nothing was changed") && said.contains("/gone"),
        "{said}"
    );
    assert!(files.exports.by_client_path("/pub").is_some());
    let fresh = prepare(&place.export("other", "")).unwrap();
    assert!(files.exports.by_client_path("/pub").is_some());
    let told: Vec<_> = files
        .replace(fresh)
        .iter()
        .map(ToString::to_string)
        .collect();
    let other = place.path("other");
    assert_eq!(
        told,
        [
            format!("export /other: added, {}", other.display()),
            "export /pub: removed; what clients have of it is stale".to_owned()
        ]
    );
}

#[test]
fn root_the_state_folder_is_looked_at_as_a_start_uses_it() {
    let place = Place::new();
    let [state, file, none] = ["state", "file", "none"].map(|name| place.path(name));
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&file, "").unwrap();
    let said = |folder: &Path| {
        let checks = state_folder(folder, false);
        let wrong = checks.into_iter().filter(|of| of.verdict != Verdict::Ok);
        let told = wrong.map(|of| (of.verdict, of.line()));
        told.collect::<Vec<_>>()
    };
    let one = |folder: &Path, verdict: Verdict, words: &str| {
        let said = said(folder);
        let [(found, line)] = &said[..] else {
            panic!("{words}: {said:?}")
        };
        assert!(*found == verdict && line.contains(words), "{said:?}");
    };
    assert_eq!(said(&state), []);
    one(
        &file,
        Verdict::Error,
        "is not a folder; expected a folder that the target",
    );
    one(&none, Verdict::Error, "install -d -m 750 /");
    assert!(!said(&none)[0].1.contains("namespace"), "{:?}", said(&none));
    chown(&state, Some(65534), None).unwrap();
    one(&state, Verdict::Warning, "belongs to user 65534");
    chown(&state, Some(0), None).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    one(&state, Verdict::Warning, "has mode 0777");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o750)).unwrap();
    let stable = state.join("nfs-clients");
    fs::write(&stable, "").unwrap();
    one(&state, Verdict::Warning, "export-handles.key) is gone");
    fs::remove_file(&stable).unwrap();
    Key::open_or_make(&state).unwrap();
    let (used, _) = StableFile::open(&stable).unwrap();
    one(&state, Verdict::Warning, "another server uses it");
    drop(used);
    assert_eq!(said(&state), []);
    fs::write(&stable, "something else").unwrap();
    one(
        &state,
        Verdict::Error,
        "it is no file of this server's state",
    );
    let (none, read_only) = (None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
    mount(none, place.folder.path(), none, read_only, none).unwrap();
    one(&state, Verdict::Error, "on a file system that is read-only");
}

/// Of one export for each, whether clients can read the key there; and that none is around `other`.
fn showing(place: &Place, exports: &str) -> Vec<bool> {
    let config = place.config(exports, "");
    let exports = &config.nfs.as_ref().unwrap().exports;
    let (state, outside) = (place.path("state"), place.path("other"));
    assert!(mountinfo::around(exports, &outside).is_empty());
    let around = mountinfo::around(exports, &state).into_iter();
    around.map(|of| shows_key(of, &state)).collect()
}

#[test]
fn root_a_state_folder_in_an_export_is_told_and_refused_where_clients_can_read_it() {
    let place = Place::new();
    for (keys, shows) in [
        ("", false),
        (WRITTEN, true),
        ("squash = \"all\"", false),
        ("anonuid = 0", true),
        ("squash = \"all\"\nanonuid = 0", true),
    ] {
        let shown = showing(&place, &place.export("state", keys));
        assert_eq!(shown, [shows], "{keys}");
    }
}

#[test]
fn root_a_state_folder_is_found_by_other_mounts_of_what_it_is_in() {
    let none = None::<&str>;
    let place = Place::new();
    let (state, inner) = (place.path("above/state"), place.path("pub/inner"));
    fs::create_dir_all(&state).unwrap();
    fs::create_dir_all(&inner).unwrap();
    let bind = |from: &str, to: &str| {
        let (from, to) = (place.path(from), place.path(to));
        mount(Some(&from), &to, none, MsFlags::MS_BIND, none).unwrap();
    };
    let around = |export: String| {
        let config = place.config(&export, "");
        let exports = &config.nfs.as_ref().unwrap().exports;
        mountinfo::around(exports, &state).len()
    };
    bind("above", "other");
    bind("above", "pub/inner");
    assert_eq!(
        around(place.export("other", "")),
        1,
        "its parent, by another path"
    );
    assert_eq!(
        around(place.export("pub", "")),
        0,
        "what is mounted there is not exported"
    );
    assert_eq!(around(place.export("pub", "crossmnt = true")), 1);
    // The folder itself is a mount, of what is in an export.
    let elsewhere = place.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    bind("state", "elsewhere");
    let config = place.config(&place.export("state", ""), "");
    let exports = &config.nfs.as_ref().unwrap().exports;
    assert_eq!(mountinfo::around(exports, &elsewhere).len(), 1);
}

#[test]
fn root_the_last_export_can_be_taken_away_and_a_renamed_one_says_how_it_stays() {
    let place = Place::new();
    let config = place.config(&place.export("pub", WRITTEN), "");
    let files = place.open(&config).unwrap();
    let to = |exports: &str| {
        let wanted = place.config(exports, "");
        files.replace(files.prepare(wanted.nfs.as_ref().unwrap()).unwrap())
    };
    let moved = to(&place
        .export("pub", WRITTEN)
        .replace("\"/pub\"", "\"/renamed\""));
    let gone = moved
        .iter()
        .find(|of| of.changed == Changed::Removed)
        .unwrap();
    let words = renamed(gone, &moved).unwrap();
    let id = gone.export.id().0;
    assert!(
        words.contains(&format!("is /renamed now: `id = {id}` there")),
        "{words}"
    );
    let gone = to("");
    assert!(
        gone.iter().all(|of| of.changed == Changed::Removed),
        "{gone:?}"
    );
    assert_eq!(renamed(&gone[0], &gone), None);
    assert_eq!(files.exports.all().len(), 0);
}

fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    let found = checks.iter().find(|check| check.name.starts_with(name));
    found.unwrap_or_else(|| panic!("no {name} in {checks:?}"))
}

#[test]
fn root_what_would_be_exported_is_opened_and_told_with_its_clients() {
    let place = Place::new();
    let of = |exports: &str| checks(&Machine::here(), &place.config(exports, ""), 100);
    let found = of(&place.export("pub", WRITTEN));
    let check = find(&found, "export /pub");
    assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
    let path = place.path("pub");
    let words = "clients 127.0.0.1/32 read-write, nobody squashed";
    assert_eq!(check.seen, format!("{}; {words}", path.display()));
    for name in [
        "NFS rights",
        "NFS over TCP 127.0.0.1:0",
        "open files of NFS",
    ] {
        assert_ne!(find(&found, name).verdict, Verdict::Error, "{found:?}");
    }

    // A tmpfs has another UUID after each mount: what is not written down is not there.
    let without = place.export("pub", WRITTEN).replace(ID, "");
    let found = of(&without);
    let check = find(&found, "export /pub");
    if check.verdict == Verdict::Error {
        assert!(check.seen.contains("no UUID"), "{check:?}");
    }
    let same = [place.export("pub", "id = 5"), place.export("other", "")];
    assert_eq!(
        find(&of(&same.concat()), "export /other").verdict,
        Verdict::Ok
    );
    fs::create_dir(place.path("pub/inner")).unwrap();
    let inner = place.export("pub/inner", "");
    let found = of(&[place.export("pub", ""), inner].concat());
    let check = find(&found, "exports");
    assert_eq!(check.verdict, Verdict::Error);
    assert!(
        check
            .seen
            .contains("clients come to /pub/inner through the export /pub, and ")
            && check
                .seen
                .contains("give it a `pseudo` that is not below /pub"),
        "{check:?}"
    );
    // It has no file handles.
    mount(
        None::<&str>,
        &place.path("pub/inner"),
        Some("proc"),
        MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    let found = of(&place.export("pub", "crossmnt = true"));
    let told: Vec<_> = found
        .iter()
        .filter(|check| check.name == "crossmnt")
        .collect();
    let words = format!(
        "{}, mounted below {}, is not",
        place.path("pub/inner").display(),
        path.display()
    );
    assert!(
        matches!(&told[..], [check] if check.verdict == Verdict::Warning && check.seen.starts_with(&words)),
        "{told:?}"
    );
}

#[test]
fn a_port_that_is_taken_is_a_warning() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = folder.path();
    let config = Config::from_toml(&format!(
        "[nfs]\naddresses = [\"127.0.0.1\"]\nport = {port}\nrdma_port = 0\n[[export]]\npath = {path:?}\n\
         clients = [\"127.0.0.1\"]\n"
    ))
    .unwrap();
    let found = checks(&Machine::here(), &config, 100);
    let check = find(&found, "NFS over TCP");
    assert_eq!(check.verdict, Verdict::Warning, "{check:?}");
    assert!(
        check.seen.contains(&format!("port {port} is in use")),
        "{check:?}"
    );
    assert_eq!(find(&found, "NFS over RDMA").verdict, Verdict::Ok);
}
