//! NVMe over TCP, without I/O: the PDUs, where each of their bytes goes, and the order they may
//! come in.
//!
//! Source: NVMe over TCP Transport 1.1 (NVMe over Fabrics 1.1, section 7.4, has the same PDUs).
//!
//! # Where things are
//! * [`pdu`]: the headers on the wire.
//! * [`setup`]: what ICReq and ICResp agree on: digests, alignment, limits.
//! * [`reader`] and [`writer`]: a stream of bytes to PDUs, and PDUs to what stands before and
//!   behind their data. Data passes through neither: the reader says how much of it comes next,
//!   so that it goes from the socket to its final buffer.
//! * [`r2t`], [`h2c`] and [`c2h`]: how a command's data is cut into PDUs, and whether what a peer
//!   sends fits what it was asked for.
//! * [`command`]: where a command's data is, by its SGL.
//! * [`fault`]: what is wrong with a PDU, and the TermReq that says so.
//!
//! # What it does not do
//! It reads no socket, keeps no table of commands and computes no data digest: the side that moves
//! the data does, with what its processor has for it. It has no TLS.

pub mod c2h;
pub mod command;
pub mod digest;
pub mod fault;
pub mod h2c;
pub mod pdu;
pub mod r2t;
pub mod reader;
pub mod setup;
pub mod writer;

/// Which side of a connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The host: it sends ICReq, commands and H2CData.
    Host,
    /// The controller: it sends ICResp, responses, C2HData and R2T.
    Controller,
}
