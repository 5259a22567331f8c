//! Private data of the connection, commands and their completions.

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{AdminCommand, FabricsCommand, IoCommand};
use capstan_nvme_proto::copy::source_ranges;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::fabrics::{Authentication, ConnectData, ConnectResponse, SECP_NVME};
use capstan_nvme_proto::features::{AsyncEventConfiguration, NumberOfQueues};
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::property::{Cap, Cc, Property, ShutdownNotification, Version};
use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, CmRequest, RejectStatus};
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, ChangePtpl, RegisterAction, RegisterData, ReleaseAction,
    ReleaseData, ReservationAcquire, ReservationRegister, ReservationRelease, ReservationType,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::{NSID_BROADCAST, Sqe};
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use super::Golden;

/// Parses the entry as a controller would and encodes it as a host would.
pub(super) fn reencode(sqe: &Sqe, qid: u16) -> Result<Sqe, CommandError> {
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

pub(super) fn check_sqe(golden: &Golden) {
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

pub(super) fn check_cqe(golden: &Golden) {
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

pub(super) fn check_capsule(golden: &Golden) {
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
    match FabricsCommand::parse(sqe) {
        Ok(FabricsCommand::AuthenticationSend(send)) => {
            assert_eq!(send.length_bytes as usize, data.len(), "{name}");
            return;
        }
        Ok(_) => return check_connect_data(name, data),
        Err(_) => {}
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
        IoCommand::Write(_)
        | IoCommand::Compare(_)
        | IoCommand::ReservationRegister(_)
        | IoCommand::ReservationAcquire(_)
        | IoCommand::ReservationRelease(_) => {
            assert_eq!(needed_bytes, data.len() as u64, "{name}");
        }
        other => panic!("{name}: {other:?} has no in-capsule data"),
    }
}

pub(super) fn check_connect_data(name: &str, data: &[u8]) {
    let parameters = ConnectData::from_data(data)
        .expect(name)
        .parse()
        .expect(name);
    assert_eq!(parameters.encode().as_bytes(), data, "{name}");
}

pub(super) fn check_private_data(golden: &Golden) {
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
    let cqe = Golden::load("cqe-connect-admin-authentication-required").cqe();
    let response = ConnectResponse::decode(cqe.dw0.get());
    assert!(response.authentication_required && !response.secure_channel_required);

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
fn the_linux_host_passes_disconnect_through() {
    let sqe = Golden::load("sqe-disconnect-sct0-sc01");
    assert_eq!(sqe.qid, Some(1));
    let command = FabricsCommand::parse(&sqe.sqe());
    assert_eq!(command, Ok(FabricsCommand::Disconnect));
    let status = Golden::load("cqe-disconnect-sct0-sc01").cqe().status();
    assert_eq!(status.code(), Status::INVALID_OPCODE);
}

#[test]
fn the_linux_host_authenticates_itself() {
    let command = |name| FabricsCommand::parse(&Golden::load(name).sqe()).expect(name);
    let message = |length_bytes| Authentication {
        spsp0: 1,
        spsp1: 1,
        secp: SECP_NVME,
        length_bytes,
    };
    assert_eq!(
        command("sqe-authentication-send-negotiate"),
        FabricsCommand::AuthenticationSend(message(72))
    );
    assert_eq!(
        command("sqe-authentication-receive-challenge"),
        FabricsCommand::AuthenticationReceive(message(4096))
    );
}

#[test]
fn the_linux_host_reserves() {
    let golden = |name| Golden::load(&format!("capsule-reservation-{name}-sct0-sc01"));
    let (register, acquire, release) = (golden("register"), golden("acquire"), golden("release"));
    let key = 0x0123_4567_89AB_CDEF;

    let (sqe, data) = Sqe::from_capsule(&register.bytes).expect("a capsule");
    let keys = RegisterData::parse(data).expect("two keys");
    assert_eq!((keys.crkey.get(), keys.nrkey.get()), (0, key));
    assert_eq!(
        IoCommand::parse(sqe),
        Ok(IoCommand::ReservationRegister(ReservationRegister {
            nsid: 1,
            action: RegisterAction::Register,
            ignore_existing_key: false,
            change_ptpl: ChangePtpl::Clear,
        }))
    );

    let (sqe, data) = Sqe::from_capsule(&acquire.bytes).expect("a capsule");
    let keys = AcquireData::parse(data).expect("two keys");
    assert_eq!((keys.crkey.get(), keys.prkey.get()), (key, 0));
    let reservation_type = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
    assert_eq!(
        IoCommand::parse(sqe),
        Ok(IoCommand::ReservationAcquire(ReservationAcquire {
            nsid: 1,
            action: AcquireAction::Acquire,
            ignore_existing_key: false,
            reservation_type,
        }))
    );

    let (sqe, data) = Sqe::from_capsule(&release.bytes).expect("a capsule");
    let keys = ReleaseData::parse(data).expect("a key");
    assert_eq!(keys.crkey.get(), key);
    assert_eq!(
        IoCommand::parse(sqe),
        Ok(IoCommand::ReservationRelease(ReservationRelease {
            nsid: 1,
            action: ReleaseAction::Release,
            ignore_existing_key: false,
            reservation_type,
        }))
    );
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
