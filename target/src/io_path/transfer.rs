//! Step 4: data between a command's buffer and the host's memory: pulled by RDMA READ, pushed by
//! RDMA WRITE. In-capsule data needs neither.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Slab;
use capstan_rdma::contract::{
    Access, LKey, MemoryRegion, PostError, ProtectionDomain, RKey, RdmaError, Remote, SendOp, Sge,
    Source,
};
use capstan_subsystem::{KeyedBuffer, Transfer};

use super::command::Holds;
use super::connection::Connection;
use super::wr_id::WrId;

/// How data gets from a host into a buffer of the data slab.
#[derive(Clone)]
pub(super) enum Sinks {
    /// Through the registration of the whole slab, which no host can reach.
    Closed,
    /// The device needs remote write access to the sink of an RDMA READ (iWARP), and sends its key
    /// to the host. So the sink of each READ is registered for the time of the READ alone: whatever
    /// the host writes there meanwhile, it writes to the data of its own command.
    Open(Rc<dyn ProtectionDomain>, [Arc<Slab>; 2]),
}

/// Pulling could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    #[error("registering the sink of an RDMA READ failed: {0}")]
    Sink(#[from] RdmaError),
    #[error("posting an RDMA READ failed: {0}")]
    Post(#[from] PostError),
}

impl Sinks {
    /// The key of `sge` as a sink, and the registration that ends with the READ.
    fn open(&self, sge: Sge) -> Result<(LKey, Option<Rc<dyn MemoryRegion>>), RdmaError> {
        match self {
            Self::Closed => Ok((sge.lkey, None)),
            Self::Open(pd, slabs) => {
                let offset_in = |slab: &Arc<Slab>| {
                    let offset = sge.addr.checked_sub(slab.addr())?;
                    let offset = usize::try_from(offset).ok()?;
                    (offset < slab.len_bytes()).then_some(offset)
                };
                let (slab, offset) = slabs
                    .iter()
                    .find_map(|slab| Some((slab, offset_in(slab)?)))
                    .ok_or(RdmaError::Invalid(
                        "a sink outside the memory of this reactor",
                    ))?;
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let region = pd.register(slab, offset, sge.len_bytes as usize, access)?;
                Ok((region.lkey(), Some(region)))
            }
        }
    }
}

/// The host's buffers of a command, which RDMA reaches.
#[derive(Debug, Default)]
pub(super) enum HostBuffers {
    /// None: there is no data, or it came in the capsule.
    #[default]
    Nothing,
    /// One.
    One(KeyedBuffer),
    /// Several.
    List(Box<[KeyedBuffer]>),
}

impl HostBuffers {
    /// Those of `transfer`, where it came in a capsule with `bytes` behind the SQE.
    pub(super) fn of(transfer: &Transfer, bytes: &[u8]) -> Self {
        match transfer {
            Transfer::None | Transfer::InCapsule(_) => Self::Nothing,
            Transfer::Keyed(buffer) => Self::One(*buffer),
            Transfer::KeyedList(list) => Self::List(list.buffers(bytes).collect()),
        }
    }

    pub(super) fn as_slice(&self) -> &[KeyedBuffer] {
        match self {
            Self::Nothing => &[],
            Self::One(buffer) => std::slice::from_ref(buffer),
            Self::List(buffers) => buffers,
        }
    }

    /// What is behind the first `len_bytes`.
    fn behind(&self, len_bytes: u32) -> Self {
        let mut skip_bytes = len_bytes;
        let rest = self.as_slice().iter().filter_map(|buffer| {
            let skipped = skip_bytes.min(buffer.length_bytes);
            skip_bytes -= skipped;
            let rest = KeyedBuffer {
                address: buffer.address.wrapping_add(skipped.into()),
                length_bytes: buffer.length_bytes - skipped,
                ..*buffer
            };
            (rest.length_bytes > 0).then_some(rest)
        });
        match self {
            Self::Nothing | Self::One(_) => rest.last().map_or(Self::Nothing, Self::One),
            Self::List(_) => Self::List(rest.collect()),
        }
    }
}

/// Pulls `len_bytes` from the host into the memory of the command in `slot`. The completion is
/// [`WrId::Pull`]. Returns the registration that is to be kept until then, if there is one.
pub(super) fn pull(
    connection: &mut Connection,
    slot: u16,
    holds: &Holds,
    len_bytes: u32,
) -> Result<Option<Rc<dyn MemoryRegion>>, PullError> {
    let Some(mut data) = connection.sge(&holds.own) else {
        return Ok(None);
    };
    data.len_bytes = len_bytes;
    let sink;
    (data.lkey, sink) = connection.keys.sinks.open(data)?;
    let last = Some(WrId::Pull(slot));
    each_buffer(connection, &holds.host, data, SendOp::Read, last)?;
    Ok(sink)
}

/// Pushes the first `len_bytes` of a command's memory to the host. Nothing is signaled: the
/// response posted behind it stands for it.
pub(super) fn push(
    connection: &mut Connection,
    holds: &Holds,
    len_bytes: u32,
) -> Result<(), PostError> {
    let Some(mut data) = connection.sge(&holds.own) else {
        return Ok(());
    };
    data.len_bytes = len_bytes;
    each_buffer(connection, &holds.host, data, SendOp::Write, None)
}

/// The same, of data that has more pieces: the host's buffers behind these bytes stay for the next.
/// The completion is [`WrId::Push`].
pub(super) fn push_piece(
    connection: &mut Connection,
    slot: u16,
    holds: &mut Holds,
    len_bytes: u32,
) -> Result<(), PostError> {
    let Some(mut data) = connection.sge(&holds.own) else {
        return Ok(());
    };
    data.len_bytes = len_bytes;
    let last = Some(WrId::Push(slot));
    each_buffer(connection, &holds.host, data, SendOp::Write, last)?;
    holds.host = holds.host.behind(len_bytes);
    Ok(())
}

/// Pushes what `source` has to the host, where the device can copy it now. Only the response is
/// left to be done then.
pub(super) fn push_from(
    connection: &mut Connection,
    host: KeyedBuffer,
    source: &mut Source<'_>,
) -> bool {
    let remote = Remote {
        addr: host.address,
        rkey: RKey(host.rkey),
    };
    connection.write_now(remote, host.length_bytes, source)
}

/// Pushes `range` of `slab` to the host, where the device needs no registration and nothing else
/// writes to it. Only the response is left to be done then.
pub(super) fn push_in_place(
    connection: &mut Connection,
    host: KeyedBuffer,
    slab: &Arc<Slab>,
    range: Range<usize>,
) -> bool {
    let remote = Remote {
        addr: host.address,
        rkey: RKey(host.rkey),
    };
    range.len() == host.length_bytes as usize && connection.write_in_place(remote, slab, range)
}

/// Posts one work request per buffer of the host, in order, for all of `data`; the last one is
/// signaled when `last` names a completion. They complete in order, so it stands for all of them.
fn each_buffer(
    connection: &mut Connection,
    host: &HostBuffers,
    data: Sge,
    op: impl Fn(Remote) -> SendOp,
    last: Option<WrId>,
) -> Result<(), PostError> {
    let len_bytes = data.len_bytes;
    let mut left = len_bytes;
    for buffer in host.as_slice() {
        let buffer_bytes = buffer.length_bytes.min(left);
        if buffer_bytes == 0 {
            break;
        }
        let sge = Sge {
            addr: data.addr + u64::from(len_bytes - left),
            len_bytes: buffer_bytes,
            ..data
        };
        left -= buffer_bytes;
        let remote = Remote {
            addr: buffer.address,
            rkey: RKey(buffer.rkey),
        };
        let signal = last.filter(|_| left == 0);
        connection.post(
            signal.map_or(0, WrId::encode),
            op(remote),
            &[sge],
            signal.is_some(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(address: u64, length_bytes: u32) -> KeyedBuffer {
        KeyedBuffer {
            address,
            rkey: 7,
            length_bytes,
            invalidate: false,
        }
    }

    fn rest(host: &HostBuffers, len_bytes: u32) -> Vec<(u64, u32)> {
        let rest = host.behind(len_bytes);
        let rest = rest.as_slice().iter();
        rest.map(|buffer| (buffer.address, buffer.length_bytes))
            .collect()
    }

    #[test]
    fn what_is_behind_a_piece_begins_in_the_middle_of_a_buffer() {
        let one = HostBuffers::One(buffer(0x1000, 100));
        assert_eq!(rest(&one, 40), [(0x1028, 60)]);
        assert_eq!(rest(&one, 100), []);
        let list = HostBuffers::List([buffer(0x1000, 10), buffer(0x2000, 10)].into());
        assert_eq!(rest(&list, 4), [(0x1004, 6), (0x2000, 10)]);
        assert_eq!(rest(&list, 10), [(0x2000, 10)]);
        assert_eq!(rest(&HostBuffers::Nothing, 10), []);
    }
}
