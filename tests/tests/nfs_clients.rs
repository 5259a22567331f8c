//! How much of a target's memory clients of NFS take that do nothing.

use std::fs;
use std::net::SocketAddr;

use capstan_memory::{Pages, Pool};
use capstan_nfs_client::client::{Client, Transport};
use capstan_nfs_client::rdma::{How, OFFER, RdmaClient};
use capstan_nfs_client::tcp;
use capstan_nfs_proto::codec::DataItem;
use capstan_nfs_proto::v4::args;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::types::{Component, StableHow, Stateid};
use capstan_tests::process::{allow_many_descriptors, resident_bytes_of};
use capstan_tests::program::{Daemon, utf8};

const CLIENTS: u32 = 1000;
/// Clients that are there before: what is taken once is none of the others'.
const BEFORE: u32 = 16;
/// What a client may take, in bytes.
const ALLOWED_BYTES: usize = 64 << 20;
/// Requests that a client may have under way, and replies that are kept for it.
const SLOTS: u32 = 4;

/// A client that has mounted, used each slot, and written with the last.
fn mounted<T: Transport>(transport: T, number: u32, written_bytes: usize) -> Client<T> {
    let owner = format!("{number:01000}");
    let mut client = Client::mount(transport, owner.as_bytes(), 1, SLOTS);
    client.keeps_replies = true;
    let data = vec![7; written_bytes];
    for slot in 1..SLOTS {
        let last = if slot + 1 == SLOTS {
            Op::Write(args::Write {
                stateid: Stateid::ANONYMOUS,
                offset: 0,
                stable: StableHow::FileSync,
                data: DataItem::Inline(&data),
            })
        } else {
            Op::GetFh
        };
        let [folder, file] = ["exported", "f"].map(|name| Op::Lookup(Component(name.as_bytes())));
        client.run(slot, &[Op::PutRootFh, folder, file, last], |_| ());
    }
    client
}

/// Has a thousand clients mount what a target exports with these keys of `[nfs]`, each of which
/// writes so many bytes, and looks at its memory.
fn idle_clients<T: Transport>(keys: &str, written_bytes: usize, connect: impl Fn(SocketAddr) -> T) {
    allow_many_descriptors();
    // A tmpfs has handles, whatever the machine is on.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "exported"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::write(folder.join("exported/f"), b"").unwrap();
    let file = folder.join("target.toml");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
         [nfs]\naddresses = [\"127.0.0.1\"]\n{keys}\n\
         lease_time = \"1h\"\ngrace_time = \"1h\"\n\
         [[export]]\npath = {:?}\npseudo = \"/exported\"\naccess = \"read-write\"\n\
         squash = \"none\"\nfile_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n\
         clients = [\"127.0.0.1\"]\n",
        folder.join("exported")
    );
    fs::write(&file, text).unwrap();
    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::serve_nfs_under(&["env", &state], &["--config", utf8(&file)]);
    let log = daemon.log();
    let address = log
        .iter()
        .find_map(|line| line.split_once("listening for NFS at "))
        .unwrap()
        .1;
    let address: SocketAddr = address.trim().parse().unwrap();

    let mount = |number| mounted(connect(address), number, written_bytes);
    let mut clients: Vec<_> = (0..BEFORE).map(mount).collect();
    let before = resident_bytes_of(daemon.pid());
    clients.extend((BEFORE..BEFORE + CLIENTS).map(mount));
    let taken = resident_bytes_of(daemon.pid()).saturating_sub(before);
    eprintln!("{CLIENTS} clients take {} KiB", taken >> 10);
    assert!(taken < ALLOWED_BYTES, "{taken} bytes");
    // All are still there.
    for client in &mut clients {
        client.run(0, &[], |_| ());
    }
    assert!(daemon.stop().success());
}

#[test]
fn root_a_thousand_idle_clients_over_tcp_take_less_than_64_mib() {
    // Too much, were it kept for all of them.
    const WRITTEN_BYTES: usize = 96 << 10;
    let keys = "transports = [\"tcp\"]\nport = 0";
    idle_clients(keys, WRITTEN_BYTES, tcp::connect);
}

#[test]
fn root_a_thousand_idle_clients_over_rdma_take_less_than_64_mib() {
    // Nearly all that a call has room for inline.
    const WRITTEN_BYTES: usize = 3 << 10;
    let how = How {
        same_host: false,
        offer: Some(OFFER),
        reads: 4,
        receives: 4,
    };
    let pool = Pool::new(64 << 20, Pages::Ordinary).unwrap();
    let keys = "transports = [\"rdma\"]\nrdma_port = 0\nprovider = \"iwarp\"";
    idle_clients(keys, WRITTEN_BYTES, |address| {
        RdmaClient::connect_with(&pool, address, how)
    });
}
