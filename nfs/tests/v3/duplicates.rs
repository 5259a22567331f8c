//! Calls that come again.

use std::fs;

use capstan_nfs_proto::codec::{DataItem, Opaque};
use capstan_nfs_proto::v3::args::{self, CreateHow};
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::types::StableHow;

use crate::client::{Client, UNSET, place, with_mode};
use crate::support::{Served, put};

#[test]
fn root_what_was_done_is_answered_as_before_and_not_done_again() {
    let served = Served::new();
    fs::create_dir(served.path().join("old")).unwrap();
    for name in ["from", "removed"] {
        put(&served.path().join(name), b"data", 0, 0o644);
    }
    let mut client = Client::new(&served);
    let root = client.root();
    let mode = with_mode(0o755);
    let file = client.named("from");
    let procedures = [
        Procedure::Create(args::Create {
            place: place(&root, "created"),
            how: CreateHow::Guarded(mode),
        }),
        Procedure::MkDir(args::MkDir {
            place: place(&root, "made"),
            attributes: mode,
        }),
        Procedure::SymLink(args::SymLink {
            place: place(&root, "linked"),
            symlink_attributes: UNSET,
            symlink_data: DataItem::Inline(b"text"),
        }),
        Procedure::MkNod(args::MkNod {
            place: place(&root, "fifo"),
            what: args::MkNodData::Fifo(mode),
        }),
        Procedure::Link(args::Link {
            file: Opaque(&file),
            link: place(&root, "second"),
        }),
        Procedure::Rename(args::Rename {
            from_place: place(&root, "from"),
            to_place: place(&root, "to"),
        }),
        Procedure::Remove(place(&root, "removed")),
        Procedure::RmDir(place(&root, "old")),
    ];
    let first_connection = client.connection;
    for procedure in &procedures {
        let message = client.procedure_bytes(procedure);
        let first = client.send(&message);
        assert_eq!(
            first.bytes.get(..4),
            Some(&[0; 4][..]),
            "NFS3_OK of {procedure:?}"
        );
        assert_eq!(client.send(&message), first, "{procedure:?}");
        // As a client that has connected anew, from another port.
        client.connection = first_connection + 1;
        client.peer.set_port(999);
        assert_eq!(client.send(&message), first, "{procedure:?}");
        // What another client sends is not taken for it, nor what this one asks for anew.
        client.peer.set_ip("192.0.2.2".parse().unwrap());
        assert_ne!(client.send(&message), first, "{procedure:?}");
        client.peer.set_ip("192.0.2.1".parse().unwrap());
        assert_ne!(client.call(procedure), first, "{procedure:?}");
        let status = |answer: &crate::support::rpc::Answer| answer.bytes[..4].to_vec();
        assert_ne!(
            status(&client.call(procedure)),
            status(&first),
            "{procedure:?}"
        );
    }
}

#[test]
fn root_a_repeated_write_does_not_undo_a_later_one() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let first = client.procedure_bytes(&Procedure::Write(args::Write {
        file: Opaque(&file),
        offset: 0,
        count: 5,
        stable: StableHow::Unstable,
        data: DataItem::Inline(b"first"),
    }));
    let answer = client.send(&first);
    client
        .write(&file, 0, b"later", StableHow::Unstable)
        .unwrap();
    assert_eq!(client.send(&first), answer);
    assert_eq!(fs::read(&path).unwrap(), b"later");
    // Nor is a SETATTR done again.
    let cut = client.procedure_bytes(&Procedure::SetAttr(args::SetAttr {
        object: Opaque(&file),
        new_attributes: capstan_nfs_proto::v3::types::SetAttributes {
            size: Some(0),
            ..UNSET
        },
        guard: None,
    }));
    let answer = client.send(&cut);
    client
        .write(&file, 0, b"again", StableHow::Unstable)
        .unwrap();
    assert_eq!(client.send(&cut), answer);
    assert_eq!(fs::read(&path).unwrap(), b"again");
}

#[test]
fn root_the_same_xid_with_another_call_is_another_call() {
    let served = Served::new();
    for name in ["a", "b"] {
        put(&served.path().join(name), b"", 0, 0o644);
    }
    let mut client = Client::new(&served);
    let root = client.root();
    let remove = |client: &mut Client, name| {
        client.xid = 77;
        client.procedure_bytes(&Procedure::Remove(place(&root, name)))
    };
    let (first, second) = (remove(&mut client, "a"), remove(&mut client, "b"));
    assert_eq!(first[..4], second[..4]);
    client.send(&first);
    client.send(&second);
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), 0);
}

#[test]
fn root_what_changes_nothing_is_done_each_time() {
    let served = Served::new();
    let path = served.path().join("f");
    put(&path, b"data", 0, 0o644);
    let mut client = Client::new(&served);
    let file = client.named("f");
    let read = client.procedure_bytes(&Procedure::Read(args::Read {
        file: Opaque(&file),
        offset: 0,
        count: 4,
    }));
    let before = client.send(&read);
    put(&path, b"else", 0, 0o644);
    assert_ne!(client.send(&read), before);
}
