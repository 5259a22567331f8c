//! What a connection posts to its send queue: pulls, and replies with what is pushed before them.

use capstan_rdma::contract::{PostError, QueuePair, SendOp, SendWr, Sge};

use super::super::call::write_of;
use super::super::device::Device;
use super::super::reply::{self, Unsendable};
use super::super::wr_id::WrId;
use super::{Connection, World, unsendable};
use crate::common::End;

impl Connection {
    /// Posts what there is room for: pulls, then replies.
    pub(in crate::rdma) fn advance(&mut self, world: &mut World<'_>) -> Result<(), End> {
        while let Some(&slot) = self.pulling.front()
            && self.reads < self.parts.reads_max
            && self.has_room(1, world.device)
        {
            let Some(call) = self.calls.get_mut(slot) else {
                self.pulling.pop_front();
                continue;
            };
            if let Some((op, sge)) = call.next_pull() {
                let is_last = call.pull_posted();
                self.reads = self.reads.saturating_add(1);
                self.post(WrId::Pull(slot), op, sge, true, world)?;
                if !is_last {
                    continue;
                }
            }
            self.pulling.pop_front();
        }
        while let Some(&slot) = self.replying.front() {
            let Some(call) = self.calls.get_mut(slot) else {
                self.replying.pop_front();
                continue;
            };
            let wrs = u32::try_from(call.pushes.len()).unwrap_or(u32::MAX);
            let wrs = wrs.saturating_add(1);
            // A client whose Sends do not complete gets no receive for another call.
            if self.sends >= self.parts.credits.granted().max(1)
                || !self.has_room(wrs, world.device)
            {
                break;
            }
            self.replying.pop_front();
            self.post_reply(slot, world)?;
        }
        Ok(())
    }

    /// Whether so many work requests may be posted now. Where the device has no more it is told to
    /// say when it has.
    fn has_room(&mut self, count: u32, device: &mut Device) -> bool {
        if self.send_wrs.saturating_add(count) > self.parts.send_wrs_max {
            return false;
        }
        let has_room = device.take_send_wrs(count);
        if has_room {
            // Taken again with the post.
            device.give_send_wrs(count);
        } else if !std::mem::replace(&mut self.is_waiting, true) {
            device.wait(self.parts.number);
        }
        has_room
    }

    fn post_reply(&mut self, slot: u16, world: &mut World<'_>) -> Result<(), End> {
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        let Some(mut reply) = call.reply.take() else {
            return Ok(());
        };
        // An unreadable header asks for what it has.
        let requested = match call.requested {
            0 => self.parts.credits.granted(),
            requested => requested,
        };
        let wanted = self.demand.of_reply(self.parts.credits.outstanding());
        let grant = world.shares.grant(
            self.parts.peer,
            &mut self.parts.credits,
            world.credits,
            requested.min(wanted),
        );
        self.post_receives(grant.post_receives, world)?;
        let credits = grant.credits.to_be_bytes();
        reply.message.copy_from(reply::CREDITS_AT, &credits);
        self.post_pushes(slot, world)?;
        let op = SendOp::Send {
            invalidate: reply.invalidate,
            // RFC 8166 says nothing of solicited events.
            solicited: false,
        };
        let sge = world.device.sge(&reply.message, 0, reply.message_bytes);
        if let Some(call) = self.calls.get_mut(slot) {
            call.reply = Some(reply);
        }
        self.sends = self.sends.saturating_add(1);
        self.post(WrId::Reply(slot), op, sge, true, world)
    }

    fn post_pushes(&mut self, slot: u16, world: &mut World<'_>) -> Result<(), End> {
        let mut at = 0_usize;
        while let Some(call) = self.calls.get_mut(slot)
            && let Some(push) = call.pushes.get(at).copied()
        {
            let sge = (call.held()).source(&push, world.device, world.memory);
            let sge = sge.ok_or_else(|| unsendable(Unsendable::NoData))?;
            self.post(WrId::Push, write_of(&push), sge, false, world)?;
            at = at.saturating_add(1);
        }
        Ok(())
    }

    fn post(
        &mut self,
        wr_id: WrId,
        op: SendOp,
        sge: Sge,
        signaled: bool,
        world: &mut World<'_>,
    ) -> Result<(), End> {
        if self.posted.is_empty() && self.unsignaled == 0 {
            self.progress_us = world.common.now_us;
        }
        let posted = self.parts.qp.post_send(&SendWr {
            wr_id: wr_id.encode(),
            op,
            sges: &[sge],
            signaled,
            fence: false,
        });
        posted.map_err(|error: PostError| {
            End::Closed(format!("a work request could not be posted: {error}"))
        })?;
        // There was room.
        let _ = world.device.take_send_wrs(1);
        self.send_wrs = self.send_wrs.saturating_add(1);
        self.unsignaled = self.unsignaled.saturating_add(1);
        if signaled {
            self.posted.push_back(std::mem::take(&mut self.unsignaled));
        }
        self.unrung = self.unrung.saturating_add(1);
        if self.unrung >= self.parts.qp.doorbell_batch_max() {
            self.flush();
        }
        Ok(())
    }
}
