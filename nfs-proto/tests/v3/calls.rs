//! Calls as clients send them, put together by hand from the XDR of RFC 1813.

use capstan_nfs_proto::codec::{DataItem, Encode, Opaque, ReadError, Reader, ReducedItem, Writer};
use capstan_nfs_proto::mount::MountCall;
use capstan_nfs_proto::v3::args::{CreateHow, MkNodData, Write};
use capstan_nfs_proto::v3::call::Call;
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{FileName, SetAttributes, SetTime, StableHow, Time};

use crate::words::Words;

const FH: &[u8] = b"filehandle";

fn parse(procedure: u32, message: &Words) -> Call<'_> {
    let call = Call::parse(procedure, &mut Reader::new(&message.0))
        .unwrap()
        .unwrap();
    assert_eq!(call.procedure(), procedure);
    let mut buffer = vec![0; message.0.len()];
    let mut writer = Writer::new(&mut buffer);
    call.encode(&mut writer).unwrap();
    assert_eq!(writer.written(), message.0);
    call
}

#[test]
fn create_with_each_mode() {
    let place = || Words::new().opaque(FH).opaque(b"name");
    // mode, uid and gid absent, size 0, atime of the server, mtime of the client
    let attributes = [1, 0o644, 0, 0, 1, 0, 0, 1, 2, 7, 8];
    let expected = SetAttributes {
        mode: Some(0o644),
        uid: None,
        gid: None,
        size: Some(0),
        atime: SetTime::Server,
        mtime: SetTime::Client(Time {
            seconds: 7,
            nseconds: 8,
        }),
    };
    let unchecked = place().word(0).words(&attributes);
    let Call::Create(create) = parse(8, &unchecked) else {
        panic!()
    };
    assert_eq!(create.how, CreateHow::Unchecked(expected));
    assert_eq!(
        (create.place.dir, create.place.name),
        (Opaque(FH), FileName(b"name"))
    );
    let guarded = place().word(1).words(&attributes);
    let Call::Create(create) = parse(8, &guarded) else {
        panic!()
    };
    assert_eq!(create.how, CreateHow::Guarded(expected));
    let exclusive = place().word(2).fixed(&[5; 8]);
    let Call::Create(create) = parse(8, &exclusive) else {
        panic!()
    };
    assert_eq!(create.how, CreateHow::Exclusive([5; 8]));
    let other = place().word(3).fixed(&[5; 8]);
    assert!(Call::parse(8, &mut Reader::new(&other.0)).is_err());
}

#[test]
fn mknod_of_each_type() {
    for (number, name) in [
        (3, "block"),
        (4, "character"),
        (6, "socket"),
        (7, "fifo"),
        (1, "other"),
    ] {
        let mut message = Words::new().opaque(FH).opaque(b"n").word(number);
        if number != 1 {
            message = message.words(&[0; 6]);
        }
        if number < 5 && number != 1 {
            message = message.words(&[8, 1]);
        }
        let Call::MkNod(made) = parse(11, &message) else {
            panic!()
        };
        let told = match made.what {
            MkNodData::Block(device) if device.spec.specdata1 == 8 => "block",
            MkNodData::Character(device) if device.spec.specdata2 == 1 => "character",
            MkNodData::Socket(_) => "socket",
            MkNodData::Fifo(_) => "fifo",
            MkNodData::Other(1) => "other",
            other => panic!("{other:?}"),
        };
        assert_eq!(told, name);
    }
}

#[test]
fn data_of_write_is_inline_or_reduced() {
    let head = Words::new().opaque(FH).hyper(512).words(&[5, 1, 5]);
    let expected = |data| {
        Call::Write(Write {
            file: Opaque(FH),
            offset: 512,
            count: 5,
            stable: StableHow::DataSync,
            data,
        })
    };
    let inline = head.clone().fixed(b"hello");
    assert_eq!(parse(7, &inline), expected(DataItem::Inline(b"hello")));
    let position = u32::try_from(head.0.len()).unwrap();
    for length_bytes in [5, 8] {
        let items = [ReducedItem {
            position,
            length_bytes,
        }];
        let call = Call::parse(7, &mut Reader::with_reduced(&head.0, &items)).unwrap();
        assert_eq!(
            call,
            Some(expected(DataItem::Reduced {
                index: 0,
                length_bytes: 5
            }))
        );
    }
    // A chunk that no argument has a place for.
    let items = [ReducedItem {
        position: position + 8,
        length_bytes: 5,
    }];
    let error = Call::parse(7, &mut Reader::with_reduced(&inline.0, &items)).unwrap_err();
    assert!(matches!(error, ReadError::Misplaced { .. }), "{error}");
}

#[test]
fn procedures_and_filehandles_are_bounded() {
    for procedure in [22, 23, u32::MAX] {
        assert_eq!(Call::parse(procedure, &mut Reader::new(&[])), Ok(None));
        assert_eq!(Call::name(procedure), None);
    }
    assert_eq!(Call::name(17), Some("READDIRPLUS"));
    let longest = Words::new().opaque(&[1; 64]);
    assert_eq!(parse(1, &longest), Call::GetAttr(Opaque(&[1; 64])));
    let longer = Words::new().opaque(&[1; 65]);
    assert!(Call::parse(1, &mut Reader::new(&longer.0)).is_err());
    // What follows the arguments is not looked at.
    let more = Words::new().opaque(FH).word(1);
    assert_eq!(
        Call::parse(1, &mut Reader::new(&more.0)),
        Ok(Some(Call::GetAttr(Opaque(FH))))
    );
}

#[test]
fn a_file_name_is_one_or_says_why_not() {
    assert_eq!(FileName(b"..").name(), Ok(b"..".as_slice()));
    assert_eq!(FileName(b"").name(), Err(Status::ACCES));
    assert_eq!(FileName(b"a/b").name(), Err(Status::ACCES));
    assert_eq!(FileName(b"a\0").name(), Err(Status::ACCES));
    assert_eq!(FileName(&[b'a'; 255]).name().map(<[u8]>::len), Ok(255));
    assert_eq!(FileName(&[b'a'; 256]).name(), Err(Status::NAMETOOLONG));
}

#[test]
fn calls_of_mount() {
    let path = Words::new().opaque(b"/export/home");
    let calls = [
        (0, MountCall::Null),
        (1, MountCall::Mnt(Opaque(b"/export/home"))),
        (2, MountCall::Dump),
        (3, MountCall::Umnt(Opaque(b"/export/home"))),
        (4, MountCall::UmntAll),
        (5, MountCall::Export),
    ];
    for (procedure, expected) in calls {
        let message = if matches!(procedure, 1 | 3) {
            &path.0[..]
        } else {
            &[]
        };
        assert_eq!(
            MountCall::parse(procedure, &mut Reader::new(message)),
            Ok(Some(expected))
        );
        assert_eq!(expected.procedure(), procedure);
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        expected.encode(&mut writer).unwrap();
        assert_eq!(writer.written(), message);
    }
    assert_eq!(MountCall::parse(6, &mut Reader::new(&[])), Ok(None));
    let long = Words::new().opaque(&[b'/'; 1025]);
    assert!(MountCall::parse(1, &mut Reader::new(&long.0)).is_err());
}
