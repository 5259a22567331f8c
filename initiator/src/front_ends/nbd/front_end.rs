//! The NBD server on the driver's thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use capstan_rdma::PEER_CAUSED;
use capstan_reactor::Armed;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{Connection, Interest};
use super::handshake::Export;
use super::socket::NbdSocket;
use super::wire::{PAYLOAD_BYTES_MAX, TransmissionFlags};
use crate::allocation::Allocated;
use crate::driver::Completion;
use crate::front_end::{FrontEnd, QueueHandle};
use crate::front_ends::block::{Geometry, NamespaceQueue};
use crate::host::NamespaceInfo;

/// Connections at once. All are of one user; a few are what any tool opens.
const CONNECTIONS_MAX: usize = 16;
/// Names the listening socket to epoll; connections have their index.
const LISTENER: u64 = u64::MAX;
/// The preferred block size, in bytes: a page.
const PREFERRED_BYTES: u32 = 4096;
/// How soon to try again for memory that others hold, in microseconds.
const RETRY_US: u64 = 1000;

struct Place {
    connection: Connection,
    /// What epoll was told.
    interest: Interest,
    in_flight: usize,
}

/// Serves a volume on a unix socket. See the [module](super).
pub struct NbdFrontEnd {
    socket: NbdSocket,
    epoll: Epoll,
    export: Export,
    geometry: Geometry,
    places: Vec<Option<Place>>,
    /// Served first in the next turn.
    first: usize,
    retry_us: Option<u64>,
}

impl NbdFrontEnd {
    /// Serves `geometry`'s namespace on `socket` as export `name`.
    ///
    /// # Errors
    /// No epoll descriptor.
    pub fn new(
        socket: NbdSocket,
        geometry: Geometry,
        name: &str,
        description: &str,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            socket,
            epoll,
            export: export(&geometry, name, description),
            geometry,
            places: (0..CONNECTIONS_MAX).map(|_| None).collect(),
            first: 0,
            retry_us: None,
        })
    }

    fn take_events(&mut self) -> bool {
        let mut events = [EpollEvent::empty(); CONNECTIONS_MAX + 1];
        let count = self
            .epoll
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        let mut accept = false;
        for event in events.iter().take(count) {
            if event.data() == LISTENER {
                accept = true;
                continue;
            }
            let index = usize::try_from(event.data()).unwrap_or(usize::MAX);
            let Some(place) = self.places.get_mut(index).and_then(Option::as_mut) else {
                continue;
            };
            let flags = event.events();
            if flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
                // What it has sent before is not worth doing any more: it cannot be answered.
                self.forget(index);
                continue;
            }
            if flags.contains(EpollFlags::EPOLLIN) {
                place.connection.set_readable();
            }
            if flags.contains(EpollFlags::EPOLLOUT) {
                place.connection.set_writable();
            }
        }
        if accept {
            self.accept();
        }
        count > 0
    }

    /// Closes the socket of a connection; its place is kept until its I/O is back.
    fn forget(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index).and_then(Option::as_mut) {
            // Closing takes it out of epoll.
            place.connection.hung_up();
            place.interest = Interest::default();
        }
    }

    fn accept(&mut self) {
        // Bounded by the backlog of the socket, and each round is one connection.
        loop {
            let stream = match self.socket.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("an NBD connection could not be accepted: {error}");
                    return;
                }
            };
            let Some(index) = self.places.iter().position(Option::is_none) else {
                tracing::warn!("an NBD connection was refused: {CONNECTIONS_MAX} are open already");
                continue;
            };
            let event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
            if let Err(error) = self.epoll.add(&stream, event) {
                tracing::warn!("an NBD connection could not be watched: {error}");
                continue;
            }
            tracing::info!(connection = index, "NBD client connected");
            if let Some(place) = self.places.get_mut(index) {
                *place = Some(Place {
                    connection: Connection::new(stream),
                    interest: Interest {
                        readable: true,
                        writable: false,
                    },
                    in_flight: 0,
                });
            }
        }
    }

    /// The connection that a token names.
    fn place_of(&mut self, token: u64) -> Option<&mut Place> {
        let index = usize::try_from(token >> 32).unwrap_or(usize::MAX);
        self.places.get_mut(index)?.as_mut()
    }

    /// Lets one connection work; drops it when it is over.
    fn serve(&mut self, index: usize, queue: &mut QueueHandle<'_>) -> bool {
        let Some(Some(place)) = self.places.get_mut(index) else {
            return false;
        };
        let mut counted = Counted {
            queue: NamespaceQueue {
                queue,
                nsid: self.geometry.nsid,
            },
            high: (index as u64) << 32,
            submitted: 0,
        };
        let busy = place
            .connection
            .turn(&self.export, &self.geometry, &mut counted);
        place.in_flight += counted.submitted;
        if let Some(reason) = place.connection.is_over()
            && place.in_flight == 0
        {
            tracing::info!(connection = index, reason, "NBD connection closed");
            if let Some(place) = self.places.get_mut(index) {
                *place = None;
            }
            return true;
        }
        let interest = place.connection.interest();
        if interest != place.interest
            && let Some(stream) = place.connection.stream()
        {
            place.interest = interest;
            let mut event = EpollEvent::new(flags(interest), index as u64);
            if let Err(error) = self.epoll.modify(stream, &mut event) {
                tracing::warn!("an NBD connection could not be watched: {error}");
                self.forget(index);
            }
        }
        busy
    }
}

impl FrontEnd for NbdFrontEnd {
    fn nsid(&self) -> u32 {
        self.geometry.nsid
    }

    fn poll(&mut self, queue: &mut QueueHandle<'_>, now_us: u64) -> bool {
        let mut busy = self.take_events();
        for at in 0..CONNECTIONS_MAX {
            busy |= self.serve((self.first + at) % CONNECTIONS_MAX, queue);
        }
        self.first = (self.first + 1) % CONNECTIONS_MAX;
        // A completion of its own wakes a blocked connection; one of others does not.
        let blocked = |place: &Place| place.connection.is_blocked() && place.in_flight == 0;
        let any_blocked = self.places.iter().flatten().any(blocked);
        self.retry_us = any_blocked.then_some(now_us + RETRY_US);
        busy
    }

    fn completed(&mut self, completion: Completion, _queue: &mut QueueHandle<'_>) {
        if let Some(place) = self.place_of(completion.token) {
            place.in_flight -= 1;
            let token = completion.token & u64::from(u32::MAX);
            place
                .connection
                .completed(token, completion.result, completion.buffer);
        }
    }

    fn looked_up(&mut self, token: u64, allocated: Option<Allocated>) {
        if let Some(place) = self.place_of(token) {
            place.in_flight -= 1;
            let token = token & u64::from(u32::MAX);
            place.connection.looked_up(token, allocated.as_ref());
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        // Level-triggered: what is there already makes it readable.
        fds.push(self.epoll.0.as_fd().as_raw_fd());
        Armed::Quiet
    }

    /// Those who connect from now on see it: a connection has one size for life.
    fn namespace_changed(&mut self, namespace: &NamespaceInfo) {
        if let Some(size_bytes) = self.geometry.new_size(namespace) {
            tracing::info!(
                target: PEER_CAUSED,
                "the export has {size_bytes} bytes now, had {}: connect again to see it",
                self.geometry.size_bytes
            );
            self.geometry.size_bytes = size_bytes;
            self.export.size_bytes = size_bytes;
        }
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.retry_us
    }

    fn is_finished(&self) -> bool {
        false
    }
}

/// A queue that puts the connection into the token, and counts.
struct Counted<'q, 'e> {
    queue: NamespaceQueue<'q, 'e>,
    high: u64,
    submitted: usize,
}

impl crate::front_ends::block::BlockQueue for Counted<'_, '_> {
    fn take(&mut self, len_bytes: u32) -> Option<capstan_memory::Buffer> {
        self.queue.take(len_bytes)
    }

    fn submit(
        &mut self,
        token: u64,
        op: crate::driver::Op,
        buffer: Option<capstan_memory::Buffer>,
    ) -> Result<(), crate::driver::Refused> {
        self.queue.submit(self.high | token, op, buffer)?;
        self.submitted += 1;
        Ok(())
    }

    fn look_up(&mut self, token: u64, slba: u64, nlb: u32) {
        self.queue.look_up(self.high | token, slba, nlb);
        self.submitted += 1;
    }
}

fn flags(interest: Interest) -> EpollFlags {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, interest.readable);
    flags.set(EpollFlags::EPOLLOUT, interest.writable);
    flags
}

/// What clients are told of a namespace.
fn export(geometry: &Geometry, name: &str, description: &str) -> Export {
    // A Flush covers every write completed before it, on whatever queue and connection (NVM command
    // set 1.0, section 3.3.2 Flush), so clients may open several.
    let mut flags = TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::SEND_FUA
        | TransmissionFlags::CAN_MULTI_CONN;
    flags.set(TransmissionFlags::READ_ONLY, geometry.read_only);
    let writable = !geometry.read_only;
    flags.set(TransmissionFlags::SEND_TRIM, writable && geometry.discard);
    flags.set(
        TransmissionFlags::SEND_WRITE_ZEROES,
        writable && geometry.write_zeroes,
    );
    Export {
        name: name.to_owned(),
        description: description.to_owned(),
        size_bytes: geometry.size_bytes,
        flags,
        minimum_bytes: geometry.lba_bytes,
        preferred_bytes: geometry.lba_bytes.max(PREFERRED_BYTES),
        maximum_bytes: PAYLOAD_BYTES_MAX,
    }
}
