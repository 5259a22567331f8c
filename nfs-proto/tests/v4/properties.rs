//! What holds for whatever arrives.

use std::collections::BTreeSet;

use capstan_nfs_proto::codec::{Decode, Encode, Reader, Writer};
use capstan_nfs_proto::v4::client::CompoundEncoder;
use capstan_nfs_proto::v4::compound::Compound;
use capstan_nfs_proto::v4::opnum::{MinorVersion, OpNum};
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::words::Words;

const MESSAGE_BYTES: usize = 2048;

/// Words of which most are small, as counts, discriminants and booleans are.
fn words() -> impl Strategy<Value = Vec<u32>> {
    let word = prop_oneof![12 => 0..=2_u32, 4 => 3..=9_u32, 1 => any::<u32>()];
    vec(word, 0..80)
}

fn opnum() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 3..=75_u32, 1 => any::<u32>()]
}

fn status() -> impl Strategy<Value = u32> {
    prop_oneof![5 => Just(0_u32), 1 => 1..99_u32, 1 => 10_001..=10_096_u32]
}

/// Without the numbers above those that a bitmap keeps, which are noticed and not sent.
fn shown(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").replace(" and above", "")
}

/// What was parsed encodes to something that parses to the same.
fn check_compound(message: &[u8]) -> Vec<OpNum> {
    let Ok(compound) = Compound::parse(Reader::new(message)) else {
        return Vec::new();
    };
    let Ok(operations) = compound.operations() else {
        return Vec::new();
    };
    let ops: Vec<_> = operations.map_while(Result::ok).collect();
    let mut buffer = [0; 2 * MESSAGE_BYTES];
    let mut writer = Writer::new(&mut buffer);
    let mut encoder =
        CompoundEncoder::new(&mut writer, compound.tag, compound.minor_version).unwrap();
    for op in &ops {
        encoder.push(op).unwrap();
    }
    let again = Compound::parse(Reader::new(writer.written())).unwrap();
    let mut operations = again.operations().unwrap();
    let parsed: Vec<_> = operations.by_ref().map(Result::unwrap).collect();
    assert_eq!(shown(&parsed), shown(&ops));
    assert_eq!(operations.finish(), Ok(()));
    ops.iter().map(|op| op.num()).collect()
}

fn check_result(message: &[u8]) -> Option<(OpNum, Status)> {
    let result = OpResult::decode(&mut Reader::new(message), "resop").ok()?;
    let mut buffer = [0; 2 * MESSAGE_BYTES];
    let mut writer = Writer::new(&mut buffer);
    result.encode(&mut writer).unwrap();
    let mut reader = Reader::new(writer.written());
    let again = OpResult::decode(&mut reader, "resop").unwrap();
    assert_eq!(shown(&again), shown(&result));
    assert_eq!(reader.finish(), Ok(()));
    Some((result.op(), result.status()))
}

fn compound_of(minor: MinorVersion, op: u32, words: &[u32]) -> Vec<u8> {
    Words::new()
        .words(&[0, minor.to_wire(), 1, op])
        .words(words)
        .0
}

proptest! {
    #[test]
    fn arguments_survive(op in opnum(), words in words()) {
        check_compound(&compound_of(MinorVersion::V2, op, &words));
    }

    #[test]
    fn results_survive(op in opnum(), status in status(), words in words()) {
        check_result(&Words::new().words(&[op, status]).words(&words).0);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(message in vec(any::<u8>(), 0..MESSAGE_BYTES)) {
        check_compound(&message);
        check_result(&message);
    }

    #[test]
    fn a_message_that_is_cut_is_refused(op in opnum(), words in words(), cut in 1..64_usize) {
        let message = compound_of(MinorVersion::V2, op, &words);
        let mut operations = Compound::parse(Reader::new(&message)).unwrap().operations().unwrap();
        if operations.next().unwrap().is_ok() {
            // So much did the operation take.
            let unread = match operations.finish() {
                Ok(()) => 0,
                Err(error) => trailing_bytes(&error),
            };
            let end = message.len() - unread;
            // Three words of the header and the number of the operation are there.
            let cut_to = (end - cut.min(end)).max(16);
            if cut_to < end {
                let mut short = Compound::parse(Reader::new(&message[..cut_to]))
                    .unwrap().operations().unwrap();
                prop_assert_eq!(
                    short.next().unwrap().map_err(|error| error.status()),
                    Err(Status::BADXDR)
                );
            }
        }
    }
}

fn trailing_bytes(error: &capstan_nfs_proto::codec::ReadError) -> usize {
    let capstan_nfs_proto::codec::ReadError::Trailing { left_bytes, .. } = error else {
        panic!("{error}")
    };
    *left_bytes
}

/// The properties above are about every operation, and not about those alone that are easily hit.
#[test]
fn every_operation_is_parsed_by_some_words() {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 33).unwrap()
    };
    let mut parsed = BTreeSet::new();
    let mut decoded = BTreeSet::new();
    for _ in 0..400 {
        let words: Vec<u32> = (0..120)
            .map(|_| match next() % 16 {
                0..12 => next() % 3,
                12..15 => next() % 8,
                _ => next(),
            })
            .collect();
        for op in 3..=75 {
            parsed.extend(check_compound(&compound_of(MinorVersion::V2, op, &words)));
            decoded.extend(check_result(&Words::new().words(&[op, 0]).words(&words).0));
        }
    }
    let missing: Vec<_> = (3..=75)
        .map(OpNum)
        .filter(|op| !parsed.contains(op))
        .collect();
    assert_eq!(missing, []);
    // Results of pNFS, of directory delegations and of SET_SSV have no type, nor those of NFSv4.0.
    let without: Vec<_> = (3..=75)
        .filter(|op| !decoded.contains(&(OpNum(*op), Status::OK)))
        .collect();
    assert_eq!(without, [20, 30, 35, 36, 39, 46, 47, 48, 49, 50, 51, 54]);
}
