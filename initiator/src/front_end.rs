//! Front ends: what turns requests of other software (FUSE, NBD) into I/O, on the driver's own
//! thread, so that no request crosses threads and data lands in registered memory at once.

use std::os::fd::RawFd;

use capstan_memory::Buffer;
use capstan_reactor::Armed;

use crate::allocation::{Allocated, Asked};
use crate::driver::{AssociationEngine, Completion, Io, Refused, Source};
use crate::host::{AssociationStatus, NamespaceInfo};

/// A source of I/O on the driver's thread.
///
/// The driver calls [`FrontEnd::poll`] in every turn, [`FrontEnd::completed`] for every finished
/// I/O it submitted, and [`FrontEnd::arm`] before it sleeps. None of them may block.
pub trait FrontEnd {
    /// The namespace it serves.
    fn nsid(&self) -> u32;

    /// Takes what has arrived and submits it, within a budget of its own; sends what is ready.
    /// `true` when something was done.
    fn poll(&mut self, queue: &mut QueueHandle<'_>, now_us: u64) -> bool;

    /// An I/O it submitted is finished. Its buffer can be read, sent, submitted again, kept, or
    /// dropped.
    fn completed(&mut self, completion: Completion, queue: &mut QueueHandle<'_>);

    /// What it asked with [`QueueHandle::look_up`] is answered: `None` where that tells nothing.
    fn looked_up(&mut self, token: u64, allocated: Option<Allocated>) {
        let _ = (token, allocated);
    }

    /// Prepares to sleep: pushes the descriptors that become readable when there is something to
    /// do (descriptors of an `epoll` where writability counts).
    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed;

    /// Its namespace is not as it was, or was found for the first time since this was attached.
    fn namespace_changed(&mut self, namespace: &NamespaceInfo) {
        let _ = namespace;
    }

    /// When to poll even if every descriptor stays silent.
    fn next_deadline_us(&self) -> Option<u64> {
        None
    }

    /// Its work is over: it is dropped after its last I/O has come back.
    fn is_finished(&self) -> bool;
}

/// A front end's way to submit I/O.
pub struct QueueHandle<'a> {
    pub(crate) engine: &'a mut AssociationEngine,
    pub(crate) source: Source,
    pub(crate) now_us: u64,
    /// I/Os taken through this handle.
    pub(crate) submitted: usize,
    /// What is to be asked of the controller, with its token.
    pub(crate) lookups: &'a mut Vec<(u64, Asked)>,
}

impl QueueHandle<'_> {
    /// Leases registered memory of `len_bytes`; `None` when none that large is free now: try again
    /// after a completion.
    #[must_use]
    pub fn take(&self, len_bytes: u32) -> Option<Buffer> {
        self.engine.data_pool().take(len_bytes)
    }

    /// Submits an I/O whose data is at the start of `buffer`, a lease of [`QueueHandle::take`].
    /// `token` comes back in the completion. While the controller is lost the I/O waits; it fails
    /// when the controller is gone for good.
    ///
    /// # Errors
    /// [`Refused`] with the buffer: too many in progress (try again after a completion), or it
    /// cannot succeed.
    pub fn submit(&mut self, token: u64, io: Io, buffer: Option<Buffer>) -> Result<(), Refused> {
        self.engine.submit(self.source, token, io, buffer)?;
        self.submitted += 1;
        Ok(())
    }

    /// Asks the controller what is allocated of `nlb` blocks from `slba` on. `token` comes back in
    /// [`FrontEnd::looked_up`].
    pub fn look_up(&mut self, token: u64, nsid: u32, slba: u64, nlb: u32) {
        self.lookups.push((token, Asked { nsid, slba, nlb }));
    }

    /// A namespace as it is now.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceInfo> {
        let namespaces = self.engine.host().namespaces();
        namespaces.iter().find(|n| n.nsid == nsid)
    }

    /// Where the association is.
    #[must_use]
    pub fn status(&self) -> AssociationStatus {
        self.engine.status(self.now_us)
    }

    /// Most data one command carries, in bytes. Larger I/Os are cut.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u32 {
        self.engine.transfer_bytes_max()
    }

    /// Most I/Os in progress at once, of all front ends together.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.engine.capacity()
    }
}
