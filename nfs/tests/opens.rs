//! OPEN, OPEN_DOWNGRADE and CLOSE, from the bytes of calls to those of replies.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use capstan_exports::clients::{Access, Squash};
use capstan_nfs::state::Config;
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args::{
    Commit, CreateHow, DelegateCurrent, DelegationType, ExclusiveCreate, OpenClaim, OpenDowngrade,
    OpenHow, ShareAccess, ShareDeny,
};
use capstan_nfs_proto::v4::attr::{AttrNumber, SetAttributes, TimeToSet};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{Delegation, NoDelegation, OpenOk, OpenResultFlags};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{Component, StableHow, Stateid, Verifier};

use support::attributes::tells_changes_apart;
use support::files::{
    BOTH, Opened, READ, WRITE, create_op, fattr, mode, open_by, open_op, opened, size,
};
use support::{Client, Served, path_ops, put, rules};

/// Carries out an OPEN in the root of the export.
fn open_ok(client: &mut Client, open: Op<'_>) -> OpenOk<'static> {
    client.run(&[path_ops(&[]), vec![open]].concat(), opened)
}

fn bits(numbers: &[AttrNumber]) -> Bitmap {
    numbers.iter().map(|number| number.0).collect()
}

const VERIFIER_TIMES: [AttrNumber; 2] = [AttrNumber::TIME_ACCESS, AttrNumber::TIME_MODIFY];

#[test]
fn root_what_is_there_is_opened_and_closed() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let first = open_ok(&mut client, open_op("f", "owner", READ, 0));
    assert_eq!(first.rflags, OpenResultFlags::LOCKTYPE_POSIX);
    assert_eq!(first.delegation, Delegation::None);
    assert_eq!(first.attrset, Bitmap::EMPTY);
    assert_eq!(first.cinfo.before, first.cinfo.after);
    assert!(first.cinfo.atomic, "it has changed nothing");
    assert_eq!(first.stateid.seqid, 1);

    // The same owner's open is widened, with one stateid (RFC 8881, section 9.9).
    let file = client.open("f", "owner", WRITE);
    assert_eq!(
        (file.stateid.seqid, file.stateid.other),
        (2, first.stateid.other)
    );
    client.write(&file, 0, b"DA", StableHow::FileSync);
    assert_eq!(client.read(&file, 0, 10), (b"DAta".to_vec(), true));
    let other = client.open("f", "another", READ);
    assert_ne!(other.stateid.other, file.stateid.other);
    let refused = client.status(&other.write(0, b"x", StableHow::FileSync));
    assert_eq!(refused, Status::OPENMODE);

    client.run(&file.close(), |results| {
        assert_eq!(results[1], OpResult::Close(Stateid::INVALID));
    });
    assert_eq!(client.status(&file.read(0, 1)), Status::BAD_STATEID);
    assert_eq!(client.status(&file.close()), Status::BAD_STATEID);
    assert_eq!(client.read(&other, 0, 1).0, b"D");
    client.close(&other);

    // The current stateid, from OPEN to CLOSE in one request (section 16.2.3.1.2).
    let current = Opened {
        handle: Vec::new(),
        stateid: Stateid::CURRENT,
    };
    let [_, close] = current.close();
    let [_, read] = current.read(0, 4);
    let ops = [
        path_ops(&[]),
        vec![open_op("f", "owner", READ, 0), read, close, read],
    ]
    .concat();
    client.try_run(&ops, |status, results| {
        assert_eq!(status, Status::BAD_STATEID, "closed");
        assert_eq!(results.len(), ops.len(), "{results:?}");
    });
}

#[test]
fn root_what_cannot_be_opened_says_why() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o600);
    fs::create_dir(served.path().join("d")).unwrap();
    std::os::unix::fs::symlink("f", served.path().join("l")).unwrap();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
    nix::unistd::mkfifo(&served.path().join("fifo"), mode).unwrap();
    let mut client = served.client("one");
    let mut status = |open: Op<'_>| client.open_status(open);
    for (name, expected) in [
        ("missing", Status::NOENT),
        ("d", Status::ISDIR),
        ("l", Status::SYMLINK),
        ("fifo", Status::WRONG_TYPE),
        ("", Status::INVAL),
        ("..", Status::BADNAME),
    ] {
        assert_eq!(status(open_op(name, "o", READ, 0)), expected, "{name}");
    }
    for (access, deny) in [(0, 0), (4, 0), (READ, 4), (READ | 0x600, 0), (0x400, 0)] {
        let open = open_op("f", "o", access, deny);
        assert_eq!(status(open), Status::INVAL, "{access:#x} {deny}");
    }
    for (claim, expected) in [
        (
            OpenClaim::DelegatePrevious(Component(b"f")),
            Status::NOTSUPP,
        ),
        (OpenClaim::DelegatePreviousFh, Status::NOTSUPP),
        (
            OpenClaim::DelegateCurrentFh(Stateid::ANONYMOUS),
            Status::BAD_STATEID,
        ),
        (
            OpenClaim::DelegateCurrent(DelegateCurrent {
                delegate_stateid: Stateid::ANONYMOUS,
                file: Component(b"f"),
            }),
            Status::BAD_STATEID,
        ),
        (OpenClaim::Fh, Status::ISDIR),
        (OpenClaim::Previous(DelegationType::None), Status::NO_GRACE),
    ] {
        let open = open_by(claim, "o", READ, 0, OpenHow::NoCreate);
        assert_eq!(status(open), expected, "{claim:?}");
    }
    let mut buffer = Vec::new();
    let unchecked = CreateHow::Unchecked(fattr(&SetAttributes::default(), &mut buffer));
    let by_handle = open_by(OpenClaim::Fh, "o", READ, 0, OpenHow::Create(unchecked));
    assert_eq!(status(by_handle), Status::INVAL);
    assert_eq!(
        client.status(&[open_op("f", "o", READ, 0)]),
        Status::NOFILEHANDLE
    );
    let below_file = [path_ops(&["f"]), vec![open_op("f", "o", READ, 0)]].concat();
    assert_eq!(client.status(&below_file), Status::NOTDIR);

    // In the pseudo file system there is nothing to be opened or made.
    let pseudo = |open| [Op::PutRootFh, open];
    assert_eq!(
        client.status(&pseudo(open_op("exported", "o", READ, 0))),
        Status::ISDIR
    );
    assert_eq!(
        client.status(&pseudo(open_op("no", "o", READ, 0))),
        Status::NOENT
    );
    assert_eq!(
        client.status(&pseudo(create_op("new", "o", unchecked))),
        Status::ROFS
    );

    client.uid = 1000;
    client.gid = 1000;
    assert_eq!(
        client.open_status(open_op("f", "o", READ, 0)),
        Status::ACCESS
    );
}

#[test]
fn root_files_are_opened_by_their_handles() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let by_handle = open_by(OpenClaim::Fh, "owner", READ, 0, OpenHow::NoCreate);
    let ops = [path_ops(&["f"]), vec![by_handle, Op::GetFh]].concat();
    let file = client.run(&ops, |results| Opened {
        handle: match results.last() {
            Some(OpResult::GetFh(handle)) => handle.0.to_vec(),
            other => panic!("{other:?}"),
        },
        stateid: opened(results).stateid,
    });
    // It stays while it is open, whatever becomes of its name.
    fs::remove_file(served.path().join("f")).unwrap();
    assert_eq!(client.read(&file, 0, 10), (b"data".to_vec(), true));
    client.close(&file);
    assert_eq!(client.status(&file.read(0, 10)), Status::STALE);
}

#[test]
fn root_files_are_made_as_the_client_says() {
    let served = Served::new();
    let mut client = served.client("one");
    client.uid = 1000;
    client.gid = 1000;
    let made = |name: &str| fs::metadata(served.path().join(name)).unwrap();
    let mut buffer = Vec::new();

    // Guarded: once.
    let guarded = CreateHow::Guarded(fattr(&mode(0o604), &mut buffer));
    let ok = open_ok(&mut client, create_op("guarded", "o", guarded));
    assert_eq!(ok.attrset, bits(&[AttrNumber::MODE]));
    let directory = fs::metadata(served.path()).unwrap();
    let changed = capstan_exports::Time {
        seconds: directory.ctime(),
        nanoseconds: u32::try_from(directory.ctime_nsec()).unwrap(),
    };
    assert_eq!(
        ok.cinfo.after,
        capstan_exports::attributes::change_of(changed)
    );
    assert!(!ok.cinfo.atomic, "a tmpfs does not tell all changes");
    assert!(ok.cinfo.before < ok.cinfo.after || !tells_changes_apart());
    let metadata = made("guarded");
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o604, 1000));
    assert_eq!(
        client.open_status(create_op("guarded", "o", guarded)),
        Status::EXIST
    );

    // Unchecked: what is there is opened as it is, or emptied.
    let mut buffer = Vec::new();
    let unchecked = CreateHow::Unchecked(fattr(&mode(0o600), &mut buffer));
    let file = client.open_with(create_op("unchecked", "o", unchecked));
    client.write(&file, 0, b"data", StableHow::FileSync);
    let again = open_ok(&mut client, create_op("unchecked", "o", unchecked));
    assert_eq!(again.attrset, Bitmap::EMPTY);
    assert_eq!(made("unchecked").len(), 4);
    let both = SetAttributes {
        size: Some(0),
        ..mode(0o666)
    };
    let mut buffer = Vec::new();
    let emptied = CreateHow::Unchecked(fattr(&both, &mut buffer));
    let ok = open_ok(&mut client, create_op("unchecked", "o", emptied));
    assert_eq!(ok.attrset, bits(&[AttrNumber::SIZE]));
    assert_eq!(
        (made("unchecked").len(), made("unchecked").mode() & 0o777),
        (0, 0o600)
    );
    let ok = open_ok(&mut client, create_op("new", "o", emptied));
    assert_eq!(ok.attrset, bits(&[AttrNumber::SIZE, AttrNumber::MODE]));
    // Another size is not looked at where the file is there (RFC 8881, section 18.16.3).
    let mut buffer = Vec::new();
    let sized = CreateHow::Unchecked(fattr(&size(10), &mut buffer));
    let ok = open_ok(&mut client, create_op("unchecked", "o", sized));
    assert_eq!((ok.attrset, made("unchecked").len()), (Bitmap::EMPTY, 0));
    // It is emptied by what the open is for.
    let claim = OpenClaim::Null(Component(b"unchecked"));
    let reading = open_by(claim, "o", READ, 0, OpenHow::Create(emptied));
    assert_eq!(client.open_status(reading), Status::INVAL);

    let wrong = SetAttributes {
        mode: Some(0o10_000),
        ..SetAttributes::default()
    };
    let mut buffer = Vec::new();
    let wrong = CreateHow::Guarded(fattr(&wrong, &mut buffer));
    assert_eq!(
        client.open_status(create_op("wrong", "o", wrong)),
        Status::INVAL
    );
    assert!(!served.path().join("wrong").exists());
}

#[test]
fn root_an_exclusive_create_is_repeated_and_made_once() {
    let served = Served::new();
    let mut client = served.client("one");
    client.uid = 1000;
    client.gid = 1000;
    let times = bits(&VERIFIER_TIMES);
    let how = |first| CreateHow::Exclusive(Verifier([first, 2, 3, 4, 5, 6, 7, 8]));
    let ok = open_ok(&mut client, create_op("f", "o", how(1)));
    assert_eq!(ok.attrset, times);
    // Neither the owner nor the client can be asked for the mode: the first reply was lost.
    let again = open_ok(&mut client, create_op("f", "o", how(1)));
    assert_eq!(
        (again.attrset, again.stateid.other),
        (times, ok.stateid.other)
    );
    assert_eq!(
        client.open_status(create_op("f", "o", how(2))),
        Status::EXIST
    );

    let verifier = Verifier([9; 8]);
    let mut buffer = Vec::new();
    let attributes = SetAttributes {
        size: Some(3),
        ..mode(0o640)
    };
    let attrs = fattr(&attributes, &mut buffer);
    let with = CreateHow::Exclusive41(ExclusiveCreate { verifier, attrs });
    let expected = times.with(AttrNumber::SIZE.0).with(AttrNumber::MODE.0);
    for _ in 0..2 {
        let ok = open_ok(&mut client, create_op("g", "o", with));
        assert_eq!(ok.attrset, expected);
    }
    let made = fs::metadata(served.path().join("g")).unwrap();
    assert_eq!((made.len(), made.mode() & 0o777), (3, 0o640));
    // The times hold the verifier.
    let attributes = SetAttributes {
        time_modify_set: Some(TimeToSet::Server),
        ..SetAttributes::default()
    };
    let mut buffer = Vec::new();
    let attrs = fattr(&attributes, &mut buffer);
    let timed = CreateHow::Exclusive41(ExclusiveCreate { verifier, attrs });
    assert_eq!(
        client.open_status(create_op("h", "o", timed)),
        Status::INVAL
    );
}

#[test]
fn root_share_reservations_keep_others_out() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut one = served.client("one");
    let mut two = served.client("two");
    let file = one.open_with(open_op("f", "o", READ, WRITE));
    assert_eq!(
        two.open_status(open_op("f", "o", WRITE, 0)),
        Status::SHARE_DENIED
    );
    assert_eq!(
        two.open_status(open_op("f", "o", READ, READ)),
        Status::SHARE_DENIED
    );
    // A file is not emptied by a caller without the right to write.
    let mut buffer = Vec::new();
    let emptied = CreateHow::Unchecked(fattr(&size(0), &mut buffer));
    assert_eq!(
        two.open_status(create_op("f", "o", emptied)),
        Status::SHARE_DENIED
    );
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"data");
    let anonymous = Opened {
        stateid: Stateid::ANONYMOUS,
        ..file.clone()
    };
    let write = anonymous.write(0, b"x", StableHow::FileSync);
    assert_eq!(two.status(&write), Status::LOCKED);
    assert_eq!(two.read(&anonymous, 0, 4).0, b"data");
    one.close(&file);
    two.open("f", "o", WRITE);
    two.write(&anonymous, 0, b"D", StableHow::FileSync);
}

fn downgrade(file: &Opened, access: u32, deny: u32) -> [Op<'_>; 2] {
    let downgrade = OpenDowngrade {
        open_stateid: file.stateid,
        seqid: 0,
        share_access: ShareAccess(access),
        share_deny: ShareDeny(deny),
    };
    [file.put(), Op::OpenDowngrade(downgrade)]
}

#[test]
fn root_opens_become_narrower_again() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    client.open("f", "o", READ);
    client.open("f", "o", WRITE);
    let file = client.open("f", "o", BOTH);
    assert_eq!(client.status(&downgrade(&file, READ, READ)), Status::INVAL);
    let narrower = |client: &mut Client, access| {
        client.run(&downgrade(&file, access, 0), |results| match results[1] {
            OpResult::OpenDowngrade(stateid) => Opened {
                stateid,
                ..file.clone()
            },
            ref other => panic!("{other:?}"),
        })
    };
    let reading = narrower(&mut client, READ);
    assert_eq!(client.read(&reading, 0, 4).0, b"data");
    let write = reading.write(0, b"x", StableHow::FileSync);
    assert_eq!(client.status(&write), Status::OPENMODE);
    assert_eq!(client.status(&file.read(0, 1)), Status::OLD_STATEID);
    // And wider, for what the file's mode lets in now.
    let wider = client.open("f", "o", WRITE);
    client.write(&wider, 0, b"D", StableHow::FileSync);
    assert_eq!(client.read(&wider, 0, 4).0, b"Data");
}

#[test]
fn root_an_owner_has_what_each_open_was_let_in_for() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 1000, 0o400);
    let mut client = served.client("one");
    client.uid = 1000;
    client.gid = 1000;
    client.open("f", "o", READ);
    assert_eq!(
        client.open_status(open_op("f", "o", WRITE, 0)),
        Status::ACCESS
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o200)).unwrap();
    let file = client.open("f", "o", WRITE);
    client.write(&file, 0, b"D", StableHow::FileSync);
    assert_eq!(client.read(&file, 0, 4).0, b"Data");
}

#[test]
fn root_a_delegation_is_refused_with_the_reason() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    for (want, expected) in [
        (0, Delegation::None),
        (0x100, Delegation::NoneExt(NoDelegation::Resource(false))),
        (0x200, Delegation::NoneExt(NoDelegation::Resource(false))),
        (0x300, Delegation::NoneExt(NoDelegation::Resource(false))),
        (0x400, Delegation::NoneExt(NoDelegation::NotWanted)),
        (0x500, Delegation::NoneExt(NoDelegation::Cancelled)),
    ] {
        let ok = open_ok(&mut client, open_op("f", "o", READ | want, 0));
        assert_eq!(ok.delegation, expected, "{want:#x}");
    }
}

#[test]
fn root_a_repeated_open_is_carried_out_once() {
    let served = Served::new();
    let mut client = served.client("one");
    client.cache_this = true;
    let mut buffer = Vec::new();
    let guarded = CreateHow::Guarded(fattr(&mode(0o644), &mut buffer));
    let sequence = vec![client.sequence_op()];
    let open = vec![create_op("f", "o", guarded), Op::GetFh];
    let message = client.compound_bytes(&[sequence, path_ops(&[]), open].concat());
    let first = client.send(&message);
    first.results(|status, _| assert_eq!(status, Status::OK));
    fs::write(served.path().join("f"), b"data").unwrap();
    assert_eq!(client.send(&message).bytes, first.bytes);
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"data");
    // Of one CLOSE as well, whose stateid is no more.
    client.sequence += 1;
    let file = first.results(|_, results| Opened {
        handle: match results.last() {
            Some(OpResult::GetFh(Opaque(handle))) => handle.to_vec(),
            other => panic!("{other:?}"),
        },
        stateid: opened(results).stateid,
    });
    let sequence = vec![client.sequence_op()];
    let message = client.compound_bytes(&[sequence, file.close().to_vec()].concat());
    let closed = client.send(&message);
    closed.results(|status, results| {
        assert_eq!((status, results[2].op()), (Status::OK, OpNum::CLOSE));
    });
    assert_eq!(client.send(&message).bytes, closed.bytes);
}

#[test]
fn root_who_may_only_read_writes_nothing() {
    let served = Served::with(|export| {
        export.clients = rules(Access::ReadOnly, Squash::None);
    });
    put(&served.path().join("f"), b"data", 0, 0o666);
    let mut client = served.client("one");
    assert_eq!(
        client.open_status(open_op("f", "o", WRITE, 0)),
        Status::ROFS
    );
    let mut buffer = Vec::new();
    let guarded = CreateHow::Guarded(fattr(&mode(0o644), &mut buffer));
    assert_eq!(
        client.open_status(create_op("new", "o", guarded)),
        Status::ROFS
    );
    let file = client.open("f", "o", READ);
    assert_eq!(client.read(&file, 0, 4).0, b"data");
    let commit = Op::Commit(Commit {
        offset: 0,
        count: 0,
    });
    assert_eq!(client.status(&[file.put(), commit]), Status::ROFS);
    let anonymous = Opened {
        stateid: Stateid::ANONYMOUS,
        ..file
    };
    let write = anonymous.write(0, b"x", StableHow::FileSync);
    assert_eq!(client.status(&write), Status::ROFS);
}

#[test]
fn root_a_client_that_opens_without_end_is_told_to_wait_and_others_go_on() {
    const OPENS: u64 = 400;
    let served = Served::with_state(Config::new().with_opens_max(OPENS), |_export| {});
    let names: Vec<_> = (0..OPENS).map(|number| format!("f{number}")).collect();
    for name in &names {
        put(&served.path().join(name), b"data", 0, 0o644);
    }
    let mut greedy = served.client("greedy");
    let mut other = served.new_client("other");
    other.peer = "192.0.2.2:700".parse().unwrap();
    other.begin("another address");
    other.run(&[Op::ReclaimComplete(false)], |_results| ());

    let mut files = Vec::new();
    let told = names.iter().find_map(|name| {
        let open = [path_ops(&[]), vec![open_op(name, "o", BOTH, 0), Op::GetFh]].concat();
        let opened = greedy.try_run(&open, |status, results| match results.last() {
            Some(OpResult::GetFh(Opaque(handle))) if status == Status::OK => Ok(Opened {
                handle: handle.to_vec(),
                stateid: opened(results).stateid,
            }),
            _ => Err(status),
        });
        opened.map(|file| files.push(file)).err()
    });
    assert_eq!(told, Some(Status::DELAY), "after {} opens", files.len());
    // What it has works as before, and so does another client.
    let last = files.last().unwrap().clone();
    greedy.write(&last, 0, b"DATA", StableHow::FileSync);
    let file = other.open("f0", "o", BOTH);
    other.write(&file, 0, b"more", StableHow::FileSync);
    assert_eq!(other.read(&file, 0, 9), (b"more".to_vec(), true));
    other.close(&file);
    // It goes on itself with what it has closed.
    let again = open_op("f399", "o", BOTH, 0);
    assert_eq!(greedy.open_status(again), Status::DELAY);
    for file in files.iter().take(10) {
        greedy.close(file);
    }
    assert_eq!(greedy.open_status(again), Status::OK);
}

/// Asked again, a GUARDED create of what was made would be told that it exists.
#[test]
fn root_no_file_is_made_where_there_is_no_room_for_its_open() {
    let served = Served::with_state(Config::new().with_opens_max(8), |_export| {});
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let mut buffer = Vec::new();
    let guarded = CreateHow::Guarded(fattr(&mode(0o644), &mut buffer));
    let mut mode_again = Vec::new();
    let unchecked = CreateHow::Unchecked(fattr(&mode(0o644), &mut mode_again));
    let owners = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let opens = owners.map(|owner| client.open_status(open_op("f", owner, READ, 0)));
    assert_eq!(opens.last(), Some(&Status::DELAY));
    let made = |name: &str| served.path().join(name).exists();
    for (name, how) in [
        ("guarded", guarded),
        ("unchecked", unchecked),
        ("exclusive", CreateHow::Exclusive(Verifier([7; 8]))),
    ] {
        let create = create_op(name, "new", how);
        assert_eq!(client.open_status(create), Status::DELAY, "{name}");
        assert!(!made(name), "{name}");
    }
    let first = client.open("f", "1", READ);
    client.close(&first);
    // What was there of room is there again, where nothing comes of it.
    fs::create_dir(served.path().join("d")).unwrap();
    for _ in 0..9 {
        let there = create_op("d", "new", guarded);
        assert_eq!(client.open_status(there), Status::EXIST);
    }
    let create = create_op("guarded", "new", guarded);
    assert_eq!(client.open_status(create), Status::OK);
    assert!(made("guarded"));
}
