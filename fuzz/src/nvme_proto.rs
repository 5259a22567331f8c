//! Bodies for the parsers of `nvme-proto`.

use std::fmt::Write as _;

use capstan_nvme_proto::async_event::{AsyncEvent, AsyncEventConfiguration};
use capstan_nvme_proto::command::{AdminCommand, FabricsCommand, IoCommand};
use capstan_nvme_proto::copy::{CopyFormat, source_ranges};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::fabrics::{ConnectData, ConnectResponse};
use capstan_nvme_proto::features::{
    Arbitration, ErrorRecovery, FeatureCapabilities, FeatureId, HostBehaviorSupport,
    HostIdentifier, NumberOfQueues, PowerManagement, TemperatureThreshold, TimestampData,
    WriteProtectionState,
};
use capstan_nvme_proto::identify::{
    CommandSetList, IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace,
    NamespaceIdDescriptors, NamespaceList, NvmIdentifyController, NvmIdentifyNamespace,
    write_namespace_ids,
};
use capstan_nvme_proto::lba_status::LbaStatusList;
use capstan_nvme_proto::log::{
    AnaLogHeader, CommandEffectsLog, CrossControllerResetLogHeader, DiscoveryLog,
    ErrorInformationEntry, FirmwareSlotLog, HealthLog, LogPageId, ReservationNotificationLog,
    SupportedLogPages,
};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};
use capstan_nvme_proto::property::{Cap, Cc, Crto, Csts, Version};
use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, CmRequest};
use capstan_nvme_proto::rdma_sgl::{self, CapsuleData};
use capstan_nvme_proto::reservation::{
    AcquireData, RegisterData, Registrants, ReleaseData, ReservationStatus,
};
use capstan_nvme_proto::sgl::{Sgl, SglDescriptor, segment_descriptors};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::StatusContext;
use capstan_nvme_proto::tcp;
use capstan_nvme_proto::transfer::DataTransfer;
use zerocopy::{FromBytes, IntoBytes};

/// Every refusal can be said to a person, answers with an error and asks for no retry.
fn check_error(error: &CommandError) {
    assert!(!error.status.is_success() && error.status.is_dnr());
    assert!(error.status.name(StatusContext::Fabrics).is_some());
    printable(&error.to_string());
}

/// No text that came from a peer may reach a terminal with control characters in it.
fn printable(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

/// A command capsule, as a controller takes it: SQE, SGL, in-capsule data, on both kinds of queue.
pub fn capsule(bytes: &[u8]) {
    let Some((sqe, data)) = Sqe::from_capsule(bytes) else {
        assert!(bytes.len() < Sqe::SIZE_BYTES);
        return;
    };
    let (cid, sgl) = (sqe.cid.get(), sqe.sgl());
    let in_capsule = match &sgl {
        Ok(sgl) => sgl.capsule_range(data.len()).map(|range| &data[range]),
        Err(error) => Err(*error),
    };
    if let Err(error) = &in_capsule {
        check_error(error);
    }
    let in_capsule = in_capsule.unwrap_or_default();
    let sgl = sgl.unwrap_or(Sgl::EMPTY);

    match FabricsCommand::parse(sqe) {
        Ok(command) => {
            assert_eq!(
                FabricsCommand::parse(&command.encode(cid, sgl)),
                Ok(command)
            );
            if let FabricsCommand::Connect(connect) = command {
                assert!((2..=65_536).contains(&connect.sqsize));
                connect_data(in_capsule);
            }
            let _ = command.data_transfer().bytes();
        }
        Err(error) => check_error(&error),
    }
    match AdminCommand::parse(sqe) {
        Ok(command) => {
            assert_eq!(AdminCommand::parse(&command.encode(cid, sgl)), Ok(command));
            let _ = command.data_transfer().bytes();
        }
        Err(error) => check_error(&error),
    }
    match IoCommand::parse(sqe) {
        Ok(command) => {
            assert_eq!(IoCommand::parse(&command.encode(cid, sgl)), Ok(command));
            assert_eq!(command.nsid(), sqe.nsid.get());
            let transfer = command.data_transfer(512);
            assert!(transfer.bytes() <= command.data_transfer(4096).bytes());
            places(transfer, sqe, data);
            io_data(&command, in_capsule);
        }
        Err(error) => check_error(&error),
    }
}

/// Where the data of a command is, by the rules of either transport: inside the capsule, or as long
/// as the command needs.
fn places(transfer: DataTransfer, sqe: &Sqe, data: &[u8]) {
    match rdma_sgl::CommandData::of(transfer, sqe, CapsuleData::Bytes(data)) {
        Ok(place) => {
            assert_eq!(u64::from(place.length_bytes()), transfer.bytes());
            match place {
                rdma_sgl::CommandData::InCapsule(range) => assert!(data.get(range).is_some()),
                rdma_sgl::CommandData::KeyedList(list) => {
                    let lengths = list.buffers().map(|buffer| u64::from(buffer.length_bytes));
                    assert_eq!(lengths.sum::<u64>(), transfer.bytes());
                }
                rdma_sgl::CommandData::None | rdma_sgl::CommandData::Keyed(_) => {}
            }
        }
        Err(error) => check_error(&error),
    }
    let (Ok(sgl), Ok(in_capsule_bytes)) = (sqe.sgl(), u32::try_from(data.len())) else {
        return;
    };
    match tcp::command::CommandData::of(transfer, &sgl, in_capsule_bytes) {
        Ok(tcp::command::CommandData::InCapsule(range)) => assert!(data.get(range).is_some()),
        Ok(tcp::command::CommandData::Transport { length_bytes }) => {
            assert_eq!(u64::from(length_bytes), transfer.bytes());
        }
        Ok(tcp::command::CommandData::None) => assert_eq!(transfer.bytes(), 0),
        Err(error) => check_error(&error),
    }
}

/// Data of an I/O command, by what the command says it is.
fn io_data(command: &IoCommand, data: &[u8]) {
    match command {
        IoCommand::DatasetManagement(dsm) => dsm_ranges(data, dsm.ranges),
        IoCommand::Copy(copy) => copy_ranges(data, copy.format, copy.ranges),
        IoCommand::ReservationRegister(_) => {
            assert_eq!(RegisterData::parse(data).is_ok(), data.len() >= 16);
        }
        IoCommand::ReservationAcquire(_) => {
            assert_eq!(AcquireData::parse(data).is_ok(), data.len() >= 16);
        }
        IoCommand::ReservationRelease(_) => {
            assert_eq!(ReleaseData::parse(data).is_ok(), data.len() >= 8);
        }
        IoCommand::Read(read) => {
            let end = read.range.end();
            if read.range.require_within(1 << 20).is_ok() {
                assert!(end.is_some_and(|end| end <= 1 << 20));
            }
        }
        _ => {}
    }
}

fn dsm_ranges(data: &[u8], count: u16) {
    match DsmRange::parse_all(data, count) {
        Ok(ranges) => {
            assert_eq!(ranges.len(), usize::from(count));
            for range in ranges {
                if range.require_within(1 << 40).is_ok() {
                    assert!(range.slba.get() + u64::from(range.length_lbas.get()) <= 1 << 40);
                }
            }
        }
        Err(error) => check_error(&error),
    }
}

fn copy_ranges(data: &[u8], format: CopyFormat, count: u16) {
    match source_ranges(data, format, count) {
        Ok(ranges) => {
            assert_eq!(ranges.len(), usize::from(count));
            assert_eq!(data.len().min(format.range_bytes()), format.range_bytes());
            assert!(
                ranges
                    .into_iter()
                    .all(|range| (1..=65_536).contains(&range.nlb))
            );
        }
        Err(error) => check_error(&error),
    }
}

/// An SGL segment: the first byte bounds the number of descriptors.
pub fn sgl(bytes: &[u8]) {
    let Some((max, segment)) = bytes.split_first() else {
        return;
    };
    match segment_descriptors(segment, usize::from(*max)) {
        Ok(descriptors) => {
            assert!(descriptors.len() <= usize::from(*max));
            assert_eq!(descriptors.len() * SglDescriptor::SIZE_BYTES, segment.len());
            for descriptor in descriptors {
                match descriptor {
                    Ok(sgl) => {
                        assert_eq!(Sgl::parse(&sgl.encode()), Ok(sgl));
                        if let Ok(range) = sgl.capsule_range(segment.len()) {
                            assert!(segment.get(range).is_some());
                        }
                    }
                    Err(error) => check_error(&error),
                }
            }
        }
        Err(error) => check_error(&error),
    }
}

/// Private data of the RDMA connection manager, in all three roles.
pub fn private_data(bytes: &[u8]) {
    match CmRequest::parse(bytes) {
        Ok(request) => {
            assert!(request.hrqsize >= 1 && (2..=65_536).contains(&request.hsqsize));
            let wire = request.encode().expect("what was parsed can be said");
            assert_eq!(CmRequest::parse(wire.as_bytes()), Ok(request));
            assert_eq!(wire.as_bytes()[..10], bytes[..10]);
        }
        Err(error) => {
            assert!(error.reject_status().name().is_some());
            printable(&error.to_string());
        }
    }
    match CmAccept::parse(bytes) {
        Ok(accept) => assert_eq!(accept.encode().as_bytes()[..4], bytes[..4]),
        Err(error) => printable(&error.to_string()),
    }
    match CmReject::parse(bytes) {
        Ok(reject) => {
            assert_eq!(reject.encode().as_bytes(), &bytes[..4]);
            printable(&reject.status.to_string());
        }
        Err(error) => printable(&error.to_string()),
    }
}

/// Data of a Connect command.
pub fn connect_data(bytes: &[u8]) {
    let data = match ConnectData::from_data(bytes) {
        Ok(data) => data,
        Err(error) => {
            assert!(bytes.len() < ConnectData::SIZE_BYTES);
            return check_error(&error);
        }
    };
    match data.parse() {
        Ok(parameters) => {
            check_nqn(&parameters.subnqn);
            if parameters.hostnqn != Nqn::NONE {
                check_nqn(&parameters.hostnqn);
            }
            let again = parameters.encode();
            assert_eq!(again.parse().as_ref(), Ok(&parameters));
            printable(&parameters.hostid.to_string());
        }
        Err(error) => {
            check_error(&error);
            let location = ErrorLocation::from_connect_dw0(error.location.connect_dw0());
            assert_eq!(location, error.location);
        }
    }
}

fn check_nqn(nqn: &Nqn) {
    assert!((1..=223).contains(&nqn.as_str().len()));
    assert!(!nqn.as_str().bytes().any(|byte| byte.is_ascii_control()));
    let form = nqn.check_form();
    if nqn.is_discovery() || nqn.uuid().is_some() {
        assert_eq!(form, Ok(()));
    }
    assert_eq!(Nqn::from_field(&nqn.to_field()).as_ref(), Ok(nqn));
}

/// Data of Dataset Management, Copy and the reservation commands, and the Reservation Report a
/// host reads. The first two bytes are the count and the format.
pub fn command_data(bytes: &[u8]) {
    let [count, format, data @ ..] = bytes else {
        return;
    };
    let count = u16::from(*count) + 1;
    dsm_ranges(data, count);
    copy_ranges(data, CopyFormat(format & 0xF), count);
    assert_eq!(RegisterData::parse(data).is_ok(), data.len() >= 16);
    assert_eq!(AcquireData::parse(data).is_ok(), data.len() >= 16);
    assert_eq!(ReleaseData::parse(data).is_ok(), data.len() >= 8);
    for extended in [false, true] {
        let entry_bytes = if extended { 64 } else { 24 };
        match ReservationStatus::parse(data, extended) {
            Ok(status) => {
                let registrants = match status.registrants {
                    Registrants::Short(list) => list.len(),
                    Registrants::Extended(list) => list.len(),
                };
                assert!(registrants <= usize::from(status.header.registrants.get()));
                assert!((registrants + 1) * entry_bytes <= data.len());
            }
            Err(error) => {
                assert!(data.len() < entry_bytes);
                check_error(&error);
            }
        }
    }
}

/// A response capsule, and everything a host reads out of its dwords.
pub fn completion(bytes: &[u8]) {
    let Some(cqe) = Cqe::from_capsule(bytes) else {
        assert_ne!(bytes.len(), Cqe::SIZE_BYTES);
        return;
    };
    let status = cqe.status();
    printable(&status.to_string());
    for context in [
        StatusContext::Nvm,
        StatusContext::Fabrics,
        StatusContext::Zoned,
    ] {
        printable(&status.display(context).to_string());
    }
    let built = Cqe::new(cqe.cid.get(), cqe.sqhd.get(), status, 0).with_result(cqe.result());
    assert_eq!((built.status(), built.result()), (status, cqe.result()));

    let dw0 = cqe.dw0.get();
    let event = AsyncEvent::decode(dw0);
    assert_eq!(AsyncEvent::decode(event.encode()), event);
    printable(&event.to_string());
    let response = ConnectResponse::decode(dw0);
    assert_eq!(ConnectResponse::decode(response.encode()), response);
    let location = ErrorLocation::from_connect_dw0(dw0);
    assert_eq!(
        ErrorLocation::from_connect_dw0(location.connect_dw0()),
        location
    );
    let cap = Cap::decode(cqe.result());
    assert_eq!(Cap::decode(cap.encode()), cap);
    assert_eq!(Version::decode(dw0).encode(), dw0);
    let (cc, csts, crto) = (Cc::decode(dw0), Csts::decode(dw0), Crto::decode(dw0));
    assert_eq!(
        (Cc::decode(cc.encode()), Csts::decode(csts.encode())),
        (cc, csts)
    );
    assert_eq!(crto.encode(), dw0);
}

/// Every Identify data structure, as a host reads it.
pub fn identify(bytes: &[u8]) {
    let whole = bytes.len() == 4096;
    let mut text = String::new();

    let controller = IdentifyController::from_data(bytes);
    assert_eq!(controller.is_some(), whole);
    if let Some(controller) = controller {
        let fields = (
            controller.serial_number(),
            controller.model_number(),
            controller.firmware_revision(),
        );
        write!(
            text,
            "{} {} {} {:?}",
            fields.0, fields.1, fields.2, controller.cntrltype
        )
        .expect("a string");
        if let Ok(nqn) = controller.subsystem_nqn() {
            check_nqn(&nqn);
        }
        if let Some(capstan) = controller.capstan() {
            printable(&format!(
                "{:?} {:?}",
                capstan.capabilities(),
                capstan.boot_id()
            ));
            let mut again = controller.clone();
            again.set_capstan(capstan);
            assert!(again == *controller);
        }
        let _ = controller.max_data_transfer_bytes(controller.rab);
        assert!(controller.in_capsule_data_bytes() <= u64::from(u32::MAX) * 16);
    }
    if let Some(namespace) = IdentifyNamespace::from_data(bytes)
        && let Some(lba_bytes) = namespace.formatted_lba_format().and_then(|f| f.lba_bytes())
    {
        assert!(lba_bytes.is_power_of_two() && lba_bytes >= 512);
    }
    assert_eq!(
        IndependentIdentifyNamespace::from_data(bytes).is_some(),
        whole
    );
    assert_eq!(NvmIdentifyNamespace::from_data(bytes).is_some(), whole);
    assert_eq!(NvmIdentifyController::from_data(bytes).is_some(), whole);
    if let Some(list) = NamespaceList::from_data(bytes) {
        assert_eq!(list.iter().count() == 1024, list.is_full());
    }
    if let Some(list) = CommandSetList::from_data(bytes) {
        write!(text, " {list:?}").expect("a string");
    }
    // Here the list may also be shorter: it is read until it ends.
    let ids: Vec<_> = NamespaceIdDescriptors::new(bytes).collect();
    assert!(ids.len() <= bytes.len() / 5);
    let mut again = vec![0xEE; bytes.len()];
    write_namespace_ids(&mut again, ids.iter().copied()).expect("they came from as many bytes");
    let mut reread = NamespaceIdDescriptors::new(&again);
    assert!(ids.iter().all(|id| reread.next() == Some(*id)) && reread.next().is_none());
    write!(text, " {ids:?}").expect("a string");
    printable(&text);
}

/// Every log page but Discovery, as a host reads it.
pub fn log_pages(bytes: &[u8]) {
    if let Some((header, groups)) = AnaLogHeader::parse(bytes) {
        let mut used = 16;
        let mut count = 0;
        for group in groups {
            count += 1;
            match group {
                Ok(group) => used += 32 + 4 * group.nsids.len(),
                Err(error) => printable(&error.to_string()),
            }
        }
        assert!(used <= bytes.len() && count <= usize::from(header.groups.get()));
    }
    if let Some((header, entries)) = CrossControllerResetLogHeader::parse(bytes) {
        assert!(entries.len() <= usize::from(header.entries.get()));
        assert!((entries.len() + 1) * 8 <= bytes.len());
        printable(&format!("{entries:?}"));
    }
    if let Some((head, descriptors)) = LbaStatusList::parse(bytes) {
        assert!(descriptors.len() as u64 <= u64::from(head.descriptors.get()));
        assert!(descriptors.len() * 16 + 8 <= bytes.len());
        assert!(descriptors.iter().all(|d| (1..=1 << 32).contains(&d.nlb())));
        printable(&format!("{head:?} {descriptors:?}"));
    }
    let entries = ErrorInformationEntry::parse_all(bytes);
    assert!(
        entries
            .map(|entry| printable(&entry.status().to_string()))
            .count()
            <= bytes.len() / 64
    );
    if let Some(log) = CommandEffectsLog::from_data(bytes) {
        let (admin, io) = (log.admin(AdminOpcode(bytes[0])), log.io(IoOpcode(bytes[1])));
        printable(&format!("{admin:?} {io:?} {log:?}"));
    }
    if let Some(log) = FirmwareSlotLog::from_data(bytes) {
        let slots = (0..=u8::MAX).filter_map(|slot| log.revision(slot));
        let slots: Vec<_> = slots.map(|revision| revision.to_string()).collect();
        assert_eq!(slots.len(), 7);
        slots.iter().for_each(|revision| printable(revision));
        assert!(log.active_slot() < 8);
    }
    if let Some(log) = SupportedLogPages::from_data(bytes) {
        assert_eq!(log.supports(LogPageId(255)), bytes[1020] & 1 == 1);
        printable(&format!("{log:?}"));
    }
    if let Some(log) = ReservationNotificationLog::from_data(bytes) {
        printable(&format!("{:?}", log.notification_type));
    }
    assert_eq!(HealthLog::from_data(bytes).is_some(), bytes.len() >= 512);
}

/// The Discovery log page, as a host reads it.
pub fn discovery_log(bytes: &[u8]) {
    let log = match DiscoveryLog::parse(bytes) {
        Ok(log) => log,
        Err(error) => return printable(&error.to_string()),
    };
    assert!((log.entries.len() + 1) * 1024 <= bytes.len());
    assert!(log.header.page_bytes() >= 1024);
    if log.is_complete() {
        assert!(log.header.page_bytes() <= bytes.len() as u64);
    }
    for entry in log.entries {
        if let Ok(nqn) = entry.subsystem_nqn() {
            check_nqn(&nqn);
        }
        let (address, service) = (entry.transport_address(), entry.transport_service_id());
        printable(&format!(
            "{address} {service} {:?} {:?}",
            entry.trtype, entry.adrfam
        ));
        if let Some(tsas) = entry.rdma_tsas() {
            printable(&format!(
                "{:?} {:?} {:?}",
                tsas.qptype, tsas.prtype, tsas.cms
            ));
        }
    }
}

/// Feature values (the first four bytes as a dword, the fifth as the FID) and data structures.
pub fn features(bytes: &[u8]) {
    let Some(([fid, value @ ..], data)) = bytes.split_first_chunk::<5>() else {
        return;
    };
    let (fid, value) = (FeatureId(*fid), u32::from_le_bytes(*value));
    printable(&format!("{fid} {fid:?}"));
    assert!(fid.set_data_bytes(value) <= fid.get_data_bytes(value));
    macro_rules! settles {
        ($($type:ty),+) => {$({
            let once = <$type>::decode(value);
            assert_eq!(<$type>::decode(once.encode()), once);
        })+};
    }
    settles!(
        Arbitration,
        ErrorRecovery,
        FeatureCapabilities,
        HostIdentifier,
        NumberOfQueues,
        PowerManagement,
        TemperatureThreshold,
        WriteProtectionState
    );
    match NumberOfQueues::parse(value) {
        Ok(queues) => assert!(queues.submission <= 65_535 && queues.completion <= 65_535),
        Err(error) => check_error(&error),
    }
    let configuration = AsyncEventConfiguration::from_bits_retain(value);
    printable(&format!("{configuration:?}"));
    if let Ok((timestamp, _)) = TimestampData::ref_from_prefix(data) {
        let again = TimestampData::new(timestamp.timestamp_ms(), timestamp.attributes);
        assert_eq!(again.as_bytes()[..7], timestamp.as_bytes()[..7]);
    }
    if let Ok((behavior, _)) = HostBehaviorSupport::ref_from_prefix(data) {
        assert_eq!(behavior.as_bytes(), &data[..512]);
    }
}
