//! MOUNT, and what is answered to other programs and versions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use capstan_exports::clients::{Access, ClientRule, ClientRules, Squash};
use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::mount::{Exports, MOUNT_PROGRAM, MountCall, MountList, MountStatus};
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::results::Void;
use capstan_nfs_proto::v3::status::Status;
use capstan_rpc_server::Wire;
use capstan_rpcrdma::rpc::Accepted;

use crate::client::Client;
use crate::support::{Served, put, rules};

#[test]
fn root_exports_and_directories_below_them_are_mounted() {
    let served = Served::new();
    fs::create_dir_all(served.path().join("d/e")).unwrap();
    put(&served.path().join("f"), b"data", 0, 0o644);
    symlink("d", served.path().join("link")).unwrap();
    let mut client = Client::new(&served);
    let root = client.mount("/exported").unwrap();
    assert_eq!(client.mount("//exported/"), Ok(root.clone()));
    let below = client.mount("/exported/d/e").unwrap();
    let d = client.look_up(&root, "d").unwrap();
    assert_eq!(client.look_up(&d, "e"), Ok(below));
    for (path, status) in [
        ("/", MountStatus::NOENT),
        ("/exporte", MountStatus::NOENT),
        ("/exported2", MountStatus::NOENT),
        ("/exported/none", MountStatus::NOENT),
        ("/exported/f", MountStatus::NOTDIR),
        ("/exported/f/g", MountStatus::NOTDIR),
        ("/exported/link", MountStatus::NOTDIR),
        ("/exported/link/e", MountStatus::NOTDIR),
        ("/exported/d/..", MountStatus::ACCES),
        ("/exported/..", MountStatus::ACCES),
        ("exported", MountStatus::INVAL),
        ("", MountStatus::INVAL),
    ] {
        assert_eq!(client.mount(path), Err(status), "{path}");
    }
    let long = format!("/exported/{}", "n".repeat(256));
    assert_eq!(client.mount(&long), Err(MountStatus::NAMETOOLONG));

    // The names lead where the user may go.
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(served.path().join("d"), closed).unwrap();
    let mut user = Client::user(&served, 1000);
    assert_eq!(user.mount("/exported/d/e"), Err(MountStatus::ACCES));
    assert!(user.mount("/exported/d").is_ok());
}

#[test]
fn root_strangers_mount_nothing_and_learn_nothing() {
    let served = Served::new();
    put(&served.path().join("f"), b"data", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    client.peer = "198.51.100.1:700".parse().unwrap();
    assert_eq!(client.mount("/exported"), Err(MountStatus::ACCES));
    assert_eq!(client.mount("/exported/none"), Err(MountStatus::ACCES));
    let answer = client.mount_call(&MountCall::Export);
    assert_eq!(answer.decode::<Exports<'_>>().iter().count(), 0);
    assert_eq!(client.attributes(&file), Err(Status::ACCES));
    assert_eq!(client.read(&file, 0, 10), Err(Status::ACCES));
    fs::remove_file(served.path().join("f")).unwrap();
    assert_eq!(client.attributes(&file), Err(Status::ACCES));
}

#[test]
fn root_ports_that_are_not_privileged_are_refused_where_they_have_to_be() {
    let secure = ClientRule {
        secure_ports: true,
        ..rules(Access::ReadWrite, Squash::None).rules()[0]
    };
    let served = Served::with(|settings| {
        settings.clients = ClientRules::new(vec![secure]).unwrap();
    });
    let mut client = Client::new(&served);
    let root = client.mount("/exported").unwrap();
    client.peer.set_port(1024);
    assert_eq!(client.mount("/exported"), Err(MountStatus::PERM));
    assert_eq!(client.attributes(&root), Err(Status::PERM));
}

#[test]
fn root_exports_are_listed_with_the_networks_that_may_mount_them() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let answer = client.mount_call(&MountCall::Export);
    let exports = answer.decode::<Exports<'_>>();
    let listed: Vec<_> = exports
        .iter()
        .map(|export| (export.dir, export.groups.iter().collect::<Vec<_>>()))
        .collect();
    let expected = (
        Opaque(&b"/exported"[..]),
        vec![Opaque(&b"192.0.2.0/24"[..])],
    );
    assert_eq!(listed, [expected]);

    client.root();
    let answer = client.mount_call(&MountCall::Dump);
    assert_eq!(answer.decode::<MountList<'_>>().iter().count(), 0);
    for nothing in [
        MountCall::Null,
        MountCall::Umnt(Opaque(b"/exported")),
        MountCall::UmntAll,
    ] {
        assert_eq!(client.mount_call(&nothing).decode::<Void>(), Void);
    }
}

#[test]
fn root_other_versions_and_procedures_are_told_which_there_are() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let accepted = |client: &mut Client, program, version, procedure| {
        let (message, _) = client.bytes((program, version, procedure), &|_| {});
        client.send(&message).accepted
    };
    let mismatch = |low, high| Accepted::ProgramMismatch { low, high };
    let mut of_client =
        |program, version, procedure| accepted(&mut client, program, version, procedure);
    assert_eq!(of_client(NFS_PROGRAM, 2, 0), mismatch(3, 4));
    assert_eq!(of_client(NFS_PROGRAM, 3, 0), Accepted::Success);
    assert_eq!(
        of_client(NFS_PROGRAM, 3, 22),
        Accepted::ProcedureUnavailable
    );
    assert_eq!(of_client(NFS_PROGRAM, 3, 1), Accepted::GarbageArguments);
    assert_eq!(of_client(MOUNT_PROGRAM, 1, 1), mismatch(3, 3));
    assert_eq!(of_client(MOUNT_PROGRAM, 4, 1), mismatch(3, 3));
    assert_eq!(
        of_client(MOUNT_PROGRAM, 3, 6),
        Accepted::ProcedureUnavailable
    );
    assert_eq!(of_client(MOUNT_PROGRAM, 3, 1), Accepted::GarbageArguments);
    assert_eq!(
        of_client(100_021, 4, 0),
        Accepted::ProgramUnavailable,
        "NLM"
    );

    // MOUNT is over TCP.
    client.wire = Wire::Rdma;
    let (message, _) = client.bytes((MOUNT_PROGRAM, 3, 0), &|_| {});
    assert_eq!(client.send(&message).accepted, Accepted::ProgramUnavailable);
    assert_eq!(client.call(&Procedure::Null).decode::<Void>(), Void);
}
