//! A process that has no descriptor left. It is alone with that: these tests change what all of
//! this process may have.

mod support;

use std::thread::sleep;
use std::time::Duration;

use capstan_nfs_proto::v4::status::Status;

use support::descriptors::{allow_few, take_all};
use support::files::{BOTH, open_op};
use support::{Served, put};

/// Longer than the lease of the tests' services.
const LAPSES: Duration = Duration::from_millis(2100);

#[test]
fn root_who_is_there_opens_what_clients_that_are_gone_have_descriptors_for() {
    let served = Served::new();
    put(&served.path().join("file"), b"data", 0, 0o644);
    allow_few();
    let mut gone = served.client("gone");
    let owners: Vec<_> = (0..16).map(|number| format!("o{number}")).collect();
    for owner in &owners {
        gone.open("file", owner, BOTH);
    }
    let mut here = served.client("here");
    let file = here.open("file", "first", BOTH);
    let taken = take_all();
    // A client with a lease that lasts keeps what it has.
    assert_eq!(
        here.open_status(open_op("file", "second", BOTH, 0)),
        Status::DELAY
    );
    sleep(LAPSES);
    assert_eq!(
        here.open_status(open_op("file", "second", BOTH, 0)),
        Status::OK
    );
    assert_eq!(here.read(&file, 0, 9), (b"data".to_vec(), true));
    drop(taken);
    let sequence = gone.sequence_op();
    let of_it = gone.raw(&[sequence], |status, _results| status);
    assert_eq!(of_it, Status::BADSESSION);
}
