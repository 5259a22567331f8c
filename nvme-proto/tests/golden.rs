//! Golden bytes: what the Linux host and target really send must parse, and encode back to the
//! same bytes. `golden/README.md` says how each file was captured.
//!
//! Part one walks over every file and checks it by the structure its name starts with. Part two
//! asserts named fields of particular files.

use std::collections::BTreeMap;
use std::path::Path;

use capstan_nvme_proto::command::{AdminCommand, FabricsCommand, IoCommand};
use capstan_nvme_proto::copy::source_ranges;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::fabrics::{ConnectData, ConnectResponse};
use capstan_nvme_proto::features::{AsyncEventConfiguration, NumberOfQueues};
use capstan_nvme_proto::identify::{
    CommandSetList, CommandSetVector, Csi, IdentifyController, IdentifyNamespace,
    IndependentIdentifyNamespace, NamespaceId, NamespaceIdDescriptors, NamespaceList,
    NvmIdentifyController, NvmIdentifyNamespace, write_namespace_ids,
};
use capstan_nvme_proto::log::{
    AddressFamily, AnaGroupHeader, AnaLogHeader, AnaState, CommandEffects, CommandEffectsLog,
    DiscoveryLog, DiscoverySubsystemType, ErrorInformationEntry, FirmwareSlotLog, HealthLog,
    RdmaCms, RdmaQpType, ReservationNotificationLog, ReservationNotificationType,
    SupportedLogPages, TransportType,
};
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};
use capstan_nvme_proto::property::{Cap, Cc, Property, ShutdownNotification, Version};
use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, CmRequest, RejectStatus};
use capstan_nvme_proto::reservation::{Registrants, ReservationStatus};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::{NSID_BROADCAST, Sqe};
use capstan_nvme_proto::status::{Status, StatusCodeType};
use capstan_nvme_proto::{async_event::AsyncEvent, log::LogPageId};
use zerocopy::{FromZeros, IntoBytes};

/// One golden file.
struct Golden {
    /// Name without `.hex`.
    name: String,
    /// The queue, when the first comment says `qid N`.
    qid: Option<u16>,
    bytes: Vec<u8>,
}

impl Golden {
    fn parse(name: &str, text: &str) -> Self {
        let (comments, hex): (Vec<_>, Vec<_>) = text
            .lines()
            .map(str::trim)
            .partition(|line| line.starts_with('#'));
        let hex: String = hex.concat().split_whitespace().collect();
        assert!(
            hex.len().is_multiple_of(2),
            "{name}: an odd number of hex digits"
        );
        let bytes = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
            .collect();
        let mut words = comments
            .first()
            .map(|line| line.split_whitespace())
            .expect("a comment");
        let qid = words
            .find(|word| *word == "qid")
            .and_then(|_| words.next())
            .and_then(|qid| qid.parse().ok());
        Self {
            name: name.to_owned(),
            qid,
            bytes,
        }
    }

    fn load(name: &str) -> Self {
        let path = folder().join(format!("{name}.hex"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(name, &text)
    }

    /// The status a name ending in `-sctN-scXX` gives; success for any other name.
    fn named_status(&self) -> Status {
        let Some((_, rest)) = self.name.split_once("-sct") else {
            return Status::SUCCESS;
        };
        let (sct, sc) = rest.split_once("-sc").expect("sct is followed by sc");
        let sc = u8::from_str_radix(&sc[..2], 16).expect("two hex digits");
        Status::new(StatusCodeType(sct.parse().expect("a digit")), sc)
    }

    fn sqe(&self) -> Sqe {
        let (sqe, _data) = Sqe::from_capsule(&self.bytes).expect("a whole SQE");
        *sqe
    }

    fn cqe(&self) -> Cqe {
        *Cqe::from_capsule(&self.bytes).expect("16 bytes")
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

fn all() -> Vec<Golden> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of golden files")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .filter_map(|name| name.strip_suffix(".hex").map(str::to_owned))
        .collect();
    names.sort();
    names.iter().map(|name| Golden::load(name)).collect()
}

/// Parses the entry as a controller would and encodes it as a host would.
fn reencode(sqe: &Sqe, qid: u16) -> Result<Sqe, CommandError> {
    let cid = sqe.cid.get();
    let sgl = sqe.sgl()?;
    Ok(if sqe.is_fabrics() {
        FabricsCommand::parse(sqe)?.encode(cid, sgl)
    } else if qid == 0 {
        AdminCommand::parse(sqe)?.encode(cid, sgl)
    } else {
        IoCommand::parse(sqe)?.encode(cid, sgl)
    })
}

fn check_sqe(golden: &Golden) {
    let name = &golden.name;
    let sqe = golden.sqe();
    let qid = golden
        .qid
        .unwrap_or_else(|| panic!("{name}: no qid in the first comment"));
    if name.contains("-opcode-") {
        let error = reencode(&sqe, qid).expect_err(name);
        assert_eq!(error.status.code(), golden.named_status(), "{name}");
        assert_eq!(error.location, ErrorLocation::sqe(0), "{name}");
    } else {
        let encoded = reencode(&sqe, qid).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(encoded.as_bytes(), golden.bytes, "{name}");
    }
}

fn check_cqe(golden: &Golden) {
    let cqe = golden.cqe();
    assert_eq!(
        cqe.status().code(),
        golden.named_status(),
        "{}",
        golden.name
    );
    assert!(!cqe.phase(), "{}", golden.name);
    let mut built =
        Cqe::new(cqe.cid.get(), cqe.sqhd.get(), cqe.status(), 0).with_result(cqe.result());
    // The Linux target fills in the SQ Identifier, which fabrics reserves.
    built.sqid = cqe.sqid;
    assert_eq!(built.as_bytes(), golden.bytes, "{}", golden.name);
}

fn check_capsule(golden: &Golden) {
    let name = &golden.name;
    let (sqe, in_capsule) = Sqe::from_capsule(&golden.bytes).expect(name);
    let range = sqe
        .sgl()
        .expect(name)
        .capsule_range(in_capsule.len())
        .expect(name);
    assert_eq!(range, 0..in_capsule.len(), "{name}");
    let data = &in_capsule[range];
    let encoded = reencode(sqe, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!([encoded.as_bytes(), data].concat(), golden.bytes, "{name}");
    if sqe.is_fabrics() {
        check_connect_data(name, data);
        return;
    }
    let command = IoCommand::parse(sqe).expect(name);
    let needed_bytes = command.data_transfer(512).bytes();
    assert!(needed_bytes <= data.len() as u64, "{name}: {needed_bytes}");
    match command {
        IoCommand::DatasetManagement(dsm) => {
            let ranges = DsmRange::parse_all(data, dsm.ranges).expect(name);
            assert!(
                ranges.iter().all(|range| range.length_lbas.get() > 0),
                "{name}"
            );
        }
        IoCommand::Copy(copy) => {
            let ranges = source_ranges(data, copy.format, copy.ranges).expect(name);
            assert_eq!(ranges.len(), usize::from(copy.ranges), "{name}");
        }
        IoCommand::Write(_) | IoCommand::Compare(_) => {
            assert_eq!(needed_bytes, data.len() as u64, "{name}");
        }
        other => panic!("{name}: {other:?} has no in-capsule data"),
    }
}

fn check_connect_data(name: &str, data: &[u8]) {
    let parameters = ConnectData::from_data(data)
        .expect(name)
        .parse()
        .expect(name);
    assert_eq!(parameters.encode().as_bytes(), data, "{name}");
}

fn check_private_data(golden: &Golden) {
    let (name, bytes) = (&golden.name, &golden.bytes[..]);
    let encoded = if name.starts_with("cm-request-") {
        CmRequest::parse(bytes)
            .expect(name)
            .encode()
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("cm-accept-") {
        CmAccept::parse(bytes)
            .expect(name)
            .encode()
            .as_bytes()
            .to_vec()
    } else {
        CmReject::parse(bytes)
            .expect(name)
            .encode()
            .as_bytes()
            .to_vec()
    };
    assert_eq!(encoded, bytes, "{name}");
}

fn check_identify(golden: &Golden) {
    let (name, bytes) = (&golden.name, &golden.bytes[..]);
    let encoded = if name.starts_with("identify-controller") {
        let identify = IdentifyController::from_data(bytes).expect(name);
        identify.subsystem_nqn().expect(name);
        identify.serial_number().as_str().expect(name);
        identify.model_number().as_str().expect(name);
        identify.as_bytes().to_vec()
    } else if name.starts_with("identify-csi-controller") {
        NvmIdentifyController::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("identify-namespace-") {
        let identify = IdentifyNamespace::from_data(bytes).expect(name);
        if identify.nsze_lbas.get() != 0 {
            identify
                .formatted_lba_format()
                .and_then(|format| format.lba_bytes())
                .expect(name);
        }
        identify.as_bytes().to_vec()
    } else if name.starts_with("identify-ns-descs-") {
        let mut data = vec![0xEE; bytes.len()];
        write_namespace_ids(&mut data, NamespaceIdDescriptors::new(bytes)).expect(name);
        data
    } else if name.starts_with("identify-csi-namespace-") {
        NvmIdentifyNamespace::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("identify-cs-independent-ns-") {
        IndependentIdentifyNamespace::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("identify-command-sets") {
        let list = CommandSetList::from_data(bytes).expect(name);
        let first = list.iter().next().expect(name);
        assert_eq!(list.iter().count(), 1, "{name}");
        CommandSetList::single(first).as_bytes().to_vec()
    } else if name.starts_with("identify-active-ns-list")
        || name.starts_with("identify-csi-active-ns-list")
    {
        let mut list = NamespaceList::new_zeroed();
        list.fill(NamespaceList::from_data(bytes).expect(name).iter());
        list.as_bytes().to_vec()
    } else {
        panic!("{name}: no parser for this Identify data structure");
    };
    assert_eq!(encoded, bytes, "{name}");
}

/// Log pages are compared up to where their content ends: hosts read more than that.
fn check_log(golden: &Golden) {
    let (name, bytes) = (&golden.name, &golden.bytes[..]);
    let encoded: Vec<u8> = if name.starts_with("log-ana") {
        let (header, groups) = AnaLogHeader::parse(bytes).expect(name);
        let mut page = AnaLogHeader::new(header.change_count.get(), header.groups.get())
            .as_bytes()
            .to_vec();
        for group in groups {
            let group = group.expect(name);
            let header = AnaGroupHeader::new(
                group.header.group_id.get(),
                group.nsids.len().try_into().expect(name),
                group.header.change_count.get(),
                group.header.state(),
            );
            page.extend_from_slice(header.as_bytes());
            page.extend_from_slice(group.nsids.as_bytes());
        }
        page
    } else if name.starts_with("log-changed-ns-list") {
        NamespaceList::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("log-discovery") {
        let log = DiscoveryLog::parse(bytes).expect(name);
        [log.header.as_bytes(), log.entries.as_bytes()].concat()
    } else if name.starts_with("log-effects") {
        CommandEffectsLog::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("log-error-information") {
        ErrorInformationEntry::parse_all(bytes)
            .flat_map(|e| e.as_bytes().to_vec())
            .collect()
    } else if name.starts_with("log-firmware-slot") {
        FirmwareSlotLog::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else if name.starts_with("log-smart") {
        HealthLog::from_data(bytes).expect(name).as_bytes().to_vec()
    } else if name.starts_with("log-supported-pages") {
        let log = SupportedLogPages::from_data(bytes).expect(name);
        let pages = (0..=u8::MAX).map(LogPageId);
        let pages = SupportedLogPages::new(pages.filter(|page| log.supports(*page)));
        pages.as_bytes().to_vec()
    } else if name.starts_with("log-reservation-notification") {
        ReservationNotificationLog::from_data(bytes)
            .expect(name)
            .as_bytes()
            .to_vec()
    } else {
        panic!("{name}: no parser for this log page");
    };
    let (content, rest) = bytes.split_at(encoded.len());
    assert_eq!(content, encoded, "{name}");
    assert!(rest.iter().all(|byte| *byte == 0), "{name}");
}

/// The extended data structure: the only one nvmet gives, and Capstan's.
fn check_reservation_report(golden: &Golden) {
    let (name, bytes) = (&golden.name, &golden.bytes[..]);
    let status = ReservationStatus::parse(bytes, true).expect(name);
    let Registrants::Extended(registrants) = status.registrants else {
        panic!("{name}: {:?}", status.registrants);
    };
    let head = [status.header.as_bytes(), &[0; 40]].concat();
    assert_eq!([&head, registrants.as_bytes()].concat(), bytes, "{name}");
}

#[test]
fn every_file_parses_and_encodes_back() {
    let mut checked = BTreeMap::<&str, usize>::new();
    for golden in all() {
        let name = golden.name.clone();
        let kind = [
            "sqe",
            "cqe",
            "capsule",
            "connect-data",
            "cm",
            "identify",
            "log",
            "dsm-ranges",
            "reservation-report",
        ]
        .into_iter()
        .find(|kind| name.starts_with(&format!("{kind}-")) || name == *kind)
        .unwrap_or_else(|| panic!("{name}: no structure has this name"));
        match kind {
            "sqe" => check_sqe(&golden),
            "cqe" => check_cqe(&golden),
            "capsule" => check_capsule(&golden),
            "connect-data" => check_connect_data(&name, &golden.bytes),
            "cm" => check_private_data(&golden),
            "identify" => check_identify(&golden),
            "log" => check_log(&golden),
            "reservation-report" => check_reservation_report(&golden),
            _ => {
                let count = u16::try_from(golden.bytes.len() / DsmRange::SIZE_BYTES).expect("u16");
                let ranges = DsmRange::parse_all(&golden.bytes, count).expect(&name);
                assert_eq!(ranges.as_bytes(), golden.bytes, "{name}");
            }
        }
        *checked.entry(kind).or_default() += 1;
    }
    // Every structure is there; the counts only grow.
    let at_least = [
        ("capsule", 11),
        ("cm", 10),
        ("connect-data", 5),
        ("cqe", 78),
        ("dsm-ranges", 2),
        ("identify", 20),
        ("log", 13),
        ("reservation-report", 3),
        ("sqe", 78),
    ];
    for (kind, least) in at_least {
        let count = checked.get(kind).copied().unwrap_or(0);
        assert!(
            count >= least,
            "{kind}: {count} files, expected at least {least}"
        );
    }
}

#[test]
fn the_format_is_comments_then_hex() {
    let golden = Golden::parse(
        "x-sct1-sc82",
        "# qid 3 cid 0x0000 Connect\n# 4 bytes\n0a 0B\nff00\n",
    );
    assert_eq!(golden.bytes, [0x0A, 0x0B, 0xFF, 0x00]);
    assert_eq!(golden.qid, Some(3));
    assert_eq!(golden.named_status(), Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn the_linux_host_asks_for_its_queues() {
    let request = |name| CmRequest::parse(&Golden::load(name).bytes).expect("a request");
    let admin = CmRequest {
        qid: 0,
        hrqsize: 32,
        hsqsize: 32,
        cntlid: 0,
    };
    assert_eq!(request("cm-request-admin"), admin);
    let io = CmRequest {
        qid: 1,
        hrqsize: 128,
        hsqsize: 128,
        cntlid: 1,
    };
    assert_eq!(request("cm-request-io"), io);
    let accept = CmAccept::parse(&Golden::load("cm-accept-crqsize128").bytes);
    assert_eq!(accept, Ok(CmAccept { crqsize: 128 }));
    for (name, status) in [
        ("cm-reject-1", RejectStatus::INVALID_PRIVATE_DATA_LENGTH),
        ("cm-reject-2", RejectStatus::INVALID_RECFMT),
        ("cm-reject-4", RejectStatus::INVALID_HSQSIZE),
    ] {
        assert_eq!(
            CmReject::parse(&Golden::load(name).bytes),
            Ok(CmReject { status })
        );
    }
}

#[test]
fn the_linux_host_connects() {
    let connect = |name| match FabricsCommand::parse(&Golden::load(name).sqe()) {
        Ok(FabricsCommand::Connect(connect)) => connect,
        other => panic!("{name}: {other:?}"),
    };
    let admin = connect("sqe-connect-admin");
    assert_eq!((admin.qid, admin.sqsize, admin.kato_ms), (0, 32, 5000));
    let io = connect("sqe-connect-io");
    assert_eq!((io.qid, io.sqsize, io.kato_ms), (1, 128, 0));
    let sgl = Golden::load("sqe-connect-io").sqe().sgl();
    assert_eq!(
        sgl,
        Ok(Sgl::InCapsule {
            offset_bytes: 0,
            length_bytes: 1024
        })
    );
    // The Admin Queue's Connect data is pulled by RDMA READ.
    let sgl = Golden::load("sqe-connect-admin").sqe().sgl();
    assert!(
        matches!(
            sgl,
            Ok(Sgl::Keyed {
                length_bytes: 1024,
                invalidate: true,
                ..
            })
        ),
        "{sgl:?}"
    );

    let parameters = |name| {
        ConnectData::from_data(&Golden::load(name).bytes)
            .expect(name)
            .parse()
            .expect(name)
    };
    let admin = parameters("connect-data-admin");
    assert_eq!(admin.cntlid, 0xFFFF);
    assert_eq!(admin.subnqn.as_str(), "nqn.2026-11.org.example:capstan-lab");
    assert_eq!(admin.hostnqn.uuid(), Some(admin.hostid.uuid()));
    assert_eq!(
        admin.hostid.to_string(),
        "6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4e5f"
    );
    assert_eq!(parameters("connect-data-io").cntlid, 1);
    assert!(parameters("connect-data-discovery").subnqn.is_discovery());
}

#[test]
fn the_linux_target_answers_connect() {
    let cqe = Golden::load("cqe-connect-admin").cqe();
    let response = ConnectResponse::decode(cqe.dw0.get());
    assert_eq!(response.cntlid, 1);
    assert!(!response.authentication_required && !response.secure_channel_required);

    let location = |name| ErrorLocation::from_connect_dw0(Golden::load(name).cqe().dw0.get());
    assert_eq!(
        location("cqe-connect-admin-sct1-sc82"),
        ConnectData::SUBNQN_LOCATION
    );
    assert_eq!(
        location("cqe-connect-admin-sct1-sc84"),
        ConnectData::HOSTNQN_LOCATION
    );
    let status = Golden::load("cqe-connect-admin-sct1-sc84").cqe().status();
    assert_eq!(status, Status::CONNECT_INVALID_HOST.dnr());
}

#[test]
fn properties_are_read_and_written() {
    let property = |name| match FabricsCommand::parse(&Golden::load(name).sqe()) {
        Ok(FabricsCommand::PropertyGet(get)) => (get.property, 0),
        Ok(FabricsCommand::PropertySet(set)) => (set.property, set.value),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(property("sqe-property-get-cap").0, Property::CAP);
    assert_eq!(property("sqe-property-get-csts").0, Property::CSTS);
    let (offset, value) = property("sqe-property-set-cc-enable");
    assert_eq!(offset, Property::CC);
    let cc = Cc::decode(u32::try_from(value).expect("4 bytes"));
    assert_eq!((cc.en, cc.css.0, cc.iosqes, cc.iocqes), (true, 0b110, 6, 4));
    let (_, value) = property("sqe-property-set-cc-shutdown");
    let cc = Cc::decode(u32::try_from(value).expect("4 bytes"));
    assert_eq!(cc.shn, ShutdownNotification::NORMAL);

    let cap = Cap::decode(Golden::load("cqe-property-get-cap").cqe().result());
    assert_eq!((cap.mqes, cap.timeout_ms(), cap.mpsmin), (128, 7500, 0));
    assert_eq!(cap.css, Cap::CSS_NVM | Cap::CSS_IOCS);
    let version = Version::decode(Golden::load("cqe-property-get-vs").cqe().dw0.get());
    assert_eq!(version.to_string(), "1.3.0");
}

#[test]
fn admin_commands_carry_what_was_asked() {
    let command = |name| AdminCommand::parse(&Golden::load(name).sqe()).expect(name);
    match command("sqe-get-log-ana") {
        AdminCommand::GetLogPage(get) => {
            assert_eq!((get.lid, get.length_bytes), (LogPageId::ANA, 8208));
            assert_eq!((get.nsid, get.offset, get.rae), (NSID_BROADCAST, 0, false));
        }
        other => panic!("{other:?}"),
    }
    match command("sqe-get-log-discovery") {
        AdminCommand::GetLogPage(get) => {
            assert_eq!((get.lid, get.length_bytes), (LogPageId::DISCOVERY, 1024));
            assert!(get.rae);
        }
        other => panic!("{other:?}"),
    }
    match command("sqe-set-feature-number-of-queues") {
        AdminCommand::SetFeatures(set) => {
            let queues = NumberOfQueues::parse(set.cdw11);
            assert_eq!(
                queues,
                Ok(NumberOfQueues {
                    submission: 2,
                    completion: 2
                })
            );
        }
        other => panic!("{other:?}"),
    }
    let dw0 = Golden::load("cqe-set-feature-number-of-queues")
        .cqe()
        .dw0
        .get();
    let queues = NumberOfQueues {
        submission: 128,
        completion: 128,
    };
    assert_eq!(NumberOfQueues::decode(dw0), queues);
    match command("sqe-set-feature-async-event-configuration") {
        AdminCommand::SetFeatures(set) => assert_eq!(
            AsyncEventConfiguration::from_bits_retain(set.cdw11),
            AsyncEventConfiguration::DISCOVERY_LOG_CHANGE
        ),
        other => panic!("{other:?}"),
    }
    let event = AsyncEvent::decode(Golden::load("cqe-async-event-request").cqe().dw0.get());
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
}

#[test]
fn io_commands_carry_what_was_asked() {
    let command = |name| IoCommand::parse(&Golden::load(name).sqe()).expect(name);
    match command("sqe-write-incapsule-fua") {
        IoCommand::Write(write) => {
            assert_eq!((write.nsid, write.range.slba, write.range.nlb), (1, 16, 8));
            assert!(write.fua && !write.limited_retry);
        }
        other => panic!("{other:?}"),
    }
    match command("sqe-write-keyed") {
        IoCommand::Write(write) => assert_eq!((write.range.slba, write.range.nlb), (128, 128)),
        other => panic!("{other:?}"),
    }
    let sgl = Golden::load("sqe-write-keyed").sqe().sgl();
    assert!(matches!(
        sgl,
        Ok(Sgl::Keyed {
            length_bytes: 65_536,
            invalidate: true,
            ..
        })
    ));
    match command("sqe-write-zeroes-deac") {
        IoCommand::WriteZeroes(zeroes) => assert!(zeroes.deallocate && zeroes.range.nlb == 8),
        other => panic!("{other:?}"),
    }
    match command("sqe-dsm-2-ranges") {
        IoCommand::DatasetManagement(dsm) => {
            assert!(dsm.deallocate && !dsm.integral_read && dsm.ranges == 2);
        }
        other => panic!("{other:?}"),
    }
    match command("sqe-reservation-report-sct0-sc01") {
        IoCommand::ReservationReport(report) => {
            assert_eq!((report.length_bytes, report.extended), (4096, false));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_linux_target_describes_itself() {
    let golden = Golden::load("identify-controller");
    let identify = IdentifyController::from_data(&golden.bytes).expect("4096 bytes");
    assert_eq!(
        identify.serial_number().as_str(),
        Some("c7eda40c22ee06cba1c0")
    );
    assert_eq!(identify.model_number().as_str(), Some("Linux"));
    assert!(
        identify
            .firmware_revision()
            .to_string()
            .starts_with("6.12.117")
    );
    assert_eq!((identify.cntlid.get(), identify.maxcmd.get()), (1, 128));
    assert!(identify.subsystem_nqn().is_ok_and(|nqn| nqn.is_discovery()));

    let golden = Golden::load("identify-namespace-nsid3");
    let identify = IdentifyNamespace::from_data(&golden.bytes).expect("4096 bytes");
    assert_eq!(
        (identify.nsze_lbas.get(), identify.anagrpid.get()),
        (16_384, 1)
    );
    let format = identify.formatted_lba_format().expect("a format");
    assert_eq!(format.lba_bytes(), Some(4096));

    let golden = Golden::load("identify-ns-descs-nsid3");
    let ids: Vec<_> = NamespaceIdDescriptors::new(&golden.bytes).collect();
    let [
        NamespaceId::Uuid(uuid),
        NamespaceId::Nguid(nguid),
        NamespaceId::CommandSet(csi),
    ] = ids[..]
    else {
        panic!("{ids:?}");
    };
    assert_eq!(uuid.to_string(), "11111111-2222-4333-8444-555555555503");
    assert_eq!((nguid[15], csi), (3, Csi::NVM));

    let golden = Golden::load("identify-active-ns-list");
    let list = NamespaceList::from_data(&golden.bytes).expect("4096 bytes");
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn what_lies_beyond_the_nvm_command_set_reads_as_it_should() {
    let golden = Golden::load("identify-cs-independent-ns-nsid1");
    let identify = IndependentIdentifyNamespace::from_data(&golden.bytes).expect("4096 bytes");
    // No volatile write cache, shared by controllers, ready.
    let seen = (identify.nsfeat, identify.nmic, identify.nstat);
    assert_eq!((seen, identify.anagrpid.get()), ((1 << 5, 1, 1), 1));

    let golden = Golden::load("identify-command-sets-qemu");
    let list = CommandSetList::from_data(&golden.bytes).expect("4096 bytes");
    let both = CommandSetVector::NVM | CommandSetVector::ZONED;
    assert_eq!(list.iter().collect::<Vec<_>>(), [both]);

    let golden = Golden::load("identify-csi-active-ns-list-qemu");
    let list = NamespaceList::from_data(&golden.bytes).expect("4096 bytes");
    assert_eq!(list.iter().collect::<Vec<_>>(), [1]);

    let golden = Golden::load("identify-csi-controller-qemu");
    let identify = NvmIdentifyController::from_data(&golden.bytes).expect("4096 bytes");
    assert_eq!((identify.vsl, identify.dmrsl_lbas.get()), (7, 0x003F_FFFF));
}

#[test]
fn reservations_of_the_linux_target_read_as_they_should() {
    let report = |name| {
        let golden = Golden::load(name);
        let status = ReservationStatus::parse(&golden.bytes, true).expect(name);
        let Registrants::Extended(registrants) = status.registrants else {
            panic!("{:?}", status.registrants);
        };
        let header = (status.header.generation.get(), status.header.rtype);
        (header, registrants.to_vec())
    };
    assert_eq!(report("reservation-report-none"), ((0, 0), Vec::new()));
    for (name, header, rcsts) in [
        ("reservation-report-registered", (1, 0), 0),
        ("reservation-report-held", (1, 1), 1),
    ] {
        let (seen, registrants) = report(name);
        let [registrant] = registrants[..] else {
            panic!("{name}: {registrants:?}");
        };
        assert_eq!(seen, header, "{name}");
        assert_eq!((registrant.cntlid.get(), registrant.rcsts), (0xFFFF, rcsts));
        assert_eq!(registrant.rkey.get(), 0x1122_3344_5566_7788);
        assert_eq!(registrant.hostid.0[..4], [0x6F, 0x0C, 0x1C, 0x1E]);
    }

    let golden = Golden::load("log-reservation-notification");
    let log = ReservationNotificationLog::from_data(&golden.bytes).expect("64 bytes");
    assert_eq!(log.log_page_count.get(), 0);
    assert_eq!(log.notification_type, ReservationNotificationType::EMPTY);

    let golden = Golden::load("log-supported-pages");
    let log = SupportedLogPages::from_data(&golden.bytes).expect("1024 bytes");
    let pages: Vec<_> = (0..=u8::MAX)
        .filter(|page| log.supports(LogPageId(*page)))
        .collect();
    assert_eq!(pages, [0, 1, 2, 3, 4, 5, 9, 0xC, 0x12, 0x16, 0x80]);
}

#[test]
fn the_linux_targets_log_pages_read_as_they_should() {
    let golden = Golden::load("log-ana");
    let (header, groups) = AnaLogHeader::parse(&golden.bytes).expect("a header");
    let groups: Vec<_> = groups.map(|group| group.expect("a whole group")).collect();
    assert_eq!((header.groups.get(), groups.len()), (1, 1));
    assert_eq!(groups[0].header.state(), AnaState::OPTIMIZED);
    assert_eq!(
        groups[0]
            .nsids
            .iter()
            .map(|nsid| nsid.get())
            .collect::<Vec<_>>(),
        [1, 3]
    );

    let golden = Golden::load("log-discovery");
    let log = DiscoveryLog::parse(&golden.bytes).expect("a header");
    assert_eq!((log.header.genctr.get(), log.header.numrec.get()), (4, 2));
    assert!(!log.is_complete());
    let golden = Golden::load("log-discovery-records");
    let log = DiscoveryLog::parse(&golden.bytes).expect("a page");
    assert!(log.is_complete());
    let [discovery, nvm] = log.entries else {
        panic!("{} entries", log.entries.len());
    };
    assert_eq!(discovery.subtype, DiscoverySubsystemType::CURRENT);
    assert_eq!(nvm.subtype, DiscoverySubsystemType::NVM);
    assert!(
        nvm.subnqn
            .starts_with(b"nqn.2026-11.org.example:capstan-lab\0")
    );
    for entry in log.entries {
        assert_eq!(entry.trtype, TransportType::RDMA);
        assert_eq!(entry.adrfam, AddressFamily::IPV4);
        assert!(entry.treq.disable_sq_flow_control_supported());
        assert_eq!((entry.portid.get(), entry.cntlid.get()), (1, 0xffff));
        assert_eq!(entry.asqsz.get(), 32);
        assert!(entry.trsvcid.starts_with(b"4420\0"));
        assert!(entry.traddr.starts_with(b"10.9.0.1\0"));
        let tsas = entry.rdma_tsas().expect("an RDMA port");
        assert_eq!(tsas.qptype, RdmaQpType::CONNECTED);
        assert_eq!(tsas.cms, RdmaCms::RDMA_CM);
    }

    let golden = Golden::load("log-error-information");
    let entries: Vec<_> = ErrorInformationEntry::parse_all(&golden.bytes).collect();
    assert_eq!(
        entries
            .iter()
            .map(|e| e.error_count.get())
            .collect::<Vec<_>>(),
        [3, 2, 1]
    );
    assert_eq!(entries[0].status(), Status::INVALID_FIELD.dnr());
    assert_eq!(entries[0].parameter_error_location.get(), 40);

    let golden = Golden::load("log-effects");
    let log = CommandEffectsLog::from_data(&golden.bytes).expect("4096 bytes");
    assert_eq!(log.admin(AdminOpcode::IDENTIFY), CommandEffects::SUPPORTED);
    let write = CommandEffects::SUPPORTED | CommandEffects::LOGICAL_BLOCK_CONTENT;
    assert_eq!(log.io(IoOpcode::WRITE), write);
    assert!(log.io(IoOpcode::COMPARE).is_empty());

    let golden = Golden::load("log-smart-qemu");
    let log = HealthLog::from_data(&golden.bytes).expect("512 bytes");
    assert_eq!(log.composite_temperature_kelvins.get(), 0x143);
    assert_eq!(log.host_read_commands.get(), 0x34);
}
