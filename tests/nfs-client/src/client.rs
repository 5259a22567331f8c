//! A client with a session, over any transport.

use std::collections::HashSet;

use capstan_nfs_proto::v4::args::Sequence;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::SessionId;
use capstan_rpcrdma::limits::CALL_MAX_BYTES;
use capstan_rpcrdma::rpc::{Accepted, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};

use crate::call::{create_session, exchange_id, read_compound, write_compound};

/// Replies that are kept for a session, in bytes.
const KEPT_BYTES: u32 = 4096;

/// What carries calls to a server and replies back.
pub trait Transport {
    /// Sends messages, as one where that can be.
    fn send(&mut self, messages: &[Vec<u8>]);
    /// The next message that comes.
    fn receive(&mut self) -> Vec<u8>;
}

/// A client of root on a connection of its own.
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    minor_version: u32,
    session: SessionId,
    /// The sequence ID of the last request of each slot.
    slots: Vec<u32>,
    /// Whether the server is asked to keep its replies (`sa_cachethis`).
    pub keeps_replies: bool,
    buffer: Vec<u8>,
    xid: u32,
    /// XIDs of the calls that are not answered yet.
    unanswered: HashSet<u32>,
}

impl<T: Transport> Client<T> {
    /// A client with a session and nothing to reclaim, as it is when it has mounted.
    ///
    /// # Panics
    /// When it is refused something.
    pub fn mount(transport: T, owner: &[u8], minor_version: u32, slots: u32) -> Self {
        let mut client = Self {
            transport,
            minor_version,
            session: SessionId([0; 16]),
            slots: vec![0; usize::try_from(slots).expect("few slots")],
            keeps_replies: false,
            buffer: vec![0; usize::try_from(CALL_MAX_BYTES).expect("it fits")],
            xid: 0,
            unanswered: HashSet::new(),
        };
        let exchange = Op::ExchangeId(exchange_id(owner, [1; 8]));
        let (id, sequence) = client.ask(&[exchange], |results| match results {
            [OpResult::ExchangeId(ok)] => (ok.clientid, ok.sequenceid),
            other => panic!("{other:?}"),
        });
        let create = Op::CreateSession(create_session(id, sequence, slots, KEPT_BYTES));
        client.session = client.ask(&[create], |results| match results {
            [OpResult::CreateSession(ok)] => ok.sessionid,
            other => panic!("{other:?}"),
        });
        client.run(0, &[Op::ReclaimComplete(false)], |_results| ());
        client
    }

    /// Carries out operations by a slot, which all succeed, and gives their results to `look`.
    ///
    /// # Panics
    /// When one fails.
    pub fn run<R>(
        &mut self,
        slot: u32,
        ops: &[Op<'_>],
        look: impl FnOnce(&[OpResult<'_>]) -> R,
    ) -> R {
        self.send(&[(slot, ops)]);
        self.receive(look)
    }

    /// Sends requests together, each by its slot.
    pub fn send(&mut self, requests: &[(u32, &[Op<'_>])]) {
        let calls = requests.iter().map(|&(slot, ops)| {
            let sequence = self.sequence(slot);
            self.call(&[&[sequence], ops].concat())
        });
        let calls: Vec<_> = calls.collect();
        self.transport.send(&calls);
    }

    /// Receives the reply of a request, whose operations have all succeeded.
    ///
    /// # Panics
    /// When one has failed.
    pub fn receive<R>(&mut self, look: impl FnOnce(&[OpResult<'_>]) -> R) -> R {
        self.reply(|results| match results {
            [OpResult::Sequence(_), results @ ..] => look(results),
            other => panic!("no SEQUENCE: {other:?}"),
        })
    }

    /// The SEQUENCE of the next request of a slot.
    fn sequence(&mut self, slotid: u32) -> Op<'static> {
        let highest_slotid = u32::try_from(self.slots.len()).expect("few slots") - 1;
        let sequence = &mut self.slots[usize::try_from(slotid).expect("it fits")];
        *sequence += 1;
        Op::Sequence(Sequence {
            sessionid: self.session,
            sequenceid: *sequence,
            slotid,
            highest_slotid,
            cachethis: self.keeps_replies,
        })
    }

    fn call(&mut self, ops: &[Op<'_>]) -> Vec<u8> {
        self.xid += 1;
        self.unanswered.insert(self.xid);
        let mut writer = Writer::new(&mut self.buffer);
        write_compound(&mut writer, self.xid, (0, 0), self.minor_version, ops);
        writer.written().to_vec()
    }

    /// Carries out just these operations.
    fn ask<R>(&mut self, ops: &[Op<'_>], look: impl FnOnce(&[OpResult<'_>]) -> R) -> R {
        let call = self.call(ops);
        self.transport.send(&[call]);
        self.reply(look)
    }

    fn reply<R>(&mut self, look: impl FnOnce(&[OpResult<'_>]) -> R) -> R {
        let message = self.transport.receive();
        let mut reader = Reader::new(&message);
        let reply = Reply::read(&mut reader).expect("a reply");
        let is_expected = self.unanswered.remove(&reply.xid);
        assert!(is_expected, "{reply:?} to no call of this client");
        assert_eq!(reply.outcome, Ok(Accepted::Success));
        read_compound(reader, |status, results| {
            assert_eq!(status, Status::OK, "{results:?}");
            look(results)
        })
    }
}
