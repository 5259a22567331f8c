//! The provider: where a program begins.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::device::VerbsDevice;
use super::error::resource;
use super::hub::{self, Inbox};
use super::manager::Manager;
use super::nodes::NodeWatch;
use super::raw::cm::{Channel, Id};
use super::raw::context::{self, Context};
use super::raw::events::AsyncEvent;
use super::sys::rdma_cm_event_type;
use crate::contract::{ConnectionManager, RdmaError};

/// The verbs provider of one thread.
pub struct Provider {
    shared: Rc<Shared>,
}

/// What the managers of a thread share.
pub(super) struct Shared {
    /// From its first connection on, until it is gone: librdmacm does not close it sooner.
    devices: RefCell<Vec<Rc<VerbsDevice>>>,
    /// Where the anchors of devices report that their device is gone.
    channel: Rc<Channel>,
    /// Reports the same, for when the connection manager does so last.
    nodes: NodeWatch,
    /// How many devices have gone.
    removals: Cell<u64>,
    inbox: Arc<Inbox>,
    numbers: Rc<Cell<u32>>,
    /// Readable when a device has asynchronous events.
    pub(super) epoll: Epoll,
}

impl Provider {
    /// A provider for the calling thread.
    ///
    /// # Errors
    /// The kernel has no RDMA connection manager, or the system has no descriptors left.
    pub fn new() -> Result<Self, RdmaError> {
        super::address::check_kernel().map_err(resource("RDMA connection manager"))?;
        let descriptors = |error: nix::Error| resource("events of RDMA devices")(error.into());
        let inbox = Inbox::new().map_err(descriptors)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(descriptors)?;
        let channel = Channel::new().map_err(resource("RDMA event channel"))?;
        let nodes = NodeWatch::new().map_err(descriptors)?;
        for fd in [inbox.wake.as_fd(), channel.fd(), nodes.as_fd()] {
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
                .map_err(descriptors)?;
        }
        Ok(Self {
            shared: Rc::new(Shared {
                devices: RefCell::default(),
                channel,
                nodes,
                removals: Cell::new(0),
                inbox,
                numbers: Rc::new(Cell::new(1)),
                epoll,
            }),
        })
    }

    /// A connection manager; several share the provider's devices.
    ///
    /// # Errors
    /// The system has no descriptors left, or this user may not use the RDMA connection manager.
    pub fn connection_manager(&self) -> Result<Box<dyn ConnectionManager>, RdmaError> {
        Ok(Box::new(Manager::new(&self.shared)?))
    }
}

impl Shared {
    /// The device of a connection.
    pub(super) fn device(&self, id: &Id) -> Result<Rc<VerbsDevice>, RdmaError> {
        let key = id.device_key();
        let mut devices = self.devices.borrow_mut();
        if let Some(device) = devices
            .iter()
            .find(|device| Some(device.context.key()) == key)
        {
            return Ok(Rc::clone(device));
        }
        let context = Context::hold(id, &self.channel).map_err(resource("RDMA device"))?;
        let device = VerbsDevice::new(context, &self.inbox, &self.numbers)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 1);
        self.epoll
            .add(device.context.async_fd(), event)
            .map_err(|error| resource("events of an RDMA device")(error.into()))?;
        devices.push(Rc::clone(&device));
        Ok(device)
    }

    /// The device of `id` is gone.
    pub(super) fn removed(&self, id: &Id) {
        context::removed(id);
        let gone = |device: &Rc<VerbsDevice>| Some(device.context.key()) == id.device_key();
        self.forget(gone);
    }

    /// How many devices have gone so far.
    pub(super) fn removals(&self) -> u64 {
        self.removals.get()
    }

    /// Releases devices that are gone. They are closed when the program has dropped what it made of
    /// them.
    fn forget(&self, gone: impl Fn(&Rc<VerbsDevice>) -> bool) {
        let mut devices = self.devices.borrow_mut();
        let forgotten: Vec<_> = devices.extract_if(.., |device| gone(device)).collect();
        drop(devices);
        for device in forgotten {
            self.removals.set(self.removals.get() + 1);
            // Other threads may keep the descriptor open, so epoll would go on watching it.
            let _ = self.epoll.delete(device.context.async_fd());
            device.remove();
        }
    }

    /// Handles asynchronous events.
    pub(super) fn take_async_events(&self) {
        while let Some(event) = self.channel.next() {
            if event.kind == rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL {
                self.forget(|device| device.context.is_anchored_by(event.key));
            }
        }
        for node in self.nodes.take() {
            context::node_removed(&node);
            self.forget(|device| device.context.node() == node);
        }
        let devices = self.devices.borrow().clone();
        for device in &devices {
            hub::pump(&device.context);
        }
        while let Some((key, event)) = self.inbox.take() {
            for device in devices.iter().filter(|device| device.context.key() == key) {
                device.on_event(event);
                if event.kind == AsyncEvent::DEVICE_FATAL {
                    // Its descriptor stays readable from now on, without anything to read.
                    let _ = self.epoll.delete(device.context.async_fd());
                }
            }
        }
    }
}
