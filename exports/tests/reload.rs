//! Other exports in the place of those there are, while clients have files of them.

mod support;

use std::fs;

use capstan_exports::clients::{Access, Squash};
use capstan_exports::error::StaleReason;
use capstan_exports::pseudo::PseudoEntry;
use capstan_exports::reload::{Change, Changed};
use capstan_exports::{ExportSettings, Exports, FileError, FileId, Handle, Node, OpenAccess};
use support::{Disk, Exported, name, own_mounts, put, rules, run, settings};

fn told(changes: &[Change]) -> Vec<(&str, Changed)> {
    let changes = changes.iter();
    changes
        .map(|change| (&*change.export.settings().client_path, change.changed))
        .collect()
}

#[test]
fn root_what_stays_is_used_on_and_what_goes_is_stale() {
    own_mounts();
    for disk in Disk::each("root_what_stays_is_used_on_and_what_goes_is_stale") {
        for folder in ["a", "b", "c"] {
            fs::create_dir(disk.path().join(folder)).unwrap();
        }
        let at = |folder: &str| settings(&disk.path().join(folder), &format!("/{folder}"));
        put(&disk.path().join("a/f"), b"data", 1000, 0o600);
        put(&disk.path().join("b/f"), b"data", 1000, 0o600);
        let exported = Exported::of(vec![at("a"), at("b")]);
        let exports = &exported.exports;
        let user = exported.caller(1000);
        let stays = exported.root().lookup(exports, &user, name("f")).unwrap();
        let stays = exports.handle(&stays);
        let open = exports.node(stays.bytes()).unwrap().unwrap();
        let open = open.open(&user, OpenAccess::Both, false).unwrap();
        let goes = exports.by_client_path("/b").unwrap();
        let goes = exports.handle(&Node::root(&goes).unwrap());
        let before = exports.tree();

        assert_eq!(told(&exports.reload(vec![at("a"), at("b")]).unwrap()), []);
        assert_eq!(exports.tree().change(), before.change());
        let mut read_only = at("a");
        read_only.clients = rules(Access::ReadOnly, Squash::Root);
        let changes = exports.reload(vec![at("c"), read_only.clone()]).unwrap();
        assert_eq!(
            told(&changes),
            [
                ("/a", Changed::Settings),
                ("/b", Changed::Removed),
                ("/c", Changed::Added)
            ]
        );
        assert!(changes[1].is_stale() && !changes[0].is_stale());
        assert_ne!(exports.tree().change(), before.change());
        assert!(exports.by_client_path("/b").is_none());
        let stale = exports.node(goes.bytes()).unwrap_err();
        assert!(
            matches!(stale, FileError::Stale(StaleReason::NoSuchExport(_))),
            "{stale}"
        );
        // The same file, with the new rules; what is open stays open.
        let node = exports.node(stays.bytes()).unwrap().unwrap();
        let reader = support::caller(node.export(), 1000, &[]);
        let written = node.open(&reader, OpenAccess::Write, false);
        assert_eq!(written.unwrap_err(), FileError::ReadOnly);
        node.open(&reader, OpenAccess::Read, false).unwrap();
        let file = FileId::of(&fs::metadata(disk.path().join("a/f")).unwrap());
        assert_eq!(exports.writers().claim(file, 1, "x").unwrap_err().open, 1);
        drop(open);
        drop(exports.writers().claim(file, 1, "x").unwrap());

        // Neither is changed where one cannot be exported.
        let missing = settings(&disk.path().join("missing"), "/missing");
        exports.reload(vec![at("a"), missing]).unwrap_err();
        assert!(exports.by_client_path("/c").is_some());
        let moved = settings(&disk.path().join("b"), "/a");
        let changes = exports.reload(vec![moved]).unwrap();
        assert_eq!(
            told(&changes),
            [("/a", Changed::Directory), ("/c", Changed::Removed)]
        );
    }
}

#[test]
fn root_another_file_system_at_the_path_makes_handles_stale() {
    own_mounts();
    let name = "root_another_file_system_at_the_path_makes_handles_stale";
    let disk = Disk::of(name, "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    let exports = &exported.exports;
    let root = exports.handle(&exported.root());
    run(
        "mount",
        &["-t", "tmpfs", "tmpfs", disk.path().to_str().unwrap()],
    )
    .unwrap();
    let changes = exports
        .reload(vec![settings(&disk.path(), "/exported")])
        .unwrap();
    assert_eq!(told(&changes), [("/exported", Changed::FileSystem)]);
    assert!(changes[0].is_stale());
    let stale = exports.node(root.bytes()).unwrap_err();
    assert_eq!(stale, FileError::Stale(StaleReason::Mac));
    run("umount", &["--lazy", disk.path().to_str().unwrap()]).unwrap();
}

#[test]
fn root_a_removed_export_takes_in_nothing_that_is_mounted_below_it() {
    own_mounts();
    let name = "root_a_removed_export_takes_in_nothing_that_is_mounted_below_it";
    let (disk, other) = (
        Disk::of(name, "tmpfs").unwrap(),
        Disk::of(name, "tmpfs").unwrap(),
    );
    let inner = disk.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let mut crossing = settings(&disk.path(), "/exported");
    crossing.crossmnt = true;
    let exported = Exported::of(vec![crossing.clone()]);
    let exports = &exported.exports;
    run("mount", &["-t", "tmpfs", "tmpfs", inner.to_str().unwrap()]).unwrap();
    let (root, user) = (exported.root(), exported.caller(0));
    let look = || root.lookup(exports, &user, support::name("inner"));
    exports
        .reload(vec![settings(&other.path(), "/other")])
        .unwrap();
    assert_eq!(look().unwrap_err(), FileError::OtherFileSystem);
    assert_eq!(exports.all().len(), 1);
    exports.reload(vec![crossing]).unwrap();
    look().unwrap();
    assert_eq!(exports.all().len(), 2);
    run("umount", &["--lazy", inner.to_str().unwrap()]).unwrap();
}

/// A client with handles of it waits.
#[test]
fn root_what_does_not_answer_yet_is_not_stale() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    for folder in ["a", "b"] {
        fs::create_dir(disk.path().join(folder)).unwrap();
    }
    let at = |folder: &str| settings(&disk.path().join(folder), &format!("/{folder}"));
    // Nothing is asked of it: it need not even be there.
    let absent = settings(&disk.path().join("absent"), "/b");
    let handles = {
        let exported = Exported::of(vec![at("b")]);
        let root = exported.exports.handle(&exported.root());
        let unknown = Exported::of(vec![at("a")]);
        [root, unknown.exports.handle(&unknown.root())]
    };
    let exports = Exports::open_but(support::KEY, vec![], vec![absent.clone()]).unwrap();
    let found = |handle: &Handle| exports.node(handle.bytes()).map(drop);
    assert_eq!(found(&handles[0]), Err(FileError::Absent));
    let stale = found(&handles[1]).unwrap_err();
    assert!(matches!(stale, FileError::Stale(_)), "{stale}");
    let tree = exports.tree();
    let PseudoEntry::Directory(root) = tree.root() else {
        panic!("{tree:?}");
    };
    let Some(PseudoEntry::Export(id)) = tree.lookup(root, name("b")) else {
        panic!("{tree:?}");
    };
    assert_eq!(exports.opened(id).unwrap_err(), FileError::Absent);

    // It is there, and away again.
    let fresh = exports.prepare(vec![at("b")], vec![]).unwrap();
    assert_eq!(told(&exports.replace(fresh)), [("/b", Changed::Added)]);
    assert_eq!(found(&handles[0]), Ok(()));
    let fresh = exports.prepare(vec![at("a")], vec![absent]).unwrap();
    assert_eq!(told(&exports.replace(fresh)), [("/a", Changed::Added)]);
    assert_eq!(found(&handles[0]), Err(FileError::Absent));

    // Which file systems are mounted in one that does not answer is not known.
    let across = ExportSettings {
        crossmnt: true,
        ..settings(&disk.path().join("absent"), "/c")
    };
    let exports = Exports::open_but(support::KEY, vec![], vec![across]).unwrap();
    let found = exports.node(handles[1].bytes()).map(drop);
    assert_eq!(found, Err(FileError::Absent));
}

/// Its path may lead to what does not answer by now.
#[test]
fn root_what_is_served_is_not_looked_at_for_one_that_comes() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    let path = |text: &str| disk.path().join(text);
    for folder in ["a/inner", "b"] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    let inner = path("a/inner");
    run("mount", &["-t", "tmpfs", "tmpfs", inner.to_str().unwrap()]).unwrap();
    let a = ExportSettings {
        crossmnt: true,
        ..settings(&path("a"), "/a")
    };
    let b = settings(&path("b"), "/b");
    let exports = Exports::open_but(support::KEY, vec![a.clone()], vec![b.clone()]).unwrap();
    let root = Node::root(&exports.by_client_path("/a").unwrap()).unwrap();
    let caller = support::caller(root.export(), 0, &[]);
    let mounted = root.lookup(&exports, &caller, name("inner")).unwrap();
    let handles = [&root, &mounted].map(|node| exports.handle(node));

    run(
        "mount",
        &[
            "--move",
            inner.to_str().unwrap(),
            path("b").to_str().unwrap(),
        ],
    )
    .unwrap();
    fs::rename(path("a"), path("gone")).unwrap();
    let all = vec![a, b];
    exports.prepare(all.clone(), vec![]).unwrap_err();
    let fresh = exports.prepare_beside(all, vec![]).unwrap();
    assert_eq!(told(&exports.replace(fresh)), [("/b", Changed::Added)]);
    for handle in handles {
        exports.node(handle.bytes()).unwrap();
    }
}
