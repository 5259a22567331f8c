//! Body for the parsers of `nfs-proto`.

use capstan_nfs_proto::codec::{DataItem, Decode, Encode, Reader, ReducedItem, Writer};
use capstan_nfs_proto::mount::MountCall;
use capstan_nfs_proto::v3::call::Call;
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

/// Reduced items in front of a message: a byte that counts them, and of each a position of two
/// bytes and a length of one byte.
fn reduced(bytes: &[u8]) -> Option<(Vec<ReducedItem>, &[u8])> {
    let (count, mut rest) = bytes.split_first()?;
    let mut items = Vec::new();
    for _ in 0..usize::from(*count) % (ITEMS_MAX + 1) {
        let ([high, low, length], behind) = rest.split_first_chunk::<3>()?;
        items.push(ReducedItem {
            position: u32::from(u16::from_be_bytes([*high, *low])),
            length_bytes: u32::from(*length),
        });
        rest = behind;
    }
    items.sort_by_key(|item| item.position);
    Some((items, rest))
}

/// Arguments of COMPOUND, with data that was taken out of them, and the same bytes as a reply,
/// behind the reduced items.
pub fn nfs_compound(bytes: &[u8]) {
    if let Some((items, message)) = reduced(bytes) {
        arguments(message, &items);
        results(message, &items);
    }
}

/// A call of NFS version 3 and of MOUNT: a byte is the procedure, reduced items and the arguments
/// follow.
pub fn nfs3_call(bytes: &[u8]) {
    let Some((procedure, (items, message))) = bytes
        .split_first()
        .and_then(|(procedure, rest)| Some((u32::from(*procedure), reduced(rest)?)))
    else {
        return;
    };
    let mut buffer = vec![0; message.len() + 64];
    match Call::parse(procedure, &mut Reader::with_reduced(message, &items)) {
        Ok(Some(call)) => {
            let mut writer = Writer::new(&mut buffer);
            call.encode(&mut writer).expect("what was parsed fits");
            let mut again = Reader::with_reduced(writer.written(), writer.reduced_items());
            assert_eq!(Call::parse(procedure, &mut again), Ok(Some(call)));
            assert_eq!(again.finish(), Ok(()));
            assert_eq!(call.procedure(), procedure);
        }
        Ok(None) => assert!(Call::name(procedure).is_none()),
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
    if let Ok(Some(call)) = MountCall::parse(procedure, &mut Reader::new(message)) {
        let mut writer = Writer::new(&mut buffer);
        call.encode(&mut writer).expect("what was parsed fits");
        let mut again = Reader::new(writer.written());
        assert_eq!(MountCall::parse(procedure, &mut again), Ok(Some(call)));
    }
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
