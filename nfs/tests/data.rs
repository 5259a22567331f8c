//! READ, WRITE, COMMIT and the operations on data of NFSv4.2, from the bytes of calls to those of
//! replies.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use capstan_memory::{Pages, Slab, Span};
use capstan_nfs_proto::codec::{DataItem, Opaque, ReducedItem};
use capstan_nfs_proto::v4::args::{Commit, IoAdvise, Range, Read, Seek, SeekTarget};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::SeekOk;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{StableHow, Stateid, Verifier};

use support::files::{BOTH, Opened, READ, WRITE};
use support::{Client, Served, path_ops, put};

const MIB: usize = 1 << 20;

fn commit(file: &Opened) -> [Op<'_>; 2] {
    [
        file.put(),
        Op::Commit(Commit {
            offset: 5,
            count: 1,
        }),
    ]
}

fn committed(client: &mut Client, file: &Opened) -> Verifier {
    client.run(&commit(file), |results| match results[1] {
        OpResult::Commit(verifier) => verifier,
        ref other => panic!("{other:?}"),
    })
}

#[test]
fn root_data_is_written_and_read_back() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    let written = client.write(&file, 3, b"hello", StableHow::Unstable);
    assert_eq!((written.count, written.committed), (5, StableHow::Unstable));
    assert_eq!(committed(&mut client, &file), written.writeverf);
    for how in [StableHow::DataSync, StableHow::FileSync] {
        let stable = client.write(&file, 0, b"", how);
        assert_eq!((stable.count, stable.committed), (0, how));
        assert_eq!(stable.writeverf, written.writeverf);
    }
    // eof is where the data ends, and not before.
    assert_eq!(client.read(&file, 0, 100), (b"\0\0\0hello".to_vec(), true));
    assert_eq!(client.read(&file, 0, 8), (b"\0\0\0hello".to_vec(), true));
    assert_eq!(client.read(&file, 3, 4), (b"hell".to_vec(), false));
    assert_eq!(client.read(&file, 8, 4), (vec![], true));
    assert_eq!(client.read(&file, 7, 0), (vec![], false));
    assert_eq!(client.read(&file, u64::MAX, 4), (vec![], true));
    assert_eq!(
        client.read(&file, i64::MAX.cast_unsigned() - 1, 4),
        (vec![], true)
    );
    let past = file.write(i64::MAX.cast_unsigned(), b"x", StableHow::FileSync);
    assert_eq!(client.status(&past), Status::FBIG);
    // More than one READ gives is for another one.
    let large = vec![7; MIB + 5];
    fs::write(served.path().join("f"), &large).unwrap();
    let (data, eof) = client.read(&file, 0, u32::MAX);
    assert_eq!((data.len(), eof), (MIB, false));
    assert_eq!(client.read(&file, MIB as u64, u32::MAX), (vec![7; 5], true));
}

#[test]
fn root_what_is_open_and_in_memory_is_read_at_once_and_exactly_once() {
    let served = Served::new();
    put(&served.path().join("f"), b"0123456789", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    assert!(!client.at_once.get());
    for (offset, count, expected) in [
        (2, 3, (&b"234"[..], false)),
        (8, 9, (b"89", true)),
        (99, 1, (b"", true)),
    ] {
        let (data, eof) = client.read(&file, offset, count);
        assert_eq!((&*data, eof), expected);
        assert!(client.at_once.get(), "{count} bytes at {offset}");
    }
    // What comes again is answered with what was kept.
    client.cache_this = true;
    let sequence = client.sequence;
    let first = client.read(&file, 0, 4);
    fs::write(served.path().join("f"), b"other").unwrap();
    client.sequence = sequence;
    assert_eq!(client.read(&file, 0, 4), first);
    // A failure is an answer.
    let mut wrong = file.clone();
    wrong.stateid.other[3] ^= 1;
    assert_eq!(client.status(&wrong.read(0, 1)), Status::BAD_STATEID);
    // What may have to wait is new when it comes the second time, with whatever slot.
    let anonymous = Opened {
        stateid: Stateid::ANONYMOUS,
        ..file.clone()
    };
    for (file, cache_this) in [(&anonymous, true), (&anonymous, false), (&file, true)] {
        client.cache_this = cache_this;
        let sequence = client.sequence;
        assert_eq!(client.read(file, 0, 9).0, b"other");
        assert_eq!(client.at_once.get(), file.stateid != anonymous.stateid);
        client.sequence = sequence;
        let again = client.status(&file.read(0, 9));
        let expected = if cache_this {
            Status::OK
        } else {
            Status::RETRY_UNCACHED_REP
        };
        assert_eq!(again, expected);
    }
    // Another operation behind it may have to.
    let ops = [file.read(0, 1).to_vec(), vec![Op::GetFh]].concat();
    assert_eq!(client.status(&ops), Status::OK);
    assert!(!client.at_once.get());
    // Its last name is removed, and the client that has it open goes on reading it.
    fs::remove_file(served.path().join("f")).unwrap();
    assert_eq!(client.read(&file, 0, 9).0, b"other");
    assert!(client.at_once.get());
}

#[test]
fn root_data_is_of_regular_files_and_of_their_stateids() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o600);
    put(&served.path().join("g"), b"other", 0, 0o600);
    std::os::unix::fs::symlink("f", served.path().join("l")).unwrap();
    let mut one = served.client("one");
    let mut two = served.client("two");
    let file = one.open("f", "o", READ);
    let other = one.open("g", "o", READ);
    let mixed = Opened {
        stateid: other.stateid,
        ..file.clone()
    };
    assert_eq!(one.status(&mixed.read(0, 1)), Status::BAD_STATEID);
    assert_eq!(
        two.status(&file.read(0, 1)),
        Status::BAD_STATEID,
        "another client's"
    );
    let bypass = Opened {
        stateid: Stateid::READ_BYPASS,
        ..file.clone()
    };
    assert_eq!(two.read(&bypass, 0, 4).0, b"data");
    two.uid = 1000;
    assert_eq!(
        two.status(&bypass.read(0, 1)),
        Status::ACCESS,
        "by the user's own right"
    );
    let read = Op::Read(Read {
        stateid: Stateid::ANONYMOUS,
        offset: 0,
        count: 1,
    });
    let commit = Op::Commit(Commit {
        offset: 0,
        count: 0,
    });
    for (names, expected) in [(&[][..], Status::ISDIR), (&["l"], Status::SYMLINK)] {
        for op in [read, commit] {
            let ops = [path_ops(names), vec![op]].concat();
            assert_eq!(one.status(&ops), expected, "{names:?} {op:?}");
        }
    }
    assert_eq!(one.status(&[Op::PutRootFh, read]), Status::ISDIR);
    assert_eq!(one.status(&[read]), Status::NOFILEHANDLE);
}

#[test]
fn root_reads_that_do_not_fit_the_reply_say_so() {
    let served = Served::new();
    put(&served.path().join("f"), &[7; 100_000], 0, 0o600);
    let mut client = served.client("one");
    let file = client.open("f", "o", READ);
    client.cache_this = true;
    assert_eq!(client.read(&file, 0, 1000).0.len(), 1000);
    assert_eq!(
        client.status(&file.read(0, 8000)),
        Status::REP_TOO_BIG_TO_CACHE
    );
    client.cache_this = false;
    let [put, read] = file.read(0, u32::MAX);
    client.try_run(&[put, read, read], |status, results| {
        assert_eq!((status, results.len()), (Status::REP_TOO_BIG, 3));
    });
}

/// As over RDMA: data of a call was pulled into memory, and that of a reply is pushed from there.
#[test]
fn root_data_goes_through_memory_of_devices() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    let slab = Slab::new(4 * MIB, Pages::Ordinary).unwrap();
    let span = |range| Span::new(&slab, range).unwrap();
    let pulled = span(0..MIB);
    let data: Vec<u8> = (0..MIB).map(|at| u8::try_from(at % 251).unwrap()).collect();
    pulled.copy_from(0, &data);

    // What is reduced leaves its length in the message, and nothing else.
    let [put, write] = file.write(0, b"", StableHow::Unstable);
    let sequence = client.sequence_op();
    client.sequence += 1;
    let mut message = client.compound_bytes(&[sequence, put, write]);
    let length = u32::try_from(data.len() - 3).unwrap();
    let at = message.len() - 4;
    message[at..].copy_from_slice(&length.to_be_bytes());
    let item = ReducedItem {
        position: u32::try_from(message.len()).unwrap(),
        length_bytes: length,
    };
    let reply = client.send_with(&message, &[item], &[pulled], &[]);
    reply.results(|status, results| match results {
        [_, _, OpResult::Write(ok)] => assert_eq!(ok.count, length),
        other => panic!("{status}: {other:?}"),
    });
    let stored = fs::read(served.path().join("f")).unwrap();
    assert!(stored == data[..data.len() - 3], "{} bytes", stored.len());

    // Two READs in one request: one goes to memory, and the other into the reply.
    let place = span(MIB..2 * MIB);
    let [put, read] = file.read(MIB as u64 / 2, 1 << 20);
    let [_, short] = file.read(1, 3);
    let ops = [client.sequence_op(), put, read, short];
    client.sequence += 1;
    let message = client.compound_bytes(&ops);
    let reply = client.send_with(&message, &[], &[], &[Some(place.clone())]);
    let expected = &data[MIB / 2..data.len() - 3];
    assert_eq!(reply.reduced.len(), 1);
    reply.results(|status, results| match results {
        [_, _, OpResult::Read(first), OpResult::Read(second)] => {
            let length_bytes = u32::try_from(expected.len()).unwrap();
            assert_eq!(
                first.data,
                DataItem::Reduced {
                    index: 0,
                    length_bytes
                }
            );
            assert!(first.eof);
            assert_eq!(second.data, DataItem::Inline(&data[1..4]));
            assert!(!second.eof);
        }
        other => panic!("{status}: {other:?}"),
    });
    let mut read = vec![0; expected.len()];
    place.raw().first(expected.len()).copy_to(&mut read);
    assert!(read == expected, "what was pushed");
}

#[test]
fn root_who_has_written_may_commit_whatever_the_mode_is_now() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"", 1000, 0o666);
    let mut client = served.client("one");
    client.uid = 1001;
    let file = client.open("f", "o", WRITE);
    let written = client.write(&file, 0, b"data", StableHow::Unstable);
    let closed = PermissionsExt::from_mode(0o000);
    fs::set_permissions(&path, closed).unwrap();
    assert_eq!(committed(&mut client, &file), written.writeverf);
    // And again, when nothing is known of it any more.
    assert_eq!(committed(&mut client, &file), written.writeverf);
    // Another life of the service cannot know what became of data.
    let handle = file.handle.clone();
    drop(client);
    let served = served.restarted();
    let mut client = served.new_client("one");
    let after = client.run(
        &[
            Op::PutFh(Opaque(&handle)),
            Op::Commit(Commit {
                offset: 0,
                count: 0,
            }),
        ],
        |results| match results[1] {
            OpResult::Commit(verifier) => verifier,
            ref other => panic!("{other:?}"),
        },
    );
    assert_ne!(after, written.writeverf);
}

#[test]
fn root_space_that_is_used_up_is_told_and_what_was_written_counts() {
    let served = Served::new();
    let path = served.path();
    nix::mount::mount(
        None::<&str>,
        &path,
        None::<&str>,
        nix::mount::MsFlags::MS_REMOUNT,
        Some("size=1m"),
    )
    .unwrap();
    put(&path.join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    let data = vec![1; 300_000];
    let mut offset = 0;
    let status = loop {
        let written = client.try_run(
            &file.write(offset, &data, StableHow::Unstable),
            |status, results| match results[1] {
                OpResult::Write(ok) => Ok(ok.count),
                _ => Err(status),
            },
        );
        match written {
            Ok(count) => offset += u64::from(count),
            Err(status) => break status,
        }
        assert!(offset <= 1 << 20, "more than there is");
    };
    assert_eq!(status, Status::NOSPC);
    assert_eq!(fs::metadata(path.join("f")).unwrap().len(), offset);
    let allocate = range(OpNum::ALLOCATE, &file, 0, 8 << 20);
    assert_eq!(client.status(&allocate), Status::NOSPC);
}

fn range(op: OpNum, file: &Opened, offset: u64, length: u64) -> [Op<'_>; 2] {
    let range = Range {
        stateid: file.stateid,
        offset,
        length,
    };
    match op {
        OpNum::ALLOCATE => [file.put(), Op::Allocate(range)],
        _ => [file.put(), Op::Deallocate(range)],
    }
}

#[test]
fn root_holes_are_found_made_and_filled() {
    let served = Served::new();
    put(&served.path().join("f"), &vec![1; 3 * MIB], 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("f", "o", BOTH);
    let mib = MIB as u64;
    let op =
        |client: &mut Client, op, offset, length| client.status(&range(op, &file, offset, length));
    assert_eq!(op(&mut client, OpNum::DEALLOCATE, mib, mib), Status::OK);
    let seek = |client: &mut Client, offset, what| {
        let seek = Op::Seek(Seek {
            stateid: file.stateid,
            offset,
            what,
        });
        client.try_run(&[file.put(), seek], |status, results| match results[1] {
            OpResult::Seek(ok) => Ok(ok),
            _ => Err(status),
        })
    };
    let found = |eof, offset| Ok(SeekOk { eof, offset });
    assert_eq!(seek(&mut client, 0, SeekTarget::Hole), found(false, mib));
    assert_eq!(
        seek(&mut client, mib, SeekTarget::Data),
        found(false, 2 * mib)
    );
    assert_eq!(
        seek(&mut client, 2 * mib, SeekTarget::Hole),
        found(true, 3 * mib)
    );
    assert_eq!(op(&mut client, OpNum::DEALLOCATE, 2 * mib, mib), Status::OK);
    assert_eq!(
        seek(&mut client, mib, SeekTarget::Data),
        found(true, 3 * mib)
    );
    for offset in [3 * mib, u64::MAX] {
        for what in [SeekTarget::Data, SeekTarget::Hole] {
            assert_eq!(
                seek(&mut client, offset, what),
                Err(Status::NXIO),
                "{offset}"
            );
        }
    }
    assert_eq!(client.read(&file, mib, 4), (vec![0; 4], false));
    assert_eq!(op(&mut client, OpNum::ALLOCATE, 3 * mib, mib), Status::OK);
    assert_eq!(
        fs::metadata(served.path().join("f")).unwrap().len(),
        4 * mib
    );
    assert_eq!(op(&mut client, OpNum::ALLOCATE, 0, 0), Status::INVAL);
    assert_eq!(
        op(&mut client, OpNum::DEALLOCATE, 1, u64::MAX),
        Status::FBIG
    );

    let reading = client.open("f", "another", READ);
    let allocate = range(OpNum::ALLOCATE, &reading, 0, 1);
    assert_eq!(client.status(&allocate), Status::OPENMODE);
    let advise = |stateid| {
        let hints = Bitmap::EMPTY.with(0).with(3);
        let advise = IoAdvise {
            stateid,
            offset: 0,
            count: 0,
            hints,
        };
        [
            Op::PutFh(Opaque(&file.handle.clone().leak()[..])),
            Op::IoAdvise(advise),
        ]
    };
    client.run(&advise(reading.stateid), |results| {
        assert_eq!(results[1], OpResult::IoAdvise(Bitmap::EMPTY));
    });
    client.close(&reading);
    let closed = client.status(&advise(reading.stateid));
    assert_eq!(closed, Status::BAD_STATEID);
}

/// A client that goes without committing leaves no file open behind it.
#[test]
fn root_what_a_client_has_not_committed_ends_with_it() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let open_files = || {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
        let path = served.path().join("f");
        targets.filter(|target| *target == path).count()
    };
    let mut client = served.client("one");
    let file = client.open("f", "o", WRITE);
    client.write(&file, 0, b"data", StableHow::Unstable);
    client.close(&file);
    assert_eq!(open_files(), 1, "with the data that was not committed");
    client.begin_as("one", [2; 8]);
    assert_eq!(open_files(), 0);
}

/// Each user of a client can name every stateid of it.
#[test]
fn root_what_one_user_has_opened_another_reads_where_it_may() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"secret", 1000, 0o600);
    let mut client = served.client("one");
    (client.uid, client.gid) = (1000, 1000);
    let file = client.open("f", "o", BOTH);
    client.read(&file, 0, 9);
    assert!(client.at_once.get());
    (client.uid, client.gid) = (2000, 2000);
    assert_eq!(client.status(&file.read(0, 9)), Status::ACCESS);
    let write = file.write(0, b"x", StableHow::FileSync);
    assert_eq!(client.status(&write), Status::ACCESS);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(client.read(&file, 0, 9).0, b"secret");
    assert!(!client.at_once.get(), "the kernel was asked");
    assert_eq!(client.status(&write), Status::ACCESS);
    // The user that opened the file can still use it, whatever its mode is now.
    (client.uid, client.gid) = (1000, 1000);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    client.write(&file, 0, b"S", StableHow::FileSync);
    assert_eq!(client.read(&file, 0, 9).0, b"Secret");
}
