//! Attributes in calls and replies.

use capstan_nfs_proto::codec::{Decode, Encode, Reader, Writer};
use capstan_nfs_proto::v4::attr::{AttrNumber, Attributes, Fattr, SetAttributes};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;

use super::Client;

/// Attributes that can be set alone.
pub(crate) const WRITE_ONLY: [AttrNumber; 4] = [
    AttrNumber::TIME_ACCESS_SET,
    AttrNumber::TIME_MODIFY_SET,
    AttrNumber::MODE_SET_MASKED,
    AttrNumber::MODE_UMASK,
];

pub(crate) fn set_of(numbers: &[AttrNumber]) -> Bitmap {
    numbers.iter().map(|number| number.0).collect()
}

/// All that can be asked for.
pub(crate) fn readable() -> Bitmap {
    set_of(AttrNumber::NAMED).without(&set_of(&WRITE_ONLY))
}

/// Whether the kernel gives each change that could have been seen a time of its own, as it does
/// since Linux 6.13.
pub(crate) fn tells_changes_apart() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|text| text.parse::<u32>().unwrap());
    let apart = (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 13);
    if !apart {
        eprintln!("SKIPPED: whether change attributes differ, on Linux {release}");
    }
    apart
}

/// What is encoded, as bytes.
pub(crate) fn encoded(encode: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut writer = Writer::new(&mut buffer);
    encode(&mut writer);
    writer.written().to_vec()
}

/// Values to be set, as bytes for [`fattr`].
pub(crate) fn to_set(values: &SetAttributes<'_>) -> Vec<u8> {
    encoded(|writer| values.encode(writer).unwrap())
}

/// Values to be compared with, as bytes for [`fattr`].
pub(crate) fn to_compare(values: &Attributes<'_>) -> Vec<u8> {
    encoded(|writer| {
        values.encode_requested(&values.present(), writer).unwrap();
    })
}

pub(crate) fn fattr(bytes: &[u8]) -> Fattr<'_> {
    Decode::decode(&mut Reader::new(bytes), "attributes").unwrap()
}

impl Client {
    /// The attributes of what operations lead to.
    #[track_caller]
    pub(crate) fn attributes<T>(
        &mut self,
        ops: &[Op<'_>],
        requested: Bitmap,
        look: impl FnOnce(&Bitmap, &Attributes<'_>) -> T,
    ) -> T {
        let ops: Vec<_> = ops
            .iter()
            .copied()
            .chain([Op::GetAttr(requested)])
            .collect();
        self.run(&ops, |results| match results.last() {
            Some(OpResult::GetAttr(found)) => {
                look(&found.mask, &Attributes::decode_values(found).unwrap())
            }
            other => panic!("{other:?}"),
        })
    }

    /// All attributes of what operations lead to.
    #[track_caller]
    pub(crate) fn all_attributes<T>(
        &mut self,
        ops: &[Op<'_>],
        look: impl FnOnce(&Attributes<'_>) -> T,
    ) -> T {
        self.attributes(ops, readable(), |_, all| look(all))
    }
}
