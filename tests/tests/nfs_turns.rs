//! Clients with calls that hang, and what the target does for others meanwhile.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};

use capstan_nfs_client::client::Client;
use capstan_nfs_client::gate::Gate;
use capstan_nfs_client::tcp;
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args::{Open, OpenClaim, OpenHow, ShareAccess, ShareDeny};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::types::{ClientId, Component, StateOwner};
use capstan_rpc_server::limits::SPARE_THREADS_MAX;
use capstan_tests::program::{Daemon, utf8};

const THREADS: usize = 4;
/// Connections of one address, each with a call that hangs: more than one address may have under
/// way, of threads and of those that take the places of others.
const HANGING: usize = 64;
const OF_ONE_ADDRESS: usize = THREADS / 2 + SPARE_THREADS_MAX / 2;

/// OPEN of a file of the export.
fn open(name: &str) -> [Op<'_>; 3] {
    let open = Open {
        seqid: 0,
        share_access: ShareAccess(1),
        share_deny: ShareDeny(0),
        owner: StateOwner {
            clientid: ClientId(0),
            owner: Opaque(b"o"),
        },
        openhow: OpenHow::NoCreate,
        claim: OpenClaim::Null(Component(name.as_bytes())),
    };
    [Op::PutRootFh, Op::Lookup(Component(b"a")), Op::Open(open)]
}

/// A client at 127.0.0.`last`.
fn mount(at: SocketAddrV4, last: u8, number: usize) -> Client<TcpStream> {
    let stream = tcp::connect_from(Ipv4Addr::new(127, 0, 0, last), at);
    Client::mount(stream, format!("client {last}.{number}").as_bytes(), 1, 1)
}

#[test]
fn root_calls_of_one_address_that_hang_keep_no_other_address_waiting() {
    // A tmpfs has handles, whatever the machine is on.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "a", "b"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::write(folder.join("a/gated"), b"").unwrap();
    let file = folder.join("target.toml");
    let export = |name: &str, last: u8| {
        format!(
            "[[export]]\npath = {:?}\npseudo = \"/{name}\"\nclients = [\"127.0.0.0/8\"]\n\
             file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a{last}\"\n",
            folder.join(name)
        )
    };
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
         [nfs]\naddresses = [\"127.0.0.1\"]\ntransports = [\"tcp\"]\nport = 0\nthreads = {THREADS}\n\
         {}{}",
        export("a", 1),
        export("b", 1)
    );
    fs::write(&file, text).unwrap();
    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::serve_nfs_under(&["env", &state], &["--config", utf8(&file)]);
    let line = daemon.wait_for_log_after(0, &["listening for NFS at "]);
    let at = line.split_once("listening for NFS at ").unwrap().1;
    let at = at.trim().parse().unwrap();

    let mut hanging: Vec<_> = (0..HANGING).map(|number| mount(at, 2, number)).collect();
    let mut gate = Gate::before(&folder.join("a/gated"));
    for client in &mut hanging {
        client.send(&[(0, &open("gated"))]);
    }
    gate.until_waiting(THREADS);
    // It comes when every thread is in a call that hangs, and has each of its calls answered.
    let mut other = mount(at, 3, 0);
    let path = [Op::PutRootFh, Op::Lookup(Component(b"b"))];
    let size = Op::GetAttr(Bitmap::EMPTY.with(4));
    for _ in 0..20 {
        other.run(0, &[&path[..], &[size]].concat(), |results| {
            assert!(matches!(results[2], OpResult::GetAttr(_)), "{results:?}");
        });
        let waiting = gate.waiting();
        assert!(waiting <= OF_ONE_ADDRESS, "{waiting} calls of one address");
    }
    drop(gate);
    for client in &mut hanging {
        client.receive(|results| assert!(matches!(results[2], OpResult::Open(_))));
    }
    assert!(daemon.stop().success());
}
