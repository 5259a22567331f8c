//! Step 4: data between a command's buffer and the host's memory: pulled by RDMA READ, pushed by
//! RDMA WRITE. In-capsule data needs neither.

use capstan_rdma::contract::{PostError, RKey, Remote, SendOp, Sge};
use capstan_subsystem::{KeyedBuffer, Transfer};

use super::connection::Connection;
use super::wr_id::WrId;

/// Pulls the data of the command in `slot` from the host into its buffer. The completion is
/// [`WrId::Pull`].
pub(super) fn pull(connection: &mut Connection, slot: u16) -> Result<(), PostError> {
    let len_bytes = connection.command(slot).transfer.length_bytes();
    each_segment(
        connection,
        slot,
        len_bytes,
        SendOp::Read,
        Some(WrId::Pull(slot)),
    )
}

/// Pushes the first `len_bytes` of the data of the command in `slot` to the host. Nothing is
/// signaled: the response posted behind it tells.
pub(super) fn push(
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
) -> Result<(), PostError> {
    each_segment(connection, slot, len_bytes, SendOp::Write, None)
}

/// Posts one work request per buffer of the host, in order, for `len_bytes` in all; the last one is
/// signaled when `last` names a completion. They complete in order, so it stands for all of them.
fn each_segment(
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
    op: impl Fn(Remote) -> SendOp,
    last: Option<WrId>,
) -> Result<(), PostError> {
    let Some(data) = connection.data_sge(slot) else {
        return Ok(());
    };
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
