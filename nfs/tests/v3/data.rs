//! READ, WRITE and COMMIT.

use std::fs;

use capstan_memory::{Pages, Pool};
use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::{DataItem, Encode, Opaque};
use capstan_nfs_proto::v3::NFS_V3;
use capstan_nfs_proto::v3::args;
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::results::{CommitResult, ReadResult, WriteResult};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{SetAttributes, StableHow};
use capstan_rpc_server::{ConnectionNumber, Program};

use crate::client::{Client, UNSET, ok, with_mode};
use crate::support::files::{READ, WRITE, open_op};
use crate::support::{Served, put};

const MIB: usize = 1 << 20;

fn with_size(bytes: u64) -> SetAttributes {
    SetAttributes {
        size: Some(bytes),
        ..UNSET
    }
}

#[test]
fn root_data_is_read_up_to_the_end() {
    let served = Served::new();
    put(&served.path().join("f"), b"0123456789", 0, 0o644);
    fs::create_dir(served.path().join("d")).unwrap();
    std::os::unix::fs::symlink("f", served.path().join("link")).unwrap();
    let mut client = Client::user(&served, 1000);
    let file = client.named("f");
    for (offset, count, data, eof) in [
        (0, 4, &b"0123"[..], false),
        (4, 6, b"456789", true),
        (4, 100, b"456789", true),
        (9, 1, b"9", true),
        (10, 5, b"", true),
        (11, 5, b"", true),
        (5, 0, b"", false),
        (10, 0, b"", true),
        (u64::MAX, u32::MAX, b"", true),
        (i64::MAX.cast_unsigned(), 5, b"", true),
    ] {
        let read = client.read(&file, offset, count);
        assert_eq!(read, Ok((data.to_vec(), eof)), "{count} from {offset} on");
    }
    let dir = client.named("d");
    assert_eq!(client.read(&dir, 0, 10), Err(Status::ISDIR));
    let link = client.named("link");
    assert_eq!(client.read(&link, 0, 10), Err(Status::INVAL));
}

/// Twice as many files as are kept open (`Served`).
#[test]
fn root_data_that_is_not_committed_keeps_no_other_file_from_being_opened() {
    let served = Served::new();
    put(&served.path().join("other"), b"data", 1001, 0o644);
    let mut other = Client::user(&served, 1001);
    let read = other.named("other");
    let mut client = Client::user(&served, 1000);
    client.connection = 2;
    for at in 0..32 {
        let name = format!("f{at}");
        put(&served.path().join(&name), b"", 1000, 0o644);
        let file = client.named(&name);
        let written = client.write(&file, 0, b"x", StableHow::Unstable);
        assert_eq!(written.map(|ok| ok.count), Ok(1), "{name}");
        let data = other.read(&read, 0, 4);
        assert_eq!(data, Ok((b"data".to_vec(), true)), "behind {name}");
    }
    let ours = other.write(&read, 0, b"x", StableHow::Unstable).unwrap();
    assert_eq!(ours.committed, StableHow::Unstable, "places are left");
}

#[test]
fn root_no_read_is_of_more_than_a_mebibyte() {
    let served = Served::new();
    put(&served.path().join("f"), &vec![7; MIB + 5], 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let (data, eof) = client.read(&file, 0, u32::MAX).unwrap();
    assert_eq!((data.len(), eof), (MIB, false));
    let (data, eof) = client.read(&file, MIB as u64, u32::MAX).unwrap();
    assert_eq!((data.len(), eof), (5, true));
}

#[test]
fn root_data_is_read_by_those_who_may() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 1000, 0o600);
    let mut owner = Client::user(&served, 1000);
    let mut other = Client::user(&served, 1001);
    let file = owner.named("f");
    assert!(owner.read(&file, 0, 4).is_ok());
    assert_eq!(other.read(&file, 0, 4), Err(Status::ACCES));
    // The owner has opened it before it took its own rights away (RFC 1813, section 4.4).
    owner.set(&file, with_mode(0), None).unwrap();
    assert!(owner.read(&file, 0, 4).is_ok());
    assert_eq!(other.read(&file, 0, 4), Err(Status::ACCES));
    // A program that can be executed is read for that.
    owner.set(&file, with_mode(0o711), None).unwrap();
    assert!(other.read(&file, 0, 4).is_ok());
    assert!(other.read(&file, 0, 4).is_ok(), "kept open");
    let written = other.write(&file, 0, b"x", StableHow::FileSync);
    assert_eq!(written.err(), Some(Status::ACCES));
    // What was let in before is not let in for good.
    owner.set(&file, with_mode(0o600), None).unwrap();
    assert_eq!(other.read(&file, 0, 4), Err(Status::ACCES));
}

#[test]
fn root_data_is_read_into_memory() {
    let served = Served::new();
    put(&served.path().join("f"), b"0123456789", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
    let buffer = pool.take(8).unwrap();
    for (offset, count, expected, eof) in [
        (0, 4, &b"0123"[..], false),
        (0, 100, b"01234567", false),
        (7, 100, b"789", true),
    ] {
        let message = client.procedure_bytes(&Procedure::Read(args::Read {
            file: Opaque(&file),
            offset,
            count,
        }));
        let answer = client.send_with(&message, (&[], &[]), &[Some(buffer.span())]);
        let answer = answer.unwrap();
        let read = ok(answer.decode::<ReadResult<'_>>()).unwrap();
        assert_eq!(read.eof, eof);
        assert_eq!(usize::try_from(read.count).unwrap(), expected.len());
        assert_eq!(read.data.length_bytes(), expected.len());
        assert!(matches!(read.data, DataItem::Reduced { index: 0, .. }));
        let mut data = vec![0; expected.len()];
        buffer.copy_to(0, &mut data);
        assert_eq!(data, expected);
    }
}

#[test]
fn root_data_is_written_and_committed() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"", 1000, 0o200);
    let mut client = Client::user(&served, 1000);
    let file = client.named("f");
    let unstable = client
        .write(&file, 2, b"data", StableHow::Unstable)
        .unwrap();
    assert_eq!(
        (unstable.count, unstable.committed),
        (4, StableHow::Unstable)
    );
    assert_eq!(unstable.file_wcc.after.unwrap().size, 6);
    assert_eq!(unstable.file_wcc.before, None);
    for stable in [StableHow::DataSync, StableHow::FileSync] {
        let written = client.write(&file, 0, b"ab", stable).unwrap();
        assert!(written.committed >= stable);
        assert_eq!(written.verf, unstable.verf);
    }
    assert_eq!(fs::read(&path).unwrap(), b"abdata");
    let commit = |client: &mut Client, file: &[u8]| {
        let answer = client.call(&Procedure::Commit(args::Commit {
            file: Opaque(file),
            offset: 0,
            count: 0,
        }));
        ok(answer.decode::<CommitResult>())
    };
    let committed = commit(&mut client, &file).unwrap();
    assert_eq!(committed.verf, unstable.verf);
    assert_eq!(committed.file_wcc.after.unwrap().size, 6);
    let root = client.root();
    assert_eq!(commit(&mut client, &root).err(), Some(Status::ISDIR));
    // Nothing is asked of the mode: what was written was let in when it was.
    let mut other = Client::user(&served, 1001);
    assert!(commit(&mut other, &file).is_ok());

    assert_eq!(
        client
            .write(&file, 0, b"", StableHow::FileSync)
            .unwrap()
            .count,
        0
    );
    let far = client.write(&file, u64::MAX, b"x", StableHow::FileSync);
    assert_eq!(far.err(), Some(Status::FBIG));
    let far = client.write(&file, i64::MAX.cast_unsigned(), b"x", StableHow::FileSync);
    assert_eq!(far.err(), Some(Status::FBIG));
    let root_write = client.write(&root, 0, b"x", StableHow::FileSync);
    assert_eq!(root_write.err(), Some(Status::ISDIR));
    let other_write = other.write(&file, 0, b"x", StableHow::FileSync);
    assert_eq!(other_write.err(), Some(Status::ACCES));
    assert_eq!(fs::read(&path).unwrap(), b"abdata");
}

#[test]
fn root_a_write_is_as_long_as_it_says() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"before", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    for count in [0, 3, 5, u32::MAX] {
        let answer = client.call(&Procedure::Write(args::Write {
            file: Opaque(&file),
            offset: 0,
            count,
            stable: StableHow::FileSync,
            data: DataItem::Inline(b"data"),
        }));
        let written = ok(answer.decode::<WriteResult>());
        assert_eq!(written.err(), Some(Status::INVAL), "{count}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"before");
}

#[test]
fn root_data_is_written_from_memory_that_was_pulled() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
    let mut buffer = pool.take(8).unwrap();
    buffer.copy_from(0, b"01234567");
    let write = Procedure::Write(args::Write {
        file: Opaque(&file),
        offset: 1,
        count: 5,
        stable: StableHow::FileSync,
        data: DataItem::Reduced {
            index: 0,
            length_bytes: 5,
        },
    });
    let (message, reduced) = client.bytes((NFS_PROGRAM, NFS_V3, 7), &|writer| {
        write.encode(writer).unwrap();
    });
    assert_eq!(reduced.len(), 1);
    let answer = client.send_with(&message, (&reduced, &[buffer.span()]), &[]);
    let answer = answer.unwrap();
    assert_eq!(ok(answer.decode::<WriteResult>()).unwrap().count, 5);
    assert_eq!(fs::read(&path).unwrap(), b"\x0001234");
    // Data that is not there is not made up.
    client.xid += 1;
    let (message, _) = client.bytes((NFS_PROGRAM, NFS_V3, 7), &|writer| {
        write.encode(writer).unwrap();
    });
    let answer = client.send_with(&message, (&reduced, &[]), &[]).unwrap();
    assert_eq!(answer.decode::<WriteResult>().status(), Status::INVAL);
}

#[test]
fn root_what_a_client_of_version_4_denies_is_denied() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let mut other = served.client("version 4");
    let write = |client: &mut Client| {
        let written = client.write(&file, 0, b"DATA", StableHow::FileSync);
        let cut = client.set(&file, with_size(4), None);
        (written.err(), cut.err())
    };
    let held = other.open_with(open_op("f", "owner", READ, WRITE));
    assert_eq!(
        write(&mut client),
        (Some(Status::ACCES), Some(Status::ACCES))
    );
    assert_eq!(client.read(&file, 0, 4), Ok((b"data".to_vec(), true)));
    other.close(&held);
    let held = other.open_with(open_op("f", "owner", WRITE, READ));
    assert_eq!(write(&mut client), (None, None));
    assert_eq!(client.read(&file, 0, 4), Err(Status::ACCES));
    other.close(&held);
    assert_eq!(client.read(&file, 0, 4), Ok((b"DATA".to_vec(), true)));
}

#[test]
fn root_a_connection_that_ends_leaves_no_file_open() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    client.connection = 8;
    let written = client.write(&file, 0, b"data", StableHow::Unstable);
    let verf = written.unwrap().verf;
    // As many others as the service keeps open for such clients.
    let use_others = |client: &mut Client| {
        for number in 0..16 {
            let name = format!("other-{number}");
            put(&served.path().join(&name), b"", 0, 0o644);
            let other = client.named(&name);
            client.read(&other, 0, 1).unwrap();
        }
    };
    let is_open = || {
        let mut open = fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap);
        open.any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == path))
    };
    use_others(&mut client);
    assert!(
        is_open(),
        "what is not synced is lost with the last open file"
    );
    served.service.ended(ConnectionNumber(8));
    use_others(&mut client);
    assert!(!is_open());
    // What was written can be committed over another connection.
    client.connection = 9;
    let answer = client.call(&Procedure::Commit(args::Commit {
        file: Opaque(&file),
        offset: 0,
        count: 0,
    }));
    let committed = ok(answer.decode::<CommitResult>()).unwrap();
    assert_eq!(committed.verf, verf);
}

#[test]
fn root_a_file_without_a_name_takes_no_space() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let root = client.root();
    let free = || {
        nix::sys::statfs::statfs(&served.path())
            .unwrap()
            .blocks_free()
    };
    let before = free();
    for replaced in [false, true] {
        let how = args::CreateHow::Guarded(with_mode(0o600));
        let file = client.create(&root, "f", how).unwrap();
        let data = vec![7; MIB];
        client.write(&file, 0, &data, StableHow::Unstable).unwrap();
        client.read(&file, 0, 4096).unwrap();
        assert!(free() < before);
        let gone = if replaced {
            client.create(&root, "g", how).unwrap();
            let answer = client.call(&Procedure::Rename(args::Rename {
                from_place: crate::client::place(&root, "g"),
                to_place: crate::client::place(&root, "f"),
            }));
            answer
                .decode::<capstan_nfs_proto::v3::results::RenameResult>()
                .status()
        } else {
            client.status(&Procedure::Remove(crate::client::place(&root, "f")))
        };
        assert_eq!(gone, Status::OK);
        assert_eq!(free(), before, "replaced: {replaced}");
    }
}
