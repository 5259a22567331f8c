//! What targets cause in the log.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::Status;
use capstan_rdma::PEER_CAUSED;
use capstan_reactor::Clock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::Controller;
use crate::driver::tests::tcp::Peer;
use crate::options::{Options, Transport};
use crate::scripted::HOSTID;

/// The lines of all threads: their targets, and what they say.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(&'static str, String)>>>);

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        write!(self.0, "{value:?} ").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        let line = (event.metadata().target(), words.0);
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Programs limit the lines that are marked so.
#[test]
fn what_a_target_says_of_its_namespaces_again_and_again_is_marked_as_caused_by_a_peer() {
    const TIMES: usize = 4;
    const OVER: usize = usize::MAX;
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let (sender, receiver) = mpsc::channel();
    let now = Arc::new(AtomicUsize::new(0));
    let target = thread::spawn({
        let round = Arc::clone(&now);
        move || {
            let mut peer = Peer::new();
            sender.send(peer.address()).unwrap();
            loop {
                // Each time there is another namespace, and Identify of 7 fails in another way.
                let (status, nsid) = match round.load(Ordering::Relaxed) {
                    OVER => return,
                    even if even % 2 == 0 => (Status::INTERNAL_ERROR, 2),
                    _ => (Status::DATA_TRANSFER_ERROR, 3),
                };
                peer.controller.fails_identify = Some((7, status));
                peer.controller.namespaces = vec![1, nsid, 7];
                if !peer.turn(Clock.now_us()) {
                    thread::yield_now();
                }
            }
        }
    });
    let address = receiver.recv().unwrap();
    let [subnqn, hostnqn] = ["nqn.s", "nqn.h"].map(|name| Nqn::new(name).unwrap());
    let mut options = Options::new("127.0.0.1", subnqn, hostnqn, HOSTID);
    options.trsvcid = address.port();
    options.transport = Transport::Tcp;
    let controller = Controller::connect(options).unwrap();
    let told = |words: &str| {
        let lines = lines.0.lock().unwrap();
        let told = lines.iter().filter(|(_, line)| line.contains(words));
        told.map(|(target, _)| *target).collect::<Vec<_>>()
    };
    let begin = Instant::now();
    for words in ["Identify of namespace 7", "namespaces changed"] {
        // The target may see a round late, and be as before in it.
        while told(words).len() < TIMES {
            assert!(begin.elapsed() < Duration::from_secs(60), "{words}");
            now.fetch_add(1, Ordering::Relaxed);
            controller.rescan();
            while controller.snapshot_blocking().scanning {
                thread::yield_now();
            }
        }
        let targets = told(words);
        assert!(
            targets.iter().all(|target| *target == PEER_CAUSED),
            "{words}: {targets:?}"
        );
    }
    drop(controller.close());
    now.store(OVER, Ordering::Relaxed);
    target.join().unwrap();
}
