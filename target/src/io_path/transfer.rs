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

use super::command::Command;
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

/// Pulls the data of the command in `slot` from the host into its buffer. The completion is
/// [`WrId::Pull`].
pub(super) fn pull(connection: &mut Connection, slot: u16) -> Result<(), PullError> {
    let len_bytes = connection.command(slot).transfer.length_bytes();
    let Some(mut data) = connection.data_sge(slot) else {
        return Ok(());
    };
    data.len_bytes = len_bytes;
    (data.lkey, connection.command(slot).sink) = connection.keys.sinks.open(data)?;
    let last = Some(WrId::Pull(slot));
    each_segment(connection, slot, data, SendOp::Read, last)?;
    Ok(())
}

/// Pushes the first `len_bytes` of the data of the command in `slot` to the host. Nothing is
/// signaled: the response posted behind it stands for it.
pub(super) fn push(
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
) -> Result<(), PostError> {
    let Some(mut data) = connection.data_sge(slot) else {
        return Ok(());
    };
    data.len_bytes = len_bytes;
    each_segment(connection, slot, data, SendOp::Write, None)
}

/// The same, of data that has more pieces: the host's buffers behind these bytes stay for the next.
/// The completion is [`WrId::Push`].
pub(super) fn push_piece(
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
) -> Result<(), PostError> {
    let Some(mut data) = connection.data_sge(slot) else {
        return Ok(());
    };
    data.len_bytes = len_bytes;
    let rest = behind(connection.command(slot), len_bytes);
    each_segment(
        connection,
        slot,
        data,
        SendOp::Write,
        Some(WrId::Push(slot)),
    )?;
    connection.command(slot).segments = Some(rest);
    Ok(())
}

/// The host's buffers of a command behind the first `len_bytes` of them.
fn behind(command: &Command, len_bytes: u32) -> Box<[KeyedBuffer]> {
    let single = match command.transfer {
        Transfer::Keyed(buffer) => Some(buffer),
        Transfer::None | Transfer::InCapsule(_) | Transfer::KeyedList(_) => None,
    };
    let all = command.segments.as_deref();
    let mut skip_bytes = len_bytes;
    all.unwrap_or(single.as_slice())
        .iter()
        .filter_map(|buffer| {
            let skipped = skip_bytes.min(buffer.length_bytes);
            skip_bytes -= skipped;
            let rest = KeyedBuffer {
                address: buffer.address.wrapping_add(skipped.into()),
                length_bytes: buffer.length_bytes - skipped,
                ..*buffer
            };
            (rest.length_bytes > 0).then_some(rest)
        })
        .collect()
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
fn each_segment(
    connection: &mut Connection,
    slot: u16,
    data: Sge,
    op: impl Fn(Remote) -> SendOp,
    last: Option<WrId>,
) -> Result<(), PostError> {
    let len_bytes = data.len_bytes;
    let command = connection.command(slot);
    let segments = std::mem::take(&mut command.segments);
    let single;
    let list: &[KeyedBuffer] = match (&command.transfer, &segments) {
        (_, Some(segments)) => segments,
        (Transfer::Keyed(buffer), None) => {
            single = [*buffer];
            &single
        }
        (Transfer::None | Transfer::InCapsule(_) | Transfer::KeyedList(_), None) => &[],
    };
    let mut left = len_bytes;
    for segment in list {
        let segment_bytes = segment.length_bytes.min(left);
        if segment_bytes == 0 {
            break;
        }
        let sge = Sge {
            addr: data.addr + u64::from(len_bytes - left),
            len_bytes: segment_bytes,
            ..data
        };
        left -= segment_bytes;
        let remote = Remote {
            addr: segment.address,
            rkey: RKey(segment.rkey),
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
