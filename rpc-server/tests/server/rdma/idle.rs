//! What connections cost that are idle.

use std::sync::Arc;

use capstan_memory::{Pages, Pool};
use capstan_nfs_client::rdma::{How, RdmaClient};
use capstan_rpc_server::Program;

use super::{SOCKETS, null, rdma};
use crate::harness::Running;
use crate::program::Tester;

/// Clients, each of which has had a call answered.
const CLIENTS: usize = 1000;
/// What the issue of the NFS server allows for them, in bytes.
const ALLOWED_BYTES: usize = 64 << 20;

/// Memory of this process that is there, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_ascii_whitespace().nth(1).unwrap();
    pages.parse::<usize>().unwrap() * 4096
}

#[test]
fn a_thousand_idle_connections_take_little_memory() {
    capstan_reactor::raise_descriptor_limit().unwrap();
    let program = Tester::new();
    let server = Running::start_alone(rdma(), Arc::clone(&program) as Arc<dyn Program>);
    let how = How {
        receives: 2,
        ..SOCKETS
    };
    let pool = Pool::new(16 << 20, Pages::Ordinary).unwrap();
    let connect = || {
        let mut client = RdmaClient::connect_with(&pool, server.address(), how);
        null(&mut client, 1);
        client
    };
    let mut client = connect();
    let before = resident_bytes();
    let many: Vec<_> = (0..CLIENTS).map(|_number| connect()).collect();
    // With the memory of the clients, which are in this process too.
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < ALLOWED_BYTES, "{} KiB", taken >> 10);
    assert_eq!(program.ended(), 0);
    null(&mut client, 2);
    drop(many);
    program.until_ended(CLIENTS);
}
