//! Rendezvous: how the memory gets from one process to the other.
//!
//! The listening side names a local socket and a secret at the end of its Reply's private data: an
//! [`Invitation`]. The connecting side, which trusts that Reply as much as the connection, makes
//! the memory and sends its descriptor there, with the secret, before anything else; from then on
//! it uses the memory. The listening side, which may not send before it has received anyway (RFC
//! 5044 §7.1.2), continues with whatever arrives first: the descriptor, or an FPDU through TCP.
#![expect(unsafe_code, reason = "takes over received descriptors")]

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::offset_of;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname,
    sendmsg, socket,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::qp::Qp;
use crate::iwarp::link::c_width::for_c;
use crate::iwarp::link::shared::link::SharedLink;
use crate::iwarp::link::shared::memory::Memory;
use crate::iwarp::link::shared::ring::RING_ORDER;

const MAGIC: [u8; 8] = *b"CAPSHM02";
/// The length of the name that the kernel chooses for an abstract socket (unix(7)).
const NAME_BYTES: usize = 5;
/// Descriptors taken per look.
const TAKES: usize = 64;

/// The end of a Reply's private data.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(in crate::iwarp) struct Invitation {
    magic: [u8; 8],
    secret: [u8; 16],
    name: [u8; NAME_BYTES],
    /// The size of the rings, 2 to the power of this: versions of this program may differ in it.
    ring_order: u8,
    reserved: [u8; 2],
}

const _: () = {
    assert!(size_of::<Invitation>() == 32);
    assert!(offset_of!(Invitation, secret) == 8);
    assert!(offset_of!(Invitation, name) == 24);
    assert!(offset_of!(Invitation, ring_order) == 29);
};

impl Invitation {
    /// The invitation at the end of `private_data`, and what is before it.
    pub(in crate::iwarp) fn split(private_data: &[u8]) -> Option<(&[u8], Self)> {
        let (before, invitation) = Self::read_from_suffix(private_data).ok()?;
        (invitation.magic == MAGIC).then_some((before, invitation))
    }

    /// Whether the peer's rings have the size that this end makes.
    pub(in crate::iwarp) fn fits(&self) -> bool {
        self.ring_order == RING_ORDER
    }
}

/// Whether both ends of a TCP connection are on this machine and in one network namespace. `false`
/// when one is unknown.
pub(in crate::iwarp) fn is_same_host(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> bool {
    let same = |(local, peer): (SocketAddr, SocketAddr)| {
        local.ip() == peer.ip() || (local.ip().is_loopback() && peer.ip().is_loopback())
    };
    local.zip(peer).is_some_and(same)
}

/// The connecting side: makes the memory and hands it over. Returns the stream when that is not
/// possible; the connection stays with it then.
pub(in crate::iwarp) fn take_up(
    invitation: &Invitation,
    stream: TcpStream,
) -> Result<SharedLink, (TcpStream, io::Error)> {
    match hand_over(invitation) {
        Ok(memory) => Ok(SharedLink::new(memory, true, stream)),
        Err(error) => Err((stream, error)),
    }
}

fn hand_over(invitation: &Invitation) -> io::Result<Memory> {
    if !invitation.fits() {
        return Err(io::Error::other(format!(
            "the peer takes rings of 2^{} bytes, and this end makes them of 2^{RING_ORDER}; with programs of one \
             version there is shared memory",
            invitation.ring_order
        )));
    }
    let (memory, fd) = Memory::create()?;
    let socket = unix_socket()?;
    let to = UnixAddr::new_abstract(&invitation.name)?;
    let fds = [fd.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let bytes = [IoSlice::new(&invitation.secret)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg(socket.as_raw_fd(), &bytes, &control, flags, Some(&to))?;
    Ok(memory)
}

fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Datagram, flags, None)
}

/// A queue pair whose peer was invited to shared memory.
struct Invited {
    secret: [u8; 16],
    qp: Weak<RefCell<Qp>>,
}

/// Where the connections of a listening side receive their shared memory.
pub(in crate::iwarp) struct Rendezvous {
    socket: OwnedFd,
    name: [u8; NAME_BYTES],
    invited: Vec<Invited>,
}

impl Rendezvous {
    /// # Errors
    /// The system has no descriptors or names left.
    pub(in crate::iwarp) fn new() -> io::Result<Self> {
        let socket = unix_socket()?;
        bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
        let bound: UnixAddr = getsockname(socket.as_raw_fd())?;
        let name = bound.as_abstract().and_then(|name| name.try_into().ok());
        let name = name.ok_or_else(|| {
            io::Error::other(format!(
                "an abstract socket name of {bound}; 5 bytes expected"
            ))
        })?;
        Ok(Self {
            socket,
            name,
            invited: Vec::new(),
        })
    }

    /// Readable when a descriptor has arrived.
    pub(in crate::iwarp) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Invites the peer of `qp`.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(in crate::iwarp) fn invite(&mut self, qp: &Rc<RefCell<Qp>>) -> io::Result<Invitation> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        self.invited.push(Invited {
            secret,
            qp: Rc::downgrade(qp),
        });
        Ok(Invitation {
            magic: MAGIC,
            secret,
            name: self.name,
            ring_order: RING_ORDER,
            reserved: [0; 2],
        })
    }

    /// The next descriptor of an invited peer, and its queue pair. Forgets invitations of
    /// connections that have begun without shared memory. A socket that is `readable` is read even
    /// though no peer is invited: it would stay readable.
    pub(in crate::iwarp) fn take(&mut self, readable: bool) -> Option<(Rc<RefCell<Qp>>, OwnedFd)> {
        if self.invited.is_empty() && !readable {
            return None;
        }
        self.invited.retain(|i| {
            i.qp.upgrade()
                .is_some_and(|qp| qp.borrow().core.is_silent())
        });
        for _ in 0..TAKES {
            let (secret, fd) = self.receive()?;
            let Some(at) = self.invited.iter().position(|i| i.secret == secret) else {
                continue;
            };
            if let (Some(qp), Some(fd)) = (self.invited.swap_remove(at).qp.upgrade(), fd) {
                return Some((qp, fd));
            }
        }
        None
    }

    /// One message, from any sender. Descriptors that do not belong into one are closed, also those
    /// of a message that brings more than there is room for.
    fn receive(&self) -> Option<([u8; 16], Option<OwnedFd>)> {
        let mut secret = [0; 16];
        let mut bytes = IoSliceMut::new(&mut secret);
        let mut space = cmsg_space!([RawFd; 4]);
        // SAFETY: plain data for which zero is a valid value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        // `IoSliceMut` has the layout of `iovec`.
        header.msg_iov = (&raw mut bytes).cast();
        header.msg_iovlen = 1;
        header.msg_control = space.as_mut_ptr().cast();
        header.msg_controllen = for_c(space.capacity());
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: `header` names memory that is borrowed until it is used no more.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, flags) };
        let mut first = None;
        if got >= 0 {
            each_descriptor(&header, |fd| {
                first.get_or_insert(fd);
            });
        }
        (got >= 0).then_some((secret, first))
    }
}

/// Takes over the descriptors of a received message. Not by nix, which shows none of a message that
/// was cut short: those that fitted would stay open for ever.
fn each_descriptor(header: &libc::msghdr, mut take: impl FnMut(OwnedFd)) {
    // SAFETY: the kernel has just filled in `header` and what it names.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: as above; null after the last.
    while let Some(control) = unsafe { at.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: inside the memory for control messages.
            let fds: *const RawFd = unsafe { libc::CMSG_DATA(at) }.cast();
            let bytes =
                (at.addr() + for_c::<_, usize>(control.cmsg_len)).saturating_sub(fds.addr());
            for n in 0..bytes / size_of::<RawFd>() {
                // SAFETY: so many follow the header, aligned or not.
                let fd = unsafe { fds.wrapping_add(n).read_unaligned() };
                // SAFETY: the kernel has just opened it for this process, and named it once.
                take(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for the first.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use nix::unistd::pipe;

    use super::*;

    #[test]
    fn descriptors_of_strangers_are_closed_however_many() {
        let mut rendezvous = Rendezvous::new().unwrap();
        let to = UnixAddr::new_abstract(&rendezvous.name).unwrap();
        let stranger = unix_socket().unwrap();
        for count in [0, 1, 4, 5, 253] {
            let (end, other_end) = pipe().unwrap();
            let fds = vec![other_end.as_raw_fd(); count];
            let control = [ControlMessage::ScmRights(&fds)];
            let bytes = [IoSlice::new(&[7; 16])];
            let flags = MsgFlags::empty();
            let control = &control[..usize::from(count != 0)];
            sendmsg(stranger.as_raw_fd(), &bytes, control, flags, Some(&to)).unwrap();
            drop(other_end);
            assert!(rendezvous.take(true).is_none());
            // Nothing has it open any more: the pipe has ended.
            assert_eq!(
                std::fs::File::from(end).read(&mut [0]).unwrap(),
                0,
                "{count}"
            );
        }
    }

    #[test]
    fn a_peer_with_rings_of_another_size_stays_with_tcp() {
        let rendezvous = Rendezvous::new().unwrap();
        let invitation = Invitation {
            magic: MAGIC,
            secret: [7; 16],
            name: rendezvous.name,
            ring_order: RING_ORDER - 2,
            reserved: [0; 2],
        };
        let (before, read) = Invitation::split(invitation.as_bytes()).unwrap();
        assert!(before.is_empty());
        let (stream, mut peer) = UnixStream::pair().unwrap();
        let taken = take_up(&read, TcpStream::from(OwnedFd::from(stream)));
        let (mut stream, error) = taken.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("rings of 2^18 bytes"), "{error}");
        assert!(rendezvous.receive().is_none(), "memory has come");
        stream.write_all(b"goes on").unwrap();
        let mut heard = [0; 7];
        peer.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"goes on");
    }

    #[test]
    fn a_message_that_comes_when_nobody_is_invited_is_taken() {
        let mut rendezvous = Rendezvous::new().unwrap();
        let to = UnixAddr::new_abstract(&rendezvous.name).unwrap();
        let stranger = unix_socket().unwrap();
        let bytes = [IoSlice::new(&[7; 16])];
        let none = MsgFlags::empty();
        sendmsg(stranger.as_raw_fd(), &bytes, &[], none, Some(&to)).unwrap();
        assert!(rendezvous.take(true).is_none());
        assert!(rendezvous.receive().is_none(), "it would wake for ever");
    }
}
