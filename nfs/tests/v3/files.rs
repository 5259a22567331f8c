//! GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, FSSTAT, FSINFO and PATHCONF.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use capstan_exports::clients::{Access, Squash};
use capstan_memory::{Pages, Pool};
use capstan_nfs_proto::codec::{DataItem, Opaque};
use capstan_nfs_proto::v3::args;
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::results::{
    AccessResult, FsInfoResult, FsProperties, FsStatResult, LookupResult, PathConfResult,
    ReadLinkResult,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{FileType, SetAttributes, SetTime, Time};

use crate::client::{Client, UNSET, ok, place, with_mode};
use crate::support::{Served, put, rules};

#[test]
fn root_attributes_are_those_of_the_file() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, &[7; 5000], 1000, 0o4640);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let found = client.attributes(&file).unwrap();
    let here = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.file_type, found.mode, found.nlink, found.size),
        (FileType::Regular, 0o4640, 1, 5000)
    );
    assert_eq!((found.uid, found.gid), (1000, 1000));
    assert_eq!(
        (found.fileid, found.used),
        (here.ino(), here.blocks() * 512)
    );
    assert_eq!(i64::from(found.mtime.seconds), here.mtime());
    assert_eq!(i64::from(found.ctime.nseconds), here.ctime_nsec());
    let root = client.root();
    let of_root = client.attributes(&root).unwrap();
    assert_eq!(of_root.file_type, FileType::Directory);
    assert_eq!(of_root.fsid, found.fsid);

    let mut guessed = file.clone();
    *guessed.last_mut().unwrap() ^= 1;
    assert_eq!(client.attributes(&guessed), Err(Status::STALE));
    assert_eq!(client.attributes(&file[..20]), Err(Status::BADHANDLE));
    assert_eq!(client.attributes(&[]), Err(Status::BADHANDLE));
    fs::remove_file(&path).unwrap();
    assert_eq!(client.attributes(&file), Err(Status::STALE));
}

#[test]
fn root_names_lead_to_files() {
    let served = Served::new();
    fs::create_dir_all(served.path().join("d/e")).unwrap();
    put(&served.path().join("d/f"), b"data", 0, 0o644);
    let mut client = Client::new(&served);
    let root = client.root();
    let d = client.look_up(&root, "d").unwrap();
    let f = client.look_up(&d, "f").unwrap();
    assert_eq!(client.look_up(&d, "."), Ok(d.clone()));
    assert_eq!(client.look_up(&d, ".."), Ok(root.clone()));
    assert_eq!(client.look_up(&root, ".."), Ok(root.clone()));
    for (dir, name, status) in [
        (&d, "none", Status::NOENT),
        (&f, "f", Status::NOTDIR),
        (&f, ".", Status::NOTDIR),
        (&f, "..", Status::NOTDIR),
        (&d, "", Status::ACCES),
        (&d, "a/b", Status::ACCES),
        (&d, "../d", Status::ACCES),
        (&d, "\0", Status::ACCES),
    ] {
        assert_eq!(client.look_up(dir, name), Err(status), "{name:?}");
    }
    let long = "n".repeat(256);
    assert_eq!(client.look_up(&d, &long), Err(Status::NAMETOOLONG));

    // With the attributes of both.
    let answer = client.call(&Procedure::Lookup(place(&d, "f")));
    let found = ok(answer.decode::<LookupResult<'_>>()).unwrap();
    let size = found.obj_attributes.map(|attributes| attributes.size);
    assert_eq!(size, Some(4));
    let dir_type = found.dir_attributes.map(|attributes| attributes.file_type);
    assert_eq!(dir_type, Some(FileType::Directory));
    let answer = client.call(&Procedure::Lookup(place(&d, "none")));
    match answer.decode::<LookupResult<'_>>() {
        LookupResult::Failed { resfail, .. } => assert!(resfail.is_some()),
        other => panic!("{other:?}"),
    }

    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(served.path().join("d"), closed).unwrap();
    let mut user = Client::user(&served, 1000);
    assert_eq!(user.look_up(&d, "f"), Err(Status::ACCES));
    assert_eq!(user.look_up(&d, "none"), Err(Status::ACCES));
    assert!(user.attributes(&d).is_ok());
}

fn access(client: &mut Client, object: &[u8], asked: u32) -> u32 {
    let answer = client.call(&Procedure::Access(args::Access {
        object: Opaque(object),
        access: asked,
    }));
    let granted = ok(answer.decode::<AccessResult>()).unwrap();
    assert!(granted.obj_attributes.is_some());
    granted.access
}

#[test]
fn root_rights_are_what_the_kernel_gives_the_user() {
    // RFC 1813, section 3.3.4: READ 1, LOOKUP 2, MODIFY 4, EXTEND 8, DELETE 10h, EXECUTE 20h.
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    put(&served.path().join("own"), b"data", 1000, 0o700);
    let mut root_user = Client::new(&served);
    let (root, file) = (root_user.root(), root_user.named("f"));
    let mut user = Client::user(&served, 1000);
    let own = user.named("own");
    assert_eq!(access(&mut user, &file, 0x3f), 0x01);
    assert_eq!(access(&mut user, &file, 0x0c), 0);
    assert_eq!(access(&mut user, &own, 0x3f), 0x2d);
    assert_eq!(access(&mut user, &root, 0x3f), 0x1f);
    assert_eq!(access(&mut root_user, &file, 0x3f), 0x0d);
    // Rights that version 3 does not have are not given.
    assert_eq!(access(&mut root_user, &file, u32::MAX), 0x0d);
}

#[test]
fn root_nobody_is_root_where_root_is_squashed() {
    let served = Served::with(|settings| {
        settings.clients = rules(Access::ReadWrite, Squash::Root);
    });
    put(&served.path().join("f"), b"data", 0, 0o600);
    let mut client = Client::new(&served);
    let (root, file) = (client.root(), client.named("f"));
    assert_eq!(access(&mut client, &file, 0x3f), 0);
    assert_eq!(client.read(&file, 0, 10), Err(Status::ACCES));
    assert_eq!(client.set(&file, with_mode(0o666), None), Err(Status::PERM));
    let made = args::CreateHow::Guarded(with_mode(0o600));
    let made = client.create(&root, "made", made).unwrap();
    let attributes = client.attributes(&made).unwrap();
    assert_eq!((attributes.uid, attributes.gid), (65534, 65534));
}

#[test]
fn root_what_may_only_be_read_is_not_changed() {
    let served = Served::with(|settings| {
        settings.clients = rules(Access::ReadOnly, Squash::None);
    });
    put(&served.path().join("f"), b"data", 0, 0o666);
    let mut client = Client::new(&served);
    let (root, file) = (client.root(), client.named("f"));
    assert_eq!(access(&mut client, &file, 0x3f), 0x01);
    assert_eq!(client.read(&file, 0, 10), Ok((b"data".to_vec(), true)));
    assert_eq!(client.set(&file, with_mode(0o600), None), Err(Status::ROFS));
    let stable = capstan_nfs_proto::v3::types::StableHow::FileSync;
    assert_eq!(
        client.write(&file, 0, b"x", stable).err(),
        Some(Status::ROFS)
    );
    let how = args::CreateHow::Guarded(UNSET);
    assert_eq!(client.create(&root, "new", how), Err(Status::ROFS));
    assert_eq!(
        client.status(&Procedure::Remove(place(&root, "f"))),
        Status::ROFS
    );
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"data");
}

#[test]
fn root_attributes_are_set() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"0123456789", 1000, 0o444);
    let mut user = Client::user(&served, 1000);
    let file = user.named("f");
    assert_eq!(
        user.set(&file, with_mode(0o100_640), None).unwrap().mode,
        0o640
    );
    // The owner sets the size whatever the mode says (RFC 1813, section 4.4).
    user.set(&file, with_mode(0), None).unwrap();
    let size = |size| SetAttributes {
        size: Some(size),
        ..UNSET
    };
    assert_eq!(user.set(&file, size(4), None).unwrap().size, 4);
    assert_eq!(fs::read(&path).unwrap(), b"0123");
    assert_eq!(user.set(&file, size(1 << 63), None), Err(Status::FBIG));
    let mut other = Client::user(&served, 1001);
    assert_eq!(other.set(&file, size(0), None), Err(Status::ACCES));
    assert_eq!(other.set(&file, with_mode(0o777), None), Err(Status::PERM));
    let root = user.root();
    assert_eq!(user.set(&root, size(0), None), Err(Status::ISDIR));

    let time = Time {
        seconds: 4_000_000_000,
        nseconds: 999_999_999,
    };
    let times = |atime, mtime| SetAttributes {
        atime,
        mtime,
        ..UNSET
    };
    let to = times(SetTime::Client(time), SetTime::Client(time));
    let set = user.set(&file, to, None).unwrap();
    assert_eq!((set.atime, set.mtime), (time, time));
    let set = user
        .set(&file, times(SetTime::DontChange, SetTime::Server), None)
        .unwrap();
    assert_eq!(set.atime, time);
    assert_ne!(set.mtime, time);
    let none = Time {
        nseconds: 1_000_000_000,
        ..time
    };
    let to = times(SetTime::Client(none), SetTime::DontChange);
    assert_eq!(user.set(&file, to, None), Err(Status::INVAL));

    let owner = SetAttributes {
        uid: Some(1001),
        ..UNSET
    };
    assert_eq!(user.set(&file, owner, None), Err(Status::PERM));
    let mut root_user = Client::new(&served);
    assert_eq!(root_user.set(&file, owner, None).unwrap().uid, 1001);
    let none = SetAttributes {
        uid: Some(u32::MAX),
        ..UNSET
    };
    assert_eq!(root_user.set(&file, none, None), Err(Status::INVAL));
}

#[test]
fn root_a_guard_keeps_what_another_has_changed() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let before = client.attributes(&file).unwrap();
    let set = client
        .set(&file, with_mode(0o600), Some(before.ctime))
        .unwrap();
    assert_eq!(set.mode, 0o600);
    // One that the file never had: two changes within a tick of the clock have the same.
    let other = Time {
        seconds: before.ctime.seconds - 1,
        ..before.ctime
    };
    let refused = client.set(&file, with_mode(0o644), Some(other));
    assert_eq!(refused, Err(Status::NOT_SYNC));
    assert_eq!(client.attributes(&file).unwrap().mode, 0o600);
}

#[test]
fn root_links_are_read_inline_and_into_memory() {
    let served = Served::new();
    symlink("../some/where", served.path().join("link")).unwrap();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = Client::new(&served);
    let (link, file) = (client.named("link"), client.named("f"));
    let answer = client.call(&Procedure::ReadLink(Opaque(&link)));
    let read = ok(answer.decode::<ReadLinkResult<'_>>()).unwrap();
    assert_eq!(read.data, DataItem::Inline(b"../some/where"));
    let found = read.symlink_attributes.unwrap();
    assert_eq!((found.file_type, found.size), (FileType::SymbolicLink, 13));
    let answer = client.call(&Procedure::ReadLink(Opaque(&file)));
    let failed = ok(answer.decode::<ReadLinkResult<'_>>());
    assert_eq!(failed.err(), Some(Status::INVAL));

    let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
    let buffer = pool.take(4096).unwrap();
    let message = client.procedure_bytes(&Procedure::ReadLink(Opaque(&link)));
    let answer = client.send_with(&message, (&[], &[]), &[Some(buffer.span())]);
    let answer = answer.unwrap();
    let read = ok(answer.decode::<ReadLinkResult<'_>>()).unwrap();
    assert_eq!(read.data.length_bytes(), 13);
    assert!(matches!(read.data, DataItem::Reduced { index: 0, .. }));
    let mut text = [0; 13];
    buffer.copy_to(0, &mut text);
    assert_eq!(text, *b"../some/where");
}

#[test]
fn root_file_systems_tell_their_limits() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let root = client.root();
    let answer = client.call(&Procedure::FsStat(Opaque(&root)));
    let stat = ok(answer.decode::<FsStatResult>()).unwrap();
    let here = nix::sys::statfs::statfs(&served.path()).unwrap();
    let unit = u64::try_from(here.block_size()).unwrap();
    assert_eq!(stat.tbytes, here.blocks() * unit);
    assert_eq!(stat.tfiles, here.files());
    assert!(stat.abytes <= stat.fbytes && stat.fbytes <= stat.tbytes);

    let answer = client.call(&Procedure::FsInfo(Opaque(&root)));
    let info = ok(answer.decode::<FsInfoResult>()).unwrap();
    assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
    assert!(
        info.properties
            .contains(FsProperties::LINK | FsProperties::CANSETTIME)
    );

    let answer = client.call(&Procedure::PathConf(Opaque(&root)));
    let limits = ok(answer.decode::<PathConfResult>()).unwrap();
    assert_eq!((limits.name_max, limits.no_trunc), (255, true));
    assert!(limits.case_preserving && !limits.case_insensitive);

    for procedure in [
        Procedure::FsStat(Opaque(b"no handle")),
        Procedure::FsInfo(Opaque(b"no handle")),
        Procedure::PathConf(Opaque(b"no handle")),
    ] {
        let answer = client.call(&procedure);
        let failed = answer.decode::<FsStatResult>();
        assert_eq!(failed.status(), Status::BADHANDLE, "{procedure:?}");
    }
}
