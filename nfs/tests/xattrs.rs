//! Extended attributes, from the bytes of calls to those of replies.

mod support;

use std::os::unix::fs::symlink;

use capstan_exports::clients::{Access, Squash};
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args::{ListXattrs, SetXattr, SetXattrOption, XattrName};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;

use support::attributes::tells_changes_apart;
use support::{Client, Served, path_ops, put, rules};

fn on<'a>(names: &[&'static str], op: Op<'a>) -> Vec<Op<'a>> {
    path_ops(names).into_iter().chain([op]).collect()
}

const fn set<'a>(name: &'a [u8], value: &'a [u8], option: SetXattrOption) -> Op<'a> {
    Op::SetXattr(SetXattr {
        option,
        key: XattrName(name),
        value: Opaque(value),
    })
}

fn value(client: &mut Client, name: &[u8]) -> Vec<u8> {
    let get = Op::GetXattr(XattrName(name));
    client.run(&on(&["f"], get), |results| match results.last() {
        Some(OpResult::GetXattr(value)) => value.0.to_vec(),
        other => panic!("{other:?}"),
    })
}

/// The names behind a cookie, with the next cookie, and whether they are the last.
fn names(client: &mut Client, cookie: u64, maxcount: u32) -> (Vec<String>, u64, bool) {
    let list = Op::ListXattrs(ListXattrs { cookie, maxcount });
    client.run(&on(&["f"], list), |results| match results.last() {
        Some(OpResult::ListXattrs(ok)) => {
            let names = ok.names.iter();
            let names = names.map(|name| name.0.escape_ascii().to_string());
            (names.collect(), ok.cookie, ok.eof)
        }
        other => panic!("{other:?}"),
    })
}

#[test]
fn root_attributes_of_users_are_set_read_listed_and_removed() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let either = SetXattrOption::Either;
    let before = client.run(
        &on(&["f"], set(b"a", b"one", either)),
        |results| match results.last() {
            Some(OpResult::SetXattr(changed)) => {
                assert!(!changed.atomic);
                assert!(changed.after > changed.before || !tells_changes_apart());
                changed.after
            }
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(value(&mut client, b"a"), b"one");
    let replace = set(b"a", b"", SetXattrOption::Replace);
    assert_eq!(client.status(&on(&["f"], replace)), Status::OK);
    assert_eq!(value(&mut client, b"a"), b"");
    let large = vec![7; 60_000];
    let create = set(b"b", &large, SetXattrOption::Create);
    assert_eq!(client.status(&on(&["f"], create)), Status::OK);
    assert_eq!(value(&mut client, b"b"), large);
    let (mut all, cookie, eof) = names(&mut client, 0, 4096);
    all.sort();
    assert_eq!((all, cookie, eof), (vec!["a".into(), "b".into()], 2, true));

    let remove = Op::RemoveXattr(XattrName(b"a"));
    client.run(&on(&["f"], remove), |results| match results.last() {
        Some(OpResult::RemoveXattr(changed)) => {
            assert!(changed.after > before || !tells_changes_apart());
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(names(&mut client, 0, 4096).0, ["b"]);
}

#[test]
fn root_names_come_a_part_at_a_time() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    let given: Vec<String> = (0..20).map(|number| format!("name-{number:02}")).collect();
    for name in &given {
        let set = set(name.as_bytes(), b"", SetXattrOption::Create);
        assert_eq!(client.status(&on(&["f"], set)), Status::OK);
    }
    // Cookie, count and end take 16 bytes, and each name 4 and 8.
    let maxcount = 16 + 3 * 12 + 11;
    let (mut found, mut cookie) = (Vec::new(), 0);
    loop {
        let (some, next, eof) = names(&mut client, cookie, maxcount);
        assert!(some.len() == 3 || eof, "{some:?}");
        found.extend(some);
        cookie = next;
        if eof {
            break;
        }
    }
    found.sort();
    assert_eq!(found, given);
    assert_eq!(names(&mut client, 20, maxcount), (Vec::new(), 20, true));
    let list = |cookie, maxcount| on(&["f"], Op::ListXattrs(ListXattrs { cookie, maxcount }));
    assert_eq!(client.status(&list(21, maxcount)), Status::BAD_COOKIE);
    assert_eq!(client.status(&list(u64::MAX, maxcount)), Status::BAD_COOKIE);
    assert_eq!(client.status(&list(0, 15)), Status::TOOSMALL);
    assert_eq!(client.status(&list(0, 16 + 11)), Status::TOOSMALL);
}

#[test]
fn root_what_is_no_attribute_is_told_apart() {
    let served = Served::new();
    put(&served.path().join("f"), b"", 1000, 0o644);
    symlink("f", served.path().join("l")).unwrap();
    let mut client = served.client("one");
    let get = |name| Op::GetXattr(XattrName(name));
    let either = SetXattrOption::Either;
    for (op, expected) in [
        (get(b"a"), Status::NOXATTR),
        (get(b""), Status::INVAL),
        (get(&[b'a'; 251]), Status::NAMETOOLONG),
        (get(b"a\0"), Status::BADCHAR),
        (Op::RemoveXattr(XattrName(b"a")), Status::NOXATTR),
        (set(b"a", b"", SetXattrOption::Replace), Status::NOXATTR),
        (set(b"a", &[0; 65_537], either), Status::XATTR2BIG),
        (set(b"a", b"", SetXattrOption::Create), Status::OK),
        (set(b"a", b"", SetXattrOption::Create), Status::EXIST),
    ] {
        assert_eq!(client.status(&on(&["f"], op)), expected, "{op:?}");
    }
    assert_eq!(
        client.status(&on(&["l"], set(b"a", b"", either))),
        Status::PERM
    );
    let of_pseudo = [Op::PutRootFh, get(b"a")];
    assert_eq!(client.status(&of_pseudo), Status::NOTSUPP);
    assert_eq!(client.status(&[get(b"a")]), Status::NOFILEHANDLE);

    (client.uid, client.gid) = (1001, 1001);
    assert_eq!(client.status(&on(&["f"], get(b"a"))), Status::OK);
    let refused = on(&["f"], set(b"b", b"", either));
    assert_eq!(client.status(&refused), Status::ACCESS);
    let refused = on(&["f"], Op::RemoveXattr(XattrName(b"a")));
    assert_eq!(client.status(&refused), Status::ACCESS);
}

#[test]
fn root_a_client_that_only_reads_sets_no_attribute() {
    let served = Served::with(|settings| {
        settings.clients = rules(Access::ReadOnly, Squash::None);
    });
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = served.client("one");
    for op in [
        set(b"a", b"", SetXattrOption::Either),
        Op::RemoveXattr(XattrName(b"a")),
    ] {
        assert_eq!(client.status(&on(&["f"], op)), Status::ROFS);
    }
    assert_eq!(names(&mut client, 0, 4096), (Vec::new(), 0, true));
}
