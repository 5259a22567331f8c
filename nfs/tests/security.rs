//! SECINFO and SECINFO_NO_NAME, from the bytes of calls to those of replies.

mod support;

use std::net::SocketAddr;

use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::List;
use capstan_nfs_proto::mount::MOUNT_PROGRAM;
use capstan_nfs_proto::v4::NFS_V4;
use capstan_nfs_proto::v4::args::SecinfoStyle;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::Flavor;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::Component;

use capstan_nfs::service::Service;
use capstan_rpc_server::{Arguments, Call, ConnectionNumber, Outcome, Program, Results, Wire};
use capstan_rpcrdma::rpc::{Accepted, AuthStat, Denied, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};

use support::rpc::call_bytes;
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

/// What a client of no network is answered.
fn refused(
    service: &Service,
    peer: SocketAddr,
    procedure: (u32, u32, u32),
) -> Result<Accepted, Denied> {
    let (message, _reduced) = call_bytes(1, procedure, (0, 0), |_arguments| {});
    let call = Call {
        connection: ConnectionNumber(1),
        wire: Wire::Tcp,
        peer,
        message: &message,
        reader: Reader::new(&message),
        arguments: Arguments(&[]),
        results: Results(&[]),
    };
    let mut buffer = [0; 256];
    let mut writer = Writer::new(&mut buffer);
    assert_eq!(service.refused(&call, &mut writer), Outcome::Reply);
    Reply::read(&mut Reader::new(writer.written()))
        .unwrap()
        .outcome
}

#[test]
fn root_a_client_of_no_network_finds_the_programs_and_is_denied_the_rest() {
    let served = Served::new();
    let service = &served.service;
    let peer = "10.10.0.2:700".parse().unwrap();
    let why = service.admits(peer).unwrap_err();
    assert_eq!(
        why,
        "no network of any export has 10.10.0.2; add one that does to `clients` of an [[export]], and reload"
    );
    for (program, version) in [(NFS_PROGRAM, NFS_V4), (NFS_PROGRAM, 3), (MOUNT_PROGRAM, 3)] {
        let found = refused(service, peer, (program, version, 0));
        assert_eq!(found, Ok(Accepted::Success));
        let denied = refused(service, peer, (program, version, 1));
        assert_eq!(denied, Err(Denied::Auth(AuthStat::BADCRED)));
    }
    let other = refused(service, peer, (100_021, 4, 0));
    assert_eq!(other, Err(Denied::Auth(AuthStat::BADCRED)));
    assert_eq!(service.admits("192.0.2.1:700".parse().unwrap()), Ok(()));
}
