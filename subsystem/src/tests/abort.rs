//! Abort and Asynchronous Event Requests.

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{Abort, AdminCommand};
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, namespace_config, subnqn};
use crate::{ConnId, IoStep};

fn abort(bench: &mut Bench, association: &Association, sqid: u16, cid: u16) -> u16 {
    let own = bench.new_cid();
    let command = AdminCommand::Abort(Abort { sqid, cid });
    let sqe = command.encode(own, Sgl::EMPTY);
    if let Some((cqe, _)) = bench.send_admin(association.conn, &sqe) {
        bench.completions.push((association.conn, cqe));
    }
    own
}

fn completion(bench: &mut Bench, conn: ConnId, cid: u16) -> capstan_nvme_proto::cqe::Cqe {
    let at = bench
        .completions
        .iter()
        .position(|(other, cqe)| *other == conn && cqe.cid.get() == cid)
        .unwrap();
    bench.completions.remove(at).1
}

#[test]
fn an_abort_says_what_became_of_the_command() {
    for really in [true, false] {
        let mut bench = Bench::new();
        let association = bench.ready();
        let io = bench.io_queue(&association, 3).unwrap();
        let queue = bench.queues.get_mut(&io).unwrap();
        let IoStep::Execute(command) =
            queue.handle_capsule(&Sqe::new(IoOpcode::FLUSH.0, 77, 1), &[])
        else {
            panic!("a flush");
        };
        let own = abort(&mut bench, &association, 3, 77);
        assert!(bench.completions.is_empty(), "the answer waits");
        let (conn, cid, name) = bench.aborts.pop().unwrap();
        assert_eq!((conn, cid), (io, 77));

        let queue = bench.queues.get_mut(&io).unwrap();
        assert!(queue.is_outstanding(77));
        if really {
            let cqe = queue.complete(command.permit, Status::ABORT_REQUESTED, 0);
            assert_eq!(cqe.status(), Status::ABORT_REQUESTED.more());
        }
        bench.target.handle_abort_result(name, really, 0);
        bench.target.handle_abort_result(name, really, 0);
        bench.poll();
        let cqe = completion(&mut bench, association.conn, own);
        assert!(cqe.status().is_success());
        assert_eq!(Abort::was_aborted(cqe.dw0.get()), really);
        assert!(bench.completions.is_empty());
    }
}

#[test]
fn an_abort_of_a_queue_that_is_gone_is_answered_no() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let io = bench.io_queue(&association, 1).unwrap();
    let own = abort(&mut bench, &association, 1, 5);
    bench.disconnect(io);
    let cqe = completion(&mut bench, association.conn, own);
    assert!(!Abort::was_aborted(cqe.dw0.get()));

    let own = abort(&mut bench, &association, 1, 5);
    let cqe = completion(&mut bench, association.conn, own);
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
}

#[test]
fn aborts_at_once_are_limited() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let _io = bench.io_queue(&association, 1).unwrap();
    for cid in 0..4 {
        abort(&mut bench, &association, 1, cid);
    }
    let own = abort(&mut bench, &association, 1, 4);
    let cqe = completion(&mut bench, association.conn, own);
    assert_eq!(cqe.status().code(), Status::ABORT_COMMAND_LIMIT_EXCEEDED);
    assert!(!cqe.status().is_dnr());
    bench.disconnect(association.conn);
    bench.close();
    bench.target.assert_empty();
}

#[test]
fn a_waiting_event_request_can_be_aborted() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let request = AdminCommand::AsynchronousEventRequest.encode(500, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &request).is_none());
    let own = abort(&mut bench, &association, 0, 500);
    assert!(Abort::was_aborted(
        completion(&mut bench, association.conn, own).dw0.get()
    ));
    let aborted = completion(&mut bench, association.conn, 500);
    assert_eq!(aborted.status(), Status::ABORT_REQUESTED);
    let own = abort(&mut bench, &association, 0, 500);
    assert!(!Abort::was_aborted(
        completion(&mut bench, association.conn, own).dw0.get()
    ));
}

#[test]
fn a_fifth_event_request_exceeds_the_limit() {
    let mut bench = Bench::new();
    let association = bench.ready();
    for cid in 0..4 {
        let request = AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY);
        assert!(bench.send_admin(association.conn, &request).is_none());
    }
    let (cqe, _) = bench.admin(&association, &AdminCommand::AsynchronousEventRequest);
    let limit = Status::ASYNCHRONOUS_EVENT_REQUEST_LIMIT_EXCEEDED.dnr();
    assert_eq!(cqe.status(), limit.more());

    let added = namespace_config(2);
    bench.target.add_namespace(&subnqn(), added).unwrap();
    bench.poll();
    let cqe = completion(&mut bench, association.conn, 0);
    assert_eq!(
        AsyncEvent::decode(cqe.dw0.get()),
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED
    );
    assert!(bench.completions.is_empty());
}

#[test]
fn an_event_from_before_the_request_is_not_lost() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let added = namespace_config(2);
    bench.target.add_namespace(&subnqn(), added).unwrap();
    bench.poll();
    let request = AdminCommand::AsynchronousEventRequest.encode(9, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &request).is_none());
    assert!(
        completion(&mut bench, association.conn, 9)
            .status()
            .is_success()
    );
}
