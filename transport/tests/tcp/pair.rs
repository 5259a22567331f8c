//! A host and a controller: all data arrives, however the bytes between them are cut.

use std::collections::VecDeque;

use capstan_memory::{Buffer, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
use capstan_nvme_proto::transfer::DataTransfer;
use capstan_transport::End;
use capstan_transport::tcp::controller::{Connected, ControllerQueue, IcSettings};
use capstan_transport::tcp::host::{self, Arrived, HostQueue, Payload};
use capstan_transport::tcp::host_memory;
use capstan_transport::{Capsule, CapsuleData, EndReason, Event, Pulled, Pushed, Source, Tag};
use proptest::prelude::*;

use super::{
    Pipe, controller_events, host_events, pool, request, sent_by_controller, sent_by_host,
};

const WRITE: u8 = 1;
const READ: u8 = 2;
const FLUSH: u8 = 0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    WriteInCapsule,
    WritePulled,
    ReadBuffer,
    ReadZeroes,
    ReadCopy,
    Flush,
}

#[derive(Clone, Debug)]
struct Plan {
    request: IcRequest,
    settings: IcSettings,
    flow_control: bool,
    commands: Vec<(Kind, u32)>,
    cuts: Vec<usize>,
}

fn pattern(cid: u16, len_bytes: u32) -> Vec<u8> {
    let seed = u32::from(cid).wrapping_mul(77);
    (0..len_bytes)
        .map(|at| {
            at.wrapping_mul(0x9E37_79B9)
                .wrapping_add(seed)
                .to_be_bytes()[0]
        })
        .collect()
}

fn bytes_of(buffer: &Buffer, len_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes as usize];
    buffer.copy_to(0, &mut bytes);
    bytes
}

fn commands() -> impl Strategy<Value = Vec<(Kind, u32)>> {
    let large = 1..150_000_u32;
    let one = prop_oneof![
        (1..8193_u32).prop_map(|len| (Kind::WriteInCapsule, len)),
        large.clone().prop_map(|len| (Kind::WritePulled, len)),
        large.clone().prop_map(|len| (Kind::ReadBuffer, len)),
        large.prop_map(|len| (Kind::ReadZeroes, len)),
        (1..40_000_u32).prop_map(|len| (Kind::ReadCopy, len)),
        Just((Kind::Flush, 0)),
    ];
    prop::collection::vec(one, 1..14)
}

fn plans() -> impl Strategy<Value = Plan> {
    let cuts = prop_oneof![
        prop::collection::vec(1..200_usize, 1..9),
        prop::collection::vec(1..70_000_usize, 1..9),
    ];
    let sizes = (
        prop::sample::select(vec![4096_u32, 8192, 65_536]),
        prop::sample::select(vec![1000_u32, 16_384, 40_000, u32::MAX]),
    );
    (
        (0..4_u8, 0..32_u8, 0..32_u8, 1..6_u32),
        sizes,
        any::<bool>(),
        commands(),
        cuts,
    )
        .prop_map(
            |(
                (digests, hpda_z, cpda_z, maxr2t),
                (maxh2cdata_bytes, r2t_max_bytes),
                flow_control,
                commands,
                cuts,
            )| Plan {
                request: request(Digests::from_bits_truncate(digests), hpda_z, maxr2t),
                settings: IcSettings {
                    digests: Digests::all(),
                    cpda: DataAlignment::from_wire(cpda_z).expect("an alignment"),
                    maxh2cdata_bytes,
                    r2t_max_bytes,
                },
                flow_control,
                commands,
                cuts,
            },
        )
}

/// What the user of each queue does, and what it has seen.
struct Pair {
    pool: Pool,
    plan: Plan,
    host: HostQueue,
    controller: ControllerQueue,
    to_controller: Pipe,
    to_host: Pipe,
    /// Commands that are complete, and how.
    done: Vec<Option<(Status, Arrived)>>,
    written: Vec<bool>,
    host_ended: Option<EndReason>,
    controller_ended: Option<EndReason>,
}

impl Pair {
    fn new(plan: Plan) -> Self {
        let pool = pool();
        let count = plan.commands.len();
        Self {
            host: HostQueue::new(plan.request, 64, plan.flow_control, 0),
            controller: ControllerQueue::new(plan.settings, 0),
            pool,
            plan,
            to_controller: Pipe::default(),
            to_host: Pipe::default(),
            done: vec![None; count],
            written: vec![false; count],
            host_ended: None,
            controller_ended: None,
        }
    }

    fn submit(&mut self) {
        for (cid, (kind, len)) in (0_u16..).zip(self.plan.commands.clone()) {
            let buffer = |fill: bool| {
                let mut buffer = self.pool.take(len).expect("memory");
                let bytes = if fill {
                    pattern(cid, len)
                } else {
                    vec![0xEE; len as usize]
                };
                buffer.copy_from(0, &bytes);
                buffer
            };
            let (opcode, payload) = match kind {
                Kind::WriteInCapsule => (WRITE, Payload::InCapsule(buffer(true), len)),
                Kind::WritePulled => (WRITE, Payload::ToController(buffer(true), len)),
                Kind::Flush => (FLUSH, Payload::None),
                _ => (READ, Payload::FromController(buffer(false), len)),
            };
            let sqe = Sqe::new(opcode, cid, 1);
            self.host.send(sqe, payload).expect("room");
        }
    }

    fn respond(&mut self, cid: u16, status: Status) {
        let sqhd = if self.plan.flow_control { 1 } else { 0xFFFF };
        self.controller.respond(&Cqe::new(cid, sqhd, status, 0));
    }

    fn capsule(&mut self, sqe: &Sqe, data: &mut CapsuleData, intact: bool) {
        let cid = sqe.cid.get();
        if !intact {
            return self.respond(cid, Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let Some((kind, len)) = self.plan.commands.get(usize::from(cid)).copied() else {
            panic!("a command that was not sent: {cid}");
        };
        let bytes = u64::from(len);
        let transfer = match kind {
            Kind::WriteInCapsule | Kind::WritePulled => DataTransfer::HostToController { bytes },
            Kind::Flush => DataTransfer::None,
            _ => DataTransfer::ControllerToHost { bytes },
        };
        let memory = host_memory(sqe, transfer, data).expect("an SGL");
        assert_eq!(memory.len_bytes(), len);
        let tag = Tag(cid);
        let pushed = match kind {
            Kind::WriteInCapsule => {
                assert!(memory.is_in_capsule());
                let CapsuleData::Landed(landed) = data else {
                    panic!("{data:?}");
                };
                self.written[usize::from(cid)] = true;
                assert_eq!(bytes_of(&landed.buffer, len), pattern(cid, len));
                return self.respond(cid, Status::SUCCESS);
            }
            Kind::WritePulled => {
                assert!(memory.is_remote());
                let sink = self.pool.take(len).expect("memory");
                self.controller
                    .pull(tag, cid, len, sink)
                    .expect("an open queue");
                return;
            }
            Kind::Flush => Ok(Pushed::Gone(None)),
            Kind::ReadBuffer => {
                let mut source = self.pool.take(len + 100).expect("memory");
                source.copy_from(100, &pattern(cid, len));
                self.controller
                    .push(cid, Source::Buffer(tag, source, 100..len + 100))
            }
            Kind::ReadZeroes => self.controller.push(cid, Source::Zeroes(len)),
            Kind::ReadCopy => {
                let bytes = pattern(cid, len);
                let mut copy = |to: &mut dyn FnMut(&[u8])| bytes.chunks(999).for_each(to);
                let pushed = self.controller.push(cid, Source::Copy(len, &mut copy));
                assert!(matches!(pushed, Ok(Pushed::Gone(None))), "{pushed:?}");
                return self.respond(cid, Status::SUCCESS);
            }
        };
        assert!(pushed.is_ok(), "{pushed:?}");
        self.respond(cid, Status::SUCCESS);
    }

    fn controller_turn(&mut self) {
        for event in controller_events(&mut self.controller) {
            match event {
                Event::Capsule(Capsule {
                    sqe,
                    mut data,
                    intact,
                }) => self.capsule(&sqe, &mut data, intact),
                Event::Pulled(Pulled {
                    tag: Tag(cid),
                    sink,
                    intact,
                }) => {
                    let (_, len) = self.plan.commands[usize::from(cid)];
                    let status = if intact {
                        assert_eq!(bytes_of(&sink, len), pattern(cid, len));
                        self.written[usize::from(cid)] = true;
                        Status::SUCCESS
                    } else {
                        Status::TRANSIENT_TRANSPORT_ERROR
                    };
                    self.respond(cid, status);
                }
                Event::Returned(..) | Event::Room | Event::Quiesced => {}
                Event::Released | Event::Fenced(_) => panic!("they are of a wire"),
                Event::Ended(reason) => self.controller_ended = Some(reason),
            }
        }
    }

    fn host_turn(&mut self) {
        for event in host_events(&mut self.host) {
            match event {
                host::HostQueueEvent::Ready(_) => {
                    for _ in &self.plan.commands {
                        self.controller.give(self.pool.take(8192).expect("memory"));
                    }
                    self.controller.connected(Connected {
                        entries: 64,
                        in_capsule_max_bytes: 8192,
                        flow_control: self.plan.flow_control,
                    });
                    self.submit();
                }
                host::HostQueueEvent::Response {
                    cqe,
                    memory,
                    arrived,
                } => {
                    let cid = cqe.cid.get();
                    let (kind, len) = self.plan.commands[usize::from(cid)];
                    let all = cqe.status() == Status::SUCCESS && arrived == Arrived::Whole;
                    if let Some(memory) = memory.filter(|_| all) {
                        let expected = match kind {
                            Kind::ReadZeroes => vec![0; len as usize],
                            _ => pattern(cid, len),
                        };
                        assert_eq!(bytes_of(&memory, len), expected, "{kind:?}");
                    }
                    let done = &mut self.done[usize::from(cid)];
                    assert!(done.is_none(), "two responses of one command");
                    *done = Some((cqe.status(), arrived));
                }
                host::HostQueueEvent::Ended(reason) => self.host_ended = Some(reason),
                host::HostQueueEvent::Room
                | host::HostQueueEvent::Returned(..)
                | host::HostQueueEvent::Quiesced => {}
            }
        }
    }

    /// Until nothing moves any more.
    fn run(&mut self) {
        let cuts = self.plan.cuts.clone();
        let mut now_us = 0;
        let mut idle = 0;
        for (turn, cut) in cuts.iter().cycle().enumerate() {
            now_us += 1;
            let mut moved = false;
            // The two directions are late by turns.
            if turn % 3 != 0 {
                let bytes = sent_by_host(&mut self.host, *cut);
                moved |= !bytes.is_empty();
                self.to_controller.put(bytes);
                let bytes = self.to_host.take(*cut);
                moved |= !bytes.is_empty();
                self.host.handle_bytes(&bytes, now_us);
                self.host_turn();
            }
            if turn % 3 != 1 {
                let bytes = sent_by_controller(&mut self.controller, *cut);
                moved |= !bytes.is_empty();
                self.to_host.put(bytes);
                let bytes = self.to_controller.take(*cut);
                moved |= !bytes.is_empty();
                self.controller.handle_bytes(&bytes, now_us);
                self.controller_turn();
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle == 6 {
                return;
            }
        }
    }

    /// Both ends close: every buffer is back, and Quiesced is the last of their events.
    fn close(mut self) {
        self.host.end(End::Now, 0);
        assert!(self.host.wants_close() || self.host_ended.is_some());
        self.host.closed();
        self.controller.handle_end(None);
        assert!(self.controller.wants_close());
        self.controller.closed();
        let of_host = host_events(&mut self.host);
        assert!(matches!(
            of_host.last(),
            Some(host::HostQueueEvent::Quiesced)
        ));
        let of_controller = controller_events(&mut self.controller);
        assert!(matches!(of_controller.last(), Some(Event::Quiesced)));
        drop((of_host, of_controller));
        let pool = self.pool.clone();
        drop(self);
        assert_eq!(pool.free_bytes(), 8 << 20);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_data_arrives_however_the_bytes_are_cut(plan in plans()) {
        let mut pair = Pair::new(plan);
        pair.run();
        prop_assert_eq!((&pair.host_ended, &pair.controller_ended), (&None, &None));
        for (cid, (kind, _)) in pair.plan.commands.iter().enumerate() {
            prop_assert_eq!(pair.done[cid], Some((Status::SUCCESS, Arrived::Whole)), "{:?}", kind);
            let writes = matches!(kind, Kind::WriteInCapsule | Kind::WritePulled);
            prop_assert_eq!(pair.written[cid], writes);
        }
        pair.close();
    }

    /// With both digests, a byte that is changed on the way is never data of a command that
    /// succeeds ([`Pair`] looks at all data that both sides take for intact).
    #[test]
    fn a_changed_byte_is_never_taken_for_data(
        plan in plans(),
        to_host in any::<bool>(),
        at in any::<prop::sample::Index>(),
        add in 1..=255_u8,
    ) {
        let mut plan = plan;
        plan.request.digests = Digests::all();
        let mut whole = Pair::new(plan.clone());
        whole.run();
        let passed = if to_host { whole.to_host.passed } else { whole.to_controller.passed };
        whole.close();
        // ICReq and ICResp have no digest.
        prop_assume!(passed > 128);
        let corrupt = Some((128 + at.index(passed - 128), add));
        let mut pair = Pair::new(plan);
        if to_host {
            pair.to_host.corrupt = corrupt;
        } else {
            pair.to_controller.corrupt = corrupt;
        }
        pair.run();
        pair.close();
    }
}

#[test]
fn success_stands_for_a_response_only_without_flow_control() {
    let bytes_to_host = |flow_control| {
        let mut pair = Pair::new(Plan {
            request: request(Digests::empty(), 0, 1),
            settings: IcSettings::default(),
            flow_control,
            commands: vec![(Kind::ReadBuffer, 4096), (Kind::ReadBuffer, 65_536)],
            cuts: vec![1 << 20],
        });
        pair.run();
        assert!(pair.done.iter().all(Option::is_some));
        let passed = pair.to_host.passed;
        pair.close();
        passed
    };
    let data = 128 + 2 * 24 + 4096 + 65_536;
    assert_eq!(bytes_to_host(false), data);
    assert_eq!(bytes_to_host(true), data + 2 * 24);
}

/// More writes than there are R2Ts, which are answered one by one: each that waits is asked for in
/// the end, however long that goes on.
#[test]
fn a_pull_that_waits_for_an_r2t_is_never_forgotten() {
    const AT_ONCE: u16 = 900;
    const COMMANDS: usize = 20_000;
    const TAGS: u16 = 8000;
    let pool = pool();
    let mut host = HostQueue::new(request(Digests::empty(), 0, 1), AT_ONCE, false, 0);
    let mut controller = ControllerQueue::new(IcSettings::default(), 0);
    controller.handle_bytes(&sent_by_host(&mut host, usize::MAX), 0);
    host.handle_bytes(&sent_by_controller(&mut controller, usize::MAX), 0);
    controller.connected(Connected {
        entries: AT_ONCE,
        in_capsule_max_bytes: 8192,
        flow_control: false,
    });
    let send = |host: &mut HostQueue, cid, memory| {
        let payload = Payload::ToController(memory, 512);
        host.send(Sqe::new(WRITE, cid, 1), payload).expect("room");
    };
    for cid in 0..AT_ONCE {
        send(&mut host, cid, pool.take(512).expect("memory"));
    }
    let (mut sent, mut done) = (usize::from(AT_ONCE), 0);
    // Tags that were used lately come last.
    let mut tags: VecDeque<u16> = (0..TAGS).collect();
    let mut cid_of = [0; TAGS as usize];
    loop {
        controller.handle_bytes(&sent_by_host(&mut host, usize::MAX), 0);
        for event in controller_events(&mut controller) {
            match event {
                Event::Capsule(Capsule { sqe, .. }) => {
                    let (cid, sink) = (sqe.cid.get(), pool.take(512).expect("memory"));
                    let tag = tags.pop_front().expect("a tag");
                    cid_of[usize::from(tag)] = cid;
                    controller.pull(Tag(tag), cid, 512, sink).expect("open");
                }
                Event::Pulled(Pulled { tag, .. }) => {
                    let cid = cid_of[usize::from(tag.0)];
                    controller.respond(&Cqe::new(cid, 0xFFFF, Status::SUCCESS, 0));
                    tags.push_back(tag.0);
                }
                event => panic!("{event:?}"),
            }
        }
        // One R2T or one response.
        let one = sent_by_controller(&mut controller, 24);
        if one.is_empty() {
            break;
        }
        host.handle_bytes(&one, 0);
        for event in host_events(&mut host) {
            if let host::HostQueueEvent::Response { cqe, memory, .. } = event {
                done += 1;
                if sent < COMMANDS {
                    sent += 1;
                    send(&mut host, cqe.cid.get(), memory.expect("memory"));
                }
            }
        }
    }
    assert_eq!((sent, done), (COMMANDS, COMMANDS));
}
