//! Calls over RDMA: through sockets, and through shared memory.

use std::sync::Arc;

use capstan_nfs_client::rdma::{CallOf, How, OFFER, RdmaClient, inline_message};
use capstan_rpc_server::{Program, Settings, Transport};
use capstan_rpcrdma::chunks::Segment;
use capstan_rpcrdma::header::{Fault, Header, Received};
use capstan_rpcrdma::xdr::Reader;

use crate::harness::{Running, message, settings};
use crate::program::{GIVE, GIVE_INLINE, NULL, TAKE, Tester};

/// Makes a test of each function for each kind of connection.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod sockets {
            $(#[test] fn $case() { super::$case(crate::rdma::SOCKETS); })*
        }
        mod shared_memory {
            $(#[test] fn $case() { super::$case(crate::rdma::SHARED_MEMORY); })*
        }
    };
}

mod data;
mod ends;
mod idle;

pub(crate) const SOCKETS: How = How {
    same_host: false,
    offer: Some(OFFER),
    reads: 8,
    // More than any credits.
    receives: 256,
};

pub(crate) const SHARED_MEMORY: How = How {
    same_host: true,
    ..SOCKETS
};

pub(crate) fn start(settings: Settings) -> (Running, Arc<Tester>) {
    let program = Tester::new();
    let server = Running::start(settings, Arc::clone(&program) as Arc<dyn Program>);
    (server, program)
}

pub(crate) fn rdma() -> Settings {
    settings(&[Transport::Rdma])
}

pub(crate) fn u32_of(value: usize) -> u32 {
    u32::try_from(value).unwrap()
}

pub(crate) fn take_reduced(xid: u32, length: usize) -> (u32, Vec<u8>) {
    let message = message(xid, TAKE, |writer| {
        writer.u32(u32_of(length)).unwrap();
    });
    (u32_of(message.len()), message)
}

pub(crate) fn give(xid: u32, lengths: &[usize]) -> Vec<u8> {
    message(xid, GIVE, |writer| {
        writer.u32(u32_of(lengths.len())).unwrap();
        for length in lengths {
            writer.u32(u32_of(*length)).unwrap();
        }
    })
}

pub(crate) fn give_inline(xid: u32, length: usize) -> Vec<u8> {
    message(xid, GIVE_INLINE, |writer| {
        writer.u32(u32_of(length)).unwrap();
    })
}

pub(crate) fn taken(reply: &[u8]) -> (usize, u64) {
    let mut reader = Reader::new(reply);
    let length = usize::try_from(reader.u32("length").unwrap()).unwrap();
    (length, reader.u64("sum").unwrap())
}

pub(crate) fn header(bytes: &[u8]) -> Header<'_> {
    match Received::read(bytes) {
        Ok(Received::Message(header)) => header,
        other => panic!("no reply: {other:?}"),
    }
}

pub(crate) fn fault(bytes: &[u8]) -> (u32, Fault) {
    match Received::read(bytes) {
        Ok(Received::Error { xid, fault, .. }) => (xid, fault),
        other => panic!("no error: {other:?}"),
    }
}

/// What a reply that is inline has behind XID and direction; and the credits it grants.
pub(crate) fn inline_reply(bytes: &[u8], xid: u32) -> (Vec<u8>, u32) {
    let (mut message, credits) = inline_message(bytes);
    let results = message.split_off(8);
    assert_eq!(message, [&xid.to_be_bytes()[..], &[0, 0, 0, 1]].concat());
    (results, credits)
}

pub(crate) fn null(client: &mut RdmaClient, xid: u32) {
    client.send_call(&CallOf::inline(xid, &message(xid, NULL, |_| {})));
    let reply = client.reply();
    assert_eq!(inline_reply(&reply, xid).0, []);
}

pub(crate) fn lengths(segments: impl Iterator<Item = Segment>) -> Vec<u32> {
    segments.map(|segment| segment.length_bytes).collect()
}
