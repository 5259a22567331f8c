//! What carries out calls.

use std::net::SocketAddr;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use capstan_memory::Span;
use capstan_rpcrdma::xdr::{DataItem, Reader, Writer};

/// The number of a connection, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionNumber(pub u64);

/// What carries a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// Records over TCP.
    Tcp,
    /// RPC-over-RDMA.
    Rdma,
}

/// A call, as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The connection.
    pub connection: ConnectionNumber,
    /// What carries it.
    pub wire: Wire,
    /// The client's address.
    pub peer: SocketAddr,
    /// The message, from its XID on, without what was reduced.
    pub message: &'a [u8],
    /// The same, to be read.
    pub reader: Reader<'a>,
    /// Data of the call.
    pub arguments: Arguments<'a>,
    /// Where data of the reply may go.
    pub results: Results<'a>,
}

/// The data that was taken out of a call and pulled, by its index among the reduced items.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arguments<'a>(pub &'a [Span]);

/// Data of a call, where it is.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In memory that a device has filled; without padding.
    Pulled(&'a Span, usize),
}

impl<'a> Arguments<'a> {
    /// Where the data of an item is; `None` for one that is not there.
    #[must_use]
    pub fn data(&self, item: &DataItem<'a>) -> Option<Data<'a>> {
        match *item {
            DataItem::Inline(bytes) => Some(Data::Inline(bytes)),
            DataItem::Reduced {
                index,
                length_bytes,
            } => {
                let span = self.0.get(index)?;
                let length_bytes = usize::try_from(length_bytes).ok()?;
                (length_bytes <= span.len_bytes()).then_some(Data::Pulled(span, length_bytes))
            }
        }
    }
}

/// Memory from which data of a reply is pushed: by the index that [`Writer::reduced`] gives it.
/// `None` where the client wants it inline, as is all data behind the last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Results<'a>(pub &'a [Option<Span>]);

impl<'a> Results<'a> {
    /// Where the next data of a reply goes, of which `writer` was given what is before; `None`:
    /// into the writer.
    #[must_use]
    pub fn next(&self, writer: &Writer<'_>) -> Option<&'a Span> {
        self.0.get(writer.reduced_items().len())?.as_ref()
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The reply was written.
    Reply,
    /// There is none, as to a message that is no call.
    None,
    /// None, and the connection ends: nothing that follows could be read.
    End,
}

/// An RPC program, or several.
pub trait Program: Send + Sync + 'static {
    /// Carries out a call, and writes the reply to `reply`, from the XID on. It may block, and is
    /// called by many threads.
    fn call(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome;

    /// As [`call`](Self::call), by the thread that owns all connections, where nothing that the
    /// call needs has to be waited for: it spares the way to another thread and back. `None` where
    /// it may have to wait; then nothing was done, what was written to `reply` does not count, and
    /// [`call`](Self::call) follows. It must not block.
    fn at_once(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Option<Outcome> {
        let _ = (call, reply);
        None
    }

    /// Whether an address may have calls carried out. One that may not is not connected over RDMA,
    /// where a connection costs memory, and has its calls [`refused`](Self::refused) over TCP. It
    /// must not block: the thread that owns all connections asks.
    ///
    /// # Errors
    /// It may not; why, in words for the log that are the same for all connections of an address.
    fn admits(&self, peer: SocketAddr) -> Result<(), String>;

    /// Answers a call of an address that is not admitted with why, from nothing but its header; the
    /// thread that owns all connections calls it. The connection ends for [`Outcome::End`].
    fn refused(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome;

    /// When the oldest call came that waits to be carried out; `None`: none does. What a client
    /// says in time may be heard late, and is not to count against it. Always told before
    /// [`call`](Self::call) has a call, and now and then later: it may be earlier than it is, never
    /// later. It must not block.
    fn waits_since(&self, since: Option<Instant>) {
        let _ = since;
    }

    /// These threads are in one call each for so long ([`SLOW_US`](crate::limits::SLOW_US) and
    /// more). Told now and then while there are any, and once when there are none any more. How
    /// many of them others may take the places of: the program knows what they wait for, and that
    /// one thing should not take all that there are. It must not block.
    fn slow(&self, threads: &[(ThreadId, Duration)]) -> usize {
        threads.len()
    }

    /// Does what is due by time, whether calls come or not. Told when the server begins, and then
    /// when the time is over that it asked for; `None`: never again. It must not block.
    fn on_time(&self) -> Option<Duration> {
        None
    }

    /// There are so many connections, after one has come or gone. It must not block: the thread
    /// that owns all connections tells.
    fn connections(&self, count: usize) {
        let _ = count;
    }

    /// A connection has ended, and no call of it is under way. It may block.
    fn ended(&self, connection: ConnectionNumber);
}
