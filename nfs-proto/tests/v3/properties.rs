//! What holds for whatever arrives.

use std::collections::BTreeSet;
use std::fmt::Debug;

use capstan_nfs_proto::codec::{Decode, Encode, Reader, Writer};
use capstan_nfs_proto::mount::{Exports, MountCall, MountList, MountResult};
use capstan_nfs_proto::v3::call::Call;
use capstan_nfs_proto::v3::results::{
    AccessResult, CommitResult, CreateResult, FsInfoResult, FsStatResult, GetAttrResult,
    LinkResult, LookupResult, PathConfResult, ReadDirPlusResult, ReadDirResult, ReadLinkResult,
    ReadResult, RenameResult, WccResult, WriteResult,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::words::Words;

const MESSAGE_BYTES: usize = 1024;

/// Encodes what was decoded, and decodes it again.
fn check<'a, T: Encode + Debug>(
    value: &T,
    buffer: &'a mut [u8],
    decode: impl FnOnce(&mut Reader<'a>) -> T,
) {
    let mut writer = Writer::new(buffer);
    value.encode(&mut writer).unwrap();
    let length = writer.offset();
    let bytes: &'a [u8] = &*buffer;
    let mut reader = Reader::new(&bytes[..length]);
    assert_eq!(format!("{:?}", decode(&mut reader)), format!("{value:?}"));
    assert_eq!(reader.finish(), Ok(()));
}

fn check_call(procedure: u32, message: &[u8]) -> bool {
    let mut buffer = [0; 2 * MESSAGE_BYTES];
    if let Ok(Some(call)) = MountCall::parse(procedure, &mut Reader::new(message)) {
        check(&call, &mut buffer, |reader| {
            MountCall::parse(procedure, reader).unwrap().unwrap()
        });
    }
    let mut buffer = [0; 2 * MESSAGE_BYTES];
    let Ok(Some(call)) = Call::parse(procedure, &mut Reader::new(message)) else {
        return false;
    };
    check(&call, &mut buffer, |reader| {
        Call::parse(procedure, reader).unwrap().unwrap()
    });
    true
}

/// The names of the results that the bytes can be.
fn check_results(message: &[u8]) -> Vec<&'static str> {
    let mut decoded = Vec::new();
    macro_rules! results {
        ($($type:ident),+) => {$(
            if let Ok(result) = $type::decode(&mut Reader::new(message), "result") {
                let mut buffer = [0; 2 * MESSAGE_BYTES];
                check(&result, &mut buffer, |reader| $type::decode(reader, "result").unwrap());
                decoded.push(stringify!($type));
            }
        )+};
    }
    results!(
        AccessResult,
        CommitResult,
        CreateResult,
        FsInfoResult,
        FsStatResult,
        GetAttrResult,
        LinkResult,
        LookupResult,
        PathConfResult,
        ReadDirPlusResult,
        ReadDirResult,
        ReadLinkResult,
        ReadResult,
        RenameResult,
        WccResult,
        WriteResult,
        Exports,
        MountList,
        MountResult
    );
    decoded
}

fn words() -> impl Strategy<Value = Vec<u32>> {
    let word = prop_oneof![12 => 0..=2_u32, 4 => 3..=9_u32, 1 => any::<u32>()];
    vec(word, 0..80)
}

proptest! {
    #[test]
    fn calls_survive(procedure in 0..=22_u32, words in words()) {
        check_call(procedure, &Words::new().words(&words).0);
    }

    #[test]
    fn results_survive(words in words()) {
        check_results(&Words::new().words(&words).0);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(
        procedure in 0..=22_u32, message in vec(any::<u8>(), 0..MESSAGE_BYTES),
    ) {
        check_call(procedure, &message);
        check_results(&message);
    }
}

/// The properties above are about every procedure, and not about those alone that are easily hit.
#[test]
fn every_procedure_is_parsed_by_some_words() {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 33).unwrap()
    };
    let (mut parsed, mut decoded) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..1000 {
        let words: Vec<u32> = (0..120)
            .map(|_| match next() % 16 {
                0..13 => next() % 3,
                13..15 => next() % 8,
                _ => next(),
            })
            .collect();
        let message = Words::new().words(&words).0;
        parsed.extend((0..=22).filter(|procedure| check_call(*procedure, &message)));
        decoded.extend(check_results(&Words::new().word(0).words(&words).0));
    }
    assert_eq!(parsed, (0..=21).collect());
    assert_eq!(decoded.len(), 19, "{decoded:?}");
}
