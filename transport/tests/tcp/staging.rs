//! The memory of what is copied to be sent, which the queues of a reactor share.

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_transport::tcp::controller::{self, ControllerQueue, IcSettings};
use capstan_transport::tcp::host::{self, Arrived, HostQueue, Payload};
use capstan_transport::tcp::limits::STAGED_CHUNK_BYTES;
use capstan_transport::tcp::staging::Staging;
use capstan_transport::{Source, Tag};

use super::{controller_events, host_events, pool, request, sent_by_controller, sent_by_host};

const QUEUES: usize = 16;
const READS: u16 = 64;
const LEN: u32 = 4096;
const CHUNKS: usize = 4;

/// A controller that copies to `staging`, and a host that has its ICResp.
fn connected(staging: &Staging, digests: Digests) -> (HostQueue, ControllerQueue) {
    let mut host = HostQueue::new(request(digests, 0, 1), READS, false, 0);
    let mut controller = ControllerQueue::new(IcSettings::default(), 0).within(staging);
    controller.handle_bytes(&sent_by_host(&mut host, usize::MAX), 0);
    host.handle_bytes(&sent_by_controller(&mut controller, usize::MAX), 0);
    host_events(&mut host);
    controller.connected(controller::Connected {
        entries: READS,
        in_capsule_max_bytes: 8192,
        flow_control: false,
    });
    (host, controller)
}

/// Sends as many reads as the queue has entries.
fn ask(host: &mut HostQueue, controller: &mut ControllerQueue, memory: &Pool) {
    for cid in 0..READS {
        let payload = Payload::FromController(memory.take(LEN).expect("memory"), LEN);
        host.send(Sqe::new(2, cid, 1), payload).expect("room");
    }
    controller.handle_bytes(&sent_by_host(host, usize::MAX), 0);
    assert_eq!(controller_events(controller).len(), READS.into());
}

/// Answers every read with data that tells which it is, copied where there is memory for that. How
/// many were copied.
fn answer(controller: &mut ControllerQueue, memory: &Pool) -> u16 {
    let mut copied = 0;
    for cid in 0..READS {
        let mut source = memory.take(LEN).expect("memory");
        source.copy_from(LEN as usize - 2, &cid.to_le_bytes());
        if controller.push_copied(cid, LEN, source.raw()) {
            copied += 1;
        } else {
            let pushed = controller.push(cid, Source::Buffer(Tag(cid), source, 0..LEN));
            pushed.expect("a buffer is always taken");
        }
        controller.respond(&Cqe::new(cid, 0xFFFF, Status::SUCCESS, 0));
    }
    copied
}

fn tells(memory: &Buffer) -> u16 {
    let mut end = [0; 2];
    memory.copy_to(LEN as usize - 2, &mut end);
    u16::from_le_bytes(end)
}

/// The host takes all there is.
fn take(host: &mut HostQueue, controller: &mut ControllerQueue) {
    while controller.has_unsent() {
        // Less than a PDU at a time, and no part of one.
        host.handle_bytes(&sent_by_controller(controller, 3001), 0);
    }
    let events = host_events(host);
    assert_eq!(events.len(), READS.into());
    // Buffers that were not copied.
    controller_events(controller);
    for event in events {
        let host::HostQueueEvent::Response {
            cqe,
            memory: Some(memory),
            arrived: Arrived::Whole,
        } = event
        else {
            panic!("{event:?}");
        };
        assert_eq!(tells(&memory), cqe.cid.get());
    }
}

/// What holds them is the bound: without it each has all of its data copied.
#[test]
fn queues_that_share_without_a_bound_copy_everything() {
    let staging = Staging::default();
    let memory = Pool::new(16 << 20, Pages::Ordinary).expect("memory");
    let mut queues = Vec::new();
    for _ in 0..QUEUES {
        let (mut host, mut controller) = connected(&staging, Digests::empty());
        ask(&mut host, &mut controller, &memory);
        assert_eq!(answer(&mut controller, &memory), READS);
        queues.push((host, controller));
    }
    assert!(staging.made_bytes() > QUEUES * usize::from(READS) * LEN as usize);
}

/// Without the bound each of these queues would copy 256 KiB, 4 MiB in all.
#[test]
fn queues_whose_hosts_take_nothing_stay_within_the_memory_they_share() {
    for digests in [Digests::empty(), Digests::all()] {
        let bytes = CHUNKS * STAGED_CHUNK_BYTES;
        let staging = Staging::new(bytes as u64);
        let memory = Pool::new(16 << 20, Pages::Ordinary).expect("memory");
        let mut queues: Vec<_> = (0..QUEUES).map(|_| connected(&staging, digests)).collect();
        for _ in 0..2 {
            let mut copied = 0;
            for (host, controller) in &mut queues {
                ask(host, controller, &memory);
                copied += usize::from(answer(controller, &memory));
                assert!(staging.made_bytes() <= bytes);
            }
            // Seven PDUs in each piece, and after the first queue in none.
            assert_eq!(copied, 7 * CHUNKS);
            assert_eq!(staging.made_bytes(), bytes);
            for (host, controller) in &mut queues {
                take(host, controller);
            }
        }
        // One that ends gives back what it has.
        let (host, controller) = &mut queues[0];
        ask(host, controller, &memory);
        assert_eq!(usize::from(answer(controller, &memory)), 7 * CHUNKS);
        queues.remove(0);
        let (host, controller) = &mut queues[0];
        ask(host, controller, &memory);
        assert_eq!(usize::from(answer(controller, &memory)), 7 * CHUNKS);
    }
}

/// What is copied whatever there is: responses, and pieces of what Admin commands return.
#[test]
fn responses_and_pieces_need_no_memory_that_is_shared() {
    let staging = Staging::new(0);
    let (mut host, mut controller) = connected(&staging, Digests::all());
    let page = pool().take(LEN).expect("memory");
    let payload = Payload::FromController(pool().take(LEN).expect("memory"), LEN);
    host.send(Sqe::new(6, 0, 0), payload).expect("room");
    for cid in 1..READS {
        host.send(Sqe::new(0, cid, 1), Payload::None).expect("room");
    }
    controller.handle_bytes(&sent_by_host(&mut host, usize::MAX), 0);
    let part = controller::Part {
        offset_bytes: 0,
        last: true,
    };
    let back = controller.push_part(Tag(0), 0, part, (page, LEN), false);
    assert!(back.is_some(), "it was copied");
    for cid in 0..READS {
        controller.respond(&Cqe::new(cid, 0xFFFF, Status::SUCCESS, 0));
    }
    assert_eq!(staging.made_bytes(), 0);
    host.handle_bytes(&sent_by_controller(&mut controller, usize::MAX), 0);
    assert_eq!(host_events(&mut host).len(), READS.into());
}
