//! How much memory clients take that do nothing: a thousand are to take less than 64 MiB.

use std::net::IpAddr;

use capstan_nfs::state::stable::Replay;
use capstan_nfs::state::{Config, ConnId, Peer, Principal, RequestShape, Sequenced, State};
use capstan_nfs_client::call;
use capstan_nfs_proto::v4::args::Sequence;

/// Bytes of this process that are in memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process' status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("VmRSS");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("KiB");
    kib * 1024
}

/// A client with an owner as long as it can be, and a reply kept in each of its slots.
fn idle_client(state: &mut State, number: u32) {
    let [a, b, c, d] = number.to_be_bytes();
    let peer = Peer {
        connection: ConnId(number.into()),
        address: IpAddr::from([10 | a, b, c, d]),
        principal: Principal { flavor: 1, id: 0 },
    };
    let owner = [&number.to_be_bytes()[..], &[b'x'; 1020]].concat();
    let exchange = call::exchange_id(&owner, [1; 8]);
    let exchanged = state
        .exchange_id(&exchange, 1, &peer, number, 0)
        .expect("EXCHANGE_ID");
    let clientid = exchanged.client;
    let create = call::create_session(clientid, 1, 64, 4096);
    let created = state
        .create_session(&create, &peer, number.into(), 0)
        .expect("CREATE_SESSION");
    state
        .reclaim_complete(clientid, false, 0)
        .expect("RECLAIM_COMPLETE");
    for slotid in 0..64 {
        let request = Sequence {
            sessionid: created.sessionid,
            sequenceid: 1,
            slotid,
            highest_slotid: 63,
            cachethis: true,
        };
        let shape = RequestShape {
            fingerprint: slotid.into(),
            operations: 4,
            bytes: 200,
            reply_bytes: 96,
        };
        match state
            .sequence(&request, &shape, &peer, 0)
            .expect("SEQUENCE")
        {
            Sequenced::New(request, _) => state.complete(&request, Some(&[7; 300])),
            other => panic!("slot {slotid} was never used: {other:?}"),
        }
    }
    drop(state.take_records());
}

#[test]
fn a_thousand_idle_clients_take_less_than_64_mib() {
    let mut state = State::new(Config::new(), Replay::default());
    // What is allocated once is none of theirs.
    idle_client(&mut state, 0);
    let before = resident_bytes();
    for number in 1..=1000 {
        idle_client(&mut state, number);
    }
    let taken = resident_bytes().saturating_sub(before);
    let accounted = state.bytes_used() + state.reply_bytes_used();
    assert_eq!(state.client_count(), 1001);
    assert!(taken < 64 << 20, "{taken} bytes");
    // The accounts are what the bounds rest on: allocators round, but not to the double.
    assert!(
        accounted < 64 << 20 && taken < accounted * 3 / 2,
        "{accounted} of {taken} bytes"
    );
}
