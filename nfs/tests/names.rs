//! CREATE, READLINK, LINK, RENAME and REMOVE, from the bytes of calls to those of replies.

mod support;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use capstan_exports::FileId;
use capstan_exports::clients::{Access, Squash};
use capstan_memory::{Pages, Pool};
use capstan_nfs_proto::codec::{DataItem, ReducedItem};
use capstan_nfs_proto::v4::args::{self, CreateType};
use capstan_nfs_proto::v4::attr::{AttrNumber, SetAttributes};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{
    ChangeInfo, Component, DeviceNumbers, FileType, ModeUmask, Principal, StableHow, Stateid,
};

use support::acl::set_default_acl;
use support::attributes::{fattr, set_of, tells_changes_apart, to_set};
use support::files::BOTH;
use support::{Client, Served, on_ext4, path_ops, put, rules};

fn on<'a>(names: &[&'static str], op: Op<'a>) -> Vec<Op<'a>> {
    path_ops(names).into_iter().chain([op]).collect()
}

/// From one directory to another.
fn between<'a>(from: &[&'static str], to: &[&'static str], op: Op<'a>) -> Vec<Op<'a>> {
    let mut ops = on(from, Op::SaveFh);
    ops.extend(on(to, op));
    ops
}

fn rename(oldname: &'static str, newname: &'static str) -> Op<'static> {
    Op::Rename(args::Rename {
        oldname: Component(oldname.as_bytes()),
        newname: Component(newname.as_bytes()),
    })
}

fn remove(name: &'static str) -> Op<'static> {
    Op::Remove(Component(name.as_bytes()))
}

fn with_mode(mode: u32) -> Vec<u8> {
    to_set(&SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    })
}

fn create<'a>(objtype: CreateType<'a>, name: &'a str, attributes: &'a [u8]) -> Op<'a> {
    Op::Create(args::Create {
        objtype,
        objname: Component(name.as_bytes()),
        createattrs: fattr(attributes),
    })
}

fn changed(info: &ChangeInfo) {
    if tells_changes_apart() {
        assert!(info.after > info.before, "{info:?}");
        assert!(info.atomic, "nothing else changes the directory");
    } else {
        assert!(!info.atomic, "what else changes within a tick is not seen");
    }
}

/// Makes something in the root, and says what was set.
#[track_caller]
fn make(client: &mut Client, op: Op<'_>) -> Bitmap {
    client.run(&on(&[], op), |results| match results.last() {
        Some(OpResult::Create(ok)) => {
            changed(&ok.cinfo);
            ok.attrset
        }
        other => panic!("{other:?}"),
    })
}

fn mode_of(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn root_what_is_made_is_there_with_its_mode_and_owner() {
    let served = Served::with(on_ext4);
    let mut client = served.client("one");
    let attributes = with_mode(0o1751);
    let mode = set_of(&[AttrNumber::MODE]);
    let path = |name: &str| served.path().join(name);
    let numbers = DeviceNumbers { major: 7, minor: 9 };
    for (objtype, name) in [
        (CreateType::Directory, "directory"),
        (CreateType::Fifo, "fifo"),
        (CreateType::Socket, "socket"),
        (CreateType::Block(numbers), "block"),
        (CreateType::Character(numbers), "character"),
    ] {
        assert_eq!(make(&mut client, create(objtype, name, &attributes)), mode);
        assert_eq!(mode_of(&path(name)), 0o1751, "{name}");
    }
    let kind = |name| path(name).symlink_metadata().unwrap().file_type();
    assert!(kind("directory").is_dir() && kind("fifo").is_fifo());
    assert!(kind("socket").is_socket() && kind("block").is_block_device());
    assert!(kind("character").is_char_device());
    client.all_attributes(&path_ops(&["block"]), |all| {
        assert_eq!(all.rawdev, Some(numbers));
        assert_eq!(all.file_type, Some(FileType::Block));
    });

    // What was made is the current object, and the user's.
    (client.uid, client.gid) = (1000, 1001);
    let ops = on(&[], create(CreateType::Directory, "own", &attributes));
    client.all_attributes(&ops, |all| {
        assert_eq!(all.owner, Some(Principal::Id(1000)));
        assert_eq!(all.owner_group, Some(Principal::Id(1001)));
    });
    // Another owner is root's to give, and left out.
    let owned = to_set(&SetAttributes {
        mode: Some(0o700),
        owner: Some(Principal::Id(5)),
        ..SetAttributes::default()
    });
    let of_user = make(&mut client, create(CreateType::Directory, "u", &owned));
    assert_eq!((of_user, path("u").metadata().unwrap().uid()), (mode, 1000));
    client.uid = 0;
    let of_root = make(&mut client, create(CreateType::Directory, "r", &owned));
    let both = mode.with(AttrNumber::OWNER.0);
    assert_eq!((of_root, path("r").metadata().unwrap().uid()), (both, 5));
}

#[test]
fn root_a_umask_counts_where_no_acl_is_inherited() {
    let served = Served::with(on_ext4);
    fs::create_dir(served.path().join("acl")).unwrap();
    set_default_acl(&served.path().join("acl"));
    let mut client = served.client("one");
    let attributes = to_set(&SetAttributes {
        mode_umask: Some(ModeUmask {
            mode: 0o777,
            umask: 0o027,
        }),
        ..SetAttributes::default()
    });
    let op = create(CreateType::Directory, "d", &attributes);
    assert_eq!(make(&mut client, op), set_of(&[AttrNumber::MODE_UMASK]));
    assert_eq!(mode_of(&served.path().join("d")), 0o750);
    assert_eq!(client.status(&on(&["acl"], op)), Status::OK);
    assert_eq!(mode_of(&served.path().join("acl/d")), 0o777);
}

/// The text of a link, read inline.
fn text_of(client: &mut Client, name: &'static str) -> Vec<u8> {
    client.run(&on(&[name], Op::ReadLink), |results| match results.last() {
        Some(OpResult::ReadLink(DataItem::Inline(text))) => text.to_vec(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn root_the_text_of_a_link_is_the_clients() {
    let served = Served::with(on_ext4);
    let mut client = served.client("one");
    let attributes = with_mode(0o777);
    let long = [b'x'; 4095];
    for (name, text) in [("a", &b"/etc/../\xff \n"[..]), ("b", &long)] {
        let objtype = CreateType::SymbolicLink(DataItem::Inline(text));
        let attrset = make(&mut client, create(objtype, name, &attributes));
        assert_eq!(attrset, Bitmap::EMPTY, "a link has no mode");
        assert_eq!(text_of(&mut client, name), text);
    }
    for (text, expected) in [
        (&b""[..], Status::NOENT),
        (&[b'x'; 4096], Status::NAMETOOLONG),
        (b"a\0b", Status::INVAL),
    ] {
        let objtype = CreateType::SymbolicLink(DataItem::Inline(text));
        let op = create(objtype, "c", &attributes);
        assert_eq!(client.status(&on(&[], op)), expected);
    }
    put(&served.path().join("f"), b"", 0, 0o644);
    for names in [&["f"][..], &[]] {
        assert_eq!(client.status(&on(names, Op::ReadLink)), Status::WRONG_TYPE);
    }
    assert_eq!(
        client.status(&[Op::PutRootFh, Op::ReadLink]),
        Status::WRONG_TYPE
    );
}

#[test]
fn root_the_text_of_a_link_goes_where_the_transport_has_it() {
    let served = Served::new();
    symlink("target", served.path().join("l")).unwrap();
    let mut client = served.client("one");
    let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
    let buffer = pool.take(64).unwrap();
    let sequence = client.sequence_op();
    client.sequence += 1;
    let read: Vec<_> = [sequence]
        .into_iter()
        .chain(on(&["l"], Op::ReadLink))
        .collect();
    let message = client.compound_bytes(&read);
    let reply = client.send_with(&message, &[], &[], &[Some(buffer.span())]);
    reply.results(|status, results| {
        assert_eq!(status, Status::OK);
        let data = DataItem::Reduced {
            index: 0,
            length_bytes: 6,
        };
        assert_eq!(results.last(), Some(&OpResult::ReadLink(data)));
    });
    let mut text = [0; 6];
    buffer.copy_to(0, &mut text);
    assert_eq!(&text, b"target");

    // And comes from there: the place of "moved" in the message is where its bytes would be.
    let mut moved = pool.take(64).unwrap();
    moved.copy_from(0, b"moved");
    let attributes = with_mode(0o777);
    let objtype = CreateType::SymbolicLink(DataItem::Inline(b"moved"));
    let sequence = client.sequence_op();
    client.sequence += 1;
    let all: Vec<_> = [sequence]
        .into_iter()
        .chain(on(&[], create(objtype, "m", &attributes)))
        .collect();
    let mut message = client.compound_bytes(&all);
    let at = message
        .windows(8)
        .position(|bytes| bytes == b"moved\0\0\0")
        .unwrap();
    message.drain(at..at + 8);
    let reduced = [ReducedItem {
        position: u32::try_from(at).unwrap(),
        length_bytes: 5,
    }];
    let span = moved.span();
    let part = span.part(0..5).unwrap();
    let reply = client.send_with(&message, &reduced, &[part], &[]);
    reply.results(|status, results| assert_eq!(status, Status::OK, "{results:?}"));
    assert_eq!(text_of(&mut client, "m"), b"moved");
}

#[test]
fn root_what_cannot_be_made_is_told_and_not_there() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    fs::create_dir(served.path().join("closed")).unwrap();
    let mut client = served.client("one");
    (client.uid, client.gid) = (1000, 1000);
    let attributes = with_mode(0o755);
    let size = to_set(&SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    });
    let directory = |name| create(CreateType::Directory, name, &attributes);
    let numbers = DeviceNumbers { major: 1, minor: 3 };
    for (names, op, expected) in [
        (&[][..], directory("f"), Status::EXIST),
        (&[], directory(""), Status::INVAL),
        (&[], directory(".."), Status::BADNAME),
        (&[], directory("a/b"), Status::BADCHAR),
        (&["closed"], directory("d"), Status::ACCESS),
        (&["f"], directory("d"), Status::NOTDIR),
        (
            &[],
            create(CreateType::Directory, "d", &size),
            Status::INVAL,
        ),
        (
            &[],
            create(CreateType::Other(1), "d", &attributes),
            Status::BADTYPE,
        ),
        (
            &[],
            create(CreateType::Other(8), "d", &attributes),
            Status::BADTYPE,
        ),
        (
            &[],
            create(CreateType::Character(numbers), "d", &attributes),
            Status::PERM,
        ),
    ] {
        assert_eq!(client.status(&on(names, op)), expected, "{op:?}");
    }
    let long = [b'n'; 256];
    let op = Op::Create(args::Create {
        objtype: CreateType::Directory,
        objname: Component(&long),
        createattrs: fattr(&attributes),
    });
    assert_eq!(client.status(&on(&[], op)), Status::NAMETOOLONG);
    let above = [Op::PutRootFh, directory("d")];
    assert_eq!(client.status(&above), Status::ROFS);
    assert_eq!(client.status(&[directory("d")]), Status::NOFILEHANDLE);
    assert!(!served.path().join("d").exists());
}

#[test]
fn root_a_client_that_only_reads_changes_no_name() {
    let served = Served::with(|settings| {
        settings.clients = rules(Access::ReadOnly, Squash::None);
    });
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let attributes = with_mode(0o755);
    let link = Op::Link(Component(b"g"));
    for ops in [
        on(&[], create(CreateType::Directory, "d", &attributes)),
        on(&[], remove("f")),
        between(&[], &[], rename("f", "g")),
        between(&["f"], &[], link),
    ] {
        assert_eq!(client.status(&ops), Status::ROFS, "{ops:?}");
    }
    let above = [Op::PutRootFh, remove("exported")];
    assert_eq!(client.status(&above), Status::ROFS);
    let above = [Op::PutRootFh, Op::SaveFh, rename("exported", "other")];
    assert_eq!(client.status(&above), Status::ROFS);
}

#[test]
fn root_roots_files_are_anonymous_where_root_is_squashed() {
    let served = Served::with(|settings| {
        on_ext4(settings);
        settings.clients = rules(Access::ReadWrite, Squash::Root);
    });
    put(&served.path().join("f"), b"", 0, 0o600);
    fs::set_permissions(served.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let mut client = served.client("one");
    let attributes = with_mode(0o700);
    make(&mut client, create(CreateType::Directory, "d", &attributes));
    assert_eq!(served.path().join("d").metadata().unwrap().uid(), 65_534);
    assert_eq!(client.status(&on(&[], remove("f"))), Status::PERM);
    assert_eq!(client.status(&on(&[], remove("d"))), Status::OK);
}

#[test]
fn root_removing_takes_a_name_and_no_more() {
    let served = Served::with(on_ext4);
    let path = |name: &str| served.path().join(name);
    put(&path("f"), b"data", 0, 0o644);
    fs::hard_link(path("f"), path("g")).unwrap();
    fs::create_dir(path("d")).unwrap();
    put(&path("d/f"), b"", 0, 0o644);
    symlink("d", path("l")).unwrap();
    let mut client = served.client("one");
    assert_eq!(client.status(&on(&[], remove("d"))), Status::NOTEMPTY);
    for (names, name) in [(&[][..], "f"), (&[], "l"), (&["d"], "f"), (&[], "d")] {
        client.run(&on(names, remove(name)), |results| match results.last() {
            Some(OpResult::Remove(info)) => changed(info),
            other => panic!("{other:?}"),
        });
        assert_eq!(client.status(&on(names, remove(name))), Status::NOENT);
    }
    assert_eq!(fs::read(path("g")).unwrap(), b"data");
    assert_eq!(client.status(&on(&["g"], remove("x"))), Status::NOTDIR);
    assert_eq!(client.status(&on(&[], remove("."))), Status::BADNAME);
    assert_eq!(client.status(&[remove("g")]), Status::NOFILEHANDLE);
    (client.uid, client.gid) = (1000, 1000);
    fs::set_permissions(served.path(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(client.status(&on(&[], remove("g"))), Status::ACCESS);
}

#[test]
fn root_what_is_mounted_on_is_not_removed() {
    let served = Served::new();
    let inner = served.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let none = None::<&str>;
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), &inner, Some("tmpfs"), flags, none).unwrap();
    let mut client = served.client("one");
    assert_eq!(client.status(&on(&[], remove("inner"))), Status::ACCESS);
    let ops = between(&[], &[], rename("inner", "other"));
    assert_eq!(client.status(&ops), Status::ACCESS);
    assert!(inner.exists());
}

#[test]
fn root_renaming_moves_within_an_export_and_takes_places() {
    let served = Served::with(on_ext4);
    let path = |name: &str| served.path().join(name);
    for name in ["a", "b", "a/d", "b/full"] {
        fs::create_dir(path(name)).unwrap();
    }
    put(&path("a/f"), b"moved", 0, 0o644);
    put(&path("b/g"), b"replaced", 0, 0o644);
    put(&path("b/full/x"), b"", 0, 0o644);
    let mut client = served.client("one");
    client.run(
        &between(&["a"], &["b"], rename("f", "g")),
        |results| match results.last() {
            Some(OpResult::Rename(ok)) => {
                changed(&ok.source_cinfo);
                changed(&ok.target_cinfo);
            }
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(fs::read(path("b/g")).unwrap(), b"moved");
    assert!(!path("a/f").exists());
    for (from, to, op, expected) in [
        (&["a"][..], &["b"][..], rename("f", "h"), Status::NOENT),
        (&["a"], &["b"], rename("d", "full"), Status::NOTEMPTY),
        (&["b"], &["a"], rename("g", "d"), Status::ISDIR),
        (&["a"], &["b"], rename("d", "g"), Status::NOTDIR),
        (&["b", "g"], &["b"], rename("x", "y"), Status::NOTDIR),
        (&["b"], &["b", "g"], rename("x", "y"), Status::NOTDIR),
        (&["b"], &["b", "full"], rename("full", "y"), Status::INVAL),
        (&["b"], &["b"], rename("g", ""), Status::INVAL),
        (&["b"], &["b"], rename("..", "y"), Status::BADNAME),
        (&["b"], &["b"], rename("g", "g"), Status::OK),
        (&["a"], &["b"], rename("d", "e"), Status::OK),
    ] {
        let status = client.status(&between(from, to, op));
        assert_eq!(status, expected, "{from:?} {to:?} {op:?}");
    }
    assert!(path("b/e").is_dir());
    assert_eq!(
        client.status(&on(&["b"], rename("g", "h"))),
        Status::NOFILEHANDLE
    );
    let mut ops = vec![Op::PutRootFh, Op::SaveFh];
    ops.extend(on(&["b"], rename("exported", "x")));
    assert_eq!(client.status(&ops), Status::XDEV);
}

#[test]
fn root_a_link_is_another_name_of_the_file() {
    let served = Served::with(on_ext4);
    let path = |name: &str| served.path().join(name);
    put(&path("f"), b"data", 1000, 0o644);
    fs::create_dir(path("d")).unwrap();
    symlink("f", path("l")).unwrap();
    let mut client = served.client("one");
    let link = |name: &'static str| Op::Link(Component(name.as_bytes()));
    client.run(
        &between(&["f"], &["d"], link("g")),
        |results| match results.last() {
            Some(OpResult::Link(info)) => changed(info),
            other => panic!("{other:?}"),
        },
    );
    let inode = |name| path(name).symlink_metadata().unwrap().ino();
    assert_eq!(inode("d/g"), inode("f"));
    for (from, to, op, expected) in [
        (&["f"][..], &["d"][..], link("g"), Status::EXIST),
        (&["d"], &[], link("e"), Status::ISDIR),
        (&["f"], &["f"], link("g"), Status::NOTDIR),
        (&["f"], &["d"], link(""), Status::INVAL),
        (&["l"], &["d"], link("l"), Status::OK),
    ] {
        let status = client.status(&between(from, to, op));
        assert_eq!(status, expected, "{from:?} {to:?} {op:?}");
    }
    assert_eq!(inode("d/l"), inode("l"), "the link itself");
    assert_eq!(client.status(&on(&["d"], link("h"))), Status::NOFILEHANDLE);
    (client.uid, client.gid) = (1000, 1000);
    let status = client.status(&between(&["f"], &["d"], link("h")));
    assert_eq!(status, Status::ACCESS);
}

/// A change whose reply was kept is not made again.
#[test]
fn root_a_repeated_change_is_made_once() {
    let served = Served::new();
    let mut client = served.client("one");
    client.cache_this = true;
    let attributes = with_mode(0o755);
    let all: Vec<_> = [client.sequence_op()]
        .into_iter()
        .chain(on(&[], create(CreateType::Directory, "d", &attributes)))
        .collect();
    let message = client.compound_bytes(&all);
    let first = client.send(&message);
    first.results(|status, _| assert_eq!(status, Status::OK));
    fs::remove_dir(served.path().join("d")).unwrap();
    assert_eq!(client.send(&message).bytes, first.bytes);
    assert!(!served.path().join("d").exists());
}

/// Bytes that are left in the exported file system.
fn free_bytes(served: &Served) -> u64 {
    let stat = nix::sys::statvfs::statvfs(&served.path()).unwrap();
    stat.blocks_free() * stat.fragment_size()
}

#[test]
fn root_a_file_that_loses_its_last_name_is_there_for_those_who_have_it_open() {
    let served = Served::new();
    for name in ["removed", "replaced"] {
        put(&served.path().join(name), b"data", 0, 0o644);
    }
    put(&served.path().join("other"), b"", 0, 0o644);
    let mut client = served.client("one");
    let files = ["removed", "replaced"].map(|name| client.open(name, "owner", BOTH));
    let mut other = served.client("two");
    assert_eq!(other.status(&on(&[], remove("removed"))), Status::OK);
    let ops = between(&[], &[], rename("other", "replaced"));
    assert_eq!(other.status(&ops), Status::OK);
    for file in &files {
        client.all_attributes(&[file.put()], |all| {
            assert_eq!((all.size, all.numlinks), (Some(4), Some(0)));
        });
        client.write(file, 4, b" more", StableHow::FileSync);
        assert_eq!(client.read(file, 0, 100), (b"data more".to_vec(), true));
        client.close(file);
        assert_eq!(client.status(&[file.put()]), Status::STALE);
    }
}

/// Without an open of a client, that the file was read lately does not keep it.
#[test]
fn root_a_file_that_loses_its_last_name_gives_its_space_back() {
    let served = Served::new();
    let before = free_bytes(&served);
    let data = vec![1; 8 << 20];
    for name in ["removed", "replaced"] {
        put(&served.path().join(name), &data, 0, 0o644);
    }
    put(&served.path().join("other"), b"", 0, 0o644);
    let mut client = served.client("one");
    for name in ["removed", "replaced"] {
        let read = Op::Read(args::Read {
            stateid: Stateid::ANONYMOUS,
            offset: 0,
            count: 10,
        });
        assert_eq!(client.status(&on(&[name], read)), Status::OK);
    }
    assert!(free_bytes(&served) < before - (16 << 20) + (1 << 20));
    assert_eq!(client.status(&on(&[], remove("removed"))), Status::OK);
    let ops = between(&[], &[], rename("other", "replaced"));
    assert_eq!(client.status(&ops), Status::OK);
    assert!(free_bytes(&served) > before - (1 << 20), "{before}");
}

/// A client on Linux says that it is busy.
#[test]
fn root_what_hosts_write_over_nvme_keeps_its_name() {
    let served = Served::new();
    let path = served.path().join("disk.img");
    put(&path, b"blocks", 0, 0o644);
    let mut client = served.client("one");
    let file = FileId::of(&fs::metadata(&path).unwrap());
    let writers = served.service.exports().writers();
    let claim = writers.claim(file, 1, "namespace 1").unwrap();
    let taken = [
        on(&[], remove("disk.img")),
        between(&[], &[], rename("disk.img", "gone")),
    ];
    for ops in &taken {
        assert_eq!(client.status(ops), Status::FILE_OPEN);
    }
    let link = between(&["disk.img"], &[], Op::Link(Component(b"second")));
    assert_eq!(client.status(&link), Status::FILE_OPEN);
    drop(claim);
    assert_eq!(client.status(&taken[1]), Status::OK);
}
