//! Data: reads and writes, layout, locks, what was lost, and files that stay open.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use capstan_exports::cache::OpenFiles;
use capstan_exports::entries::Create;
use capstan_exports::error::{FileError, StaleReason};
use capstan_exports::file::{Conflict, LockKind, LockRange};
use capstan_exports::unsynced::{Stable, UnsyncedFiles, WriterId};
use capstan_exports::{Caller, Node, OpenAccess, OpenFile, SetAttributes};
use nix::errno::Errno;
use support::{Disk, Exported, mode, name, own_mounts, put, refused};

fn created(exported: &Exported, caller: &Caller, text: &str) -> (Node, OpenFile) {
    let how = Create::Guarded;
    let made = exported
        .root()
        .create(caller, name(text), how, &mode(0o640), OpenAccess::Both);
    made.map(|made| (made.node, made.file)).unwrap()
}

#[test]
fn root_data_is_read_back_and_offsets_have_an_end() {
    own_mounts();
    for disk in Disk::each("root_data_is_read_back_and_offsets_have_an_end") {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        let (node, file) = created(&exported, &user, "f");
        assert_eq!(file.write(&user, b"hello", 3), Ok(5));
        let mut buffer = [9; 16];
        assert_eq!(file.read(&mut buffer, 0), Ok(8));
        assert_eq!(&buffer[..8], b"\0\0\0hello");
        assert_eq!(file.read(&mut buffer, 8), Ok(0));
        let (mut a, mut b) = ([0; 4], [0; 9]);
        let mut both = [&mut a[..], &mut b].map(std::io::IoSliceMut::new);
        assert_eq!(file.read_vectored(&mut both, 0), Ok(8));
        assert_eq!((&a, &b[..4]), (b"\0\0\0h", &b"ello"[..]));
        let past = file.write(&user, b"x", (1 << 63) - 1);
        assert!(
            matches!(past, Err(FileError::OutOfRange { .. })),
            "{past:?}"
        );
        for offset in [u64::MAX, 1 << 63] {
            assert!(matches!(
                file.read(&mut buffer, offset),
                Err(FileError::OutOfRange { .. })
            ));
            let written = file.write(&user, b"x", offset);
            assert!(
                matches!(written, Err(FileError::OutOfRange { .. })),
                "{written:?}"
            );
        }
        if disk.kind == "ext4" {
            refused(file.write(&user, b"x", (1 << 63) - 2), Errno::EFBIG);
        }
        refused(
            node.open(&exported.caller(9), OpenAccess::Read, true),
            Errno::EACCES,
        );
        // Through what is open the size is set without asking for the mode again.
        node.set_attributes(&user, &mode(0o000), None).1.unwrap();
        let cut = SetAttributes {
            size_bytes: Some(4),
            ..Default::default()
        };
        refused(node.set_attributes(&user, &cut, None).1, Errno::EACCES);
        node.set_attributes(&user, &cut, Some(&file)).1.unwrap();
        assert_eq!(file.attributes().unwrap().size_bytes, 4);
        let (other, _) = created(&exported, &user, "other");
        assert_eq!(
            other.set_attributes(&user, &cut, Some(&file)).1,
            Err(FileError::OtherFile)
        );
    }
}

#[test]
fn root_holes_are_found_made_and_filled() {
    own_mounts();
    for disk in Disk::each("root_holes_are_found_made_and_filled") {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        let (_, file) = created(&exported, &user, "f");
        const MIB: u64 = 1 << 20;
        file.write(&user, &vec![1; 3 << 20], 0).unwrap();
        file.deallocate(&user, MIB, MIB).unwrap();
        let size = || file.attributes().unwrap().size_bytes;
        assert_eq!(size(), 3 * MIB);
        assert_eq!(file.next_hole(0), Ok(MIB));
        assert_eq!(file.next_data(MIB), Ok(Some(2 * MIB)));
        assert_eq!(file.next_hole(2 * MIB), Ok(3 * MIB));
        file.deallocate(&user, 2 * MIB, MIB).unwrap();
        assert_eq!(file.next_data(MIB), Ok(None));
        refused(file.next_data(3 * MIB), Errno::ENXIO);
        refused(file.next_hole(3 * MIB), Errno::ENXIO);
        let used = || file.attributes().unwrap().used_bytes;
        let before = used();
        file.allocate(&user, 3 * MIB, MIB).unwrap();
        assert_eq!(size(), 4 * MIB);
        assert!(used() >= before + MIB, "{}", disk.kind);
        assert!(file.allocate(&user, u64::MAX, 1).is_err());
        refused(file.allocate(&user, 0, 0), Errno::EINVAL);
    }
}

#[test]
fn root_data_is_copied_and_shared() {
    own_mounts();
    for disk in Disk::each("root_data_is_copied_and_shared") {
        let exported = Exported::new(&disk.path());
        let user = exported.caller(1000);
        let (_, from) = created(&exported, &user, "from");
        let (_, to) = created(&exported, &user, "to");
        from.write(&user, &[7; 10_000], 0).unwrap();
        let mut at = 0;
        loop {
            match to.copy_from(&user, &from, at, at + 5, u64::MAX).unwrap() {
                0 => break,
                copied => at += copied,
            }
        }
        assert_eq!(at, 10_000);
        let copied = fs::read(disk.path().join("to")).unwrap();
        assert_eq!(copied, [vec![0; 5], vec![7; 10_000]].concat());
        let (_, clone) = created(&exported, &user, "clone");
        let cloned = clone.clone_from(&user, &from, 0, 0, 0);
        if disk.kind == "xfs" {
            cloned.unwrap();
            assert_eq!(fs::read(disk.path().join("clone")).unwrap(), [7; 10_000]);
            refused(to.clone_from(&user, &from, 1, 0, 10), Errno::EINVAL);
        } else {
            refused(cloned, Errno::EOPNOTSUPP);
        }
    }
}

const ALL: LockRange = LockRange {
    start: 0,
    length: None,
};

const fn bytes(start: u64, length: u64) -> LockRange {
    LockRange {
        start,
        length: Some(length),
    }
}

#[test]
fn root_locks_are_those_of_an_open_file() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    let user = exported.caller(1000);
    let (node, a) = created(&exported, &user, "f");
    let b = a.open_again().unwrap();
    assert_eq!(a.lock(bytes(10, 10), LockKind::Exclusive), Ok(None));
    let conflict = Conflict {
        range: bytes(10, 10),
        kind: LockKind::Exclusive,
    };
    assert_eq!(b.lock(ALL, LockKind::Shared), Ok(Some(conflict)));
    assert_eq!(
        b.conflict(bytes(19, 1), LockKind::Shared),
        Ok(Some(conflict))
    );
    assert_eq!(b.conflict(bytes(20, 1), LockKind::Shared), Ok(None));
    assert_eq!(
        a.conflict(ALL, LockKind::Exclusive),
        Ok(None),
        "its own is not in the way"
    );
    assert_eq!(
        a.lock(bytes(10, 5), LockKind::Shared),
        Ok(None),
        "in place of the other"
    );
    assert_eq!(b.lock(bytes(10, 5), LockKind::Shared), Ok(None));
    a.unlock(bytes(15, 5)).unwrap();
    assert_eq!(
        b.lock(
            LockRange {
                start: 15,
                length: None
            },
            LockKind::Exclusive
        ),
        Ok(None)
    );
    let open_end = Conflict {
        range: LockRange {
            start: 15,
            length: None,
        },
        kind: LockKind::Exclusive,
    };
    assert_eq!(
        a.lock(bytes(1 << 40, 1), LockKind::Shared),
        Ok(Some(open_end))
    );
    drop(b);
    assert_eq!(
        a.lock(ALL, LockKind::Exclusive),
        Ok(None),
        "closing unlocks"
    );
    let reads = node.open(&user, OpenAccess::Read, false).unwrap();
    refused(reads.lock(ALL, LockKind::Exclusive), Errno::EBADF);
    refused(reads.lock(bytes(0, 0), LockKind::Shared), Errno::EINVAL);
    assert!(reads.lock(bytes(u64::MAX, 1), LockKind::Shared).is_err());
    assert!(reads.lock(bytes(2, u64::MAX), LockKind::Shared).is_err());
}

/// A file that is open to read can be locked shared, and exclusively where it is open to write.
#[test]
fn root_a_file_is_opened_for_locks_whatever_its_mode() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    put(&disk.path().join("f"), b"", 1000, 0o000);
    let user = exported.caller(1000);
    let root = exported.root();
    let node = root.lookup(&exported.exports, &user, name("f")).unwrap();
    let (a, b) = (
        node.open_for_locks(LockKind::Exclusive).unwrap(),
        node.open_for_locks(LockKind::Shared).unwrap(),
    );
    assert_eq!(b.access(), OpenAccess::Read);
    assert_eq!(a.lock(ALL, LockKind::Shared), Ok(None));
    assert_eq!(a.lock(bytes(0, 1), LockKind::Exclusive), Ok(None));
    assert_eq!(b.lock(bytes(1, 1), LockKind::Shared), Ok(None));
    assert!(matches!(b.lock(bytes(0, 1), LockKind::Shared), Ok(Some(_))));
    assert!(matches!(
        b.conflict(bytes(0, 1), LockKind::Exclusive),
        Ok(Some(_))
    ));
    let directory = root.open_for_locks(LockKind::Shared);
    assert!(matches!(directory, Err(FileError::WrongType { .. })));
    // What cannot be written is locked shared.
    drop((a, b));
    let path = disk.path();
    let remount = ["-o", "remount,ro", path.to_str().unwrap()];
    support::run("mount", &remount).unwrap();
    let a = node.open_for_locks(LockKind::Shared).unwrap();
    assert_eq!(a.lock(ALL, LockKind::Shared), Ok(None));
    let exclusive = node.open_for_locks(LockKind::Exclusive);
    refused(exclusive, Errno::EROFS);
}

#[test]
fn root_data_is_committed_without_a_right_to_the_file() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    let user = exported.caller(1000);
    let (node, file) = created(&exported, &user, "f");
    let file = Arc::new(file);
    let files = UnsyncedFiles::default();
    let write = || file.write(&user, b"data", 0);
    let written = files.change(WriterId(1), &file, Stable::Unstable, write);
    assert_eq!(written, Ok((4, Stable::Unstable)));
    let written = files.change(WriterId(2), &file, Stable::File, write);
    assert_eq!((written, files.count()), (Ok((4, Stable::File)), 1));
    let denied = files.change(WriterId(1), &file, Stable::File, || {
        file.read(&mut [0; 1], u64::MAX)
    });
    assert!(denied.is_err());
    fs::set_permissions(disk.path().join("f"), fs::Permissions::from_mode(0o000)).unwrap();
    let other = exported.caller(1001);
    for _ in 0..2 {
        let committed = files.commit_node(WriterId(1), &other, &node);
        assert_eq!((committed, files.count()), (Ok(files.verifier()), 0));
    }
    let root = exported.root();
    let refused = files.commit_node(WriterId(1), &other, &root);
    assert!(matches!(refused, Err(FileError::WrongType { .. })));
}

#[test]
fn root_files_with_unsynced_data_are_remembered_until_all_have_committed() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    let user = exported.caller(1000);
    let file = |text| Arc::new(created(&exported, &user, text).1);
    let (one, two, three) = (file("one"), file("two"), file("three"));
    let files = UnsyncedFiles::new(3);
    let verifier = files.verifier();
    let write = |writer, file, stable| {
        files
            .write(WriterId(writer), &user, file, b"data"[..].into(), 0, stable)
            .unwrap()
            .1
    };
    assert_eq!(write(1, &one, Stable::Data), Stable::Data);
    assert_eq!(write(1, &one, Stable::File), Stable::File);
    assert_eq!(files.count(), 0);
    assert_eq!(write(1, &one, Stable::Unstable), Stable::Unstable);
    assert_eq!(write(2, &one, Stable::Unstable), Stable::Unstable);
    assert_eq!(write(1, &two, Stable::Unstable), Stable::Unstable);
    assert_eq!(
        write(1, &three, Stable::Unstable),
        Stable::Data,
        "more than its share"
    );
    assert_eq!(files.count(), 2);
    assert_eq!(files.commit(WriterId(1), &one), Ok(verifier));
    assert_eq!(files.count(), 2, "another one has not committed");
    assert_eq!(files.commit(WriterId(2), &one), Ok(verifier));
    assert_eq!(files.count(), 1);
    assert_eq!(
        files.commit(WriterId(3), &three),
        Ok(verifier),
        "of what is not known"
    );
    files.end_writer(WriterId(1));
    assert_eq!(files.count(), 0);
    assert_ne!(
        UnsyncedFiles::new(2).verifier(),
        verifier,
        "as after a restart"
    );
}

#[test]
fn root_a_file_without_a_name_is_not_kept_for_its_unsynced_data() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    let exported = Exported::new(&disk.path());
    let user = exported.caller(1000);
    let (node, file) = created(&exported, &user, "f");
    let files = UnsyncedFiles::new(2);
    let file = Arc::new(file);
    let write = |file: &Arc<OpenFile>| {
        let stable = Stable::Unstable;
        files.write(WriterId(1), &user, file, b"data"[..].into(), 0, stable)
    };
    write(&file).unwrap();
    fs::remove_file(disk.path().join("f")).unwrap();
    files.forget_file(node.export().id(), node.kernel_handle());
    assert_eq!((files.count(), Arc::strong_count(&file)), (0, 1));
    // A client that has it open goes on.
    assert_eq!(files.commit(WriterId(1), &file), Ok(files.verifier()));
    write(&file).unwrap();
    assert_eq!(files.commit(WriterId(1), &file), Ok(files.verifier()));
    assert_eq!(files.count(), 0);
}

/// A sparse image on a file system that is full: what is written cannot be stored.
#[test]
fn root_what_was_lost_is_told_to_all_who_wrote_it_once() {
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("below");
    fs::create_dir(&below).unwrap();
    let below_text = below.to_str().unwrap();
    support::run(
        "mount",
        &["-t", "tmpfs", "-o", "size=12m", "tmpfs", below_text],
    )
    .unwrap();
    let image = below.join("image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let image_text = image.to_str().unwrap();
    let options = [
        "-q",
        "-F",
        "-O",
        "^has_journal",
        "-E",
        "lazy_itable_init=1,nodiscard",
    ];
    support::run("mkfs.ext4", &[&options[..], &[image_text]].concat()).unwrap();
    let top = folder.path().join("top");
    fs::create_dir(&top).unwrap();
    let top_text = top.to_str().unwrap();
    support::run(
        "mount",
        &["-o", "loop,errors=continue", image_text, top_text],
    )
    .unwrap();
    {
        let exported = Exported::new(&top);
        let root = exported.caller(0);
        let file = Arc::new(created(&exported, &root, "f").1);
        let files = UnsyncedFiles::default();
        let before = files.verifier();
        let write = |writer, offset| {
            let data = vec![1; 8 << 20];
            files
                .write(
                    WriterId(writer),
                    &root,
                    &file,
                    data[..].into(),
                    offset,
                    Stable::Unstable,
                )
                .unwrap();
        };
        write(1, 0);
        write(2, 8 << 20);
        write(3, 16 << 20);
        let lost = |writer| match files.commit(WriterId(writer), &file) {
            Err(FileError::WriteBack { errno }) => Some(errno),
            Ok(_) => None,
            Err(error) => panic!("{error}"),
        };
        assert!(lost(1).is_some(), "the one who syncs");
        assert_ne!(files.verifier(), before);
        assert!(lost(2).is_some(), "another one who wrote before");
        // A writer that comes later has lost nothing.
        files
            .write(
                WriterId(4),
                &root,
                &file,
                b"x"[..].into(),
                0,
                Stable::Unstable,
            )
            .unwrap();
        assert_eq!(lost(4), None);
        assert_eq!(lost(1), None, "once");
        assert!(lost(3).is_some(), "however late");
        assert_eq!(files.count(), 0);
    }
    support::run("umount", &["--lazy", top_text]).unwrap();
    support::run("umount", &["--lazy", below_text]).unwrap();
}

#[test]
fn root_open_files_are_kept_for_their_caller_and_bounded() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let exported = Exported::new(&disk.path());
    let (user, other) = (exported.caller(1000), exported.caller(1001));
    for text in ["a", "b", "c"] {
        put(&disk.path().join(text), b"data", 1000, 0o644);
    }
    let node = |text| {
        exported
            .root()
            .lookup(&exported.exports, &user, name(text))
            .unwrap()
    };
    let (a, b, c) = (node("a"), node("b"), node("c"));
    let files = OpenFiles::new(2);
    let read = OpenAccess::Read;
    let first = files.open(&a, &user, read).unwrap();
    assert!(Arc::ptr_eq(&first, &files.open(&a, &user, read).unwrap()));
    assert_eq!(files.count(), 1);
    let of_other = files.open(&a, &other, read).unwrap();
    assert!(!Arc::ptr_eq(&first, &of_other));
    files.open(&a, &user, read).unwrap();
    let of_b = files.open(&b, &user, read).unwrap();
    assert_eq!(
        files.count(),
        2,
        "in the place of the other's, in use or not"
    );
    assert!(Arc::ptr_eq(&of_b, &files.open(&b, &user, read).unwrap()));
    assert!(Arc::ptr_eq(&first, &files.open(&a, &user, read).unwrap()));
    assert_eq!(of_other.read(&mut [0; 4], 0), Ok(4));
    files.open(&c, &user, read).unwrap();
    assert!(!Arc::ptr_eq(&of_b, &files.open(&b, &user, read).unwrap()));
    assert_eq!(files.close_idle(Duration::from_secs(3600)), 0);
    assert_eq!(files.close_idle(Duration::ZERO), 2);
    drop((first, of_b, of_other));

    // What was open for a caller is not when the kernel would not open it any more.
    files.open(&a, &user, read).unwrap();
    files.open(&a, &other, read).unwrap();
    fs::set_permissions(disk.path().join("a"), fs::Permissions::from_mode(0o000)).unwrap();
    refused(files.open(&a, &other, read), Errno::EACCES);
    assert_eq!(files.count(), 1, "the owner's");
    files.open(&a, &user, read).unwrap();
    files.forget_file(exported.export.id(), a.kernel_handle());
    assert_eq!(files.count(), 0);
    files.open(&b, &user, read).unwrap();
    files.forget_exports(|id| id == exported.export.id());
    assert_eq!(files.count(), 0);

    // That it is kept open keeps no file from being deleted.
    files.open(&b, &user, read).unwrap();
    let handle = exported.exports.handle(&b);
    drop(b);
    fs::remove_file(disk.path().join("b")).unwrap();
    let b = exported.exports.node(handle.bytes()).unwrap().unwrap();
    let stale = FileError::Stale(StaleReason::Deleted);
    assert_eq!(files.open(&b, &user, read).unwrap_err(), stale);
    assert_eq!(files.count(), 0);
    drop(b);
    assert_eq!(exported.exports.node(handle.bytes()).unwrap_err(), stale);
}
