//! An export that is taken out, with what clients have of it.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use capstan_nfs_proto::codec::List;
use capstan_nfs_proto::v4::args::{LockType, Read};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::SequenceStatus;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{StableHow, Stateid};

use support::files::{BOTH, new_lock};
use support::{Client, Served, put};

/// Descriptors of this process that are below a folder.
fn open_below(folder: &std::path::Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let paths = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    paths.filter(|path| path.starts_with(folder)).count()
}

/// What a SEQUENCE says of the client's state.
fn told(client: &mut Client) -> SequenceStatus {
    let sequence = client.sequence_op();
    client.sequence += 1;
    client.raw(&[sequence], |status, results| match results {
        [OpResult::Sequence(ok)] => ok.status_flags,
        other => panic!("{status}: {other:?}"),
    })
}

fn tested(client: &mut Client, stateids: [Stateid; 2]) -> [Status; 2] {
    client.run(
        &[Op::TestStateid(List::of(&stateids))],
        |results| match results {
            [OpResult::TestStateid(statuses)] => {
                let statuses: Vec<_> = statuses.iter().collect();
                statuses.try_into().unwrap()
            }
            other => panic!("{other:?}"),
        },
    )
}

#[test]
fn root_an_export_that_is_taken_out_keeps_nothing_open() {
    let served = Served::new();
    put(&served.path().join("open"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let mut other = served.client("other");
    let file = client.open("open", "o", BOTH);
    client.write(&file, 0, b"new", StableHow::Unstable);
    let lock = Op::Lock(new_lock(&file, "l", LockType::Write, (0, 10)));
    let locked = client.run(&[file.put(), lock], |results| match results[1] {
        OpResult::Lock(stateid) => stateid,
        ref other => panic!("{other:?}"),
    });
    let all = served.service.exports().all();
    let settings: Vec<_> = all.iter().map(|of| of.settings().clone()).collect();
    drop(all);
    let changes = served.service.exports().reload(Vec::new()).unwrap();
    served.service.exports_changed(&changes);
    drop(changes);
    // The handle is stale, and the client is told what has become of what it had.
    assert_eq!(client.status(&file.close()), Status::STALE);
    assert_eq!(told(&mut client), SequenceStatus::ADMIN_STATE_REVOKED);
    assert_eq!(told(&mut other), SequenceStatus::empty());
    let stateids = [file.stateid, locked];
    let revoked = [Status::ADMIN_REVOKED; 2];
    assert_eq!(tested(&mut client, stateids), revoked);
    assert_eq!(client.status(&[Op::FreeStateid(locked)]), Status::OK);
    assert_eq!(told(&mut client), SequenceStatus::ADMIN_STATE_REVOKED);
    // What was not committed is synced behind the answer.
    let until = Instant::now() + Duration::from_secs(10);
    while open_below(&served.path()) > 0 {
        assert!(Instant::now() < until, "{}", open_below(&served.path()));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fs::read(served.path().join("open")).unwrap(), b"newa");
    // The client goes on, with the same session, when it is there again.
    let changes = served.service.exports().reload(settings).unwrap();
    served.service.exports_changed(&changes);
    // Others have at once what it had locked, and it cannot go on as if it had it.
    let others = other.open("open", "o", BOTH);
    let lock = Op::Lock(new_lock(&others, "l", LockType::Write, (0, 10)));
    assert_eq!(other.status(&[others.put(), lock]), Status::OK);
    other.close(&others);
    let read = Op::Read(Read {
        stateid: file.stateid,
        offset: 0,
        count: 1,
    });
    assert_eq!(client.status(&[file.put(), read]), Status::ADMIN_REVOKED);
    assert_eq!(client.status(&file.close()), Status::ADMIN_REVOKED);
    assert_eq!(client.status(&[Op::FreeStateid(file.stateid)]), Status::OK);
    assert_eq!(told(&mut client), SequenceStatus::empty());
    assert_eq!(tested(&mut client, stateids), [Status::BAD_STATEID; 2]);
    let file = client.open("open", "o", BOTH);
    assert_eq!(client.read(&file, 0, 9), (b"newa".to_vec(), true));
    client.close(&file);
}
