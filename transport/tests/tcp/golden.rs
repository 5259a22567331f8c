//! Bytes that the Linux host and target really sent, through a whole queue
//! (`nvme-proto/tests/tcp/golden/README.md` says how they were captured).

use std::path::Path;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::pdu::{IcReq, TransferHeader};
use capstan_nvme_proto::tcp::setup::IcRequest;
use capstan_transport::tcp::controller::{Connected, ControllerQueue, IcSettings};
use capstan_transport::tcp::host::{self, Arrived, HostQueue, Payload};
use capstan_transport::{Capsule, CapsuleData, Event, Pulled, Source, Tag};
use zerocopy::{FromBytes, IntoBytes};

use super::{controller_events, host_events, pool, sent_by_controller, sent_by_host};

const COMBINATIONS: [&str; 4] = ["none", "hdgst", "ddgst", "hdgst-ddgst"];

fn folder() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../nvme-proto/tests/tcp/golden"
    ))
}

fn load(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let hex: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
        .collect()
}

/// A controller that a Linux host has set up, and answers as the Linux target does.
fn controller(combination: &str) -> ControllerQueue {
    let mut queue = ControllerQueue::new(IcSettings::default(), 0);
    queue.handle_bytes(&load(&format!("icreq-{combination}")), 0);
    assert_eq!(
        sent_by_controller(&mut queue, usize::MAX),
        load(&format!("icresp-{combination}"))
    );
    queue.give(pool().take(8192).expect("memory"));
    queue.connected(Connected {
        entries: 128,
        in_capsule_max_bytes: 8192,
        flow_control: combination == "flow-control",
    });
    queue
}

/// A host that a Linux target has set up.
fn host(combination: &str) -> HostQueue {
    let wire = load(&format!("icreq-{combination}"));
    let request = IcRequest::parse(IcReq::ref_from_bytes(&wire).expect("128 bytes"));
    let mut queue = HostQueue::new(request.expect("an ICReq"), u16::MAX, false, 0);
    assert_eq!(sent_by_host(&mut queue, usize::MAX), wire);
    queue.handle_bytes(&load(&format!("icresp-{combination}")), 0);
    assert!(matches!(
        host_events(&mut queue)[..],
        [host::HostQueueEvent::Ready(_)]
    ));
    queue
}

fn capsule(queue: &mut ControllerQueue, name: &str) -> (Sqe, CapsuleData) {
    queue.handle_bytes(&load(name), 0);
    match controller_events(queue).pop() {
        Some(Event::Capsule(Capsule {
            sqe,
            data,
            intact: true,
        })) => (sqe, data),
        event => panic!("{name}: {event:?}"),
    }
}

#[test]
fn each_command_of_the_linux_host_comes_as_a_capsule() {
    let mut capsules = 0;
    for entry in std::fs::read_dir(folder()).expect("the folder") {
        let name = entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("UTF-8");
        let Some(name) = name
            .strip_suffix(".hex")
            .filter(|n| n.starts_with("capsule-cmd-"))
        else {
            continue;
        };
        let combination = COMBINATIONS
            .iter()
            .rev()
            .find(|c| name.ends_with(&format!("-{c}")));
        let combination = combination.expect(name);
        // "-ddgst" is also the end of "-hdgst-ddgst", which comes first in reverse.
        let (sqe, data) = capsule(&mut controller(combination), name);
        let in_capsule = match name {
            _ if name.contains("connect") => 1024,
            _ if name.contains("write-incapsule") => 4096,
            _ => 0,
        };
        assert_eq!(data.len_bytes(), in_capsule, "{name}");
        assert_eq!(
            sqe.is_fabrics(),
            name.contains("connect") || name.contains("property")
        );
        capsules += 1;
    }
    assert!(capsules > 20, "{capsules}");
}

#[test]
fn a_read_is_answered_byte_for_byte_as_the_linux_target_does() {
    for combination in COMBINATIONS {
        let mut queue = controller(combination);
        let (sqe, _) = capsule(&mut queue, &format!("capsule-cmd-read-{combination}"));
        let answer = load(&format!("c2h-data-read-{combination}"));
        // Behind header and header digest; before the data digest.
        let start = answer[3].into();
        let data = &answer[start..start + 4096];
        let cid = sqe.cid.get();
        let mut copy = |to: &mut dyn FnMut(&[u8])| to(data);
        let pushed = queue.push(cid, Source::Copy(4096, &mut copy));
        assert!(pushed.is_ok());
        queue.respond(&Cqe::new(cid, 0xFFFF, Status::SUCCESS, 0));
        assert_eq!(
            sent_by_controller(&mut queue, usize::MAX),
            answer,
            "{combination}"
        );
    }
}

#[test]
fn a_write_is_pulled_byte_for_byte_as_the_linux_target_does() {
    for combination in COMBINATIONS {
        let mut queue = controller(combination);
        let (sqe, _) = capsule(&mut queue, &format!("capsule-cmd-write-r2t-{combination}"));
        let mut asked = load(&format!("r2t-write-r2t-{combination}"));
        let mut answer = load(&format!("h2c-data-write-r2t-{combination}"));
        let pool = pool();
        let sink = pool.take(8192).expect("memory");
        queue.pull(Tag(5), sqe.cid.get(), 8192, sink).expect("open");
        let ours = sent_by_controller(&mut queue, usize::MAX);
        // The TTAG is the controller's to choose: with that of ours, and no digest of it, they are
        // the same.
        let ttag = TransferHeader::ref_from_prefix(&ours)
            .expect("an R2T")
            .0
            .ttag;
        asked[10..12].copy_from_slice(ttag.as_bytes());
        assert_eq!(ours[..24], asked[..24], "{combination}");
        answer[10..12].copy_from_slice(ttag.as_bytes());
        if combination.starts_with("hdgst") {
            let digest = capstan_nvme_proto::tcp::digest::crc32c(&answer[..24]);
            answer[24..28].copy_from_slice(&digest.to_le_bytes());
        }
        queue.handle_bytes(&answer, 0);
        match &controller_events(&mut queue)[..] {
            [
                Event::Pulled(Pulled {
                    tag: Tag(5),
                    intact: true,
                    sink,
                }),
            ] => {
                let mut bytes = vec![0; 8192];
                sink.copy_to(0, &mut bytes);
                let start = usize::from(answer[3]);
                assert_eq!(bytes, answer[start..start + 8192]);
            }
            events => panic!("{combination}: {events:?}"),
        }
    }
}

#[test]
fn what_the_linux_target_sends_completes_commands() {
    for combination in COMBINATIONS {
        let mut queue = host(combination);
        let pool = pool();
        // The command of ours has the CID of the recorded one.
        let cid_of = |name: &str| {
            let bytes = load(&format!("{name}-{combination}"));
            u16::from_le_bytes([bytes[10], bytes[11]])
        };
        let read = cid_of("capsule-cmd-read");
        let memory = pool.take(4096).expect("memory");
        let payload = Payload::FromController(memory, 4096);
        queue.send(Sqe::new(2, read, 1), payload).expect("room");
        queue.handle_bytes(&load(&format!("c2h-data-read-{combination}")), 0);
        match &host_events(&mut queue)[..] {
            [
                host::HostQueueEvent::Response {
                    cqe,
                    memory: Some(_),
                    arrived: Arrived::Whole,
                },
            ] => {
                assert_eq!((cqe.status(), cqe.cid.get()), (Status::SUCCESS, read));
            }
            events => panic!("{combination}: {events:?}"),
        }
        let write = cid_of("capsule-cmd-write-r2t");
        let recorded = load(&format!("h2c-data-write-r2t-{combination}"));
        let start = usize::from(recorded[3]);
        let mut memory = pool.take(8192).expect("memory");
        memory.copy_from(0, &recorded[start..start + 8192]);
        let payload = Payload::ToController(memory, 8192);
        queue.send(Sqe::new(1, write, 1), payload).expect("room");
        sent_by_host(&mut queue, usize::MAX);
        queue.handle_bytes(&load(&format!("r2t-write-r2t-{combination}")), 0);
        assert_eq!(
            sent_by_host(&mut queue, usize::MAX),
            recorded,
            "{combination}"
        );
        queue.handle_bytes(&load(&format!("capsule-resp-write-r2t-{combination}")), 0);
        let events = host_events(&mut queue);
        assert!(
            matches!(
                &events[..],
                [host::HostQueueEvent::Response {
                    memory: Some(_),
                    ..
                }]
            ),
            "{events:?}"
        );
    }
}
