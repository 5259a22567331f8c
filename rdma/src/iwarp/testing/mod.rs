//! The engine without a network, for fuzzing and its replay in tests.
//!
//! * [`receive`] turns bytes of the fuzzer into a byte stream and feeds it to a queue pair as a
//!   socket would.
//! * [`receive_shared`] makes the peer a process on this machine that writes what it likes into the
//!   shared memory, at any time.
//!
//! Both check what must hold whatever comes: nothing outside the memory opened to the peer changes,
//! every work request completes exactly once, and the end of a connection has a cause.

mod ledger;
#[cfg(test)]
mod pair;
mod peer;
mod scene;
mod shared;
mod stream;

use scene::{Agreed, Scene, Stage};
use stream::{Choices, Composer};

use super::link::Link;
use super::link::pipe::TestPipe;
use crate::contract::{QpState, QueuePair};
use ledger::{HEAD_BYTES, Ledger};

pub use shared::receive_shared;

/// Feeds a stream made out of `data` to a queue pair.
///
/// # Panics
/// When a rule is broken.
pub fn receive(data: &[u8]) {
    let mut choices = Choices(data);
    let flags = choices.byte();
    let agreed = Agreed {
        crc: flags & 1 != 0,
        empty_fpdu: flags & 2 != 0,
        peer_first: false,
    };
    let steps = [1, 7, 64, 1460, 4096, 16_384, 65_536, 1 << 20];
    let step = steps[usize::from(flags >> 5)];
    Stage::with(|stage| {
        let mut scene = Scene::new(stage, Link::Pipe(TestPipe::empty()), agreed);
        if flags & 4 != 0 {
            scene.qp.enable_zero_copy_receive(HEAD_BYTES);
        }
        // Small steps are for short streams, or an execution takes too long.
        let length_max = (step * 200).min(100_000);
        let mut composer = Composer::new(&scene, agreed.crc);
        let mut bytes = Vec::new();
        while !choices.is_empty() && bytes.len() < length_max {
            composer.next(&mut choices, &mut bytes);
        }
        bytes.truncate(2 * length_max);
        let turns = bytes.len() / step + 32;
        // The queue pair of the other connection has nothing to do.
        let _ready = stage.engine.arm();
        scene.qp.cell.borrow_mut().link = Some(Link::Pipe(TestPipe::new(bytes, step)));
        let mut ledger = Ledger::new();
        for turn in 0..turns {
            if turn % 16 == 0 {
                // An idle queue pair is not asked again by itself.
                stage.engine.make_pipe_busy(&scene.qp.cell);
            }
            let takes = flags & 8 != 0 && turn % 2 == 0;
            let count = ledger.take_messages(&mut scene.qp, &*stage.cq, takes);
            if count == 0 && scene.qp.state() == QpState::Error {
                break;
            }
        }
        if scene.qp.state() == QpState::Error {
            ledger.assert_all_flushed();
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::{Agreed, Link, Scene, Stage, TestPipe};
    use crate::iwarp::core::tx::empty_write;

    /// A byte stream, and how much of it one run receives.
    fn bytes_of_a_run(beside_another: bool) -> usize {
        let mut received = 0;
        Stage::with(|stage| {
            let scene = Scene::new(stage, Link::Pipe(TestPipe::empty()), Agreed::default());
            // Neither queue pair has anything to do.
            let _ready = stage.engine.arm();
            let fpdu = [empty_write().as_bytes(), &[0; 4]].concat();
            let link = TestPipe::new(fpdu.repeat(100_000), usize::MAX);
            scene.qp.cell.borrow_mut().link = Some(Link::Pipe(link));
            stage.engine.make_pipe_busy(&scene.qp.cell);
            if beside_another {
                stage.make_other_busy();
            }
            stage.engine.progress(|| false);
            if let Some(Link::Pipe(link)) = &scene.qp.cell.borrow_mut().link {
                received = link.received();
            }
        });
        received
    }

    /// A queue pair with much to receive keeps the others waiting no longer than half a run.
    #[test]
    fn a_run_is_shorter_while_others_wait_for_theirs() {
        let alone = bytes_of_a_run(false);
        let beside = bytes_of_a_run(true);
        assert!(
            (900_000..=1 << 20).contains(&alone),
            "eight buffers of 128 KiB: {alone} bytes"
        );
        assert!(
            (450_000..=1 << 19).contains(&beside),
            "four buffers of 128 KiB: {beside} bytes"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn nothing_outside_the_open_memory_changes(data in prop::collection::vec(any::<u8>(), 0..400)) {
            super::receive(&data);
        }

        #[test]
        fn nor_does_it_through_shared_memory(data in prop::collection::vec(any::<u8>(), 0..400)) {
            super::receive_shared(&data);
        }
    }
}
