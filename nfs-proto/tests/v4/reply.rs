//! Replies: their bytes and their bounds.

use capstan_nfs_proto::codec::{DataItem, List, Opaque, Reader, ReducedItem, Writer};
use capstan_nfs_proto::limits::FAILED_RESULT_BYTES_MAX;
use capstan_nfs_proto::v4::args::LockType;
use capstan_nfs_proto::v4::attr::Attributes;
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::client::Reply;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::reply::{EntryDoesNotFit, NoRoom, ReplyBounds, ReplyEncoder};
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{Flavor, LockDenied, ReadOk, SequenceOk, SequenceStatus};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, SessionId, StateOwner, Verifier};

use crate::words::Words;

fn sequence_ok() -> OpResult<'static> {
    OpResult::Sequence(SequenceOk {
        sessionid: SessionId([9; 16]),
        sequenceid: 5,
        slotid: 2,
        highest_slotid: 63,
        target_highest_slotid: 62,
        status_flags: SequenceStatus::CB_PATH_DOWN,
    })
}

#[test]
fn a_reply_has_the_status_of_its_last_result() {
    let mut buffer = [0; 256];
    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"tag")).unwrap();
    reply.push(&sequence_ok()).unwrap();
    reply.push(&OpResult::Done(OpNum::PUTFH)).unwrap();
    reply
        .push(&OpResult::Failed {
            op: OpNum::LOOKUP,
            status: Status::NOENT,
        })
        .unwrap();
    assert_eq!((reply.results(), reply.finish()), (3, Status::NOENT));
    let expected = Words::new()
        .word(2)
        .opaque(b"tag")
        .words(&[3, 53, 0])
        .fixed(&[9; 16])
        .words(&[5, 2, 63, 62, 1, 22, 0, 15, 2]);
    assert_eq!(writer.written(), expected.0);
    let mut decoded = Reply::decode(Reader::new(&expected.0)).unwrap();
    assert_eq!(
        (decoded.status, decoded.tag.0),
        (Status::NOENT, b"tag".as_slice())
    );
    assert_eq!(decoded.next(), Some(Ok(sequence_ok())));
    assert_eq!(decoded.next(), Some(Ok(OpResult::Done(OpNum::PUTFH))));
    assert_eq!(
        decoded.next(),
        Some(Ok(OpResult::Failed {
            op: OpNum::LOOKUP,
            status: Status::NOENT
        }))
    );
    assert_eq!((decoded.next(), decoded.finish()), (None, Ok(())));
}

#[test]
fn a_refused_compound_has_no_results() {
    let mut buffer = [0; 64];
    let mut writer = Writer::new(&mut buffer);
    let reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    reply.finish_with(Status::MINOR_VERS_MISMATCH);
    assert_eq!(writer.written(), Words::new().words(&[10_021, 0, 0]).0);
}

#[test]
fn failures_that_bring_something_along_are_whole() {
    let encoded = |result: &OpResult<'_>| {
        let mut buffer = [0; 128];
        let mut writer = Writer::new(&mut buffer);
        let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
        reply.push(result).unwrap();
        reply.finish();
        let bytes = writer.written().to_vec();
        let decoded: Vec<_> = Reply::decode(Reader::new(&bytes))
            .unwrap()
            .map(Result::unwrap)
            .map(|r| r.op())
            .collect();
        assert_eq!(decoded, [result.op()]);
        bytes[12..].to_vec()
    };
    let failed = |op, status| encoded(&OpResult::Failed { op, status });
    assert_eq!(
        failed(OpNum::SETATTR, Status::PERM),
        Words::new().words(&[34, 1, 0]).0
    );
    assert_eq!(
        failed(OpNum::GETDEVICEINFO, Status::TOOSMALL),
        Words::new().words(&[47, 10_005, 0]).0
    );
    assert_eq!(
        failed(OpNum::LAYOUTGET, Status::LAYOUTTRYLATER),
        Words::new().words(&[50, 10_058, 0]).0
    );
    assert_eq!(
        failed(OpNum::COPY, Status::OFFLOAD_NO_REQS),
        Words::new().words(&[60, 10_094, 0, 0]).0
    );
    let denied = LockDenied {
        offset: 1,
        length: u64::MAX,
        locktype: LockType::Write,
        owner: StateOwner {
            clientid: ClientId(7),
            owner: Opaque(b"me"),
        },
    };
    assert_eq!(
        encoded(&OpResult::LockDenied {
            op: OpNum::LOCKT,
            denied
        }),
        Words::new()
            .words(&[13, 10_010])
            .hyper(1)
            .hyper(u64::MAX)
            .word(2)
            .hyper(7)
            .opaque(b"me")
            .0
    );
    let flavors = [Flavor::Other(1), Flavor::Other(0)];
    assert_eq!(
        encoded(&OpResult::SecInfoNoName(List::of(&flavors))),
        Words::new().words(&[52, 0, 2, 1, 0]).0
    );
}

#[test]
fn data_of_read_is_counted_and_not_copied() {
    let mut buffer = [0; 256];
    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    let data = DataItem::Reduced {
        index: 0,
        length_bytes: 65_533,
    };
    reply
        .push(&OpResult::Read(ReadOk { eof: true, data }))
        .unwrap();
    reply.push(&OpResult::Done(OpNum::VERIFY)).unwrap();
    assert_eq!(reply.writer().position(), 12 + 16 + 65_536 + 8);
    reply.finish();
    let expected = Words::new().words(&[0, 0, 2, 25, 0, 1, 65_533, 37, 0]);
    assert_eq!(writer.written(), expected.0);
    let reduced = [ReducedItem {
        position: 28,
        length_bytes: 65_533,
    }];
    assert_eq!(writer.reduced_items(), reduced);
    let mut decoded = Reply::decode(Reader::with_reduced(&expected.0, &reduced)).unwrap();
    assert_eq!(
        decoded.next(),
        Some(Ok(OpResult::Read(ReadOk { eof: true, data })))
    );
    assert_eq!(decoded.next(), Some(Ok(OpResult::Done(OpNum::VERIFY))));
    assert_eq!(decoded.finish(), Ok(()));
}

#[test]
fn a_result_that_does_not_fit_leaves_room_to_say_so() {
    // Header 12, READ with 100 bytes 16 + 100, what is kept free behind it.
    let exact = 12 + 116 + FAILED_RESULT_BYTES_MAX;
    let read = OpResult::Read(ReadOk {
        eof: false,
        data: DataItem::Inline(&[1; 100]),
    });
    for (max_bytes, max_cached_bytes, buffer_bytes, expected) in [
        (exact, None, 4096, Ok(())),
        (exact, Some(exact), 4096, Ok(())),
        (exact, None, exact, Ok(())),
        (exact - 1, None, 4096, Err(NoRoom::Reply)),
        (exact, None, exact - 1, Err(NoRoom::Reply)),
        (exact, Some(exact - 1), 4096, Err(NoRoom::Cache)),
    ] {
        let mut buffer = vec![0; usize::try_from(buffer_bytes).unwrap()];
        let mut writer = Writer::new(&mut buffer);
        let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
        reply.set_bounds(ReplyBounds {
            max_bytes,
            max_cached_bytes,
        });
        assert_eq!(reply.room_bytes() >= 116, expected.is_ok());
        assert_eq!(reply.push(&read), expected);
        if let Err(no_room) = expected {
            assert_eq!((reply.results(), reply.writer().offset()), (0, 12));
            let status = no_room.status();
            reply
                .push(&OpResult::Failed {
                    op: OpNum::READ,
                    status,
                })
                .unwrap();
            assert_eq!(reply.finish(), status);
        }
    }
    // However little is left, the next operation can fail, with all it brings along.
    let mut buffer = vec![0; usize::try_from(exact).unwrap()];
    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    reply.push(&read).unwrap();
    assert_eq!(
        reply.push(&OpResult::Done(OpNum::PUTFH)),
        Err(NoRoom::Reply)
    );
    reply
        .push(&OpResult::Failed {
            op: OpNum::COPY,
            status: Status::OFFLOAD_NO_REQS,
        })
        .unwrap();
    assert_eq!(reply.finish(), Status::OFFLOAD_NO_REQS);
}

#[test]
fn reduced_data_counts_for_the_bounds() {
    let mut buffer = [0; 4096];
    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    reply.set_bounds(ReplyBounds {
        max_bytes: 65_536,
        max_cached_bytes: None,
    });
    let read = |length_bytes| {
        let data = DataItem::Reduced {
            index: 0,
            length_bytes,
        };
        OpResult::Read(ReadOk { eof: false, data })
    };
    assert_eq!(reply.push(&read(65_536)), Err(NoRoom::Reply));
    assert_eq!(reply.writer().reduced_items(), []);
    assert_eq!(reply.push(&read(32_768)), Ok(()));
    assert_eq!(reply.push(&read(32_768)), Err(NoRoom::Reply));
    assert_eq!(reply.writer().reduced_items().len(), 1);
}

#[test]
fn data_is_read_into_the_reply() {
    let mut buffer = [0xAA; 64];
    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    // 12 bytes of a header, 16 of the result but for its data, and 16 for another one to fail in.
    let no_room = reply.push_read(21, |_data| -> Result<_, NoRoom> {
        panic!("there is no room")
    });
    assert_eq!(no_room, Err(NoRoom::Reply));
    let failed = reply.push_read(16, |_data| Err(NoRoom::Cache));
    assert_eq!((failed, reply.results()), (Err(NoRoom::Cache), 0));
    reply
        .push_read(20, |data| {
            assert_eq!(data.len(), 20);
            data[..5].copy_from_slice(b"hello");
            Ok::<_, NoRoom>((5, true))
        })
        .unwrap();
    assert_eq!((reply.results(), reply.finish()), (1, Status::OK));
    let expected = Words::new()
        .word(0)
        .opaque(b"")
        .words(&[1, 25, 0, 1])
        .opaque(b"hello");
    assert_eq!(writer.written(), expected.0);

    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    reply.set_bounds(ReplyBounds {
        max_bytes: 1000,
        max_cached_bytes: Some(500),
    });
    // 12 bytes are written, and 16 are kept.
    assert_eq!(reply.check_room(472), Ok(()));
    assert_eq!(reply.check_room(473), Err(NoRoom::Cache));
    assert_eq!(reply.check_room(973), Err(NoRoom::Reply));
}

#[test]
fn a_directory_takes_as_many_entries_as_maxcount_has_room_for() {
    let attributes = Attributes {
        fileid: Some(3),
        ..Attributes::default()
    };
    let requested = Bitmap::EMPTY.with(20);
    // READDIR4resok: verifier 8, end 8; an entry "abc": 4 + 8 + 8 + (4 + 4) + (4 + 8) = 40.
    for (maxcount, fits) in [(15, 0), (55, 0), (56, 1), (95, 1), (96, 2), (4096, 2)] {
        let mut buffer = [0; 512];
        let mut writer = Writer::new(&mut buffer);
        let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
        let mut directory = reply.begin_directory(Verifier([6; 8]), maxcount).unwrap();
        for cookie in 1..=2 {
            let fitted = directory.entry(cookie, b"abc", &attributes, &requested);
            let expected = if cookie <= fits {
                Ok(())
            } else {
                Err(EntryDoesNotFit)
            };
            assert_eq!(fitted, expected, "{maxcount}");
        }
        assert_eq!(u64::from(directory.entries()), fits);
        if fits == 0 {
            directory.abandon();
            assert_eq!((reply.results(), reply.writer().offset()), (0, 12));
            continue;
        }
        directory.finish(fits == 2).unwrap();
        reply.finish();
        let bytes = writer.written().to_vec();
        if fits == 1 {
            let expected = Words::new()
                .words(&[0, 0, 1, 26, 0])
                .fixed(&[6; 8])
                .word(1)
                .hyper(1)
                .opaque(b"abc")
                .words(&[1, 1 << 20, 8])
                .hyper(3)
                .words(&[0, 0]);
            assert_eq!(bytes, expected.0);
        }
        let decoded: Vec<_> = Reply::decode(Reader::new(&bytes))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let [OpResult::ReadDir(result)] = decoded[..] else {
            panic!("{decoded:?}")
        };
        assert_eq!(
            (result.cookieverf, result.eof),
            (Verifier([6; 8]), fits == 2)
        );
        let cookies: Vec<_> = result.entries.iter().map(|entry| entry.cookie).collect();
        assert_eq!(cookies, (1..=fits).collect::<Vec<_>>());
        for entry in result.entries.iter() {
            assert_eq!(Attributes::decode_values(&entry.attrs), Ok(attributes));
        }
    }
}

#[test]
fn attributes_of_a_reply() {
    let attributes = Attributes {
        size: Some(9),
        ..Attributes::default()
    };
    let mut buffer = [0; 64];
    let mut writer = Writer::new(&mut buffer);
    let mut reply = ReplyEncoder::new(&mut writer, Opaque(b"")).unwrap();
    reply
        .push_attributes(&attributes, &Attributes::known())
        .unwrap();
    // The second one would leave nothing to fail in.
    assert_eq!(
        reply.push_attributes(&attributes, &Attributes::known()),
        Err(NoRoom::Reply)
    );
    reply.finish();
    assert_eq!(
        writer.written(),
        Words::new()
            .words(&[0, 0, 1, 9, 0, 1, 1 << 4, 8])
            .hyper(9)
            .0
    );
}
