//! Notices device nodes that disappear.
//!
//! `rdma link delete`, the unbinding of a driver and a hot unplug first take the node of the device
//! away (`ib_uverbs_remove_one` in Linux). Where the driver cannot disassociate its users, that is
//! all there is to see before every program has closed the device, when the modules were loaded in
//! an order that removes the connection manager's side (`RDMA_CM_EVENT_DEVICE_REMOVAL`) afterwards.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::address::NODES;

/// A watch of the folder of device nodes.
pub(super) struct NodeWatch(Inotify);

impl NodeWatch {
    pub(super) fn new() -> nix::Result<Self> {
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        watch.add_watch(NODES, AddWatchFlags::IN_DELETE)?;
        Ok(Self(watch))
    }

    /// Names of nodes that have gone since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        // It is an error as well when there is nothing to read.
        let events = self.0.read_events().unwrap_or_default();
        let names = events.into_iter().filter_map(|event| event.name);
        names.filter_map(|name| name.into_string().ok()).collect()
    }
}

impl AsFd for NodeWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
