//! Connections: making them one after the other, and dropping them all.

use capstan_nvme_proto::rdma_cm::CmRequest;
use capstan_rdma::contract::PrivateData;
use capstan_transport::host::{HostEnd, HostEvent, OpenError, OpenQueue};
use zerocopy::IntoBytes;

use super::engine::{AssociationEngine, Owner, Slot};
use super::replay::may_change;
use crate::error::{CommandError, ConnectError};
use crate::host::{Action, SlotIndex};

/// Reconnects one I/O survives before it counts as their cause.
pub(super) const REPLAYS_MAX: u8 = 10;

impl AssociationEngine {
    /// Carries out one action; gives it back when memory for it is not free yet.
    pub(super) fn carry_out(&mut self, action: Action, now_us: u64) -> Result<(), Action> {
        match action {
            Action::Open {
                entries,
                request,
                flow_control,
            } => {
                self.open((entries, flow_control), &request, now_us);
                Ok(())
            }
            Action::Send {
                qid,
                slot,
                sqe,
                data,
            } => {
                let buffer = match data.len_bytes() {
                    0 => None,
                    len_bytes => match self.memory.admin.take(len_bytes) {
                        None => {
                            return Err(Action::Send {
                                qid,
                                slot,
                                sqe,
                                data,
                            });
                        }
                        buffer => buffer,
                    },
                };
                self.send_for_host(qid, slot, *sqe, buffer, &data, now_us);
                Ok(())
            }
            Action::CloseAll { orderly } => {
                let unanswered = self.close_all(orderly);
                self.given_up(unanswered, now_us);
                Ok(())
            }
        }
    }

    fn open(&mut self, (entries, flow_control): (u16, bool), request: &CmRequest, now_us: u64) {
        let qid = request.qid;
        self.last_tried = self.config.destination;
        let opened = private_data(request).and_then(|private_data| {
            let queue = OpenQueue {
                qid,
                entries,
                flow_control,
                destination: self.config.destination,
                source: self.config.source,
                timeout_us: self.config.host.connect_timeout_us,
                private_data,
            };
            self.wire.open(queue, now_us)
        });
        match opened {
            Ok(()) => self.opening = Some(entries),
            Err(error) => self.open_failed(qid, open_error(qid, error), now_us),
        }
    }

    /// Something has happened on a queue, or to its connection.
    #[inline]
    pub(super) fn happened(&mut self, qid: u16, event: HostEvent, now_us: u64) {
        match event {
            HostEvent::Response(response) => self.response(qid, &response, now_us),
            HostEvent::Revoked(slot) => self.finish(qid, SlotIndex(slot), now_us),
            event => self.connection_event(qid, event, now_us),
        }
    }

    fn connection_event(&mut self, qid: u16, event: HostEvent, now_us: u64) {
        match event {
            HostEvent::Connected(sent_along) => {
                self.connected(qid, sent_along.as_deref(), now_us);
            }
            HostEvent::Rejected(reason, sent_along) => {
                self.opening = None;
                self.turn_to_next_address(qid);
                let words = sent_along.as_bytes();
                self.host.handle_rejected(qid, reason, words, now_us);
            }
            HostEvent::OpenFailed(error) => {
                self.opening = None;
                self.open_failed(qid, open_error(qid, *error), now_us);
            }
            HostEvent::Ended(end) => match *end {
                HostEnd::Disconnected(cause) => self.host.handle_disconnected(qid, cause, now_us),
                HostEnd::Failed(source) => {
                    let cause = ConnectError::Transport { qid, source };
                    self.host.handle_broken(cause, now_us);
                }
                HostEnd::Violation(what) => {
                    let cause = ConnectError::Protocol { qid, what };
                    self.host.handle_broken(cause, now_us);
                }
            },
            HostEvent::Response(_) | HostEvent::Revoked(_) => {}
        }
    }

    fn open_failed(&mut self, qid: u16, cause: ConnectError, now_us: u64) {
        self.turn_to_next_address(qid);
        self.host.handle_open_failed(qid, cause, now_us);
    }

    /// Where a name has several addresses, the next attempt is made at the next one: the Admin
    /// queue decides, and the I/O queues follow it.
    fn turn_to_next_address(&mut self, qid: u16) {
        if qid == 0
            && let Some(next) = self.other_addresses.pop_front()
        {
            let last = std::mem::replace(&mut self.config.destination, next);
            self.other_addresses.push_back(last);
        }
    }

    fn connected(&mut self, qid: u16, sent_along: Option<&PrivateData>, now_us: u64) {
        let Some(entries) = self.opening.take() else {
            return;
        };
        let at = usize::from(qid);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        if let Some(queue) = self.queues.get_mut(at) {
            *queue = Some((1..entries).map(|_| Slot::free()).collect());
        }
        match sent_along {
            Some(sent_along) => self
                .host
                .handle_established(qid, sent_along.as_bytes(), now_us),
            None => self.host.handle_set_up(qid, now_us),
        }
    }

    /// Drops every connection. Commands of I/O that were not answered wait to be sent again;
    /// those that were answered are finished: no queue reaches their memory any more.
    ///
    /// Unless it is an `orderly` end, the connections are given up: see
    /// [`HostWire::close`](capstan_transport::host::HostWire::close). `true` when commands
    /// were not answered that change something.
    pub(super) fn close_all(&mut self, orderly: bool) -> bool {
        self.wire.close(orderly);
        self.opening = None;
        self.losses += 1;
        let mut unanswered = false;
        for at in 0..self.queues.len() {
            let Some(slots) = self.queues.get_mut(at).and_then(Option::take) else {
                continue;
            };
            for slot in slots {
                match slot.owner {
                    Owner::Io(piece) if slot.await_response => {
                        unanswered |= self.left_unanswered(piece);
                    }
                    Owner::Io(piece) => {
                        let result = self.outcome(piece, &slot.cqe);
                        if result.is_ok() && self.caches_writes {
                            self.note_done(piece, slot.sent_us);
                        }
                        self.requests.finish(piece.request, result);
                    }
                    Owner::Passthru { token, opcode, .. } if slot.await_response => {
                        let cause = self.host.lost_cause();
                        let changes = may_change(opcode);
                        unanswered |= changes;
                        let error = if changes {
                            let what = opcode.name().unwrap_or("the I/O command");
                            CommandError::OutcomeUnknown { what, cause }
                        } else {
                            CommandError::Lost(cause)
                        };
                        self.passthru_done(token, Err(error));
                    }
                    Owner::Passthru {
                        token,
                        data,
                        read_bytes,
                        ..
                    } => self.passthru_answered(token, slot.cqe, data.as_ref(), read_bytes),
                    Owner::Free | Owner::Host { .. } => {}
                }
            }
        }
        unanswered
    }
}

fn private_data(request: &CmRequest) -> Result<PrivateData, OpenError> {
    let encoded = request.encode();
    let private_data = encoded.and_then(|bytes| PrivateData::new(bytes.as_bytes()));
    private_data.ok_or_else(|| OpenError::Resources {
        what: "private data",
        message: format!("queue {}: cannot be encoded", request.qid),
    })
}

pub(super) fn open_error(qid: u16, error: OpenError) -> ConnectError {
    match error {
        OpenError::Resources { what, message } => ConnectError::Resources { what, message },
        OpenError::Connection(source) => ConnectError::Transport { qid, source },
        OpenError::Disconnected(cause) => ConnectError::Disconnected { qid, cause },
        OpenError::BadIcResp(what) => ConnectError::Protocol { qid, what },
        OpenError::NoIcResp { why, is_mute } => ConnectError::NoIcResp { qid, why, is_mute },
    }
}
