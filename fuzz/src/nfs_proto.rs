//! Body for the parsers of `nfs-proto`.

use capstan_nfs_proto::codec::{DataItem, Decode, Encode, Reader, ReducedItem, Writer};
use capstan_nfs_proto::v4::args::CreateType;
use capstan_nfs_proto::v4::attr::{Attributes, Fattr, SetAttributes};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::client::{CompoundEncoder, Reply};
use capstan_nfs_proto::v4::compound::Compound;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::types::Component;

/// Most reduced items that an input brings along.
const ITEMS_MAX: usize = 3;

/// Arguments of COMPOUND, with data that was taken out of them, and the same bytes as a reply. The
/// first byte is how many reduced items there are; each is a position of two bytes and a length of
/// one byte.
pub fn nfs_compound(bytes: &[u8]) {
    let Some((count, mut rest)) = bytes.split_first() else {
        return;
    };
    let mut items = [ReducedItem::default(); ITEMS_MAX];
    let count = usize::from(*count) % (ITEMS_MAX + 1);
    for item in &mut items[..count] {
        let Some(([high, low, length], behind)) = rest.split_first_chunk::<3>() else {
            return;
        };
        *item = ReducedItem {
            position: u32::from(u16::from_be_bytes([*high, *low])),
            length_bytes: u32::from(*length),
        };
        rest = behind;
    }
    items[..count].sort_by_key(|item| item.position);
    arguments(rest, &items[..count]);
    results(rest, &items[..count]);
}

/// What was noticed beyond a bitmap is not sent again.
fn shown(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").replace(" and above", "")
}

fn arguments(message: &[u8], items: &[ReducedItem]) {
    let Ok(compound) = Compound::parse(Reader::with_reduced(message, items)) else {
        return;
    };
    assert!(compound.operations as usize <= message.len() / 4);
    let Ok(mut operations) = compound.operations() else {
        return;
    };
    let mut ops = Vec::new();
    for parsed in operations.by_ref() {
        match parsed {
            Ok(op) => {
                check_op(&op);
                ops.push(op);
            }
            Err(error) => {
                assert!(!error.status().is_ok() && error.op().name().is_some());
                assert!(!error.to_string().chars().any(char::is_control));
            }
        }
    }
    assert_eq!(operations.left(), 0);

    let mut buffer = vec![0; 2 * message.len() + 64];
    let mut writer = Writer::new(&mut buffer);
    let mut encoder = CompoundEncoder::new(&mut writer, compound.tag, compound.minor_version)
        .expect("a header is not longer than it was");
    for op in &ops {
        encoder.push(op).expect("what was parsed fits");
    }
    let again = Reader::with_reduced(writer.written(), writer.reduced_items());
    let again = Compound::parse(again).expect("what was encoded");
    let parsed: Vec<_> = again
        .operations()
        .expect("the same version")
        .map(Result::unwrap)
        .collect();
    assert_eq!(shown(&parsed), shown(&ops));
}

/// What a server looks at of an operation.
fn check_op(op: &Op<'_>) {
    match op {
        Op::Lookup(name) | Op::Remove(name) => check_name(name),
        Op::SetAttr(set) => check_attributes(&set.obj_attributes),
        Op::Create(create) => {
            check_attributes(&create.createattrs);
            if let CreateType::SymbolicLink(DataItem::Reduced { index, .. }) = create.objtype {
                assert!(index < ITEMS_MAX);
            }
        }
        Op::Verify(attributes) => {
            if let Ok(values) = Attributes::decode_values(attributes) {
                assert_eq!(values.present(), attributes.mask);
            }
        }
        Op::TestStateid(stateids) => assert_eq!(stateids.iter().count(), stateids.len()),
        _ => {}
    }
}

fn check_name(component: &Component<'_>) {
    match component.name() {
        Ok(name) => assert!((1..=255).contains(&name.len()) && !name.contains(&b'/')),
        Err(status) => assert!(!status.is_ok()),
    }
    assert!(component.to_string().is_ascii());
}

fn check_attributes(attributes: &Fattr<'_>) {
    let all = Bitmap::from_words([u32::MAX; 3]);
    match SetAttributes::parse(attributes, &all) {
        Ok(values) => {
            assert_eq!(values.present(), attributes.mask);
            let mut buffer = vec![0; attributes.values.0.len() + 64];
            let mut writer = Writer::new(&mut buffer);
            values.encode(&mut writer).expect("what was parsed fits");
            let again = Fattr::decode(&mut Reader::new(writer.written()), "attributes")
                .expect("what was encoded");
            assert_eq!(SetAttributes::parse(&again, &all), Ok(values));
        }
        Err(error) => assert!(!error.status().is_ok()),
    }
}

/// A result by itself numbers its reduced items anew.
fn shown_alone(result: &OpResult<'_>) -> String {
    (0..ITEMS_MAX).fold(shown(result), |text, index| {
        text.replace(&format!("index: {index}"), "")
    })
}

fn results(message: &[u8], items: &[ReducedItem]) {
    let Ok(reply) = Reply::decode(Reader::with_reduced(message, items)) else {
        return;
    };
    for result in reply.map_while(Result::ok) {
        if let OpResult::GetAttr(attributes) = &result {
            let _ = Attributes::decode_values(attributes);
        }
        let mut buffer = vec![0; 2 * message.len() + 64];
        let mut writer = Writer::new(&mut buffer);
        result.encode(&mut writer).expect("what was decoded fits");
        let mut again = Reader::with_reduced(writer.written(), writer.reduced_items());
        let decoded = OpResult::decode(&mut again, "resop").expect("what was encoded");
        assert_eq!(shown_alone(&decoded), shown_alone(&result));
        assert_eq!(again.finish(), Ok(()));
    }
}
