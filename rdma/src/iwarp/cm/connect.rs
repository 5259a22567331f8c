//! The connecting side.

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::listen::negotiated;
use super::setup::{
    self, Agreed, FrameReader, Heard, Read1, ReadError, ReplyError, read_failed, settle,
    write_frame,
};
use super::{Manager, SetUpSocket, State, os_error};
use crate::address_words::refused;
use crate::contract::{
    CmError, CmEventKind, CmId, ConnectParam, LKey, PrivateData, RKey, RejectReason, Remote, Sge,
};
use crate::ids::may_connect;
use crate::iwarp::core::Terms;
use crate::iwarp::driver::rendezvous::{is_same_host, take_up};
use crate::iwarp::fatal::{Fatal, terminate_bytes};
use crate::iwarp::link::Link;
use crate::iwarp::link::socket::{connecting, end_when_closed, tune};
use crate::iwarp::wire::mpa::{Frame, FrameError, FrameHeader, FrameKind, Rtr};
use crate::iwarp::wire::terminate::ErrorCode;

/// A connect in progress.
pub(super) struct Connecting {
    socket: SetUpSocket,
    param: ConnectParam,
    request: Frame,
    /// The MPA Request has been sent.
    asked: bool,
    timeout_us: u64,
}

impl Connecting {
    pub(super) fn timed_out(&self, peer: &str) -> CmError {
        let timeout_ms = self.timeout_us / 1000;
        if self.asked {
            let what = format!("waiting for the MPA Reply of {peer}");
            return CmError::Silent {
                what,
                timeout_ms,
                came_bytes: self.socket.reader.bytes().len(),
            };
        }
        CmError::Timeout {
            what: format!("TCP connect to {peer}"),
            timeout_ms,
        }
    }
}

impl Manager {
    pub(super) fn start_connect(
        &mut self,
        id: CmId,
        param: &ConnectParam,
        timeout_us: u64,
    ) -> Result<(), CmError> {
        let entry = self.ids.known(id)?;
        let has_qp = entry.qp.strong_count() > 0;
        let State::Resolved {
            destination,
            source,
        } = entry.state
        else {
            return may_connect(false, has_qp);
        };
        may_connect(true, has_qp)?;
        let failed = |error| {
            let what = format!("connecting to {destination}");
            refused(what, destination, source, &error)
        };
        let config = &self.engine.config;
        let stream = connecting(destination, source).map_err(failed)?;
        tune(&stream, config).map_err(failed)?;
        let request = setup::request(config, param);
        self.watch(id, &stream, EpollFlags::EPOLLOUT)?;
        let socket = SetUpSocket {
            stream,
            reader: FrameReader::new(),
        };
        let deadline_us = self.now_us.saturating_add(timeout_us);
        if let Some(entry) = self.ids.get_mut(id) {
            entry.state = State::Connecting(Connecting {
                socket,
                param: *param,
                request,
                asked: false,
                timeout_us,
            });
        }
        self.time(id, Some(deadline_us));
        Ok(())
    }

    /// TCP has connected or failed, or bytes of the Reply have arrived.
    pub(super) fn continue_connect(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        let peer = entry.peer;
        let State::Connecting(connecting) = &mut entry.state else {
            return;
        };
        if !connecting.asked {
            if let Err(error) = self.ask(id) {
                let kind = if error.raw_os_error() == Some(libc::ECONNREFUSED) {
                    CmEventKind::Rejected {
                        reason: RejectReason::NoListener,
                        private_data: PrivateData::EMPTY,
                    }
                } else {
                    CmEventKind::Failed(match peer {
                        Some(peer) => refused(format!("connecting to {peer}"), peer, None, &error),
                        None => os_error("connecting", &error),
                    })
                };
                self.close(id, kind);
            }
            return;
        }
        let read = connecting.socket.reader.read(&connecting.socket.stream);
        // What speaks first, and says less than a frame has, does not go on.
        let first = connecting.socket.reader.bytes();
        let read = match read {
            Ok(Read1::Waiting) if !FrameHeader::may_begin_with(first) => {
                Err(ReadError::Frame(FrameError::Key))
            }
            read => read,
        };
        match read {
            Ok(Read1::Waiting) => {}
            Ok(Read1::Frame(heard)) => self.hear_reply(id, &heard),
            Err(error) => {
                let error = read_failed("waiting for the peer's MPA Reply", &error, first);
                self.close(id, CmEventKind::Failed(error));
            }
        }
    }

    /// Sends the Request once TCP is connected.
    fn ask(&mut self, id: CmId) -> std::io::Result<()> {
        let Some(entry) = self.ids.get_mut(id) else {
            return Ok(());
        };
        let State::Connecting(connecting) = &mut entry.state else {
            return Ok(());
        };
        let stream = &connecting.socket.stream;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        entry.local = stream.local_addr().ok();
        let same_host = is_same_host(entry.local, entry.peer);
        connecting.request.crc = self.engine.config.crc.asks(same_host);
        connecting.request.same_host = self.engine.config.same_host && same_host;
        let private_data = connecting.param.private_data.as_bytes();
        // 255 bytes of private data always fit.
        let bytes = connecting.request.encode(private_data).unwrap_or_default();
        write_frame(stream, &bytes)?;
        connecting.asked = true;
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, id.0);
        Ok(self.epoll.modify(stream, &mut event)?)
    }

    /// The Reply has arrived.
    fn hear_reply(&mut self, id: CmId, heard: &Heard) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        let State::Connecting(connecting) = &mut entry.state else {
            return;
        };
        let reply = &heard.frame;
        let protocol = |got: String, expected| {
            let what = "reading the peer's MPA Reply";
            CmEventKind::Failed(CmError::Protocol {
                what,
                got,
                expected,
            })
        };
        if reply.kind != FrameKind::Reply {
            let event = protocol("an MPA Request".into(), "an MPA Reply");
            return self.close(id, event);
        }
        if reply.reject {
            let event = CmEventKind::Rejected {
                reason: RejectReason::Consumer,
                private_data: heard.private_data,
            };
            return self.close(id, event);
        }
        let config = &self.engine.config;
        let settled = settle(config, &connecting.request, reply, &connecting.param);
        let agreed = match settled {
            Ok(agreed) => agreed,
            Err(error) => {
                let (event, code) = match error {
                    ReplyError::Markers => {
                        (protocol("a wish for markers".into(), "no markers"), None)
                    }
                    ReplyError::Revision(revision) => (
                        protocol(format!("revision {revision}"), "the revision asked for"),
                        None,
                    ),
                    ReplyError::InsufficientIrd(ord) => (
                        protocol(
                            format!("a depth of {ord} RDMA READs"),
                            "no more than this side serves (responder_resources_max)",
                        ),
                        Some(ErrorCode::MPA_INSUFFICIENT_IRD),
                    ),
                    ReplyError::NoRtr => (
                        protocol(
                            "a first message that was not offered".into(),
                            "one of those offered",
                        ),
                        Some(ErrorCode::MPA_NO_RTR),
                    ),
                };
                // RFC 6581 §9.2: the peer is told with a Terminate.
                if let Some(code) = code {
                    end_when_closed(&connecting.socket.stream);
                    let crc = reply.crc || connecting.request.crc;
                    let bytes = terminate_bytes(&Fatal::stream(code), crc);
                    let _ = write_frame(&connecting.socket.stream, &bytes);
                }
                return self.close(id, event);
            }
        };
        self.establish(id, agreed, heard);
    }

    fn establish(&mut self, id: CmId, agreed: Agreed, heard: &Heard) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        let State::Connecting(connecting) = std::mem::replace(&mut entry.state, State::Connected)
        else {
            return;
        };
        entry.deadline_us = None;
        let Some(qp) = entry.qp.upgrade() else {
            let error = CmError::Invalid("the queue pair was dropped before the peer answered");
            return self.close(id, CmEventKind::Failed(error));
        };
        let stream = connecting.socket.stream;
        let _ = self.epoll.delete(&stream);
        let invitation = heard.invitation.filter(|_| connecting.request.same_host);
        let link = match invitation {
            None => Link::Tcp(stream),
            Some(invitation) => match take_up(&invitation, stream) {
                Ok(link) => Link::Shared(Box::new(link)),
                Err((stream, error)) => {
                    tracing::debug!(%error, "no shared memory with a peer on this machine");
                    Link::Tcp(stream)
                }
            },
        };
        let terms = Terms {
            framing: agreed.framing(&self.engine.config),
            crc: agreed.crc,
            may_send: true,
            empty_fpdu: false,
            ord: agreed.ord,
            ird: agreed.ird,
        };
        self.engine.attach(&qp, link, terms);
        let param = negotiated(&agreed, heard.private_data);
        self.tell(id, CmEventKind::Established { param });
        if let Some(first) = agreed.first {
            self.send_first(&qp, first);
        }
        self.engine.start_reminders(&qp, self.now_us);
    }

    /// Sends the first message of peer-to-peer mode (RFC 6581 §4.3.1).
    fn send_first(&self, qp: &std::cell::RefCell<crate::iwarp::driver::qp::Qp>, first: Rtr) {
        let mut qp = qp.borrow_mut();
        let qp = &mut *qp;
        let mut stags = self.engine.stags.borrow_mut();
        if first.write {
            qp.core.tx.add_empty_write();
        } else if first.read {
            let nowhere = Sge {
                addr: 0,
                len_bytes: 0,
                lkey: LKey(0),
            };
            // Nothing is read, so the STag is not checked; some peers give 0 a meaning of its own.
            let source = Remote {
                addr: 0,
                rkey: RKey(1),
            };
            qp.core.add_read_request(&mut stags, None, nowhere, source);
        } else {
            qp.core.tx.add_empty_fpdu();
        }
        let sent = qp.transmit(&mut stags);
        drop(stags);
        if let Err(fatal) = sent {
            self.engine.end(qp, &fatal);
        }
    }
}
