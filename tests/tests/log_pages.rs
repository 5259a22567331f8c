//! What Admin queues tell takes no data buffers, and is whole however it is asked for.

use std::time::{Duration, Instant};

use capstan_nvme_proto::command::{AdminCommand, GetLogPage, IoCommand, LbaRange, Read};
use capstan_nvme_proto::fabrics::ConnectParameters;
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::iwarp::Config;
use capstan_tests::attack::{Stranger, sources};
use capstan_tests::program::{Daemon, own_address, utf8};
use capstan_tests::target::SUBNQN;
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};
use nix::sys::socket::{setsockopt, sockopt};

const RECORD_BYTES: usize = 1024;

fn serve(folder: &tempfile::TempDir, text: &str) -> Daemon {
    let path = folder.path().join("target.toml");
    std::fs::write(&path, text).expect("a configuration");
    Daemon::serve(&["--config", utf8(&path)])
}

fn discovery(number: u8) -> ConnectParameters {
    ConnectParameters {
        subnqn: Nqn::discovery(),
        ..connect_data(number)
    }
}

fn get(lid: LogPageId, offset: u64, length_bytes: u32) -> Sqe {
    let get = GetLogPage {
        nsid: 0,
        offset,
        ..GetLogPage::new(lid, length_bytes.into())
    };
    AdminCommand::GetLogPage(get).encode(0, Sgl::EMPTY)
}

/// As nvme-cli up to 1.16 reads it: all at once. 42 records of a KiB are more than a discovery
/// controller has memory for.
#[test]
fn a_long_discovery_log_page_is_whole_however_it_is_asked_for() {
    const SUBSYSTEMS: usize = 40;
    const LENGTH_BYTES: u32 = 48 << 10;
    let at = own_address();
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = format!(
        "[target]\nreactors = 1\n[[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n",
        at.ip()
    );
    for number in 0..SUBSYSTEMS {
        text.push_str(&format!(
            "[[subsystem]]\nnqn = \"{SUBNQN}-{number}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\nlba = 4096\n"
        ));
    }
    let daemon = serve(&folder, &text);
    let wire = Wire::new(Config::default(), 1024, 4 << 20);
    let mut host = WireHost::associate(wire, at, discovery(1));
    let mut page = Vec::new();
    while page.len() < (2 + SUBSYSTEMS) * RECORD_BYTES {
        let offset = u64::try_from(page.len()).expect("small");
        let sqe = get(LogPageId::DISCOVERY, offset, 1024);
        let (cqe, data) = host.run(Queue::Admin, sqe, Data::Pushed(1024));
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        page.extend(data);
    }
    let names: Vec<_> = page.chunks(RECORD_BYTES).skip(2).collect();
    assert!(
        names.windows(2).all(|pair| pair[0] != pair[1]),
        "each subsystem has a record"
    );
    // In one buffer; in pieces of 3 KiB, across which those of the target go; and all at once.
    let ways = [
        Data::Pushed(LENGTH_BYTES),
        Data::PushedInPieces(LENGTH_BYTES, 16),
        Data::Pushed(LENGTH_BYTES),
    ];
    for data in ways {
        let sqe = get(LogPageId::DISCOVERY, 0, LENGTH_BYTES);
        let (cqe, whole) = host.run(Queue::Admin, sqe, data);
        assert!(cqe.status().is_success(), "{data:?}: {:?}", cqe.status());
        assert!(whole[..page.len()] == page[..], "{data:?}");
    }
    let cids: Vec<_> = (0..8)
        .map(|n| {
            let sqe = get(LogPageId::DISCOVERY, n * 4096, LENGTH_BYTES);
            host.send(Queue::Admin, sqe, Data::Pushed(LENGTH_BYTES))
        })
        .collect();
    for (n, cid) in cids.into_iter().enumerate() {
        let (cqe, rest) = host.answer(Queue::Admin, cid);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        let expected = &page[n * 4096..];
        assert!(rest[..expected.len()] == *expected, "from {} on", n * 4096);
    }
    drop(host);
    assert!(daemon.stop().success());
}

/// Where log pages had data buffers, eight strangers had all of them, and again when they were
/// ended for it.
#[test]
fn log_pages_that_are_not_taken_leave_permitted_hosts_their_buffers() {
    let at = own_address();
    let folder = tempfile::tempdir().expect("a folder");
    let volume = folder.path().join("volume");
    let file = std::fs::File::create(&volume).expect("a file");
    file.set_len(16 << 20).expect("a sparse file");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"16MiB\"\n\
         [[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"{}\"\nlba = 4096\n",
        at.ip(),
        utf8(&volume)
    );
    let daemon = serve(&folder, &text);
    let mut host = WireHost::connect(at, 1);
    let mut strangers = Vec::new();
    for lid in [LogPageId::DISCOVERY, LogPageId::ERROR_INFORMATION] {
        for number in 2..10 {
            let mut parameters = connect_data(number);
            if lid == LogPageId::DISCOVERY {
                parameters = discovery(number);
            }
            let mut stranger = Stranger::connect(at, sources()[0], 0).expect("a connection");
            setsockopt(&stranger.stream, sockopt::RcvBuf, &4096).expect("a socket");
            stranger.associate(&parameters).expect("a controller");
            for cid in 1..28 {
                stranger.ask_for_page(cid, lid).expect("sent");
            }
            strangers.push(stranger);
        }
        let range = LbaRange { slba: 0, nlb: 16 };
        for _ in 0..20 {
            let sqe = IoCommand::Read(Read::new(1, range)).encode(0, Sgl::EMPTY);
            let start = Instant::now();
            let (cqe, _) = host.run(Queue::Io, sqe, Data::Pushed(64 << 10));
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            let took = start.elapsed();
            assert!(
                took < Duration::from_secs(1),
                "{took:?} for 64 KiB, {lid:?}"
            );
        }
    }
    let log = daemon.log();
    let short = |line: &&String| line.contains("while other hosts wait for buffers");
    assert_eq!(log.iter().find(short), None);
    drop((strangers, host));
    assert!(daemon.stop().success());
}
