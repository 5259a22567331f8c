//! Requests of one client that are carried out at the same time, on one file and for one owner.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use capstan_nfs_proto::v4::args::{LockType, OpenDowngrade, ShareAccess, ShareDeny, Unlock};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{StableHow, Stateid};

use support::files::{BOTH, Opened, READ, WRITE, lock_again, new_lock};
use support::{Client, Served, put};

/// How often this process has the file open.
fn open_files(path: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
    targets.filter(|target| target == path).count()
}

fn lock_ops<'a>(file: &'a Opened, known: Option<Stateid>) -> [Op<'a>; 2] {
    let lock = match known {
        Some(stateid) => lock_again(stateid, LockType::Read, (0, 10)),
        None => new_lock(file, "locks", LockType::Read, (0, 10)),
    };
    [file.put(), Op::Lock(lock)]
}

/// What one slot does for a while: how often each status was answered.
fn use_slot(client: &mut Client) -> BTreeMap<&'static str, usize> {
    let mut statuses = BTreeMap::new();
    for turn in 0..150_u32 {
        let access = [READ, WRITE, BOTH][(turn as usize + client.slot as usize) % 3];
        let mut file = client.open("f", "owner", access);
        // The latest of it, as others change it as well.
        file.stateid.seqid = 0;
        let locked = client.try_run(&lock_ops(&file, None), |status, results| match results {
            [_, OpResult::Lock(stateid)] => Ok(Stateid {
                seqid: 0,
                ..*stateid
            }),
            _ => Err(status),
        });
        let mut told = vec![locked.err().unwrap_or(Status::OK)];
        if let Ok(lock_stateid) = locked {
            told.push(client.status(&lock_ops(&file, Some(lock_stateid))));
            let by_lock = Opened {
                stateid: lock_stateid,
                ..file.clone()
            };
            told.push(client.status(&by_lock.write(0, b"data", StableHow::Unstable)));
            let unlock = Op::LockU(Unlock {
                locktype: LockType::Read,
                seqid: 0,
                lock_stateid,
                offset: 0,
                length: u64::MAX,
            });
            told.push(client.status(&[file.put(), unlock]));
            told.push(client.status(&[Op::FreeStateid(lock_stateid)]));
        }
        let downgrade = Op::OpenDowngrade(OpenDowngrade {
            open_stateid: file.stateid,
            seqid: 0,
            share_access: ShareAccess(access),
            share_deny: ShareDeny(0),
        });
        told.push(client.status(&[file.put(), downgrade]));
        told.push(client.status(&file.read(0, 4)));
        told.push(client.status(&file.close()));
        for status in told {
            let status = match status {
                Status::OK => "ok",
                // Of what another slot has closed, freed, narrowed, or is changing.
                Status::BAD_STATEID => "bad stateid",
                Status::OPENMODE => "open mode",
                Status::LOCKS_HELD => "locks held",
                Status::DELAY => "delay",
                Status::INVAL => "no such downgrade",
                other => panic!("{other}"),
            };
            *statuses.entry(status).or_default() += 1;
        }
    }
    statuses
}

#[test]
fn root_nothing_stays_open_behind_requests_that_meet() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 0, 0o644);
    let mut first = served.client("one");
    // Of all slots alike, from the first request of each on.
    let slots: Vec<_> = (1..4)
        .map(|slot| {
            let mut client = first.clone();
            (client.slot, client.sequence) = (slot, 1);
            client
        })
        .collect();
    let mut statuses: BTreeMap<_, usize> = BTreeMap::new();
    thread::scope(|scope| {
        let mut threads: Vec<_> = slots
            .into_iter()
            .map(|mut client| scope.spawn(move || use_slot(&mut client)))
            .collect();
        let own = use_slot(&mut first);
        for told in threads
            .drain(..)
            .map(|thread| thread.join().unwrap())
            .chain([own])
        {
            for (status, times) in told {
                *statuses.entry(status).or_default() += times;
            }
        }
    });
    assert!(
        statuses["ok"] > 1000 && statuses["bad stateid"] > 0,
        "{statuses:?}"
    );
    // Each has closed what it opened, or found it closed: only unsynced data is left.
    let file = first.open("f", "owner", BOTH);
    let commit = Op::Commit(capstan_nfs_proto::v4::args::Commit {
        offset: 0,
        count: 0,
    });
    first.run(&[file.put(), commit], |_results| ());
    assert_eq!(open_files(&path), 1, "{statuses:?}");
    first.close(&file);
    assert_eq!(open_files(&path), 0, "{statuses:?}");
}
