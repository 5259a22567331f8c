//! A stranger on the target's machine, which brings memory of its own for the connection
//! (`docs/decisions/0007-shared-memory-between-two-ends-on-one-machine.md`), and more of it than a
//! host does.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

use capstan_rdma::iwarp::wire::mpa::FRAME_BYTES;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket,
};

use super::{Stranger, mpa_request, tcp};

/// Where the flags of an MPA Request are, and the one that asks for shared memory.
const FLAGS: usize = 16;
const SAME_HOST: u8 = 0x01;
/// At the end of the Reply's private data: a magic number, a secret, the name of a socket and the
/// size of a ring.
const INVITATION_BYTES: usize = 32;

/// Connects as far as the MPA Reply, and hands over memory of which every page is there.
///
/// # Errors
/// The target does not take it, or invites nobody to share memory.
pub fn connect_sharing(target: SocketAddr, source: Ipv4Addr) -> io::Result<Stranger> {
    let mut stream = tcp(target, source)?;
    let mut request = mpa_request(0);
    request[FLAGS] |= SAME_HOST;
    stream.write_all(&request)?;
    let mut reply = [0; FRAME_BYTES];
    stream.read_exact(&mut reply)?;
    let mut private_data = vec![0; usize::from(u16::from_be_bytes([reply[18], reply[19]]))];
    stream.read_exact(&mut private_data)?;
    let invitation = private_data.len().checked_sub(INVITATION_BYTES);
    let invitation = invitation.filter(|_| reply[FLAGS] & SAME_HOST != 0);
    let invitation = &private_data[invitation.ok_or(io::ErrorKind::Unsupported)?..];
    let [secret, name] = [&invitation[8..24], &invitation[24..29]];
    let ring_bytes = 1_usize << invitation[29];

    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut memory = File::from(memfd_create(c"stranger", flags)?);
    memory.write_all(&vec![0; 4096 + 2 * ring_bytes])?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
    let to = UnixAddr::new_abstract(name)?;
    let socket = socket(
        AddressFamily::Unix,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let fds = [memory.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let secret = [IoSlice::new(secret)];
    sendmsg(
        socket.as_raw_fd(),
        &secret,
        &control,
        MsgFlags::empty(),
        Some(&to),
    )?;
    Ok(Stranger { stream, msn: 1 })
}
