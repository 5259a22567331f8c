//! Hosts over NVMe/TCP, and over NVMe/RDMA at the same port.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use capstan_initiator::{Controller, Transport};
use capstan_nvme_proto::command::{
    AdminCommand, FabricsCommand, GetLogPage, Identify, IoCommand, LbaRange, Read, Write,
};
use capstan_nvme_proto::fabrics::{Cattr, Connect};
use capstan_nvme_proto::identify::{Cns, IdentifyController, SglSupport};
use capstan_nvme_proto::log::{DiscoveryLog, LogPageId, TransportType};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, own_address};
use capstan_tests::raw_tcp::{ICREQ, RawQueue, capsule, sgl};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::tcp_host::{Asked, Data, TcpHost, TcpQueue, enable};
use capstan_tests::wire_host::{self, WireHost, connect_data};
use zerocopy::IntoBytes as _;

const LBA_BYTES: u32 = 4096;

fn target(transports: &str, backing: &str) -> TestTarget {
    TestTarget::start(&format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransports = {transports}\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\n{backing}\nlba = {LBA_BYTES}\n"
    ))
}

const BOTH: &str = "[\"rdma\", \"tcp\"]";

fn write(lba: u64, lbas: u32) -> Sqe {
    IoCommand::Write(Write::new(
        1,
        LbaRange {
            slba: lba,
            nlb: lbas,
        },
    ))
    .encode(0, Sgl::EMPTY)
}

fn read(lba: u64, lbas: u32) -> Sqe {
    IoCommand::Read(Read::new(
        1,
        LbaRange {
            slba: lba,
            nlb: lbas,
        },
    ))
    .encode(0, Sgl::EMPTY)
}

fn pattern(seed: u8, lbas: u32) -> Vec<u8> {
    let bytes = (0..lbas * LBA_BYTES).map(|at| at.wrapping_mul(0x9E37_79B9).to_be_bytes()[0]);
    bytes.map(|byte| byte ^ seed).collect()
}

fn is_success(cqe: &capstan_nvme_proto::cqe::Cqe) {
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
}

/// The host of this project, by the transport it is told and by the one it finds.
#[test]
fn the_library_reads_what_it_has_written_over_either_transport() {
    for (transports, transport) in [
        (BOTH, Transport::Tcp),
        (BOTH, Transport::Auto),
        ("[\"tcp\"]", Transport::Auto),
    ] {
        for digest in [false, true] {
            let target = target(transports, "ram = \"16MiB\"");
            let mut options = options(target.addresses[0], 1);
            (options.transport, options.header_digest) = (transport, digest);
            options.data_digest = digest;
            let controller = Controller::connect(options).expect("connects");
            let volume = controller.volume_blocking(1).expect("a volume").blocking();
            for (seed, lbas) in [(1, 1), (2, 3), (3, 32), (4, 200)] {
                let bytes = pattern(seed, lbas);
                volume.write(4096, &bytes).expect("writes");
                volume.flush().expect("flushes");
                let mut found = vec![0; bytes.len()];
                volume.read(4096, &mut found).expect("reads");
                assert!(found == bytes, "{transports} {transport:?}, {lbas} LBAs");
            }
            controller.close().into_result().expect("ends in order");
            target.stop();
        }
    }
}

/// Writes and reads of all sizes, in the capsule and pulled, to memory and to a file.
#[test]
fn what_is_written_is_read_back() {
    let disk = tempfile::NamedTempFile::new().unwrap();
    disk.as_file().set_len(16 << 20).unwrap();
    let file = format!("path = \"{}\"", disk.path().display());
    for backing in ["ram = \"16MiB\"", file.as_str()] {
        for digests in [Digests::empty(), Digests::all(), Digests::DATA] {
            let target = target(BOTH, backing);
            let mut host = TcpHost::connect(target.addresses[0], 1, digests, 32);
            for (seed, lbas) in [(1, 1), (2, 2), (3, 4), (4, 32), (5, 256)] {
                let bytes = pattern(seed, lbas);
                let data = if lbas <= 2 {
                    Data::InCapsule(&bytes)
                } else {
                    Data::Out(&bytes)
                };
                let at = u64::from(seed) * 512;
                is_success(&host.io.run(write(at, lbas), data).0);
                let (cqe, found) = host.io.run(read(at, lbas), Data::In(lbas * LBA_BYTES));
                is_success(&cqe);
                assert!(found == bytes, "{backing} {digests:?}: {lbas} LBAs differ");
                // Also one that is small enough for its capsule, when it is asked for.
                if lbas == 1 {
                    is_success(&host.io.run(write(at + 1, 1), Data::Out(&bytes)).0);
                    let (_, found) = host.io.run(read(at + 1, 1), Data::In(LBA_BYTES));
                    assert_eq!(found, bytes);
                }
            }
            drop(host);
            target.stop();
        }
    }
}

/// Data of a Connect that does not fit its digest, in its capsule and pulled: each is a line.
#[test]
fn data_that_was_corrupted_on_the_way_is_told_in_the_log() {
    const CID: u16 = 7;
    let at = own_address();
    let target = Daemon::start("ram:1MiB", LBA_BYTES, at);
    for in_capsule in [true, false] {
        let known = target.log().len();
        let mut stream = TcpStream::connect(at).expect("a listener");
        let mut request = ICREQ;
        // DGST: data digests (NVMe over TCP Transport 1.1, section 3.6.2.2).
        request[11] = 2;
        stream.write_all(&request).expect("sent");
        let mut queue = RawQueue { stream };
        queue.pdu().expect("an ICResp");
        let connect = Connect {
            qid: 0,
            sqsize: 32,
            cattr: Cattr(0),
            kato_ms: 0,
        };
        let data = connect_data(1).encode();
        let data = data.as_bytes();
        let length = u32::try_from(data.len()).expect("1024 bytes");
        let sqe = FabricsCommand::Connect(connect).encode(CID, sgl(length, in_capsule));
        let mut pdu = capsule(&sqe, if in_capsule { data } else { &[] });
        if !in_capsule {
            queue.stream.write_all(&pdu).expect("sent");
            let r2t = queue.pdu().expect("an R2T");
            // LAST_PDU; CCCID and TTAG, offset and length, as they are in the R2T.
            pdu = vec![6, 4, 24, 24];
            pdu.extend((24 + length).to_le_bytes());
            pdu.extend(&r2t[8..20]);
            pdu.extend([0; 4]);
            pdu.extend(data);
        }
        // DDGSTF, and a digest that is none.
        pdu[1] |= 2;
        let whole = u32::try_from(pdu.len() + 4).expect("a PDU");
        pdu[4..8].copy_from_slice(&whole.to_le_bytes());
        pdu.extend([0xEE; 4]);
        queue.stream.write_all(&pdu).expect("sent");
        let cqe = queue.response().expect("a response");
        assert_eq!(cqe.status(), Status::TRANSIENT_TRANSPORT_ERROR);
        let peer = queue.stream.local_addr().expect("an address");
        let words = "the CRC32C of the data did not match: it was corrupted on the way";
        let (peer, cid) = (format!("peer={peer}"), format!("cid={CID}"));
        target.wait_for_log_after(known, &["WARN", words, &peer, "qid=0", &cid]);
    }
    assert!(target.stop().success());
}

/// A queue that is full of commands of all kinds, again and again.
#[test]
fn a_deep_queue_is_served_in_full() {
    let target = target(BOTH, "ram = \"64MiB\"");
    let mut host = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 64);
    for round in 0..20_u8 {
        let sizes = [1, 2, 8, 33, 1, 1];
        let mut cids = Vec::new();
        for (index, &lbas) in (0..12_u8).zip(sizes.iter().cycle()) {
            let bytes = pattern(round ^ index, lbas);
            let data = if lbas <= 2 && index % 2 == 0 {
                Data::InCapsule(&bytes)
            } else {
                Data::Out(&bytes)
            };
            cids.push(host.io.post(write(u64::from(index) * 64, lbas), data));
        }
        for cid in cids.drain(..) {
            is_success(&host.io.wait(cid).0);
        }
        for (index, &lbas) in (0..12_u8).zip(sizes.iter().cycle()) {
            let sqe = read(u64::from(index) * 64, lbas);
            cids.push(host.io.post(sqe, Data::In(lbas * LBA_BYTES)));
        }
        for ((index, &lbas), cid) in (0..12_u8).zip(sizes.iter().cycle()).zip(cids) {
            let (cqe, found) = host.io.wait(cid);
            is_success(&cqe);
            assert!(found == pattern(round ^ index, lbas), "{round} {index}");
        }
    }
    drop(host);
    target.stop();
}

#[test]
fn zeroes_are_read_from_a_null_volume() {
    let target = target(BOTH, "null = \"16MiB\"");
    for digests in [Digests::empty(), Digests::all()] {
        let mut host = TcpHost::connect(target.addresses[0], 1, digests, 32);
        for lbas in [1, 8, 256] {
            let (cqe, found) = host.io.run(read(0, lbas), Data::In(lbas * LBA_BYTES));
            is_success(&cqe);
            assert!(found.iter().all(|byte| *byte == 0));
        }
    }
    target.stop();
}

#[test]
fn an_admin_queue_tells_what_its_transport_has() {
    let target = target(BOTH, "ram = \"16MiB\"");
    let mut host = TcpHost::connect(target.addresses[0], 1, Digests::all(), 32);
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let (cqe, page) = host
        .admin
        .run(identify.encode(0, Sgl::EMPTY), Data::In(4096));
    is_success(&cqe);
    let data = IdentifyController::from_data(&page).unwrap();
    let sgls = SglSupport::from_bits_retain(data.sgls.get());
    assert!(sgls.contains(SglSupport::TRANSPORT) && !sgls.contains(SglSupport::KEYED));
    // More than one piece of 4 KiB.
    let get = AdminCommand::GetLogPage(GetLogPage::new(LogPageId::ERROR_INFORMATION, 64 * 64));
    let (cqe, _) = host.admin.run(get.encode(0, Sgl::EMPTY), Data::In(64 * 64));
    is_success(&cqe);
    let get = AdminCommand::GetLogPage(GetLogPage::new(LogPageId::TELEMETRY_HOST, 512));
    let (cqe, _) = host.admin.run(get.encode(0, Sgl::EMPTY), Data::In(512));
    assert!(!cqe.status().is_success());
    // A command that fails leaves the queue as it was.
    let (cqe, _) = host.io.run(read(1 << 40, 1), Data::In(LBA_BYTES));
    assert_eq!(cqe.status().code(), Status::LBA_OUT_OF_RANGE);
    let (cqe, _) = host.io.run(read(0, 1), Data::In(LBA_BYTES));
    is_success(&cqe);
    drop(host);
    target.stop();
}

fn discovery(target: SocketAddr) -> Vec<TransportType> {
    let asked = Asked {
        source: Ipv4Addr::LOCALHOST,
        qid: 0,
        entries: 32,
        digests: Digests::empty(),
        no_flow_control: false,
    };
    let mut parameters = connect_data(3);
    parameters.subnqn = Nqn::discovery();
    let (mut admin, cqe) = TcpQueue::connect(target, asked, &parameters);
    is_success(&cqe);
    enable(&mut admin);
    let get = AdminCommand::GetLogPage(GetLogPage::new(LogPageId::DISCOVERY, 16 << 10));
    let (cqe, page) = admin.run(get.encode(0, Sgl::EMPTY), Data::In(16 << 10));
    is_success(&cqe);
    let log = DiscoveryLog::parse(&page).unwrap();
    log.entries.iter().map(|entry| entry.trtype).collect()
}

#[test]
fn one_port_serves_both_transports_and_discovery_says_so() {
    let target = target(BOTH, "ram = \"16MiB\"");
    let (rdma, tcp) = (TransportType::RDMA, TransportType::TCP);
    assert_eq!(discovery(target.addresses[0]), [rdma, tcp, rdma, tcp]);
    let mut by_tcp = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 32);
    let mut by_rdma = WireHost::connect(target.addresses[0], 2);
    let bytes = pattern(7, 1);
    is_success(&by_tcp.io.run(write(3, 1), Data::InCapsule(&bytes)).0);
    let data = wire_host::Data::Pushed(LBA_BYTES);
    let (cqe, found) = by_rdma.run(wire_host::Queue::Io, read(3, 1), data);
    is_success(&cqe);
    assert_eq!(found, bytes);
    drop((by_tcp, by_rdma));
    target.stop();
}

#[test]
fn a_transport_that_a_listener_does_not_speak_is_refused() {
    let target = target("[\"rdma\"]", "ram = \"16MiB\"");
    let asked = Asked {
        source: Ipv4Addr::LOCALHOST,
        qid: 0,
        entries: 32,
        digests: Digests::empty(),
        no_flow_control: false,
    };
    let (_, cqe) = TcpQueue::connect(target.addresses[0], asked, &connect_data(1));
    let status = cqe.status().code();
    assert_eq!(status, Status::CONNECT_INCOMPATIBLE_FORMAT);
    target.stop();
}

/// What is larger than a queue may be, and another queue of a controller by the wrong name.
#[test]
fn connects_are_held_to_the_same_rules() {
    let target = target(BOTH, "ram = \"16MiB\"");
    let asked = |qid, entries| Asked {
        source: Ipv4Addr::LOCALHOST,
        qid,
        entries,
        digests: Digests::empty(),
        no_flow_control: true,
    };
    let refused = |asked, parameters: &_| {
        let (_queue, cqe) = TcpQueue::connect(target.addresses[0], asked, parameters);
        let status = cqe.status();
        assert!(!status.is_success());
        status.code()
    };
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(refused(asked(0, 2000), &connect_data(1)), invalid);
    let mut parameters = connect_data(1);
    parameters.cntlid = 77;
    assert_eq!(refused(asked(1, 32), &parameters), invalid);
    parameters.subnqn = Nqn::new("nqn.2026-11.org.example:another").unwrap();
    parameters.cntlid = 0xFFFF;
    assert_eq!(refused(asked(0, 32), &parameters), invalid);
    let host = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 32);
    drop(host);
    target.stop();
}

/// A peer that breaks the rules ends alone, and the log warns of it.
#[test]
fn hostile_bytes_end_their_connection_and_nothing_else() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", LBA_BYTES, at);
    let mut other = TcpHost::connect(at, 2, Digests::empty(), 32);
    let icreq = {
        let mut bytes = [0; 128];
        (bytes[2], bytes[4]) = (128, 128);
        bytes
    };
    let mut wrong_version = icreq;
    wrong_version[8] = 9;
    let twice = [icreq, icreq].concat();
    let mut flood = icreq.to_vec();
    flood.extend([0xFF; 4096]);
    for bytes in [&wrong_version[..], &twice, &flood, &[0; 64], &[0; 4096]] {
        let mut peer = TcpStream::connect(at).unwrap();
        // The other side may have closed it.
        let _ = peer.write_all(bytes);
        let _ = peer.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = peer.read_to_end(&mut answer);
        is_success(&other.io.run(read(0, 1), Data::In(LBA_BYTES)).0);
        let peer = format!("peer={}", peer.local_addr().unwrap());
        target.wait_for_log_after(0, &["WARN", "disconnected: ", "expected", &peer]);
    }
    drop(other);
    assert!(target.stop().success());
}

/// More hosts that say nothing than there are places.
#[test]
fn silent_connections_keep_no_host_out() {
    let target = target(BOTH, "ram = \"16MiB\"");
    let mut silent = Vec::new();
    for _ in 0..300 {
        let Ok(mut peer) = TcpStream::connect(target.addresses[0]) else {
            continue;
        };
        let mut icreq = [0; 128];
        (icreq[2], icreq[4]) = (128, 128);
        let _ = peer.write_all(&icreq);
        silent.push(peer);
    }
    let mut host = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 32);
    is_success(&host.io.run(read(0, 1), Data::In(LBA_BYTES)).0);
    drop((silent, host));
    target.stop();
}

/// A host that goes away in the midst of everything leaves nothing behind.
#[test]
fn hosts_that_vanish_leave_room_for_others() {
    let target = target(BOTH, "ram = \"64MiB\"");
    for _ in 0..40 {
        let mut host = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 32);
        let bytes = pattern(1, 64);
        for lba in 0..6 {
            host.io.post(write(lba * 64, 64), Data::Out(&bytes));
            host.io.post(read(lba * 64, 64), Data::In(64 * LBA_BYTES));
        }
        drop(host);
    }
    let mut host = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 32);
    let bytes = pattern(2, 256);
    is_success(&host.io.run(write(0, 256), Data::Out(&bytes)).0);
    let (cqe, found) = host.io.run(read(0, 256), Data::In(256 * LBA_BYTES));
    is_success(&cqe);
    assert!(found == bytes);
    drop(host);
    target.stop();
}

/// SIGTERM's drain, with a host that is connected and idle, and one that reads nothing.
#[test]
fn a_target_that_stops_ends_its_hosts_in_order() {
    let target = target(BOTH, "ram = \"64MiB\"");
    let mut idle = TcpHost::connect(target.addresses[0], 1, Digests::empty(), 32);
    let cid = idle.io.post(read(0, 1), Data::In(LBA_BYTES));
    is_success(&idle.io.wait(cid).0);
    target.stop();
    idle.io.wait_for_the_end();
    idle.admin.wait_for_the_end();
}
