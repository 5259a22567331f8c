//! A queue over its socket: one `recvmsg` and one `sendmsg` per turn, and more only while each
//! finds all it has room for.
#![expect(
    unsafe_code,
    reason = "scatter/gather calls on memory that is never borrowed"
)]

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use capstan_memory::RawBytes;
use nix::sys::socket::{setsockopt, sockopt};

use super::controller::ControllerQueue;
use super::host::HostQueue;
use super::limits::{CALLS_PER_TURN, LARGE_HEAD_BYTES, PIECES_MAX};
use super::stream::SocketPlace;

/// What a link does with a queue of either side.
pub trait StreamQueue {
    /// [`ControllerQueue::place`].
    fn place(&mut self) -> Option<SocketPlace>;
    /// [`ControllerQueue::landed`].
    fn landed(&mut self, bytes: usize, now_us: u64);
    /// [`ControllerQueue::expects_large`].
    fn expects_large(&self) -> bool;
    /// [`ControllerQueue::due_bytes`].
    fn due_bytes(&self) -> usize;
    /// [`ControllerQueue::handle_bytes`].
    fn handle_bytes(&mut self, bytes: &[u8], now_us: u64);
    /// [`ControllerQueue::poll_transmit`].
    fn poll_transmit<'a>(&'a mut self, take: impl FnMut(RawBytes<'a>) -> bool);
    /// [`ControllerQueue::transmitted`].
    fn transmitted(&mut self, bytes: usize);
    /// [`ControllerQueue::handle_end`].
    fn handle_end(&mut self, lost: Option<String>);
    /// [`ControllerQueue::wants_close`].
    fn wants_close(&self) -> bool;
    /// [`ControllerQueue::closed`].
    fn closed(&mut self);
}

// By path: a method call could find the one of the trait.
macro_rules! queue {
    ($queue:ty) => {
        impl StreamQueue for $queue {
            fn place(&mut self) -> Option<SocketPlace> {
                <$queue>::place(self)
            }
            fn landed(&mut self, bytes: usize, now_us: u64) {
                <$queue>::landed(self, bytes, now_us);
            }
            fn expects_large(&self) -> bool {
                <$queue>::expects_large(self)
            }
            fn due_bytes(&self) -> usize {
                <$queue>::due_bytes(self)
            }
            fn handle_bytes(&mut self, bytes: &[u8], now_us: u64) {
                <$queue>::handle_bytes(self, bytes, now_us);
            }
            fn poll_transmit<'a>(&'a mut self, take: impl FnMut(RawBytes<'a>) -> bool) {
                <$queue>::poll_transmit(self, take);
            }
            fn transmitted(&mut self, bytes: usize) {
                <$queue>::transmitted(self, bytes);
            }
            fn handle_end(&mut self, lost: Option<String>) {
                <$queue>::handle_end(self, lost);
            }
            fn wants_close(&self) -> bool {
                <$queue>::wants_close(self)
            }
            fn closed(&mut self) {
                <$queue>::closed(self);
            }
        }
    };
}

queue!(ControllerQueue);
queue!(HostQueue);

/// What a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls to receive.
    pub receives: u64,
    /// Calls to send.
    pub sends: u64,
    /// Bytes that were received where they belong.
    pub direct_bytes: u64,
    /// Bytes that were received elsewhere: heads, and data that is copied once.
    pub copied_bytes: u64,
}

/// A connected socket.
#[derive(Debug)]
pub struct Link {
    stream: Option<TcpStream>,
    /// The socket took less than there was.
    blocked: bool,
    counts: Counts,
}

enum Call {
    Bytes(usize),
    WouldBlock,
    Lost(io::Error),
}

impl Link {
    /// Over `stream`, which becomes non-blocking and sends without delay.
    ///
    /// # Errors Errors of the options of the socket.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: Some(stream),
            blocked: false,
            counts: Counts::default(),
        })
    }

    /// The socket, to wait at; `None` once it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Whether to wait until the socket can send, besides until it can be read.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Makes the end of the connection a reset: the kernel drops what it has not sent, and
    /// retransmits nothing.
    pub fn reset_when_closed(&self) {
        if let Some(stream) = &self.stream {
            reset_when_closed(stream, true);
        }
    }

    /// Takes that back: the kernel sends what it has, and then the end.
    pub fn end_when_closed(&self) {
        if let Some(stream) = &self.stream {
            reset_when_closed(stream, false);
        }
    }

    /// Bytes that have arrived and were not received.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.queued_bytes(libc::FIONREAD)
    }

    /// Bytes that the kernel has taken, and the peer's machine has not acknowledged.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> u64 {
        // SIOCOUTQ (tcp(7)).
        self.queued_bytes(libc::TIOCOUTQ)
    }

    /// What one of the two requests says that ask for bytes in the kernel; 0 of a closed socket.
    fn queued_bytes(&self, request: libc::Ioctl) -> u64 {
        let Some(stream) = &self.stream else { return 0 };
        let mut bytes: libc::c_int = 0;
        // SAFETY: both requests store one int, which outlives the call.
        let asked = unsafe { libc::ioctl(stream.as_raw_fd(), request, &raw mut bytes) };
        u64::try_from(bytes).unwrap_or(0) * u64::from(asked == 0)
    }

    /// Hands to `queue` what has arrived. Bytes without a buffer of their own come into `scratch`,
    /// which has any content and some 64 KiB; the links of a thread share it. Returns whether
    /// anything came.
    pub fn receive(
        &mut self,
        queue: &mut impl StreamQueue,
        scratch: &mut [u8],
        now_us: u64,
    ) -> bool {
        let mut any = false;
        for _ in 0..CALLS_PER_TURN {
            let Some(stream) = &self.stream else { break };
            let place = queue.place();
            let direct_bytes = place.map_or(0, |place| place.len_bytes);
            // As little as possible is copied of large data that is about to come.
            let head_bytes = if queue.expects_large() {
                let small = queue.due_bytes().saturating_sub(direct_bytes);
                scratch.len().min(small.saturating_add(LARGE_HEAD_BYTES))
            } else {
                scratch.len()
            };
            let mut pieces = [
                libc::iovec {
                    iov_base: place.map_or(std::ptr::null_mut(), |p| p.base.as_ptr().cast()),
                    iov_len: direct_bytes,
                },
                libc::iovec {
                    iov_base: scratch.as_mut_ptr().cast(),
                    iov_len: head_bytes,
                },
            ];
            self.counts.receives += 1;
            // SAFETY: the first piece is inside a buffer that `queue` owns, which is not used
            // meanwhile and to which there is no reference; the second is `scratch`.
            match unsafe { receive(stream, &mut pieces) } {
                Call::Bytes(0) => {
                    queue.handle_end(None);
                    return true;
                }
                Call::Bytes(bytes) => {
                    any = true;
                    let direct = bytes.min(direct_bytes);
                    let copied = bytes - direct;
                    self.counts.direct_bytes += direct as u64;
                    self.counts.copied_bytes += copied as u64;
                    if direct > 0 {
                        queue.landed(direct, now_us);
                    }
                    queue.handle_bytes(scratch.get(..copied).unwrap_or_default(), now_us);
                    if bytes < direct_bytes + head_bytes {
                        break;
                    }
                }
                Call::WouldBlock => break,
                Call::Lost(error) => {
                    queue.handle_end(Some(error.to_string()));
                    return true;
                }
            }
        }
        any
    }

    /// Sends what `queue` has to send, and closes the connection where `queue` wants that. Whether
    /// anything has left.
    pub fn send(&mut self, queue: &mut impl StreamQueue) -> bool {
        let mut any = false;
        self.blocked = false;
        for _ in 0..CALLS_PER_TURN {
            let Some(stream) = &self.stream else { break };
            let mut pieces = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; PIECES_MAX];
            let (mut count, mut bytes) = (0, 0);
            queue.poll_transmit(|piece| {
                let Some(place) = pieces.get_mut(count) else {
                    return false;
                };
                *place = libc::iovec {
                    iov_base: piece.base().as_ptr().cast(),
                    iov_len: piece.len(),
                };
                bytes += piece.len();
                count += 1;
                count < PIECES_MAX
            });
            if count == 0 {
                break;
            }
            self.counts.sends += 1;
            let pieces = pieces.get_mut(..count).unwrap_or_default();
            // SAFETY: the pieces are memory of `queue`, which is not used meanwhile.
            match unsafe { send(stream, pieces) } {
                Call::Bytes(sent) => {
                    any = true;
                    queue.transmitted(sent);
                    if sent < bytes {
                        self.blocked = true;
                        break;
                    }
                    if count < PIECES_MAX {
                        break;
                    }
                }
                Call::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Call::Lost(error) => {
                    queue.handle_end(Some(error.to_string()));
                    break;
                }
            }
        }
        if queue.wants_close() && self.stream.take().is_some() {
            queue.closed();
        }
        any
    }
}

/// Whether the end of a socket, whatever closes it, is a reset (`socket(7)`, `SO_LINGER` with a
/// time of 0).
pub(super) fn reset_when_closed(socket: &impl AsFd, resets: bool) {
    let linger = libc::linger {
        l_onoff: resets.into(),
        l_linger: 0,
    };
    // Only a descriptor that is no socket is refused.
    let _ = setsockopt(socket, sockopt::Linger, &linger);
}

fn call(result: isize) -> Call {
    if let Ok(bytes) = usize::try_from(result) {
        return Call::Bytes(bytes);
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Call::WouldBlock,
        _ => Call::Lost(error),
    }
}

fn header(pieces: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data for which zero is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len();
    header
}

/// # Safety
/// Each piece is mapped memory that may be written and that nothing has a reference to.
unsafe fn receive(stream: &TcpStream, pieces: &mut [libc::iovec]) -> Call {
    let mut header = header(pieces);
    // SAFETY: `header` names `pieces`, which the caller answers for.
    call(unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) })
}

/// # Safety
/// Each piece is mapped memory.
unsafe fn send(stream: &TcpStream, pieces: &mut [libc::iovec]) -> Call {
    let header = header(pieces);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `header` names `pieces`, which the caller answers for.
    call(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const header, flags) })
}
