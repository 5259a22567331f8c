//! READDIR, from the bytes of calls to those of replies.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use capstan_exports::ExportSettings;
use capstan_exports::clients::{Access, ClientRule, ClientRules, Squash};
use capstan_nfs_proto::v4::args::ReadDir;
use capstan_nfs_proto::v4::attr::{AttrNumber, Attributes};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{FileType, Verifier};

use support::attributes::{readable, set_of};
use support::{Client, Served, path_ops, put, rules};

/// A page of a directory, as far as it is looked at.
#[derive(Debug)]
struct Page {
    names: Vec<String>,
    last: (u64, Verifier),
    eof: bool,
    bytes: u64,
}

const fn ask(cookie: (u64, Verifier), maxcount: u32, attr_request: Bitmap) -> ReadDir {
    ReadDir {
        cookie: cookie.0,
        cookieverf: cookie.1,
        dircount: 0,
        maxcount,
        attr_request,
    }
}

const START: (u64, Verifier) = (0, Verifier([0; 8]));

/// Reads entries, each of which is looked at.
#[track_caller]
fn read(
    client: &mut Client,
    ops: &[Op<'_>],
    arguments: ReadDir,
    mut look: impl FnMut(&str, &Bitmap, &Attributes<'_>),
) -> Page {
    let ops: Vec<_> = ops
        .iter()
        .copied()
        .chain([Op::ReadDir(arguments)])
        .collect();
    client.run(&ops, |results| match results.last() {
        Some(OpResult::ReadDir(ok)) => {
            let mut page = Page {
                names: Vec::new(),
                last: (arguments.cookie, ok.cookieverf),
                eof: ok.eof,
                // The verifier, that no entry follows, and whether it is the end.
                bytes: 8 + 4 + 4,
            };
            for entry in ok.entries.iter() {
                let name = entry.name.0.escape_ascii().to_string();
                let attributes = Attributes::decode_values(&entry.attrs).unwrap();
                look(&name, &entry.attrs.mask, &attributes);
                let words = entry.attrs.mask.words();
                let used = words.iter().rposition(|word| *word != 0);
                let mask = 4 + 4 * used.map_or(0, |last| last + 1);
                let values = 4 + entry.attrs.values.0.len();
                let own = 4 + 8 + 4 + entry.name.0.len().next_multiple_of(4);
                page.bytes += u64::try_from(own + mask + values).unwrap();
                page.last.0 = entry.cookie;
                page.names.push(name);
            }
            page
        }
        other => panic!("{other:?}"),
    })
}

/// All names, in parts of `maxcount` bytes, and how many parts there were.
fn read_all(client: &mut Client, ops: &[Op<'_>], maxcount: u32) -> (Vec<String>, usize) {
    let (mut names, mut from, mut parts) = (Vec::new(), START, 0);
    loop {
        let page = read(
            client,
            ops,
            ask(from, maxcount, Bitmap::EMPTY),
            |_, _, _| {},
        );
        assert!(page.bytes <= maxcount.into(), "{page:?}");
        names.extend(page.names);
        parts += 1;
        if page.eof {
            return (names, parts);
        }
        from = page.last;
    }
}

fn on(names: &[&'static str], arguments: ReadDir) -> Vec<Op<'static>> {
    path_ops(names)
        .into_iter()
        .chain([Op::ReadDir(arguments)])
        .collect()
}

#[test]
fn root_entries_have_the_attributes_of_their_files() {
    let served = Served::new();
    let path = |name: &str| served.path().join(name);
    put(&path("f"), b"data", 1000, 0o640);
    fs::create_dir(path("d")).unwrap();
    symlink("f", path("l")).unwrap();
    let mut client = served.client("one");
    let mut of_getattr = BTreeMap::new();
    for name in ["f", "d", "l"] {
        client.attributes(&path_ops(&[name]), readable(), |mask, all| {
            let handle = all.filehandle.unwrap().0.to_vec();
            of_getattr.insert(name.to_owned(), (*mask, handle, format!("{all:?}")));
        });
    }
    let mut found = BTreeMap::new();
    let whole = ask(START, 1 << 16, readable());
    let page = read(&mut client, &path_ops(&[]), whole, |name, mask, all| {
        let handle = all.filehandle.unwrap().0.to_vec();
        found.insert(name.to_owned(), (*mask, handle, format!("{all:?}")));
    });
    assert!(page.eof);
    assert_eq!(found, of_getattr);
}

#[test]
fn root_ten_thousand_entries_come_once_each_while_others_come_and_go() {
    let served = Served::new();
    let directory = served.path().join("d");
    fs::create_dir(&directory).unwrap();
    let name = |number: u32| format!("stays-{number:05}");
    for number in 0..10_000 {
        fs::write(directory.join(name(number)), b"").unwrap();
        if number % 10 == 0 {
            fs::write(directory.join(format!("goes-{number:05}")), b"").unwrap();
        }
    }
    let mut client = served.client("one");
    let requested = set_of(&[
        AttrNumber::FILEID,
        AttrNumber::TYPE,
        AttrNumber::RDATTR_ERROR,
    ]);
    let (mut found, mut from, mut part) = (BTreeMap::new(), START, 0_u32);
    loop {
        let arguments = ask(from, 16 << 10, requested);
        let page = read(&mut client, &path_ops(&["d"]), arguments, |name, _, all| {
            assert_eq!(all.rdattr_error, Some(Status::OK), "{name}");
            *found.entry(name.to_owned()).or_insert(0_u32) += 1;
        });
        assert!(
            page.bytes <= 16 << 10 && !page.names.is_empty() | page.eof,
            "{page:?}"
        );
        // Behind and in front of what was read.
        for number in part * 100..(part + 1) * 100 {
            let _gone = fs::remove_file(directory.join(format!("goes-{number:05}")));
            fs::write(directory.join(format!("comes-{number:05}")), b"").unwrap();
        }
        part += 1;
        if page.eof {
            break;
        }
        from = page.last;
    }
    assert!(part > 20, "{part} parts");
    for number in 0..10_000 {
        assert_eq!(found.get(&name(number)), Some(&1), "{number}");
    }
    assert!(found.values().all(|times| *times == 1));
}

#[test]
fn root_parts_fit_in_what_the_client_has() {
    let served = Served::new();
    let names: Vec<String> = (1..100).map(|length| "n".repeat(length)).collect();
    for name in &names {
        put(&served.path().join(name), b"", 0, 0o644);
    }
    let mut client = served.client("one");
    for maxcount in [256, 1000, 1 << 20] {
        let (mut found, parts) = read_all(&mut client, &path_ops(&[]), maxcount);
        found.sort();
        assert_eq!(found, names);
        assert_eq!(parts == 1, maxcount == 1 << 20);
    }
    // An entry without attributes and a name of up to 4 bytes takes 28, and what is around 16.
    fs::create_dir(served.path().join("d")).unwrap();
    let small = |maxcount| on(&["d"], ask(START, maxcount, Bitmap::EMPTY));
    assert_eq!(client.status(&small(15)), Status::TOOSMALL);
    assert_eq!(client.status(&small(16)), Status::OK, "an empty directory");
    put(&served.path().join("d/f"), b"", 0, 0o644);
    assert_eq!(client.status(&small(43)), Status::TOOSMALL);
    assert_eq!(client.status(&small(44)), Status::OK);
    let with_all = on(&["d"], ask(START, 200, readable()));
    assert_eq!(client.status(&with_all), Status::TOOSMALL);

    // Names and cookies of 16 bytes: a hint, of which one entry is let through.
    for (dircount, expected) in [(1, 1), (16, 1), (32, 2), (100, 5)] {
        let directory = served.path().join("e");
        let _there = fs::create_dir(&directory);
        for number in 0..5 {
            fs::write(directory.join(number.to_string()), b"").unwrap();
        }
        let arguments = ReadDir {
            dircount,
            ..ask(START, 4096, Bitmap::EMPTY)
        };
        let page = read(&mut client, &path_ops(&["e"]), arguments, |_, _, _| {});
        assert_eq!((page.names.len(), page.eof), (expected, expected == 5));
    }
}

#[test]
fn root_cookies_are_those_of_the_directory() {
    let served = Served::new();
    for name in ["d", "e"] {
        fs::create_dir(served.path().join(name)).unwrap();
        for number in 0..5 {
            put(
                &served.path().join(format!("{name}/{number}")),
                b"",
                0,
                0o644,
            );
        }
    }
    let mut client = served.client("one");
    let first = ask(START, 50, Bitmap::EMPTY);
    let page = read(&mut client, &path_ops(&["d"]), first, |_, _, _| {});
    let (cookie, verifier) = page.last;
    let go_on = |names, cookie| on(names, ask(cookie, 1000, Bitmap::EMPTY));
    assert_eq!(
        client.status(&go_on(&["d"], (cookie, verifier))),
        Status::OK
    );
    for (name, cookie) in [
        (&["e"], (cookie, verifier)),
        (&["d"], (cookie, Verifier([7; 8]))),
        (&["d"], (0, verifier)),
        (&["d"], (1, verifier)),
        (&["d"], (2, verifier)),
        (&["d"], (u64::MAX, verifier)),
    ] {
        let status = client.status(&go_on(name, cookie));
        assert_eq!(status, Status::BAD_COOKIE, "{name:?} {cookie:?}");
    }
    for (names, expected) in [(&["d", "1"][..], Status::NOTDIR), (&[], Status::OK)] {
        assert_eq!(client.status(&go_on(names, START)), expected);
    }
    let write_only = on(&["d"], ask(START, 1000, set_of(&[AttrNumber::MODE_UMASK])));
    assert_eq!(client.status(&write_only), Status::INVAL);
    let nowhere = Op::ReadDir(ask(START, 1000, Bitmap::EMPTY));
    assert_eq!(client.status(&[nowhere]), Status::NOFILEHANDLE);
}

#[test]
fn root_who_may_not_look_at_files_sees_names_and_why() {
    let served = Served::new();
    let directory = served.path().join("d");
    fs::create_dir(&directory).unwrap();
    put(&directory.join("f"), b"", 0, 0o644);
    let file_id = directory.join("f").metadata().unwrap().ino();
    let mut client = served.client("one");
    (client.uid, client.gid) = (1000, 1000);
    let set_mode = |mode| {
        fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).unwrap();
    };
    set_mode(0o711);
    let all = on(&["d"], ask(START, 4096, readable()));
    assert_eq!(client.status(&all), Status::ACCESS);

    set_mode(0o744);
    let mut looked = 0;
    let whole = ask(START, 4096, readable());
    let page = read(&mut client, &path_ops(&["d"]), whole, |name, mask, all| {
        assert_eq!(name, "f");
        let told = [AttrNumber::RDATTR_ERROR, AttrNumber::MOUNTED_ON_FILEID];
        assert_eq!(*mask, set_of(&told));
        assert_eq!(all.rdattr_error, Some(Status::ACCESS));
        assert_eq!(all.mounted_on_fileid, Some(file_id));
        looked += 1;
    });
    assert!(page.eof && looked == 1);
    // Without a place for the reason there is no result.
    let mut requested = readable();
    requested.remove(AttrNumber::RDATTR_ERROR.0);
    let without = on(&["d"], ask(START, 4096, requested));
    assert_eq!(client.status(&without), Status::ACCESS);
    // Names alone need no look.
    let names = ask(START, 4096, set_of(&[AttrNumber::MOUNTED_ON_FILEID]));
    let page = read(&mut client, &path_ops(&["d"]), names, |_, _, all| {
        assert_eq!(all.mounted_on_fileid, Some(file_id));
    });
    assert_eq!(page.names, ["f"]);
}

/// Names and types below the root of the pseudo file system, and what is mounted there.
#[test]
fn root_the_way_to_exports_shows_those_that_the_client_may_use() {
    let served = Served::new();
    let path = served.path();
    let more = |name: &str, clients: ClientRules| {
        let inner = path.join(name);
        fs::create_dir(&inner).unwrap();
        ExportSettings {
            path: inner,
            client_path: format!("/more/{name}"),
            clients,
            ..served.service.exports().all()[0].settings().clone()
        }
    };
    let own = served.service.exports().all()[0].settings().clone();
    let open = rules(Access::ReadWrite, Squash::None);
    let closed = ClientRules::new(vec![ClientRule {
        network: "198.51.100.0/24".parse().unwrap(),
        ..*served.service.exports().all()[0]
            .settings()
            .clients
            .for_client("192.0.2.1:700".parse().unwrap())
            .unwrap()
    }])
    .unwrap();
    let settings = vec![
        own,
        more("one", open.clone()),
        more("closed", closed),
        more("two", open),
    ];
    served.service.exports().reload(settings).unwrap();

    let mut client = served.client("one");
    let more = [
        Op::PutRootFh,
        Op::Lookup(capstan_nfs_proto::v4::types::Component(b"more")),
    ];
    let whole = ask(START, 1 << 16, readable());
    let pseudo = client.all_attributes(&more, |all| all.fsid);
    let page = read(&mut client, &more, whole, |name, _, all| {
        assert_eq!(all.file_type, Some(FileType::Directory));
        assert_ne!(all.fsid, pseudo, "{name} is an export");
        assert_ne!(all.fileid, all.mounted_on_fileid);
    });
    assert_eq!(
        (&page.names[..], page.eof),
        (&["one".into(), "two".into()][..], true)
    );
    let (names, parts) = read_all(&mut client, &[Op::PutRootFh], 50);
    assert_eq!((names, parts), (vec!["exported".into(), "more".into()], 2));
    let other = Op::ReadDir(ask((3, Verifier([1; 8])), 1000, Bitmap::EMPTY));
    assert_eq!(client.status(&[Op::PutRootFh, other]), Status::NOT_SAME);
    let small = Op::ReadDir(ask(START, 40, Bitmap::EMPTY));
    assert_eq!(client.status(&[Op::PutRootFh, small]), Status::TOOSMALL);
}

/// What READDIR says of what is mounted in the export, and GETATTR of that where it can be asked.
fn look_at_mounted(crossmnt: bool) {
    let mut hidden = 0;
    let served = Served::with(|settings| {
        let inner = settings.path.join("inner");
        fs::create_dir(&inner).unwrap();
        hidden = inner.metadata().unwrap().ino();
        let none = None::<&str>;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &inner, Some("tmpfs"), flags, none).unwrap();
        settings.crossmnt = crossmnt;
    });
    let mut client = served.client("one");
    let fsid = client.all_attributes(&path_ops(&[]), |all| all.fsid);
    let whole = ask(START, 1 << 16, readable());
    let mut told = String::new();
    read(&mut client, &path_ops(&[]), whole, |name, _, all| {
        assert_eq!(name, "inner");
        assert_eq!(all.mounted_on_fileid, Some(hidden));
        if crossmnt {
            assert_eq!(all.rdattr_error, Some(Status::OK));
            assert!(all.fsid.is_some() && all.fsid != fsid);
        } else {
            assert_eq!(all.rdattr_error, Some(Status::ACCESS));
        }
        told = format!("{all:?}");
    });
    if crossmnt {
        client.all_attributes(&path_ops(&["inner"]), |all| {
            assert_eq!(format!("{all:?}"), told);
        });
    } else {
        assert_eq!(client.status(&path_ops(&["inner"])), Status::ACCESS);
        // Without a place for the reason it is left out, and what is behind it is not.
        for name in ["a", "z"] {
            put(&served.path().join(name), b"", 0, 0o644);
        }
        let mut requested = readable();
        requested.remove(AttrNumber::RDATTR_ERROR.0);
        let (mut names, mut from) = (Vec::new(), START);
        loop {
            let part = ask(from, 1 << 16, requested);
            let page = read(&mut client, &path_ops(&[]), part, |_, _, _| {});
            names.extend(page.names);
            if page.eof {
                break;
            }
            from = page.last;
        }
        names.sort();
        assert_eq!(names, ["a", "z"]);
    }
}

#[test]
fn root_what_is_mounted_and_not_exported_is_a_name() {
    look_at_mounted(false);
}

#[test]
fn root_what_is_mounted_and_exported_is_another_file_system() {
    look_at_mounted(true);
}
