//! Sessions, and operations on filehandles, from the bytes of calls to those of replies.

mod support;

use std::fs;

use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::Component;

use support::{Client, Served, path_ops, put};

fn handle(results: &[OpResult<'_>]) -> Vec<u8> {
    match results.last() {
        Some(OpResult::GetFh(handle)) => handle.0.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn root_names_lead_to_handles_and_handles_to_the_same_files() {
    let served = Served::new();
    fs::create_dir(served.path().join("d")).unwrap();
    put(&served.path().join("d/f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let mut to_file = path_ops(&["d", "f"]);
    to_file.push(Op::GetFh);
    let file = client.run(&to_file, handle);
    let again = client.run(&[Op::PutFh(Opaque(&file)), Op::GetFh], handle);
    assert_eq!(again, file);

    // Up again, to the root of the pseudo file system, above which there is nothing.
    let mut up = path_ops(&["d"]);
    up.extend([Op::LookupP, Op::LookupP, Op::GetFh]);
    let root = client.run(&[Op::PutRootFh, Op::GetFh], handle);
    assert_eq!(client.run(&up, handle), root);
    up.insert(up.len() - 1, Op::LookupP);
    assert_eq!(client.status(&up), Status::NOENT);

    let mut saved = path_ops(&["d"]);
    saved.extend([Op::SaveFh, Op::PutRootFh, Op::RestoreFh]);
    saved.extend([Op::Lookup(Component(b"f")), Op::GetFh]);
    assert_eq!(client.run(&saved, handle), file);
}

#[test]
fn root_what_no_name_or_handle_leads_to_is_told_apart() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    std::os::unix::fs::symlink("f", served.path().join("l")).unwrap();
    fs::create_dir(served.path().join("closed")).unwrap();
    put(&served.path().join("closed/f"), b"", 0, 0o644);
    fs::set_permissions(
        served.path().join("closed"),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    let mut client = served.client("one");
    client.uid = 1000;
    client.gid = 1000;
    for (names, status) in [
        (&["missing"][..], Status::NOENT),
        (&["f", "x"], Status::NOTDIR),
        (&["l", "x"], Status::SYMLINK),
        (&["closed", "f"], Status::ACCESS),
        (&[".."], Status::BADNAME),
        (&[""], Status::INVAL),
        (&["a/b"], Status::BADCHAR),
    ] {
        assert_eq!(client.status(&path_ops(names)), status, "{names:?}");
    }
    assert_eq!(client.status(&[Op::GetFh]), Status::NOFILEHANDLE);
    assert_eq!(client.status(&[Op::RestoreFh]), Status::NOFILEHANDLE);
    let no_handle = Op::PutFh(Opaque(b"no handle"));
    assert_eq!(client.status(&[no_handle]), Status::BADHANDLE);
    client.peer = "198.51.100.1:700".parse().unwrap();
    assert_eq!(client.status(&path_ops(&[])), Status::ACCESS, "a stranger");
}

#[test]
fn root_operations_are_where_they_may_be() {
    let served = Served::new();
    let mut client = served.client("one");
    let first = |client: &mut Client, ops: &[Op<'_>]| client.raw(ops, |status, _| status);
    assert_eq!(
        first(&mut client, &[Op::PutRootFh]),
        Status::OP_NOT_IN_SESSION
    );
    let sequence = client.sequence_op();
    let destroy = Op::DestroySession(client.session);
    assert_eq!(
        first(&mut client, &[destroy, sequence]),
        Status::NOT_ONLY_OP
    );
    assert_eq!(client.status(&[sequence]), Status::SEQUENCE_POS);
    client.minor_version = 0;
    let mismatch = first(&mut client, &[Op::PutRootFh]);
    assert_eq!(mismatch, Status::MINOR_VERS_MISMATCH);
    client.minor_version = 1;
    client.raw(&[], |status, results| {
        assert_eq!((status, results.len()), (Status::OK, 0));
    });
    assert_eq!(client.status(&[Op::PutRootFh, destroy]), Status::OK);
    let gone = first(&mut client, &[sequence]);
    assert_eq!(gone, Status::BADSESSION);
}

#[test]
fn root_a_repeated_request_has_the_reply_that_was_kept() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    client.cache_this = true;
    let ops: Vec<_> = [client.sequence_op()]
        .into_iter()
        .chain(path_ops(&["f"]))
        .chain([Op::GetFh])
        .collect();
    let message = client.compound_bytes(&ops);
    let kept = client.send(&message);
    fs::remove_file(served.path().join("f")).unwrap();
    assert_eq!(client.send(&message).bytes, kept.bytes);

    // One that was not to be kept says so behind its SEQUENCE.
    client.sequence += 1;
    client.cache_this = false;
    let message = client.compound_bytes(&[client.sequence_op(), Op::PutRootFh]);
    client.send(&message);
    client.send(&message).results(|status, results| {
        assert_eq!(status, Status::RETRY_UNCACHED_REP);
        assert_eq!(results[1].op(), OpNum::PUTROOTFH);
    });
    // Another request with the same number is not the same request.
    let other = client.compound_bytes(&[client.sequence_op(), Op::PutPubFh]);
    client.send(&other).results(|status, _| {
        assert_eq!(status, Status::SEQ_FALSE_RETRY);
    });
}

#[test]
fn root_a_reply_that_cannot_be_kept_fails_at_sequence() {
    // pynfs CSESS27; RFC 8881, section 2.10.6.4.
    let served = Served::new();
    let mut client = Client::without_session(served.service.clone());
    let (id, sequence) = client.exchange_id("one", [1; 8]);
    client.create_session(id, sequence, 10);
    let mut send = |cache_this| {
        client.cache_this = cache_this;
        let sequence = client.sequence_op();
        client.raw(&[sequence], |status, results| (status, results[0].status()))
    };
    let too_big = Status::REP_TOO_BIG_TO_CACHE;
    assert_eq!(send(true), (too_big, too_big));
    // Its number was not used up.
    assert_eq!(send(false), (Status::OK, Status::OK));
}
