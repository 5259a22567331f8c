//! Get Log Page on an I/O controller.

use alloc::vec::Vec;

use capstan_nvme_proto::command::{
    AdminCommand, GetLogPage, Identify, IoCommand as Command, LbaRange, Read, Write,
};
use capstan_nvme_proto::identify::{Cns, IdentifyController, LogPageAttributes};
use capstan_nvme_proto::log::{
    AnaLogHeader, AnaState, CommandEffects, CommandEffectsLog, CriticalWarning,
    ErrorInformationEntry, FirmwareSlotLog, HealthLog, LogPageId, SupportedLogPages,
};
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, PORT, buffer, host, namespace_config, subnqn};
use crate::{ConnId, IoStep, NamespaceConfig};

fn read(bench: &mut Bench, association: &Association, get: GetLogPage) -> Vec<u8> {
    let (cqe, data) = bench.admin(association, &AdminCommand::GetLogPage(get));
    assert!(cqe.status().is_success(), "{get:?}: {cqe:?}");
    assert!(data.len() as u64 <= get.length_bytes);
    data
}

fn complete(bench: &mut Bench, conn: ConnId, command: Command, status: Status) {
    let cid = bench.new_cid();
    let length = u32::try_from(command.data_transfer(512).bytes()).unwrap();
    let queue = bench.queues.get_mut(&conn).unwrap();
    match queue.handle_capsule(&command.encode(cid, buffer(length)), &[]) {
        IoStep::Execute(command) => {
            queue.complete(command.permit, status, 0);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_supported_pages_are_those_that_can_be_read() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let data = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::SUPPORTED_LOG_PAGES, 1024),
    );
    let supported = SupportedLogPages::from_data(&data).unwrap().clone();
    for lid in (0..=u8::MAX).map(LogPageId) {
        let get = AdminCommand::GetLogPage(GetLogPage::new(lid, 64));
        let (cqe, _) = bench.admin(&association, &get);
        assert_eq!(cqe.status().is_success(), supported.supports(lid), "{lid}");
        if !supported.supports(lid) {
            assert_eq!(cqe.status(), Status::INVALID_LOG_PAGE.dnr().more());
        }
    }
}

#[test]
fn the_effects_page_lists_what_is_executed() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let data = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::COMMAND_EFFECTS, 4096),
    );
    let log = CommandEffectsLog::from_data(&data).unwrap().clone();
    for opcode in (0..=u8::MAX).map(AdminOpcode) {
        if opcode == AdminOpcode::FABRICS || opcode == AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST {
            continue;
        }
        let cid = bench.new_cid();
        let sqe = Sqe::new(opcode.0, cid, 0);
        let (cqe, _) = bench.send_admin(association.conn, &sqe).unwrap();
        let known = cqe.status().code() != Status::INVALID_OPCODE;
        let supported = log.admin(opcode).contains(CommandEffects::SUPPORTED);
        assert_eq!(known, supported, "{opcode}");
    }
    let conn = bench.io_queue(&association, 1).unwrap();
    for opcode in (0..=u8::MAX).map(IoOpcode) {
        if opcode == IoOpcode::FABRICS {
            continue;
        }
        let queue = bench.queues.get_mut(&conn).unwrap();
        let known = match queue.handle_capsule(&Sqe::new(opcode.0, 1, 1), &[]) {
            IoStep::Complete(cqe) => cqe.status().code() != Status::INVALID_OPCODE,
            IoStep::Execute(command) => {
                queue.complete(command.permit, Status::SUCCESS, 0);
                true
            }
            other => panic!("{other:?}"),
        };
        let supported = log.io(opcode).contains(CommandEffects::SUPPORTED);
        assert_eq!(known, supported, "{opcode}");
    }
    let other_set = GetLogPage {
        csi: 2,
        ..GetLogPage::new(LogPageId::COMMAND_EFFECTS, 4096)
    };
    let (cqe, _) = bench.admin(&association, &AdminCommand::GetLogPage(other_set));
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
}

#[test]
fn errors_of_all_queues_are_told_newest_first_with_their_location() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 5).unwrap();
    let (cqe, _) = bench.admin(
        &association,
        &AdminCommand::GetLogPage(GetLogPage {
            lid: LogPageId(0xC5),
            ..GetLogPage::new(LogPageId::HEALTH, 512)
        }),
    );
    assert!(cqe.status().is_more());
    let beyond = Command::Read(Read::new(
        1,
        LbaRange {
            slba: 0x1234,
            nlb: 1,
        },
    ));
    let queue = bench.queues.get_mut(&conn).unwrap();
    let step = queue.handle_capsule(&beyond.encode(77, buffer(512)), &[]);
    assert!(matches!(step, IoStep::Complete(_)));
    let write = Command::Write(Write::new(1, LbaRange { slba: 9, nlb: 1 }));
    complete(&mut bench, conn, write, Status::WRITE_FAULT);

    let data = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::ERROR_INFORMATION, 4096),
    );
    let errors: Vec<_> = ErrorInformationEntry::parse_all(&data).collect();
    let [fault, range, lid] = errors[..] else {
        panic!("{errors:?}");
    };
    assert_eq!(
        [fault, range, lid].map(|error| error.error_count.get()),
        [3, 2, 1]
    );
    assert_eq!((fault.sqid.get(), fault.lba.get()), (5, 9));
    assert_eq!(fault.status(), Status::WRITE_FAULT.more());
    assert_eq!(fault.parameter_error_location.get(), 0xFFFF);
    assert_eq!((range.cid.get(), range.nsid.get()), (77, 1));
    assert_eq!(range.lba.get(), 0x1234);
    assert_eq!(range.parameter_error_location.get(), 40);
    assert_eq!(range.status(), Status::LBA_OUT_OF_RANGE.dnr().more());
    assert_eq!(
        (lid.sqid.get(), lid.opcode),
        (0, AdminOpcode::GET_LOG_PAGE.0)
    );
    assert_eq!(lid.parameter_error_location.get(), 40);

    // A queue that is gone leaves its errors behind.
    bench.disconnect(conn);
    let again = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::ERROR_INFORMATION, 4096),
    );
    assert_eq!(data, again);
}

#[test]
fn health_counts_what_was_really_moved() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let range = |nlb| LbaRange { slba: 0, nlb };
    for qid in 1..=2 {
        let conn = bench.io_queue(&association, qid).unwrap();
        // 1,001 blocks of 512 bytes are two data units of a thousand.
        for nlb in [1000, 1] {
            complete(
                &mut bench,
                conn,
                Command::Read(Read::new(1, range(nlb))),
                Status::SUCCESS,
            );
        }
        let write = Command::Write(Write::new(1, range(1)));
        complete(&mut bench, conn, write, Status::SUCCESS);
        complete(&mut bench, conn, write, Status::UNRECOVERED_READ_ERROR);
        // No error of the medium.
        complete(&mut bench, conn, write, Status::COMPARE_FAILURE);
        if qid == 1 {
            bench.disconnect(conn);
        }
    }
    bench.now_us = 2 * 3_600_000_000;
    let data = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::HEALTH, 512),
    );
    let health = HealthLog::from_data(&data).unwrap();
    assert_eq!(health.data_units_read.get(), 3);
    assert_eq!(health.data_units_written.get(), 1);
    assert_eq!(health.host_read_commands.get(), 4);
    assert_eq!(health.host_write_commands.get(), 6);
    assert_eq!(health.media_errors.get(), 2);
    assert_eq!(health.error_log_entries.get(), 4);
    assert_eq!(health.power_on_hours.get(), 2);
    // Room temperature; 0 K sets off monitors.
    assert_eq!(health.composite_temperature_kelvins.get(), 273 + 25);
    // The same by host, with the queue that is gone.
    let counts = bench.target.host_counts();
    let [(place, counters)] = counts.pairs.iter().collect::<Vec<_>>()[..] else {
        panic!("{counts:?}")
    };
    assert_eq!((&place.subnqn, place.nsid), (&subnqn(), 1));
    let commands = &counters.commands;
    assert_eq!((commands.read_commands, commands.write_commands), (4, 6));
    let of = |status: Status| counters.errors[&Some(status.to_bits())];
    assert_eq!(of(Status::UNRECOVERED_READ_ERROR), 2);
    assert_eq!((of(Status::COMPARE_FAILURE), counters.errors.len()), (2, 2));
    assert_eq!((counts.pairs_dropped, counts.commands_not_kept), (0, 0));
}

fn health(bench: &mut Bench, association: &Association, nsid: u32) -> HealthLog {
    let get = GetLogPage {
        nsid,
        ..GetLogPage::new(LogPageId::HEALTH, 512)
    };
    let data = read(bench, association, get);
    HealthLog::from_data(&data).unwrap().clone()
}

/// Read and write commands of the whole subsystem, and of namespaces.
fn commands(bench: &mut Bench, association: &Association, nsids: &[u32]) -> Vec<(u128, u128)> {
    let nsids = [u32::MAX].into_iter().chain(nsids.iter().copied());
    let counts = nsids.map(|nsid| {
        let health = health(bench, association, nsid);
        (
            health.host_read_commands.get(),
            health.host_write_commands.get(),
        )
    });
    counts.collect()
}

#[test]
fn health_is_told_of_each_namespace_by_itself() {
    let mut bench = Bench::new();
    bench
        .target
        .add_namespace(&subnqn(), namespace_config(2))
        .unwrap();
    let association = bench.ready();
    let data = bench.admin(
        &association,
        &AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0)),
    );
    let identify = IdentifyController::from_data(&data.1).unwrap();
    let lpa = LogPageAttributes::from_bits_retain(identify.lpa);
    assert!(lpa.contains(LogPageAttributes::SMART_PER_NAMESPACE));
    let conn = bench.io_queue(&association, 1).unwrap();
    let range = LbaRange { slba: 0, nlb: 1000 };
    let to = |nsid| Command::Write(Write::new(nsid, range));
    let of = |nsid| Command::Read(Read::new(nsid, range));
    for command in [of(1), of(1), to(1), of(2)] {
        complete(&mut bench, conn, command, Status::SUCCESS);
    }
    complete(&mut bench, conn, of(2), Status::UNRECOVERED_READ_ERROR);
    let counted = commands(&mut bench, &association, &[1, 2]);
    assert_eq!(counted, [(4, 1), (2, 1), (2, 0)]);
    let [first, second] = [1, 2].map(|nsid| health(&mut bench, &association, nsid));
    assert_eq!(
        (first.data_units_read.get(), second.data_units_read.get()),
        (2, 1)
    );
    assert_eq!(
        (
            first.data_units_written.get(),
            second.data_units_written.get()
        ),
        (1, 0)
    );
    assert_eq!(
        (first.media_errors.get(), second.media_errors.get()),
        (0, 1)
    );

    // A namespace that comes later, with a number beyond what the queue counts so far.
    bench
        .target
        .add_namespace(&subnqn(), namespace_config(700))
        .unwrap();
    bench.poll();
    for command in [to(700), of(1)] {
        complete(&mut bench, conn, command, Status::SUCCESS);
    }
    let counted = commands(&mut bench, &association, &[1, 2, 700]);
    assert_eq!(counted, [(5, 2), (3, 1), (2, 0), (0, 1)]);
    // Nothing is forgotten with a queue, and another one goes on.
    bench.disconnect(conn);
    let conn = bench.io_queue(&association, 2).unwrap();
    complete(&mut bench, conn, to(700), Status::SUCCESS);
    let counted = commands(&mut bench, &association, &[1, 2, 700]);
    assert_eq!(counted, [(5, 3), (3, 1), (2, 0), (0, 2)]);
    // Another namespace in the place of one begins anew; the subsystem does not.
    bench.target.remove_namespace(&subnqn(), 700).unwrap();
    bench
        .target
        .add_namespace(&subnqn(), namespace_config(700))
        .unwrap();
    bench.poll();
    complete(&mut bench, conn, of(700), Status::SUCCESS);
    let counted = commands(&mut bench, &association, &[1, 700]);
    assert_eq!(counted, [(6, 3), (3, 1), (1, 0)]);
    for nsid in [3, 1024, 0xFFFF_FFFE] {
        let get = GetLogPage {
            nsid,
            ..GetLogPage::new(LogPageId::HEALTH, 512)
        };
        let (cqe, _) = bench.admin(&association, &AdminCommand::GetLogPage(get));
        let status = cqe.status().code();
        assert_eq!(status, Status::INVALID_NAMESPACE_OR_FORMAT);
    }
}

/// A medium that is bad is one namespace's.
#[test]
fn health_warns_of_the_namespace_it_is_about() {
    let mut bench = Bench::new();
    bench
        .target
        .add_namespace(&subnqn(), namespace_config(2))
        .unwrap();
    let association = bench.ready();
    let backend = namespace_config(2).backend;
    assert_ne!(backend, namespace_config(1).backend);
    bench.target.handle_data_lost(backend, 0);
    bench.poll();
    let warnings = [0, 1, 2].map(|nsid| health(&mut bench, &association, nsid).critical_warning);
    let reliability = CriticalWarning::RELIABILITY.bits();
    assert_eq!(warnings, [reliability, 0, reliability]);
}

#[test]
fn the_firmware_page_has_one_slot() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let data = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::FIRMWARE_SLOT, 512),
    );
    let log = FirmwareSlotLog::from_data(&data).unwrap();
    assert_eq!(log.active_slot(), 1);
    assert_eq!(log.revision(1).unwrap().as_str(), Some("1.0"));
}

#[test]
fn ana_groups_are_listed_with_their_states() {
    let mut bench = Bench::new();
    let second = NamespaceConfig {
        anagrpid: 3,
        ..namespace_config(4)
    };
    bench.target.add_namespace(&subnqn(), second).unwrap();
    let association = bench.ready();
    let groups = |bench: &mut Bench, lsp| {
        let get = GetLogPage {
            lsp,
            ..GetLogPage::new(LogPageId::ANA, 256)
        };
        let data = read(bench, &association, get);
        let (header, groups) = AnaLogHeader::parse(&data).unwrap();
        let groups: Vec<_> = groups
            .map(|group| {
                let group = group.unwrap();
                let nsids: Vec<u32> = group.nsids.iter().map(|nsid| nsid.get()).collect();
                (group.header.group_id.get(), group.header.state(), nsids)
            })
            .collect();
        (header.change_count.get(), groups)
    };
    let (before, list) = groups(&mut bench, 0);
    assert_eq!(
        list,
        [
            (1, AnaState::OPTIMIZED, [1].into()),
            (3, AnaState::OPTIMIZED, [4].into())
        ]
    );
    bench
        .target
        .set_ana_state(&subnqn(), PORT, 3, AnaState::NON_OPTIMIZED)
        .unwrap();
    let (after, list) = groups(&mut bench, 1);
    assert!(before > 0 && after > before);
    assert_eq!(
        list,
        [
            (1, AnaState::OPTIMIZED, Vec::new()),
            (3, AnaState::NON_OPTIMIZED, Vec::new())
        ]
    );
}

#[test]
fn offsets_and_lengths_are_checked() {
    let mut bench = Bench::new();
    let association = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&association);
    let whole = read(
        &mut bench,
        &association,
        GetLogPage::new(LogPageId::HEALTH, 512),
    );
    let tail = GetLogPage {
        offset: 500,
        ..GetLogPage::new(LogPageId::HEALTH, 32)
    };
    let data = read(&mut bench, &association, tail);
    assert_eq!(data[..12], whole[500..]);
    assert_eq!(data[12..], [0; 20]);
    let field = Status::INVALID_FIELD.dnr().more();
    let bad = [
        GetLogPage {
            offset: 516,
            ..tail
        },
        GetLogPage {
            offset_is_index: true,
            ..tail
        },
        GetLogPage { offset: 2, ..tail },
        GetLogPage::new(LogPageId::HEALTH, (1 << 20) + 4),
    ];
    for get in bad {
        let (cqe, _) = bench.admin(&association, &AdminCommand::GetLogPage(get));
        assert_eq!(cqe.status(), field, "{get:?}");
    }
}

/// What is behind the end of a page is undefined, and costs nothing beyond 4 KiB.
#[test]
fn no_more_is_told_than_there_is_of_a_page() {
    let mut bench = Bench::new();
    let association = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&association);
    for lid in [
        LogPageId::SUPPORTED_LOG_PAGES,
        LogPageId::ERROR_INFORMATION,
        LogPageId::HEALTH,
        LogPageId::CHANGED_NAMESPACES,
        LogPageId::COMMAND_EFFECTS,
        LogPageId::ANA,
        LogPageId::RESERVATION_NOTIFICATION,
        LogPageId::CROSS_CONTROLLER_RESET,
    ] {
        let [small, large] = [4096, 1 << 20].map(|length_bytes| {
            let get = GetLogPage::new(lid, length_bytes);
            read(&mut bench, &association, get)
        });
        assert_eq!(small.len(), 4096, "{lid:?}");
        assert_eq!(small, large, "{lid:?}");
    }
    let tail = GetLogPage {
        offset: 500,
        ..GetLogPage::new(LogPageId::HEALTH, 1 << 20)
    };
    let data = read(&mut bench, &association, tail);
    assert_eq!((data.len(), &data[12..]), (4096, &[0; 4084][..]));
}
