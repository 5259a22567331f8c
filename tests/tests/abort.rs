//! Abort of a command whose data does not come, and of one whose data has no room on the wire.

use std::thread::sleep;
use std::time::Duration;

use capstan_nvme_proto::command::{Abort, AdminCommand, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::tcp_host::{self, TcpHost};
use capstan_tests::wire_host::{Data, Queue, WireHost};

const LBA_BYTES: u32 = 4096;
/// LBAs of a read whose data is copied to be sent, so that it waits where much is copied already.
const COPIED_LBAS: u32 = 3;
/// Reads of that, 6 MiB: twice what sockets keep whose host takes nothing.
const READS: u16 = 511;

fn abort(cid: u16) -> Sqe {
    AdminCommand::Abort(Abort { sqid: 1, cid }).encode(0, Sgl::EMPTY)
}

/// The host does not answer the controller's RDMA READ, aborts the write, and only then works
/// again: the write is answered as aborted, and nothing of it is on the medium.
#[test]
fn a_write_whose_data_is_on_its_way_is_really_aborted() {
    let target = TestTarget::ram("reactors = 2");
    let mut host = WireHost::connect(target.addresses[0], 1);
    let range = LbaRange { slba: 7, nlb: 1 };
    let data = [0x55; LBA_BYTES as usize];
    let write = IoCommand::Write(Write::new(1, range)).encode(0, Sgl::EMPTY);
    let cid = host.send(Queue::Io, write, Data::Pulled(&data));
    // The write must be there before its Abort, which goes another way.
    sleep(Duration::from_millis(500));
    let abort = host.send(Queue::Admin, abort(cid), Data::None);
    sleep(Duration::from_millis(500));

    let (cqe, _) = host.answer(Queue::Io, cid);
    assert_eq!(cqe.status().code(), Status::ABORT_REQUESTED);
    let (cqe, _) = host.answer(Queue::Admin, abort);
    assert!(cqe.status().is_success());
    assert_eq!(cqe.dw0.get(), 0, "bit 0 clear: aborted");
    let read = IoCommand::Read(Read::new(1, range)).encode(0, Sgl::EMPTY);
    let (cqe, found) = host.run(Queue::Io, read, Data::Pushed(LBA_BYTES));
    assert!(cqe.status().is_success());
    assert!(found == [0; LBA_BYTES as usize], "nothing was written");
    drop(host);
    target.stop();
}

/// What a read of the `n`th place returns.
fn content(n: u16) -> Vec<u8> {
    n.to_le_bytes()
        .repeat((COPIED_LBAS * LBA_BYTES / 2) as usize)
}

fn place(n: u16) -> LbaRange {
    LbaRange {
        slba: u64::from(n) * u64::from(COPIED_LBAS),
        nlb: COPIED_LBAS,
    }
}

/// The host takes no data of its reads. The oldest read that waits is the one that waits for room
/// on the wire; where that is aborted, the next one does, and those that are left go on when there
/// is room.
#[test]
fn a_read_that_waits_for_room_is_aborted_and_those_behind_it_go_on() {
    let target = TestTarget::start(&format!(
        "[target]\nreactors = 1\nspin = \"0s\"\n\
         [queues]\ndepth_max = 512\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransports = [\"tcp\"]\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"64MiB\"\nlba = {LBA_BYTES}\n"
    ));
    let entries = READS + 1;
    // Data with a digest is copied, and there is room for so much only.
    let mut host = TcpHost::connect(target.addresses[0], 1, Digests::DATA, entries);
    for n in 0..READS {
        let write = IoCommand::Write(Write::new(1, place(n))).encode(0, Sgl::EMPTY);
        let (cqe, _) = host.io.run(write, tcp_host::Data::Out(&content(n)));
        assert!(cqe.status().is_success(), "{n}: {:?}", cqe.status());
    }
    let read = |n| IoCommand::Read(Read::new(1, place(n))).encode(0, Sgl::EMPTY);
    let len_bytes = COPIED_LBAS * LBA_BYTES;
    let cids: Vec<_> = (0..READS)
        .map(|n| host.io.post(read(n), tcp_host::Data::In(len_bytes)))
        .collect();
    // The one reactor has the commands of both sockets: the reads are there before the second of
    // these is answered.
    let admin = &mut host.admin;
    let mut is_aborted = |cid| {
        let (cqe, _) = admin.run(abort(cid), tcp_host::Data::None);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        // Bit 0 clear: aborted.
        cqe.dw0.get() & 1 == 0
    };
    let found_room = [(); 2].map(|()| !is_aborted(cids[0]));
    assert_eq!(found_room, [true; 2], "the first read is not aborted");
    let oldest = cids.iter().position(|&cid| is_aborted(cid));
    let oldest = oldest.expect("the sockets do not keep all that is asked for");
    let behind = [oldest + 1, oldest + 2].map(|nth| is_aborted(cids[nth]));
    assert_eq!(behind, [true; 2], "each is the oldest then");

    let aborted = oldest..oldest + 3;
    for ((n, cid), nth) in (0..).zip(cids).zip(0..) {
        let (cqe, found) = host.io.wait(cid);
        if aborted.contains(&nth) {
            assert_eq!(cqe.status().code(), Status::ABORT_REQUESTED, "{n}");
        } else {
            assert!(cqe.status().is_success(), "{n}: {:?}", cqe.status());
            assert!(found == content(n), "{n}");
        }
    }
    let (cqe, found) = host.io.run(read(7), tcp_host::Data::In(len_bytes));
    assert!(cqe.status().is_success() && found == content(7));
    drop(host);
    target.stop();
}
