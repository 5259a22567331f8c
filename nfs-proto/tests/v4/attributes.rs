//! Attributes as they are on the wire.

use capstan_nfs_proto::codec::{Decode, Encode, Opaque, Reader, Writer};
use capstan_nfs_proto::v4::attr::{
    AttrNumber, Attributes, Fattr, SetAttributes, SetError, TimeToSet,
};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{FileType, MaskedMode, ModeUmask, Principal, Time};

use crate::words::Words;

fn encoded(attributes: &Attributes<'_>, requested: &Bitmap) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut writer = Writer::new(&mut buffer);
    attributes.encode_requested(requested, &mut writer).unwrap();
    writer.written().to_vec()
}

fn set_encoded(attributes: &SetAttributes<'_>) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut writer = Writer::new(&mut buffer);
    attributes.encode(&mut writer).unwrap();
    writer.written().to_vec()
}

fn fattr(bytes: &[u8]) -> Fattr<'_> {
    let mut reader = Reader::new(bytes);
    let fattr = Fattr::decode(&mut reader, "attributes").unwrap();
    reader.finish().unwrap();
    fattr
}

fn settable() -> Bitmap {
    SetAttributes::known()
}

#[test]
fn values_are_in_the_order_of_the_numbers_and_only_what_was_asked_for() {
    let attributes = Attributes {
        file_type: Some(FileType::Directory),
        size: Some(0x1_0000_0002),
        mode: Some(0o755),
        owner: Some(Principal::Id(1000)),
        time_modify: Some(Time {
            seconds: -1,
            nseconds: 5,
        }),
        xattr_support: Some(true),
        ..Attributes::default()
    };
    // Asked for besides: an ACL, and a number that nobody knows.
    let requested: Bitmap = [1, 4, 12, 33, 36, 53, 82, 95].into_iter().collect();
    let expected = Words::new()
        .words(&[3, 0b1_0010, 1 << 1 | 1 << 4 | 1 << 21, 1 << 18])
        .word(4 + 8 + 4 + 8 + 12 + 4)
        .word(2)
        .hyper(0x1_0000_0002)
        .word(0o755)
        .opaque(b"1000")
        .hyper(u64::MAX)
        .words(&[5, 1]);
    assert_eq!(encoded(&attributes, &requested), expected.0);
    assert_eq!(
        Attributes::decode_values(&fattr(&expected.0)),
        Ok(attributes)
    );
    // Not asked for, not sent.
    assert_eq!(
        encoded(&attributes, &Bitmap::EMPTY.with(1)),
        Words::new().words(&[1, 2, 4, 2]).0
    );
    assert_eq!(encoded(&attributes, &Bitmap::EMPTY), [0; 8]);
}

#[test]
fn values_of_a_reply_that_do_not_fit_their_mask_are_refused() {
    let decode = |bytes: &[u8]| Attributes::decode_values(&fattr(bytes)).is_ok();
    assert!(decode(&Words::new().words(&[1, 1 << 10, 4, 90]).0));
    assert!(!decode(&Words::new().words(&[1, 1 << 10, 8, 90, 0]).0));
    assert!(!decode(&Words::new().words(&[1, 1 << 10, 0]).0));
    assert!(!decode(&Words::new().words(&[1, 1 << 12, 4, 0]).0));
}

#[test]
fn every_settable_value_survives() {
    let values = SetAttributes {
        size: Some(0),
        mode: Some(0o7777),
        owner: Some(Principal::Id(0)),
        owner_group: Some(Principal::Name(b"staff@example.org")),
        time_access_set: Some(TimeToSet::Server),
        time_create: Some(Time {
            seconds: 1,
            nseconds: 999_999_999,
        }),
        time_modify_set: Some(TimeToSet::Client(Time {
            seconds: i64::MIN,
            nseconds: 0,
        })),
        ..SetAttributes::default()
    };
    let bytes = set_encoded(&values);
    assert_eq!(
        SetAttributes::parse(&fattr(&bytes), &settable()),
        Ok(values)
    );
    for modes in [
        SetAttributes {
            mode_set_masked: Some(MaskedMode {
                value_to_set: 1,
                mask_bits: 3,
            }),
            ..SetAttributes::default()
        },
        SetAttributes {
            mode_umask: Some(ModeUmask {
                mode: 0o666,
                umask: 0o22,
            }),
            ..SetAttributes::default()
        },
    ] {
        let bytes = set_encoded(&modes);
        assert_eq!(SetAttributes::parse(&fattr(&bytes), &settable()), Ok(modes));
    }
    let Some(Principal::Name(_)) = values.owner_group else {
        panic!()
    };
    assert_eq!(values.owner_group.unwrap().id(), Err(Status::BADOWNER));
    assert_eq!(values.owner.unwrap().id(), Ok(0));
}

#[test]
fn what_cannot_be_set_says_so_with_its_status() {
    let parse = |bytes: &[u8], supported: &Bitmap| {
        SetAttributes::parse(&fattr(bytes), supported).unwrap_err()
    };
    let supported = settable().or(&Bitmap::EMPTY.with(AttrNumber::TYPE.0));
    // Read-only, unsupported, without a place here, unknown, above every number.
    let cases: [(&[u32], SetError); 5] = [
        (&[1, 1 << 1, 4, 1], SetError::ReadOnly(AttrNumber::TYPE)),
        (
            &[1, 1 << 20, 8, 0, 1],
            SetError::Unsupported(AttrNumber::FILEID),
        ),
        (&[1, 1 << 12, 4, 0], SetError::Unsupported(AttrNumber::ACL)),
        (
            &[3, 0, 0, 1 << 31, 0],
            SetError::Unsupported(AttrNumber(95)),
        ),
        (&[4, 0, 0, 0, 1, 0], SetError::Unknown),
    ];
    for (words, expected) in cases {
        let error = parse(&Words::new().words(words).0, &supported);
        assert_eq!(error, expected);
        let read_only = matches!(expected, SetError::ReadOnly(_));
        assert_eq!(
            error.status(),
            if read_only {
                Status::INVAL
            } else {
                Status::ATTRNOTSUPP
            }
        );
    }
    let size = SetAttributes {
        size: Some(1),
        ..SetAttributes::default()
    };
    let unsupported = parse(
        &set_encoded(&size),
        &supported.without(&Bitmap::EMPTY.with(4)),
    );
    assert_eq!(unsupported, SetError::Unsupported(AttrNumber::SIZE));

    // Too short, too long, a union with arm 2.
    for words in [
        &[1, 1 << 4, 4, 1][..],
        &[1, 1 << 4, 12, 0, 1, 0],
        &[2, 0, 1 << 16, 4, 2],
    ] {
        assert_eq!(
            parse(&Words::new().words(words).0, &supported).status(),
            Status::BADXDR
        );
    }
}

#[test]
fn values_that_no_attribute_can_have_are_invalid() {
    let none = SetAttributes::default();
    let late = Time {
        seconds: 0,
        nseconds: 1_000_000_000,
    };
    let masked = MaskedMode {
        value_to_set: 0,
        mask_bits: 0o10000,
    };
    for values in [
        SetAttributes {
            mode: Some(0o10000),
            ..none
        },
        SetAttributes {
            mode_set_masked: Some(masked),
            ..none
        },
        SetAttributes {
            mode_umask: Some(ModeUmask {
                mode: 0,
                umask: 0o10000,
            }),
            ..none
        },
        SetAttributes {
            time_create: Some(late),
            ..none
        },
        SetAttributes {
            time_access_set: Some(TimeToSet::Client(late)),
            ..none
        },
        SetAttributes {
            time_modify_set: Some(TimeToSet::Client(late)),
            ..none
        },
        SetAttributes {
            mode: Some(0),
            mode_set_masked: Some(MaskedMode {
                value_to_set: 0,
                mask_bits: 0,
            }),
            ..none
        },
        SetAttributes {
            mode_umask: Some(ModeUmask { mode: 0, umask: 0 }),
            mode_set_masked: Some(MaskedMode {
                value_to_set: 0,
                mask_bits: 0,
            }),
            ..none
        },
    ] {
        let bytes = set_encoded(&values);
        let error = SetAttributes::parse(&fattr(&bytes), &settable()).unwrap_err();
        assert_eq!(error.status(), Status::INVAL, "{error}");
    }
}

#[test]
fn numbers_have_names_and_a_mask_fits_them() {
    assert_eq!(AttrNumber::NAMED.len(), 87);
    for (at, number) in AttrNumber::NAMED.iter().enumerate() {
        assert_eq!(usize::try_from(number.0).unwrap(), at);
        assert!(Bitmap::EMPTY.with(number.0).contains(number.0));
    }
    assert_eq!(AttrNumber(81).to_string(), "mode_umask");
    assert_eq!(AttrNumber(87).to_string(), "87");
    assert!(
        Attributes::known()
            .and(&settable())
            .contains(AttrNumber::SIZE.0)
    );
    assert_eq!(
        Fattr {
            mask: Bitmap::EMPTY,
            values: Opaque(&[])
        },
        Fattr::default()
    );
}
