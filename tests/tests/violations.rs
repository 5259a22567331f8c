//! A peer that breaks the rules: its connection ends, with what it had asked for before, and nobody
//! else notices.

use std::rc::Rc;

use capstan_nvme_proto::command::{Directive, Flush, IoCommand, LbaRange, Protection, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_rdma::contract::{RKey, Remote, SendOp};
use capstan_rdma::iwarp::Config;
use capstan_tests::program::{Daemon, own_address};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};

const LBA_BYTES: usize = 4096;

/// Writes to memory that the target has not given out, and waits for the end of the I/O queue.
fn violate(wire: &Wire, host: &mut WireHost) {
    let nowhere = Remote {
        addr: 0,
        rkey: RKey(0x0bad_0000),
    };
    let bytes = wire.take(64);
    let sges = [wire.sge(&bytes, 0, 64)];
    host.post_op(Queue::Io, SendOp::Write(nowhere), &sges, false);
    host.ring_doorbell(Queue::Io);
    host.wait_for_the_end_of(Queue::Io);
}

/// The target learns of the writes, whose data still lies where it has come, and of the violation
/// behind them in one look. Without a shared receive queue nothing is left that the data could be
/// put into.
#[test]
fn writes_right_before_a_violation_end_with_their_connection() {
    let disk = tempfile::NamedTempFile::new().unwrap();
    disk.as_file().set_len(1 << 20).unwrap();
    for (same_host, shared) in [(true, true), (true, false), (false, true), (false, false)] {
        let target = TestTarget::start(&format!(
            "[target]\nreactors = 1\nshared_receive_queue = {shared}\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"{}\"\nlba = {LBA_BYTES}\n",
            disk.path().display()
        ));
        let mut other = WireHost::connect(target.addresses[0], 2);
        for _ in 0..20 {
            let config = Config {
                same_host,
                ..Config::default()
            };
            let wire = Wire::new(config, 1024, 1 << 20);
            let mut host =
                WireHost::connect_through(Rc::clone(&wire), target.addresses[0], connect_data(1));
            for lba in 0..4 {
                let write = IoCommand::Write(Write {
                    nsid: 1,
                    range: LbaRange { slba: lba, nlb: 1 },
                    fua: false,
                    limited_retry: false,
                    protection: Protection::NONE,
                    directive: Directive::NONE,
                    dsm: 0,
                });
                let data = Data::InCapsule(&[7; LBA_BYTES]);
                host.post_command(Queue::Io, write.encode(0, Sgl::EMPTY), data);
            }
            violate(&wire, &mut host);
            let flush = IoCommand::Flush(Flush { nsid: 1 }).encode(0, Sgl::EMPTY);
            let (cqe, _) = other.run(Queue::Io, flush, Data::None);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
        }
        drop(other);
        target.stop();
    }
}

/// The log warns of what broke the rules, and not of a host that goes in order.
#[test]
fn violations_are_warnings_in_the_log() {
    let at = own_address();
    let target = Daemon::start("ram:1MiB", 4096, at);
    for same_host in [true, false] {
        let known = target.log().len();
        let config = Config {
            same_host,
            ..Config::default()
        };
        let wire = Wire::new(config, 1024, 1 << 20);
        let mut host = WireHost::connect_through(Rc::clone(&wire), at, connect_data(1));
        violate(&wire, &mut host);
        let words = "disconnected: terminated by this side because the peer broke the protocol";
        target.wait_for_log_after(known, &["WARN", words, SUBNQN, "qid=1"]);
        host.disconnect(Queue::Admin);
        let words = "disconnected: closed by the peer";
        target.wait_for_log_after(known, &["INFO", words, SUBNQN, "qid=0"]);
    }
    assert!(target.stop().success());
}
