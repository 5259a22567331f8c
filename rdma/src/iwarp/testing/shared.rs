//! A peer on this machine, in the same memory.

use super::ledger::{HEAD_BYTES, Ledger};
use super::peer::{Brings, End};
use super::scene::{Agreed, Scene, Stage};
use super::stream::{Choices, Composer};
use crate::contract::{QpState, QueuePair, SendOp, SendWr, Sge};
use crate::iwarp::link::Link;

/// Most steps of one run.
const STEPS_MAX: usize = 400;
/// Most bytes that wait for room in the ring.
const UNSAID_MAX: usize = 100_000;
/// Looks within which a connection has ended after its peer has left: the end of the socket follows
/// a socket full of wake-up bytes, of which each look takes a part.
const LOOKS_MAX: usize = 1000;

/// How the causes of an end begin that such a peer can bring about.
const CAUSES: [&str; 7] = [
    "closed by the peer",
    "terminated by this side because the peer broke the protocol: ",
    "terminated by the peer: ",
    "reset by the peer",
    "lost: the peer's position in shared memory is impossible: ",
    // What it has brought is not the memory.
    "lost: shared memory of ",
    "lost: no shared memory but another kind of file has come ",
];

/// Lets a peer do, step by step, what `data` says: send and receive correctly, write anything
/// anywhere into the memory, wake, bring memory or something else, leave.
///
/// # Panics
/// When a rule is broken.
#[expect(clippy::expect_used, reason = "without a connection nothing is tested")]
pub fn receive_shared(data: &[u8]) {
    let mut choices = Choices(data);
    let flags = choices.byte();
    Stage::with(|stage| {
        let mut peer = stage.peer.take().expect("left by the run before");
        let opened = match flags % 16 {
            14 => peer.invited().map(Some),
            15 => peer.inviting(choices.byte(), flags),
            _ => peer.connected(flags & 0x10 == 0).map(Some),
        };
        if let Some((link, end)) = opened.expect("descriptors and memory") {
            run(stage, link, end, &mut choices, flags & 0x20 == 0);
        }
        stage.peer = Some(peer);
    });
}

#[expect(clippy::expect_used, reason = "without a rendezvous nothing is tested")]
fn run(stage: &mut Stage, link: Link, mut end: End<'_>, choices: &mut Choices<'_>, lends: bool) {
    let invited = matches!(link, Link::Tcp(_));
    let agreed = Agreed {
        peer_first: invited,
        ..Agreed::default()
    };
    let mut scene = Scene::new(stage, link, agreed);
    let invitation = invited.then(|| stage.engine.invite(&scene.qp.cell).expect("a rendezvous"));
    if lends {
        scene.qp.enable_zero_copy_receive(HEAD_BYTES);
    }
    let mut ledger = Ledger::new();
    let mut composer = Composer::new(&scene, false);
    let mut unsaid = Vec::new();
    for _ in 0..STEPS_MAX {
        if choices.is_empty() {
            break;
        }
        match choices.byte() % 16 {
            0..=5 => {
                if unsaid.len() < UNSAID_MAX {
                    composer.next(choices, &mut unsaid);
                }
                let said = end.say(&mut unsaid);
                unsaid.drain(..said);
            }
            6 => {
                let position = end.position(choices.byte(), choices.byte());
                let bytes = position.to_ne_bytes();
                let length = if choices.byte().is_multiple_of(4) {
                    4
                } else {
                    8
                };
                end.poke_lines(usize::from(choices.word()), &bytes[..length]);
            }
            7 => {
                let bytes = [choices.byte(), choices.byte(), choices.byte()];
                let length = 1 + usize::from(choices.byte());
                let at = usize::from(choices.word()) * 5;
                let own = !choices.byte().is_multiple_of(4);
                end.poke_ring(own, at, &bytes.repeat(length));
            }
            8 => {
                let count = [1, 63, 64, 65, 5000][usize::from(choices.byte() % 5)];
                end.say_on_socket(&vec![0; count]);
            }
            9 if choices.byte() < 32 => end.leave(),
            10 => end.hear(usize::from(choices.word())),
            11 => send(&mut scene, &mut ledger, choices),
            12 => {
                // What became ready is found by the poll below.
                ledger.read_taken();
                let _ready = stage.cq.arm();
            }
            13 => {
                let right = choices.byte() < 200;
                let brings = match choices.byte() {
                    which @ 0..=29 => Brings::Odd(which),
                    count @ 30..=49 => Brings::More(count - 29),
                    50..=59 => Brings::Nothing,
                    _ => Brings::Memory,
                };
                if let Some(invitation) = &invitation {
                    end.bring(invitation, right, brings);
                }
            }
            14 => {
                let mut bytes = Vec::new();
                composer.next(choices, &mut bytes);
                end.say_on_socket(&bytes);
            }
            _ => {
                ledger.take_messages(&mut scene.qp, &*stage.cq, true);
            }
        }
        ledger.take_messages(&mut scene.qp, &*stage.cq, choices.is_even());
    }
    end.leave();
    let mut looks = 0;
    while scene.qp.state() != QpState::Error || ledger.poll(&*stage.cq) != 0 {
        assert!(
            looks < LOOKS_MAX,
            "the peer has left and this side does not notice"
        );
        looks += 1;
        ledger.read_taken();
        let _ready = stage.cq.arm();
        ledger.poll(&*stage.cq);
    }
    ledger.assert_all_flushed();
    let cause = stage.cause().expect("an end has a cause");
    assert!(
        CAUSES.iter().any(|known| cause.starts_with(known)),
        "{cause}"
    );
    end.check_and_restore();
}

/// Posts a Send of what the peer may read.
fn send(scene: &mut Scene, ledger: &mut Ledger, choices: &mut Choices<'_>) {
    let sge = Sge {
        len_bytes: u32::from(choices.word() % 5000),
        ..scene.readable
    };
    let wr = SendWr {
        wr_id: ledger.next_send(),
        op: SendOp::Send {
            invalidate: None,
            solicited: false,
        },
        sges: &[sge],
        signaled: true,
        fence: false,
    };
    // A full queue takes no more.
    if scene.qp.post_send(&wr).is_ok() {
        ledger.posted();
    }
    scene.qp.ring_doorbell();
}
