//! The way in.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::device::VerbsDevice;
use super::error::resource;
use super::hub::{self, Inbox};
use super::manager::Manager;
use super::raw::cm::Id;
use super::raw::events::AsyncEvent;
use crate::contract::{ConnectionManager, RdmaError};

/// The verbs provider of one thread.
pub struct Provider {
    shared: Rc<Shared>,
}

/// What the managers of a thread share.
pub(super) struct Shared {
    devices: RefCell<Vec<Weak<VerbsDevice>>>,
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
        epoll
            .add(&inbox.wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(descriptors)?;
        Ok(Self {
            shared: Rc::new(Shared {
                devices: RefCell::default(),
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
        devices.retain(|device| device.strong_count() > 0);
        let mut known = devices.iter().filter_map(Weak::upgrade);
        if let Some(device) = known.find(|device| Some(device.context.key()) == key) {
            return Ok(device);
        }
        let context = id.context().map_err(resource("RDMA device"))?;
        let device = VerbsDevice::new(context, &self.inbox, &self.numbers)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 1);
        match self.epoll.add(device.context.async_fd().as_fd(), event) {
            // Watched since an earlier look at the same device, which stays open in the process.
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(error) => return Err(resource("events of an RDMA device")(error.into())),
        }
        devices.push(Rc::downgrade(&device));
        Ok(device)
    }

    /// Acts on asynchronous events.
    pub(super) fn take_async_events(&self) {
        let devices: Vec<_> = self
            .devices
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for device in &devices {
            hub::pump(&device.context);
        }
        while let Some((key, event)) = self.inbox.take() {
            for device in devices.iter().filter(|device| device.context.key() == key) {
                device.on_event(event);
                if event.kind == AsyncEvent::DEVICE_FATAL {
                    // Its descriptor stays readable from now on and has nothing more to tell.
                    let _ = self.epoll.delete(device.context.async_fd());
                }
            }
        }
    }
}
