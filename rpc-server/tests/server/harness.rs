//! A server on a thread of its own, and a client over TCP.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use capstan_nfs_client::client::Transport as _;
use capstan_nfs_client::tcp;
use capstan_rpc_server::{
    Handle, Listen, Program, ProviderPreference, Server, Settings, SpinBudget, Transport,
};
use capstan_rpcrdma::xdr::Writer;

use crate::program::{PATIENCE, Tester};

/// The name of the threads of servers.
pub(crate) const SERVER_THREAD: &str = "server";

/// A server that runs.
pub(crate) struct Running {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<()>>,
    _place: Place,
}

/// Tests that measure this process run alone, where tests are threads of one.
static PLACES: RwLock<()> = RwLock::new(());

/// A place among the servers of this process.
#[expect(dead_code, reason = "they are held until the server has ended")]
enum Place {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// Settings with listeners on the loopback interface.
pub(crate) fn settings(transports: &[Transport]) -> Settings {
    let listen = |&transport| Listen {
        addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        transport,
        provider: ProviderPreference::Iwarp,
    };
    Settings {
        listeners: transports.iter().map(listen).collect(),
        workers: 4,
        spin: SpinBudget { spin_us: 0 },
        ..Settings::default()
    }
}

impl Running {
    pub(crate) fn start(settings: Settings, program: Arc<dyn Program>) -> Self {
        let place = PLACES.read().unwrap_or_else(PoisonError::into_inner);
        Self::start_at(Place::Shared(place), settings, program)
    }

    /// The only server of this process.
    pub(crate) fn start_alone(settings: Settings, program: Arc<dyn Program>) -> Self {
        let place = PLACES.write().unwrap_or_else(PoisonError::into_inner);
        Self::start_at(Place::Alone(place), settings, program)
    }

    fn start_at(place: Place, settings: Settings, program: Arc<dyn Program>) -> Self {
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().name(SERVER_THREAD.to_owned());
        let thread = thread.spawn(move || {
            let server = Server::bind(&settings, program).unwrap();
            tell.send((server.addresses().to_vec(), server.handle()))
                .unwrap();
            server.run().unwrap();
        });
        let thread = thread.unwrap();
        let (addresses, handle) = told.recv_timeout(PATIENCE).expect("it is bound");
        Self {
            addresses,
            handle,
            thread: Some(thread),
            _place: place,
        }
    }

    /// A server over TCP.
    pub(crate) fn tcp(program: &Arc<Tester>) -> Self {
        Self::start(
            settings(&[Transport::Tcp]),
            Arc::clone(program) as Arc<dyn Program>,
        )
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(self.address())
    }

    /// A client of another address: 127.0.0.`last`.
    pub(crate) fn connect_from(&self, last: u8) -> Client {
        let SocketAddr::V4(address) = self.address() else {
            panic!("it listens at {}", self.address());
        };
        let stream = tcp::connect_from(Ipv4Addr::new(127, 0, 0, last), address);
        Client { stream }
    }

    /// Waits for the end of a server that was stopped.
    pub(crate) fn join(mut self) {
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("it ends in order");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().expect("it ends in order");
        }
    }
}

/// A client over TCP.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

/// The message of a call.
pub(crate) fn message(xid: u32, kind: u32, arguments: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut buffer = vec![0; 2 << 20];
    let mut writer = Writer::new(&mut buffer);
    writer.u32(xid).unwrap();
    writer.u32(kind).unwrap();
    arguments(&mut writer);
    writer.written().to_vec()
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let stream = tcp::connect(address);
        Self { stream }
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.stream.send(&[message.to_vec()]);
    }

    /// The next reply: its XID, and what follows.
    pub(crate) fn reply(&mut self) -> (u32, Vec<u8>) {
        let mut reply = self.stream.receive();
        let xid = u32::from_be_bytes(reply[..4].try_into().unwrap());
        assert_eq!(reply[4..8], [0, 0, 0, 1]);
        (xid, reply.split_off(8))
    }

    /// Waits for the end of the connection. Returns how many bytes came before it.
    pub(crate) fn until_ended(&mut self) -> usize {
        let mut buffer = vec![0; 1 << 16];
        let mut came = 0;
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return came,
                Ok(bytes) => came += bytes,
                Err(error) => {
                    let kind = error.kind();
                    assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "{error}");
                    return came;
                }
            }
        }
    }
}
