//! What is mounted below an export: left out, an export of its own, or exported with it.

mod support;

use std::fs;

use capstan_exports::directory::ReadDirectory;
use capstan_exports::error::{FileError, StaleReason};
use capstan_exports::{ExportSettings, Exports, Key, Node};
use support::{Disk, Exported, KEY, caller, name, own_mounts, run, settings};

/// A file system with another one mounted in its folder `inner`, and one in `inner/deep`.
fn nested() -> Disk {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    for folder in ["inner", "inner/deep"] {
        let point = disk.path().join(folder);
        fs::create_dir(&point).unwrap();
        fs::write(point.join("hidden"), b"").unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", point.to_str().unwrap()]).unwrap();
        fs::write(point.join("seen"), b"").unwrap();
    }
    disk
}

fn listed(exported: &Exported, node: &Node) -> Vec<(String, bool)> {
    let ask = ReadDirectory {
        cookie: 0,
        verifier: 0,
        room_bytes: 4096,
        entry_bytes: 0,
        with_files: true,
    };
    let caller = caller(node.export(), 0, &[]);
    let read = node
        .read_directory(&exported.exports, &caller, &ask)
        .unwrap();
    let entries = read.entries.iter();
    let mut listed: Vec<_> = entries
        .map(|entry| (entry.name.escape_ascii().to_string(), entry.file.is_some()))
        .collect();
    listed.sort();
    listed
}

#[test]
fn root_a_mount_point_is_left_out_unless_it_is_exported() {
    let disk = nested();
    let exported = Exported::new(&disk.path());
    let top = exported.root();
    let caller = exported.caller(0);
    let said = top
        .lookup(&exported.exports, &caller, name("inner"))
        .unwrap_err();
    assert_eq!(said, FileError::OtherFileSystem);
    let inner = (String::from("inner"), false);
    assert!(
        listed(&exported, &top).contains(&inner),
        "a name, and nothing behind it"
    );
    let made = top.create(
        &caller,
        name("inner"),
        capstan_exports::entries::Create::Unchecked,
        &support::mode(0o644),
        capstan_exports::OpenAccess::Read,
    );
    support::refused(made, nix::errno::Errno::EEXIST);
}

#[test]
fn root_a_mount_knows_the_number_of_what_it_hides() {
    let disk = nested();
    let exported = Exported::of(vec![ExportSettings {
        crossmnt: true,
        ..settings(&disk.path(), "/export")
    }]);
    let top = exported.root();
    let ask = ReadDirectory {
        cookie: 0,
        verifier: 0,
        room_bytes: 4096,
        entry_bytes: 0,
        with_files: false,
    };
    let caller = exported.caller(0);
    let read = top
        .read_directory(&exported.exports, &caller, &ask)
        .unwrap();
    let mut entries = read.entries.iter();
    let entry = entries.find(|entry| *entry.name == *b"inner").unwrap();
    let inner = walk(&exported, exported.root(), &["inner"]);
    assert_eq!(inner.mounted_on_file_id(), Some(entry.file_id));
    assert_ne!(inner.attributes().unwrap().file_id, entry.file_id);
    assert_eq!(top.mounted_on_file_id(), None);
    let deep = walk(&exported, exported.root(), &["inner", "deep"]);
    assert!(deep.mounted_on_file_id().is_some());
    let seen = walk(&exported, exported.root(), &["inner", "seen"]);
    assert_eq!(seen.mounted_on_file_id(), None);
}

fn walk(exported: &Exported, from: Node, names: &[&str]) -> Node {
    names.iter().fold(from, |at, text| {
        let caller = caller(at.export(), 0, &[]);
        at.lookup(&exported.exports, &caller, name(text)).unwrap()
    })
}

#[test]
fn root_what_is_mounted_can_be_an_export_of_its_own() {
    let disk = nested();
    let both = vec![
        settings(&disk.path(), "/x"),
        settings(&disk.path().join("inner"), "/x/inner"),
    ];
    let exported = Exported::of(both);
    let top = exported.root();
    let inner = walk(&exported, exported.root(), &["inner"]);
    assert_eq!(inner.export().settings().client_path, "/x/inner");
    assert!(inner.is_root());
    assert_eq!(
        listed(&exported, &inner),
        [("deep".into(), false), ("seen".into(), true)]
    );
    assert_ne!(inner.export().file_system(), top.export().file_system());
    // Another export, another identity.
    let other = exported.caller(0);
    assert!(matches!(
        inner.parent(&other),
        Err(FileError::OtherExport { .. })
    ));
    let up = inner.parent(&caller(inner.export(), 0, &[])).unwrap();
    assert!(up.is_root());
    assert_eq!(up.export().id(), top.export().id());
    let deep = inner.lookup(
        &exported.exports,
        &caller(inner.export(), 0, &[]),
        name("deep"),
    );
    assert_eq!(deep.unwrap_err(), FileError::OtherFileSystem);
}

fn crossing(disk: &Disk) -> ExportSettings {
    ExportSettings {
        crossmnt: true,
        ..settings(&disk.path(), "/x")
    }
}

#[test]
fn root_crossmnt_exports_what_is_mounted_and_its_handles_survive_a_restart() {
    let disk = nested();
    let exported = Exported::of(vec![crossing(&disk)]);
    assert_eq!(
        exported.exports.all().len(),
        3,
        "both were found at the start"
    );
    let seen = walk(&exported, exported.root(), &["inner", "deep", "seen"]);
    let handle = exported.exports.handle(&seen);
    let deep = walk(&exported, exported.root(), &["inner", "deep"]);
    let up = deep.parent(&caller(deep.export(), 0, &[])).unwrap();
    let up = up.parent(&caller(up.export(), 0, &[])).unwrap();
    assert!(up.is_root() && up.export().id() == exported.export.id());
    drop((exported, seen, deep, up));
    let again = Exports::open(KEY, vec![crossing(&disk)]).unwrap();
    assert!(
        again.node(handle.bytes()).unwrap().is_some(),
        "before anybody has looked it up"
    );
}

#[test]
fn root_what_is_mounted_later_is_found_and_let_go_of() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::of(vec![crossing(&disk)]);
    let point = disk.path().join("later");
    fs::create_dir(&point).unwrap();
    let later = walk(&exported, exported.root(), &["later"]);
    assert_eq!(later.export().id(), exported.export.id());
    run("mount", &["-t", "tmpfs", "tmpfs", point.to_str().unwrap()]).unwrap();
    let later = walk(&exported, exported.root(), &["later"]);
    assert_ne!(later.export().id(), exported.export.id());
    let handle = exported.exports.handle(&later);
    drop(later);
    run("umount", &[point.to_str().unwrap()]).unwrap_err();
    exported.exports.release_mounted();
    run("umount", &[point.to_str().unwrap()]).unwrap();
    let stale = exported.exports.node(handle.bytes()).unwrap_err();
    assert!(
        matches!(stale, FileError::Stale(StaleReason::NoSuchExport(_))),
        "{stale}"
    );
    assert_eq!(
        walk(&exported, exported.root(), &["later"]).export().id(),
        exported.export.id()
    );
}

/// Mounts a directory once more; `flags` are of that mount alone.
fn bind(from: &std::path::Path, to: &std::path::Path, flags: &str) {
    fs::create_dir_all(to).unwrap();
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    run("mount", &["--bind", from, to]).unwrap();
    run("mount", &["-o", &format!("remount,bind,{flags}"), to]).unwrap();
}

fn may_write(exports: &Exports, handle: &[u8]) -> bool {
    let node = exports.node(handle).unwrap().unwrap();
    let caller = caller(node.export(), 1000, &[]);
    let opened = node.open(&caller, capstan_exports::OpenAccess::Write, false);
    match opened {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.errno(), Some(nix::errno::Errno::EROFS), "{error}");
            false
        }
    }
}

#[test]
fn root_what_was_found_by_a_read_only_mount_is_written_by_no_other() {
    own_mounts();
    let other = Disk::of("", "ext4").unwrap();
    support::put(&other.path().join("f"), b"data", 1000, 0o644);
    let disk = Disk::of("", "ext4").unwrap();
    bind(&other.path(), &disk.path().join("writable"), "rw");
    let exported = Exported::of(vec![crossing(&disk)]);
    let found = |exported: &Exported, point| {
        let node = walk(exported, exported.root(), &[point, "f"]);
        exported.exports.handle(&node)
    };
    let early = found(&exported, "writable");
    assert!(may_write(&exported.exports, early.bytes()));
    bind(&other.path(), &disk.path().join("only-read"), "ro");
    bind(&other.path(), &disk.path().join("only-read-too"), "ro");
    let handles = |exported: &Exported| ["only-read", "writable"].map(|at| found(exported, at));
    let before = handles(&exported);
    for _ in 0..2 {
        assert_eq!(handles(&exported), before);
        let may = before.map(|handle| may_write(&exported.exports, handle.bytes()));
        assert_eq!(may, [false, true]);
    }
    assert!(
        !may_write(&exported.exports, early.bytes()),
        "which it was found by cannot be told"
    );
    let root = exported.root();
    let twice = root.lookup(
        &exported.exports,
        &exported.caller(0),
        name("only-read-too"),
    );
    assert_eq!(twice.unwrap_err(), FileError::OtherFileSystem);
    drop((root, exported));
    // Before anybody has looked one up, in whatever order.
    let again = Exports::open(KEY, vec![crossing(&disk)]).unwrap();
    let may = before.map(|handle| may_write(&again, handle.bytes()));
    assert_eq!(may, [false, true]);
    drop(again);
    let point = disk.path().join("only-read");
    run("umount", &[point.to_str().unwrap()]).unwrap();
    let exported = Exported::of(vec![crossing(&disk)]);
    let twice = found(&exported, "only-read-too");
    assert_eq!(twice, before[0], "the other one is not there any more");
    assert!(!may_write(&exported.exports, twice.bytes()));
    for point in ["writable", "only-read-too"] {
        let point = disk.path().join(point);
        run("umount", &["--lazy", point.to_str().unwrap()]).unwrap();
    }
}

/// Its readers can make a handle of any file.
#[test]
fn root_the_folder_of_the_key_is_not_taken_in() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let kept = Disk::of("", "tmpfs").unwrap();
    let in_kept = |text: &str| kept.path().join(text);
    let (state, other) = (in_kept("above/state"), in_kept("other"));
    for folder in [&state, &other] {
        fs::create_dir_all(folder).unwrap();
    }
    let key = Key::open_or_make(&state).unwrap();
    let exports = Exports::open(key, vec![crossing(&disk)]).unwrap();
    let root = Node::root(&exports.by_client_path("/x").unwrap()).unwrap();
    let caller = caller(root.export(), 0, &[]);
    let taken_in = |from: &std::path::Path, at: &str| {
        bind(from, &disk.path().join(at), "ro");
        root.lookup(&exports, &caller, name(at)).map(drop)
    };
    let refused = Err(FileError::OtherFileSystem);
    assert_eq!(taken_in(&in_kept("above"), "above"), refused);
    assert_eq!(taken_in(&state, "state"), refused);
    assert_eq!(taken_in(&other, "other"), Ok(()));
}
