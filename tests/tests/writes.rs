//! How writes reach a volume that takes none at once, as one on a disk does.

use capstan_nvme_proto::command::{IoCommand, LbaRange, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::iwarp::Config;
use capstan_storage::Gate;
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::tcp_host::{self, TcpHost};
use capstan_tests::wire_host::{self, Queue, Wire, WireHost, connect_data};

const LBA_BYTES: usize = 4096;
/// More than fits into a capsule: the target pulls it.
const PULLED_LBAS: u32 = 8;

fn write(nlb: u32) -> Sqe {
    let range = LbaRange { slba: 0, nlb };
    IoCommand::Write(Write::new(1, range)).encode(0, Sgl::EMPTY)
}

/// Data in a capsule lies in shared memory, in a stream buffer or in a receive first, and in a
/// buffer then; a volume that does not take it from the one would not from the other.
#[test]
fn a_volume_is_asked_once_whether_it_takes_a_write_at_once() {
    let gate = Gate::default();
    for shared in [true, false] {
        let target = TestTarget::start_behind(
            &format!(
                "[target]\nreactors = 1\nshared_receive_queue = {shared}\n\
                 [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransports = [\"rdma\", \"tcp\"]\n\
                 [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
                 [[subsystem.namespace]]\nram = \"1MiB\"\nlba = {LBA_BYTES}\n"
            ),
            Some(&gate),
        );
        let bytes = vec![7; PULLED_LBAS as usize * LBA_BYTES];
        let mut known = gate.asked();
        let mut assert_once = |what: &str| {
            assert_eq!(gate.asked() - known, 1, "{what}, {shared}");
            known = gate.asked();
        };
        for same_host in [true, false] {
            let config = Config {
                same_host,
                ..Config::default()
            };
            let wire = Wire::new(config, 1024, 1 << 20);
            let at = target.addresses[0];
            let mut host = WireHost::connect_through(wire, at, connect_data(1));
            let data = wire_host::Data::InCapsule(&bytes[..LBA_BYTES]);
            let (cqe, _) = host.run(Queue::Io, write(1), data);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            assert_once("in a capsule over RDMA");
            let data = wire_host::Data::Pulled(&bytes);
            let (cqe, _) = host.run(Queue::Io, write(PULLED_LBAS), data);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            assert_once("pulled over RDMA");
        }
        let mut host = TcpHost::connect(target.addresses[0], 2, Digests::empty(), 32);
        let data = tcp_host::Data::InCapsule(&bytes[..LBA_BYTES]);
        assert!(host.io.run(write(1), data).0.status().is_success());
        assert_once("in a capsule over TCP");
        let data = tcp_host::Data::Out(&bytes);
        let (cqe, _) = host.io.run(write(PULLED_LBAS), data);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        assert_once("pulled over TCP");
        drop(host);
        target.stop();
    }
}
