//! Abort of a command whose data does not come.
use std::thread::sleep;
use std::time::Duration;

use capstan_nvme_proto::command::{Abort, AdminCommand, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, WireHost};

const LBA_BYTES: u32 = 4096;

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
    let abort = AdminCommand::Abort(Abort { sqid: 1, cid }).encode(0, Sgl::EMPTY);
    let abort = host.send(Queue::Admin, abort, Data::None);
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
