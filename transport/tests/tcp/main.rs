//! Both sides of a queue of NVMe/TCP in virtual time, over pipes that cut, delay and corrupt; bytes
//! of Linux; and peers that break the rules.

mod bad_peers;
mod golden;
mod link;
mod pair;
mod staging;
mod wire;

use std::collections::VecDeque;

use capstan_memory::{Pages, Pool, RawBytes};
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
use capstan_transport::Event;
use capstan_transport::tcp::controller::{self, ControllerQueue, IcSettings};
use capstan_transport::tcp::host::{self, HostQueue};

fn pool() -> Pool {
    Pool::new(8 << 20, Pages::Ordinary).expect("memory")
}

fn request(digests: Digests, hpda_z: u8, maxr2t: u32) -> IcRequest {
    IcRequest {
        hpda: DataAlignment::from_wire(hpda_z).expect("an alignment"),
        digests,
        maxr2t,
    }
}

/// Bytes of `piece` at the end of `all`, up to `max_bytes` of them. False when that is reached.
fn append(all: &mut Vec<u8>, piece: RawBytes<'_>, max_bytes: usize) -> bool {
    let start = all.len();
    let piece = piece.first(max_bytes - start);
    all.resize(start + piece.len(), 0);
    piece.copy_to(&mut all[start..]);
    all.len() < max_bytes
}

/// Up to `max_bytes` of what a controller has to send.
fn sent_by_controller(queue: &mut ControllerQueue, max_bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    queue.poll_transmit(|piece| append(&mut all, piece, max_bytes));
    queue.transmitted(all.len());
    all
}

/// Up to `max_bytes` of what a host has to send.
fn sent_by_host(queue: &mut HostQueue, max_bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    queue.poll_transmit(|piece| append(&mut all, piece, max_bytes));
    queue.transmitted(all.len());
    all
}

fn controller_events(queue: &mut ControllerQueue) -> Vec<Event> {
    std::iter::from_fn(|| queue.poll_event()).collect()
}

fn host_events(queue: &mut HostQueue) -> Vec<host::HostQueueEvent> {
    std::iter::from_fn(|| queue.poll_event()).collect()
}

/// Bytes on their way, in order.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// Bytes that have passed.
    passed: usize,
    /// One byte that is changed on the way: how many pass before it, and what is added to it.
    corrupt: Option<(usize, u8)>,
}

impl Pipe {
    fn put(&mut self, bytes: Vec<u8>) {
        for mut byte in bytes {
            if let Some((at, add)) = self.corrupt
                && at == self.passed
            {
                byte ^= add;
            }
            self.passed += 1;
            self.bytes.push_back(byte);
        }
    }

    fn take(&mut self, max_bytes: usize) -> Vec<u8> {
        let some = max_bytes.min(self.bytes.len());
        self.bytes.drain(..some).collect()
    }
}

/// A controller, and a host that has its ICResp.
fn connected(
    settings: IcSettings,
    request: IcRequest,
    pool: &Pool,
) -> (HostQueue, ControllerQueue) {
    let mut host = HostQueue::new(request, 64, false, 0);
    let mut controller = ControllerQueue::new(settings, 0);
    controller.handle_bytes(&sent_by_host(&mut host, usize::MAX), 0);
    host.handle_bytes(&sent_by_controller(&mut controller, usize::MAX), 0);
    assert!(matches!(
        host_events(&mut host)[..],
        [host::HostQueueEvent::Ready(_)]
    ));
    controller.connected(controller::Connected {
        entries: 64,
        in_capsule_max_bytes: 8192,
        flow_control: false,
    });
    controller.give(pool.take(8192).expect("memory"));
    (host, controller)
}
