//! A service that comes back with nothing but stable storage: what clients reclaim, and which of
//! them wait.

mod support;

use std::fs;

use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args::{
    CreateHow, DelegationType, Lock, LockType, OpenClaim, OpenHow, Rename,
};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{Component, StableHow, Stateid, Verifier};

use support::files::{
    BOTH, Opened, READ, WRITE, create_op, fattr, mode, new_lock, open_by, open_op, opened,
};
use support::{Client, Served, path_ops, put};

fn lock(client: &mut Client, file: &Opened, reclaim: bool) -> Status {
    let lock = Lock {
        reclaim,
        ..new_lock(file, "locks", LockType::Write, (0, 10))
    };
    client.status(&[file.put(), Op::Lock(lock)])
}

/// Opens again what was open before the service restarted.
fn reclaim(client: &mut Client, file: &Opened, access: u32, deny: u32) -> Result<Opened, Status> {
    let claim = OpenClaim::Previous(DelegationType::None);
    let open = open_by(claim, "o", access, deny, OpenHow::NoCreate);
    client.try_run(&[file.put(), open], |status, results| {
        if status != Status::OK {
            return Err(status);
        }
        let stateid = opened(results).stateid;
        Ok(Opened {
            stateid,
            ..file.clone()
        })
    })
}

#[test]
fn root_opens_and_locks_are_reclaimed_before_others_have_any() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut one = served.client("one");
    let mut two = served.client("two");
    let file = one.open_with(open_op("f", "o", BOTH, WRITE));
    assert_eq!(lock(&mut one, &file, false), Status::OK);
    one.write(&file, 0, b"DATA", StableHow::FileSync);
    let read = two.open("f", "o", READ);
    drop((one, two));

    // Nothing was ended: as after kill -9.
    let served = served.restarted();
    let mut one = served.new_client("one");
    let mut two = served.new_client("two");
    let mut three = served.new_client("three");
    assert_eq!(
        one.status(&file.read(0, 1)),
        Status::BAD_STATEID,
        "of its earlier life"
    );
    // A client that has reclaimed all waits for the others, as does one that had nothing.
    assert_eq!(one.open_status(open_op("f", "o", READ, 0)), Status::GRACE);
    assert_eq!(three.status(&[Op::ReclaimComplete(false)]), Status::OK);
    assert_eq!(
        three.open_status(open_op("f", "o", WRITE, 0)),
        Status::GRACE
    );
    let anonymous = Opened {
        stateid: Stateid::ANONYMOUS,
        ..file.clone()
    };
    let write = anonymous.write(0, b"x", StableHow::FileSync);
    assert_eq!(three.status(&write), Status::GRACE);
    assert_eq!(three.status(&anonymous.read(0, 1)), Status::GRACE);
    let refused = reclaim(&mut three, &file, READ, 0);
    assert_eq!(refused.unwrap_err(), Status::NO_GRACE);
    let mut four = served.new_client("four");
    assert_eq!(
        reclaim(&mut four, &file, READ, 0).unwrap_err(),
        Status::RECLAIM_BAD
    );
    let mut buffer = Vec::new();
    let guarded = CreateHow::Guarded(fattr(&mode(0o644), &mut buffer));
    assert_eq!(
        four.open_status(create_op("new", "o", guarded)),
        Status::GRACE
    );
    assert!(!served.path().join("new").exists());

    let file = reclaim(&mut one, &file, BOTH, WRITE).unwrap();
    assert_eq!(lock(&mut one, &file, false), Status::GRACE);
    assert_eq!(lock(&mut one, &file, true), Status::OK);
    assert_eq!(one.read(&file, 0, 10), (b"DATA".to_vec(), true));
    // What conflicts cannot have been there.
    assert_eq!(
        reclaim(&mut two, &read, WRITE, 0).unwrap_err(),
        Status::RECLAIM_CONFLICT
    );
    let read = reclaim(&mut two, &read, READ, 0).unwrap();
    assert_eq!(one.status(&[Op::ReclaimComplete(false)]), Status::OK);
    assert_eq!(three.open_status(open_op("f", "o", READ, 0)), Status::GRACE);
    assert_eq!(two.status(&[Op::ReclaimComplete(false)]), Status::OK);

    // Grace is over with the last one.
    assert_eq!(two.read(&read, 0, 10).0, b"DATA");
    three.open("f", "o", READ);
    assert_eq!(
        three.open_status(open_op("f", "o", WRITE, 0)),
        Status::SHARE_DENIED
    );
    assert_eq!(
        reclaim(&mut one, &file, BOTH, 0).unwrap_err(),
        Status::NO_GRACE
    );
    assert_eq!(lock(&mut one, &file, true), Status::NO_GRACE);
    one.close(&file);
}

/// A file that its writer has made read-only, as `cp -p` and git do.
#[test]
fn root_a_writer_gets_back_what_it_could_not_open_any_more() {
    let served = Served::new();
    let mut client = served.client("one");
    (client.uid, client.gid) = (1000, 1000);
    let mut buffer = Vec::new();
    let guarded = CreateHow::Guarded(fattr(&mode(0o444), &mut buffer));
    let file = client.open_with(create_op("f", "o", guarded));
    client.write(&file, 0, b"half", StableHow::Unstable);
    drop(client);
    let served = served.restarted();
    let mut client = served.new_client("one");
    (client.uid, client.gid) = (1000, 1000);
    let file = reclaim(&mut client, &file, BOTH, 0).unwrap();
    client.write(&file, 4, b" and half", StableHow::FileSync);
    assert_eq!(client.status(&[Op::ReclaimComplete(false)]), Status::OK);
    assert_eq!(
        client.open_status(open_op("f", "other", WRITE, 0)),
        Status::ACCESS
    );
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"half and half");
}

#[test]
fn root_an_exclusive_create_whose_reply_was_lost_is_repeated_after_a_restart() {
    let served = Served::new();
    let mut client = served.client("one");
    let how = CreateHow::Exclusive(Verifier(*b"verifier"));
    let file = client.open_with(create_op("f", "o", how));
    drop(client);
    let served = served.restarted();
    let mut client = served.new_client("one");
    assert_eq!(client.open_status(create_op("f", "o", how)), Status::GRACE);
    assert_eq!(client.status(&[Op::ReclaimComplete(false)]), Status::OK);
    let again = client.open_with(create_op("f", "o", how));
    assert_eq!(again.handle, file.handle);
    let other = CreateHow::Exclusive(Verifier(*b"VERIFIER"));
    assert_eq!(
        client.open_status(create_op("f", "o", other)),
        Status::EXIST
    );
}

/// What is removed while the service is away is gone, and says so.
#[test]
fn root_a_file_that_is_gone_is_stale() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", READ);
    drop(client);
    fs::remove_file(served.path().join("f")).unwrap();
    let served = served.restarted();
    let mut client = served.new_client("one");
    assert_eq!(
        reclaim(&mut client, &file, READ, 0).unwrap_err(),
        Status::STALE
    );
    let handle = [Op::PutFh(Opaque(&file.handle)), Op::GetFh];
    client.try_run(&handle, |status, results| {
        assert_eq!((status, results.len()), (Status::STALE, 1));
        assert!(matches!(results[0], OpResult::Failed { .. }), "{results:?}");
    });
}

/// A local program has locked meanwhile what a client had: it keeps it, and the client is told that
/// its lock is lost.
#[test]
fn root_a_lock_that_a_local_user_has_now_is_not_reclaimed() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    assert_eq!(lock(&mut client, &file, false), Status::OK);
    drop(client);
    let served = served.restarted();
    let local = fs::File::options()
        .write(true)
        .open(served.path().join("f"))
        .unwrap();
    let exclusive = nix::libc::flock {
        l_type: nix::libc::c_short::try_from(nix::libc::F_WRLCK).unwrap(),
        l_whence: 0,
        l_start: 5,
        l_len: 1,
        l_pid: 0,
    };
    let set = nix::fcntl::FcntlArg::F_OFD_SETLK(&exclusive);
    nix::fcntl::fcntl(&local, set).unwrap();
    let mut client = served.new_client("one");
    let file = reclaim(&mut client, &file, BOTH, 0).unwrap();
    assert_eq!(lock(&mut client, &file, true), Status::RECLAIM_CONFLICT);
    drop(local);
    assert_eq!(lock(&mut client, &file, true), Status::OK);
}

/// What a client had open is there to be reclaimed, as nothing takes its name before.
#[test]
fn root_names_stay_until_all_is_reclaimed() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    put(&served.path().join("g"), b"", 0, 0o644);
    let mut one = served.client("one");
    let other = served.client("two");
    let file = one.open("f", "o", READ);
    drop((one, other));

    let served = served.restarted();
    let mut one = served.new_client("one");
    let mut two = served.new_client("two");
    assert_eq!(two.status(&[Op::ReclaimComplete(false)]), Status::OK);
    let component = |name: &'static str| Component(name.as_bytes());
    let in_root = |op| [path_ops(&[]), vec![Op::SaveFh, op]].concat();
    let remove = in_root(Op::Remove(component("f")));
    let rename = in_root(Op::Rename(Rename {
        oldname: component("g"),
        newname: component("f"),
    }));
    assert_eq!(two.status(&remove), Status::GRACE);
    assert_eq!(two.status(&rename), Status::GRACE);
    reclaim(&mut one, &file, READ, 0).unwrap();
    assert_eq!(one.status(&[Op::ReclaimComplete(false)]), Status::OK);
    assert_eq!(two.status(&rename), Status::OK);
    assert_eq!(two.status(&remove), Status::OK);
}

/// A folder of stable storage that is full for a moment.
#[test]
fn root_without_room_for_records_who_needs_none_goes_on() {
    let (served, folder) = Served::with_stable_bytes(64 << 10);
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut one = served.client("one");
    let file = one.open("f", "o", BOTH);
    let fill = folder.join("fill");
    let full = fs::write(&fill, vec![0; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

    // What is left of the file's last page takes some.
    let (mut waiting, name) = (0..8)
        .find_map(|number| {
            let name = number.to_string().repeat(1000);
            let mut client = served.new_client(&name);
            let status = client.status(&[Op::ReclaimComplete(false)]);
            (status == Status::DELAY).then_some((client, name))
        })
        .expect("no record of them fits into what is left");
    let get = [Op::GetAttr(Default::default())];
    assert_eq!(one.status(&[&[file.put()], &get[..]].concat()), Status::OK);
    one.write(&file, 0, b"DATA", StableHow::FileSync);
    assert_eq!(lock(&mut one, &file, false), Status::OK);
    assert_eq!(one.open_status(open_op("f", "p", READ, 0)), Status::OK);
    let anonymous = Opened {
        stateid: Stateid::ANONYMOUS,
        ..file.clone()
    };
    assert_eq!(waiting.status(&anonymous.read(0, 1)), Status::OK);
    // What a client has that may not come to be known would be lost by a restart.
    assert_eq!(
        waiting.open_status(open_op("f", "o", READ, 0)),
        Status::DELAY
    );
    let again = waiting.status(&[Op::ReclaimComplete(false)]);
    assert_eq!(again, Status::DELAY);

    fs::remove_file(&fill).unwrap();
    assert_eq!(waiting.status(&[Op::ReclaimComplete(false)]), Status::OK);
    waiting.open("f", "o", READ);
    one.close(&file);
    drop((one, waiting));
    let served = served.restarted();
    let mut client = served.new_client(&name);
    let reclaimed = reclaim(&mut client, &file, READ, 0);
    assert!(reclaimed.is_ok(), "{reclaimed:?}");
}
