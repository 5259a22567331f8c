//! What carries the queues of an association, as it is printed.

use capstan_initiator::Wire;
use capstan_initiator::internals::disk::control::State;
use capstan_initiator::internals::disk::record::Record;
use capstan_initiator::internals::wire::WireFields;
use serde_json::{Value, json};

/// Adds `transport` and what there is to say of it to a JSON object.
pub(crate) fn add(told: &mut Value, wire: Option<&Wire>) {
    told["transport"] = json!(wire.map(|wire| wire.transport().name()));
    add_fields(told, &WireFields::of(wire));
}

/// Adds the fields that are of one transport only.
pub(crate) fn add_fields(told: &mut Value, fields: &WireFields) {
    let WireFields {
        provider,
        rdma_device,
        shared_memory,
        header_digest,
        data_digest,
    } = fields;
    told["provider"] = json!(provider);
    told["rdma_device"] = json!(rdma_device);
    told["shared_memory"] = json!(shared_memory);
    told["header_digest"] = json!(header_digest);
    told["data_digest"] = json!(data_digest);
}

/// What carries the queues of a volume: as its process says, or as it was when it was attached.
pub(crate) fn of<'a>(record: &'a Record, state: &'a State) -> &'a WireFields {
    match state.wire.wire() {
        Some(_) => &state.wire,
        None => &record.wire,
    }
}

/// The same, for people.
pub(crate) fn in_words(record: &Record, state: &State) -> String {
    match (of(record, state).wire(), record.transport.as_deref()) {
        (Some(wire), _) => wire.to_string(),
        // Attached by an older version.
        (None, Some("tcp")) => "NVMe/TCP".to_owned(),
        (None, Some(_)) => "RDMA".to_owned(),
        (None, None) => "-".to_owned(),
    }
}
