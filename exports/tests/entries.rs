//! Making, linking, renaming and removing; attributes; reading directories; extended attributes.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{lchown, symlink};

use capstan_exports::attributes::WasSet;
use capstan_exports::directory::ReadDirectory;
use capstan_exports::entries::{Create, Removed};
use capstan_exports::error::FileError;
use capstan_exports::xattr::SetXattr;
use capstan_exports::{FileType, Node, OpenAccess, SetAttributes, SetTime, Time};
use nix::errno::Errno;
use support::{Disk, Exported, mode, name, own_mounts, put, refused};

#[test]
fn root_creating_is_unchecked_guarded_or_exclusive() {
    own_mounts();
    for disk in Disk::each("root_creating_is_unchecked_guarded_or_exclusive") {
        let exported = Exported::new(&disk.path());
        let (top, user) = (exported.root(), exported.caller(1000));
        let create = |text: &str, how, attributes: &SetAttributes| {
            top.create(&user, name(text), how, attributes, OpenAccess::Both)
        };
        let made = create("f", Create::Guarded, &mode(0o640)).unwrap();
        assert!(made.directory.is_some() && made.set == WasSet::MODE);
        assert_eq!(made.file.write(&user, b"12345", 0), Ok(5));
        refused(create("f", Create::Guarded, &mode(0o640)), Errno::EEXIST);
        let there = create("f", Create::Unchecked, &mode(0o777)).unwrap();
        assert!(there.directory.is_none() && there.set.is_empty());
        let found = there.node.attributes().unwrap();
        assert_eq!((found.mode, found.size_bytes), (0o640, 5), "as it was");
        let cut = SetAttributes {
            size_bytes: Some(0),
            ..mode(0o777)
        };
        assert_eq!(
            create("f", Create::Unchecked, &cut).unwrap().set,
            WasSet::SIZE
        );
        assert_eq!(made.node.attributes().unwrap().size_bytes, 0);

        for verifier in [[0xff; 8], *b"\0\x01\x02\x03\x04\x05\x06\x07"] {
            let text = format!("x{}", verifier[0]);
            let exclusive = Create::Exclusive(verifier);
            let first = create(&text, exclusive, &SetAttributes::default()).unwrap();
            assert!(first.directory.is_some());
            let retried = create(&text, exclusive, &SetAttributes::default()).unwrap();
            assert!(retried.directory.is_none(), "what the client sent twice");
            assert_eq!(retried.node.kernel_handle(), first.node.kernel_handle());
            let other = create(&text, Create::Exclusive([1; 8]), &SetAttributes::default());
            refused(other, Errno::EEXIST);
            // The owner has it open, and nobody else may open it before its mode is set.
            assert_eq!(first.file.write(&user, b"data", 0), Ok(4));
            assert_eq!(first.node.attributes().unwrap().mode, 0);
        }
        fs::create_dir(disk.path().join("d")).unwrap();
        let said = create("d", Create::Unchecked, &mode(0o644)).unwrap_err();
        assert!(
            matches!(
                said,
                FileError::WrongType {
                    found: FileType::Directory,
                    ..
                }
            ),
            "{said}"
        );
        symlink("f", disk.path().join("link")).unwrap();
        let said = create("link", Create::Unchecked, &mode(0o644)).unwrap_err();
        assert!(
            matches!(
                said,
                FileError::WrongType {
                    found: FileType::Symlink,
                    ..
                }
            ),
            "{said}"
        );
    }
}

#[test]
fn root_entries_are_made_linked_renamed_and_removed() {
    own_mounts();
    for disk in Disk::each("root_entries_are_made_linked_renamed_and_removed") {
        let exported = Exported::new(&disk.path());
        let (top, user) = (exported.root(), exported.caller(1000));
        let (d, _) = top.make_directory(&user, name("d"), &mode(0o2755)).unwrap();
        let found = d.attributes().unwrap();
        assert_eq!((found.file_type, found.uid), (FileType::Directory, 1000));
        assert_eq!(found.mode & 0o777, 0o755);
        refused(
            top.make_directory(&user, name("d"), &mode(0o755)),
            Errno::EEXIST,
        );
        let times = SetAttributes {
            modified: Some(SetTime::To(Time {
                seconds: 5,
                nanoseconds: 0,
            })),
            ..mode(0o777)
        };
        let (link, _) = top
            .make_symlink(&user, name("link"), b"/no/where", &times)
            .unwrap();
        assert_eq!(link.read_link(&user).unwrap(), b"/no/where");
        assert_eq!(link.attributes().unwrap().modified.seconds, 5);
        for bad in [&b""[..], b"a\0b"] {
            assert!(top.make_symlink(&user, name("bad"), bad, &mode(0)).is_err());
        }
        let how = Create::Guarded;
        let f = top
            .create(&user, name("f"), how, &mode(0o644), OpenAccess::Read)
            .unwrap()
            .node;
        d.link(&user, name("second"), &f).unwrap();
        d.link(&user, name("link"), &link).unwrap();
        assert_eq!(f.attributes().unwrap().link_count, 2);
        let second = d.lookup(&exported.exports, &user, name("link")).unwrap();
        assert_eq!(second.file_type(), FileType::Symlink, "the link itself");
        // Both are names of one file: nothing happens (rename(2)).
        top.rename(&user, name("f"), &d, name("second")).unwrap();
        top.rename(&user, name("f"), &d, name("moved")).unwrap();
        refused(
            top.lookup(&exported.exports, &user, name("f")),
            Errno::ENOENT,
        );
        assert!(d.lookup(&exported.exports, &user, name("moved")).is_ok());
        let inside = d.rename(&user, name("none"), &top, name("none"));
        refused(inside, Errno::ENOENT);
        refused(top.rename(&user, name("d"), &d, name("d")), Errno::EINVAL);

        refused(top.remove(&user, name("d"), Removed::File), Errno::EISDIR);
        refused(
            top.remove(&user, name("link"), Removed::Directory),
            Errno::ENOTDIR,
        );
        refused(top.remove(&user, name("d"), Removed::Any), Errno::ENOTEMPTY);
        for text in ["second", "moved", "link"] {
            d.remove(&user, name(text), Removed::File).unwrap();
        }
        top.remove(&user, name("d"), Removed::Any).unwrap();
        top.remove(&user, name("link"), Removed::Any).unwrap();
        refused(top.remove(&user, name("d"), Removed::Any), Errno::ENOENT);
        let handle = exported.exports.handle(&link);
        drop((link, second));
        let stale = exported.exports.node(handle.bytes()).unwrap_err();
        assert!(matches!(stale, FileError::Stale(_)), "{stale}");
    }
}

#[test]
fn root_attributes_are_set_together_as_they_were_asked_for() {
    own_mounts();
    for disk in Disk::each("root_attributes_are_set_together_as_they_were_asked_for") {
        let exported = Exported::new(&disk.path());
        put(&disk.path().join("f"), b"data", 0, 0o644);
        let root = exported.caller(0);
        let f = exported
            .root()
            .lookup(&exported.exports, &root, name("f"))
            .unwrap();
        let before = f.attributes().unwrap();
        let (accessed, modified) = (
            Time {
                seconds: -7,
                nanoseconds: 0,
            },
            Time {
                seconds: 1 << 33,
                nanoseconds: 0,
            },
        );
        let all = SetAttributes {
            size_bytes: Some(10),
            uid: Some(1000),
            gid: Some(1001),
            mode: Some(0o6755),
            accessed: Some(SetTime::To(accessed)),
            modified: Some(SetTime::To(modified)),
        };
        let (set, result) = f.set_attributes(&root, &all, None);
        result.unwrap();
        assert_eq!(set, WasSet::all());
        let now = f.attributes().unwrap();
        assert_eq!((now.size_bytes, now.uid, now.gid), (10, 1000, 1001));
        assert_eq!(
            now.mode, 0o6755,
            "{}: neither the size nor the owner took it",
            disk.kind
        );
        assert_eq!(
            (now.accessed, now.modified),
            (accessed, modified),
            "{}",
            disk.kind
        );
        assert!(now.change > before.change);
        assert!(now.born.is_some_and(|born| born <= now.changed), "{now:?}");

        // What comes before the refused one is set, and told.
        let user = exported.caller(1000);
        let part = SetAttributes {
            size_bytes: Some(3),
            uid: Some(5),
            ..mode(0o600)
        };
        let (set, result) = f.set_attributes(&user, &part, None);
        refused(result, Errno::EPERM);
        assert_eq!(set, WasSet::SIZE);
        assert_eq!(f.attributes().unwrap().size_bytes, 3);
        // "No id" to the kernel is "as it is".
        let none = SetAttributes {
            uid: Some(u32::MAX),
            ..Default::default()
        };
        assert!(matches!(
            f.set_attributes(&root, &none, None).1,
            Err(FileError::OutOfRange { .. })
        ));
        let huge = SetAttributes {
            size_bytes: Some(u64::MAX),
            ..Default::default()
        };
        assert!(matches!(
            f.set_attributes(&root, &huge, None).1,
            Err(FileError::OutOfRange { .. })
        ));
        let now = SetAttributes {
            modified: Some(SetTime::Now),
            ..Default::default()
        };
        f.set_attributes(&user, &now, None).1.unwrap();
        let found = f.attributes().unwrap();
        assert!(found.modified.seconds < 1 << 33 && found.accessed == accessed);
    }
}

#[test]
fn root_the_mode_of_a_symbolic_link_is_let_be() {
    // `cp -R` of systems where links have modes sets that with the times.
    own_mounts();
    for disk in Disk::each("root_the_mode_of_a_symbolic_link_is_let_be") {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        symlink("target", disk.path().join("link")).unwrap();
        lchown(disk.path().join("link"), Some(1000), None).unwrap();
        let link = exported
            .root()
            .lookup(&exported.exports, &user, name("link"))
            .unwrap();
        let before = link.attributes().unwrap();
        let modified = Time {
            seconds: 1_000_000_000,
            nanoseconds: 0,
        };
        let to = SetAttributes {
            modified: Some(SetTime::To(modified)),
            ..mode(0o600)
        };
        let (set, result) = link.set_attributes(&user, &to, None);
        assert_eq!(result, Ok(()), "{}", disk.kind);
        assert_eq!(set, WasSet::MODE | WasSet::TIMES);
        let now = link.attributes().unwrap();
        assert_eq!((now.mode, now.modified), (before.mode, modified));
        let other = exported.caller(1001);
        let (set, result) = link.set_attributes(&other, &to, None);
        refused(result, Errno::EPERM);
        assert_eq!(set, WasSet::empty());
    }
}

#[test]
fn root_each_change_that_was_looked_at_has_another_number() {
    let test = "root_each_change_that_was_looked_at_has_another_number";
    if !support::tells_changes_apart(test) {
        return;
    }
    own_mounts();
    for disk in Disk::each(test) {
        let exported = Exported::new(&disk.path());
        let (top, root) = (exported.root(), exported.caller(0));
        let how = Create::Guarded;
        let f = top
            .create(&root, name("f"), how, &mode(0o644), OpenAccess::Both)
            .unwrap();
        let mut last = (0, 0);
        for round in 0..100 {
            f.file.write(&root, b"x", round).unwrap();
            let text = format!("{round}");
            top.make_symlink(&root, name(&text), b"x", &mode(0))
                .unwrap();
            let now = (
                f.node.attributes().unwrap().change,
                top.attributes().unwrap().change,
            );
            assert!(
                now.0 > last.0 && now.1 > last.1,
                "{}: {now:?} {last:?}",
                disk.kind
            );
            // A tmpfs gives the directory the time of what was removed.
            top.remove(&root, name(&text), Removed::File).unwrap();
            let removed = top.attributes().unwrap().change;
            assert!(removed >= now.1, "{}: {removed} {now:?}", disk.kind);
            top.renew_change().unwrap();
            let renewed = top.attributes().unwrap().change;
            assert!(renewed > removed, "{}: {renewed} {removed}", disk.kind);
            last = (now.0, renewed);
        }
    }
}

fn ask(cookie: u64, verifier: u64, room_bytes: usize) -> ReadDirectory {
    ReadDirectory {
        cookie,
        verifier,
        room_bytes,
        entry_bytes: 24,
        with_files: true,
    }
}

#[test]
fn root_a_directory_is_read_in_parts_of_any_size() {
    own_mounts();
    for disk in Disk::each("root_a_directory_is_read_in_parts_of_any_size") {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        let d = disk.path().join("d");
        fs::create_dir(&d).unwrap();
        let mut names: Vec<String> = (0..700).map(|at| format!("file-{at}")).collect();
        for text in &names {
            put(&d.join(text), text.as_bytes(), 1, 0o600);
        }
        fs::write(d.join(std::ffi::OsStr::from_bytes(b"\xff")), b"").unwrap();
        names.sort();
        let d = exported
            .root()
            .lookup(&exported.exports, &user, name("d"))
            .unwrap();
        for room in [40, 1000, 1 << 20] {
            let (mut cookie, mut verifier) = (0, 0);
            let mut read = Vec::new();
            loop {
                let part = d
                    .read_directory(&exported.exports, &user, &ask(cookie, verifier, room))
                    .unwrap();
                let taken: usize = part.entries.iter().map(|entry| 24 + entry.name.len()).sum();
                assert!(taken <= room);
                for entry in &part.entries {
                    let file = entry.file.as_ref().unwrap();
                    assert_eq!(file.attributes.file_id, entry.file_id);
                    assert_eq!(file.attributes.size_bytes, entry.name.len() as u64);
                    assert_eq!(file.attributes.file_type, FileType::Regular);
                    let node = exported.exports.node(file.handle.bytes()).unwrap().unwrap();
                    assert_eq!(node.attributes().unwrap(), file.attributes);
                    read.push(String::from_utf8(entry.name.to_vec()).unwrap());
                }
                cookie = part.entries.last().map_or(cookie, |entry| entry.cookie);
                verifier = part.verifier;
                if part.is_end {
                    break;
                }
            }
            read.sort();
            assert_eq!(read, names, "{} in {room}", disk.kind);
        }
        let read = |ask| d.read_directory(&exported.exports, &user, &ask).map(drop);
        assert_eq!(read(ask(0, 0, 27)), Err(FileError::TooSmall { given: 27 }));
        assert_eq!(read(ask(77, 1, 999)), Err(FileError::BadCookie));
    }
}

#[test]
fn root_dots_are_given_to_those_who_ask_for_them() {
    own_mounts();
    for disk in Disk::each("root_dots_are_given_to_those_who_ask_for_them") {
        let exported = Exported::new(&disk.path());
        let (top, root) = (exported.root(), exported.caller(0));
        let (d, _) = top.make_directory(&root, name("d"), &mode(0o755)).unwrap();
        d.make_directory(&root, name("e"), &mode(0o755)).unwrap();
        let read = |node: &Node| {
            let mut read = node
                .read_directory_with_dots(&exported.exports, &root, &ask(0, 0, 999))
                .unwrap()
                .entries;
            read.sort_by(|a, b| a.name.cmp(&b.name));
            read.retain(|entry| entry.name.len() <= 2);
            read
        };
        let id = |node: &Node| node.attributes().unwrap().file_id;
        let dots = read(&d);
        assert_eq!(dots.len(), 3, "{dots:?}");
        assert_eq!((&*dots[0].name, dots[0].file_id), (&b"."[..], id(&d)));
        assert_eq!((&*dots[1].name, dots[1].file_id), (&b".."[..], id(&top)));
        assert!(dots[0].file.is_none() && dots[1].file.is_none());
        assert!(dots[2].file.is_some());
        // Of the directory above the export nothing is told.
        let dots = read(&top);
        assert_eq!((&*dots[1].name, dots[1].file_id), (&b".."[..], id(&top)));
    }
}

#[test]
fn root_a_directory_that_may_be_read_and_not_searched_has_names_alone() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    let (top, root) = (exported.root(), exported.caller(0));
    let (d, _) = top.make_directory(&root, name("d"), &mode(0o744)).unwrap();
    fs::write(disk.path().join("d/f"), b"").unwrap();
    let read = d
        .read_directory(&exported.exports, &exported.caller(5), &ask(0, 0, 999))
        .unwrap();
    assert_eq!(read.entries.len(), 1);
    assert!(read.entries[0].file.is_none());
    d.set_attributes(&root, &mode(0o711), None).1.unwrap();
    let read = d.read_directory(&exported.exports, &exported.caller(5), &ask(0, 0, 999));
    refused(read, Errno::EACCES);
}

#[test]
fn root_extended_attributes_are_those_of_users_alone() {
    own_mounts();
    for disk in Disk::each("root_extended_attributes_are_those_of_users_alone") {
        let exported = Exported::new(&disk.path());
        let (top, user) = (exported.root(), exported.caller(1000));
        let how = Create::Guarded;
        let f = top
            .create(&user, name("f"), how, &mode(0o600), OpenAccess::Both)
            .unwrap()
            .node;
        assert_eq!(f.xattr_names(&user).unwrap().len(), 0);
        f.set_xattr(&user, b"a", b"1", SetXattr::Create).unwrap();
        f.set_xattr(&user, b"empty", b"", SetXattr::Any).unwrap();
        refused(
            f.set_xattr(&user, b"a", b"2", SetXattr::Create),
            Errno::EEXIST,
        );
        refused(
            f.set_xattr(&user, b"b", b"2", SetXattr::Replace),
            Errno::ENODATA,
        );
        f.set_xattr(&user, b"a", b"22", SetXattr::Replace).unwrap();
        assert_eq!(f.xattr(&user, b"a").unwrap(), b"22");
        assert_eq!(f.xattr(&user, b"empty").unwrap(), b"");
        refused(f.xattr(&user, b"b"), Errno::ENODATA);
        let mut names = f.xattr_names(&user).unwrap();
        names.sort();
        assert_eq!(names, [Box::from(&b"a"[..]), Box::from(&b"empty"[..])]);
        let other = exported.caller(1001);
        refused(f.xattr(&other, b"a"), Errno::EACCES);
        refused(f.xattr_names(&other), Errno::EACCES);
        refused(
            f.set_xattr(&other, b"a", b"3", SetXattr::Any),
            Errno::EACCES,
        );
        refused(f.remove_xattr(&other, b"a"), Errno::EACCES);
        f.remove_xattr(&user, b"a").unwrap();
        refused(f.xattr(&user, b"a"), Errno::ENODATA);
        for bad in [&b""[..], b"a\0b", &[b'a'; 251]] {
            assert!(
                matches!(f.xattr(&user, bad), Err(FileError::Name(_))),
                "{bad:?}"
            );
        }
        let (link, _) = top
            .make_symlink(&user, name("link"), b"f", &mode(0))
            .unwrap();
        assert!(
            link.set_xattr(&user, b"a", b"1", SetXattr::Any).is_err(),
            "never of its target"
        );
        assert_eq!(f.xattr_names(&user).unwrap().len(), 1);
    }
}

#[test]
fn root_limits_are_those_of_the_file_system() {
    own_mounts();
    for disk in Disk::each("root_limits_are_those_of_the_file_system") {
        let exported = Exported::new(&disk.path());
        let top = exported.root();
        let limits = top.name_limits().unwrap();
        assert_eq!(limits.name_bytes, 255);
        assert!(!limits.ignores_case);
        let most = match disk.kind {
            "ext4" => 65000,
            "xfs" => (1 << 31) - 1,
            _ => u64::from(u32::MAX),
        };
        assert_eq!(limits.links, most, "{}", disk.kind);
        assert!(top.keeps_xattrs() && !top.has_default_acl());
        let space = top.space().unwrap();
        // mke2fs makes small blocks on a small disk.
        let block_bytes = if disk.kind == "ext4" { 1024 } else { 4096 };
        assert_eq!(space.block_bytes, block_bytes, "{}", disk.kind);
        assert!(
            space.free_bytes <= space.total_bytes && space.total_bytes > 16 << 20,
            "{space:?}"
        );
        assert!(space.available_bytes <= space.free_bytes);
        assert!(space.free_files < space.total_files, "{space:?}");
    }
}
