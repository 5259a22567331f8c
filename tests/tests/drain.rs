//! What a target that shuts down still owes its hosts.

use std::rc::Rc;
use std::thread::{sleep, spawn};
use std::time::Duration;

use capstan_memory::Buffer;
use capstan_nvme_proto::command::{IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::iwarp::Config;
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};
use zerocopy::IntoBytes as _;

const LBA_BYTES: u32 = 4096;
const READ_BYTES: u32 = 128 << 10;
/// All that a queue of 32 entries takes, and more than the sockets hold.
const READS_MAX: u16 = 31;
const SQE_BYTES: u32 = 64;
const FIRST: u16 = 1000;
const SECOND: u16 = 1001;
/// In which a target does all it can without its host.
const LONG: Duration = Duration::from_millis(50);

/// A host that does nothing but what it is told to, over TCP: what it has not received is in the
/// sockets.
fn connect(target: &TestTarget) -> (Rc<Wire>, WireHost) {
    let config = Config {
        same_host: false,
        ..Config::default()
    };
    let wire = Wire::new(config, 1024, 33 * READ_BYTES as usize);
    let host = WireHost::connect_through(wire.clone(), target.addresses[0], connect_data(1));
    (wire, host)
}

fn write(slba: u64, cid: u16, sgl: Sgl) -> Sqe {
    IoCommand::Write(Write::new(1, LbaRange { slba, nlb: 1 })).encode(cid, sgl)
}

/// Sends a command. The answer is its capsule, to be kept until the response has come.
fn send(wire: &Wire, host: &mut WireHost, sqe: &Sqe) -> Buffer {
    let mut capsule = wire.take(SQE_BYTES);
    capsule.copy_from(0, sqe.as_bytes());
    host.post(Queue::Io, wire.sge(&capsule, 0, SQE_BYTES), false);
    host.ring_doorbell(Queue::Io);
    capsule
}

fn assert_success(cqe: Option<Cqe>, cid: u16) {
    let cqe = cqe.expect("a response before the end");
    assert_eq!(cqe.cid.get(), cid);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
}

/// Data is read from memory while the host does nothing, so that a command is over for the target
/// before all of its data and its response have left. With one of these numbers it is the last
/// command whose rest the full socket holds up.
#[test]
fn a_response_that_a_full_socket_holds_up_leaves_before_the_end() {
    let mut held_up = false;
    for reads in 1..=READS_MAX {
        let target = TestTarget::ram("reactors = 1");
        let (wire, mut host) = connect(&target);
        let lbas = READ_BYTES / LBA_BYTES;
        let written = [0x5a; LBA_BYTES as usize];
        let last = write(u64::from(lbas) - 1, FIRST, Sgl::EMPTY);
        let (cqe, _) = host.run(Queue::Io, last, Data::InCapsule(&written));
        assert!(cqe.status().is_success());

        let cids = FIRST..FIRST + reads;
        let sent = cids.clone().map(|cid| {
            let data = wire.take(READ_BYTES);
            let all = Read::new(1, LbaRange { slba: 0, nlb: lbas });
            let read = IoCommand::Read(all).encode(cid, wire.keyed(&data));
            let capsule = send(&wire, &mut host, &read);
            // In a turn of its own: not a part of the same batch as others.
            sleep(LONG / 50);
            (capsule, data)
        });
        let sent: Vec<_> = sent.collect();
        sleep(LONG);
        let stop = spawn(|| target.stop());
        sleep(LONG);
        held_up |= !stop.is_finished();
        for (cid, (_capsule, data)) in cids.zip(&sent) {
            assert_success(host.next_response(Queue::Io), cid);
            let mut found = vec![0; READ_BYTES as usize];
            data.copy_to(0, &mut found);
            let (zeroes, found) = found.split_at((READ_BYTES - LBA_BYTES) as usize);
            assert!(zeroes.iter().all(|byte| *byte == 0), "zeroes before");
            assert!(found == written, "the block");
        }
        drop(host);
        stop.join().expect("the target drains");
    }
    assert!(
        held_up,
        "the sockets took {READS_MAX} times {READ_BYTES} bytes"
    );
}

/// One write waits for its data, which the host does not let the target read yet. A second one
/// comes too late. The Admin queue has nothing in flight, on the same reactor or on another one.
#[test]
fn what_is_in_flight_is_answered_and_nothing_else_is_begun() {
    for reactors in 1..=2 {
        let target = TestTarget::ram(&format!("reactors = {reactors}"));
        let (wire, mut host) = connect(&target);
        let data = wire.take(LBA_BYTES);
        let first = write(1, FIRST, wire.keyed(&data));
        let _first = send(&wire, &mut host, &first);
        sleep(LONG);
        let stop = spawn(|| target.stop());
        sleep(LONG);
        assert!(!stop.is_finished(), "the target owes a response");
        let second = write(2, SECOND, wire.keyed(&data));
        let _second = send(&wire, &mut host, &second);
        assert_success(host.next_response(Queue::Io), FIRST);
        assert!(
            host.next_response(Queue::Io).is_none(),
            "no second response"
        );
        stop.join().expect("the target drains");
        drop(host);
    }
}
