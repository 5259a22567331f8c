//! A process that has no descriptor left.

use std::thread::sleep;
use std::time::Duration;

use capstan_nfs_proto::v3::status::Status;

use super::client::Client;
use crate::support::descriptors::{allow_few, take_all};
use crate::support::files::BOTH;
use crate::support::{Served, put};

/// Longer than the lease of the tests' services.
const LAPSES: Duration = Duration::from_millis(2100);

#[test]
fn a_client_that_asks_again_has_what_clients_of_version_4_that_are_gone_had() {
    let served = Served::new();
    put(&served.path().join("file"), b"data", 0, 0o644);
    allow_few();
    let mut client = Client::new(&served);
    let handle = client.named("file");
    let mut gone = served.client("gone");
    for number in 0..16 {
        gone.open("file", &format!("o{number}"), BOTH);
    }
    let taken = take_all();
    // A client with a lease that lasts keeps what it has.
    for _ in 0..2 {
        assert_eq!(client.read(&handle, 0, 9).err(), Some(Status::JUKEBOX));
    }
    sleep(LAPSES);
    assert_eq!(client.read(&handle, 0, 9).err(), Some(Status::JUKEBOX));
    let (data, _) = client.read(&handle, 0, 9).unwrap();
    assert_eq!(data, b"data");
    drop(taken);
}
