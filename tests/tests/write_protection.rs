//! A namespace that a host write protects: what has not reached the medium by then never does.

use capstan_nvme_proto::command::{AdminCommand, IoCommand, LbaRange, Read, SetFeatures, Write};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, WireHost};

const LBA_BYTES: usize = 4096;
const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };

fn protect(host: &mut WireHost, on: bool) -> Status {
    let state = u32::from(on);
    let set = SetFeatures {
        nsid: 1,
        ..SetFeatures::new(FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG, state)
    };
    let sqe = AdminCommand::SetFeatures(set).encode(0, Sgl::EMPTY);
    host.run(Queue::Admin, sqe, Data::None).0.status().code()
}

fn write() -> capstan_nvme_proto::sqe::Sqe {
    IoCommand::Write(Write::new(1, FIRST)).encode(0, Sgl::EMPTY)
}

fn first_block(host: &mut WireHost) -> Vec<u8> {
    let sqe = IoCommand::Read(Read::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let (cqe, found) = host.run(Queue::Io, sqe, Data::Pushed(4096));
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    found
}

/// The data of a write is still being pulled when another host protects the namespace. That host
/// does not wait for one that hangs, and the write never happens.
#[test]
fn a_write_in_the_middle_of_its_pull_is_refused_once_the_namespace_is_protected() {
    for reactors in [1, 2] {
        let target = TestTarget::ram(&format!("reactors = {reactors}"));
        let [mut one, mut two] =
            [1, 2].map(|number| WireHost::connect(target.addresses[0], number));
        let hanging = one.send(Queue::Io, write(), Data::Pulled(&[0x11; LBA_BYTES]));
        // The capsule must be there before the other host acts: they come on different connections.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(protect(&mut two, true), Status::SUCCESS);
        assert!(first_block(&mut two) == [0; LBA_BYTES]);
        let (cqe, _) = one.answer(Queue::Io, hanging);
        assert_eq!(cqe.status().code(), Status::NAMESPACE_IS_WRITE_PROTECTED);
        assert!(
            first_block(&mut two) == [0; LBA_BYTES],
            "written after the namespace was protected"
        );

        assert_eq!(protect(&mut two, false), Status::SUCCESS);
        let (cqe, _) = one.run(Queue::Io, write(), Data::Pulled(&[0x33; LBA_BYTES]));
        assert_eq!(cqe.status(), Status::SUCCESS);
        assert!(first_block(&mut two) == [0x33; LBA_BYTES]);
        drop((one, two));
        target.stop();
    }
}
