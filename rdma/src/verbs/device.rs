//! A device and what is made of it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::cq::Cq;
use super::error::resource;
use super::hub::{Inbox, Subscription};
use super::memory::Pd;
use super::pair::Core;
use super::raw;
use super::raw::context::Context;
use super::raw::events::{About, AsyncEvent};
use super::srq::Srq;
use crate::contract::{
    CompletionQueue, Device, DeviceAttributes, ProtectionDomain, QpNum, RdmaError,
};
use crate::ids::check_limit;

/// One thread's view of an RDMA device.
pub(super) struct VerbsDevice {
    pub(super) context: Rc<Context>,
    pub(super) attributes: DeviceAttributes,
    pairs: RefCell<Pairs>,
    srqs: RefCell<Vec<Weak<Srq>>>,
    next_pd: Cell<u32>,
    /// Numbers of queue pairs, which are never used again within the provider; those of a device
    /// are.
    numbers: Rc<Cell<u32>>,
    removed: Cell<bool>,
    this: Weak<Self>,
    _events: Subscription,
    _spacer: Option<raw::completion::Cq>,
}

/// libsiw takes the address 90000h of a mapped queue for an error code (`SIW_INVAL_UOBJ_KEY`). A
/// completion queue of so many entries (32 bytes each), made first and never used, occupies that
/// address.
const SPACER_ENTRIES: i32 = 0x9_0000 / 32;

/// The queue pairs of a device, by the index that their work requests carry and by the device's
/// number.
#[derive(Default)]
struct Pairs {
    places: Vec<Option<Rc<Core>>>,
    free: Vec<u32>,
    // The device chose the numbers, so no peer can make them collide.
    place_of: FxHashMap<u32, u32>,
}

impl VerbsDevice {
    pub(super) fn new(
        context: Rc<Context>,
        inbox: &Arc<Inbox>,
        numbers: &Rc<Cell<u32>>,
    ) -> Result<Rc<Self>, RdmaError> {
        let attributes = context
            .query()
            .map_err(resource("capabilities of an RDMA device"))?;
        let events = Subscription::new(&context, inbox);
        let spacer = context.completes_early().then_some(SPACER_ENTRIES);
        let spacer = spacer.map(|entries| raw::completion::Cq::new(&context, entries));
        let spacer = spacer.transpose().map_err(resource("a completion queue"))?;
        Ok(Rc::new_cyclic(|this| Self {
            context,
            attributes,
            pairs: RefCell::default(),
            srqs: RefCell::default(),
            next_pd: Cell::new(1),
            numbers: Rc::clone(numbers),
            removed: Cell::new(false),
            this: Weak::clone(this),
            _events: events,
            _spacer: spacer,
        }))
    }

    pub(super) fn next_number(&self) -> QpNum {
        let number = self.numbers.get();
        self.numbers.set(number.wrapping_add(1));
        QpNum(number)
    }

    /// An index for a queue pair that is about to be made.
    pub(super) fn reserve_place(&self) -> u32 {
        let mut pairs = self.pairs.borrow_mut();
        if let Some(place) = pairs.free.pop() {
            return place;
        }
        pairs.places.push(None);
        u32::try_from(pairs.places.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn free_place(&self, place: u32, device_num: u32) {
        let mut pairs = self.pairs.borrow_mut();
        if let Some(at) = pairs.places.get_mut(place as usize) {
            *at = None;
        }
        pairs.place_of.remove(&device_num);
        pairs.free.push(place);
    }

    pub(super) fn put(&self, place: u32, core: &Rc<Core>) {
        let mut pairs = self.pairs.borrow_mut();
        pairs.place_of.insert(core.device_num, place);
        if let Some(at) = pairs.places.get_mut(place as usize) {
            *at = Some(Rc::clone(core));
        }
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> Option<Rc<Core>> {
        self.pairs.borrow().places.get(place as usize)?.clone()
    }

    pub(super) fn by_device_num(&self, num: u32) -> Option<Rc<Core>> {
        let place = *self.pairs.borrow().place_of.get(&num)?;
        self.at(place)
    }

    /// Gives a shared receive queue the number its work requests carry.
    pub(super) fn add_srq(&self, make: impl FnOnce(u32) -> Rc<Srq>) -> Rc<Srq> {
        let mut srqs = self.srqs.borrow_mut();
        let place = srqs.iter().position(|srq| srq.strong_count() == 0);
        let place = place.unwrap_or_else(|| {
            srqs.push(Weak::new());
            srqs.len() - 1
        });
        let srq = make(u32::try_from(place).unwrap_or(u32::MAX));
        srqs[place] = Rc::downgrade(&srq);
        srq
    }

    #[inline]
    pub(super) fn srq_at(&self, place: u32) -> Option<Rc<Srq>> {
        self.srqs.borrow().get(place as usize)?.upgrade()
    }

    /// The device is gone. The end of each of its connections is reported.
    pub(super) fn remove(&self) {
        if !self.removed.replace(true) {
            let device = &self.attributes.name;
            tracing::warn!(device, "the RDMA device was removed; closing what uses it");
            self.context.removed();
        }
    }

    /// Handles an asynchronous event.
    pub(super) fn on_event(&self, event: AsyncEvent) {
        let device = &self.attributes.name;
        let what = match event.kind {
            AsyncEvent::QP_FATAL => "the device broke the queue pair (QP fatal)",
            AsyncEvent::QP_REQ_ERR => "the peer sent an invalid request",
            AsyncEvent::QP_ACCESS_ERR => "the peer broke a key, bound or access right",
            AsyncEvent::PATH_MIG_ERR => "the path failed to migrate",
            AsyncEvent::DEVICE_FATAL => "the device failed (device fatal)",
            AsyncEvent::CQ_ERR => "a completion queue of the device failed or overran",
            AsyncEvent::SRQ_ERR => "a shared receive queue of the device failed",
            AsyncEvent::PORT_ERR => "is down",
            AsyncEvent::PORT_ACTIVE => "is up",
            AsyncEvent::COMM_EST => "",
            _ => return,
        };
        match event.about {
            About::Pair(num) => {
                let Some(core) = self.by_device_num(num) else {
                    return;
                };
                if event.kind == AsyncEvent::COMM_EST {
                    core.established_by_data();
                } else {
                    core.fail(what);
                }
            }
            About::Port(port) if event.kind == AsyncEvent::PORT_ERR => {
                // Connections survive a short loss; a long one ends them by retries exceeded.
                tracing::warn!(device, port, "the port {what}");
            }
            About::Port(port) => tracing::info!(device, port, "the port {what}"),
            About::Other => {
                tracing::error!(device, "{what}: its connections end; look at dmesg");
                let cores: Vec<_> = self
                    .pairs
                    .borrow()
                    .places
                    .iter()
                    .flatten()
                    .cloned()
                    .collect();
                for core in cores {
                    core.fail(what);
                }
            }
        }
    }
}

impl Device for VerbsDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn is_removed(&self) -> bool {
        self.removed.get()
    }

    fn allocate_pd(&self) -> Result<Rc<dyn ProtectionDomain>, RdmaError> {
        let pd = raw::memory::Pd::new(&self.context).map_err(resource("protection domain"))?;
        let id = self.next_pd.get();
        self.next_pd.set(id + 1);
        let device = self.this.upgrade();
        let device = device.ok_or(RdmaError::Invalid("the device is being closed"))?;
        Ok(Rc::new(Pd::new(pd, id, device)))
    }

    fn create_cq(&self, depth: u32) -> Result<Rc<dyn CompletionQueue>, RdmaError> {
        check_limit("completion queue entries", depth, self.attributes.cqe_max)?;
        let entries = i32::try_from(depth.max(1)).unwrap_or(i32::MAX);
        let cq = raw::completion::Cq::new(&self.context, entries);
        let cq = cq.map_err(resource("completion queue"))?;
        let device = self.this.upgrade();
        let device = device.ok_or(RdmaError::Invalid("the device is being closed"))?;
        Ok(Rc::new(Cq::new(cq, device, depth)))
    }
}
