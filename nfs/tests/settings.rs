//! SETATTR, from the bytes of calls to those of replies.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use capstan_exports::clients::{Access, Squash};
use capstan_nfs_proto::codec::{Encode, Opaque};
use capstan_nfs_proto::v4::args;
use capstan_nfs_proto::v4::attr::{AttrNumber, Fattr, SetAttributes, TimeToSet};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{MaskedMode, ModeUmask, Principal, Stateid, Time};

use support::attributes::{encoded, fattr, set_of, to_set};
use support::files::{READ, WRITE, open_op};
use support::{Client, Served, path_ops, put, rules};

/// What SETATTR of encoded attributes answers.
fn set_bytes(client: &mut Client, ops: &[Op<'_>], bytes: &[u8]) -> (Status, Bitmap) {
    set_with(client, ops, bytes, Stateid::ANONYMOUS)
}

fn set_with(
    client: &mut Client,
    ops: &[Op<'_>],
    bytes: &[u8],
    stateid: Stateid,
) -> (Status, Bitmap) {
    let set = Op::SetAttr(args::SetAttr {
        stateid,
        obj_attributes: fattr(bytes),
    });
    let ops: Vec<_> = ops.iter().copied().chain([set]).collect();
    client.try_run(&ops, |status, results| match results.last() {
        Some(OpResult::SetAttr { attrsset, .. }) => (status, *attrsset),
        other => panic!("{other:?}"),
    })
}

fn set(client: &mut Client, name: &'static str, values: SetAttributes<'_>) -> (Status, Bitmap) {
    set_bytes(client, &path_ops(&[name]), &to_set(&values))
}

const NOTHING: SetAttributes<'static> = SetAttributes {
    size: None,
    mode: None,
    owner: None,
    owner_group: None,
    time_access_set: None,
    time_create: None,
    time_modify_set: None,
    mode_set_masked: None,
    mode_umask: None,
};

#[test]
fn root_what_is_set_is_there_and_told() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 1000, 0o644);
    let mut client = served.client("one");
    let time = |seconds, nseconds| Time { seconds, nseconds };
    let values = SetAttributes {
        size: Some(2),
        mode: Some(0o4711),
        owner: Some(Principal::Id(1001)),
        owner_group: Some(Principal::Id(1002)),
        time_access_set: Some(TimeToSet::Client(time(-5, 7))),
        time_modify_set: Some(TimeToSet::Client(time(1 << 32, 999_999_999))),
        ..NOTHING
    };
    assert_eq!(
        set(&mut client, "f", values),
        (Status::OK, values.present())
    );
    let found = path.metadata().unwrap();
    assert_eq!((found.size(), found.mode() & 0o7777), (2, 0o4711));
    assert_eq!((found.uid(), found.gid()), (1001, 1002));
    assert_eq!((found.atime(), found.atime_nsec()), (-5, 7));
    assert_eq!((found.mtime(), found.mtime_nsec()), (1 << 32, 999_999_999));

    // Some bits of the mode, and the server's time.
    let values = SetAttributes {
        mode_set_masked: Some(MaskedMode {
            value_to_set: 0o070,
            mask_bits: 0o4070,
        }),
        time_modify_set: Some(TimeToSet::Server),
        ..NOTHING
    };
    assert_eq!(
        set(&mut client, "f", values),
        (Status::OK, values.present())
    );
    let found = path.metadata().unwrap();
    assert_eq!(found.mode() & 0o7777, 0o771);
    assert!(found.mtime() > 1_600_000_000 && found.mtime() < 1 << 32);

    // Linux sets no birth time.
    let values = SetAttributes {
        mode: Some(0o600),
        time_create: Some(time(0, 0)),
        ..NOTHING
    };
    let (status, attrsset) = set(&mut client, "f", values);
    assert_eq!(
        (status, attrsset),
        (Status::OK, set_of(&[AttrNumber::MODE]))
    );
    assert_eq!(set(&mut client, "f", NOTHING), (Status::OK, Bitmap::EMPTY));
}

#[test]
fn root_a_link_has_an_owner_and_a_directory_no_size() {
    let served = Served::new();
    symlink("nowhere", served.path().join("l")).unwrap();
    fs::create_dir(served.path().join("d")).unwrap();
    let mut client = served.client("one");
    let owner = SetAttributes {
        owner: Some(Principal::Id(7)),
        time_modify_set: Some(TimeToSet::Client(Time {
            seconds: 1,
            nseconds: 2,
        })),
        ..NOTHING
    };
    assert_eq!(set(&mut client, "l", owner), (Status::OK, owner.present()));
    let found = served.path().join("l").symlink_metadata().unwrap();
    assert_eq!((found.uid(), found.mtime()), (7, 1));
    let size = SetAttributes {
        size: Some(0),
        ..NOTHING
    };
    assert_eq!(set(&mut client, "d", size).0, Status::ISDIR);
    assert_eq!(set(&mut client, "l", size).0, Status::SYMLINK);
    let too_large = SetAttributes {
        size: Some(u64::MAX),
        ..NOTHING
    };
    put(&served.path().join("f"), b"data", 0, 0o644);
    assert_eq!(set(&mut client, "f", too_large).0, Status::INVAL);
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"data");
}

#[test]
fn root_the_kernel_says_who_may_set_what() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 1000, 0o666);
    let mut client = served.client("one");
    (client.uid, client.gid) = (1001, 1001);
    let mode = SetAttributes {
        mode: Some(0o777),
        ..NOTHING
    };
    assert_eq!(set(&mut client, "f", mode).0, Status::PERM);
    let times = |time| SetAttributes {
        time_access_set: Some(time),
        time_modify_set: Some(time),
        ..NOTHING
    };
    let now = times(TimeToSet::Server);
    assert_eq!(set(&mut client, "f", now).0, Status::OK, "of a writer");
    let earlier = times(TimeToSet::Client(Time::default()));
    assert_eq!(set(&mut client, "f", earlier).0, Status::PERM);
    // What went before the refusal was set, and is told.
    let values = SetAttributes {
        size: Some(1),
        mode: Some(0o777),
        ..NOTHING
    };
    let size = set_of(&[AttrNumber::SIZE]);
    assert_eq!(set(&mut client, "f", values), (Status::PERM, size));
    assert_eq!(fs::read(&path).unwrap(), b"d");

    (client.uid, client.gid) = (1000, 1000);
    let away = SetAttributes {
        owner: Some(Principal::Id(1001)),
        ..NOTHING
    };
    assert_eq!(set(&mut client, "f", away).0, Status::PERM);
    assert_eq!(set(&mut client, "f", mode).0, Status::OK);
}

#[test]
fn root_where_nothing_is_written_nothing_is_set() {
    let served = Served::with(|settings| {
        settings.clients = rules(Access::ReadOnly, Squash::None);
    });
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let mode = SetAttributes {
        mode: Some(0o600),
        ..NOTHING
    };
    assert_eq!(set(&mut client, "f", mode).0, Status::ROFS);
    let pseudo = set_bytes(&mut client, &[Op::PutRootFh], &to_set(&mode));
    assert_eq!(pseudo, (Status::ROFS, Bitmap::EMPTY));
}

#[test]
fn root_what_cannot_be_set_is_refused_before_anything_is() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 1000, 0o644);
    let mut client = served.client("one");
    let with_size = |values: SetAttributes<'static>| SetAttributes {
        size: Some(0),
        ..values
    };
    for (values, expected) in [
        (
            SetAttributes {
                owner: Some(Principal::Name(b"root@example.org")),
                ..NOTHING
            },
            Status::BADOWNER,
        ),
        (
            SetAttributes {
                owner_group: Some(Principal::Id(u32::MAX)),
                ..NOTHING
            },
            Status::BADOWNER,
        ),
        (
            SetAttributes {
                mode: Some(0o10_000),
                ..NOTHING
            },
            Status::INVAL,
        ),
        (
            SetAttributes {
                mode_umask: Some(ModeUmask {
                    mode: 0o777,
                    umask: 0o022,
                }),
                ..NOTHING
            },
            Status::INVAL,
        ),
        (
            SetAttributes {
                time_modify_set: Some(TimeToSet::Client(Time {
                    seconds: 0,
                    nseconds: Time::NANOSECONDS,
                })),
                ..NOTHING
            },
            Status::INVAL,
        ),
    ] {
        let answer = set(&mut client, "f", with_size(values));
        assert_eq!(answer, (expected, Bitmap::EMPTY), "{values:?}");
    }
    let raw = |numbers: &[AttrNumber], bytes: &[u8]| {
        encoded(|writer| {
            Fattr {
                mask: set_of(numbers),
                values: Opaque(bytes),
            }
            .encode(writer)
            .unwrap();
        })
    };
    for (numbers, bytes, expected) in [
        (&[AttrNumber::ACL][..], &[0; 4][..], Status::ATTRNOTSUPP),
        (&[AttrNumber::FILEID], &[0; 8], Status::INVAL),
        (&[AttrNumber::SIZE], &[0; 4], Status::BADXDR),
        (&[AttrNumber::SIZE], &[0; 12], Status::BADXDR),
    ] {
        let answer = set_bytes(&mut client, &path_ops(&["f"]), &raw(numbers, bytes));
        assert_eq!(answer, (expected, Bitmap::EMPTY), "{numbers:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

#[test]
fn root_the_size_is_set_with_a_state_that_allows_it() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 1000, 0o644);
    let mut client = served.client("one");
    let size = to_set(&SetAttributes {
        size: Some(1),
        ..NOTHING
    });
    let ops = path_ops(&["f"]);
    for stateid in [
        Stateid {
            seqid: 1,
            other: [7; 12],
        },
        Stateid::CURRENT,
        Stateid::INVALID,
    ] {
        let (status, _) = set_with(&mut client, &ops, &size, stateid);
        assert_eq!(status, Status::BAD_STATEID, "{stateid:?}");
    }
    // No other attribute asks for one.
    let mode = to_set(&SetAttributes {
        mode: Some(0o600),
        ..NOTHING
    });
    let (status, _) = set_with(&mut client, &ops, &mode, Stateid::CURRENT);
    assert_eq!(status, Status::OK);
    for stateid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        let (status, _) = set_with(&mut client, &ops, &size, stateid);
        assert_eq!(status, Status::OK, "{stateid:?}");
    }
    // Without a state the kernel decides about the user.
    (client.uid, client.gid) = (1001, 1001);
    let (status, _) = set_with(&mut client, &ops, &size, Stateid::ANONYMOUS);
    assert_eq!(status, Status::ACCESS);
}

#[test]
fn root_the_size_is_set_through_the_open_file_of_the_state() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 1000, 0o666);
    put(&served.path().join("g"), b"data", 1000, 0o666);
    let mut client = served.client("one");
    (client.uid, client.gid) = (1001, 1001);
    let writes = client.open("f", "writes", WRITE);
    let reads = client.open("f", "reads", READ);
    let elsewhere = client.open("g", "writes", WRITE);
    // What it might when it was opened it may while it is open.
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let size = to_set(&SetAttributes {
        size: Some(1),
        ..NOTHING
    });
    let put = [writes.put()];
    for (stateid, expected) in [
        (reads.stateid, Status::OPENMODE),
        (elsewhere.stateid, Status::BAD_STATEID),
        (Stateid::ANONYMOUS, Status::ACCESS),
        (writes.stateid, Status::OK),
    ] {
        let (status, _) = set_with(&mut client, &put, &size, stateid);
        assert_eq!(status, expected, "{stateid:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"d");

    // A share reservation denies it to those without a state.
    client.close(&elsewhere);
    let mut other = served.client("two");
    other.open_with(open_op("g", "denies", READ, WRITE));
    let (status, _) = set_bytes(&mut client, &[elsewhere.put()], &size);
    assert_eq!(status, Status::LOCKED);
}
