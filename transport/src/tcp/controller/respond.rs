//! Responses, behind the data that was pushed for them or in its last PDU.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;

use super::{ControllerQueue, Head};

impl ControllerQueue {
    /// Completes a command, behind what was pushed for it. After success without a result SUCCESS
    /// of the last C2HData does it, where SQ flow control is disabled and the head has not left.
    pub fn respond(&mut self, cqe: &Cqe) {
        let side = &mut self.side;
        let head = side.head.take();
        let head = head.filter(|head| head.data.cid == cqe.cid.get());
        let Some((_, writer)) = side.agreed.filter(|_| self.stream.is_open()) else {
            return;
        };
        let may_be_success = side.connected.is_some_and(|settled| !settled.flow_control)
            && cqe.status() == Status::SUCCESS
            && cqe.result() == 0;
        if let Some(Head { at, mut data }) = head.filter(|_| may_be_success) {
            data.success = true;
            if self
                .stream
                .out
                .rewrite(at, writer.c2h_data(&data).as_bytes())
            {
                // Zeroes are pushed however much is staged: the command is outstanding until they
                // have left.
                side.leaving.push_back(self.stream.out.mark());
                return;
            }
        }
        self.stream.out.stage(writer.capsule_resp(cqe).as_bytes());
        side.leaving.push_back(self.stream.out.mark());
    }
}
