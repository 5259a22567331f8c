//! One provider's objects, and what drives them.
//!
//! Busy queue pairs are run in turn until a poll has the completions it asked for. What has arrived
//! is so handled while it is in the caches, however many connections there are. `watch` decides
//! which queue pairs are busy.

mod watch;

use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use capstan_memory::Slab;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::cm::linger::Lingering;
use super::cm::notice::{Link2Cm, Notice};
use super::cm::nudge::Unheard;
use super::config::Config;
use super::cq::{Completions, system};
use super::fatal::{Fatal, terminate_bytes};
use super::memory::Domain;
use super::provider::attributes;
use super::qp::{Qp, QpHandle, Ran, Receives};
use super::read::Reads;
use super::rx::{CALLS_BESIDE_OTHERS, CALLS_MAX, Rx};
use super::same_host::{Invitation, Meeting, Resting, SharedLink};
use super::socket::Link;
use super::sq::SendQueue;
use super::srq::{ReceiveRing, SharedQueue};
use super::stag::{Asker, StagTable};
use super::tx::{Framing, Tx};
use crate::contract::{
    CompletionQueue, Device, DeviceAttributes, ProtectionDomain, QpConfig, QpNum, QpState,
    RdmaError, ReceiveSource,
};
use crate::ids::{check_limit, check_qp};
pub(super) use watch::Watch;
use watch::{MEETING, Poller};

/// Most work requests of one send queue.
pub(super) const SENDS_MAX: u32 = 1 << 16;
/// Most entries of a completion queue.
pub(super) const COMPLETIONS_MAX: u32 = 1 << 20;
/// Most queue pairs of one provider: the low half of a number is the place, the high half counts
/// uses of the place.
const QPS_MAX: usize = 1 << 16;

/// What [`Engine::attach`] needs of a finished set-up.
pub(super) struct SetUp {
    pub link: Link,
    pub framing: Framing,
    pub crc: bool,
    /// Whether this side may send before it has received.
    pub may_send: bool,
    /// Whether the first FPDU may be empty.
    pub empty_fpdu: bool,
    /// RDMA Reads at once: asked by this side, served by this side.
    pub ord: u8,
    pub ird: u8,
}

#[derive(Default)]
struct Place {
    uses: u16,
    cell: Option<Rc<RefCell<Qp>>>,
}

/// Everything of one provider; belongs to one thread.
pub(super) struct Engine {
    pub config: Config,
    pub attributes: DeviceAttributes,
    pub stags: RefCell<StagTable>,
    pub poller: Poller,
    pub lingering: Lingering,
    /// Queue pairs with a Send that waits for a receive.
    pub not_ready: RefCell<Vec<Rc<RefCell<Qp>>>>,
    /// Queue pairs that have data lent to the program.
    lenders: RefCell<Vec<Rc<RefCell<Qp>>>>,
    /// Connections in shared memory that may become idle.
    pub resting: Resting,
    /// Queue pairs that have connected and received nothing since.
    pub unheard: RefCell<Vec<Unheard>>,
    /// Where peers on this machine deliver shared memory, once one was invited.
    meeting: RefCell<Option<Meeting>>,
    this: Weak<Self>,
    places: RefCell<Vec<Place>>,
    free_places: RefCell<Vec<usize>>,
    hot: RefCell<Vec<Rc<RefCell<Qp>>>>,
    /// The busy queue pair to run next.
    turn: Cell<usize>,
    /// Connected queue pairs that only epoll watches.
    cold: Cell<usize>,
    /// Connection managers whose listeners and set-ups epoll watches, too.
    managers: Cell<usize>,
    /// How often epoll has reported those.
    set_ups: Cell<u32>,
    /// An estimate of the queue pairs at work, watched or busy.
    crowd: Cell<u32>,
    /// Whether they are so many that epoll watches all of them ([`Config::crowd`](super::Config)).
    crowded: Cell<bool>,
    ticks: Cell<u32>,
    serial: Cell<u64>,
    next_pd: Cell<u32>,
}

impl Engine {
    pub(super) fn new(config: Config) -> Result<Rc<Self>, RdmaError> {
        let poller = Poller::new().map_err(system("epoll of a provider"))?;
        let attributes = attributes(&config);
        let crowded = config.crowd == 0;
        let lingering = Lingering::new(Config::descriptors(config.lingering_max));
        Ok(Rc::new_cyclic(|this| Self {
            config,
            attributes,
            stags: RefCell::new(StagTable::new()),
            poller,
            lingering,
            not_ready: RefCell::default(),
            lenders: RefCell::default(),
            resting: Resting::default(),
            unheard: RefCell::default(),
            meeting: RefCell::default(),
            this: Weak::clone(this),
            places: RefCell::default(),
            free_places: RefCell::default(),
            hot: RefCell::default(),
            turn: Cell::new(0),
            cold: Cell::new(0),
            managers: Cell::new(0),
            set_ups: Cell::new(0),
            crowd: Cell::new(0),
            crowded: Cell::new(crowded),
            ticks: Cell::new(0),
            serial: Cell::new(1),
            next_pd: Cell::new(1),
        }))
    }

    fn rc(&self) -> Result<Rc<Self>, RdmaError> {
        let gone = RdmaError::Invalid("the provider is being dropped");
        self.this.upgrade().ok_or(gone)
    }

    /// Makes a queue pair of the domain `pd`.
    pub(super) fn create_qp(
        self: &Rc<Self>,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
        cm: Link2Cm,
    ) -> Result<QpHandle, RdmaError> {
        check_qp(&self.attributes, config)?;
        let domain = own::<Domain>(pd.clone()).filter(|d| d.is_of(self));
        let pd = domain.map(|d| d.id()).ok_or(RdmaError::Invalid(
            "the protection domain is not of this provider",
        ))?;
        let send_cq = self.own_cq(&config.send_cq)?;
        let recv_cq = self.own_cq(&config.recv_cq)?;
        let receives = match &config.receives {
            ReceiveSource::Own(depth) => {
                Receives::Own(ReceiveRing::new(*depth, config.recv_sge_max))
            }
            ReceiveSource::Shared(srq) => {
                let srq = own::<SharedQueue>(srq.clone());
                let srq = srq.filter(|srq| srq.is_of(self, pd));
                let srq = srq.ok_or(RdmaError::Invalid(
                    "the shared receive queue is not of the queue pair's protection domain",
                ))?;
                Receives::Shared(srq)
            }
        };
        let place = self.take_place()?;
        let sink = self.stags.borrow_mut().allocate_read_sink();
        let sink = sink.inspect_err(|_| self.free_places.borrow_mut().push(place))?;
        let mut places = self.places.borrow_mut();
        let slot = &mut places[place];
        slot.uses = slot.uses.wrapping_add(1);
        let low = u32::try_from(place).unwrap_or(0);
        let num = QpNum((u32::from(slot.uses) << 16) | low);
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        let cell = Rc::new(RefCell::new(Qp {
            num,
            asker: Asker { pd, qp: serial },
            state: QpState::Init,
            link: None,
            sq: SendQueue::new(config.send_wr_max, config.send_sge_max),
            receives,
            reads: Reads::new(sink),
            tx: Tx::new(),
            rx: Rx::new(),
            send_cq,
            recv_cq,
            cm: Some(cm),
            hot: false,
            watch: Watch::None,
            hung_up: false,
            idle_runs: 0,
            pending: false,
            not_ready_since_us: None,
        }));
        slot.cell = Some(Rc::clone(&cell));
        Ok(QpHandle {
            engine: Rc::clone(self),
            cell,
            num,
        })
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

    fn own_cq(self: &Rc<Self>, cq: &Rc<dyn CompletionQueue>) -> Result<Rc<Completions>, RdmaError> {
        let cq = own::<Completions>(cq.clone()).filter(|cq| cq.is_of(self));
        cq.ok_or(RdmaError::Invalid(
            "the completion queue is not of this provider",
        ))
    }

    /// A connection is established: the queue pair takes it over.
    pub(super) fn attach(&self, cell: &Rc<RefCell<Qp>>, set_up: SetUp) {
        let mut qp = cell.borrow_mut();
        let qp = &mut *qp;
        qp.tx
            .set_up(&set_up.link, set_up.framing, set_up.crc, set_up.may_send);
        qp.rx.set_up(set_up.crc, set_up.empty_fpdu);
        qp.reads.set_depths(set_up.ord, set_up.ird);
        match set_up.link {
            Link::Shared(link) => qp.move_into(*link),
            link => qp.link = Some(link),
        }
        qp.state = QpState::ReadyToSend;
        self.heat(cell, qp);
    }

    /// An invitation to shared memory for the peer of a queue pair that is about to be connected.
    pub(super) fn invite(&self, cell: &Rc<RefCell<Qp>>) -> io::Result<Invitation> {
        let mut place = self.meeting.borrow_mut();
        let meeting = match &mut *place {
            Some(meeting) => meeting,
            none => {
                let new = Meeting::new()?;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, MEETING);
                self.poller.epoll.add(new.socket(), event)?;
                none.insert(new)
            }
        };
        meeting.invite(cell)
    }

    /// Moves connections whose peers have delivered shared memory into it.
    fn meet(&self, readable: bool) {
        let next = || self.meeting.borrow_mut().as_mut()?.take(readable);
        while let Some((cell, fd)) = next() {
            let mut qp = cell.borrow_mut();
            let qp = &mut *qp;
            let Some(Link::Tcp(stream)) = qp.link.take() else {
                continue;
            };
            let (stream, error) = match SharedLink::open(&fd, stream) {
                Ok(link) => {
                    qp.move_into(link);
                    self.heat(&cell, qp);
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
    pub(super) fn heat_memory(&self, cell: &Rc<RefCell<Qp>>) {
        let mut qp = cell.borrow_mut();
        self.heat(cell, &mut qp);
    }

    /// Runs the queue pair at `place` again, as a receive was posted for it.
    pub(super) fn resume(&self, place: usize) {
        let cell = self.cell_at(place);
        if let Some(cell) = cell {
            let mut qp = cell.borrow_mut();
            qp.pending = true;
            self.heat(&cell, &mut qp);
        }
    }

    /// The queue pair of a number that is in use.
    pub(super) fn qp(&self, num: QpNum) -> Option<Rc<RefCell<Qp>>> {
        self.cell_at(place_of(num))
            .filter(|cell| cell.borrow().num == num)
    }

    fn cell_at(&self, place: usize) -> Option<Rc<RefCell<Qp>>> {
        self.places.borrow().get(place)?.cell.clone()
    }

    /// Counts the calls of [`Engine::progress`].
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
        let mut hot = self.hot.take();
        let idle_max = self.idle_runs_max(hot.len());
        let calls_max = match hot.len() {
            0 | 1 => CALLS_MAX,
            _ => CALLS_BESIDE_OTHERS,
        };
        let mut at = self.turn.get();
        for _ in 0..hot.len() {
            if at >= hot.len() {
                at = 0;
            }
            let Some(cell) = hot.get(at) else { break };
            if self.run(cell, idle_max, calls_max) {
                at += 1;
            } else {
                hot.swap_remove(at);
            }
            if enough() {
                break;
            }
        }
        self.turn.set(at);
        // Nothing else adds to the list meanwhile; its memory is kept.
        let added = self.hot.replace(hot);
        self.hot.borrow_mut().extend(added);
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
        let awaited = qp.receives.awaited();
        drop(qp);
        if let Some(awaited) = awaited {
            awaited.wake();
        }
    }

    /// Runs one queue pair; `false` when it is not busy any more.
    fn run(&self, cell: &Rc<RefCell<Qp>>, idle_max: u32, calls_max: u32) -> bool {
        let mut qp = cell.borrow_mut();
        let qp = &mut *qp;
        if qp.link.is_none() {
            qp.hot = false;
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
        if qp.rx.lent.is_new() {
            self.lenders.borrow_mut().push(Rc::clone(cell));
        }
        match ran {
            Ok(Ran::Busy) => {
                qp.idle_runs = 0;
                qp.not_ready_since_us = None;
                !self.leave_to_edge(qp)
            }
            Ok(Ran::Idle) => {
                qp.idle_runs += 1;
                if self.leave_to_edge(qp) {
                    return false;
                }
                if qp.idle_runs < idle_max || qp.pending {
                    return true;
                }
                self.cool(qp)
            }
            Ok(Ran::NotReady) => {
                if let Receives::Shared(srq) = &qp.receives {
                    srq.wait(place_of(qp.num));
                }
                let mut waiting = self.not_ready.borrow_mut();
                if !waiting.iter().any(|w| Rc::ptr_eq(w, cell)) {
                    waiting.push(Rc::clone(cell));
                }
                self.cool(qp)
            }
            Err(fatal) => {
                self.end(qp, &fatal);
                qp.hot = false;
                false
            }
        }
    }

    /// Ends a connection: everything outstanding is flushed, the peer is told as far as possible.
    pub(super) fn end(&self, qp: &mut Qp, fatal: &Fatal) {
        if qp.state == QpState::Error {
            return;
        }
        qp.state = QpState::Error;
        qp.pending = false;
        let mut bytes = qp.tx.take_rest_of_fpdu();
        let link = qp.link.take();
        qp.flush(fatal);
        bytes.extend(terminate_bytes(fatal, qp.tx.crc()));
        let left = link.and_then(|link| match fatal {
            Fatal::Abort => link.abort().map(|(s, memory)| (s, Vec::new(), memory)),
            _ => link.finish(bytes),
        });
        if let Some((stream, bytes, memory)) = left {
            qp.rx.lent.keep(memory);
            if qp.watch != Watch::None {
                qp.watch = Watch::None;
                // Only a descriptor that is not there can fail here.
                let _ = self.poller.epoll.delete(stream.as_fd());
                if !qp.hot {
                    self.cold.set(self.cold.get().saturating_sub(1));
                }
            }
            if fatal.says_goodbye() {
                self.lingering.add(stream, bytes, Some(qp.num));
            }
        }
        if let Some(cm) = qp.cm.take() {
            cm.tell(Notice::Disconnected(fatal.to_string()));
        }
    }

    /// Ends a connection without a word to the peer, and closes its lingering socket.
    pub(super) fn abort(&self, qp: &mut Qp) {
        self.end(qp, &Fatal::Abort);
        self.lingering.abort(qp.num);
    }

    /// The program has dropped a queue pair.
    pub(super) fn drop_qp(&self, cell: &Rc<RefCell<Qp>>) {
        let mut qp = cell.borrow_mut();
        self.end(&mut qp, &Fatal::Dropped);
        qp.send_cq.forget(qp.num);
        qp.recv_cq.forget(qp.num);
        self.stags.borrow_mut().release(qp.reads.sink);
        let place = place_of(qp.num);
        qp.hot = false;
        qp.forget_lent();
        self.wake_awaiting(qp);
        self.hot.borrow_mut().retain(|c| !Rc::ptr_eq(c, cell));
        self.not_ready.borrow_mut().retain(|c| !Rc::ptr_eq(c, cell));
        self.lenders.borrow_mut().retain(|c| !Rc::ptr_eq(c, cell));
        let mut unheard = self.unheard.borrow_mut();
        unheard.retain(|other| !Rc::ptr_eq(&other.cell, cell));
        if let Some(slot) = self.places.borrow_mut().get_mut(place) {
            slot.cell = None;
        }
        self.free_places.borrow_mut().push(place);
    }

    /// Keeps a slab whose region is gone mapped while half-sent batches may point into it.
    pub(super) fn keep_while_sending(&self, slab: &Arc<Slab>) {
        for place in self.places.borrow().iter() {
            if let Some(cell) = &place.cell {
                cell.borrow_mut().tx.keep(slab);
            }
        }
    }
}

impl Device for Engine {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Software in this process cannot be removed.
    fn is_removed(&self) -> bool {
        false
    }

    fn allocate_pd(&self) -> Result<Rc<dyn ProtectionDomain>, RdmaError> {
        let id = self.next_pd.get();
        self.next_pd.set(id + 1);
        Ok(Rc::new(Domain::new(self.rc()?, id)))
    }

    fn create_cq(&self, depth: u32) -> Result<Rc<dyn CompletionQueue>, RdmaError> {
        check_limit("entries of a completion queue", depth, COMPLETIONS_MAX)?;
        let cq = Completions::new(&self.rc()?, depth)?;
        Ok(cq)
    }
}

fn place_of(num: QpNum) -> usize {
    (num.0 & 0xffff) as usize
}

/// This provider's own type behind a trait object.
fn own<T: Any>(object: Rc<dyn Any>) -> Option<Rc<T>> {
    object.downcast().ok()
}
