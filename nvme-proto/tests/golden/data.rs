//! What commands transfer: Identify data, log pages and reservations.

use capstan_nvme_proto::identify::{
    CommandSetList, CommandSetVector, Csi, IdentifyController, IdentifyNamespace,
    IndependentIdentifyNamespace, NamespaceId, NamespaceIdDescriptors, NamespaceList,
    NvmIdentifyController, NvmIdentifyNamespace, write_namespace_ids,
};
use capstan_nvme_proto::log::{
    AddressFamily, AnaGroupHeader, AnaLogHeader, AnaState, CommandEffects, CommandEffectsLog,
    DiscoveryLog, DiscoverySubsystemType, ErrorInformationEntry, FirmwareSlotLog, HealthLog,
    LogPageId, RdmaCms, RdmaQpType, ReservationNotificationLog, ReservationNotificationType,
    SupportedLogPages, TransportType,
};
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};
use capstan_nvme_proto::reservation::{Registrants, ReservationStatus};
use capstan_nvme_proto::status::Status;
use zerocopy::{FromZeros, IntoBytes};

use super::Golden;

pub(super) fn check_identify(golden: &Golden) {
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
pub(super) fn check_log(golden: &Golden) {
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
pub(super) fn check_reservation_report(golden: &Golden) {
    let (name, bytes) = (&golden.name, &golden.bytes[..]);
    let status = ReservationStatus::parse(bytes, true).expect(name);
    let Registrants::Extended(registrants) = status.registrants else {
        panic!("{name}: {:?}", status.registrants);
    };
    let head = [status.header.as_bytes(), &[0; 40]].concat();
    assert_eq!([&head, registrants.as_bytes()].concat(), bytes, "{name}");
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
