//! I/O commands: what is executed, and with what status the rest is refused.

use alloc::sync::Arc;
use alloc::vec::Vec;

use capstan_nvme_proto::command::{
    Compare, Copy, DatasetManagement, FabricsCommand, Flush, IoCommand as Command, LbaRange, Read,
    Verify, Write, WriteZeroes,
};
use capstan_nvme_proto::copy::{CopyFormat, CopyRangeFormat0};
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::fabrics::{Cattr, Connect, PropertyGet};
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::property::{Property, PropertySize};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use crate::testing::{Bench, GEOMETRY, buffer, namespace_config, subnqn};
use crate::{
    BackendId, ConnId, DisconnectReason, DrainId, Drained, Geometry, IoCommand, IoOperation,
    IoQueue, IoQueueState, IoStep, NamespaceConfig,
};

/// A bench whose only controller has one I/O queue of 8 entries.
fn bench() -> (Bench, ConnId) {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    (bench, conn)
}

fn queue(bench: &mut Bench, conn: ConnId) -> &mut IoQueue {
    bench.queues.get_mut(&conn).unwrap()
}

fn range(slba: u64, nlb: u32) -> LbaRange {
    LbaRange { slba, nlb }
}

fn sqe(command: Command, cid: u16) -> Sqe {
    let length = u32::try_from(command.data_transfer(512).bytes()).unwrap();
    command.encode(cid, buffer(length))
}

fn execute(bench: &mut Bench, conn: ConnId, sqe: &Sqe, capsule: &[u8]) -> IoCommand {
    match queue(bench, conn).handle_capsule(sqe, capsule) {
        IoStep::Execute(command) => command,
        other => panic!("{other:?}"),
    }
}

fn refused(bench: &mut Bench, conn: ConnId, sqe: &Sqe) -> Status {
    match queue(bench, conn).handle_capsule(sqe, &[]) {
        IoStep::Complete(cqe) => {
            assert_eq!(cqe.cid, sqe.cid);
            cqe.status()
        }
        other => panic!("{other:?}"),
    }
}

/// Executes and completes a command, to see that it is accepted.
fn accepted(bench: &mut Bench, conn: ConnId, command: Command) -> IoOperation {
    let command = execute(bench, conn, &sqe(command, 1), &[]);
    let operation = command.operation;
    queue(bench, conn).complete(command.permit, Status::SUCCESS, 0);
    operation
}

#[test]
fn a_read_is_located_and_completed_once() {
    let (mut bench, conn) = bench();
    let read = Command::Read(Read::new(1, range(10, 8)));
    let command = execute(&mut bench, conn, &sqe(read, 0xABCD), &[]);
    assert_eq!(
        command.operation,
        IoOperation::Read {
            range: range(10, 8),
            fua: false
        }
    );
    assert!(command.operation.moves_data_to_host());
    assert_eq!(command.namespace.backend, BackendId(1));
    assert_eq!(command.data_bytes, 4096);
    assert_eq!(queue(&mut bench, conn).outstanding(), 1);
    let cqe = queue(&mut bench, conn).complete(command.permit, Status::SUCCESS, 0);
    // The Connect was the first entry, so the head is at 2.
    assert_eq!((cqe.cid.get(), cqe.sqhd.get()), (0xABCD, 2));
    assert_eq!(queue(&mut bench, conn).outstanding(), 0);
}

#[test]
fn every_supported_command_is_understood() {
    let (mut bench, conn) = bench();
    let fua = true;
    let write = Write {
        fua,
        ..Write::new(1, range(0, 1))
    };
    let zeroes = WriteZeroes {
        deallocate: true,
        ..WriteZeroes::new(1, range(1, 2))
    };
    let copy = Copy {
        fua,
        ..Copy::new(1, 100, 2)
    };
    let dsm = DatasetManagement {
        nsid: 1,
        ranges: 3,
        integral_read: false,
        integral_write: false,
        deallocate: true,
    };
    let cases = [
        (
            Command::Write(write),
            IoOperation::Write {
                range: range(0, 1),
                fua,
            },
        ),
        (
            Command::Compare(Compare::new(1, range(0, 1))),
            IoOperation::Compare {
                range: range(0, 1),
                fua: false,
            },
        ),
        (
            Command::Verify(Verify::new(1, range(0, 1))),
            IoOperation::Verify {
                range: range(0, 1),
                fua: false,
            },
        ),
        (
            Command::WriteZeroes(zeroes),
            IoOperation::WriteZeroes {
                range: range(1, 2),
                deallocate: true,
                fua: false,
            },
        ),
        (Command::Flush(Flush { nsid: 1 }), IoOperation::Flush),
        (
            Command::DatasetManagement(dsm),
            IoOperation::DatasetManagement {
                ranges: 3,
                deallocate: true,
            },
        ),
        (
            Command::Copy(copy),
            IoOperation::Copy {
                sdlba: 100,
                ranges: 2,
                fua,
            },
        ),
    ];
    for (command, operation) in cases {
        assert_eq!(accepted(&mut bench, conn, command), operation);
    }
}

#[test]
fn transfers_and_ranges_end_at_their_limits() {
    let (mut bench, conn) = bench();
    let large = NamespaceConfig {
        geometry: Geometry {
            lbas: 1 << 20,
            ..GEOMETRY
        },
        ..namespace_config(2)
    };
    bench.target.add_namespace(&subnqn(), large).unwrap();
    bench.poll();
    accepted(
        &mut bench,
        conn,
        Command::Read(Read::new(2, range(0, 2048))),
    );
    accepted(&mut bench, conn, Command::Read(Read::new(1, range(999, 1))));
    let zeroes = WriteZeroes::new(2, range(0, 65_536));
    accepted(&mut bench, conn, Command::WriteZeroes(zeroes));

    let field = Status::INVALID_FIELD;
    let beyond = Status::LBA_OUT_OF_RANGE;
    let cases = [
        (Command::Read(Read::new(2, range(0, 2049))), field),
        (Command::Write(Write::new(2, range(0, 65_536))), field),
        (Command::Verify(Verify::new(2, range(0, 2049))), field),
        (Command::Read(Read::new(1, range(1000, 1))), beyond),
        (Command::Read(Read::new(1, range(999, 2))), beyond),
        (Command::Write(Write::new(1, range(u64::MAX, 1))), beyond),
        (
            Command::WriteZeroes(WriteZeroes::new(1, range(1, 1000))),
            beyond,
        ),
    ];
    for (command, status) in cases {
        assert_eq!(
            refused(&mut bench, conn, &sqe(command, 1)),
            status.dnr().more(),
            "{command:?}"
        );
    }
}

#[test]
fn what_is_not_supported_says_so() {
    let (mut bench, conn) = bench();
    let opcode = Status::INVALID_OPCODE;
    for unsupported in [
        IoOpcode::WRITE_UNCORRECTABLE,
        IoOpcode::CANCEL,
        IoOpcode::IO_MANAGEMENT_SEND,
        IoOpcode(0x90),
    ] {
        let sqe = Sqe::new(unsupported.0, 1, 1);
        assert_eq!(
            refused(&mut bench, conn, &sqe),
            opcode.dnr().more(),
            "{unsupported}"
        );
    }
    let read = Command::Read(Read::new(1, range(0, 1)));
    let mut fused = sqe(read, 1);
    fused.flags |= 1;
    let mut prp = sqe(read, 1);
    prp.flags = 0;
    let mut whole_namespace = sqe(Command::WriteZeroes(WriteZeroes::new(1, range(0, 1))), 1);
    whole_namespace.cdw12 = (1 << 23).into();
    let format = Copy {
        format: CopyFormat::FORMAT_1,
        ..Copy::new(1, 0, 1)
    };
    for sqe in [fused, prp, whole_namespace, sqe(Command::Copy(format), 1)] {
        assert_eq!(
            refused(&mut bench, conn, &sqe),
            Status::INVALID_FIELD.dnr().more()
        );
    }
    let ranges = sqe(Command::Copy(Copy::new(1, 0, 129)), 1);
    assert_eq!(
        refused(&mut bench, conn, &ranges),
        Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr().more()
    );
    for nsid in [0, 2, u32::MAX] {
        let flush = sqe(Command::Flush(Flush { nsid }), 1);
        assert_eq!(
            refused(&mut bench, conn, &flush),
            Status::INVALID_NAMESPACE_OR_FORMAT.dnr().more()
        );
    }
    let mut short = sqe(read, 1);
    short.dptr = buffer(511).encode();
    assert_eq!(
        refused(&mut bench, conn, &short),
        Status::DATA_SGL_LENGTH_INVALID.dnr().more()
    );
}

#[test]
fn a_read_only_namespace_refuses_what_writes() {
    let (mut bench, conn) = bench();
    let geometry = Geometry {
        read_only: true,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    bench.poll();
    accepted(&mut bench, conn, Command::Read(Read::new(1, range(0, 1))));
    accepted(&mut bench, conn, Command::Flush(Flush { nsid: 1 }));
    for command in [
        Command::Write(Write::new(1, range(0, 1))),
        Command::WriteZeroes(WriteZeroes::new(1, range(0, 1))),
        Command::Copy(Copy::new(1, 0, 1)),
    ] {
        assert_eq!(
            refused(&mut bench, conn, &sqe(command, 1)),
            Status::NAMESPACE_IS_WRITE_PROTECTED.dnr().more()
        );
    }
}

#[test]
fn in_capsule_data_is_where_the_sgl_says() {
    let (mut bench, conn) = bench();
    let write = Command::Write(Write::new(1, range(0, 16)));
    let sqe = write.encode(
        1,
        Sgl::InCapsule {
            offset_bytes: 0,
            length_bytes: 8192,
        },
    );
    let command = execute(&mut bench, conn, &sqe, &[0; 8192]);
    assert_eq!(command.data_bytes, 8192);
    queue(&mut bench, conn).complete(command.permit, Status::SUCCESS, 0);
    assert_eq!(
        refused(&mut bench, conn, &sqe),
        Status::DATA_SGL_LENGTH_INVALID.dnr().more()
    );
}

#[test]
fn a_command_whose_data_is_nowhere_is_over_and_no_drain_waits_for_it() {
    let (mut bench, conn) = bench();
    let read = Command::Read(Read::new(1, range(7, 1)));
    let short = read.encode(1, buffer(511));
    assert_eq!(
        refused(&mut bench, conn, &short),
        Status::DATA_SGL_LENGTH_INVALID.dnr().more()
    );
    let queue = queue(&mut bench, conn);
    assert_eq!(queue.outstanding(), 0);
    let drain = DrainId(7);
    queue.begin_drain(1, drain);
    assert_eq!(queue.poll_drained(), Some(Drained::Namespace(drain)));
}

fn bytes<T: IntoBytes + zerocopy::Immutable>(items: &[T]) -> Vec<u8> {
    items.as_bytes().to_vec()
}

#[test]
fn dataset_ranges_are_checked_one_by_one() {
    let (mut bench, conn) = bench();
    let dsm = Command::DatasetManagement(DatasetManagement {
        nsid: 1,
        ranges: 2,
        integral_read: false,
        integral_write: false,
        deallocate: true,
    });
    let command = execute(&mut bench, conn, &sqe(dsm, 1), &[]);
    assert_eq!(command.data_bytes, 32);
    let ranges = |data: &[u8]| {
        command
            .dsm_ranges(data)
            .map(|ranges| ranges.collect::<Vec<_>>())
    };
    let good = bytes(&[DsmRange::new(5, 0), DsmRange::new(0, 1000)]);
    assert_eq!(ranges(&good), Ok([range(0, 1000)].into()));
    let beyond = bytes(&[DsmRange::new(0, 1), DsmRange::new(1, 1000)]);
    assert_eq!(ranges(&beyond), Err(Status::LBA_OUT_OF_RANGE.dnr()));
    assert_eq!(
        ranges(&good[..31]),
        Err(Status::DATA_SGL_LENGTH_INVALID.dnr())
    );
    assert!(command.copy_sources(&good).is_err());
}

#[test]
fn a_hint_is_a_write_command_to_a_reservation_and_none_to_write_protection() {
    use crate::gate::Closed;
    let (mut bench, conn) = bench();
    let hint = |cid| {
        let dsm = DatasetManagement {
            nsid: 1,
            ranges: 1,
            integral_read: true,
            integral_write: false,
            deallocate: false,
        };
        sqe(Command::DatasetManagement(dsm), cid)
    };
    let namespace = queue(&mut bench, conn).namespace(1).unwrap();
    let gate = Arc::clone(&namespace.gate);
    gate.set(Closed::RESERVED_FOR_WRITE);
    assert_eq!(
        refused(&mut bench, conn, &hint(2)),
        Status::RESERVATION_CONFLICT.dnr().more()
    );
    gate.set(Closed::WRITE_PROTECTED);
    let command = execute(&mut bench, conn, &hint(3), &[]);
    queue(&mut bench, conn).complete(command.permit, Status::SUCCESS, 0);
}

#[test]
fn copy_sources_are_bounded_and_do_not_overlap_the_destination() {
    let (mut bench, conn) = bench();
    let large = NamespaceConfig {
        geometry: Geometry {
            lbas: 1 << 20,
            ..GEOMETRY
        },
        ..namespace_config(2)
    };
    bench.target.add_namespace(&subnqn(), large).unwrap();
    bench.poll();
    let mut sources = |sdlba: u64, ranges: &[LbaRange]| {
        let count = u16::try_from(ranges.len()).unwrap();
        let sqe = sqe(Command::Copy(Copy::new(2, sdlba, count)), 1);
        let command = execute(&mut bench, conn, &sqe, &[]);
        let data: Vec<_> = ranges.iter().copied().map(CopyRangeFormat0::new).collect();
        let result = command
            .copy_sources(&bytes(&data))
            .map(|ranges| ranges.collect::<Vec<_>>());
        queue(&mut bench, conn).complete(command.permit, Status::SUCCESS, 0);
        result
    };
    let pair = [range(0, 8), range(100, 8)];
    assert_eq!(sources(200, &pair), Ok(pair.into()));
    assert_eq!(sources(8, &pair), Ok(pair.into()));
    let cases = [
        (7, range(0, 8), Status::OVERLAPPING_IO_RANGE),
        ((1 << 20) - 7, range(0, 8), Status::LBA_OUT_OF_RANGE),
        (0, range((1 << 20) - 7, 8), Status::LBA_OUT_OF_RANGE),
        (0, range(4096, 2049), Status::COMMAND_SIZE_LIMIT_EXCEEDED),
    ];
    for (sdlba, source, status) in cases {
        assert_eq!(sources(sdlba, &[source]), Err(status.dnr()), "{source:?}");
    }
    let many = [range(1 << 19, 2048); 17];
    assert_eq!(
        sources(0, &many),
        Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr())
    );
}

#[test]
fn duplicates_are_refused_and_an_overrun_ends_the_queue() {
    let (mut bench, conn) = bench();
    let flush = |cid| sqe(Command::Flush(Flush { nsid: 1 }), cid);
    let permits: Vec<_> = (0..8)
        .map(|cid| execute(&mut bench, conn, &flush(cid), &[]).permit)
        .collect();
    assert_eq!(
        refused(&mut bench, conn, &flush(3)),
        Status::COMMAND_ID_CONFLICT.dnr().more()
    );
    let step = queue(&mut bench, conn).handle_capsule(&flush(8), &[]);
    let IoStep::Disconnect(why) = step else {
        panic!("{step:?}");
    };
    assert_eq!(why, DisconnectReason::QueueOverrun { qid: 1, entries: 8 });
    assert_eq!(queue(&mut bench, conn).state(), IoQueueState::Closed);
    for permit in permits {
        queue(&mut bench, conn).complete(permit, Status::SUCCESS, 0);
    }
    assert_eq!(queue(&mut bench, conn).outstanding(), 0);
    assert_eq!(
        refused(&mut bench, conn, &flush(1)),
        Status::COMMAND_SEQUENCE_ERROR.dnr().more()
    );
}

#[test]
fn a_host_can_delete_its_queue() {
    let (mut bench, conn) = bench();
    let disconnect = FabricsCommand::Disconnect.encode(4, Sgl::EMPTY);
    let step = queue(&mut bench, conn).handle_capsule(&disconnect, &[]);
    let IoStep::DeleteQueue(permit) = step else {
        panic!("{step:?}");
    };
    let flush = sqe(Command::Flush(Flush { nsid: 1 }), 5);
    let sequence = Status::COMMAND_SEQUENCE_ERROR.dnr().more();
    assert_eq!(refused(&mut bench, conn, &flush), sequence);
    let again = FabricsCommand::Disconnect.encode(6, Sgl::EMPTY);
    assert_eq!(refused(&mut bench, conn, &again), sequence);
    let cqe = queue(&mut bench, conn).complete(permit, Status::SUCCESS, 0);
    assert_eq!((cqe.cid.get(), cqe.status()), (4, Status::SUCCESS));
}

#[test]
fn other_fabrics_commands_are_refused_on_an_io_queue() {
    let (mut bench, conn) = bench();
    let get = PropertyGet {
        property: Property::CSTS,
        size: PropertySize::Four,
    };
    let get = FabricsCommand::PropertyGet(get).encode(1, Sgl::EMPTY);
    assert_eq!(
        refused(&mut bench, conn, &get),
        Status::INVALID_OPCODE.dnr().more()
    );
    let connect = Connect {
        qid: 1,
        sqsize: 8,
        cattr: Cattr(0),
        kato_ms: 0,
    };
    let connect = FabricsCommand::Connect(connect).encode(1, buffer(1024));
    assert_eq!(
        refused(&mut bench, conn, &connect),
        Status::COMMAND_SEQUENCE_ERROR.dnr().more()
    );
}
