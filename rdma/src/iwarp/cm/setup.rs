//! The MPA set-up: the frames that are sent, and what is agreed on by them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::contract::{CmError, ConnectParam, PrivateData};
use crate::iwarp::config::{Config, FpduSize};
use crate::iwarp::core::tx::Framing;
use crate::iwarp::driver::rendezvous::Invitation;
use crate::iwarp::wire::mpa::{
    DEPTH_UNSPECIFIED, Enhanced, FRAME_BYTES, Frame, FrameError, FrameHeader, FrameKind,
    PRIVATE_DATA_MAX, Rtr,
};

/// Most bytes that are shown of what is no frame.
const SHOWN_BYTES: usize = 16;

/// A frame that is being received. It takes exactly the frame's bytes from the socket: what follows
/// belongs to the queue pair.
pub(super) struct FrameReader {
    bytes: Vec<u8>,
    header: Option<(FrameHeader, usize)>,
}

/// How much of a frame has arrived.
pub(super) enum Read1 {
    /// More bytes have to come.
    Waiting,
    /// Complete. Boxed: it comes once per connection.
    Frame(Box<Heard>),
}

/// A frame with the consumer's private data.
pub(super) struct Heard {
    pub frame: Frame,
    pub private_data: PrivateData,
    /// The invitation to shared memory, if there is one.
    pub invitation: Option<Invitation>,
}

/// Why no frame will follow.
#[derive(Debug)]
pub(super) enum ReadError {
    Closed,
    Io(io::Error),
    Frame(FrameError),
    /// More private data than the contract carries.
    PrivateData(usize),
}

impl FrameReader {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(FRAME_BYTES + PRIVATE_DATA_MAX),
            header: None,
        }
    }

    /// What has arrived.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, which is all that was read.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Whether any byte has arrived.
    pub(super) fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Reads until `wanted` bytes have arrived in all; `false` where that is not now.
    pub(super) fn fill(&mut self, stream: &TcpStream, wanted: usize) -> Result<bool, ReadError> {
        while self.bytes.len() < wanted {
            let at = self.bytes.len();
            self.bytes.resize(wanted, 0);
            let read = (&mut &*stream).read(&mut self.bytes[at..]);
            self.bytes.truncate(at + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ReadError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(ReadError::Io(error)),
            }
        }
        Ok(true)
    }

    /// Reads what has arrived.
    pub(super) fn read(&mut self, stream: &TcpStream) -> Result<Read1, ReadError> {
        loop {
            let wanted = FRAME_BYTES + self.header.map_or(0, |(_, length)| length);
            if !self.fill(stream, wanted)? {
                return Ok(Read1::Waiting);
            }
            let Some((header, _)) = self.header else {
                let start = self.bytes.first_chunk();
                let start = start.ok_or(ReadError::Frame(FrameError::Key))?;
                self.header = Some(FrameHeader::parse(start).map_err(ReadError::Frame)?);
                continue;
            };
            let private = &self.bytes[FRAME_BYTES..];
            let (frame, private) = header
                .with_private_data(private)
                .map_err(ReadError::Frame)?;
            let invites = frame.kind == FrameKind::Reply && frame.same_host && !frame.reject;
            let invitation = Some(private).filter(|_| invites);
            let invitation = invitation.and_then(Invitation::split);
            let private = invitation.map_or(private, |(before, _)| before);
            let too_long = ReadError::PrivateData(private.len());
            let private_data = PrivateData::new(private).ok_or(too_long)?;
            return Ok(Read1::Frame(Box::new(Heard {
                frame,
                private_data,
                invitation: invitation.map(|(_, invitation)| invitation),
            })));
        }
    }
}

/// Writes a frame into a socket whose send buffer is all but empty.
pub(super) fn write_frame(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let written = (&mut &*stream).write(bytes)?;
    if written == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::new(
            ErrorKind::WouldBlock,
            "the socket takes no set-up frame",
        ))
    }
}

/// A failed read, as the program is given it.
/// `first` is what has come.
pub(super) fn read_failed(what: &'static str, error: &ReadError, first: &[u8]) -> CmError {
    let expected = "an MPA Reply frame (is the peer an iWARP listener?)";
    match error {
        ReadError::Closed => CmError::Protocol {
            what,
            got: "the end of the connection".into(),
            expected,
        },
        ReadError::Io(error) => CmError::System {
            what: what.into(),
            message: error.to_string(),
            errno: error.raw_os_error(),
        },
        ReadError::Frame(FrameError::Key) => CmError::Protocol {
            what,
            got: format!(
                "bytes that are not an MPA Request or Reply frame (\"{}\")",
                first.get(..SHOWN_BYTES).unwrap_or(first).escape_ascii()
            ),
            expected: "an MPA Reply frame: what answers there does not speak iWARP; check the address and port (on the \
                       target: `ss -ltn` shows what listens)",
        },
        ReadError::Frame(error) => CmError::Protocol {
            what,
            got: error.to_string(),
            expected,
        },
        ReadError::PrivateData(bytes) => CmError::Protocol {
            what,
            got: format!("{bytes} bytes of private data"),
            expected: "255 at most",
        },
    }
}

/// The Request of a connect.
pub(super) fn request(config: &Config, param: &ConnectParam) -> Frame {
    let rtr = Rtr {
        empty_fpdu: false,
        write: true,
        read: true,
    };
    let enhanced = Enhanced {
        ird: u16::from(param.responder_resources),
        // A zero-length Read as the first message takes one.
        ord: u16::from(param.initiator_depth.max(u8::from(config.peer_to_peer))),
        peer_to_peer: config.peer_to_peer.then_some(rtr),
    };
    Frame {
        kind: FrameKind::Request,
        markers: false,
        reject: false,
        large_fpdus: config.fpdu_size != FpduSize::Segment,
        // Set once TCP is connected.
        crc: config.crc.asks(false),
        same_host: false,
        revision: config.mpa_revision.clamp(1, 2),
        enhanced: (config.mpa_revision >= 2).then_some(enhanced),
    }
}

/// The depths of a request or reply, as seen from the side that reads it.
pub(super) fn peer_depths(frame: &Frame, config: &Config) -> (u8, u8) {
    let depth = |value: u16, max: u8| {
        if value == DEPTH_UNSPECIFIED {
            max
        } else {
            u8::try_from(value).unwrap_or(u8::MAX)
        }
    };
    // Revision 1 has no depths: both programs know them by other means.
    frame.enhanced.map_or(
        (config.initiator_depth_max, config.responder_resources_max),
        |e| {
            (
                depth(e.ird, config.initiator_depth_max),
                depth(e.ord, config.responder_resources_max),
            )
        },
    )
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub crc: bool,
    pub large_fpdus: bool,
    /// RDMA Reads at once: asked by this side, served by this side.
    pub ord: u8,
    pub ird: u8,
    /// The first message that the connecting side sends by itself; exactly one kind is set.
    pub first: Option<Rtr>,
}

impl Agreed {
    /// How messages are cut into FPDUs.
    pub(super) fn framing(&self, config: &Config) -> Framing {
        let large = match config.fpdu_size {
            FpduSize::Negotiated => self.large_fpdus,
            FpduSize::Segment => false,
            FpduSize::Large => true,
        };
        match (large, self.crc) {
            (true, _) => Framing::Large,
            // Linux siw computes a CRC wrongly when TCP has cut it in two.
            (false, true) => Framing::Aligned,
            (false, false) => Framing::Segment,
        }
    }
}

/// Answers the request of a peer, which is on the `same_host` or another: the Reply, and what is
/// agreed on by it.
pub(super) fn accept(
    config: &Config,
    request: &Frame,
    param: &ConnectParam,
    same_host: bool,
) -> (Frame, Agreed) {
    let (peer_ird, _) = peer_depths(request, config);
    let ord = param
        .initiator_depth
        .min(peer_ird)
        .min(config.initiator_depth_max);
    let ird = if request.enhanced.is_some() {
        param
            .responder_resources
            .min(config.responder_resources_max)
    } else {
        // The peer cannot be told a depth, so it gets the largest there is.
        config.responder_resources_max
    };
    let peer_to_peer = request.enhanced.and_then(|e| e.peer_to_peer);
    let first = peer_to_peer.map(one_of);
    let agreed = Agreed {
        // RFC 5044 §7.1.1: CRCs are used when either side asks.
        crc: request.crc || config.crc.asks(same_host),
        large_fpdus: request.large_fpdus && config.fpdu_size != FpduSize::Segment,
        ord,
        ird,
        first,
    };
    let reply = Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: agreed.crc,
        reject: false,
        large_fpdus: agreed.large_fpdus,
        same_host: false,
        revision: request.revision,
        enhanced: request.enhanced.map(|_| Enhanced {
            ird: u16::from(ird),
            ord: u16::from(ord),
            peer_to_peer: first,
        }),
    };
    (reply, agreed)
}

/// The Reply that refuses.
pub(super) fn refusal(request: &Frame) -> Frame {
    Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        large_fpdus: false,
        same_host: false,
        revision: request.revision,
        enhanced: request.enhanced.map(|e| Enhanced {
            peer_to_peer: None,
            ..e
        }),
    }
}

/// The first message to use of those that both sides named: a Write takes no resources, a Read
/// takes one place of each side's depth. When none is named, a Write, as in Linux siw.
fn one_of(named: Rtr) -> Rtr {
    let none = Rtr::default();
    if named.write || named.is_empty() {
        Rtr {
            write: true,
            ..none
        }
    } else if named.read {
        Rtr { read: true, ..none }
    } else {
        Rtr {
            empty_fpdu: true,
            ..none
        }
    }
}

/// Why a Reply that accepts cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyError {
    /// The peer wants markers.
    Markers,
    /// A revision that was not asked for.
    Revision(u8),
    /// More RDMA Reads than this side can serve.
    InsufficientIrd(u8),
    /// A first message that was not offered.
    NoRtr,
}

/// Reads the Reply to `request`.
pub(super) fn settle(
    config: &Config,
    request: &Frame,
    reply: &Frame,
    param: &ConnectParam,
) -> Result<Agreed, ReplyError> {
    if reply.markers {
        return Err(ReplyError::Markers);
    }
    if reply.revision > request.revision {
        return Err(ReplyError::Revision(reply.revision));
    }
    let (peer_ird, peer_ord) = peer_depths(reply, config);
    let mut ird = param
        .responder_resources
        .min(config.responder_resources_max);
    if reply.enhanced.is_none() {
        ird = config.responder_resources_max;
    } else if peer_ord > ird {
        // RFC 6581 §9.2: serve what the peer needs, or say that it cannot be.
        if peer_ord > config.responder_resources_max {
            return Err(ReplyError::InsufficientIrd(peer_ord));
        }
        ird = peer_ord;
    }
    let offered = request.enhanced.and_then(|e| e.peer_to_peer);
    let chosen = reply.enhanced.and_then(|e| e.peer_to_peer);
    let first = match (offered, chosen) {
        (Some(offered), Some(chosen)) => {
            let common = offered.common(chosen);
            if common.is_empty() {
                return Err(ReplyError::NoRtr);
            }
            Some(one_of(common))
        }
        // The peer stays in client-server mode: any first message from this side will do.
        (_, None) => None,
        (None, Some(_)) => return Err(ReplyError::NoRtr),
    };
    Ok(Agreed {
        crc: request.crc || reply.crc,
        large_fpdus: request.large_fpdus && reply.large_fpdus,
        ord: param
            .initiator_depth
            .min(peer_ird)
            .min(config.initiator_depth_max),
        ird,
        first,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::config::CrcUse;

    fn param(responder_resources: u8, initiator_depth: u8) -> ConnectParam {
        ConnectParam {
            private_data: PrivateData::EMPTY,
            responder_resources,
            initiator_depth,
            rnr_retry_count: 7,
        }
    }

    #[test]
    fn both_sides_settle_on_the_same() {
        let config = Config::default();
        let request = request(&config, &param(16, 32));
        let (reply, listening) = accept(&config, &request, &param(8, 64), false);
        let connecting = settle(&config, &request, &reply, &param(16, 32)).unwrap();
        assert_eq!((listening.ord, listening.ird), (16, 8));
        assert_eq!((connecting.ord, connecting.ird), (8, 16));
        assert!(connecting.crc && listening.crc && connecting.large_fpdus);
        assert_eq!(connecting.first, listening.first);
        assert!(connecting.first.unwrap().write);
    }

    #[test]
    fn crc_is_used_when_either_side_asks() {
        use CrcUse::{Always, BetweenMachines, Never};
        for (a, b, used) in [
            (Always, Never, [true, true]),
            (Never, Always, [true, true]),
            (Never, Never, [false, false]),
            (BetweenMachines, BetweenMachines, [true, false]),
            (Never, BetweenMachines, [true, false]),
            (Always, BetweenMachines, [true, true]),
        ] {
            for (same_host, used) in [false, true].into_iter().zip(used) {
                let side = |crc| Config {
                    crc,
                    ..Config::default()
                };
                let mut request = request(&side(a), &param(1, 1));
                request.crc = a.asks(same_host);
                let (reply, listening) = accept(&side(b), &request, &param(1, 1), same_host);
                let connecting = settle(&side(a), &request, &reply, &param(1, 1)).unwrap();
                assert_eq!((connecting.crc, listening.crc), (used, used));
            }
        }
    }

    #[test]
    fn a_reply_that_does_not_fit_is_refused() {
        let config = Config {
            responder_resources_max: 4,
            ..Config::default()
        };
        let request = request(&config, &param(4, 4));
        let (reply, _) = accept(&config, &request, &param(4, 4), false);
        let settle = |reply: &Frame| settle(&config, &request, reply, &param(4, 4));
        let broken = Frame {
            markers: true,
            ..reply
        };
        assert_eq!(settle(&broken), Err(ReplyError::Markers));
        let enhanced = |ord, rtr| Frame {
            enhanced: Some(Enhanced {
                ird: 1,
                ord,
                peer_to_peer: Some(rtr),
            }),
            ..reply
        };
        let write = Rtr {
            write: true,
            ..Rtr::default()
        };
        let only_empty = Rtr {
            empty_fpdu: true,
            ..Rtr::default()
        };
        assert_eq!(
            settle(&enhanced(5, write)),
            Err(ReplyError::InsufficientIrd(5))
        );
        assert_eq!(settle(&enhanced(1, only_empty)), Err(ReplyError::NoRtr));
    }

    #[test]
    fn revision_1_and_unspecified_depths_leave_it_to_the_program() {
        let config = Config {
            mpa_revision: 1,
            ..Config::default()
        };
        let request = request(&config, &param(3, 5));
        assert_eq!(request.enhanced, None);
        let (reply, listening) = accept(&config, &request, &param(7, 9), false);
        assert_eq!((reply.revision, reply.enhanced), (1, None));
        assert_eq!(
            (listening.ord, listening.ird, listening.first),
            (9, 128, None)
        );
        let unspecified = Frame {
            enhanced: Some(Enhanced {
                ird: DEPTH_UNSPECIFIED,
                ord: DEPTH_UNSPECIFIED,
                peer_to_peer: None,
            }),
            ..request
        };
        assert_eq!(peer_depths(&unspecified, &config), (128, 128));
    }
}
