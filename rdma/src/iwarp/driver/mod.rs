//! One provider's objects, and what drives them.
//!
//! Busy queue pairs are run in turn until a poll has the completions it asked for. What has arrived
//! is so handled while it is in the caches, however many connections there are. `watch` decides
//! which queue pairs are busy.

mod idle;
mod linger;
pub(super) mod notice;
pub(super) mod qp;
pub(super) mod rendezvous;
mod timers;
mod watch;

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use capstan_memory::Slab;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use self::idle::IdleLinks;
use self::linger::Lingering;
use self::notice::{Link2Cm, Notice};
use self::qp::Qp;
use self::rendezvous::{Invitation, Rendezvous};
use self::watch::{Poller, RENDEZVOUS, Watch};
use super::completions::CompletionRing;
use super::config::Config;
use super::core::rx::{CALLS_BESIDE_OTHERS, CALLS_MAX};
use super::core::{CoreConfig, IwarpCore, RunOutcome, Terms};
use super::fatal::Fatal;
use super::link::Link;
use super::link::shared::SharedLink;
use super::link::socket::end_when_closed;
use super::receives::{Receives, SharedReceives};
use super::sq::SendQueue;
use super::stag::{Asker, StagTable};
use crate::contract::{DeviceAttributes, QpNum, QpState, RdmaError};

/// Most queue pairs of one provider: the low half of a number is the place, the high half counts
/// uses of the place.
const QPS_MAX: usize = 1 << 16;

#[derive(Default)]
struct Place {
    uses: u16,
    cell: Option<Rc<RefCell<Qp>>>,
}

/// Everything of one provider; belongs to one thread.
pub(super) struct IwarpEngine {
    pub config: Config,
    pub attributes: DeviceAttributes,
    pub stags: RefCell<StagTable>,
    pub poller: Poller,
    pub lingering: Lingering,
    /// Queue pairs that wait for a time.
    pub timed: RefCell<Vec<Rc<RefCell<Qp>>>>,
    /// Queue pairs that have data lent to the program.
    lenders: RefCell<Vec<Rc<RefCell<Qp>>>>,
    /// Connections in shared memory that may become idle.
    pub idle_links: IdleLinks,
    /// Where peers on this machine deliver shared memory, once one was invited.
    rendezvous: RefCell<Option<Rendezvous>>,
    this: Weak<Self>,
    places: RefCell<Vec<Place>>,
    free_places: RefCell<Vec<usize>>,
    busy: RefCell<Vec<Rc<RefCell<Qp>>>>,
    /// The busy queue pair to run next.
    turn: Cell<usize>,
    /// Connected queue pairs that only epoll watches.
    watched: Cell<usize>,
    /// Connection managers whose listeners and set-ups epoll watches, too.
    managers: Cell<usize>,
    /// How often epoll has reported those.
    set_ups: Cell<u32>,
    /// An estimate of the queue pairs at work, watched or busy.
    at_work: Cell<u32>,
    /// Whether they are so many that epoll watches all of them: `Config::edge_triggered_from`.
    many_at_work: Cell<bool>,
    ticks: Cell<u32>,
    serial: Cell<u64>,
    next_pd: Cell<u32>,
}

impl IwarpEngine {
    pub(super) fn new(config: Config, attributes: DeviceAttributes) -> Result<Rc<Self>, RdmaError> {
        let poller = Poller::new().map_err(system("epoll of a provider"))?;
        let many_at_work = config.edge_triggered_from == 0;
        let lingering = Lingering::new(Config::descriptors(config.lingering_max));
        Ok(Rc::new_cyclic(|this| Self {
            config,
            attributes,
            stags: RefCell::new(StagTable::new()),
            poller,
            lingering,
            timed: RefCell::default(),
            lenders: RefCell::default(),
            idle_links: IdleLinks::default(),
            rendezvous: RefCell::default(),
            this: Weak::clone(this),
            places: RefCell::default(),
            free_places: RefCell::default(),
            busy: RefCell::default(),
            turn: Cell::new(0),
            watched: Cell::new(0),
            managers: Cell::new(0),
            set_ups: Cell::new(0),
            at_work: Cell::new(0),
            many_at_work: Cell::new(many_at_work),
            ticks: Cell::new(0),
            serial: Cell::new(1),
            next_pd: Cell::new(1),
        }))
    }

    /// Itself, for objects that need it as long as they live.
    pub(super) fn rc(&self) -> Result<Rc<Self>, RdmaError> {
        let gone = RdmaError::Invalid("the provider is being dropped");
        self.this.upgrade().ok_or(gone)
    }

    /// The number of a new protection domain.
    pub(super) fn next_pd_id(&self) -> u32 {
        let id = self.next_pd.get();
        self.next_pd.set(id + 1);
        id
    }

    /// Adds a queue pair of the domain `pd`, with most work requests of its send queue and SGEs of
    /// each (`sends`), and rings for the completions of sends and receives.
    pub(super) fn add_qp(
        &self,
        pd: u32,
        sends: (u32, u32),
        receives: Receives,
        (send_cq, recv_cq): (Rc<CompletionRing>, Rc<CompletionRing>),
        cm: Link2Cm,
    ) -> Result<Rc<RefCell<Qp>>, RdmaError> {
        let place = self.take_place()?;
        let sink = self.stags.borrow_mut().allocate_read_sink();
        let read_sink = sink.inspect_err(|_| self.free_places.borrow_mut().push(place))?;
        let mut places = self.places.borrow_mut();
        let slot = &mut places[place];
        slot.uses = slot.uses.wrapping_add(1);
        let low = u32::try_from(place).unwrap_or(0);
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        let core = IwarpCore::new(CoreConfig {
            num: QpNum((u32::from(slot.uses) << 16) | low),
            asker: Asker { pd, qp: serial },
            sq: SendQueue::new(sends.0, sends.1),
            receives,
            read_sink,
            send_cq,
            recv_cq,
            not_ready_timeout_ms: self.config.receiver_not_ready_timeout_ms,
        });
        let cell = Rc::new(RefCell::new(Qp::new(core, cm)));
        slot.cell = Some(Rc::clone(&cell));
        Ok(cell)
    }

    fn take_place(&self) -> Result<usize, RdmaError> {
        if let Some(place) = self.free_places.borrow_mut().pop() {
            return Ok(place);
        }
        let mut places = self.places.borrow_mut();
        if places.len() >= QPS_MAX {
            return Err(RdmaError::Limit {
                what: "queue pairs of one iwarp provider",
                value: QPS_MAX as u64 + 1,
                max: QPS_MAX as u64,
            });
        }
        places.push(Place::default());
        Ok(places.len() - 1)
    }

    /// A connection is established over `link`: the queue pair takes it over.
    pub(super) fn attach(&self, cell: &Rc<RefCell<Qp>>, link: Link, terms: Terms) {
        let mut qp = cell.borrow_mut();
        let qp = &mut *qp;
        qp.core.handle_connected(terms, link.segment_bytes());
        match link {
            Link::Shared(link) => qp.move_into(*link),
            link => qp.link = Some(link),
        }
        self.make_busy(cell, qp);
    }

    /// An invitation to shared memory for the peer of a queue pair that is about to be connected.
    pub(super) fn invite(&self, cell: &Rc<RefCell<Qp>>) -> io::Result<Invitation> {
        let mut place = self.rendezvous.borrow_mut();
        let rendezvous = match &mut *place {
            Some(rendezvous) => rendezvous,
            none => {
                let new = Rendezvous::new()?;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, RENDEZVOUS);
                self.poller.epoll.add(new.socket(), event)?;
                none.insert(new)
            }
        };
        rendezvous.invite(cell)
    }

    /// Moves connections whose peers have delivered shared memory into it.
    pub(super) fn take_memory(&self, readable: bool) {
        let next = || self.rendezvous.borrow_mut().as_mut()?.take(readable);
        while let Some((cell, fd)) = next() {
            let mut qp = cell.borrow_mut();
            let qp = &mut *qp;
            let Some(Link::Tcp(stream)) = qp.link.take() else {
                continue;
            };
            let (stream, error) = match SharedLink::open(&fd, stream) {
                Ok(link) => {
                    qp.move_into(link);
                    self.make_busy(&cell, qp);
                    continue;
                }
                Err(failed) => failed,
            };
            // The peer sends there already, so this connection cannot go on over TCP.
            qp.link = Some(Link::Tcp(stream));
            self.end(qp, &Fatal::Io(error));
        }
    }

    /// Marks a queue pair in memory, which has no socket, as busy.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn make_pipe_busy(&self, cell: &Rc<RefCell<Qp>>) {
        let mut qp = cell.borrow_mut();
        self.make_busy(cell, &mut qp);
    }

    /// Runs the queue pair at `place` again, as a receive was posted for it.
    pub(super) fn resume(&self, place: usize) {
        let cell = self.cell_at(place);
        if let Some(cell) = cell {
            let mut qp = cell.borrow_mut();
            qp.pending = true;
            self.make_busy(&cell, &mut qp);
        }
    }

    /// The queue pair of a number that is in use.
    pub(super) fn qp(&self, num: QpNum) -> Option<Rc<RefCell<Qp>>> {
        self.cell_at(place_of(num))
            .filter(|cell| cell.borrow().core.num == num)
    }

    fn cell_at(&self, place: usize) -> Option<Rc<RefCell<Qp>>> {
        self.places.borrow().get(place)?.cell.clone()
    }

    /// Counts the calls of [`IwarpEngine::progress`].
    pub(super) fn ticks(&self) -> u32 {
        self.ticks.get()
    }

    /// Receives, places, completes and sends what is possible now, one queue pair after the other,
    /// until `enough` says so. The next call goes on behind the last one.
    pub(super) fn progress(&self, enough: impl Fn() -> bool) {
        let tick = self.ticks.get().wrapping_add(1);
        self.ticks.set(tick);
        self.give_back_lent();
        self.watch(tick);
        let mut busy = self.busy.take();
        let idle_max = self.idle_runs_max(busy.len());
        let calls_max = match busy.len() {
            0 | 1 => CALLS_MAX,
            _ => CALLS_BESIDE_OTHERS,
        };
        let mut at = self.turn.get();
        for _ in 0..busy.len() {
            if at >= busy.len() {
                at = 0;
            }
            let Some(cell) = busy.get(at) else { break };
            if self.run(cell, idle_max, calls_max) {
                at += 1;
            } else {
                busy.swap_remove(at);
            }
            if enough() {
                break;
            }
        }
        self.turn.set(at);
        // Nothing else adds to the list meanwhile; its memory is kept.
        let added = self.busy.replace(busy);
        self.busy.borrow_mut().extend(added);
    }

    /// Gives back the room of what was lent to the program until now.
    pub(super) fn give_back_lent(&self) {
        for cell in self.lenders.borrow_mut().drain(..) {
            cell.borrow_mut().give_back_lent();
        }
    }

    /// A queue pair may have more receives than before: those that wait for a shared one look
    /// again.
    pub(super) fn wake_awaiting(&self, qp: RefMut<'_, Qp>) {
        let awaited = qp.core.receives.awaited();
        drop(qp);
        if let Some(awaited) = awaited {
            self.wake(&awaited);
        }
    }

    /// Runs queue pairs that wait for a shared receive again. None of them may be borrowed.
    #[inline]
    pub(super) fn wake(&self, receives: &SharedReceives) {
        if receives.is_awaited() {
            for place in receives.take_waiting() {
                self.resume(place);
            }
        }
    }

    /// Runs one queue pair; `false` when it is not busy any more.
    fn run(&self, cell: &Rc<RefCell<Qp>>, idle_max: u32, calls_max: u32) -> bool {
        let mut qp = cell.borrow_mut();
        let qp = &mut *qp;
        if qp.link.is_none() {
            qp.busy = false;
            return false;
        }
        let mut stags = self.stags.borrow_mut();
        let ran = qp.run(&mut stags, calls_max);
        if let Err(Fatal::Violation { .. }) = &ran {
            // What the peer asked for before the error is answered, as far as TCP takes it now. A
            // second failure changes nothing.
            let _ = qp.transmit(&mut stags);
        }
        drop(stags);
        if qp.core.rx.lent.is_new() {
            self.lenders.borrow_mut().push(Rc::clone(cell));
        }
        match ran {
            Ok(RunOutcome::Busy) => {
                qp.idle_runs = 0;
                !self.leave_to_edge(qp)
            }
            Ok(RunOutcome::Idle) => {
                qp.idle_runs += 1;
                if self.leave_to_edge(qp) {
                    return false;
                }
                if qp.idle_runs < idle_max || qp.pending {
                    return true;
                }
                self.leave_to_epoll(qp)
            }
            Ok(RunOutcome::NotReady) => {
                if let Receives::Shared(receives) = &qp.core.receives {
                    receives.wait(place_of(qp.core.num));
                }
                self.start_timer(cell);
                self.leave_to_epoll(qp)
            }
            Err(fatal) => {
                self.end(qp, &fatal);
                qp.busy = false;
                false
            }
        }
    }

    /// Ends a connection: everything outstanding is flushed, the peer is told as far as possible.
    pub(super) fn end(&self, qp: &mut Qp, fatal: &Fatal) {
        if qp.core.state == QpState::Error {
            return;
        }
        qp.pending = false;
        let link = qp.link.take();
        let bytes = qp.core.handle_end(fatal);
        let left = link.and_then(|link| match fatal {
            Fatal::Abort => link.abort().map(|(s, memory)| (s, Vec::new(), memory)),
            _ => link.finish(bytes),
        });
        if let Some((stream, bytes, memory)) = left {
            qp.lent_rings = memory;
            if qp.watch != Watch::None {
                qp.watch = Watch::None;
                // Only a descriptor that is not there can fail here.
                let _ = self.poller.epoll.delete(stream.as_fd());
                if !qp.busy {
                    self.watched.set(self.watched.get().saturating_sub(1));
                }
            }
            if fatal.is_orderly() {
                end_when_closed(&stream);
            }
            if fatal.says_goodbye() {
                self.lingering.add(stream, bytes, Some(qp.core.num));
            }
        }
        if let Some(cm) = qp.cm.take() {
            cm.tell(Notice::Disconnected {
                cause: fatal.to_string(),
                is_violation: matches!(fatal, Fatal::Violation { .. }),
            });
        }
    }

    /// Ends a connection without a word to the peer, and closes its lingering socket.
    pub(super) fn abort(&self, qp: &mut Qp) {
        self.end(qp, &Fatal::Abort);
        self.lingering.abort(qp.core.num);
    }

    /// The program has dropped a queue pair.
    pub(super) fn drop_qp(&self, cell: &Rc<RefCell<Qp>>) {
        let mut qp = cell.borrow_mut();
        self.end(&mut qp, &Fatal::Dropped);
        let core = &mut qp.core;
        core.send_cq.forget(core.num);
        core.recv_cq.forget(core.num);
        self.stags.borrow_mut().release(core.reads.sink);
        let place = place_of(core.num);
        core.forget_lent();
        qp.busy = false;
        self.wake_awaiting(qp);
        self.busy.borrow_mut().retain(|c| !Rc::ptr_eq(c, cell));
        self.timed.borrow_mut().retain(|c| !Rc::ptr_eq(c, cell));
        self.lenders.borrow_mut().retain(|c| !Rc::ptr_eq(c, cell));
        if let Some(slot) = self.places.borrow_mut().get_mut(place) {
            slot.cell = None;
        }
        self.free_places.borrow_mut().push(place);
    }

    /// Keeps a slab whose region is gone mapped while half-sent batches may point into it.
    pub(super) fn keep_while_sending(&self, slab: &Arc<Slab>) {
        for place in self.places.borrow().iter() {
            if let Some(cell) = &place.cell {
                cell.borrow_mut().core.tx.keep(slab);
            }
        }
    }
}

fn place_of(num: QpNum) -> usize {
    (num.0 & 0xffff) as usize
}

/// A system error while a resource is made.
pub(super) fn system(what: &'static str) -> impl FnOnce(nix::Error) -> RdmaError {
    move |error| RdmaError::System {
        what,
        source: error.into(),
        hint: match error {
            nix::Error::EMFILE | nix::Error::ENFILE => {
                "; raise the limit of open files (ulimit -n, LimitNOFILE=)"
            }
            _ => "",
        },
    }
}
