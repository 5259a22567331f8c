//! The format of stable storage.

use super::*;
use proptest::prelude::*;

fn owner(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

fn bytes_of(records: &[Record]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for record in records {
        encode(record, &mut bytes);
    }
    bytes
}

fn story() -> Vec<Record> {
    vec![
        Record::Boot { instance: 1 },
        Record::Client { owner: owner("a") },
        Record::Client { owner: owner("b") },
        Record::Client { owner: owner("c") },
        Record::Gone { owner: owner("b") },
        Record::Boot { instance: 2 },
        Record::Client { owner: owner("c") },
    ]
}

#[test]
fn the_format_is_as_it_is_written_down() {
    let bytes = bytes_of(&[
        Record::Boot {
            instance: 0x0102_0304,
        },
        Record::Client { owner: owner("ab") },
        Record::GraceEnded,
    ]);
    let golden = [
        b"CAPNFSS\x01".as_slice(),
        &[0, 5, 1, 1, 2, 3, 4],
        &crc_fast::crc32_iscsi(&[0, 5, 1, 1, 2, 3, 4]).to_be_bytes(),
        &[0, 3, 2, b'a', b'b'],
        &crc_fast::crc32_iscsi(&[0, 3, 2, b'a', b'b']).to_be_bytes(),
        &[0, 1, 4],
        &crc_fast::crc32_iscsi(&[0, 1, 4]).to_be_bytes(),
    ];
    assert_eq!(bytes, golden.concat());
}

#[test]
fn records_are_replayed() {
    let mut records = story();
    let replayed = |records: &[Record]| replay(&bytes_of(records)).unwrap().0;
    let before = replayed(&records);
    assert_eq!(before.instance, 2);
    assert_eq!(before.owners, [owner("a"), owner("c")].into());
    records.push(Record::GraceEnded);
    assert_eq!(
        replayed(&records).owners,
        [owner("c")].into(),
        "a client that has not come has lost"
    );
    assert_eq!(replay(b"").unwrap(), (Replay::default(), 0));
}

#[test]
fn a_torn_end_is_left_out() {
    let whole = bytes_of(&story());
    let last = bytes_of(&story()[..6]).len();
    let expected = replay(&whole[..last]).unwrap().0;
    for end in last..whole.len() {
        assert_eq!(replay(&whole[..end]).unwrap(), (expected.clone(), last));
        // The file was made longer before its blocks were written.
        let mut zeroed = whole[..end].to_vec();
        zeroed.resize(whole.len(), 0);
        let (before, length) = replay(&zeroed).unwrap();
        assert_eq!((before, length), (expected.clone(), last), "{end}");
    }
    for end in 0..MAGIC.len() {
        assert_eq!(replay(&MAGIC[..end]).unwrap(), (Replay::default(), 0));
    }
}

#[test]
fn damage_in_the_middle_is_told() {
    let whole = bytes_of(&story());
    let last = bytes_of(&story()[..6]).len();
    for at in MAGIC.len()..last {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        let result = replay(&damaged);
        match result {
            // A length that goes to the end of the file looks like a torn record.
            Ok((_, length)) => {
                let claimed = [damaged[length], damaged[length + 1]];
                let end = length + FRAME_BYTES + usize::from(u16::from_be_bytes(claimed));
                assert!(end >= whole.len(), "at {at}");
            }
            Err(StableError::Damaged { offset, .. }) => assert!(offset <= at),
            Err(error) => panic!("{error}"),
        }
    }
    let wrong = replay(b"CAPNFSS\x02rest").unwrap_err();
    assert!(matches!(wrong, StableError::Magic { .. }));
    assert!(wrong.to_string().contains("another version"));
}

#[test]
fn an_owner_that_looks_like_a_record_is_an_owner() {
    // A peer chooses its owner: with a whole record in it a torn end would look like damage.
    let mut inner = Vec::new();
    encode(&Record::Gone { owner: owner("a") }, &mut inner);
    let mut records = story();
    records.push(Record::Client {
        owner: inner.as_slice().into(),
    });
    let bytes = bytes_of(&records);
    let kept = bytes_of(&story()).len();
    for end in kept..bytes.len() {
        assert_eq!(replay(&bytes[..end]).unwrap().1, kept, "{end}");
    }
    assert!(replay(&bytes).unwrap().0.owners.contains(inner.as_slice()));
}

#[test]
fn too_many_owners_are_refused() {
    let records: Vec<_> = (0..=OWNERS_MAX)
        .map(|number| Record::Client {
            owner: u64::to_be_bytes(number).as_slice().into(),
        })
        .collect();
    let result = replay(&bytes_of(&records));
    assert_eq!(
        result,
        Err(StableError::Owners {
            found: OWNERS_MAX + 1
        })
    );
}

proptest! {
    #[test]
    fn any_bytes_are_replayed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = replay(&bytes);
        let _ = replay(&[MAGIC.as_slice(), &bytes].concat());
    }

    #[test]
    fn every_record_comes_back(
        owner in prop::collection::vec(any::<u8>(), 0..=1024),
        instance: u32,
        export: u64,
    ) {
        let owner: Arc<[u8]> = owner.into();
        for record in [
            Record::Boot { instance },
            Record::Client { owner: owner.clone() },
            Record::Gone { owner: owner.clone() },
            Record::GraceEnded,
            Record::Revoked { owner: owner.clone(), export },
            Record::Acknowledged { owner },
        ] {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            prop_assert_eq!(decode(&bytes), Ok((record, bytes.len())));
        }
    }
}
