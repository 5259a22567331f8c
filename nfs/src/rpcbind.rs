//! Tells rpcbind where the programs are, for `showmount -e` and for clients of NFS version 3 that
//! were not given `port=` and `mountport=`. Nothing else depends on it.
//!
//! It is asked as the port mapper that it is as well (RFC 1833, section 3), over UDP and from a
//! privileged port of this machine: it takes registrations from no one else. Port mappers know IPv4
//! alone.

use std::io::{self, Error, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::mount::{MOUNT_PROGRAM, MOUNT_V3};
use capstan_nfs_proto::v3::NFS_V3;
use capstan_nfs_proto::v4::NFS_V4;
use capstan_rpcrdma::rpc::{Accepted, Call, Credentials, Reply};
use capstan_rpcrdma::xdr::{Reader, WriteError, Writer};

/// Where rpcbind is (RFC 1833, section 3.1).
pub const RPCBIND: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, PMAP_PORT));

/// What is registered: programs and their versions, each over TCP.
pub const PROGRAMS: [(u32, u32); 3] = [
    (MOUNT_PROGRAM, MOUNT_V3),
    (NFS_PROGRAM, NFS_V3),
    (NFS_PROGRAM, NFS_V4),
];

// RFC 1833, section 3.1.
const PMAP_PORT: u16 = 111;
const PMAP_PROGRAM: u32 = 100_000;
const PMAP_VERSION: u32 = 2;
const PMAP_SET: u32 = 1;
const PMAP_UNSET: u32 = 2;
const PMAP_GETPORT: u32 = 3;
const IPPROTO_TCP: u32 = 6;

/// Times that a question is sent. It goes to this machine, where next to nothing is lost.
const ATTEMPTS: u32 = 3;
/// How long an answer is waited for each time: three times are 1.5 s, which a start can wait for an
/// rpcbind that is stopped.
const ANSWER_WAIT: Duration = Duration::from_millis(500);
/// Datagrams that are no answer to the question and are passed over, for each time it is sent.
const STRAY_MAX: u32 = 8;
/// Ports that only root has, and that well-known services do not have (IPPORT_RESERVED of Linux and
/// half of it): one of them is free.
const PRIVILEGED_PORTS: std::ops::Range<u16> = 512..1024;
/// How often the programs are registered again, as an rpcbind that was started anew knows of none:
/// three questions to this machine each time.
pub const PERIOD: Duration = Duration::from_secs(60);
/// Bytes of a question (24 of its header, 16 of two flavors, 16 of arguments) and of an answer.
const MESSAGE_BYTES: usize = 256;

/// Why the programs are not registered.
#[derive(Debug, thiserror::Error)]
pub enum RpcbindError {
    /// Nothing listens.
    #[error("nothing listens at {0}; start rpcbind")]
    NotRunning(SocketAddr),
    /// It does not answer.
    #[error("rpcbind at {address} has not answered {ATTEMPTS} times; restart it")]
    Silent {
        /// Its address.
        address: SocketAddr,
    },
    /// Its answer is none.
    #[error(
        "rpcbind at {address} has answered {answer}; expected a success (it takes \
             registrations from privileged ports of this machine)"
    )]
    Refused {
        /// Its address.
        address: SocketAddr,
        /// What it has answered.
        answer: String,
    },
    /// Another server is registered.
    #[error(
        "program {program} version {version} is registered with port {port} already, and was \
             to be with {wanted}; stop the other server, or remove what one has left behind: \
             rpcinfo -d {program} {version}"
    )]
    Taken {
        /// The program.
        program: u32,
        /// Its version.
        version: u32,
        /// The port that is registered; 0 for none over TCP.
        port: u32,
        /// The port that was to be.
        wanted: u16,
    },
    /// This process may have no privileged port.
    #[error(
        "this process may take no port below 1024 ({0}), and rpcbind takes registrations from no other: start it as root, with \
         CAP_NET_BIND_SERVICE in CapabilityBoundingSet= of its unit"
    )]
    NotPrivileged(Error),
    /// The machine refuses.
    #[error("{doing}: {error}")]
    Machine {
        /// What was tried.
        doing: &'static str,
        /// What the machine says.
        error: Error,
    },
}

/// What is registered, for as long as this lives.
#[derive(Debug)]
#[must_use = "dropping it takes the registration back"]
pub struct Registration {
    rpcbind: SocketAddr,
    registered: Vec<(u32, u32)>,
}

/// Registers [`PROGRAMS`] with the `rpcbind` there, as served over TCP at `port`.
///
/// # Errors
/// One of them cannot be registered: then none is. It takes up to 1.5 s.
pub fn register(rpcbind: SocketAddr, port: u16) -> Result<Registration, RpcbindError> {
    let mut registration = Registration {
        rpcbind,
        registered: Vec::new(),
    };
    registration.renew(port)?;
    Ok(registration)
}

impl Registration {
    /// Registers all of them, also those that are registered as far as it is known here: the
    /// rpcbind there may be another one by now, and takes what it has for a success.
    fn renew(&mut self, port: u16) -> Result<(), RpcbindError> {
        let rpcbind = self.rpcbind;
        let socket = connect(rpcbind)?;
        for of in PROGRAMS {
            let (program, version) = of;
            let question = [program, version, IPPROTO_TCP, port.into()];
            if ask(&socket, rpcbind, PMAP_SET, question)? == 0 {
                // What is registered now is not for this one to take back.
                self.registered.retain(|registered| *registered != of);
                let of_other = ask(&socket, rpcbind, PMAP_GETPORT, question)?;
                return Err(RpcbindError::Taken {
                    program,
                    version,
                    port: of_other,
                    wanted: port,
                });
            }
            if !self.registered.contains(&of) {
                self.registered.push(of);
            }
        }
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let unregistered = connect(self.rpcbind).and_then(|socket| {
            self.registered.iter().try_for_each(|&(program, version)| {
                let question = [program, version, 0, 0];
                ask(&socket, self.rpcbind, PMAP_UNSET, question).map(drop)
            })
        });
        match unregistered {
            // One that was stopped meanwhile knows nothing any more.
            Ok(()) | Err(RpcbindError::NotRunning(_)) => {}
            Err(error) => tracing::warn!("rpcbind still tells clients of this server: {error}"),
        }
    }
}

/// Keeps the programs registered for as long as it lives, with whichever rpcbind there is, and says
/// in the log what becomes of that when it changes.
#[derive(Debug)]
pub struct Registrar {
    /// Nothing is sent: the thread ends when it is gone.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Registrar {
    /// Registers [`PROGRAMS`] as [`register`] does, and again after each `period`.
    ///
    /// # Errors
    /// There is no thread for it. What is wrong with rpcbind is none, and told in the log.
    pub fn start(rpcbind: SocketAddr, port: u16, period: Duration) -> io::Result<Self> {
        let mut registration = Registration {
            rpcbind,
            registered: Vec::new(),
        };
        let mut told = None;
        // A client may ask as soon as the server listens.
        tell(&registration.renew(port), port, &mut told);
        let (alive, ended) = channel();
        let thread = thread::Builder::new()
            .name("nfs-rpcbind".to_owned())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(period) {
                    tell(&registration.renew(port), port, &mut told);
                }
            })?;
        Ok(Self {
            alive: Some(alive),
            thread: Some(thread),
        })
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            // It takes the registration back. A panic of it is in the log.
            let _ = thread.join();
        }
    }
}

/// Says in the log how it has gone, unless that was said last.
fn tell(renewed: &Result<(), RpcbindError>, port: u16, told: &mut Option<String>) {
    let words = match renewed {
        Ok(()) => {
            format!("registered with rpcbind, at port {port}: `showmount -e` finds this server")
        }
        Err(error) => format!(
            "not registered with rpcbind, so that `showmount -e` does not find this server: {error}. Mounts of version 4 need \
             none; those of version 3 do without it: -o vers=3,proto=tcp,port={port},mountport={port},nolock"
        ),
    };
    if told.as_ref() == Some(&words) {
        return;
    }
    match renewed {
        // NFS version 4 needs none.
        Ok(()) | Err(RpcbindError::NotRunning(_)) => tracing::info!("{words}"),
        Err(_) => tracing::warn!("{words}"),
    }
    *told = Some(words);
}

/// A socket of a privileged port.
fn connect(rpcbind: SocketAddr) -> Result<UdpSocket, RpcbindError> {
    let failed = |doing| move |error| RpcbindError::Machine { doing, error };
    let local = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let mut last = Error::from(ErrorKind::AddrInUse);
    let mut bound = None;
    for port in PRIVILEGED_PORTS.rev() {
        match UdpSocket::bind(local(port)) {
            Ok(socket) => {
                bound = Some(socket);
                break;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => last = error,
            Err(error) => {
                last = error;
                break;
            }
        }
    }
    let doing = "taking a privileged port of 127.0.0.1, from which rpcbind takes registrations";
    let socket = bound.ok_or_else(|| {
        if last.kind() == ErrorKind::PermissionDenied {
            RpcbindError::NotPrivileged(last)
        } else {
            failed(doing)(last)
        }
    })?;
    socket
        .connect(rpcbind)
        .map_err(failed("connecting to rpcbind"))?;
    socket
        .set_read_timeout(Some(ANSWER_WAIT))
        .map_err(failed("setting a timeout"))?;
    Ok(socket)
}

/// The number or the truth value that rpcbind answers.
fn ask(
    socket: &UdpSocket,
    address: SocketAddr,
    procedure: u32,
    arguments: [u32; 4],
) -> Result<u32, RpcbindError> {
    let failed = |doing, error: Error| {
        // What ICMP has told of an earlier datagram.
        if error.kind() == ErrorKind::ConnectionRefused {
            RpcbindError::NotRunning(address)
        } else {
            RpcbindError::Machine { doing, error }
        }
    };
    let xid = getrandom::u32().unwrap_or(procedure);
    let mut buffer = [0; MESSAGE_BYTES];
    let mut writer = Writer::new(&mut buffer);
    question(&mut writer, xid, procedure, arguments)
        .map_err(|full| failed("asking rpcbind", Error::other(full)))?;
    for _ in 0..ATTEMPTS {
        let sent = socket.send(writer.written());
        sent.map_err(|error| failed("asking rpcbind", error))?;
        for _ in 0..STRAY_MAX {
            let mut answer = [0; MESSAGE_BYTES];
            let received = match socket.recv(&mut answer) {
                Ok(bytes) => answer.get(..bytes).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    break;
                }
                Err(error) => return Err(failed("waiting for rpcbind", error)),
            };
            if let Some(answer) = read_answer(received, xid) {
                return answer.map_err(|answer| RpcbindError::Refused { address, answer });
            }
        }
    }
    Err(RpcbindError::Silent { address })
}

fn question(
    to: &mut Writer<'_>,
    xid: u32,
    procedure: u32,
    arguments: [u32; 4],
) -> Result<(), WriteError> {
    let header = Call {
        xid,
        program: PMAP_PROGRAM,
        version: PMAP_VERSION,
        procedure,
        credentials: Credentials::None,
    };
    header.write(to)?;
    arguments.into_iter().try_for_each(|word| to.u32(word))
}

/// The answer to the question with this XID; `None` for what is another one's.
fn read_answer(bytes: &[u8], xid: u32) -> Option<Result<u32, String>> {
    let mut reader = Reader::new(bytes);
    let reply = Reply::read(&mut reader).ok()?;
    if reply.xid != xid {
        return None;
    }
    Some(match reply.outcome {
        Ok(Accepted::Success) => reader
            .u32("result")
            .map_err(|unreadable| unreadable.to_string()),
        Ok(other) => Err(format!("{other:?}")),
        Err(denied) => Err(denied.to_string()),
    })
}
