//! COMPOUNDs as clients send them, put together by hand from the XDR of RFC 5662, RFC 7863 and RFC
//! 8276.

use capstan_nfs_proto::codec::{DataItem, Opaque, ReadError, Reader, ReducedItem, Writer};
use capstan_nfs_proto::v4::args::{
    AuthSysCredential, CallbackSecurity, Create, CreateHow, CreateSessionFlags, CreateType,
    ExchangeIdFlags, OpenClaim, OpenHow, Sequence, SetXattr, SetXattrOption, ShareAccess,
    ShareDeny, StateProtect, Write, XattrName,
};
use capstan_nfs_proto::v4::attr::Fattr;
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::client::CompoundEncoder;
use capstan_nfs_proto::v4::compound::{Compound, OpError, Operations};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{Component, SessionId, StableHow, Stateid};

use crate::words::Words;

const STATEID: Stateid = Stateid {
    seqid: 1,
    other: [7; 12],
};

fn stateid(message: Words) -> Words {
    message.word(1).fixed(&[7; 12])
}

fn header(tag: &[u8], minor_version: u32, operations: u32) -> Words {
    Words::new().opaque(tag).words(&[minor_version, operations])
}

fn operations(message: &[u8]) -> Operations<'_> {
    Compound::parse(Reader::new(message))
        .unwrap()
        .operations()
        .unwrap()
}

/// What is parsed encodes to the same bytes.
fn assert_encodes_to(message: &[u8], tag: &[u8], minor_version: u32, ops: &[Op<'_>]) {
    let mut buffer = vec![0; message.len()];
    let mut writer = Writer::new(&mut buffer);
    let mut compound = CompoundEncoder::new(&mut writer, Opaque(tag), minor_version).unwrap();
    for op in ops {
        compound.push(op).unwrap();
    }
    assert_eq!(writer.written(), message);
}

#[test]
fn exchange_id_and_create_session_of_a_mount() {
    let exchange_id = header(b"", 2, 1)
        .word(42)
        .fixed(&[1; 8])
        .opaque(b"Linux NFSv4.2 client")
        .word(0x0001_0103) // eia_flags
        .word(0) // SP4_NONE
        .word(1) // one nfs_impl_id4
        .opaque(b"kernel.org")
        .opaque(b"Linux 6.12")
        .hyper(0)
        .word(0);
    let ops: Vec<_> = operations(&exchange_id.0).map(Result::unwrap).collect();
    let [Op::ExchangeId(exchange)] = ops[..] else {
        panic!("{ops:?}")
    };
    assert_eq!(exchange.clientowner.ownerid.0, b"Linux NFSv4.2 client");
    assert_eq!(
        exchange.flags,
        ExchangeIdFlags::SUPP_MOVED_REFER
            | ExchangeIdFlags::SUPP_MOVED_MIGR
            | ExchangeIdFlags::BIND_PRINC_STATEID
            | ExchangeIdFlags::USE_NON_PNFS
    );
    assert_eq!(exchange.state_protect, StateProtect::None);
    assert_eq!(exchange.client_impl_id.unwrap().name.0, b"Linux 6.12");
    assert_encodes_to(&exchange_id.0, b"", 2, &ops);

    let channel = [0, 1_049_620, 1_049_480, 3_428, 8, 64];
    let create_session = header(b"", 2, 1)
        .word(43)
        .hyper(0x6789)
        .words(&[1, 3]) // csa_sequence, csa_flags
        .words(&channel)
        .word(0)
        .words(&channel)
        .words(&[1, 32]) // ca_rdma_ird
        .word(0x4000_0000)
        .words(&[2, 0, 1, 5]) // AUTH_NONE, AUTH_SYS with its stamp
        .opaque(b"host")
        .words(&[10, 20, 2, 30, 40]);
    let ops: Vec<_> = operations(&create_session.0).map(Result::unwrap).collect();
    let [Op::CreateSession(session)] = ops[..] else {
        panic!("{ops:?}")
    };
    assert_eq!(
        session.flags,
        CreateSessionFlags::PERSIST | CreateSessionFlags::CONN_BACK_CHAN
    );
    assert_eq!(session.fore_chan_attrs.maxresponsesize_cached, 3_428);
    assert_eq!(
        (
            session.fore_chan_attrs.rdma_ird,
            session.back_chan_attrs.rdma_ird
        ),
        (None, Some(32))
    );
    let security: Vec<_> = session.sec_parms.iter().collect();
    let [
        CallbackSecurity::None,
        CallbackSecurity::Sys(AuthSysCredential { uid: 10, gids, .. }),
    ] = security[..]
    else {
        panic!("{security:?}")
    };
    assert_eq!(gids.0.iter().collect::<Vec<_>>(), [30, 40]);
    assert_encodes_to(&create_session.0, b"", 2, &ops);
}

fn sequence(message: Words) -> Words {
    message.word(53).fixed(&[9; 16]).words(&[5, 2, 3, 1])
}

#[test]
fn open_creates_a_file_by_name() {
    let message = sequence(header(b"open", 1, 4))
        .word(22)
        .opaque(b"\x01\x02\x03\x04\x05")
        .words(&[18, 0, 0x0403, 0]) // OPEN: seqid, both and no delegation, deny none
        .hyper(77)
        .opaque(b"owner")
        .words(&[1, 3]) // OPEN4_CREATE, EXCLUSIVE4_1
        .fixed(&[4; 8])
        .words(&[2, 0, 1 << 1]) // mode
        .opaque(&0o644_u32.to_be_bytes())
        .word(0) // CLAIM_NULL
        .opaque(b"name")
        .word(10);
    let ops: Vec<_> = operations(&message.0).map(Result::unwrap).collect();
    assert_eq!(
        ops[0],
        Op::Sequence(Sequence {
            sessionid: SessionId([9; 16]),
            sequenceid: 5,
            slotid: 2,
            highest_slotid: 3,
            cachethis: true
        })
    );
    assert_eq!(ops[1], Op::PutFh(Opaque(b"\x01\x02\x03\x04\x05")));
    let Op::Open(open) = ops[2] else {
        panic!("{:?}", ops[2])
    };
    assert_eq!(
        (open.share_access, open.share_deny),
        (ShareAccess(0x0403), ShareDeny(0))
    );
    assert_eq!(open.claim, OpenClaim::Null(Component(b"name")));
    let OpenHow::Create(CreateHow::Exclusive41(create)) = open.openhow else {
        panic!("{:?}", open.openhow)
    };
    assert_eq!(create.attrs.mask, Bitmap::EMPTY.with(33));
    assert_eq!(ops[3], Op::GetFh);
    assert_encodes_to(&message.0, b"open", 1, &ops);
}

#[test]
fn every_claim_and_create_mode_is_told() {
    let open = |how: &[u32], claim: Words| {
        let mut message = header(b"", 1, 1)
            .words(&[18, 0, 1, 0])
            .hyper(0)
            .opaque(b"")
            .words(how);
        message.0.extend(claim.0);
        message
    };
    let claims = [
        Words::new().word(0).opaque(b"a"),
        Words::new().words(&[1, 2]),
        stateid(Words::new().word(2)).opaque(b"a"),
        Words::new().word(3).opaque(b"a"),
        Words::new().word(4),
        stateid(Words::new().word(5)),
        Words::new().word(6),
    ];
    let hows: [&[u32]; 5] = [
        &[0],
        &[1, 0, 0, 0],
        &[1, 1, 0, 0],
        &[1, 2, 8, 9],
        &[1, 3, 8, 9, 0, 0],
    ];
    for (number, claim) in claims.into_iter().enumerate() {
        for how in hows {
            let message = open(how, claim.clone());
            let ops: Vec<_> = operations(&message.0).map(Result::unwrap).collect();
            assert_encodes_to(&message.0, b"", 1, &ops);
            let Op::Open(open) = ops[0] else {
                panic!("{ops:?}")
            };
            let told = match open.claim {
                OpenClaim::Null(_) => 0,
                OpenClaim::Previous(_) => 1,
                OpenClaim::DelegateCurrent(_) => 2,
                OpenClaim::DelegatePrevious(_) => 3,
                OpenClaim::Fh => 4,
                OpenClaim::DelegateCurrentFh(_) => 5,
                OpenClaim::DelegatePreviousFh => 6,
            };
            assert_eq!(told, number);
        }
    }
    let claim_7 = open(&[0], Words::new().word(7));
    let error = operations(&claim_7.0).next().unwrap().unwrap_err();
    assert_eq!((error.op(), error.status()), (OpNum::OPEN, Status::BADXDR));
    let mode_4 = open(&[1, 4], Words::new().word(4));
    assert_eq!(
        operations(&mode_4.0).next().unwrap().unwrap_err().status(),
        Status::BADXDR
    );
}

fn write(data_length: u32) -> Words {
    stateid(sequence(header(b"", 2, 3)).word(38))
        .hyper(4096)
        .words(&[2, data_length])
}

#[test]
fn data_of_write_lies_in_the_message() {
    let message = write(5).fixed(b"hello").words(&[9, 1, 0b10]);
    let mut operations = operations(&message.0);
    assert!(matches!(operations.next(), Some(Ok(Op::Sequence(_)))));
    assert_eq!(
        operations.next(),
        Some(Ok(Op::Write(Write {
            stateid: STATEID,
            offset: 4096,
            stable: StableHow::FileSync,
            data: DataItem::Inline(b"hello"),
        })))
    );
    assert_eq!(
        operations.next(),
        Some(Ok(Op::GetAttr(Bitmap::EMPTY.with(1))))
    );
    assert_eq!(operations.next(), None);
    assert_eq!(operations.finish(), Ok(()));
}

#[test]
fn data_of_write_is_reduced_with_and_without_its_padding() {
    let up_to_data = write(5);
    let position = u32::try_from(up_to_data.0.len()).unwrap();
    let message = up_to_data.words(&[9, 1, 0b10]);
    for length_bytes in [5, 8] {
        let reduced = [ReducedItem {
            position,
            length_bytes,
        }];
        let reader = Reader::with_reduced(&message.0, &reduced);
        let mut operations = Compound::parse(reader).unwrap().operations().unwrap();
        let ops: Vec<_> = operations.by_ref().map(Result::unwrap).collect();
        let Op::Write(write) = ops[1] else {
            panic!("{ops:?}")
        };
        assert_eq!(
            write.data,
            DataItem::Reduced {
                index: 0,
                length_bytes: 5
            }
        );
        assert_eq!(ops[2], Op::GetAttr(Bitmap::EMPTY.with(1)));
        assert_eq!(operations.finish(), Ok(()));
        assert_encodes_to(&message.0, b"", 2, &ops);
    }
}

#[test]
fn a_chunk_where_nothing_can_be_reduced_is_refused() {
    let up_to_data = write(5);
    let position = u32::try_from(up_to_data.0.len()).unwrap();
    let message = up_to_data.fixed(b"hello").words(&[9, 1, 0b10]);
    // Within the stateid, within the data, behind everything; and of another length.
    for (position, length_bytes, op) in [
        (position - 24, 5, Some(OpNum::WRITE)),
        (position + 4, 5, Some(OpNum::WRITE)),
        (position + 100, 5, None),
        (position, 6, Some(OpNum::WRITE)),
    ] {
        let reduced = [ReducedItem {
            position,
            length_bytes,
        }];
        let reader = Reader::with_reduced(&message.0, &reduced);
        let mut operations = Compound::parse(reader).unwrap().operations().unwrap();
        let failed = operations.by_ref().find_map(Result::err);
        assert_eq!(
            failed.map(|error| (error.op(), error.status())),
            op.map(|op| (op, Status::BADXDR))
        );
        if op.is_none() {
            assert!(matches!(
                operations.finish(),
                Err(ReadError::Misplaced { .. })
            ));
        }
    }
}

#[test]
fn the_text_of_a_link_can_be_reduced() {
    let up_to_text = header(b"", 1, 1).words(&[6, 5, 11]);
    let position = u32::try_from(up_to_text.0.len()).unwrap();
    let message = up_to_text.opaque(b"link").words(&[0, 0]);
    let reduced = [ReducedItem {
        position,
        length_bytes: 11,
    }];
    let reader = Reader::with_reduced(&message.0, &reduced);
    let mut operations = Compound::parse(reader).unwrap().operations().unwrap();
    let expected = Op::Create(Create {
        objtype: CreateType::SymbolicLink(DataItem::Reduced {
            index: 0,
            length_bytes: 11,
        }),
        objname: Component(b"link"),
        createattrs: Fattr::default(),
    });
    assert_eq!(operations.next(), Some(Ok(expected)));
    assert_eq!(operations.finish(), Ok(()));
}

#[test]
fn extended_attributes_of_minor_version_2() {
    let body = |minor| {
        header(b"", minor, 4)
            .word(72)
            .opaque(b"mime")
            .words(&[73, 1])
            .opaque(b"mime")
            .opaque(b"text/plain")
            .word(74)
            .hyper(3)
            .words(&[4096, 75])
            .opaque(b"mime")
    };
    let message = body(2);
    let ops: Vec<_> = operations(&message.0).map(Result::unwrap).collect();
    assert_eq!(
        ops[1],
        Op::SetXattr(SetXattr {
            option: SetXattrOption::Create,
            key: XattrName(b"mime"),
            value: Opaque(b"text/plain"),
        })
    );
    assert_eq!(ops.len(), 4);
    assert_encodes_to(&message.0, b"", 2, &ops);
    let minor_1 = body(1);
    let error = operations(&minor_1.0).next().unwrap().unwrap_err();
    assert_eq!(
        error,
        OpError::Illegal {
            number: 72,
            minor_version: 1
        }
    );
}

#[test]
fn an_operation_that_cannot_be_parsed_is_the_last() {
    let illegal = header(b"", 2, 3).words(&[10, 9999, 10]);
    let mut ops = operations(&illegal.0);
    assert_eq!(ops.next(), Some(Ok(Op::GetFh)));
    let error = ops.next().unwrap().unwrap_err();
    assert_eq!(
        (error.op(), error.status()),
        (OpNum::ILLEGAL, Status::OP_ILLEGAL)
    );
    assert_eq!(
        error.to_string(),
        "operation 9999 in minor version 2, expected one that it defines: answer ILLEGAL with \
         NFS4ERR_OP_ILLEGAL"
    );
    assert_eq!((ops.next(), ops.left()), (None, 0));

    // RENEW is of NFSv4.0: its arguments are not looked at.
    let renew = header(b"", 1, 1).word(30);
    assert_eq!(
        operations(&renew.0).next(),
        Some(Ok(Op::OfV40(OpNum::RENEW)))
    );

    // A filehandle of 129 bytes.
    let long = header(b"", 1, 2).word(22).opaque(&[0; 129]).word(10);
    let mut ops = operations(&long.0);
    let error = ops.next().unwrap().unwrap_err();
    assert_eq!((error.op(), error.status()), (OpNum::PUTFH, Status::BADXDR));
    assert_eq!(ops.next(), None);

    // A boolean that is 2.
    let reclaim = header(b"", 1, 1).words(&[58, 2]);
    assert_eq!(
        operations(&reclaim.0).next().unwrap().unwrap_err().status(),
        Status::BADXDR
    );

    // Fewer operations than the header says.
    let few = header(b"", 1, 2).words(&[10]);
    let error = Compound::parse(Reader::new(&few.0)).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Short {
                field: "argarray",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn versions_and_tags_are_bounded() {
    for minor_version in [0, 3, u32::MAX] {
        let message = header(b"tag", minor_version, 0);
        let compound = Compound::parse(Reader::new(&message.0)).unwrap();
        assert_eq!(compound.tag.0, b"tag");
        assert_eq!(
            compound.operations().unwrap_err(),
            Status::MINOR_VERS_MISMATCH
        );
    }
    assert!(Compound::parse(Reader::new(&header(&[b'a'; 1024], 1, 0).0)).is_ok());
    assert!(Compound::parse(Reader::new(&header(&[b'a'; 1025], 1, 0).0)).is_err());
    // A count that the message cannot hold is refused before anything is made of it.
    let message = header(b"", 1, u32::MAX).words(&[10, 10]);
    assert!(Compound::parse(Reader::new(&message.0)).is_err());
}
