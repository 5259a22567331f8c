//! The iWARP provider: set-up frames, and the engine that receives, from a socket and from memory.

use capstan_rdma::iwarp::testing::{receive, receive_shared};
use capstan_rdma::iwarp::wire::mpa::{FRAME_BYTES, FrameHeader};

/// A stream of FPDUs, well-formed and not, into the real receive engine: nothing outside the
/// memory opened to the peer changes, and every work request completes exactly once.
pub fn iwarp_receive(data: &[u8]) {
    receive(data);
}

/// A peer on this machine that writes what it likes, where it likes, into the shared memory of a
/// connection, and brings what it likes to where memory is handed over: as `iwarp_receive`, and
/// the connection ends, for a cause that says what is wrong.
pub fn same_host(data: &[u8]) {
    receive_shared(data);
}

/// MPA Request and Reply frames: what parses encodes to what parses to the same.
///
/// # Panics
/// When it does not.
pub fn iwarp_setup(data: &[u8]) {
    let Some((start, rest)) = data.split_first_chunk::<FRAME_BYTES>() else {
        return;
    };
    let Ok((header, length)) = FrameHeader::parse(start) else {
        return;
    };
    let Some(private) = rest.get(..length) else {
        return;
    };
    let Ok((frame, private)) = header.with_private_data(private) else {
        return;
    };
    let bytes = frame.encode(private).expect("what came in fits");
    let (start, rest) = bytes.split_first_chunk::<FRAME_BYTES>().expect("a frame");
    let (header, length) = FrameHeader::parse(start).expect("what was encoded");
    assert_eq!(length, rest.len());
    assert_eq!(header.with_private_data(rest), Ok((frame, private)));
}
