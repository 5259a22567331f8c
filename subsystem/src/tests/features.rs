//! Get Features and Set Features.

use capstan_nvme_proto::command::{AdminCommand, GetFeatures, SetFeatures};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::features::{
    AsyncEventConfiguration, FeatureCapabilities, FeatureId, FeatureSelect, HostBehaviorSupport,
    NumberOfQueues,
};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::property::Cc;
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes as _;

use crate::testing::{Association, Bench, GEOMETRY, host, subnqn};
use crate::{Geometry, IoOperation, IoStep};

fn set(bench: &mut Bench, association: &Association, feature: SetFeatures) -> Cqe {
    bench
        .admin(association, &AdminCommand::SetFeatures(feature))
        .0
}

fn get(bench: &mut Bench, association: &Association, feature: GetFeatures) -> Cqe {
    bench
        .admin(association, &AdminCommand::GetFeatures(feature))
        .0
}

fn value(bench: &mut Bench, association: &Association, fid: FeatureId) -> u32 {
    let cqe = get(bench, association, GetFeatures::new(fid));
    assert!(cqe.status().is_success(), "{fid}: {cqe:?}");
    cqe.dw0.get()
}

#[test]
fn number_of_queues_is_answered_until_there_are_queues() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let asked = NumberOfQueues {
        submission: 4,
        completion: 4,
    };
    let feature = SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, asked.encode());
    let cqe = set(&mut bench, &association, feature);
    let granted = NumberOfQueues::decode(cqe.dw0.get());
    assert_eq!((granted.submission, granted.completion), (128, 128));
    let all = SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, u32::MAX);
    let cqe = set(&mut bench, &association, all);
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
    bench.io_queue(&association, 1).unwrap();
    let cqe = set(&mut bench, &association, feature);
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.dnr().more());
}

#[test]
fn values_are_kept_until_a_reset() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let cases = [
        (FeatureId::ARBITRATION, 0x0102_0303, 7),
        (FeatureId::TEMPERATURE_THRESHOLD, 0x0000_0155, 0x0157),
        (FeatureId::VOLATILE_WRITE_CACHE, 0, 1),
        (FeatureId::WRITE_ATOMICITY_NORMAL, 1, 0),
        (FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION, 0x100, 0x904),
        (FeatureId::IO_COMMAND_SET_PROFILE, 0, 0),
        (FeatureId::POWER_MANAGEMENT, 0x20, 0),
    ];
    for (fid, new, default) in cases {
        assert_eq!(value(&mut bench, &association, fid), default, "{fid}");
        let cqe = set(&mut bench, &association, SetFeatures::new(fid, new));
        assert!(cqe.status().is_success(), "{fid}: {cqe:?}");
        assert_eq!(value(&mut bench, &association, fid), new, "{fid}");
        let select = FeatureSelect::DEFAULT;
        let cqe = get(
            &mut bench,
            &association,
            GetFeatures {
                select,
                ..GetFeatures::new(fid)
            },
        );
        assert_eq!(cqe.dw0.get(), default, "{fid}");
    }
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, disabled);
    bench.enable(&association);
    for (fid, _, default) in cases {
        assert_eq!(value(&mut bench, &association, fid), default, "{fid}");
    }
}

/// Host Behavior Support with this byte at this offset.
fn set_behavior(
    bench: &mut Bench,
    association: &Association,
    (offset, byte): (usize, u8),
) -> Status {
    let mut data = HostBehaviorSupport::with_acre(false).as_bytes().to_vec();
    data[offset] = byte;
    bench.set_host_behavior(association, &data)
}

#[test]
fn a_host_says_that_it_waits_before_it_tries_again_until_a_reset() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let acre = |bench: &mut Bench| {
        let feature = GetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT);
        let (cqe, data) = bench.admin(&association, &AdminCommand::GetFeatures(feature));
        assert!(cqe.status().is_success(), "{cqe:?}");
        assert_eq!(data.len(), 512);
        assert!(data[1..].iter().all(|&byte| byte == 0));
        data[0]
    };
    assert_eq!(acre(&mut bench), 0);
    let set = |bench: &mut Bench, at| set_behavior(bench, &association, at);
    assert_eq!(set(&mut bench, (0, 1)), Status::SUCCESS);
    assert_eq!(acre(&mut bench), 1);
    // No such value; LBA formats and Copy formats that are not offered.
    for at in [(0, 2), (2, 1), (4, 4), (5, 0x80)] {
        assert_eq!(set(&mut bench, at), Status::INVALID_FIELD.dnr().more());
        assert_eq!(acre(&mut bench), 1, "{at:?}");
    }
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, disabled);
    bench.enable(&association);
    assert_eq!(acre(&mut bench), 0);
    assert_eq!(set(&mut bench, (0, 1)), Status::SUCCESS);
    assert_eq!(set(&mut bench, (0, 0)), Status::SUCCESS);
    assert_eq!(acre(&mut bench), 0);
    // Less data than the feature has is refused, not read as zeroes.
    let short = bench.set_host_behavior(&association, &[1; 511]);
    assert!(!short.is_success());
}

#[test]
fn keep_alive_can_be_changed() {
    let mut bench = Bench::new();
    let association = bench.ready();
    assert_eq!(bench.target.next_deadline_us(), None);
    let feature = SetFeatures::new(FeatureId::KEEP_ALIVE_TIMER, 1500);
    assert!(set(&mut bench, &association, feature).status().is_success());
    assert_eq!(
        value(&mut bench, &association, FeatureId::KEEP_ALIVE_TIMER),
        2000
    );
    assert_eq!(bench.target.next_deadline_us(), Some(2_000_000));
}

#[test]
fn a_disabled_write_cache_makes_every_write_durable() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let io = bench.io_queue(&association, 1).unwrap();
    let fua = |bench: &mut Bench| {
        let cid = bench.new_cid();
        let range = capstan_nvme_proto::command::LbaRange { slba: 0, nlb: 1 };
        let write = capstan_nvme_proto::command::Write::new(1, range);
        let sqe = capstan_nvme_proto::command::IoCommand::Write(write)
            .encode(cid, crate::testing::buffer(512));
        let queue = bench.queues.get_mut(&io).unwrap();
        let IoStep::Execute(command) = queue.handle_capsule(&sqe, &[]) else {
            panic!("a write");
        };
        let IoOperation::Write { fua, .. } = command.operation else {
            panic!("{:?}", command.operation);
        };
        queue.complete(command.permit, Status::SUCCESS, 0);
        fua
    };
    assert!(!fua(&mut bench));
    let feature = SetFeatures::new(FeatureId::VOLATILE_WRITE_CACHE, 0);
    set(&mut bench, &association, feature);
    assert!(fua(&mut bench));
}

#[test]
fn what_cannot_be_done_has_its_status() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let new = SetFeatures::new;
    let field = Status::INVALID_FIELD;
    let cases = [
        (new(FeatureId(0xD0), 0), field),
        (new(FeatureId::HOST_MEMORY_BUFFER, 0), field),
        (
            SetFeatures {
                save: true,
                ..new(FeatureId::ARBITRATION, 0)
            },
            Status::FEATURE_IDENTIFIER_NOT_SAVEABLE,
        ),
        (
            SetFeatures {
                nsid: 1,
                ..new(FeatureId::ARBITRATION, 0)
            },
            Status::FEATURE_NOT_NAMESPACE_SPECIFIC,
        ),
        (
            SetFeatures {
                nsid: 9,
                ..new(FeatureId::ERROR_RECOVERY, 0)
            },
            Status::INVALID_NAMESPACE_OR_FORMAT,
        ),
        (
            SetFeatures {
                nsid: 1,
                ..new(FeatureId::ERROR_RECOVERY, 1 << 16)
            },
            field,
        ),
        (
            SetFeatures {
                nsid: 1,
                ..new(FeatureId::RESERVATION_PERSISTENCE, 1)
            },
            field,
        ),
        (
            SetFeatures {
                nsid: 9,
                ..new(FeatureId::RESERVATION_NOTIFICATION_MASK, 2)
            },
            Status::INVALID_NAMESPACE_OR_FORMAT,
        ),
        (new(FeatureId::POWER_MANAGEMENT, 1), field),
        (new(FeatureId::TEMPERATURE_THRESHOLD, 1 << 16), field),
        (new(FeatureId::TEMPERATURE_THRESHOLD, 2 << 20), field),
        (
            new(FeatureId::IO_COMMAND_SET_PROFILE, 1),
            Status::IO_COMMAND_SET_COMBINATION_REJECTED,
        ),
        (
            new(FeatureId::HOST_IDENTIFIER, 1),
            Status::COMMAND_SEQUENCE_ERROR,
        ),
    ];
    for (feature, status) in cases {
        let cqe = set(&mut bench, &association, feature);
        assert_eq!(cqe.status(), status.dnr().more(), "{feature:?}");
    }
}

#[test]
fn the_host_identifier_is_the_one_of_connect() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let extended = GetFeatures {
        cdw11: 1,
        ..GetFeatures::new(FeatureId::HOST_IDENTIFIER)
    };
    let (cqe, data) = bench.admin(&association, &AdminCommand::GetFeatures(extended));
    assert!(cqe.status().is_success());
    assert_eq!(data, [1; 16]);
    let short = GetFeatures::new(FeatureId::HOST_IDENTIFIER);
    let cqe = get(&mut bench, &association, short);
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
}

#[test]
fn capabilities_are_told_and_a_missing_cache_has_no_feature() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let ask = |fid, select| GetFeatures {
        select,
        ..GetFeatures::new(fid)
    };
    let capabilities = FeatureSelect::SUPPORTED_CAPABILITIES;
    let cqe = get(
        &mut bench,
        &association,
        ask(FeatureId::ERROR_RECOVERY, capabilities),
    );
    assert_eq!(
        FeatureCapabilities::decode(cqe.dw0.get()),
        FeatureCapabilities {
            saveable: false,
            namespace_specific: true,
            changeable: true
        }
    );
    let cqe = get(
        &mut bench,
        &association,
        ask(FeatureId::ARBITRATION, FeatureSelect(5)),
    );
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());

    let geometry = Geometry {
        volatile_write_cache: false,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    let cqe = get(
        &mut bench,
        &association,
        GetFeatures::new(FeatureId::VOLATILE_WRITE_CACHE),
    );
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
}

#[test]
fn discovery_controllers_have_events_and_keep_alive_only() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), Nqn::discovery(), 0).unwrap();
    bench.enable(&association);
    assert_eq!(
        value(&mut bench, &association, FeatureId::KEEP_ALIVE_TIMER),
        120_000
    );
    let events = value(
        &mut bench,
        &association,
        FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION,
    );
    assert_eq!(events, AsyncEventConfiguration::empty().bits());
    let cqe = get(
        &mut bench,
        &association,
        GetFeatures::new(FeatureId::NUMBER_OF_QUEUES),
    );
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
}
