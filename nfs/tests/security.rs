//! SECINFO and SECINFO_NO_NAME, from the bytes of calls to those of replies.

mod support;

use capstan_nfs_proto::codec::List;
use capstan_nfs_proto::v4::args::SecinfoStyle;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::Flavor;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::Component;

use support::{Served, path_ops, put};

/// AUTH_SYS and AUTH_NONE.
const TAKEN: &[Flavor<'static>] = &[Flavor::Other(1), Flavor::Other(0)];

#[test]
fn root_the_flavors_of_an_export_are_those_that_it_takes() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let export = Op::SecInfo(Component(b"exported"));
    for ops in [
        vec![Op::PutRootFh, export],
        [path_ops(&[]), vec![Op::SecInfo(Component(b"f"))]].concat(),
    ] {
        client.run(&ops, |results| {
            assert_eq!(results.last(), Some(&OpResult::SecInfo(List::of(TAKEN))));
        });
    }
    for ops in [
        [
            path_ops(&["f"]),
            vec![Op::SecInfoNoName(SecinfoStyle::CurrentFh)],
        ]
        .concat(),
        [path_ops(&[]), vec![Op::SecInfoNoName(SecinfoStyle::Parent)]].concat(),
    ] {
        client.run(&ops, |results| {
            let flavors = OpResult::SecInfoNoName(List::of(TAKEN));
            assert_eq!(results.last(), Some(&flavors));
        });
        // Whatever follows finds no filehandle.
        let ops = [ops, vec![Op::GetFh]].concat();
        assert_eq!(client.status(&ops), Status::NOFILEHANDLE);
    }
    let consumed = [Op::PutRootFh, export, Op::GetFh];
    assert_eq!(client.status(&consumed), Status::NOFILEHANDLE);
}

#[test]
fn root_what_is_not_there_has_no_flavor() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let named = |name| Op::SecInfo(Component(name));
    let style = |style| Op::SecInfoNoName(style);
    for (ops, expected) in [
        (vec![named(b"exported")], Status::NOFILEHANDLE),
        (vec![style(SecinfoStyle::CurrentFh)], Status::NOFILEHANDLE),
        (vec![Op::PutRootFh, named(b"missing")], Status::NOENT),
        (
            [path_ops(&[]), vec![named(b"missing")]].concat(),
            Status::NOENT,
        ),
        ([path_ops(&[]), vec![named(b"")]].concat(), Status::INVAL),
        (
            [path_ops(&["f"]), vec![named(b"x")]].concat(),
            Status::NOTDIR,
        ),
        (
            [path_ops(&["f"]), vec![style(SecinfoStyle::Parent)]].concat(),
            Status::NOTDIR,
        ),
        (
            vec![Op::PutRootFh, style(SecinfoStyle::Parent)],
            Status::NOENT,
        ),
    ] {
        assert_eq!(client.status(&ops), expected, "{ops:?}");
    }
    client.peer = "198.51.100.1:700".parse().unwrap();
    let refused = [Op::PutRootFh, named(b"exported")];
    assert_eq!(client.status(&refused), Status::ACCESS, "a stranger");
}
