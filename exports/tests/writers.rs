//! Files that hosts write over NVMe: clients may read them, and nothing else that changes data.

mod support;

use std::fs;

use capstan_exports::cache::OpenFiles;
use capstan_exports::entries::{Create, Removed};
use capstan_exports::{FileError, FileId, OpenAccess, SetAttributes};
use support::{Disk, Exported, mode, name, own_mounts, put};

const NAMESPACE: FileError = FileError::Namespace { nsid: 3 };

fn cut() -> SetAttributes {
    SetAttributes {
        size_bytes: Some(1),
        ..SetAttributes::default()
    }
}

#[test]
fn root_a_namespace_of_hosts_is_read_and_not_written() {
    own_mounts();
    for disk in Disk::each("root_a_namespace_of_hosts_is_read_and_not_written") {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        let path = disk.path().join("disk.img");
        put(&path, b"blocks", 1000, 0o600);
        let file = FileId::of(&fs::metadata(&path).unwrap());
        let writers = exported.exports.writers();
        let claim = writers.claim(file, 3, "namespace 3 of x").unwrap();

        let node = exported
            .root()
            .lookup(&exported.exports, &user, name("disk.img"))
            .unwrap();
        let cache = OpenFiles::new(8);
        for access in [OpenAccess::Write, OpenAccess::Both] {
            assert_eq!(node.open(&user, access, true).unwrap_err(), NAMESPACE);
            assert_eq!(cache.open(&node, &user, access).unwrap_err(), NAMESPACE);
            for how in [Create::Unchecked, Create::Exclusive([0; 8])] {
                let to = SetAttributes {
                    size_bytes: Some(0),
                    ..mode(0o600)
                };
                let root = exported.root();
                let made = root.create(&user, name("disk.img"), how, &to, access);
                assert!(made.is_err(), "{access:?} {how:?}");
            }
        }
        let reader = node.open(&user, OpenAccess::Read, false).unwrap();
        assert_eq!(node.set_attributes(&user, &cut(), None).1, Err(NAMESPACE));
        let through = node.set_attributes(&user, &cut(), Some(&reader));
        assert!(through.1.is_err() && through.0.is_empty(), "{through:?}");
        assert_eq!(fs::read(&path).unwrap(), b"blocks");
        // Its name and its mode are not data.
        node.set_attributes(&user, &mode(0o640), None).1.unwrap();

        drop(claim);
        node.set_attributes(&user, &cut(), None).1.unwrap();
        node.open(&user, OpenAccess::Both, false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"b");
    }
}

#[test]
fn root_a_file_that_clients_write_becomes_no_namespace_until_all_have_closed_it() {
    own_mounts();
    for disk in
        Disk::each("root_a_file_that_clients_write_becomes_no_namespace_until_all_have_closed_it")
    {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        let made = exported
            .root()
            .create(
                &user,
                name("disk.img"),
                Create::Guarded,
                &mode(0o600),
                OpenAccess::Both,
            )
            .unwrap();
        let file = FileId::of(&fs::metadata(disk.path().join("disk.img")).unwrap());
        let claim = || exported.exports.writers().claim(file, 3, "namespace 3");
        let again = made.file.open_again().unwrap();
        let reader = made.node.open(&user, OpenAccess::Read, false).unwrap();
        assert_eq!(claim().unwrap_err().open, 2);
        drop(made.file);
        assert_eq!(claim().unwrap_err().open, 1);
        drop(again);
        let claimed = claim().unwrap();
        assert_eq!(
            made.node.open(&user, OpenAccess::Write, false).unwrap_err(),
            NAMESPACE
        );
        drop((claimed, reader));
        made.node.open(&user, OpenAccess::Write, false).unwrap();
    }
}

#[test]
fn root_a_namespace_of_hosts_keeps_its_names() {
    own_mounts();
    for disk in Disk::each("root_a_namespace_of_hosts_keeps_its_names") {
        let exported = Exported::new(&disk.path());
        let (top, user) = (exported.root(), exported.caller(1000));
        let path = |text: &str| disk.path().join(text);
        put(&path("disk.img"), b"blocks", 1000, 0o600);
        put(&path("other"), b"", 1000, 0o600);
        let file = FileId::of(&fs::metadata(path("disk.img")).unwrap());
        let writers = exported.exports.writers();
        let claim = writers.claim(file, 3, "namespace 3 of x").unwrap();

        for what in [Removed::File, Removed::Any] {
            let refused = top.remove(&user, name("disk.img"), what);
            assert_eq!(refused, Err(NAMESPACE), "{what:?}");
        }
        for (from, to) in [("disk.img", "gone"), ("other", "disk.img")] {
            let refused = top.rename(&user, name(from), &top, name(to));
            assert_eq!(refused, Err(NAMESPACE), "{from} {to}");
        }
        assert_eq!(fs::read(path("disk.img")).unwrap(), b"blocks");
        // Clients make no further name, as it would stay; one that is there does as well.
        let found = top.lookup(&exported.exports, &user, name("disk.img"));
        let refused = top.link(&user, name("second"), &found.unwrap());
        assert_eq!(refused, Err(NAMESPACE));
        fs::hard_link(path("disk.img"), path("second")).unwrap();
        let refused = top.remove(&user, name("second"), Removed::File);
        assert_eq!(refused, Err(NAMESPACE));
        // Others go as ever, and so does it when hosts do not write it any more.
        top.rename(&user, name("other"), &top, name("o")).unwrap();
        drop(claim);
        top.rename(&user, name("o"), &top, name("second")).unwrap();
        top.remove(&user, name("disk.img"), Removed::Any).unwrap();
    }
}
