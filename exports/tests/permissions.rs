//! The kernel checks what callers may, with their identity; the client's rule comes before it.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use capstan_exports::clients::{Access, Squash};
use capstan_exports::entries::{Create, Removed, Special};
use capstan_exports::error::FileError;
use capstan_exports::xattr::SetXattr;
use capstan_exports::{ExportSettings, FileType, OpenAccess, Rights, SetAttributes};
use nix::errno::Errno;
use support::{Disk, Exported, caller, mode, name, own_mounts, put, refused, rules, settings};

fn with(disk: &Disk, access: Access, squash: Squash) -> Exported {
    let clients = rules(access, squash);
    Exported::of(vec![ExportSettings {
        clients,
        ..settings(&disk.path(), "/x")
    }])
}

#[test]
fn root_a_caller_reads_and_writes_what_the_kernel_lets_it() {
    own_mounts();
    for disk in Disk::each("root_a_caller_reads_and_writes_what_the_kernel_lets_it") {
        let exported = Exported::new(&disk.path());
        put(&disk.path().join("own"), b"data", 1000, 0o600);
        put(&disk.path().join("group"), b"data", 1, 0o060);
        chown(disk.path().join("group"), None, Some(2000)).unwrap();
        let file = |text| {
            exported
                .root()
                .lookup(&exported.exports, &exported.caller(0), name(text))
                .unwrap()
        };
        let (own, other) = (exported.caller(1000), exported.caller(1001));
        let member = caller(&exported.export, 1001, &[1999, 2000]);
        assert!(file("own").open(&own, OpenAccess::Both, false).is_ok());
        refused(
            file("own").open(&other, OpenAccess::Read, false),
            Errno::EACCES,
        );
        refused(
            file("own").open(&other, OpenAccess::Read, true),
            Errno::EACCES,
        );
        refused(
            file("group").open(&other, OpenAccess::Write, false),
            Errno::EACCES,
        );
        assert!(file("group").open(&member, OpenAccess::Both, false).is_ok());
        assert!(
            file("own")
                .open(&exported.caller(0), OpenAccess::Both, false)
                .is_ok()
        );

        fs::set_permissions(disk.path().join("own"), fs::Permissions::from_mode(0o400)).unwrap();
        refused(
            file("own").open(&own, OpenAccess::Write, false),
            Errno::EACCES,
        );
        assert!(
            file("own").open(&own, OpenAccess::Write, true).is_ok(),
            "for its owner"
        );

        // A program that can be executed is read for that.
        fs::set_permissions(disk.path().join("own"), fs::Permissions::from_mode(0o711)).unwrap();
        for owner_override in [false, true] {
            let opened = |access| file("own").open(&other, access, owner_override);
            assert!(opened(OpenAccess::Read).is_ok());
            refused(opened(OpenAccess::Write), Errno::EACCES);
            refused(opened(OpenAccess::Both), Errno::EACCES);
        }
        // Its owner may execute what it may not read.
        fs::set_permissions(disk.path().join("own"), fs::Permissions::from_mode(0o100)).unwrap();
        let opened = |access| file("own").open(&own, access, false);
        assert!(opened(OpenAccess::Read).is_ok());
        refused(opened(OpenAccess::Both), Errno::EACCES);
    }
}

#[test]
fn root_rights_are_those_that_the_kernel_would_grant() {
    own_mounts();
    for disk in Disk::each("root_rights_are_those_that_the_kernel_would_grant") {
        let exported = Exported::new(&disk.path());
        put(&disk.path().join("f"), b"data", 1000, 0o754);
        fs::create_dir(disk.path().join("d")).unwrap();
        chown(disk.path().join("d"), Some(1000), Some(1000)).unwrap();
        fs::set_permissions(disk.path().join("d"), fs::Permissions::from_mode(0o751)).unwrap();
        let rights = |text, uid, groups: &[u32], exported: &Exported| {
            let root = caller(&exported.export, 0, &[]);
            let file = exported
                .root()
                .lookup(&exported.exports, &root, name(text))
                .unwrap();
            let caller = caller(&exported.export, uid, groups);
            file.rights(&caller, Rights::all()).unwrap()
        };
        let read = Rights::READ | Rights::XATTR_READ | Rights::XATTR_LIST;
        let write = Rights::MODIFY | Rights::EXTEND | Rights::XATTR_WRITE;
        assert_eq!(
            rights("f", 1000, &[], &exported),
            read | write | Rights::EXECUTE
        );
        assert_eq!(
            rights("f", 1001, &[1000], &exported),
            read | Rights::EXECUTE
        );
        assert_eq!(rights("f", 1001, &[], &exported), read);
        let all = read | write | Rights::LOOKUP | Rights::DELETE;
        assert_eq!(rights("d", 1000, &[], &exported), all);
        assert_eq!(rights("d", 1001, &[1000], &exported), read | Rights::LOOKUP);
        assert_eq!(rights("d", 1001, &[], &exported), Rights::LOOKUP);
        assert_eq!(
            rights("f", 0, &[], &exported),
            read | write | Rights::EXECUTE
        );
        // Root is nobody here, and a client that only reads is granted nothing else.
        let squashed = with(&disk, Access::ReadWrite, Squash::Root);
        assert_eq!(rights("d", 0, &[], &squashed), Rights::LOOKUP);
        let reads = with(&disk, Access::ReadOnly, Squash::None);
        assert_eq!(rights("d", 1000, &[], &reads), read | Rights::LOOKUP);
    }
}

#[test]
fn root_who_makes_a_file_owns_it_squashed_or_not() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    for (squash, uid, owner) in [
        (Squash::Root, 0, 65534),
        (Squash::Root, 1000, 1000),
        (Squash::All, 1000, 65534),
        (Squash::None, 0, 0),
        (Squash::None, u32::MAX, 65534),
    ] {
        let exported = with(&disk, Access::ReadWrite, squash);
        let text = format!("{squash:?}-{uid}");
        let how = Create::Guarded;
        let created = exported
            .root()
            .create(
                &exported.caller(uid),
                name(&text),
                how,
                &mode(0o4777),
                OpenAccess::Both,
            )
            .unwrap();
        let found = created.node.attributes().unwrap();
        assert_eq!((found.uid, found.gid), (owner, owner), "{text}");
        assert_eq!(found.mode, 0o4777, "no umask: the client had its own");
    }
}

#[test]
fn root_the_kernel_refuses_what_only_root_may() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = with(&disk, Access::ReadWrite, Squash::Root);
    let (top, user) = (exported.root(), exported.caller(1000));
    put(&disk.path().join("others"), b"data", 1001, 0o666);
    let others = top
        .lookup(&exported.exports, &user, name("others"))
        .unwrap();
    let set = |to: SetAttributes| others.set_attributes(&user, &to, None).1;
    refused(set(mode(0o777)), Errno::EPERM);
    refused(
        set(SetAttributes {
            uid: Some(1000),
            ..Default::default()
        }),
        Errno::EPERM,
    );
    set(SetAttributes {
        size_bytes: Some(1),
        ..Default::default()
    })
    .unwrap();
    let device = Special::Block(7, 0);
    for uid in [0, 1000] {
        let made = top.make_special(&exported.caller(uid), name("dev"), device, &mode(0o666));
        refused(made, Errno::EPERM);
    }
    // Sticky: as in /tmp.
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    refused(
        top.remove(&user, name("others"), Removed::Any),
        Errno::EPERM,
    );
    top.remove(&exported.caller(1001), name("others"), Removed::Any)
        .unwrap();
}

/// Written by the daemon itself it would keep its setuid, with another's bytes in it.
#[test]
fn root_a_write_takes_setuid_away() {
    own_mounts();
    for disk in Disk::each("root_a_write_takes_setuid_away") {
        let exported = Exported::new(&disk.path());
        put(&disk.path().join("f"), b"data", 0, 0o6777);
        let user = exported.caller(1000);
        let file = exported
            .root()
            .lookup(&exported.exports, &user, name("f"))
            .unwrap();
        let open = file.open(&user, OpenAccess::Write, false).unwrap();
        assert_eq!(open.write(&user, b"evil", 0), Ok(4));
        assert_eq!(file.attributes().unwrap().mode, 0o777, "{}", disk.kind);
    }
}

/// ext4 keeps blocks for root, and a thread with `CAP_SYS_RESOURCE` would have them.
#[test]
fn root_blocks_that_are_kept_for_root_are_not_a_callers() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = with(&disk, Access::ReadWrite, Squash::Root);
    let user = exported.caller(1000);
    let created = exported
        .root()
        .create(
            &user,
            name("f"),
            Create::Guarded,
            &mode(0o600),
            OpenAccess::Write,
        )
        .unwrap();
    let chunk = vec![1; 1 << 20];
    let mut at = 0;
    let full = loop {
        match created.file.write(&user, &chunk, at) {
            Ok(bytes) => at += bytes as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full.errno(), Some(Errno::ENOSPC));
    let space = created.node.space().unwrap();
    assert!(space.available_bytes < 1 << 20, "{space:?}");
    assert!(
        space.free_bytes > space.available_bytes + (1 << 20),
        "{space:?}"
    );
}

#[test]
fn root_a_client_that_only_reads_changes_nothing() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    put(&disk.path().join("f"), b"data", 0, 0o666);
    fs::create_dir(disk.path().join("d")).unwrap();
    let exported = with(&disk, Access::ReadOnly, Squash::None);
    let (top, root) = (exported.root(), exported.caller(0));
    let f = top.lookup(&exported.exports, &root, name("f")).unwrap();
    let n = name("n");
    let reads = f.open(&root, OpenAccess::Read, false).unwrap();
    let results = [
        f.open(&root, OpenAccess::Both, true).map(drop),
        top.create(&root, n, Create::Unchecked, &mode(0o644), OpenAccess::Read)
            .map(drop),
        top.make_directory(&root, n, &mode(0o755)).map(drop),
        top.make_symlink(&root, n, b"x", &mode(0)).map(drop),
        top.make_special(&root, n, Special::Fifo, &mode(0))
            .map(drop),
        top.link(&root, n, &f).map(drop),
        top.rename(&root, name("f"), &top, n).map(drop),
        top.remove(&root, name("f"), Removed::Any).map(drop),
        f.set_attributes(&root, &mode(0o600), None).1,
        f.set_xattr(&root, b"a", b"b", SetXattr::Any),
        f.remove_xattr(&root, b"a"),
        reads.write(&root, b"x", 0).map(drop),
        reads.allocate(&root, 0, 1),
        reads.deallocate(&root, 0, 1),
        reads.copy_from(&root, &reads, 0, 9, 1).map(drop),
        reads.clone_from(&root, &reads, 0, 0, 0),
    ];
    for (at, result) in results.into_iter().enumerate() {
        assert_eq!(result, Err(FileError::ReadOnly), "{at}");
    }
    assert_eq!(fs::read(disk.path().join("f")).unwrap(), b"data");
    assert_eq!(
        disk.path().join("f").metadata().unwrap().mode() & 0o777,
        0o666
    );
}

#[test]
fn root_only_regular_files_are_opened() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    let exported = Exported::new(&disk.path());
    let (top, root) = (exported.root(), exported.caller(0));
    for (special, file_type, text) in [
        (Special::Fifo, FileType::Fifo, "fifo"),
        (Special::Socket, FileType::Socket, "socket"),
        (Special::Block(7, 200), FileType::Block, "block"),
        (Special::Character(1, 5), FileType::Character, "character"),
    ] {
        let (made, _) = top
            .make_special(&root, name(text), special, &mode(0o666))
            .unwrap();
        let found = made.attributes().unwrap();
        assert_eq!((found.file_type, found.mode), (file_type, 0o666));
        if let Special::Block(major, minor) | Special::Character(major, minor) = special {
            assert_eq!(found.device, (major, minor));
        }
        let opened = made.open(&root, OpenAccess::Read, true);
        assert!(
            matches!(opened, Err(FileError::WrongType { .. })),
            "{opened:?}"
        );
        let how = Create::Unchecked;
        let opened = top.create(&root, name(text), how, &mode(0o644), OpenAccess::Both);
        assert!(
            matches!(opened, Err(FileError::WrongType { .. })),
            "{opened:?}"
        );
        let to = SetAttributes {
            size_bytes: Some(0),
            ..Default::default()
        };
        let (_, cut) = made.set_attributes(&root, &to, None);
        assert!(matches!(cut, Err(FileError::WrongType { .. })), "{cut:?}");
        // What is no file's content can be set still.
        made.set_attributes(&root, &mode(0o600), None).1.unwrap();
        assert_eq!(made.attributes().unwrap().mode, 0o600);
    }
}
