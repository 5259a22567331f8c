//! The thread of a [`Controller`](crate::Controller): mailbox, front ends, engine.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;

use capstan_memory::Buffer;
use capstan_rdma::PEER_CAUSED;
use capstan_reactor::{Armed, Clock, Flow, Mailbox, SpinBudget, Turn};

use crate::allocation::{Allocated, Asked};
use crate::attempts::Attempts;
use crate::controller::{IoData, Message, RoomWaiters, Snapshot};
use crate::driver::{AssociationEngine, Completion, Io, Refused, Source, SubmitError};
use crate::error::{CommandError, ConnectError, IoError, Losses};
use crate::front_end::{FrontEnd, QueueHandle};
use crate::host::{AssociationStatus, CommandReply, Event};
use crate::oneshot::Promise;

/// Messages taken in one turn.
const MESSAGES_PER_TURN: usize = 64;
/// The source number of I/O from other threads; front ends have the numbers above.
const OTHERS: Source = Source(0);

type IoDone = Promise<Result<Vec<u8>, IoError>>;
type AdminDone = Promise<Result<CommandReply, CommandError>>;

/// What an admin command is for.
enum AdminOwner {
    Caller(AdminDone),
    /// A front end, which asks what is allocated.
    FrontEnd {
        source: Source,
        token: u64,
        asked: Asked,
    },
}

/// An I/O of another thread.
struct Outside {
    io: Io,
    data: IoData,
    done: IoDone,
}

struct Attached {
    source: Source,
    front_end: Box<dyn FrontEnd>,
    in_progress: usize,
    /// What it asks, and has not been sent yet.
    lookups: Vec<(u64, Asked)>,
}

struct Driver {
    engine: AssociationEngine,
    mailbox: Mailbox<Message>,
    room_waiters: Arc<RoomWaiters>,
    front_ends: Vec<Attached>,
    next_source: u32,
    /// I/O that waits for memory or a place; nothing is taken from the mailbox meanwhile.
    waiting: VecDeque<Outside>,
    /// I/O of other threads in progress, by token.
    outside: HashMap<u64, (IoData, IoDone)>,
    admin: HashMap<u64, AdminOwner>,
    /// What was said of namespaces whose I/O is refused.
    refused: Vec<(u32, String)>,
    /// What was said of namespaces that have become smaller.
    shrunk: Vec<(u32, String)>,
    next_token: u64,
    attempts: Attempts,
    live: Option<Promise<Result<(), ConnectError>>>,
    over: bool,
    close_asked: bool,
    /// A caller waits for the end, and will get what was lost.
    is_awaited: bool,
}

/// Runs until the association has ended and nothing is left to tell but what it has lost.
pub(crate) fn run(
    start: impl FnOnce() -> Result<AssociationEngine, ConnectError>,
    mailbox: Mailbox<Message>,
    live: Promise<Result<(), ConnectError>>,
    room_waiters: Arc<RoomWaiters>,
) -> Losses {
    let engine = match start() {
        Ok(engine) => engine,
        Err(error) => {
            live.fulfil(Err(error));
            return Losses::default();
        }
    };
    let capacity = engine.capacity();
    let mut driver = Driver {
        engine,
        mailbox,
        room_waiters,
        front_ends: Vec::new(),
        next_source: OTHERS.0 + 1,
        waiting: VecDeque::new(),
        outside: HashMap::with_capacity(capacity),
        admin: HashMap::new(),
        refused: Vec::new(),
        shrunk: Vec::new(),
        next_token: 0,
        attempts: Attempts::default(),
        live: Some(live),
        over: false,
        close_asked: false,
        is_awaited: false,
    };
    if let Err(error) = capstan_reactor::run(&mut driver, SpinBudget::default()) {
        tracing::error!("{error}");
    }
    let losses = driver.engine.losses();
    if !driver.is_awaited {
        for text in &losses.0 {
            tracing::error!("{text}");
        }
    }
    losses
}

impl Turn for Driver {
    fn turn(&mut self, now_us: u64) -> Flow {
        let mut busy = self.take_messages(now_us);
        busy |= self.poll_front_ends(now_us);
        self.send_lookups(now_us);
        busy |= self.engine.turn(now_us);
        while let Some(completion) = self.engine.poll_completion() {
            busy = true;
            self.completed(completion, now_us);
        }
        while let Some(event) = self.engine.poll_event() {
            busy = true;
            self.event(event);
        }
        // Until the last handle is gone, each call returns why the association is over.
        if self.over && self.close_asked && self.engine.in_progress() == 0 {
            return Flow::Stop;
        }
        if busy { Flow::Busy(1) } else { Flow::Idle }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        self.mailbox.arm();
        fds.push(self.mailbox.fd());
        // Taken after arming, so that none sent in between sleeps with the thread.
        if self.take_messages(Clock.now_us()) {
            return Armed::Ready;
        }
        let quiet = self.engine.arm(fds) == Armed::Quiet
            && self
                .front_ends
                .iter_mut()
                .all(|a| a.front_end.arm(fds) == Armed::Quiet);
        Armed::from_ready(!quiet)
    }

    fn disarm(&mut self, readable: &[bool]) {
        self.mailbox.disarm(readable.first() != Some(&false));
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let front_ends = self.front_ends.iter();
        front_ends
            .filter_map(|a| a.front_end.next_deadline_us())
            .chain(self.engine.next_deadline_us())
            .min()
    }
}

impl Driver {
    fn take_messages(&mut self, now_us: u64) -> bool {
        let mut busy = false;
        while let Some(outside) = self.waiting.pop_front() {
            if let Some(outside) = self.start(outside) {
                self.waiting.push_front(outside);
                return busy;
            }
            busy = true;
        }
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.mailbox.poll() else {
                break;
            };
            busy = true;
            match message {
                Message::Io { io, data, done } => {
                    if let Some(outside) = self.start(Outside { io, data, done }) {
                        self.waiting.push_back(outside);
                        break;
                    }
                }
                Message::Admin { sqe, data, done } => {
                    let token = self.token();
                    match self.engine.submit_admin(token, *sqe, data, now_us) {
                        Ok(()) => {
                            self.admin.insert(token, AdminOwner::Caller(done));
                        }
                        Err(error) => done.fulfil(Err(error)),
                    }
                }
                Message::Status(promise) => promise.fulfil(self.snapshot(now_us)),
                Message::AddFrontEnd(make, promise) => {
                    let made = make(self.engine.data_pool());
                    promise.fulfil(made.map(|front_end| self.attach(front_end)));
                }
                Message::Rescan => self.engine.rescan(now_us),
                Message::Reset => self.engine.reset(now_us),
                Message::Shutdown { is_awaited } => {
                    self.close_asked = true;
                    self.is_awaited |= is_awaited;
                    self.engine.shutdown();
                }
            }
        }
        if busy {
            self.room_waiters.wake();
        }
        busy
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn snapshot(&self, now_us: u64) -> Snapshot {
        let host = self.engine.host();
        Snapshot {
            status: self.engine.status(now_us),
            taken: self.engine.taken().cloned(),
            wire: self.engine.went_by().cloned(),
            held: self.engine.held(now_us),
            attention: self.of_front_ends(|engine, nsid| engine.attention(nsid, now_us)),
            refused: self.of_front_ends(AssociationEngine::refusal),
            scanning: host.is_scanning(),
            controller: host.controller().clone(),
            namespaces: host.namespaces().to_vec(),
            unidentified: host.unidentified().to_vec(),
            counters: host.counters(),
            in_progress: self.engine.in_progress(),
        }
    }

    /// What there is to say of the namespaces that front ends serve.
    fn of_front_ends(
        &self,
        ask: impl Fn(&AssociationEngine, u32) -> Option<String>,
    ) -> Vec<(u32, String)> {
        let mut nsids: Vec<u32> = self.front_ends.iter().map(|a| a.front_end.nsid()).collect();
        nsids.sort_unstable();
        nsids.dedup();
        let told = nsids.into_iter();
        told.filter_map(|nsid| Some((nsid, ask(&self.engine, nsid)?)))
            .collect()
    }

    fn namespaces_changed(&mut self) {
        tracing::info!(target: PEER_CAUSED, "namespaces changed");
        let refused = self.of_front_ends(AssociationEngine::refusal);
        for (nsid, text) in refused.iter().filter(|now| !self.refused.contains(now)) {
            tracing::error!(target: PEER_CAUSED, nsid, "all I/O is {text}");
        }
        self.refused = refused;
        let shrunk = self.of_front_ends(AssociationEngine::shrunk);
        for (_, text) in shrunk.iter().filter(|now| !self.shrunk.contains(now)) {
            tracing::error!(target: PEER_CAUSED, "{text}");
        }
        self.shrunk = shrunk;
        for attached in &mut self.front_ends {
            attached.tell(&self.engine);
        }
    }

    /// What is tried, and why it fails: the target may have come back as another one.
    fn attempt_failed(&mut self, attempt: u32, cause: &ConnectError) {
        let destination = self.engine.last_tried();
        let text = cause.to_string();
        if !self.attempts.is_news(destination, &text, Clock.now_us()) {
            return;
        }
        let Some(wire) = self.engine.went_by() else {
            return;
        };
        tracing::warn!(
            "attempt {attempt} to connect again to {destination} over {wire} has failed: {text}"
        );
    }

    /// Starts an I/O of another thread; gives it back when there is no room for it now.
    fn start(&mut self, outside: Outside) -> Option<Outside> {
        let Outside { io, data, done } = outside;
        let len_bytes = match &data {
            IoData::None => 0,
            IoData::Out(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            IoData::In(_, len_bytes) => *len_bytes,
        };
        let buffer = if len_bytes == 0 {
            None
        } else {
            let Some(mut buffer) = self.engine.data_pool().take(len_bytes) else {
                return self.no_room(Outside { io, data, done }, len_bytes);
            };
            if let IoData::Out(bytes) = &data {
                buffer.copy_from(0, bytes);
            }
            Some(buffer)
        };
        let token = self.token();
        match self.engine.submit(OTHERS, token, io, buffer) {
            Ok(()) => {
                self.outside.insert(token, (data, done));
                None
            }
            Err(Refused {
                reason: SubmitError::Busy,
                ..
            }) => Some(Outside { io, data, done }),
            Err(Refused {
                reason: SubmitError::Invalid(error),
                ..
            }) => {
                done.fulfil(Err(error));
                None
            }
        }
    }

    /// Waits for memory as long as some is in use and will come back.
    fn no_room(&mut self, outside: Outside, len_bytes: u32) -> Option<Outside> {
        let pool = self.engine.data_pool();
        if pool.free_bytes() < pool.slab().len_bytes() {
            return Some(outside);
        }
        outside.done.fulfil(Err(IoError::Invalid {
            what: "data length",
            value: len_bytes.into(),
            expected: "no more than the association's data memory",
        }));
        None
    }

    fn attach(&mut self, front_end: Box<dyn FrontEnd>) {
        let source = Source(self.next_source);
        self.next_source += 1;
        let mut attached = Attached {
            source,
            front_end,
            in_progress: 0,
            lookups: Vec::new(),
        };
        // It may have changed since the front end was made.
        attached.tell(&self.engine);
        self.front_ends.push(attached);
    }

    fn poll_front_ends(&mut self, now_us: u64) -> bool {
        let mut busy = false;
        for attached in &mut self.front_ends {
            busy |= attached.with(&mut self.engine, now_us, |front_end, queue| {
                front_end.poll(queue, now_us)
            });
        }
        self.front_ends
            .retain(|a| a.in_progress > 0 || !a.front_end.is_finished());
        busy
    }

    /// Sends what front ends ask of the controller. What cannot be sent is answered with nothing.
    fn send_lookups(&mut self, now_us: u64) {
        let mut all = Vec::new();
        for attached in &mut self.front_ends {
            let source = attached.source;
            let lookups = attached.lookups.drain(..);
            all.extend(lookups.map(|(token, asked)| (source, token, asked)));
        }
        for (source, token, asked) in all {
            let (sqe, data) = asked.command();
            let admin = self.token();
            if self.engine.submit_admin(admin, sqe, data, now_us).is_ok() {
                let owner = AdminOwner::FrontEnd {
                    source,
                    token,
                    asked,
                };
                self.admin.insert(admin, owner);
            } else {
                self.looked_up(source, token, None);
            }
        }
    }

    fn looked_up(&mut self, source: Source, token: u64, allocated: Option<Allocated>) {
        if let Some(attached) = self.front_ends.iter_mut().find(|a| a.source == source) {
            attached.in_progress -= 1;
            attached.front_end.looked_up(token, allocated);
        }
    }

    fn completed(&mut self, completion: Completion, now_us: u64) {
        if completion.source != OTHERS {
            let source = completion.source;
            if let Some(attached) = self.front_ends.iter_mut().find(|a| a.source == source) {
                attached.in_progress -= 1;
                attached.with(&mut self.engine, now_us, |front_end, queue| {
                    front_end.completed(completion, queue);
                });
            }
            return;
        }
        let Some((data, done)) = self.outside.remove(&completion.token) else {
            return;
        };
        done.fulfil(
            completion
                .result
                .map(|()| read_data(data, completion.buffer)),
        );
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Live { .. } => {
                self.attempts.succeeded();
                if let Some(live) = self.live.take() {
                    live.fulfil(Ok(()));
                }
            }
            Event::Lost { cause } if *cause == ConnectError::Reset => {
                tracing::info!("{cause}: it was disconnected, and is connected again");
            }
            Event::Lost { cause } => {
                let status = self.engine.status(Clock.now_us());
                tracing::warn!(%status, "the controller is lost: {cause}");
            }
            Event::AttemptFailed { attempt, cause } => self.attempt_failed(attempt, &cause),
            Event::Failed { cause } => {
                self.over = true;
                match self.live.take() {
                    Some(live) => live.fulfil(Err((*cause).clone())),
                    None => tracing::error!("the association has failed: {cause}"),
                }
            }
            // They are in the log already.
            Event::WritesReleased | Event::WritesUnknown { .. } | Event::NotSaved => {}
            Event::Closed => self.over = true,
            Event::NamespacesChanged => self.namespaces_changed(),
            Event::Unidentified(unidentified) => {
                let subnqn = self.engine.subnqn().as_str();
                tracing::warn!(
                    target: PEER_CAUSED,
                    subnqn,
                    "{unidentified}; it is left out, see the target's log"
                );
            }
            Event::DiscoveryLogChanged => {
                tracing::info!(target: PEER_CAUSED, "the discovery log changed");
            }
            Event::CommandDone { token, result } => match self.admin.remove(&token) {
                Some(AdminOwner::Caller(done)) => done.fulfil(result),
                Some(AdminOwner::FrontEnd {
                    source,
                    token,
                    asked,
                }) => {
                    let reply = result.ok().filter(|reply| reply.cqe.status().is_success());
                    let allocated = reply.and_then(|reply| asked.answer(&reply.data));
                    self.looked_up(source, token, allocated);
                }
                None => {}
            },
        }
        let over = matches!(
            self.engine.status(0),
            AssociationStatus::Closed | AssociationStatus::Failed(_)
        );
        self.over |= over;
    }
}

impl Attached {
    /// Shows the front end its namespace as it is now.
    fn tell(&mut self, engine: &AssociationEngine) {
        let nsid = self.front_end.nsid();
        let mut namespaces = engine.host().namespaces().iter();
        if let Some(namespace) = namespaces.find(|n| n.nsid == nsid) {
            self.front_end.namespace_changed(namespace);
        }
    }

    /// Calls the front end, counting what it submits.
    fn with<T>(
        &mut self,
        engine: &mut AssociationEngine,
        now_us: u64,
        call: impl FnOnce(&mut dyn FrontEnd, &mut QueueHandle<'_>) -> T,
    ) -> T {
        let lookups = self.lookups.len();
        let mut queue = QueueHandle {
            engine,
            source: self.source,
            now_us,
            submitted: 0,
            lookups: &mut self.lookups,
        };
        let value = call(&mut *self.front_end, &mut queue);
        let submitted = queue.submitted;
        self.in_progress += submitted + self.lookups.len() - lookups;
        value
    }
}

/// The bytes of a read, in the vector its caller gave.
fn read_data(data: IoData, buffer: Option<Buffer>) -> Vec<u8> {
    match (data, buffer) {
        (IoData::In(mut bytes, len_bytes), Some(buffer)) => {
            let start = bytes.len();
            bytes.resize(start + len_bytes as usize, 0);
            if let Some(out) = bytes.get_mut(start..) {
                buffer.copy_to(0, out);
            }
            bytes
        }
        (IoData::In(bytes, _), None) => bytes,
        (IoData::None | IoData::Out(_), _) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
