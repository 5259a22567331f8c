//! LOCK, LOCKT and LOCKU, from the bytes of calls to those of replies, beside clients and local
//! users.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use capstan_nfs_proto::codec::List;
use capstan_nfs_proto::v4::args::{Lock, LockType, TestLock, Unlock};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, StableHow, Stateid};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use support::files::{BOTH, Opened, READ, lock_again, new_lock, open_op, owner_of};
use support::{Client, Served, path_ops, put};

const ALL: (u64, u64) = (0, u64::MAX);

/// A lock in the way.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Denied {
    range: (u64, u64),
    locktype: LockType,
    is_local: bool,
    owner: Vec<u8>,
}

/// What became of a LOCK or LOCKT.
type Locked<T> = Result<T, (Status, Option<Denied>)>;

fn refused<T>(status: Status, results: &[OpResult<'_>], op: OpNum) -> Locked<T> {
    Err((
        status,
        match results.last() {
            Some(OpResult::LockDenied { op: of, denied }) => {
                assert_eq!(*of, op);
                Some(Denied {
                    range: (denied.offset, denied.length),
                    locktype: denied.locktype,
                    is_local: denied.owner.clientid == ClientId(0),
                    owner: denied.owner.owner.0.to_vec(),
                })
            }
            _ => None,
        },
    ))
}

fn lock(client: &mut Client, file: &Opened, lock: Lock<'_>) -> Locked<Stateid> {
    client.try_run(
        &[file.put(), Op::Lock(lock)],
        |status, results| match results {
            [_, OpResult::Lock(stateid)] => Ok(*stateid),
            _ => refused(status, results, OpNum::LOCK),
        },
    )
}

fn test_lock(
    client: &mut Client,
    file: &Opened,
    owner: &str,
    locktype: LockType,
    (offset, length): (u64, u64),
) -> Locked<()> {
    let test = TestLock {
        locktype,
        offset,
        length,
        owner: owner_of(owner),
    };
    client.try_run(
        &[file.put(), Op::LockT(test)],
        |status, results| match results {
            [_, OpResult::Done(OpNum::LOCKT)] => Ok(()),
            _ => refused(status, results, OpNum::LOCKT),
        },
    )
}

fn unlock(
    client: &mut Client,
    file: &Opened,
    lock_stateid: Stateid,
    (offset, length): (u64, u64),
) -> Result<Stateid, Status> {
    let locktype = LockType::Write;
    let unlock = Unlock {
        locktype,
        seqid: 0,
        lock_stateid,
        offset,
        length,
    };
    client.try_run(
        &[file.put(), Op::LockU(unlock)],
        |status, results| match results {
            [_, OpResult::LockU(stateid)] => Ok(*stateid),
            _ => Err(status),
        },
    )
}

/// A program on this machine that has the file open.
struct Local(File);

impl Local {
    fn open(path: &Path) -> Self {
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    fn flock(kind: libc::c_int, (offset, length): (i64, i64)) -> libc::flock {
        libc::flock {
            l_type: libc::c_short::try_from(kind).unwrap(),
            l_whence: 0,
            l_start: offset,
            l_len: length,
            l_pid: 0,
        }
    }

    /// An OFD lock.
    fn lock(&self, kind: libc::c_int, range: (i64, i64)) -> Result<(), Errno> {
        let lock = Self::flock(kind, range);
        fcntl(&self.0, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
    }

    /// A lock of the process (POSIX).
    fn lock_for_process(&self, kind: libc::c_int, range: (i64, i64)) -> Result<(), Errno> {
        let lock = Self::flock(kind, range);
        fcntl(&self.0, FcntlArg::F_SETLK(&lock)).map(drop)
    }

    /// What is in the way of an exclusive lock on all of the file.
    fn met(&self) -> Option<(libc::c_int, i64, i64)> {
        let mut lock = Self::flock(libc::F_WRLCK, (0, 0));
        fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut lock)).unwrap();
        let kind = libc::c_int::from(lock.l_type);
        (kind != libc::F_UNLCK).then_some((kind, lock.l_start, lock.l_len))
    }
}

#[test]
fn root_locks_of_clients_keep_one_another_out() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut one = served.client("one");
    let mut two = served.client("two");
    let (ours, theirs) = (one.open("f", "o", BOTH), two.open("f", "o", BOTH));
    let first = lock(
        &mut one,
        &ours,
        new_lock(&ours, "a", LockType::Write, (10, 10)),
    )
    .unwrap();
    assert_eq!(first.seqid, 1);
    let denied = Denied {
        range: (10, 10),
        locktype: LockType::Write,
        is_local: false,
        owner: b"a".to_vec(),
    };
    // Requests to wait are told the same: the server calls no client back.
    for locktype in [
        LockType::Read,
        LockType::Write,
        LockType::ReadBlocking,
        LockType::WriteBlocking,
    ] {
        let met = lock(&mut two, &theirs, new_lock(&theirs, "b", locktype, (19, 5)));
        assert_eq!(
            met,
            Err((Status::DENIED, Some(denied.clone()))),
            "{locktype:?}"
        );
        let met = test_lock(&mut two, &theirs, "b", locktype, (0, u64::MAX));
        assert_eq!(
            met,
            Err((Status::DENIED, Some(denied.clone()))),
            "{locktype:?}"
        );
    }
    // Owners of one client as well; the same owner of another client is another owner.
    assert!(
        lock(
            &mut one,
            &ours,
            new_lock(&ours, "c", LockType::Read, (10, 1))
        )
        .is_err()
    );
    assert!(
        lock(
            &mut two,
            &theirs,
            new_lock(&theirs, "a", LockType::Read, (10, 1))
        )
        .is_err()
    );
    assert_eq!(
        test_lock(&mut one, &ours, "a", LockType::Write, ALL),
        Ok(())
    );
    assert_eq!(
        test_lock(&mut two, &theirs, "b", LockType::Write, (20, 5)),
        Ok(())
    );

    // Shared behind it, and where it becomes shared.
    let again = lock(&mut one, &ours, lock_again(first, LockType::Read, (10, 5))).unwrap();
    assert_eq!((again.seqid, again.other), (2, first.other));
    let shared = lock(
        &mut two,
        &theirs,
        new_lock(&theirs, "b", LockType::Read, (12, 3)),
    )
    .unwrap();
    assert!(
        lock(
            &mut two,
            &theirs,
            lock_again(shared, LockType::Write, (12, 3))
        )
        .is_err()
    );
    let old = lock(&mut one, &ours, lock_again(first, LockType::Read, (10, 5)));
    assert_eq!(old, Err((Status::OLD_STATEID, None)));
    // I/O by the stateid of locks.
    let by_lock = Opened {
        stateid: again,
        ..ours.clone()
    };
    one.write(&by_lock, 0, b"D", StableHow::FileSync);
    assert_eq!(one.read(&by_lock, 0, 4).0, b"Data");

    let rest = unlock(&mut one, &ours, again, (0, 15)).unwrap();
    let upgraded = lock(
        &mut two,
        &theirs,
        lock_again(shared, LockType::Write, (12, 3)),
    );
    assert!(upgraded.is_ok(), "{upgraded:?}");
    assert!(
        lock(
            &mut two,
            &theirs,
            new_lock(&theirs, "b", LockType::Write, (15, 1))
        )
        .is_err()
    );
    one.close(&ours);
    assert_eq!(unlock(&mut one, &ours, rest, ALL), Err(Status::BAD_STATEID));
    assert!(
        lock(
            &mut two,
            &theirs,
            new_lock(&theirs, "b", LockType::Write, ALL)
        )
        .is_ok()
    );
}

#[test]
fn root_local_users_and_clients_heed_each_other() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    let local = Local::open(&path);
    local.lock(libc::F_RDLCK, (100, 10)).unwrap();
    let denied = |locktype, range| {
        let owner = b"local".to_vec();
        let denied = Denied {
            range,
            locktype,
            is_local: true,
            owner,
        };
        Err((Status::DENIED, Some(denied)))
    };
    let write = new_lock(&file, "a", LockType::Write, (0, 101));
    let met = lock(&mut client, &file, write).map(drop);
    assert_eq!(met, denied(LockType::Read, (100, 10)));
    let tested = test_lock(&mut client, &file, "a", LockType::Write, ALL);
    assert_eq!(tested, denied(LockType::Read, (100, 10)));
    // What failed has left nothing.
    assert_eq!(local.met(), None);
    let shared = lock(
        &mut client,
        &file,
        new_lock(&file, "a", LockType::Read, (0, 101)),
    )
    .unwrap();
    assert_eq!(local.met(), Some((libc::F_RDLCK, 0, 101)));
    assert_eq!(local.lock(libc::F_WRLCK, (100, 1)), Err(Errno::EAGAIN));
    let failed = lock(&mut client, &file, lock_again(shared, LockType::Write, ALL));
    assert_eq!(failed.unwrap_err().0, Status::DENIED);
    assert_eq!(local.met(), Some((libc::F_RDLCK, 0, 101)), "as it was");

    local.lock(libc::F_UNLCK, (0, 0)).unwrap();
    let all = lock(&mut client, &file, lock_again(shared, LockType::Write, ALL)).unwrap();
    assert_eq!(local.met(), Some((libc::F_WRLCK, 0, 0)));
    let rest = unlock(&mut client, &file, all, (5, u64::MAX)).unwrap();
    assert_eq!(local.met(), Some((libc::F_WRLCK, 0, 5)));
    // POSIX locks of a process, to the end of the file.
    local.lock_for_process(libc::F_WRLCK, (7, 0)).unwrap();
    let tested = test_lock(&mut client, &file, "a", LockType::Read, ALL);
    assert_eq!(tested, denied(LockType::Write, (7, u64::MAX)));
    // A lock behind all that files can have is the server's alone.
    let behind = lock(
        &mut client,
        &file,
        lock_again(rest, LockType::Write, (1 << 63, u64::MAX)),
    );
    let behind = behind.unwrap();
    unlock(&mut client, &file, behind, ALL).unwrap();
    assert_eq!(
        local.met(),
        Some((libc::F_WRLCK, 7, 0)),
        "its own process's"
    );
    client.close(&file);
}

#[test]
fn root_what_cannot_be_locked_says_why() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    put(&served.path().join("g"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", READ);
    let other = client.open("g", "o", BOTH);
    let mut status = |lock: Lock<'_>| client.status(&[file.put(), Op::Lock(lock)]);
    for range in [(0, 0), (u64::MAX, 2), (2, u64::MAX - 1)] {
        let lock = new_lock(&file, "a", LockType::Read, range);
        assert_eq!(status(lock), Status::INVAL, "{range:?}");
    }
    assert_eq!(
        status(new_lock(&file, "a", LockType::Write, ALL)),
        Status::OPENMODE
    );
    assert_eq!(
        status(new_lock(&other, "a", LockType::Write, ALL)),
        Status::BAD_STATEID
    );
    assert_eq!(
        status(lock_again(file.stateid, LockType::Read, ALL)),
        Status::BAD_STATEID
    );
    let reclaim = Lock {
        reclaim: true,
        ..new_lock(&file, "a", LockType::Read, ALL)
    };
    assert_eq!(status(reclaim), Status::NO_GRACE);
    assert_eq!(
        status(new_lock(&file, "a", LockType::Read, ALL)),
        Status::OK
    );
    for op in [
        Op::Lock(new_lock(&file, "a", LockType::Read, ALL)),
        Op::LockT(TestLock {
            locktype: LockType::Read,
            offset: 0,
            length: 1,
            owner: owner_of("a"),
        }),
    ] {
        let ops = [path_ops(&[]), vec![op]].concat();
        assert_eq!(client.status(&ops), Status::ISDIR);
        assert_eq!(client.status(&[op]), Status::NOFILEHANDLE);
    }
    // A lock owner locks for what the open becomes, on the locks it has.
    let wider = client.open("f", "o", BOTH);
    let lock = new_lock(&wider, "a", LockType::Write, (0, 10));
    assert_eq!(client.status(&[wider.put(), Op::Lock(lock)]), Status::OK);
    let local = Local::open(&served.path().join("f"));
    assert_eq!(local.met(), Some((libc::F_WRLCK, 0, 10)));
}

#[test]
fn root_stateids_of_locks_are_tested_and_freed() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    let held = lock(
        &mut client,
        &file,
        new_lock(&file, "a", LockType::Write, (0, 5)),
    )
    .unwrap();
    let free = |client: &mut Client, stateid| client.status(&[Op::FreeStateid(stateid)]);
    assert_eq!(free(&mut client, held), Status::LOCKS_HELD);
    assert_eq!(free(&mut client, file.stateid), Status::LOCKS_HELD);
    let unlocked = unlock(&mut client, &file, held, ALL).unwrap();
    let tested = |client: &mut Client, stateids: &[Stateid]| {
        client.run(
            &[Op::TestStateid(List::of(stateids))],
            |results| match results[0] {
                OpResult::TestStateid(statuses) => statuses.iter().collect::<Vec<_>>(),
                ref other => panic!("{other:?}"),
            },
        )
    };
    assert_eq!(
        tested(&mut client, &[unlocked, held, file.stateid]),
        [Status::OK, Status::OLD_STATEID, Status::OK]
    );
    assert_eq!(free(&mut client, unlocked), Status::OK);
    assert_eq!(tested(&mut client, &[unlocked]), [Status::BAD_STATEID]);
    assert_eq!(
        unlock(&mut client, &file, unlocked, ALL),
        Err(Status::BAD_STATEID)
    );
}

#[test]
fn root_a_client_that_restarts_has_nothing_left() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 0, 0o644);
    let mut one = served.client("one");
    let mut two = served.client("two");
    let file = one.open_with(open_op("f", "o", BOTH, BOTH));
    lock(&mut one, &file, new_lock(&file, "a", LockType::Write, ALL)).unwrap();
    assert_eq!(
        two.open_status(open_op("f", "o", READ, 0)),
        Status::SHARE_DENIED
    );
    let local = Local::open(&path);
    assert_eq!(local.met(), Some((libc::F_WRLCK, 0, 0)));
    one.begin_as("one", [2; 8]);
    assert_eq!(local.met(), None);
    two.open("f", "o", READ);
    assert_eq!(one.status(&[Op::ReclaimComplete(false)]), Status::OK);
    assert_eq!(one.status(&file.close()), Status::BAD_STATEID);
}

/// A lease of two seconds has expired when another client wants what is locked.
#[test]
fn root_a_client_that_is_gone_is_in_the_way_for_a_lease() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 0, 0o644);
    let mut one = served.client("one");
    let mut two = served.client("two");
    let gone = one.open("f", "o", BOTH);
    lock(&mut one, &gone, new_lock(&gone, "a", LockType::Write, ALL)).unwrap();
    let file = two.open("f", "o", BOTH);
    let began = Instant::now();
    let mut tries = 0;
    loop {
        match lock(
            &mut two,
            &file,
            new_lock(&file, "a", LockType::Read, (0, 5)),
        ) {
            Ok(_) => break,
            Err((status, _)) => assert_eq!(status, Status::DENIED),
        }
        tries += 1;
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "after {tries} tries"
        );
        std::thread::yield_now();
    }
    assert!(
        tries > 0 && began.elapsed() > Duration::from_secs(1),
        "{tries} tries"
    );
    assert_eq!(Local::open(&path).met(), Some((libc::F_RDLCK, 0, 5)));
    // All that the first one had is gone.
    one.raw(&[one.sequence_op()], |status, _| {
        assert_eq!(status, Status::BADSESSION);
    });
}

/// A program that clients lock to read, and its locks when they become exclusive.
#[test]
fn root_a_lock_to_read_leaves_a_program_to_local_users() {
    let served = Served::new();
    let program = served.path().join("f");
    fs::copy("/bin/true", &program).unwrap();
    let run = || Command::new(&program).status();
    let mut client = served.client("one");
    let file = client.open("f", "o", READ);
    let mut locked = lock(
        &mut client,
        &file,
        new_lock(&file, "a", LockType::Read, (10, 10)),
    )
    .unwrap();
    for range in [(30, 10), (50, 10)] {
        let again = lock_again(locked, LockType::Read, range);
        locked = lock(&mut client, &file, again).unwrap();
    }
    assert_eq!(
        test_lock(&mut client, &file, "b", LockType::Read, ALL),
        Ok(())
    );
    assert!(run().unwrap().success(), "while it is locked to read");
    let write = lock_again(locked, LockType::Write, (10, 10));
    let refused = lock(&mut client, &file, write);
    assert_eq!(refused, Err((Status::OPENMODE, None)));

    // The owner opens it to write as well.
    let file = client.open("f", "o", BOTH);
    let local = Local::open(&program);
    lock(&mut client, &file, write).unwrap();
    assert_eq!(
        local.lock(libc::F_RDLCK, (10, 10)),
        Err(Errno::EAGAIN),
        "exclusive"
    );
    for range in [(30, 10), (50, 10)] {
        assert_eq!(local.lock(libc::F_RDLCK, range), Ok(()), "shared");
        assert_eq!(local.lock(libc::F_UNLCK, range), Ok(()));
        assert_eq!(local.lock(libc::F_WRLCK, range), Err(Errno::EAGAIN));
    }
    client.close(&file);
    assert_eq!(local.met(), None);
}
