//! A change that waits for a file system which does not answer holds up nothing but other changes.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use capstan_control::answer::{Changed, Drained, Status};
use capstan_control::{CallError, Drain, Request, ResizeNamespace};
use capstan_tests::disks::Unanswered;
use capstan_tests::program::{has_disks, own_address};
use capstan_tests::steered::Steered;
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;

const MIB: u64 = 1 << 20;
/// Connections that are served at a time.
const CONNECTIONS_MAX: usize = 32;

fn resize(size: &str) -> Request {
    Request::NamespaceResize(ResizeNamespace {
        subsystem: SUBNQN.to_owned(),
        nsid: 1,
        size: size.to_owned(),
    })
}

#[test]
fn root_a_change_that_hangs_holds_up_no_drain_and_no_client() {
    let test = "root_a_change_that_hangs_holds_up_no_drain_and_no_client";
    if !has_disks(test, &[]) {
        return;
    }
    let target = Steered::new(own_address(), &["remote/1"]);
    let remote = target.path("remote");
    fs::create_dir(&remote).unwrap();
    File::create(remote.join("1"))
        .unwrap()
        .set_len(MIB)
        .unwrap();
    let daemon = target.begin_under(&[]);
    daemon.wait_for_log(&["listening at"]);
    let unanswered = Unanswered::over(&remote);
    let mut waits = target.client();
    waits.set_timeout(Some(Duration::from_secs(60))).unwrap();
    let waiting = thread::spawn(move || waits.ask::<Changed>(&resize("2MiB")));
    let is_under_way = |status: &Status| {
        status
            .trouble
            .iter()
            .any(|line| line.contains("under way for"))
    };
    wait_until("status names the change", || is_under_way(&target.status()));

    // As many as are served, which ask for a change and go.
    let request = serde_json::to_value(resize("3MiB")).unwrap();
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":{},\"params\":{}}}\n",
        request["method"], request["params"]
    );
    for _ in 0..CONNECTIONS_MAX {
        let mut client = UnixStream::connect(target.path("control.sock")).unwrap();
        client.write_all(line.as_bytes()).unwrap();
    }
    wait_until("their places are free", || {
        target.client().ask::<Status>(&Request::Status {}).is_ok()
    });

    let start = Instant::now();
    let drain = Request::Drain(Drain {
        within_s: Some(1),
        off: false,
    });
    let drained: Drained = target.client().ask(&drain).unwrap();
    assert!(
        drained.drained && start.elapsed() < Duration::from_secs(5),
        "{drained:?}"
    );
    assert!(!waiting.is_finished(), "the change has not waited");

    drop(unanswered);
    let outcome = waiting.join().unwrap();
    assert!(matches!(outcome, Err(CallError::Failed(_))), "{outcome:?}");
    wait_until("nothing is under way", || !is_under_way(&target.status()));
    daemon.wait_for_log(&["not carried out, as its client has gone"]);
    let size = fs::metadata(remote.join("1")).unwrap().len();
    assert_eq!(size, MIB, "what nobody waited for was carried out");
    assert!(daemon.stop().success());
}
