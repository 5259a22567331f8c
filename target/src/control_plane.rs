//! The subsystems and their controllers, behind the one lock of the program.
//!
//! Connects, admin commands and timers go through it; no I/O command does. What a call makes the
//! controllers want ([`Action`]) is sent to the reactor that owns the connection it is about.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use capstan_nvme_proto::nqn::Nqn;
use capstan_rdma::PEER_CAUSED;
use capstan_reactor::log::LastLines;
use capstan_reactor::{Clock, MailboxError, Sender};
use capstan_storage::{IoError, OpenError};
use capstan_subsystem::{
    Action, AllocationQuery, BackendId, ConnId, DisconnectReason, Event, FlushId, PortId, Target,
};

use crate::allocation::Allocations;
use crate::handover::Handover;
use crate::io_path::{LookingUp, Offered};
use crate::limits::MAILBOX_BOUND;
use crate::listening::Listening;
use crate::lost::{Lost, Noted, Said, What};
use crate::media::{Change, Media};
use crate::metrics::Metrics;
use crate::plan::Export;
use crate::reservations::{Keeper, Reservations};
use crate::unended::Unended;

/// What one reactor asks of another.
#[derive(Debug)]
pub(crate) enum Message {
    /// Take over a connection request.
    Adopt(Box<Offered>),
    /// Carry out what the controllers want of one of this reactor's connections.
    Act(Action),
    /// Go on with a command that asked what is allocated.
    LookedUp(Box<LookingUp>),
    /// Open a volume that was not there when the reactor started, and say how that went.
    OpenVolume {
        /// The volume.
        export: Arc<Export>,
        /// Where the answer goes.
        opened: mpsc::Sender<Result<(), OpenError>>,
    },
    /// Close a volume; its namespace is gone from every queue's table already.
    CloseVolume(BackendId),
    /// What a volume had lost is cleared: the next loss is news.
    LossCleared(BackendId),
    /// Listen at another address: for reactor 0.
    Listen(Box<Listening>),
    /// Listen at no address of this port any more: for reactor 0.
    StopListening(PortId),
    /// The next timer of the controllers has moved: reactor 0 looks again.
    TimerMoved,
    /// Take no more connections, let commands end, then stop.
    Drain,
    /// Take no more connections, and end those that are there when their commands have ended.
    LetGo {
        /// Those that are left then are ended, in microseconds.
        by_us: u64,
    },
    /// Take connections again.
    TakeIn,
}

/// Which bits of a [`ConnId`] name the reactor.
const REACTOR_SHIFT: u32 = 48;

/// The id of the `serial`th connection of `reactor`.
pub(crate) fn conn_id(reactor: usize, serial: u64) -> ConnId {
    ConnId((reactor as u64) << REACTOR_SHIFT | serial)
}

pub(crate) fn reactor_of(conn: ConnId) -> usize {
    usize::try_from(conn.0 >> REACTOR_SHIFT).unwrap_or(usize::MAX)
}

/// Which reactor a connection goes to: they take turns, for admin queues and for I/O queues by
/// themselves. Otherwise hosts with as many queues as there are reactors, such as one I/O queue and
/// two reactors, would all work on the same ones.
#[derive(Default)]
struct Turns {
    admin: AtomicUsize,
    io: AtomicUsize,
}

impl Turns {
    fn next(&self, qid: u16, reactors: usize) -> usize {
        let turn = if qid == 0 { &self.admin } else { &self.io };
        turn.fetch_add(1, Ordering::Relaxed) % reactors.max(1)
    }
}

/// Shared by all reactors.
pub(crate) struct ControlPlane {
    target: Mutex<Target>,
    reactors: OnceLock<Vec<Sender<Message>>>,
    turns: Turns,
    lost: Lost,
    media: Media,
    allocations: Allocations,
    unended: Unended,
    /// What keeps reservations.
    keeper: OnceLock<Keeper>,
    handover: Handover,
    metrics: Metrics,
    /// The controllers' next timer, in microseconds; `u64::MAX` for none.
    deadline_us: AtomicU64,
}

impl ControlPlane {
    pub(crate) fn new(target: Target, handover: Handover) -> Self {
        Self {
            target: Mutex::new(target),
            reactors: OnceLock::new(),
            turns: Turns::default(),
            lost: Lost::new(),
            media: Media::default(),
            allocations: Allocations::default(),
            unended: Unended::default(),
            keeper: OnceLock::new(),
            handover,
            metrics: Metrics::default(),
            deadline_us: AtomicU64::new(u64::MAX),
        }
    }

    /// Names the reactors. Called once, before the first of them runs.
    pub(crate) fn set_reactors(&self, reactors: Vec<Sender<Message>>) {
        self.metrics.set_reactors(reactors.len());
        // A second call would be a bug of `serve`; the first list stays.
        let _ = self.reactors.set(reactors);
    }

    /// Keeps reservations that persist through power loss. Called once, before a host is there.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn keep_reservations(
        self: &Arc<Self>,
        reservations: &Reservations,
    ) -> io::Result<()> {
        // As of the reactors.
        let _ = self.keeper.set(reservations.start(self)?);
        Ok(())
    }

    /// Sockets that are left to the next process.
    pub(crate) fn handover(&self) -> &Handover {
        &self.handover
    }

    /// The reactor for the next connection, which is to be the queue `qid`.
    pub(crate) fn next_reactor(&self, qid: u16) -> usize {
        self.turns
            .next(qid, self.reactors.get().map_or(1, Vec::len))
    }

    /// Sends a message to a reactor, which gets it however many wait already ([`MAILBOX_BOUND`]
    /// says how many there can be).
    pub(crate) fn send(&self, reactor: usize, message: Message) {
        let Some(sender) = self.sender(reactor) else {
            return;
        };
        match sender.send_even_if_full(message) {
            // One line each time that twice as many wait.
            Ok(waiting) if waiting.is_power_of_two() => tracing::error!(
                reactor,
                "{MAILBOX_BOUND} messages and {waiting} more wait for the reactor; it may be stuck in a blocking call: \
                 look at the kernel log for a hung device"
            ),
            Ok(_) => {}
            Err(error) => tracing::error!(reactor, "{error}"),
        }
    }

    /// Gives a connection request to a reactor, if that has room for it.
    ///
    /// # Errors
    /// The reactor is stuck or has ended; the request comes back, to be refused.
    pub(crate) fn offer(&self, reactor: usize, offered: Box<Offered>) -> Result<(), Box<Offered>> {
        let Some(sender) = self.sender(reactor) else {
            return Err(offered);
        };
        match sender.send(Message::Adopt(offered)) {
            Err(
                MailboxError::Full(Message::Adopt(offered))
                | MailboxError::Closed(Message::Adopt(offered)),
            ) => Err(offered),
            // What comes back is what was sent.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes reactor 0 look at the timers of the controllers.
    fn timer_moved(&self) {
        if let Some(sender) = self.sender(0) {
            // A reactor that has messages to take looks at the timers behind them.
            let _ = sender.send(Message::TimerMoved);
        }
    }

    fn sender(&self, reactor: usize) -> Option<&Sender<Message>> {
        self.reactors.get().and_then(|all| all.get(reactor))
    }

    /// Sends a message, made anew for each, to every reactor.
    pub(crate) fn broadcast(&self, message: impl Fn() -> Message) {
        for reactor in 0..self.reactors.get().map_or(0, Vec::len) {
            self.send(reactor, message());
        }
    }

    /// Sends a message to the reactor of a connection, unless that has ended with it.
    pub(crate) fn send_if_running(&self, conn: ConnId, message: Message) {
        let Some(sender) = self.sender(reactor_of(conn)) else {
            return;
        };
        if let Err(error) = sender.send_even_if_full(message) {
            tracing::debug!("a command was not answered: {error}");
        }
    }

    /// Tells every reactor to end. One that has ended, or never began, has nothing to drain.
    pub(crate) fn drain(&self) {
        for sender in self.reactors.get().into_iter().flatten() {
            if let Err(error) = sender.send_even_if_full(Message::Drain) {
                tracing::debug!("a reactor was not told to drain: {error}");
            }
        }
    }

    /// Runs `call` on the controllers, then hands out what they want done.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Target) -> R) -> R {
        // The state is plain data that every call leaves whole; a panic elsewhere does not spoil
        // it.
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut target);
        while let Some(action) = target.poll_action() {
            self.route(action);
        }
        let deadline_us = target.next_deadline_us().unwrap_or(u64::MAX);
        drop(target);
        let before_us = self.deadline_us.swap(deadline_us, Ordering::Relaxed);
        if deadline_us < before_us {
            self.timer_moved();
        }
        result
    }

    fn route(&self, action: Action) {
        let reactor = match action {
            Action::Log(ref event) => {
                log(event);
                return;
            }
            Action::KeepReservations { keep, kept } => {
                match self.keeper.get() {
                    Some(keeper) => keeper.keep(keep, kept),
                    None => tracing::error!("nothing keeps reservations: restart the target"),
                }
                return;
            }
            Action::Complete { conn, .. }
            | Action::Disconnect { conn, .. }
            | Action::AbortIo { conn, .. }
            | Action::DrainIo { conn, .. }
            | Action::DrainWrites { conn, .. }
            | Action::FenceIo { conn, .. }
            | Action::TellOutstanding { conn }
            | Action::CompleteIo { conn, .. }
            | Action::SetNamespaces { conn, .. } => reactor_of(conn),
            // Every reactor has every volume open, and a flush covers what all of them wrote.
            Action::Flush { .. } => 0,
        };
        self.send(reactor, Message::Act(action));
    }

    /// The controllers' next timer.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        Some(self.deadline_us.load(Ordering::Relaxed)).filter(|&us| us != u64::MAX)
    }

    /// Runs timers that are due.
    pub(crate) fn run_timers(&self, now_us: u64) {
        if self
            .next_deadline_us()
            .is_some_and(|deadline_us| deadline_us <= now_us)
        {
            self.with(|target| target.handle_timeout(now_us));
        }
    }

    /// A connection is gone, but its commands are not off the storage engine.
    pub(crate) fn disconnecting(&self, conn: ConnId, now_us: u64) {
        self.with(|target| target.handle_disconnecting(conn, now_us));
    }

    /// A connection is gone, and no command of it is on the storage engine.
    pub(crate) fn disconnected(&self, conn: ConnId, now_us: u64) {
        self.allocations.forget(conn);
        self.with(|target| target.handle_disconnected(conn, now_us));
    }

    /// Writes that had succeeded did not reach the medium of a backend.
    pub(crate) fn data_lost(&self, backend: BackendId, error: &IoError) {
        match self.media.export(backend) {
            Some(export) => self.lost.add_writes(&export, error),
            // A reload has closed it meanwhile.
            None => {
                let said = Said {
                    path: error.volume.to_string(),
                    what: error.to_string(),
                    next: "check or restore what is on it".to_owned(),
                };
                self.lost.add(backend, What::Writes, said);
            }
        }
        self.with(|target| target.handle_data_lost(backend, Clock.now_us()));
    }

    /// Tells hosts of volumes that have lost writes before they were opened.
    pub(crate) fn tell_of_lost(&self) {
        self.lost.tell_of_unreadable();
        for backend in self.lost.backends() {
            self.with(|target| target.handle_data_lost(backend, Clock.now_us()));
        }
    }

    /// Volumes whose losses the operator has cleared by the command.
    pub(crate) fn cleared_by_command(&self) -> Vec<Export> {
        let cleared = self.lost.cleared_by_command().into_iter();
        cleared
            .filter_map(|backend| self.media.export(backend))
            .collect()
    }

    /// What a volume has lost is cleared, and every reactor has opened it anew.
    pub(crate) fn loss_cleared(&self, export: &Export) {
        let backend = export.backend;
        export.store.clear_loss();
        self.lost.forget(backend);
        self.with(|target| target.handle_loss_cleared(backend, Clock.now_us()));
        self.broadcast(|| Message::LossCleared(backend));
    }

    /// Volumes whose lost writes are noted, so that the next target would know of them.
    pub(crate) fn lost_and_noted(&self) -> Vec<Noted> {
        self.lost.noted()
    }

    /// The target has stopped as it was asked to, when these had been noted.
    pub(crate) fn stopped_in_order(&self, noted: &[Noted], log: &LastLines) {
        self.lost.stopped_in_order(noted, log);
    }

    /// The target was asked to stop before it served anybody.
    pub(crate) fn stopped_before_it_served(&self, noted: &[Noted]) {
        self.lost.stopped_before_it_served(noted);
    }

    /// A storage operation failed.
    pub(crate) fn storage_failed(&self, backend: BackendId, error: &IoError) {
        self.media.failed(backend, error);
    }

    /// A namespace is about to be on a new backend.
    pub(crate) fn backend_opened(&self, export: &Export) {
        self.media.add(export);
        self.metrics.backend_opened(export);
        self.allocations.add(export.backend, &export.store);
        self.lost.find(export);
    }

    /// Finds out what is allocated, for a command that its reactor then goes on with.
    pub(crate) fn look_up(self: &Arc<Self>, query: AllocationQuery, command: Box<LookingUp>) {
        self.allocations.look_up(self, query, command);
    }

    /// Looks at what the backends are on, and tells hosts and the log of changes. So many have
    /// another size.
    pub(crate) fn look_at_media(self: &Arc<Self>) -> usize {
        self.lost.look();
        self.media.look(self)
    }

    pub(crate) fn media(&self) -> &Media {
        &self.media
    }

    /// What is counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What keeps reactors that are to end.
    pub(crate) fn unended(&self) -> &Unended {
        &self.unended
    }

    /// What is wrong with media and what is remembered of them, a line each.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let unknown = self.keeper.get().map_or_else(Vec::new, Keeper::unknown);
        self.lost.in_brief().into_iter().chain(unknown).collect()
    }

    /// What a backend is on has changed.
    pub(crate) fn medium_changed(&self, backend: BackendId, change: Change) {
        let Change {
            subnqn,
            nsid,
            geometry,
            lost,
            state,
            is_sound,
        } = change;
        let has_lost = lost.is_some();
        if let Some(lost) = lost {
            match self.media.export(backend) {
                Some(export) => self.lost.add_cut(&export, lost),
                // A reload has closed it meanwhile.
                None => self.lost.add(backend, What::End, lost),
            }
        }
        if let Some((what, said)) = state {
            self.lost.set(backend, what, said);
        }
        let now_us = Clock.now_us();
        self.with(|target| {
            if let Some(geometry) = geometry
                && let Err(error) = target.set_geometry(&subnqn, nsid, geometry)
            {
                // A reload has taken it out meanwhile.
                tracing::debug!(%error, %subnqn, nsid, "its new size is nobody's");
            }
            if has_lost {
                target.handle_data_lost(backend, now_us);
            }
            target.handle_medium(backend, is_sound, now_us);
        });
    }

    /// Commands on a backend fail by what it is on, as the operator is `said`, or do not any more.
    pub(crate) fn medium_failing(&self, backend: BackendId, said: Option<Said>, read_only: bool) {
        self.lost.set(backend, What::Failing, said);
        self.with(|target| target.handle_medium_read_only(backend, read_only, Clock.now_us()));
    }

    /// No namespace is on a backend any more.
    pub(crate) fn backend_closed(&self, backend: BackendId) {
        self.media.remove(backend);
        self.metrics.backend_closed(backend);
        self.allocations.remove(backend);
        self.lost.remove(backend);
        self.broadcast(|| Message::CloseVolume(backend));
    }

    /// A flush that the controllers asked for has ended.
    pub(crate) fn flushed(&self, flush: FlushId, succeeded: bool) {
        self.with(|target| target.handle_flushed(flush, succeeded, Clock.now_us()));
    }
}

/// Warns of the name of a host that is taken though it is not of the form. A host without one is
/// called that where it connects.
fn say_form(hostnqn: &Nqn) {
    if *hostnqn != Nqn::NONE
        && let Err(form) = hostnqn.check_form()
    {
        tracing::warn!(
            target: PEER_CAUSED,
            %hostnqn,
            reason = "name-not-of-the-form",
            "a host calls itself `{hostnqn}`: {form}; it is taken as it is, and nothing keeps another host from having the \
             same name"
        );
    }
}

/// Writes a line. Those that hosts can cause again and again are limited, each kind by itself: a
/// kind is a place here.
fn log(event: &Event) {
    let association = event.association();
    let hostnqn = association.hostnqn.to_string();
    let (subnqn, cntlid) = (association.subnqn.as_str(), association.cntlid);
    // A level is part of the place of a line in the program.
    macro_rules! of_its_kind {
        ($level:ident) => {
            tracing::$level!(target: PEER_CAUSED, hostnqn, subnqn, cntlid, "{event}")
        };
        ($level:ident, $why:expr) => {
            tracing::$level!(
                target: PEER_CAUSED,
                hostnqn, subnqn, cntlid, reason = $why.word(),
                "{event}"
            )
        };
    }
    match event {
        Event::Connected { .. } => {
            of_its_kind!(info);
            say_form(&association.hostnqn);
        }
        Event::Enabled { .. } => of_its_kind!(info),
        Event::QueueConnected { .. } => of_its_kind!(info),
        Event::FenceClosed { .. } => of_its_kind!(info),
        Event::FenceOpened { .. } => of_its_kind!(info),
        Event::Reset { .. } => of_its_kind!(info),
        Event::ShutDown { .. } => of_its_kind!(info),
        Event::Disconnected { why: None, .. } => of_its_kind!(info),
        // The host may have meant to keep it: another program of it has connected.
        Event::Disconnected {
            why: Some(why @ DisconnectReason::Replaced { .. }),
            ..
        } => of_its_kind!(warn, why),
        Event::Disconnected { why: Some(why), .. } => of_its_kind!(info, why),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use capstan_nvme_proto::status::Status;
    use capstan_rdma::loopback::{Network, attributes};
    use capstan_reactor::mailbox;
    use capstan_subsystem::{
        Action, DisconnectReason, PortId, QueueSizes, Target, TargetConfig, Transport,
    };
    use capstan_transport::manager::{Manager, Over, Request, TcpRequest};

    use super::{ControlPlane, Handover, Message, Turns, conn_id};
    use crate::io_path::{Checked, Offered};

    /// A control plane with one reactor, which does not run.
    fn stuck(bound: usize) -> (ControlPlane, capstan_reactor::Mailbox<Message>) {
        let target = Target::new(TargetConfig::default(), 0).unwrap();
        let control = ControlPlane::new(target, Handover::default());
        let (sender, mailbox) = mailbox(bound).unwrap();
        control.set_reactors(vec![sender]);
        (control, mailbox)
    }

    fn offer(control: &ControlPlane) -> Result<(), Box<Offered>> {
        let checked = Checked {
            port: PortId(1),
            sizes: QueueSizes {
                transport: Transport::Rdma,
                qid: 0,
                entries: 32,
                host_receives: 32,
                cntlid: 0,
            },
            known: false,
        };
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = TcpListener::bind(address).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let at = SocketAddr::from(([10, 0, 0, 1], 4420));
        let provider = Network::new(1).provider(&[at.ip()], attributes()).unwrap();
        let mut manager = Manager::new(0, (Box::new(provider.manager().unwrap()), None));
        let (rdma_listener, _) = manager.listen(at, 1).unwrap();
        let request = manager.give_away(Request {
            listener: rdma_listener,
            local: address,
            peer: address,
            over: Over::Tcp(TcpRequest::new(stream, Vec::new())),
        });
        let request = request.expect("a socket can go anywhere");
        control.offer(0, Box::new(Offered { checked, request }))
    }

    #[test]
    fn a_stuck_reactor_gets_what_controllers_want_and_no_more_connections_than_its_bound() {
        let (control, mut mailbox) = stuck(2);
        let conn = conn_id(0, 7);
        offer(&control).unwrap();
        offer(&control).unwrap();
        let offered = offer(&control).expect_err("the mailbox is full");
        assert_eq!(
            offered.checked.port,
            PortId(1),
            "the same request, to be refused"
        );
        control.route(Action::CompleteIo {
            conn,
            cid: 1,
            status: Status::SUCCESS,
        });
        control.route(Action::TellOutstanding { conn });
        control.route(Action::Disconnect {
            conn,
            why: DisconnectReason::ControllerReset,
        });
        // It may be missed: a reactor that has messages looks at the timers behind them.
        control.timer_moved();
        control.drain();
        let mut got = std::iter::from_fn(|| mailbox.poll());
        assert!(matches!(got.next(), Some(Message::Adopt(_))));
        assert!(matches!(got.next(), Some(Message::Adopt(_))));
        assert!(matches!(
            got.next(),
            Some(Message::Act(Action::CompleteIo { .. }))
        ));
        assert!(matches!(
            got.next(),
            Some(Message::Act(Action::TellOutstanding { .. }))
        ));
        assert!(matches!(
            got.next(),
            Some(Message::Act(Action::Disconnect { .. }))
        ));
        assert!(matches!(got.next(), Some(Message::Drain)));
        assert!(got.next().is_none());
        offer(&control).expect("there is room again");
    }

    #[test]
    fn a_reactor_that_has_ended_takes_no_connections() {
        let (control, mailbox) = stuck(2);
        drop(mailbox);
        assert!(offer(&control).is_err());
    }

    #[test]
    fn hosts_with_as_many_queues_as_there_are_reactors_spread_over_them() {
        for io_queues in [1, 2, 3] {
            let turns = Turns::default();
            let reactors = usize::from(io_queues) + 1;
            let mut io = vec![0; reactors];
            let mut admin = vec![0; reactors];
            for _host in 0..reactors {
                admin[turns.next(0, reactors)] += 1;
                for qid in 1..=io_queues {
                    io[turns.next(qid, reactors)] += 1;
                }
            }
            assert_eq!(admin, vec![1; reactors]);
            assert_eq!(io, vec![io_queues; reactors]);
        }
        assert_eq!(Turns::default().next(1, 0), 0, "before there are reactors");
    }
}
