//! CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use capstan_memory::{Pages, Pool};
use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::{DataItem, Encode, Opaque};
use capstan_nfs_proto::v3::NFS_V3;
use capstan_nfs_proto::v3::args::{self, CreateHow, Device, MkNodData};
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::results::{CreateResult, LinkResult, RenameResult, WccResult};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{DeviceNumbers, SetAttributes, StableHow};

use crate::client::{Client, UNSET, ok, place, with_mode};
use crate::support::attributes::tells_changes_apart;
use crate::support::files::{READ, open_op};
use crate::support::{Served, on_ext4, put};

#[test]
fn root_a_file_is_made_or_taken_as_it_is() {
    let served = Served::new();
    let mut user = Client::user(&served, 1000);
    let root = user.root();
    let unchecked = CreateHow::Unchecked(with_mode(0o640));
    let file = user.create(&root, "f", unchecked).unwrap();
    let made = user.attributes(&file).unwrap();
    assert_eq!((made.mode, made.uid, made.gid), (0o640, 1000, 1000));
    user.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    // One that is there keeps its mode and its data, unless a size is given.
    let again = CreateHow::Unchecked(with_mode(0o600));
    assert_eq!(user.create(&root, "f", again), Ok(file.clone()));
    let found = user.attributes(&file).unwrap();
    assert_eq!((found.mode, found.size), (0o640, 4));
    user.set(&file, with_mode(0o400), None).unwrap();
    let cut = SetAttributes {
        size: Some(1),
        ..with_mode(0o600)
    };
    let cut = CreateHow::Unchecked(cut);
    assert_eq!(user.create(&root, "f", cut), Ok(file.clone()));
    let found = user.attributes(&file).unwrap();
    assert_eq!((found.mode, found.size), (0o400, 1));
    // Another user gets the handle of a file that it cannot read, and cuts nothing off.
    let mut other = Client::user(&served, 1001);
    assert_eq!(other.create(&root, "f", unchecked), Ok(file.clone()));
    assert_eq!(other.create(&root, "f", cut), Err(Status::ACCES));
    let guarded = CreateHow::Guarded(with_mode(0o600));
    assert_eq!(user.create(&root, "f", guarded), Err(Status::EXIST));
    fs::create_dir(served.path().join("d")).unwrap();
    symlink("f", served.path().join("link")).unwrap();
    for taken in ["d", "link", ".", ".."] {
        assert_eq!(
            user.create(&root, taken, unchecked),
            Err(Status::EXIST),
            "{taken}"
        );
        assert_eq!(
            user.create(&root, taken, guarded),
            Err(Status::EXIST),
            "{taken}"
        );
    }
    assert_eq!(user.create(&root, "a/b", guarded), Err(Status::ACCES));
    assert_eq!(user.create(&file, "f", guarded), Err(Status::NOTDIR));
    let large = SetAttributes {
        size: Some(3),
        ..with_mode(0)
    };
    let large = user
        .create(&root, "large", CreateHow::Guarded(large))
        .unwrap();
    assert_eq!(user.attributes(&large).unwrap().size, 3);
}

#[test]
fn root_an_exclusive_file_is_made_once_for_each_verifier() {
    let served = Served::new();
    let mut user = Client::user(&served, 1000);
    let root = user.root();
    let exclusive = CreateHow::Exclusive([1, 2, 3, 4, 5, 6, 7, 8]);
    let file = user.create(&root, "f", exclusive).unwrap();
    assert_eq!(user.create(&root, "f", exclusive), Ok(file.clone()));
    let other = CreateHow::Exclusive([1, 2, 3, 4, 5, 6, 7, 9]);
    assert_eq!(user.create(&root, "f", other), Err(Status::EXIST));
    assert_eq!(user.attributes(&file).unwrap().mode, 0);
    // As a client goes on.
    let set = SetAttributes {
        mtime: capstan_nfs_proto::v3::types::SetTime::Server,
        ..with_mode(0o644)
    };
    assert_eq!(user.set(&file, set, None).unwrap().mode, 0o644);
    assert_eq!(user.create(&root, "f", exclusive), Err(Status::EXIST));
    symlink("f", served.path().join("link")).unwrap();
    assert_eq!(user.create(&root, "link", exclusive), Err(Status::EXIST));
}

#[test]
fn root_directories_links_and_special_files_are_made() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let root = client.root();
    let mkdir = |name| {
        Procedure::MkDir(args::MkDir {
            place: place(&root, name),
            attributes: with_mode(0o1750),
        })
    };
    let dir = client.made(&mkdir("d")).unwrap();
    assert_eq!(client.attributes(&dir).unwrap().mode, 0o1750);
    for name in ["d", ".", ".."] {
        assert_eq!(client.made(&mkdir(name)), Err(Status::EXIST));
    }
    let link = |name, text| {
        Procedure::SymLink(args::SymLink {
            place: place(&root, name),
            symlink_attributes: UNSET,
            symlink_data: DataItem::Inline(text),
        })
    };
    client.made(&link("link", b"../any/where")).unwrap();
    let text = fs::read_link(served.path().join("link")).unwrap();
    assert_eq!(text.as_os_str(), "../any/where");
    assert_eq!(client.made(&link("link", b"x")), Err(Status::EXIST));
    assert_eq!(client.made(&link("none", b"")), Err(Status::NOENT));
    assert_eq!(client.made(&link("nul", b"a\0b")), Err(Status::INVAL));
    let long = vec![b'x'; 4096];
    assert_eq!(client.made(&link("long", &long)), Err(Status::NAMETOOLONG));
    client.made(&link("long", &long[1..])).unwrap();

    let device = |attributes| Device {
        dev_attributes: attributes,
        spec: DeviceNumbers {
            specdata1: 1,
            specdata2: 3,
        },
    };
    let node = |name, what| {
        Procedure::MkNod(args::MkNod {
            place: place(&root, name),
            what,
        })
    };
    client
        .made(&node("fifo", MkNodData::Fifo(with_mode(0o600))))
        .unwrap();
    client
        .made(&node("socket", MkNodData::Socket(UNSET)))
        .unwrap();
    let null = MkNodData::Character(device(with_mode(0o666)));
    let null = client.made(&node("null", null)).unwrap();
    let block = MkNodData::Block(device(UNSET));
    client.made(&node("block", block)).unwrap();
    let numbers = client.attributes(&null).unwrap().rdev;
    assert_eq!((numbers.specdata1, numbers.specdata2), (1, 3));
    let here = |name| fs::symlink_metadata(served.path().join(name)).unwrap();
    assert!(here("fifo").file_type().is_fifo() && here("socket").file_type().is_socket());
    assert!(here("block").file_type().is_block_device());
    assert_eq!(here("null").rdev(), nix::sys::stat::makedev(1, 3));
    for other in [0, 1, 2, 5, 8] {
        let made = client.made(&node("other", MkNodData::Other(other)));
        assert_eq!(made, Err(Status::BADTYPE), "{other}");
    }
    // None is opened here.
    assert_eq!(client.read(&null, 0, 1), Err(Status::INVAL));
    let fifo = client.named("fifo");
    assert_eq!(client.read(&fifo, 0, 1), Err(Status::INVAL));
    let mut user = Client::user(&served, 1000);
    let null = MkNodData::Character(device(UNSET));
    assert_eq!(user.made(&node("mine", null)), Err(Status::PERM));
}

#[test]
fn root_the_text_of_a_link_may_have_been_pulled() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let root = client.root();
    let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
    let mut buffer = pool.take(8).unwrap();
    buffer.copy_from(0, b"target..");
    let link = Procedure::SymLink(args::SymLink {
        place: place(&root, "link"),
        symlink_attributes: UNSET,
        symlink_data: DataItem::Reduced {
            index: 0,
            length_bytes: 6,
        },
    });
    let (message, reduced) = client.bytes((NFS_PROGRAM, NFS_V3, 10), &|writer| {
        link.encode(writer).unwrap();
    });
    let answer = client.send_with(&message, (&reduced, &[buffer.span()]), &[]);
    let status = answer.unwrap().decode::<CreateResult<'_>>().status();
    assert_eq!(status, Status::OK);
    let text = fs::read_link(served.path().join("link")).unwrap();
    assert_eq!(text.as_os_str(), "target");
}

#[test]
fn root_entries_are_removed() {
    let served = Served::new();
    fs::create_dir_all(served.path().join("d/e")).unwrap();
    put(&served.path().join("f"), b"", 0, 0o644);
    put(&served.path().join("g"), b"", 0, 0o644);
    let mut client = Client::new(&served);
    let (root, dir, file) = (client.root(), client.named("d"), client.named("f"));
    let remove = |dir, name| Procedure::Remove(place(dir, name));
    let rmdir = |dir, name| Procedure::RmDir(place(dir, name));
    for (procedure, status) in [
        (remove(&root, "f"), Status::OK),
        (remove(&root, "f"), Status::NOENT),
        (remove(&root, "d"), Status::ISDIR),
        (remove(&root, "."), Status::ACCES),
        (remove(&root, ".."), Status::ACCES),
        (remove(&file, "f"), Status::STALE),
        (rmdir(&root, "g"), Status::NOTDIR),
        (rmdir(&root, "d"), Status::NOTEMPTY),
        (rmdir(&root, "."), Status::INVAL),
        (rmdir(&root, ".."), Status::EXIST),
        (rmdir(&root, "none"), Status::NOENT),
        (rmdir(&dir, "e"), Status::OK),
        (rmdir(&root, "d"), Status::OK),
    ] {
        assert_eq!(client.status(&procedure), status, "{procedure:?}");
    }
    assert_eq!(client.attributes(&file), Err(Status::STALE));
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), 1);
    let closed = with_mode(0o755);
    client.set(&root, closed, None).unwrap();
    let mut user = Client::user(&served, 1000);
    assert_eq!(user.status(&remove(&root, "g")), Status::ACCES);
}

#[test]
fn root_names_are_changed_within_and_between_directories() {
    let served = Served::new();
    fs::create_dir_all(served.path().join("d/e")).unwrap();
    put(&served.path().join("f"), b"f", 0, 0o644);
    put(&served.path().join("d/g"), b"g", 0, 0o644);
    let mut client = Client::new(&served);
    let (root, dir, file) = (client.root(), client.named("d"), client.named("f"));
    let rename = |client: &mut Client, from_place, to_place| {
        let answer = client.call(&Procedure::Rename(args::Rename {
            from_place,
            to_place,
        }));
        let result = answer.decode::<RenameResult>();
        let wcc = match result {
            RenameResult::Ok(wcc) | RenameResult::Failed { resfail: wcc, .. } => wcc,
        };
        (
            result.status(),
            wcc.fromdir_wcc.after.is_some(),
            wcc.todir_wcc.after.is_some(),
        )
    };
    let mut status = |from, to| rename(&mut client, from, to);
    assert_eq!(
        status(place(&root, "f"), place(&dir, "g")),
        (Status::OK, true, true)
    );
    assert_eq!(
        status(place(&root, "f"), place(&dir, "g")),
        (Status::NOENT, true, true)
    );
    let refused = |status| (status, true, true);
    for (from, to, expected) in [
        (place(&root, "d"), place(&dir, "e"), Status::INVAL),
        (place(&dir, "g"), place(&dir, "e"), Status::ISDIR),
        (place(&dir, "e"), place(&dir, "g"), Status::NOTDIR),
        (place(&dir, "."), place(&dir, "x"), Status::INVAL),
        (place(&dir, "g"), place(&dir, ".."), Status::INVAL),
        (place(&dir, "g"), place(&dir, ""), Status::ACCES),
        (place(&file, "g"), place(&dir, "x"), Status::NOTDIR),
    ] {
        assert_eq!(status(from, to), refused(expected), "{from:?} {to:?}");
    }
    let nowhere = status(place(b"no handle", "g"), place(&dir, "x"));
    assert_eq!(nowhere, (Status::BADHANDLE, false, true));
    assert_eq!(client.attributes(&file).unwrap().size, 1);
    assert_eq!(fs::read(served.path().join("d/g")).unwrap(), b"f");
}

#[test]
fn root_files_get_further_names() {
    let served = Served::new();
    fs::create_dir(served.path().join("d")).unwrap();
    put(&served.path().join("f"), b"f", 0, 0o644);
    let mut client = Client::new(&served);
    let (root, dir, file) = (client.root(), client.named("d"), client.named("f"));
    let mut link = |file: &[u8], dir: &[u8], name: &str| {
        let answer = client.call(&Procedure::Link(args::Link {
            file: Opaque(file),
            link: place(dir, name),
        }));
        match answer.decode::<LinkResult>() {
            LinkResult::Ok(wcc) => {
                assert!(wcc.linkdir_wcc.after.is_some());
                Ok(wcc.file_attributes.unwrap().nlink)
            }
            LinkResult::Failed { status, .. } => Err(status),
        }
    };
    assert_eq!(link(&file, &dir, "g"), Ok(2));
    assert_eq!(link(&file, &dir, "g"), Err(Status::EXIST));
    assert_eq!(link(&file, &dir, "."), Err(Status::EXIST));
    assert_eq!(link(&file, &file, "x"), Err(Status::NOTDIR));
    assert_eq!(link(&dir, &root, "x"), Err(Status::PERM));
    assert_eq!(client.look_up(&dir, "g"), Ok(file));
}

/// A client that gets what it has from before keeps what it knows of the directory.
#[test]
fn root_a_directory_is_told_as_it_was_before_a_change() {
    let served = Served::with(on_ext4);
    let mut client = Client::new(&served);
    let root = client.root();
    let make_dir = Procedure::MkDir(args::MkDir {
        place: place(&root, "d"),
        attributes: with_mode(0o755),
    });
    let dir = client.made(&make_dir).unwrap();
    let created = |name, how| {
        Procedure::Create(args::Create {
            place: place(&root, name),
            how,
        })
    };
    let rename = |from_place, to_place| {
        Procedure::Rename(args::Rename {
            from_place,
            to_place,
        })
    };
    let procedures = [
        created("f", CreateHow::Unchecked(with_mode(0o600))),
        created("g", CreateHow::Exclusive([1; 8])),
        rename(place(&root, "f"), place(&root, "h")),
        rename(place(&root, "h"), place(&dir, "h")),
        Procedure::Remove(place(&root, "g")),
        Procedure::MkNod(args::MkNod {
            place: place(&root, "p"),
            what: MkNodData::Fifo(with_mode(0o600)),
        }),
        Procedure::SymLink(args::SymLink {
            place: place(&root, "l"),
            symlink_attributes: UNSET,
            symlink_data: DataItem::Inline(b"x"),
        }),
    ];
    let mut known = client.attributes(&root).unwrap();
    for procedure in procedures {
        let answer = client.call(&procedure);
        let wcc = match procedure {
            Procedure::Rename(_) => match answer.decode::<RenameResult>() {
                RenameResult::Ok(ok) => ok.fromdir_wcc,
                failed => panic!("{failed:?}"),
            },
            Procedure::Remove(_) => ok(answer.decode::<WccResult>()).unwrap(),
            _ => ok(answer.decode::<CreateResult<'_>>()).unwrap().dir_wcc,
        };
        if !tells_changes_apart() {
            assert_eq!(wcc.before, None, "{procedure:?}");
            continue;
        }
        let before = wcc.before.unwrap();
        let was = (known.size, known.mtime, known.ctime);
        assert_eq!(
            (before.size, before.mtime, before.ctime),
            was,
            "{procedure:?}"
        );
        known = wcc.after.unwrap();
        assert_eq!(client.attributes(&root), Ok(known));
    }
    // Nothing is told of a directory in which nothing has changed.
    let there = created("p", CreateHow::Guarded(with_mode(0o600)));
    match client.call(&there).decode::<CreateResult<'_>>() {
        CreateResult::Failed { status, resfail } => {
            assert_eq!((status, resfail.before), (Status::EXIST, None));
        }
        made => panic!("{made:?}"),
    }
}

/// As version 4 has it: a file that loses its last name could not be reclaimed.
#[test]
fn root_no_name_is_taken_while_clients_of_version_4_reclaim() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    put(&served.path().join("g"), b"", 0, 0o644);
    let mut other = served.client("version 4");
    other.open_with(open_op("f", "owner", READ, 0));
    drop(other);
    let served = served.restarted();
    let mut client = Client::new(&served);
    let root = client.root();
    let remove = Procedure::Remove(place(&root, "f"));
    let rename = Procedure::Rename(args::Rename {
        from_place: place(&root, "g"),
        to_place: place(&root, "f"),
    });
    let renamed = |client: &mut Client| client.call(&rename).decode::<RenameResult>().status();
    assert_eq!(client.status(&remove), Status::JUKEBOX);
    assert_eq!(renamed(&mut client), Status::JUKEBOX);
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"data");
    // The client of version 4 has reclaimed all that it wants.
    let back = served.client("version 4");
    assert_eq!(renamed(&mut client), Status::OK);
    assert_eq!(client.status(&remove), Status::OK);
    drop(back);
}
