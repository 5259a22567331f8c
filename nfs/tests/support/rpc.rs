//! Calls of RPC to a service without a transport, and what comes back.

use capstan_nfs::service::Service;
use capstan_nfs_client::call::write_header;
use capstan_rpc_server::{Call, Outcome, Program};
use capstan_rpcrdma::rpc::{Accepted, Reply};
use capstan_rpcrdma::xdr::{Reader, ReducedItem, Writer};

use super::MESSAGE_BYTES;

/// What came back: how the call was accepted, and the bytes behind the header of RPC.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Answer {
    pub(crate) accepted: Accepted,
    pub(crate) bytes: Vec<u8>,
    /// Positions count from behind the header.
    pub(crate) reduced: Vec<ReducedItem>,
    /// Whether it was answered without waiting for anything.
    pub(crate) at_once: bool,
}

/// Bytes that are written, and what of them was reduced.
pub(crate) fn bytes(write: impl FnOnce(&mut Writer<'_>)) -> (Vec<u8>, Vec<ReducedItem>) {
    let mut buffer = vec![0; MESSAGE_BYTES];
    let mut writer = Writer::new(&mut buffer);
    write(&mut writer);
    let reduced = writer.reduced_items().to_vec();
    (writer.written().to_vec(), reduced)
}

/// The same of a call of the user with these IDs.
pub(crate) fn call_bytes(
    xid: u32,
    numbers: (u32, u32, u32),
    ids: (u32, u32),
    arguments: impl FnOnce(&mut Writer<'_>),
) -> (Vec<u8>, Vec<ReducedItem>) {
    bytes(|writer| {
        write_header(writer, xid, numbers, ids);
        arguments(writer);
    })
}

/// Has the service carry out a call as a server does it; `None` when no reply comes.
pub(crate) fn carry_out(service: &Service, call: &Call<'_>) -> Option<Answer> {
    let (mut buffer, mut waited) = (vec![0; MESSAGE_BYTES], vec![0; MESSAGE_BYTES]);
    let mut writer = Writer::new(&mut buffer);
    let at_once = service.at_once(call, &mut writer);
    let outcome = at_once.unwrap_or_else(|| {
        writer = Writer::new(&mut waited);
        service.call(call, &mut writer)
    });
    match outcome {
        Outcome::Reply => {}
        Outcome::None => {
            assert_eq!(writer.offset(), 0);
            return None;
        }
        Outcome::End => panic!("the connection would end"),
    }
    let mut reader = Reader::new(writer.written());
    let reply = Reply::read(&mut reader).unwrap();
    assert_eq!(
        Some(reply.xid.to_be_bytes().as_slice()),
        call.message.get(..4)
    );
    let header_bytes = u32::try_from(writer.offset() - reader.left().len()).unwrap();
    let reduced = writer.reduced_items().iter().map(|item| ReducedItem {
        position: item.position - header_bytes,
        ..*item
    });
    Some(Answer {
        accepted: reply.outcome.unwrap(),
        bytes: reader.left().to_vec(),
        reduced: reduced.collect(),
        at_once: at_once.is_some(),
    })
}
