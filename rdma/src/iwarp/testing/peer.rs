//! A peer on this machine that breaks every rule, for fuzzing and its replay in tests.
#![expect(
    unsafe_code,
    reason = "writes into shared memory as another process can"
)]

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixDatagram, UnixStream};

use nix::cmsg_space;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use nix::unistd::ftruncate;
use zerocopy::IntoBytes;

use crate::iwarp::driver::rendezvous::Invitation;
use crate::iwarp::link::Link;
use crate::iwarp::link::shared::link::SharedLink;
use crate::iwarp::link::shared::memory::Memory;
use crate::iwarp::link::shared::ring::{LINES_BYTES, RING_BYTES, RING_ORDER, Reader, Writer};
use crate::iwarp::piece::Piece;

/// The first page: the positions of both rings, and nothing else.
const PAGE_BYTES: usize = 4096;

/// What comes with a message to the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::iwarp) enum Brings {
    /// The memory.
    Memory,
    /// Memory of another size, memory that can shrink, or no memory.
    Odd(u8),
    /// The memory, and so many more descriptors.
    More(u8),
    /// No descriptor.
    Nothing,
}

/// The other process. Kept from one connection to the next.
pub(in crate::iwarp) struct Peer {
    own: Memory,
    own_fd: OwnedFd,
    odd: [OwnedFd; 3],
    /// The socket to which others are invited to send memory, and its name.
    rendezvous: UnixDatagram,
    name: [u8; 5],
    /// What the ring that this peer writes is to hold.
    ring: Vec<u8>,
}

/// The other process's end of one connection.
pub(in crate::iwarp) struct End<'p> {
    peer: &'p mut Peer,
    /// Memory that the other end has made.
    taken: Option<Memory>,
    writer: Writer,
    reader: Reader,
    /// Whether this peer has made the memory, which decides which ring is whose.
    created: bool,
    socket: Option<UnixStream>,
    said_bytes: usize,
    /// How far the ring was written, correctly or not: the end of the last such byte.
    dirty_bytes: usize,
}

impl Peer {
    /// # Errors
    /// The system has no descriptors or memory left.
    pub(in crate::iwarp) fn new() -> io::Result<Self> {
        let (own, own_fd) = Memory::create()?;
        let rendezvous = UnixDatagram::unbound()?;
        nix::sys::socket::bind(rendezvous.as_raw_fd(), &UnixAddr::new_unnamed())?;
        rendezvous.set_nonblocking(true)?;
        let address = rendezvous.local_addr()?;
        let name = address.as_abstract_name().and_then(|n| n.try_into().ok());
        Ok(Self {
            own,
            own_fd,
            odd: [
                memory(PAGE_BYTES, SealFlag::F_SEAL_SHRINK)?,
                memory(PAGE_BYTES + 2 * RING_BYTES, SealFlag::empty())?,
                OwnedFd::from(std::fs::File::open("/dev/null")?),
            ],
            rendezvous,
            name: name.ok_or(io::ErrorKind::InvalidData)?,
            ring: vec![0; RING_BYTES],
        })
    }

    /// A connection in memory that this peer or, not `created`, the other end has made.
    ///
    /// # Errors
    /// The system has no descriptors or memory left.
    pub(in crate::iwarp) fn connected(&mut self, created: bool) -> io::Result<(Link, End<'_>)> {
        let (stream, socket) = sockets()?;
        let link = SharedLink::new(Memory::open(&self.own_fd)?, !created, stream);
        let link = Link::Shared(Box::new(link));
        Ok((link, End::new(self, created, None, socket)))
    }

    /// A connection that is to move into memory this peer brings.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(in crate::iwarp) fn invited(&mut self) -> io::Result<(Link, End<'_>)> {
        let (stream, socket) = sockets()?;
        Ok((Link::Tcp(stream), End::new(self, true, None, socket)))
    }

    /// A connection in memory that the other end makes, after a Reply in which one byte may be
    /// wrong; `None` when there is no invitation in it then, or one that does not fit.
    ///
    /// # Errors
    /// The memory does not come.
    pub(in crate::iwarp) fn inviting(
        &mut self,
        wrong_at: u8,
        wrong: u8,
    ) -> io::Result<Option<(Link, End<'_>)>> {
        let mut private_data = [0x11; 40];
        private_data[8..16].copy_from_slice(b"CAPSHM02");
        private_data[37] = RING_ORDER;
        if let Some(byte) = private_data.get_mut(usize::from(wrong_at)) {
            *byte = wrong;
        }
        // Any other name could be some other program's.
        private_data[32..37].copy_from_slice(&self.name);
        let fitting = Invitation::split(&private_data).filter(|(_, i)| i.fits());
        let Some((_, invitation)) = fitting else {
            return Ok(None);
        };
        let (stream, socket) = sockets()?;
        let link = crate::iwarp::driver::rendezvous::take_up(&invitation, stream)
            .map_err(|(_, error)| error)?;
        let mut secret = [0; 16];
        let mut space = cmsg_space!([RawFd; 4]);
        let mut bytes = [IoSliceMut::new(&mut secret)];
        let from = self.rendezvous.as_raw_fd();
        let message = recvmsg::<UnixAddr>(from, &mut bytes, Some(&mut space), MsgFlags::empty())?;
        let mut taken = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                for fd in fds {
                    // SAFETY: the kernel has just opened it for this process, and named it once.
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    taken = Some(Memory::open(&fd)?);
                }
            }
        }
        assert!(taken.is_some(), "no memory comes with the secret");
        assert_eq!(secret, private_data[16..32], "the secret it was told");
        let link = Link::Shared(Box::new(link));
        Ok(Some((link, End::new(self, false, taken, socket))))
    }
}

impl<'p> End<'p> {
    fn new(peer: &'p mut Peer, created: bool, taken: Option<Memory>, socket: UnixStream) -> Self {
        let memory = taken.as_ref().unwrap_or(&peer.own);
        Self {
            writer: Writer::new(&memory.place(!created)),
            reader: Reader::new(&memory.place(created)),
            created,
            taken,
            peer,
            socket: Some(socket),
            said_bytes: 0,
            dirty_bytes: 0,
        }
    }

    fn memory(&self) -> &Memory {
        self.taken.as_ref().unwrap_or(&self.peer.own)
    }

    /// A position that is likely to be near a valid one.
    pub(in crate::iwarp) fn position(&self, which: u8, more: u8) -> u64 {
        let (ring, said) = (RING_BYTES as u64, self.said_bytes as u64);
        let near = match which % 8 {
            0 => 0,
            1 => ring,
            2 => said,
            3 => said.wrapping_add(ring),
            4 => said.wrapping_sub(ring),
            5 => u64::MAX,
            6 => 1 << 63,
            _ => u64::from(more) << 24,
        };
        // A little more or less, in a few cases.
        near.wrapping_add(u64::from(more % 16))
            .wrapping_sub(u64::from(more >> 4))
    }

    /// Sends as a correct peer does; returns for how much there was room.
    pub(in crate::iwarp) fn say(&mut self, bytes: &mut [u8]) -> usize {
        let piece = Piece::raw(bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a slice that is borrowed during the call.
        let said = unsafe { self.writer.write(&[piece]) }.unwrap_or(0);
        let at = self.said_bytes % RING_BYTES;
        let (before_end, from_start) = bytes[..said].split_at(said.min(RING_BYTES - at));
        self.peer.ring[at..at + before_end.len()].copy_from_slice(before_end);
        self.peer.ring[..from_start.len()].copy_from_slice(from_start);
        self.said_bytes += said;
        self.dirty_bytes = self.dirty_bytes.max(self.said_bytes.min(RING_BYTES));
        if self.writer.publish() && self.writer.reader_sleeps() {
            self.say_on_socket(&[0]);
        }
        said
    }

    /// Receives as a correct peer does, and drops it.
    pub(in crate::iwarp) fn hear(&mut self, bytes_max: usize) {
        let mut bytes = vec![0; bytes_max];
        let piece = Piece::raw(bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a slice that is borrowed during the call. An impossible position is this peer's
        // own doing.
        let _ = unsafe { self.reader.read(&[piece]) };
        if self.reader.writer_sleeps() {
            self.say_on_socket(&[0]);
        }
    }

    /// Overwrites some of the positions of both rings.
    pub(in crate::iwarp) fn poke_lines(&mut self, at: usize, bytes: &[u8]) {
        let at = at % (2 * LINES_BYTES - bytes.len());
        let lines = self.memory().place(false).lines.wrapping_add(at);
        // SAFETY: inside the first page of the mapping; the other end reads it as atomics.
        unsafe { lines.copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// Writes into one of the rings.
    pub(in crate::iwarp) fn poke_ring(&mut self, own: bool, at: usize, bytes: &[u8]) {
        let at = at % (RING_BYTES - bytes.len());
        let place = self.memory().place(self.created != own);
        // SAFETY: inside the ring; the other end does not trust what it copies out.
        unsafe {
            place
                .bytes
                .wrapping_add(at)
                .copy_from(bytes.as_ptr(), bytes.len());
        };
        if own {
            self.peer.ring[at..at + bytes.len()].copy_from_slice(bytes);
            self.dirty_bytes = self.dirty_bytes.max(at + bytes.len());
        }
    }

    /// Sends bytes on the socket, which wake the other end, or are the stream while there is no
    /// memory.
    pub(in crate::iwarp) fn say_on_socket(&mut self, bytes: &[u8]) {
        if let Some(socket) = &mut self.socket {
            // A full socket loses them.
            let _ = socket.write(bytes);
        }
    }

    /// Closes the socket.
    pub(in crate::iwarp) fn leave(&mut self) {
        self.socket = None;
    }

    /// Sends a message to the rendezvous that an invitation names.
    pub(in crate::iwarp) fn bring(&self, invitation: &Invitation, right: bool, brings: Brings) {
        let mut secret = [0; 16];
        secret.copy_from_slice(&invitation.as_bytes()[8..24]);
        secret[15] ^= u8::from(!right);
        let own = self.peer.own_fd.as_raw_fd();
        let odd = |n: u8| self.peer.odd[usize::from(n) % 3].as_raw_fd();
        let fds = match brings {
            Brings::Memory => vec![own],
            Brings::Odd(which) => vec![odd(which)],
            Brings::More(count) => vec![own; 1 + usize::from(count)],
            Brings::Nothing => Vec::new(),
        };
        let control = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() {
            &[][..]
        } else {
            &control[..]
        };
        let bytes = [IoSlice::new(&secret)];
        if let Ok(to) = UnixAddr::new_abstract(&invitation.as_bytes()[24..29]) {
            // A full socket loses it.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let from = self.peer.rendezvous.as_raw_fd();
            let _ = sendmsg(from, &bytes, control, flags, Some(&to));
        }
    }

    /// Checks that the other end has written nothing but its ring and the positions, and restores
    /// the memory.
    ///
    /// # Panics
    /// It has written something else.
    pub(in crate::iwarp) fn check_and_restore(self) {
        let said = self.memory().place(!self.created).bytes;
        let first = self.memory().place(false).lines;
        let rest = first.wrapping_add(2 * LINES_BYTES);
        // SAFETY: inside the mapping, which nothing writes any more.
        let rest = unsafe { std::slice::from_raw_parts(rest, PAGE_BYTES - 2 * LINES_BYTES) };
        assert!(
            rest == [0; PAGE_BYTES - 2 * LINES_BYTES],
            "the unused memory"
        );
        // SAFETY: as above.
        let ring = unsafe { std::slice::from_raw_parts(said, RING_BYTES) };
        assert!(ring == self.peer.ring, "the ring that only the peer writes");
        self.peer.ring[..self.dirty_bytes].fill(0);
        // SAFETY: as above; the slices are not used any more.
        unsafe { said.write_bytes(0, self.dirty_bytes) };
        // SAFETY: as above.
        unsafe { first.write_bytes(0, 2 * LINES_BYTES) };
        let heard = self.memory().place(self.created).bytes;
        // SAFETY: as above.
        unsafe { heard.write_bytes(0, RING_BYTES) };
    }
}

/// A connected pair; the first stands for the other end's TCP connection.
fn sockets() -> io::Result<(TcpStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((TcpStream::from(OwnedFd::from(one)), other))
}

fn memory(length: usize, seals: SealFlag) -> io::Result<OwnedFd> {
    let fd = memfd_create(c"odd", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&fd, i64::try_from(length).map_err(io::Error::other)?)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}
