//! What is still on its way when a host gives a connection up: it must not land behind what the
//! host writes next.

use std::time::{Duration, Instant};

use capstan_initiator::options::ReplayWrites;
use capstan_initiator::{BlockingVolume, Controller, Options, Preference};
use capstan_tests::host::options;
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::target::TestTarget;

const LBA: usize = 4096;
/// Connections of an association: the Admin queue's and that of one I/O queue.
const CONNECTIONS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(30);

/// A host behind a proxy, which gives an I/O up after half a second. Its Keep Alive is so long that
/// the target notices nothing by itself.
fn connect(proxy: &Proxy, replay_writes: ReplayWrites) -> (Controller, BlockingVolume) {
    let options = Options {
        provider: Preference::Iwarp,
        keep_alive_tmo: Duration::from_secs(120),
        io_timeout: Duration::from_millis(500),
        replay_writes,
        ..options(proxy.address, 1)
    };
    let controller = Controller::connect(options).expect("connects");
    let volume = controller.volume_blocking(1).expect("namespace 1");
    (controller, volume.blocking())
}

fn read(volume: &BlockingVolume) -> u8 {
    let mut block = [0; LBA];
    volume.read(0, &mut block).expect("reads");
    assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
    block[0]
}

/// The network keeps a write, nothing is lost; the host gives the connection up, issues it again on
/// another, and writes the block once more.
fn write_twice(proxy: &Proxy, volume: &BlockingVolume) {
    proxy.set_all(Direction::ToTarget, Flow::Hold);
    volume
        .write(0, &[1; LBA])
        .expect("the first write ends well");
    volume
        .write(0, &[2; LBA])
        .expect("the second write ends well");
    volume.flush().expect("the flush ends well");
    for old in 0..CONNECTIONS {
        proxy.wait_for_end(old, Direction::ToTarget);
    }
    assert_eq!(read(volume), 2);
}

#[test]
fn a_write_that_the_network_kept_does_not_undo_a_later_one() {
    for round in 0..2 {
        let target = TestTarget::ram("");
        let proxy = Proxy::start(target.addresses[0]);
        let (controller, volume) = connect(&proxy, ReplayWrites::Fenced);
        let start = Instant::now();
        write_twice(&proxy, &volume);
        // The target was asked to end the old controller; its Keep Alive would have taken four
        // minutes.
        assert!(start.elapsed() < PATIENCE, "round {round}");
        for old in 0..CONNECTIONS {
            proxy.wait_for_end(old, Direction::ToHost);
        }
        proxy.set_all(Direction::ToTarget, Flow::Pass);
        for old in 0..CONNECTIONS {
            proxy.wait_until_passed(old, Direction::ToTarget);
        }
        assert_eq!(read(&volume), 2, "round {round}");
        controller.close();
        target.stop();
    }
}

/// What `--replay-writes=immediate` is a choice of; without this the test above could pass for
/// another reason.
#[test]
fn immediate_replay_lets_an_old_copy_land_last() {
    let target = TestTarget::ram("");
    let proxy = Proxy::start(target.addresses[0]);
    let (controller, volume) = connect(&proxy, ReplayWrites::Immediate);
    write_twice(&proxy, &volume);
    proxy.set_all(Direction::ToTarget, Flow::Pass);
    let start = Instant::now();
    while read(&volume) != 1 {
        assert!(start.elapsed() < PATIENCE, "the old copy did not land");
    }
    controller.close();
    target.stop();
}
