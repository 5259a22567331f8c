//! GETATTR, VERIFY, NVERIFY and ACCESS, from the bytes of calls to those of replies.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::SystemTime;

use capstan_exports::clients::{Access, Squash};
use capstan_exports::name::NameRule;
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args::{self, AccessRights};
use capstan_nfs_proto::v4::attr::{
    AttrNumber, Attributes, FS_CHARSET_CAP_ALLOWS_ONLY_UTF8, FS_CHARSET_CAP_CONTAINS_NON_UTF8,
};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ChangeAttrType, FileType, Fsid, Principal, Time};

use support::attributes::{
    WRITE_ONLY, encoded, fattr, readable, set_of, tells_changes_apart, to_compare,
};
use support::{Client, Served, path_ops, put, rules};

fn with(ops: &[Op<'static>], last: Op<'static>) -> Vec<Op<'static>> {
    ops.iter().copied().chain([last]).collect()
}

#[test]
fn root_attributes_of_a_file_are_those_of_the_kernel() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, &[7; 5000], 1234, 0o4750);
    fs::hard_link(&path, served.path().join("g")).unwrap();
    let found = path.metadata().unwrap();
    let mut client = served.client("one");
    client.all_attributes(&path_ops(&["f"]), |all| {
        assert_eq!(all.file_type, Some(FileType::Regular));
        assert_eq!(all.size, Some(5000));
        assert_eq!(all.mode, Some(0o4750));
        assert_eq!(all.numlinks, Some(2));
        assert_eq!(all.owner, Some(Principal::Id(1234)));
        assert_eq!(all.owner_group, Some(Principal::Id(1234)));
        assert_eq!(all.fileid, Some(found.ino()));
        assert_eq!(all.mounted_on_fileid, Some(found.ino()));
        assert_eq!(all.space_used, Some(found.blocks() * 512));
        let time = |seconds, nanoseconds: i64| {
            Some(Time {
                seconds,
                nseconds: u32::try_from(nanoseconds).unwrap(),
            })
        };
        assert_eq!(all.time_access, time(found.atime(), found.atime_nsec()));
        assert_eq!(all.time_modify, time(found.mtime(), found.mtime_nsec()));
        assert_eq!(all.time_metadata, time(found.ctime(), found.ctime_nsec()));
        assert!(all.time_create.is_some(), "tmpfs keeps it");
        let number = 0x0707_0707_0707_0707;
        let fsid = Fsid {
            major: number,
            minor: number,
        };
        assert_eq!(all.fsid, Some(fsid));
        assert_eq!(all.lease_time, Some(2), "seconds");
        assert_eq!((all.maxread, all.maxwrite), (Some(1 << 20), Some(1 << 20)));
        assert_eq!((all.maxname, all.maxlink), (Some(255), Some(u32::MAX)));
        assert_eq!((all.aclsupport, all.fh_expire_type), (Some(0), Some(0)));
        assert_eq!(all.xattr_support, Some(true));
        assert_eq!(all.clone_blksize, Some(4096));
        assert_eq!(all.change_attr_type, Some(ChangeAttrType::TimeMetadata));
        assert_eq!(all.fs_charset_cap, Some(FS_CHARSET_CAP_ALLOWS_ONLY_UTF8));
        assert_eq!(all.case_insensitive, Some(false));
        assert!(all.space_free <= all.space_total && all.space_total > Some(1 << 20));
        assert!(all.files_free < all.files_total);
    });
}

#[test]
fn root_the_change_attribute_differs_after_a_change() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let change = |client: &mut Client| {
        let requested = set_of(&[AttrNumber::CHANGE]);
        client.attributes(&path_ops(&["f"]), requested, |_, all| all.change.unwrap())
    };
    let first = change(&mut client);
    assert_eq!(change(&mut client), first);
    fs::write(served.path().join("f"), b"data").unwrap();
    assert!(change(&mut client) > first || !tells_changes_apart());
}

#[test]
fn root_what_is_supported_is_what_is_given() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    symlink("f", served.path().join("l")).unwrap();
    let mut client = served.client("one");
    for minor_version in [1, 2] {
        client.minor_version = minor_version;
        let objects = [
            vec![Op::PutRootFh],
            path_ops(&[]),
            path_ops(&["f"]),
            path_ops(&["l"]),
        ];
        for ops in objects {
            client.attributes(&ops, readable(), |given, all| {
                let supported = all.supported_attrs.unwrap();
                let given = given.or(&set_of(&WRITE_ONLY).and(&supported));
                assert_eq!(supported, given, "{minor_version} {ops:?}");
                let umask = supported.contains(AttrNumber::MODE_UMASK.0);
                assert_eq!(umask, minor_version == 2);
                assert!(!supported.contains(AttrNumber::ACL.0));
                let exclusively = all.suppattr_exclcreat.unwrap();
                assert!(exclusively.without(&supported).is_empty());
                assert!(exclusively.contains(AttrNumber::MODE.0));
                assert!(!exclusively.contains(AttrNumber::TIME_MODIFY_SET.0));
            });
        }
    }
    // What is not supported is left out, and what can only be set is refused.
    let some = set_of(&[AttrNumber::ACL, AttrNumber::SIZE, AttrNumber::FS_LOCATIONS]);
    client.attributes(&path_ops(&["f"]), some, |given, _| {
        assert_eq!(*given, set_of(&[AttrNumber::SIZE]));
    });
    for number in WRITE_ONLY {
        let ops = with(&path_ops(&["f"]), Op::GetAttr(set_of(&[number])));
        assert_eq!(client.status(&ops), Status::INVAL, "{number}");
    }
    let nothing = Op::GetAttr(Bitmap::EMPTY);
    assert_eq!(client.status(&[nothing]), Status::NOFILEHANDLE);
}

#[test]
fn root_the_way_to_an_export_is_a_file_system_of_its_own() {
    let served = Served::with(|settings| settings.names = NameRule::Raw);
    let root = served.path().metadata().unwrap().ino();
    let mut client = served.client("one");
    let pseudo = client.all_attributes(&[Op::PutRootFh], |all| {
        assert_eq!(all.file_type, Some(FileType::Directory));
        assert_eq!((all.mode, all.numlinks), (Some(0o555), Some(3)));
        assert_eq!(all.xattr_support, Some(false));
        assert_eq!(all.mounted_on_fileid, all.fileid);
        all.fsid
    });
    client.all_attributes(&path_ops(&[]), |all| {
        assert_ne!(all.fsid, pseudo);
        assert_eq!(all.fileid, Some(root));
        assert_ne!(all.mounted_on_fileid, all.fileid);
        assert_eq!(all.fs_charset_cap, Some(FS_CHARSET_CAP_CONTAINS_NON_UTF8));
    });
}

#[test]
fn root_a_handle_is_an_attribute_too() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let ops = with(&path_ops(&["f"]), Op::GetFh);
    let ops = with(&ops, Op::GetAttr(set_of(&[AttrNumber::FILEHANDLE])));
    client.run(&ops, |results| match results {
        [.., OpResult::GetFh(handle), OpResult::GetAttr(found)] => {
            let all = Attributes::decode_values(found).unwrap();
            assert_eq!(all.filehandle, Some(*handle));
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn root_verify_compares_what_is_given() {
    let served = Served::new();
    put(&served.path().join("f"), b"four", 5, 0o644);
    let mut client = served.client("one");
    let mut compare = |bytes: &[u8]| {
        [Op::Verify(fattr(bytes)), Op::NVerify(fattr(bytes))]
            .map(|op| client.status(&[path_ops(&["f"]), vec![op]].concat()))
    };
    let values = |size, owner| {
        to_compare(&Attributes {
            size: Some(size),
            owner: Some(owner),
            ..Attributes::default()
        })
    };
    let same = [Status::OK, Status::SAME];
    let other = [Status::NOT_SAME, Status::OK];
    assert_eq!(compare(&values(4, Principal::Id(5))), same);
    assert_eq!(compare(&values(5, Principal::Id(5))), other);
    assert_eq!(compare(&values(4, Principal::Id(50_000))), other);
    assert_eq!(
        compare(&values(4, Principal::Name(b"5@example.org"))),
        other
    );
    assert_eq!(compare(&values(4, Principal::Name(&[b'a'; 2000]))), other);
    let of = |numbers: &[AttrNumber]| {
        encoded(|writer| {
            capstan_nfs_proto::codec::Encode::encode(
                &capstan_nfs_proto::v4::attr::Fattr {
                    mask: set_of(numbers),
                    values: Opaque(&[0; 4]),
                },
                writer,
            )
            .unwrap();
        })
    };
    // Values that are none of theirs are not the file's.
    assert_eq!(compare(&of(&[AttrNumber::SIZE])), other);
    assert_eq!(
        compare(&of(&[AttrNumber::RDATTR_ERROR])),
        [Status::INVAL; 2]
    );
    assert_eq!(compare(&of(&[AttrNumber::MODE_UMASK])), [Status::INVAL; 2]);
    assert_eq!(compare(&of(&[AttrNumber::ACL])), [Status::ATTRNOTSUPP; 2]);
}

/// What of `asked` could be told, and what there is.
fn access(client: &mut Client, ops: &[Op<'static>], asked: AccessRights) -> [AccessRights; 2] {
    let access = Op::Access(args::Access { access: asked });
    client.run(&with(ops, access), |results| match results.last() {
        Some(OpResult::Access(ok)) => [ok.supported, ok.access],
        other => panic!("{other:?}"),
    })
}

#[test]
fn root_rights_are_those_of_the_user() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 1000, 0o640);
    fs::create_dir(served.path().join("d")).unwrap();
    fs::set_permissions(served.path().join("d"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut client = served.client("one");
    let of_file = AccessRights::all() - AccessRights::LOOKUP - AccessRights::DELETE;
    let of_directory = AccessRights::all() - AccessRights::EXECUTE;
    let reads = AccessRights::READ | AccessRights::XAREAD | AccessRights::XALIST;
    for (uid, gid, name, supported, granted) in [
        (1000, 1000, "f", of_file, of_file - AccessRights::EXECUTE),
        (1001, 1000, "f", of_file, reads),
        (1001, 1001, "f", of_file, AccessRights::empty()),
        (0, 0, "d", of_directory, of_directory),
        (1000, 1000, "d", of_directory, reads | AccessRights::LOOKUP),
    ] {
        (client.uid, client.gid) = (uid, gid);
        let found = access(&mut client, &path_ops(&[name]), AccessRights::all());
        assert_eq!(found, [supported, granted], "{uid} {gid} {name}");
    }
    let found = access(&mut client, &[Op::PutRootFh], AccessRights::all());
    assert_eq!(found[1], AccessRights::READ | AccessRights::LOOKUP);
    let asked = AccessRights::READ | AccessRights::MODIFY;
    let found = access(&mut client, &path_ops(&["d"]), asked);
    assert_eq!(found, [asked, AccessRights::READ], "no more than was asked");

    let unknown = Op::Access(args::Access {
        access: AccessRights::from_bits_retain(0x200),
    });
    assert_eq!(client.status(&with(&path_ops(&[]), unknown)), Status::INVAL);
    client.minor_version = 1;
    let later = Op::Access(args::Access {
        access: AccessRights::XAREAD,
    });
    assert_eq!(client.status(&with(&path_ops(&[]), later)), Status::INVAL);
}

#[test]
fn root_rights_end_where_the_export_ends_them() {
    let served = Served::with(|settings| {
        settings.clients = rules(Access::ReadOnly, Squash::Root);
    });
    put(&served.path().join("f"), b"", 0, 0o600);
    put(&served.path().join("g"), b"", 1000, 0o666);
    let mut client = served.client("one");
    let asked = AccessRights::READ | AccessRights::MODIFY;
    let found = access(&mut client, &path_ops(&["f"]), asked);
    assert_eq!(found, [asked, AccessRights::empty()], "root is anonymous");
    let found = access(&mut client, &path_ops(&["g"]), asked);
    assert_eq!(found, [asked, AccessRights::READ], "nothing is written");
}

#[test]
fn root_a_file_that_is_open_has_its_handle_after_its_last_name_is_gone() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 0, 0o644);
    let mut client = served.client("one");
    let handle = client.run(
        &with(&path_ops(&["f"]), Op::GetFh),
        |results| match results.last() {
            Some(OpResult::GetFh(handle)) => handle.0.to_vec(),
            other => panic!("{other:?}"),
        },
    );
    let open = fs::File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let put = Op::PutFh(Opaque(&handle));
    client.all_attributes(&[put], |all| {
        assert_eq!((all.size, all.numlinks), (Some(4), Some(0)));
    });
    drop(open);
    assert_eq!(client.status(&[put]), Status::STALE);
}

/// A client sees by it that other exports may be there, or others that it may use.
#[test]
fn root_the_directories_above_exports_are_as_old_as_the_last_reload() {
    let clock = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        i64::try_from(since.unwrap().as_secs()).unwrap()
    };
    let start = clock();
    let served = Served::new();
    let mut client = served.client("one");
    let mut look = || {
        client.all_attributes(&[Op::PutRootFh], |all| {
            let times = [all.time_access, all.time_metadata, all.time_modify];
            let [accessed, changed, modified] = times.map(Option::unwrap);
            assert!(accessed == changed && changed == modified);
            assert!((start..=clock()).contains(&changed.seconds), "{changed:?}");
            (all.change.unwrap(), (changed.seconds, changed.nseconds))
        })
    };
    let first = look();
    assert_eq!(look(), first);
    let exports = served.service.exports();
    let settings = exports
        .all()
        .iter()
        .map(|of| of.settings().clone())
        .collect();
    exports.reload(settings).unwrap();
    let reloaded = look();
    assert!(
        reloaded.0 != first.0 && reloaded.1 > first.1,
        "{reloaded:?}"
    );
}
