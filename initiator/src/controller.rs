//! An association on a thread of its own, for callers on other threads.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use capstan_memory::Pool;
use capstan_nvme_proto::command::AdminCommand;
use capstan_nvme_proto::log::DiscoveryLogEntry;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::contract::ConnectionManager;
use capstan_reactor::{MailboxError, Sender};
use capstan_transport::host::HostTransport;

use crate::direct;
use crate::driver::{AssociationEngine, Io};
use crate::driver_thread;
use crate::error::{CommandError, ConnectError, IoError, Losses};
use crate::front_end::FrontEnd;
use crate::host::{
    AssociationStatus, CommandData, CommandReply, ControllerInfo, Counters, Discovery, Held,
    NamespaceInfo, Unidentified,
};
use crate::oneshot::{Answer, Promise, block_on, oneshot};
use crate::options::Options;
use crate::race;
use crate::transports::TakenTransport;
use crate::volume::Volume;
use crate::wire::Wire;

/// Messages that wait for the driver at once.
const MAILBOX_MESSAGES: usize = 1024;
/// Pause before a control message is offered again to a full mailbox.
const MAILBOX_PAUSE: Duration = Duration::from_millis(1);

/// Makes a front end on the driver's thread, from the driver's registered memory.
pub(crate) type MakeFrontEnd = Box<dyn FnOnce(&Pool) -> std::io::Result<Box<dyn FrontEnd>> + Send>;

/// What the driver's thread is asked.
pub(crate) enum Message {
    Io {
        io: Io,
        data: IoData,
        done: Promise<Result<Vec<u8>, IoError>>,
    },
    Admin {
        sqe: Box<Sqe>,
        data: CommandData,
        done: Promise<Result<CommandReply, CommandError>>,
    },
    Status(Promise<Snapshot>),
    AddFrontEnd(MakeFrontEnd, Promise<std::io::Result<()>>),
    Rescan,
    Reset,
    Shutdown {
        /// The sender takes what the thread returns.
        is_awaited: bool,
    },
}

/// Data of an I/O from another thread.
pub(crate) enum IoData {
    None,
    /// To be written.
    Out(Bytes),
    /// To be read: this many bytes, appended to the vector, whose capacity is used.
    In(Vec<u8>, u32),
}

/// An association as it is.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where it is.
    pub status: AssociationStatus,
    /// The transport, where the options had [`Transport::Auto`](crate::Transport::Auto).
    pub taken: Option<TakenTransport>,
    /// What carries the queues, with the digests in use; while the controller is lost, what carried
    /// them before. `None` until the association is live.
    pub wire: Option<Wire>,
    /// Writes that wait until an old controller is known to be gone.
    pub held: Option<Held>,
    /// What a person has to know of each namespace that a front end serves, with what to do.
    pub attention: Vec<(u32, String)>,
    /// Why all I/O to such a namespace is refused.
    pub refused: Vec<(u32, String)>,
    /// Namespaces are being looked for.
    pub scanning: bool,
    /// The controller.
    pub controller: ControllerInfo,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// Namespaces that are left out there, as the controller did not tell what they are.
    pub unidentified: Vec<Unidentified>,
    /// What the controller did wrong.
    pub counters: Counters,
    /// I/Os that front ends and queues wait for.
    pub in_progress: usize,
}

pub(crate) struct Shared {
    sender: Sender<Message>,
    subnqn: Nqn,
    thread: Mutex<Option<JoinHandle<Losses>>>,
    /// Tasks that found the mailbox full.
    room_waiters: Arc<RoomWaiters>,
}

/// Tasks that wait for room in the mailbox.
#[derive(Default)]
pub(crate) struct RoomWaiters(Mutex<Vec<Waker>>);

impl RoomWaiters {
    fn add(&self, waker: &Waker) {
        self.lock().push(waker.clone());
    }

    /// There is room again.
    pub(crate) fn wake(&self) {
        let wakers = std::mem::take(&mut *self.lock());
        for waker in wakers {
            waker.wake();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The thread ends the association in order and then ends itself; it is not waited for here.
        self.insist(Message::Shutdown { is_awaited: false });
    }
}

impl Shared {
    /// Sends a control message, waiting for room. `false` when the thread has ended.
    fn insist(&self, mut message: Message) -> bool {
        loop {
            match self.sender.send(message) {
                Ok(()) => return true,
                Err(MailboxError::Closed(_)) => return false,
                Err(MailboxError::Full(back)) => message = back,
            }
            std::thread::sleep(MAILBOX_PAUSE);
        }
    }

    /// Offers an I/O; gives it back when there is no room, and wakes `waker` when there is.
    pub(crate) fn offer(&self, message: Message, waker: &Waker) -> Result<(), Option<Message>> {
        match self.sender.send(message) {
            Ok(()) => Ok(()),
            Err(MailboxError::Closed(_)) => Err(None),
            Err(MailboxError::Full(back)) => {
                // Added first, offered again after: room made in between is not missed.
                self.room_waiters.add(waker);
                match self.sender.send(back) {
                    Ok(()) => Ok(()),
                    Err(MailboxError::Closed(_)) => Err(None),
                    Err(MailboxError::Full(back)) => Err(Some(back)),
                }
            }
        }
    }
}

/// An association with a controller; clones are handles of the same. It ends in order when the last
/// handle (of it and its volumes) is dropped.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
}

impl Controller {
    /// Connects, and waits until the association is live.
    ///
    /// # Errors
    /// Wrong options, or why the association could not be made.
    pub fn connect(options: Options) -> Result<Self, ConnectError> {
        block_on(Self::connect_async(options))
    }

    /// As [`Controller::connect`], without blocking the caller's thread (except that a host name is
    /// looked up).
    ///
    /// # Errors
    /// As [`Controller::connect`].
    pub async fn connect_async(options: Options) -> Result<Self, ConnectError> {
        options.check()?;
        let addresses = options.socket_addrs()?;
        let subnqn = options.subnqn.clone();
        Self::start(subnqn, move || race::start(&options, &addresses)).await
    }

    /// Connects through a connection manager of the caller's choice, made on the driver's thread.
    ///
    /// # Errors
    /// As [`Controller::connect`].
    pub async fn connect_through(
        options: Options,
        open: impl FnOnce() -> Result<Box<dyn ConnectionManager>, ConnectError> + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let address = direct::first_address(&options)?;
        let subnqn = options.subnqn.clone();
        let start = move || direct::engine(&options, address, HostTransport::Rdma(open()?));
        Self::start(subnqn, start).await
    }

    async fn start(
        subnqn: Nqn,
        start: impl FnOnce() -> Result<AssociationEngine, ConnectError> + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let resources = |what, message: String| ConnectError::Resources { what, message };
        let (sender, mailbox) = capstan_reactor::mailbox(MAILBOX_MESSAGES)
            .map_err(|error| resources("eventfd", error.to_string()))?;
        let room_waiters = Arc::new(RoomWaiters::default());
        let (promise, live) = oneshot();
        let room = Arc::clone(&room_waiters);
        let thread = std::thread::Builder::new()
            .name("capstan-driver".to_owned())
            .spawn(move || driver_thread::run(start, mailbox, promise, room))
            .map_err(|error| resources("thread", error.to_string()))?;
        let shared = Arc::new(Shared {
            sender,
            subnqn,
            thread: Mutex::new(Some(thread)),
            room_waiters,
        });
        let controller = Self { shared };
        live.await.unwrap_or(Err(ConnectError::Closed))?;
        Ok(controller)
    }

    /// The association as it is now; closed once its thread has ended.
    pub async fn snapshot(&self) -> Snapshot {
        let answer = self.ask(Message::Status).await;
        answer.unwrap_or_else(|| Snapshot {
            status: AssociationStatus::Closed,
            taken: None,
            wire: None,
            held: None,
            attention: Vec::new(),
            refused: Vec::new(),
            scanning: false,
            controller: ControllerInfo::default(),
            namespaces: Vec::new(),
            unidentified: Vec::new(),
            counters: Counters::default(),
            in_progress: 0,
        })
    }

    /// [`Controller::snapshot`], blocking.
    #[must_use]
    pub fn snapshot_blocking(&self) -> Snapshot {
        block_on(self.snapshot())
    }

    /// The namespaces as they are now.
    pub async fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.snapshot().await.namespaces
    }

    /// A namespace to read and write.
    ///
    /// # Errors
    /// There is none with that NSID, or this host cannot use it.
    pub async fn volume(&self, nsid: u32) -> Result<Volume, IoError> {
        let snapshot = self.snapshot().await;
        let Some(namespace) = snapshot.namespaces.iter().find(|n| n.nsid == nsid) else {
            return Err(match snapshot.status {
                AssociationStatus::Closed => IoError::Closed,
                _ => IoError::no_namespace(
                    &self.shared.subnqn,
                    nsid,
                    &snapshot.namespaces,
                    &snapshot.unidentified,
                ),
            });
        };
        if let Some(unusable) = &namespace.unusable {
            return Err(unusable.to_error(nsid));
        }
        Ok(Volume::new(
            Arc::clone(&self.shared),
            namespace.clone(),
            snapshot.controller.volatile_write_cache,
        ))
    }

    /// [`Controller::volume`], blocking.
    ///
    /// # Errors
    /// As [`Controller::volume`].
    pub fn volume_blocking(&self, nsid: u32) -> Result<Volume, IoError> {
        block_on(self.volume(nsid))
    }

    /// Sends an admin command: `sqe` complete but for CID and data pointer.
    ///
    /// # Errors
    /// [`CommandError`]; a status other than success is one.
    pub async fn admin(&self, sqe: Sqe, data: CommandData) -> Result<CommandReply, CommandError> {
        let what = sqe.admin_opcode().name().unwrap_or("admin command");
        let sqe = Box::new(sqe);
        let reply = self
            .ask(|done| Message::Admin { sqe, data, done })
            .await
            .unwrap_or_else(|| Err(CommandError::Lost(Arc::new(ConnectError::Closed))))?;
        let status = reply.cqe.status();
        if status.is_success() {
            Ok(reply)
        } else {
            Err(CommandError::Status { what, status })
        }
    }

    /// [`Controller::admin`], blocking.
    ///
    /// # Errors
    /// As [`Controller::admin`].
    pub fn admin_blocking(
        &self,
        sqe: Sqe,
        data: CommandData,
    ) -> Result<CommandReply, CommandError> {
        block_on(self.admin(sqe, data))
    }

    /// Reads the discovery log page, consistently: its generation counter and its entries.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn discover(&self) -> Result<(u64, Vec<DiscoveryLogEntry>), CommandError> {
        let mut discovery = Discovery::new();
        while let Some(command) = discovery.next_command() {
            let len_bytes = u32::try_from(command.length_bytes).unwrap_or(u32::MAX);
            let sqe = AdminCommand::GetLogPage(command).encode(0, Sgl::EMPTY);
            let data = CommandData::FromController(len_bytes);
            let reply = self.admin(sqe, data).await?;
            let answered = discovery.answer(&reply.data);
            answered.map_err(|error| CommandError::Data {
                what: "Get Log Page (Discovery)",
                problem: error.to_string(),
            })?;
        }
        Ok((discovery.genctr(), discovery.into_entries()))
    }

    /// Runs a front end on the driver's thread. `make` is called there with the driver's registered
    /// memory. The front end lives until it says it is finished, or the association ends.
    ///
    /// # Errors
    /// What `make` says, or the association has ended.
    pub fn add_front_end(
        &self,
        make: impl FnOnce(&Pool) -> std::io::Result<Box<dyn FrontEnd>> + Send + 'static,
    ) -> std::io::Result<()> {
        let make: MakeFrontEnd = Box::new(make);
        let answer = block_on(self.ask(|done| Message::AddFrontEnd(make, done)));
        answer.unwrap_or_else(|| Err(std::io::Error::other("the association was closed")))
    }

    /// Looks for namespaces again.
    pub fn rescan(&self) {
        self.shared.insist(Message::Rescan);
    }

    /// Resets the controller: lets what is outstanding finish, shuts it down, and connects again at
    /// once. I/O submitted meanwhile waits. What [`Controller::snapshot`] tells afterwards is of
    /// after the reset.
    pub fn reset(&self) {
        self.shared.insist(Message::Reset);
    }

    /// Ends the association in order and waits for that: I/O in progress is finished first, then
    /// the controller is told. At most about five seconds after the last I/O. What was written and
    /// may not be on the medium is returned, to the first caller.
    #[expect(
        clippy::must_use_candidate,
        reason = "a caller that has written nothing has lost nothing"
    )]
    pub fn close(&self) -> Losses {
        self.shared.insist(Message::Shutdown { is_awaited: true });
        let thread = {
            let mut guard = self.shared.thread.lock();
            guard
                .as_mut()
                .map_or_else(|poisoned| poisoned.get_mut().take(), |guard| guard.take())
        };
        // A panic of the thread has been told on stderr already.
        let ended = thread.map(|thread| thread.join().unwrap_or_default());
        ended.unwrap_or_default()
    }

    fn ask<T>(&self, message: impl FnOnce(Promise<T>) -> Message) -> Answer<T> {
        let (promise, answer) = oneshot();
        self.shared.insist(message(promise));
        answer
    }
}
