//! `capstan-target drain`: hosts go when their commands have ended, none is taken, and they go on
//! when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use capstan_control::answer::{Connection, Status};
use capstan_control::{Drain, Kind, Request};
use capstan_initiator::Controller;
use capstan_tests::host::options;
use capstan_tests::place::volume;
use capstan_tests::steered_volume::{SteeredVolume, refused, said};
use capstan_tests::wait::wait_until;
use serde_json::Value;

const WRITES: u64 = 2000;

#[test]
fn hosts_are_let_go_without_an_error_and_come_back_when_it_is_over() {
    let target = SteeredVolume::start();
    let controller = target.connect();
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (first, written) = (volume(&controller, 1), Arc::clone(&written));
        thread::spawn(move || {
            for number in 0..WRITES {
                let data = [u8::try_from(number % 251).expect("a byte"); 4096];
                first
                    .write(number % 16 * 4096, &data)
                    .expect("no write fails");
                written.store(number, Ordering::Relaxed);
            }
        })
    };
    wait_until("the host writes", || written.load(Ordering::Relaxed) > 10);
    let mut client = target.client();
    let drained = target.run(&["drain", "--within", "20", "-o", "json"]);
    let drained: Value = serde_json::from_slice(&drained.stdout).expect("JSON");
    assert_eq!(
        drained,
        serde_json::json!({"drained": true, "connections": 0, "within_s": 20})
    );
    let status: Status = client.ask(&Request::Status {}).expect("a status");
    assert!(status.drained_s.is_some());
    let connections: Vec<Connection> = client
        .ask(&Request::ConnectionList {})
        .expect("connections");
    assert_eq!(connections, []);
    let text = said(&target.run(&["status"]));
    assert!(text.contains("takes no connections"), "{text}");
    let text = said(&target.run(&["explain"]));
    assert!(text.contains("capstan-target drain --off"), "{text}");
    assert!(
        Controller::connect(options(target.at, 1)).is_err(),
        "it takes a connection"
    );
    target
        .daemon
        .wait_for_log(&["the target is drained", "drain --off"]);
    let before = written.load(Ordering::Relaxed);
    assert!(before < WRITES - 1, "too few writes");
    // Once more is not another one.
    let again = target.run(&["drain"]);
    assert!(
        again.status.success() && said(&again).contains("drained: no host is connected"),
        "{}",
        said(&again)
    );
    let long = Drain {
        within_s: Some(3601),
        off: false,
    };
    let long = refused(&mut client, &Request::Drain(long));
    assert_eq!(
        (long.data.kind, long.data.field.as_deref()),
        (Some(Kind::Invalid), Some("within_s")),
        "{long}"
    );
    let off = target.run(&["drain", "--off"]);
    assert!(off.status.success(), "{}", said(&off));
    writer.join().expect("no panic");
    let twice = Drain {
        within_s: None,
        off: true,
    };
    let twice = refused(&mut client, &Request::Drain(twice));
    assert_eq!(twice.data.kind, Some(Kind::Exists), "{twice}");
    let status: Status = client.ask(&Request::Status {}).expect("a status");
    assert_eq!((status.drained_s, status.connections), (None, 1));
    drop(controller);
}
