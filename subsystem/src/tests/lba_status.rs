//! Get LBA Status.

use alloc::vec;
use alloc::vec::Vec;

use capstan_nvme_proto::command::{AdminCommand, GetLbaStatus, Identify};
use capstan_nvme_proto::identify::{
    Cns, IdentifyController, NvmAdminCommands, NvmIdentifyController, OptionalAdminCommands,
};
use capstan_nvme_proto::lba_status::{
    ActionType, CompletionCondition, LbaRangeStatus, LbaStatusList,
};
use capstan_nvme_proto::log::AnaState;
use capstan_nvme_proto::status::Status;

use crate::bounds::LBA_STATUS_DESCRIPTORS_MAX;
use crate::testing::{Association, Bench, GEOMETRY, PORT, namespace_config, subnqn};
use crate::{Geometry, NamespaceConfig};

const ALL: GetLbaStatus = GetLbaStatus {
    nsid: 1,
    slba: 0,
    length_bytes: 4096,
    action: ActionType::ALLOCATED,
    range_lbas: 0,
};

/// Whether the list is whole, and its descriptors as first block and count.
fn ask(
    bench: &mut Bench,
    association: &Association,
    get: GetLbaStatus,
) -> (CompletionCondition, Vec<(u64, u64)>) {
    let (cqe, data) = bench.admin(association, &AdminCommand::GetLbaStatus(get));
    assert!(cqe.status().is_success(), "{get:?}: {cqe:?}");
    let (head, descriptors) = LbaStatusList::parse(&data).unwrap();
    assert_eq!(
        usize::try_from(head.descriptors.get()).unwrap(),
        descriptors.len()
    );
    let pairs = descriptors.iter().map(|descriptor| {
        assert_eq!(descriptor.status, LbaRangeStatus::ALLOCATED);
        (descriptor.slba.get(), descriptor.nlb())
    });
    (head.condition, pairs.collect())
}

#[test]
fn what_is_allocated_is_told_from_the_block_asked_for() {
    let mut bench = Bench::new();
    let association = bench.ready();
    bench.allocated = vec![10..20, 30..1000];
    let whole = CompletionCondition::COMPLETE;
    let answer = ask(&mut bench, &association, ALL);
    assert_eq!(answer, (whole, vec![(10, 10), (30, 970)]));
    let part = GetLbaStatus {
        slba: 15,
        range_lbas: 16,
        ..ALL
    };
    let answer = ask(&mut bench, &association, part);
    assert_eq!(answer, (whole, vec![(15, 5), (30, 1)]));
    let hole = GetLbaStatus {
        slba: 20,
        range_lbas: 10,
        ..ALL
    };
    assert_eq!(ask(&mut bench, &association, hole), (whole, vec![]));
}

#[test]
fn more_than_there_is_room_for_is_said_to_be_there() {
    let mut bench = Bench::new();
    let association = bench.ready();
    bench.allocated = (0..500).map(|n| n * 2..n * 2 + 1).collect();
    let more = CompletionCondition::MORE;
    for (length_bytes, count) in [
        (4, 0),
        (8, 0),
        (20, 0),
        (24, 1),
        (40, 2),
        (4096, LBA_STATUS_DESCRIPTORS_MAX),
        (1 << 20, LBA_STATUS_DESCRIPTORS_MAX),
    ] {
        let get = GetLbaStatus {
            length_bytes,
            ..ALL
        };
        let (cqe, data) = bench.admin(&association, &AdminCommand::GetLbaStatus(get));
        assert!(cqe.status().is_success());
        assert!(data.len() as u64 <= length_bytes);
        if length_bytes >= 8 {
            let (head, descriptors) = LbaStatusList::parse(&data).unwrap();
            assert_eq!((head.condition, descriptors.len()), (more, count));
        }
    }
    // As many as there is room for, and no more of them.
    let exact = GetLbaStatus {
        length_bytes: 40,
        range_lbas: 3,
        ..ALL
    };
    let answer = ask(&mut bench, &association, exact);
    let whole = CompletionCondition::COMPLETE;
    assert_eq!(answer, (whole, vec![(0, 1), (2, 1)]));
}

/// The count of a descriptor has 32 bits.
#[test]
fn a_long_extent_takes_several_descriptors() {
    let mut bench = Bench::new();
    let lbas = (1 << 33) + 5;
    let big = NamespaceConfig {
        geometry: Geometry { lbas, ..GEOMETRY },
        ..namespace_config(7)
    };
    bench.target.add_namespace(&subnqn(), big).unwrap();
    let association = bench.ready();
    let most = 1..lbas;
    bench.allocated = vec![most];
    let get = GetLbaStatus { nsid: 7, ..ALL };
    let (condition, found) = ask(&mut bench, &association, get);
    assert_eq!(condition, CompletionCondition::COMPLETE);
    assert_eq!(
        found,
        [(1, 1 << 32), ((1 << 32) + 1, 1 << 32), ((1 << 33) + 1, 4)]
    );
    let short = GetLbaStatus {
        length_bytes: 40,
        ..get
    };
    let (condition, found) = ask(&mut bench, &association, short);
    assert_eq!((condition, found.len()), (CompletionCondition::MORE, 2));
}

#[test]
fn what_cannot_be_asked_is_refused_with_the_reason() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let mut status = |get: GetLbaStatus| {
        let (cqe, data) = bench.admin(&association, &AdminCommand::GetLbaStatus(get));
        assert!(data.is_empty());
        cqe.status().code()
    };
    for nsid in [0, 2, u32::MAX] {
        let get = GetLbaStatus { nsid, ..ALL };
        assert_eq!(status(get), Status::INVALID_NAMESPACE_OR_FORMAT);
    }
    for action in [0, 1, 3, 0x10, 0x11, 0xFF] {
        let action = ActionType(action);
        let get = GetLbaStatus { action, ..ALL };
        assert_eq!(status(get), Status::INVALID_FIELD, "{action}");
    }
    for (slba, range_lbas) in [(1000, 0), (1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX, 0)] {
        let get = GetLbaStatus {
            slba,
            range_lbas,
            ..ALL
        };
        assert_eq!(status(get), Status::LBA_OUT_OF_RANGE, "{slba}");
    }
    let state = AnaState::INACCESSIBLE;
    bench
        .target
        .set_ana_state(&subnqn(), PORT, 1, state)
        .unwrap();
    bench.poll();
    let (cqe, _) = bench.admin(&association, &AdminCommand::GetLbaStatus(ALL));
    assert_eq!(cqe.status().code(), Status::ASYMMETRIC_ACCESS_INACCESSIBLE);
}

/// The bit of the command set says it, and OACS does not: that asks for more.
#[test]
fn the_controller_says_that_it_tells() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER_IOCS, 0));
    let (_, data) = bench.admin(&association, &identify);
    let data = NvmIdentifyController::from_data(&data).unwrap();
    assert_eq!(data.aocs.get(), NvmAdminCommands::REPORTS_ALLOCATED.bits());
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let (_, data) = bench.admin(&association, &identify);
    let data = IdentifyController::from_data(&data).unwrap();
    let oacs = OptionalAdminCommands::from_bits_retain(data.oacs.get());
    assert!(!oacs.contains(OptionalAdminCommands::GET_LBA_STATUS));
}
