//! Commands with as many SGL descriptors as a host may send, as many of them as its queue takes.

use capstan_nvme_proto::command::{IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::iwarp::Config;
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};

const BYTES: u32 = 64 << 10;
const LBAS: u32 = BYTES / 4096;
/// MSDBD.
const PIECES: u32 = 16;
/// Nearly as many as the queue has entries.
const COMMANDS: u8 = 30;

fn range(n: u8) -> LbaRange {
    LbaRange {
        slba: u64::from(n) * u64::from(LBAS),
        nlb: LBAS,
    }
}

fn all(host: &mut WireHost, queue: Queue, send: impl Fn(&mut WireHost, u8) -> u16) -> Vec<Vec<u8>> {
    let cids: Vec<_> = (0..COMMANDS).map(|n| send(host, n)).collect();
    host.ring_doorbell(queue);
    let answers = cids.into_iter().map(|cid| {
        let (cqe, data) = host.answer(queue, cid);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        data
    });
    answers.collect()
}

/// A send queue that has no room for the pieces of all commands makes them wait, and does not end
/// their connection.
#[test]
fn a_queue_full_of_commands_with_many_descriptors_is_carried_out() {
    let disk = tempfile::NamedTempFile::new().unwrap();
    disk.as_file().set_len(8 << 20).unwrap();
    let file = format!("path = \"{}\"", disk.path().display());
    for (namespace, same_host) in [
        (file.as_str(), false),
        (file.as_str(), true),
        ("ram = \"8MiB\"", false),
        ("ram = \"8MiB\"", true),
        ("null = \"8MiB\"", true),
    ] {
        let target = TestTarget::start(&format!(
            "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\n{namespace}\nlba = 4096\n"
        ));
        let config = Config {
            same_host,
            ..Config::default()
        };
        let wire = Wire::new(config, 1024, 8 << 20);
        let mut host = WireHost::connect_through(wire, target.addresses[0], connect_data(1));
        let encode = |command: IoCommand| -> Sqe { command.encode(0, Sgl::EMPTY) };
        all(&mut host, Queue::Io, |host, n| {
            let data = vec![n + 1; BYTES as usize];
            let sqe = encode(IoCommand::Write(Write::new(1, range(n))));
            host.post_command(Queue::Io, sqe, Data::PulledInPieces(&data, PIECES))
        });
        let found = all(&mut host, Queue::Io, |host, n| {
            let sqe = encode(IoCommand::Read(Read::new(1, range(n))));
            host.post_command(Queue::Io, sqe, Data::PushedInPieces(BYTES, PIECES))
        });
        for (n, found) in (0..).zip(found) {
            let value = if namespace.starts_with("null") {
                0
            } else {
                n + 1
            };
            assert!(
                found.iter().all(|byte| *byte == value),
                "{n} of {namespace}"
            );
        }
        drop(host);
        target.stop();
    }
}
