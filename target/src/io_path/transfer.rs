//! Where the data of a command is at the host, in the words of the transport.

use capstan_subsystem::Transfer;
use capstan_transport::{HostMemory, KeyedBuffer};

/// The host's memory of `transfer`, which came in a capsule with `bytes` behind the SQE.
pub(super) fn host_memory(transfer: &Transfer, bytes: &[u8]) -> HostMemory {
    match transfer {
        Transfer::None => HostMemory::None,
        Transfer::InCapsule(place) => {
            let end = place.offset_bytes.saturating_add(place.length_bytes);
            HostMemory::InCapsule(place.offset_bytes..end)
        }
        Transfer::Transport(data) => HostMemory::Transport {
            cid: data.cid,
            offset_bytes: 0,
            length_bytes: data.length_bytes,
        },
        Transfer::Keyed(buffer) => HostMemory::Keyed(keyed(buffer)),
        Transfer::KeyedList(list) => {
            HostMemory::KeyedList(list.buffers(bytes).map(|buffer| keyed(&buffer)).collect())
        }
    }
}

/// As `host_memory`, where the host has its data in one place outside of the capsule.
#[inline]
pub(super) fn one_place(transfer: &Transfer) -> HostMemory {
    match transfer {
        Transfer::None | Transfer::InCapsule(_) | Transfer::KeyedList(_) => HostMemory::None,
        Transfer::Transport(data) => HostMemory::Transport {
            cid: data.cid,
            offset_bytes: 0,
            length_bytes: data.length_bytes,
        },
        Transfer::Keyed(buffer) => HostMemory::Keyed(keyed(buffer)),
    }
}

/// A buffer of the host.
#[inline]
fn keyed(buffer: &capstan_subsystem::KeyedBuffer) -> KeyedBuffer {
    KeyedBuffer {
        address: buffer.address,
        rkey: buffer.rkey,
        len_bytes: buffer.length_bytes,
    }
}
