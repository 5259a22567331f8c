//! Golden bytes: what the Linux host and target really send must be read, and written again as the
//! same bytes. `golden/README.md` says how each file was captured.

use std::path::Path;

use capstan_nvme_proto::command::{FabricsCommand, IoCommand};
use capstan_nvme_proto::log::{DiscoveryLog, TcpSecurityType};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::{C2hData, C2hPlan, C2hWindow};
use capstan_nvme_proto::tcp::command::CommandData;
use capstan_nvme_proto::tcp::digest::crc32c;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::pdu::{IcReq, IcResp};
use capstan_nvme_proto::tcp::r2t::{R2t, R2tLedger, R2tPlan, R2tWindow};
use capstan_nvme_proto::tcp::reader::{Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcRequest, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use capstan_nvme_proto::transfer::DataTransfer;
use zerocopy::{FromBytes, IntoBytes};

use super::{Read, read_all};

/// The four combinations of digests, by how the names of their files end.
const COMBINATIONS: [(&str, Digests); 4] = [
    ("none", Digests::empty()),
    ("hdgst", Digests::HEADER),
    ("ddgst", Digests::DATA),
    ("hdgst-ddgst", Digests::all()),
];

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tcp/golden"))
}

fn load(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let hex: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
        .collect()
}

/// What the Linux host asked for and the Linux target answered.
fn setup(combination: &str) -> (IcRequest, IcResponse) {
    let wire = load(&format!("icreq-{combination}"));
    let request = IcRequest::parse(IcReq::ref_from_bytes(&wire).expect("128 bytes"));
    let request = request.expect(combination);
    assert_eq!(request.encode().as_bytes(), wire);
    let wire = load(&format!("icresp-{combination}"));
    let response = IcResponse::parse(IcResp::ref_from_bytes(&wire).expect("128 bytes"), &request);
    let response = response.expect(combination);
    assert_eq!(response.encode().as_bytes(), wire);
    (request, response)
}

fn reader(role: Role, combination: &str) -> (PduReader, Agreed) {
    let (request, response) = setup(combination);
    match role {
        Role::Host => super::host(&request, &response),
        Role::Controller => super::controller(&request, &response),
    }
}

/// One PDU, read by the side it was for. Its data digest is right.
fn read(name: &str, combination: &str) -> (Read, Agreed) {
    let name = format!("{name}-{combination}");
    let from_host = ["capsule-cmd", "h2c-data"]
        .iter()
        .any(|kind| name.starts_with(kind));
    let role = if from_host {
        Role::Controller
    } else {
        Role::Host
    };
    // With flow control or without is for Connect to say: the set-up is that of no digests.
    let combination = combination.replace("flow-control", "none");
    let (mut reader, agreed) = reader(role, &combination);
    let bytes = load(&name);
    let mut all = read_all(&mut reader, [&bytes[..]]).expect(&name);
    let read = all.pop().expect("a PDU");
    assert!(all.is_empty(), "{name} is one PDU");
    let has_digest = agreed.digests.contains(Digests::DATA) && !read.data.is_empty();
    let digest = has_digest.then(|| crc32c(&read.data));
    assert_eq!(read.digest, digest, "{name}");
    (read, agreed)
}

fn write(read: &Read, agreed: &Agreed) -> Vec<u8> {
    let host = PduWriter::new(Role::Host, agreed);
    let controller = PduWriter::new(Role::Controller, agreed);
    let head = match &read.pdu {
        Pdu::CapsuleCmd {
            sqe,
            in_capsule_bytes,
        } => host.capsule_cmd(sqe, *in_capsule_bytes),
        Pdu::CapsuleResp(cqe) => controller.capsule_resp(cqe),
        Pdu::H2cData(data) => host.h2c_data(data),
        Pdu::C2hData(data) => controller.c2h_data(data),
        Pdu::R2t(r2t) => controller.r2t(r2t),
        Pdu::IcReq(_) | Pdu::IcResp(_) | Pdu::TermReq { .. } => panic!("{:?}", read.pdu),
    };
    let mut bytes = [head.as_bytes(), &read.data].concat();
    if head.has_data_digest() {
        bytes.extend_from_slice(&crc32c(&read.data).to_le_bytes());
    }
    bytes
}

#[test]
fn every_file_reads_and_writes_back() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of golden files")
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| {
            name.into_string()
                .ok()?
                .strip_suffix(".hex")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    // Nine kinds of PDU, of which Linux sends no TermReq.
    assert!(names.len() >= 70, "{} files", names.len());
    for name in names {
        let combination = ["flow-control", "hdgst-ddgst", "hdgst", "ddgst", "none"]
            .into_iter()
            .find(|combination| name.ends_with(combination))
            .unwrap_or_else(|| panic!("{name}: no combination of digests has this name"));
        let kind = name
            .strip_suffix(&format!("-{combination}"))
            .expect("a name before the combination");
        if kind == "icreq" || kind == "icresp" {
            setup(combination);
            continue;
        }
        let (pdu, agreed) = read(kind, combination);
        assert_eq!(write(&pdu, &agreed), load(&name), "{name}");
    }
}

#[test]
fn linux_asks_for_what_it_is_told_to_and_no_more() {
    for (combination, digests) in COMBINATIONS {
        let (request, response) = setup(combination);
        let dword = DataAlignment::DWORD;
        assert_eq!(
            request,
            IcRequest {
                hpda: dword,
                digests,
                maxr2t: 1
            }
        );
        assert_eq!(
            response,
            IcResponse {
                cpda: dword,
                digests,
                maxh2cdata_bytes: 0x40_0000
            }
        );
    }
}

#[test]
fn the_linux_host_connects_with_its_data_in_the_capsule() {
    for (combination, _) in COMBINATIONS {
        let (connect, _) = read("capsule-cmd-connect-admin", combination);
        let Pdu::CapsuleCmd {
            sqe,
            in_capsule_bytes: 1024,
        } = connect.pdu
        else {
            panic!("{combination}: {:?}", connect.pdu);
        };
        let Ok(FabricsCommand::Connect(parameters)) = FabricsCommand::parse(&sqe) else {
            panic!("{combination}: no Connect");
        };
        assert_eq!(parameters.qid, 0);
        let transfer = DataTransfer::HostToController { bytes: 1024 };
        assert_eq!(
            CommandData::of(transfer, &sqe.sgl().expect("an SGL"), 1024),
            Ok(CommandData::InCapsule(0..1024))
        );
        let (answer, _) = read("capsule-resp-connect-admin", combination);
        let Pdu::CapsuleResp(cqe) = answer.pdu else {
            panic!("{combination}: {:?}", answer.pdu);
        };
        // SQ flow control is disabled: SQHD is FFFFh.
        assert_eq!((cqe.status(), cqe.sqhd.get()), (Status::SUCCESS, 0xFFFF));
    }
    let (answer, _) = read("capsule-resp-connect-admin", "flow-control");
    let Pdu::CapsuleResp(cqe) = answer.pdu else {
        panic!("{:?}", answer.pdu);
    };
    assert_ne!(cqe.sqhd.get(), 0xFFFF);
}

#[test]
fn a_read_brings_its_data_and_its_success_in_one_pdu() {
    for (combination, _) in COMBINATIONS {
        let (command, _) = read("capsule-cmd-read", combination);
        let Pdu::CapsuleCmd { sqe, .. } = command.pdu else {
            panic!("{combination}: {:?}", command.pdu);
        };
        assert!(matches!(IoCommand::parse(&sqe), Ok(IoCommand::Read(_))));
        let transfer = DataTransfer::ControllerToHost { bytes: 4096 };
        assert_eq!(
            CommandData::of(transfer, &sqe.sgl().expect("an SGL"), 0),
            Ok(CommandData::Transport { length_bytes: 4096 })
        );
        let (data, _) = read("c2h-data-read", combination);
        let Pdu::C2hData(header) = data.pdu else {
            panic!("{combination}: {:?}", data.pdu);
        };
        // What ours would send is what Linux sends, and its own window takes it.
        let planned: Vec<_> = C2hPlan::new(sqe.cid.get(), 4096, 0x2_0000, true).collect();
        assert_eq!(planned, [header]);
        let mut window = C2hWindow::new(4096);
        assert_eq!(window.receive(&header), Ok(()));
        assert!(window.is_complete());
    }
    let (data, _) = read("c2h-data-read", "flow-control");
    assert!(matches!(
        data.pdu,
        Pdu::C2hData(C2hData {
            last: true,
            success: false,
            ..
        })
    ));
}

#[test]
fn a_write_that_does_not_fit_the_capsule_is_asked_for() {
    for (combination, _) in COMBINATIONS {
        let (command, agreed) = read("capsule-cmd-write-r2t", combination);
        let Pdu::CapsuleCmd {
            sqe,
            in_capsule_bytes: 0,
        } = command.pdu
        else {
            panic!("{combination}: {:?}", command.pdu);
        };
        assert_eq!(
            sqe.sgl(),
            Ok(Sgl::Transport { length_bytes: 8192 }),
            "{combination}"
        );
        let (asked, _) = read("r2t-write-r2t", combination);
        let Pdu::R2t(r2t) = asked.pdu else {
            panic!("{combination}: {:?}", asked.pdu);
        };
        let (sent, _) = read("h2c-data-write-r2t", combination);
        let Pdu::H2cData(data) = sent.pdu else {
            panic!("{combination}: {:?}", sent.pdu);
        };
        // Our host answers Linux's R2T as Linux does.
        let mut window = R2tWindow::new(8192, &agreed);
        let answer: Vec<H2cData> = window.receive(&r2t, &agreed).expect("due").collect();
        assert_eq!(answer, [data]);
        // Our controller asks as Linux does, but for the tag, and takes the answer.
        let mut ledger = R2tLedger::<1>::new();
        let mut plan = R2tPlan::new(sqe.cid.get(), 8192, 0x2_0000, &agreed);
        let ours = ledger.ask(&mut plan).expect("an R2T");
        assert_eq!(
            R2t {
                ttag: r2t.ttag,
                ..ours
            },
            r2t
        );
        let data = H2cData {
            ttag: ours.ttag,
            ..data
        };
        assert_eq!(ledger.receive(&data), Ok(()));
        plan.landed(&data);
        assert!(plan.is_complete());
        // The script's data: 512 bytes of each letter.
        let letters = sent.data.chunks(512).map(|lba| lba[0]);
        assert!(letters.eq(b'a'..=b'p'), "{combination}");
    }
}

#[test]
fn a_write_that_fits_the_capsule_is_there_at_once() {
    for (combination, _) in COMBINATIONS {
        let (command, _) = read("capsule-cmd-write-incapsule", combination);
        let Pdu::CapsuleCmd {
            sqe,
            in_capsule_bytes: 4096,
        } = command.pdu
        else {
            panic!("{combination}: {:?}", command.pdu);
        };
        let transfer = DataTransfer::HostToController { bytes: 4096 };
        assert_eq!(
            CommandData::of(transfer, &sqe.sgl().expect("an SGL"), 4096),
            Ok(CommandData::InCapsule(0..4096))
        );
        assert_eq!(command.data[0], b'a');
    }
}

#[test]
fn the_linux_target_lists_its_tcp_port() {
    let (data, _) = read("c2h-data-get-log-discovery-records", "none");
    let log = DiscoveryLog::parse(&data.data).expect("a discovery log");
    let entry = log
        .entries
        .iter()
        .find(|entry| {
            let nqn = entry.subsystem_nqn().expect("an NQN");
            nqn.as_str() == "nqn.2026-11.org.example:capstan-lab"
        })
        .expect("the subsystem");
    let tsas = entry.tcp_tsas().expect("TRTYPE TCP");
    assert_eq!(tsas.sectype, TcpSecurityType::NONE);
    assert_eq!(entry.transport_service_id().as_str(), Some("4420"));
}
