//! COPY and CLONE within the server, from the bytes of calls to those of replies.

mod support;

use std::fs;

use capstan_nfs_proto::codec::{List, Opaque};
use capstan_nfs_proto::v4::args::{Clone as CloneArguments, Commit, Copy as CopyArguments, NetLoc};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::CopyOk;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{StableHow, Stateid};

use support::files::{BOTH, Opened, READ};
use support::{Client, Served, put};

/// From and to these bytes, so many.
type Bytes = (u64, u64, u64);

fn copy_ops<'a>(from: &'a Opened, to: &'a Opened, (source, target, count): Bytes) -> [Op<'a>; 4] {
    let copy = CopyArguments {
        src_stateid: from.stateid,
        dst_stateid: to.stateid,
        src_offset: source,
        dst_offset: target,
        count,
        consecutive: false,
        synchronous: false,
        source_server: List::of(&[]),
    };
    [from.put(), Op::SaveFh, to.put(), Op::Copy(copy)]
}

fn copy(client: &mut Client, from: &Opened, to: &Opened, bytes: Bytes) -> Result<CopyOk, Status> {
    client.try_run(
        &copy_ops(from, to, bytes),
        |status, results| match results {
            [_, _, _, OpResult::Copy(ok)] => Ok(*ok),
            _ => Err(status),
        },
    )
}

#[test]
fn root_data_is_copied_within_the_server() {
    let served = Served::new();
    let data: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    put(&served.path().join("from"), &data, 0, 0o644);
    put(&served.path().join("to"), b"", 0, 0o644);
    let mut client = served.client("one");
    let from = client.open("from", "o", READ);
    let to = client.open("to", "o", BOTH);
    let mut copied = 0;
    loop {
        let ok = copy(&mut client, &from, &to, (5 + copied, copied, 0)).unwrap();
        assert!(ok.synchronous && ok.consecutive && ok.response.callback_id.is_none());
        assert_eq!(ok.response.committed, StableHow::Unstable);
        let commit = [
            to.put(),
            Op::Commit(Commit {
                offset: 0,
                count: 0,
            }),
        ];
        client.run(&commit, |results| {
            assert_eq!(results[1], OpResult::Commit(ok.response.writeverf));
        });
        match ok.response.count {
            0 => break,
            count => copied += count,
        }
    }
    let stored = fs::read(served.path().join("to")).unwrap();
    assert!(stored == data[5..], "{} bytes", stored.len());

    // As many as are asked for, within one file as well.
    let ok = copy(&mut client, &to, &to, (0, 400_000, 10)).unwrap();
    assert_eq!(ok.response.count, 10);
    assert_eq!(client.read(&to, 400_000, 100), (data[5..15].to_vec(), true));
    assert_eq!(
        copy(&mut client, &to, &to, (0, 5, 10)),
        Err(Status::INVAL),
        "overlapping"
    );
    assert_eq!(
        copy(&mut client, &to, &from, (0, 0, 10)),
        Err(Status::OPENMODE)
    );
    let other = Opened {
        stateid: Stateid::CURRENT,
        ..from.clone()
    };
    assert_eq!(
        copy(&mut client, &other, &to, (0, 0, 10)),
        Err(Status::BAD_STATEID)
    );
    let [put, _, _, copy] = copy_ops(&from, &to, (0, 0, 10));
    assert_eq!(
        client.status(&[put, copy]),
        Status::NOFILEHANDLE,
        "nothing was saved"
    );
}

#[test]
fn root_a_request_has_no_more_copied_than_one_copy_moves() {
    let served = Served::new();
    let most = capstan_exports::limits::COPY_BYTES;
    put(&served.path().join("from"), b"", 0, 0o644);
    let source = fs::File::options()
        .write(true)
        .open(served.path().join("from"));
    source.unwrap().set_len(most + 10).unwrap();
    put(&served.path().join("to"), b"", 0, 0o644);
    let mut client = served.client("one");
    let from = client.open("from", "o", READ);
    let to = client.open("to", "o", BOTH);
    let [put, save, target, copy] = copy_ops(&from, &to, (0, 0, most - 5));
    let moved = |results: &[OpResult<'_>]| -> Vec<u64> {
        let copies = results.iter().filter_map(|result| match result {
            OpResult::Copy(ok) => Some(ok.response.count),
            _ => None,
        });
        copies.collect()
    };
    // The second is cut short, and the third is for another request.
    let ops = [put, save, target, copy, copy, copy];
    let (status, moved_of_each) = client.try_run(&ops, |status, results| (status, moved(results)));
    assert_eq!((status, moved_of_each), (Status::DELAY, vec![most - 5, 5]));
    let again = client.run(&ops[..4], moved);
    assert_eq!(again, [most - 5]);
}

#[test]
fn root_what_is_no_copy_within_the_server_is_refused() {
    let served = Served::new();
    put(&served.path().join("from"), b"data", 0, 0o644);
    put(&served.path().join("to"), b"", 0, 0o644);
    let mut client = served.client("one");
    let from = client.open("from", "o", READ);
    let to = client.open("to", "o", BOTH);
    let servers = [NetLoc::Name(Opaque(b"another"))];
    let [put, save, target, copy] = copy_ops(&from, &to, (0, 0, 4));
    let Op::Copy(copy) = copy else {
        panic!("{copy:?}")
    };
    let between = Op::Copy(CopyArguments {
        source_server: List::of(&servers),
        ..copy
    });
    assert_eq!(
        client.status(&[put, save, target, between]),
        Status::NOTSUPP
    );
    for op in [Op::OffloadCancel(to.stateid), Op::OffloadStatus(to.stateid)] {
        assert_eq!(client.status(&[target, op]), Status::BAD_STATEID);
        assert_eq!(client.status(&[op]), Status::NOFILEHANDLE);
    }
    // A tmpfs shares no bytes: `exports/tests/data.rs` has file systems that do.
    let clone = |from: &Opened, to: &Opened| {
        Op::Clone(CloneArguments {
            src_stateid: from.stateid,
            dst_stateid: to.stateid,
            src_offset: 0,
            dst_offset: 0,
            count: 0,
        })
    };
    let there = [put, save, target, clone(&from, &to)];
    assert_eq!(client.status(&there), Status::NOTSUPP);
    let back = [target, save, put, clone(&to, &from)];
    assert_eq!(client.status(&back), Status::OPENMODE);
}
