//! Handles, names and parents: what opens, what is stale, and that nothing leaves the export.

mod support;

use std::fs;
use std::os::unix::fs::symlink;

use capstan_exports::error::ExportError;
use capstan_exports::error::{FileError, StaleReason};
use capstan_exports::name::NameRule;
use capstan_exports::{
    Exports, FileSystemId, FileType, Found, Handle, Key, Name, Node, OpenAccess,
};
use nix::errno::Errno;
use support::{Disk, Exported, KEY, name, own_mounts, put, refused, run, settings};

#[test]
fn root_a_handle_survives_rename_and_restart_and_not_deletion() {
    own_mounts();
    for disk in Disk::each("root_a_handle_survives_rename_and_restart_and_not_deletion") {
        let exported = Exported::new(&disk.path());
        let root = exported.caller(0);
        fs::create_dir(disk.path().join("d")).unwrap();
        put(&disk.path().join("d/f"), b"data", 7, 0o644);
        let d = exported
            .root()
            .lookup(&exported.exports, &root, name("d"))
            .unwrap();
        let f = d.lookup(&exported.exports, &root, name("f")).unwrap();
        let handle = exported.exports.handle(&f);
        assert!(handle.fits_v3(), "{}", disk.kind);
        let id = f.attributes().unwrap().file_id;
        fs::rename(disk.path().join("d/f"), disk.path().join("other")).unwrap();
        assert_eq!(
            exported.again(&f).unwrap().attributes().unwrap().file_id,
            id
        );

        drop((exported, d, f));
        if disk.kind != "tmpfs" {
            disk.unmount();
            disk.mount();
        }
        let exported = Exported::new(&disk.path());
        let f = exported.exports.node(handle.bytes()).unwrap().unwrap();
        assert_eq!(f.attributes().unwrap().file_id, id);
        assert_eq!(exported.exports.handle(&f), handle);
        drop(f);
        fs::remove_file(disk.path().join("other")).unwrap();
        let stale = exported.exports.node(handle.bytes()).unwrap_err();
        assert_eq!(
            stale,
            FileError::Stale(StaleReason::Deleted),
            "{}",
            disk.kind
        );
        // What has the number of the deleted file then is another file.
        for file in 0..64 {
            put(&disk.path().join(format!("{file}")), b"", 0, 0o644);
        }
        let stale = exported.exports.node(handle.bytes()).unwrap_err();
        assert_eq!(
            stale,
            FileError::Stale(StaleReason::Deleted),
            "{}",
            disk.kind
        );
    }
}

#[test]
fn root_a_deleted_file_has_its_handle_while_it_is_open() {
    own_mounts();
    for disk in Disk::each("root_a_deleted_file_has_its_handle_while_it_is_open") {
        let exported = Exported::new(&disk.path());
        let root = exported.caller(0);
        put(&disk.path().join("f"), b"data", 0, 0o644);
        let f = exported
            .root()
            .lookup(&exported.exports, &root, name("f"))
            .unwrap();
        let handle = exported.exports.handle(&f);
        let open = f.open(&root, OpenAccess::Both, false).unwrap();
        drop(f);
        fs::remove_file(disk.path().join("f")).unwrap();
        let again = || exported.exports.node(handle.bytes());
        let node = again().unwrap().unwrap();
        let found = node.attributes().unwrap();
        assert_eq!(
            (found.size_bytes, found.link_count),
            (4, 0),
            "{}",
            disk.kind
        );
        // It can be changed and opened as before.
        let (_, set) = node.set_attributes(&root, &support::mode(0o600), Some(&open));
        set.unwrap();
        let second = node.open(&root, OpenAccess::Read, false).unwrap();
        let mut data = [0; 4];
        assert_eq!(second.read(&mut data, 0), Ok(4));
        drop((node, second, open));
        let stale = FileError::Stale(StaleReason::Deleted);
        assert_eq!(again().unwrap_err(), stale, "{}", disk.kind);
    }
}

#[test]
fn root_what_was_not_given_out_opens_nothing() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let folder = disk.path().join("exported");
    fs::create_dir(&folder).unwrap();
    put(&disk.path().join("secret"), b"secret", 0, 0o644);
    let exported = Exported::new(&folder);
    // The kernel would open it: it is on the same file system.
    let whole = Exported::new(&disk.path());
    let secret = whole
        .root()
        .lookup(&whole.exports, &whole.caller(0), name("secret"))
        .unwrap();
    let kernel = secret.kernel_handle();
    assert!(Node::open_handle(&exported.export, kernel).is_ok());
    let (id, disk_id) = (exported.export.id(), exported.export.file_system());
    let guessed = Key::from_bytes([6; capstan_exports::key::KEY_BYTES]);
    let forged = Handle::of_file(&guessed, disk_id, id, kernel);
    let stale = |handle: Handle| exported.exports.node(handle.bytes()).unwrap_err();
    assert_eq!(stale(forged), FileError::Stale(StaleReason::Mac));
    let elsewhere = Handle::of_file(&KEY, FileSystemId([9; 16]), id, kernel);
    assert_eq!(stale(elsewhere), FileError::Stale(StaleReason::Mac));
    let nowhere = Handle::of_file(&KEY, disk_id, capstan_exports::ExportId(3), kernel);
    assert_eq!(
        stale(nowhere),
        FileError::Stale(StaleReason::NoSuchExport(3))
    );
    for bytes in [&b""[..], b"x", &[3; 64], &[0xff; 128]] {
        assert!(
            matches!(exported.exports.node(bytes), Err(FileError::BadHandle(_))),
            "{bytes:?}"
        );
    }
    let pseudo = exported
        .exports
        .pseudo_handle(exported.exports.tree().above_export(id).unwrap());
    assert!(exported.exports.node(pseudo.bytes()).unwrap().is_none());
    assert!(matches!(
        exported.exports.find(pseudo.bytes()),
        Ok(Found::Pseudo(_))
    ));
}

#[test]
fn root_names_lead_down_and_symbolic_links_nowhere() {
    own_mounts();
    for disk in Disk::each("root_names_lead_down_and_symbolic_links_nowhere") {
        let exported = Exported::new(&disk.path());
        let root = exported.caller(0);
        symlink("/etc/passwd", disk.path().join("link")).unwrap();
        fs::create_dir(disk.path().join("d")).unwrap();
        symlink("d", disk.path().join("to-d")).unwrap();
        put(&disk.path().join("d/größer"), b"", 0, 0o644);
        let lookup = |at: &Node, text| at.lookup(&exported.exports, &root, name(text));
        let top = exported.root();
        let link = lookup(&top, "link").unwrap();
        assert_eq!(link.file_type(), FileType::Symlink);
        assert_eq!(link.read_link(&root).unwrap(), b"/etc/passwd");
        assert_eq!(
            exported.again(&link).unwrap().read_link(&root).unwrap(),
            b"/etc/passwd"
        );
        let to_d = lookup(&top, "to-d").unwrap();
        assert!(matches!(
            lookup(&to_d, "größer"),
            Err(FileError::WrongType { .. })
        ));
        let d = lookup(&top, "d").unwrap();
        assert!(lookup(&d, "größer").is_ok());
        refused(lookup(&d, "nothing"), Errno::ENOENT);
        assert!(matches!(
            d.read_link(&root),
            Err(FileError::WrongType { .. })
        ));
        let raw = Name::new(b"\xff\xfe", NameRule::Raw).unwrap();
        refused(d.lookup(&exported.exports, &root, raw), Errno::ENOENT);
    }
}

#[test]
fn root_parents_end_at_the_root_of_the_export() {
    own_mounts();
    for disk in Disk::each("root_parents_end_at_the_root_of_the_export") {
        for below in [true, false] {
            let top = if below {
                disk.path().join("top")
            } else {
                disk.path()
            };
            fs::create_dir_all(top.join("a/b/c")).unwrap();
            let exported = Exported::new(&top);
            let root = exported.caller(0);
            let mut at = exported.root();
            for text in ["a", "b", "c"] {
                at = at.lookup(&exported.exports, &root, name(text)).unwrap();
            }
            for _ in 0..3 {
                at = exported.again(&at).unwrap().parent(&root).unwrap();
            }
            assert!(at.is_root());
            assert_eq!(at.parent(&root).unwrap_err(), FileError::AtRoot);
        }
    }
}

#[test]
fn root_a_directory_that_was_moved_out_leads_nowhere_above() {
    own_mounts();
    for disk in Disk::each("root_a_directory_that_was_moved_out_leads_nowhere_above") {
        let top = disk.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(disk.path().join("secret")).unwrap();
        let exported = Exported::new(&top);
        let root = exported.caller(0);
        let a = exported
            .root()
            .lookup(&exported.exports, &root, name("a"))
            .unwrap();
        let b = a.lookup(&exported.exports, &root, name("b")).unwrap();
        assert!(b.parent(&root).is_ok());
        fs::rename(top.join("a/b"), disk.path().join("secret/b")).unwrap();
        assert_eq!(
            b.parent(&root).unwrap_err(),
            FileError::OutsideExport,
            "{}",
            disk.kind
        );
        // The same through a mount of the directory alone, where the kernel looks.
        fs::create_dir_all(top.join("a/b")).unwrap();
        let bound = disk.path().join("bound");
        fs::create_dir(&bound).unwrap();
        run(
            "mount",
            &["--bind", top.to_str().unwrap(), bound.to_str().unwrap()],
        )
        .unwrap();
        let exported = Exported::new(&bound);
        let root = exported.caller(0);
        let a = exported
            .root()
            .lookup(&exported.exports, &root, name("a"))
            .unwrap();
        let b = a.lookup(&exported.exports, &root, name("b")).unwrap();
        assert!(b.parent(&root).is_ok());
        fs::rename(top.join("a/b"), disk.path().join("secret/b2")).unwrap();
        refused(b.parent(&root), Errno::ENOENT);
    }
}

#[test]
fn root_a_directory_has_a_parent_however_deep_it_is() {
    use nix::fcntl::{OFlag, openat};
    use nix::sys::stat::{Mode, mkdirat};
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    let top = disk.path().join("top");
    fs::create_dir(&top).unwrap();
    let exported = Exported::new(&top);
    let root = exported.caller(0);
    let mut at = exported.root();
    let mut open = std::os::fd::OwnedFd::from(fs::File::open(&top).unwrap());
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    for depth in 1..=5000 {
        mkdirat(&open, "d", Mode::S_IRWXU).unwrap();
        open = openat(&open, "d", flags, Mode::empty()).unwrap();
        at = at.lookup(&exported.exports, &root, name("d")).unwrap();
        // What one step leads up, a level less and a level more.
        if depth % 1000 == 0 || (1023..=1026).contains(&depth) {
            let parent = at.parent(&root).unwrap();
            assert_eq!(parent.parent(&root).is_ok(), depth > 1, "{depth}");
        }
    }
    fs::rename(top.join("d"), disk.path().join("out")).unwrap();
    assert_eq!(at.parent(&root).unwrap_err(), FileError::OutsideExport);
}

#[test]
fn root_a_directory_without_a_file_system_id_or_handles_is_refused_by_name() {
    own_mounts();
    let open = |path: &str| Exports::open(KEY, vec![settings(path.as_ref(), "/x")]);
    let said = open("/proc/self").unwrap_err();
    assert!(matches!(said, ExportError::NoHandles { .. }), "{said}");
    let said = open("/nothing/here").unwrap_err().to_string();
    assert!(
        said.contains("exporting /nothing/here: opening it: ENOENT"),
        "{said}"
    );
    let disk = Disk::of("", "tmpfs").unwrap();
    let twice = vec![settings(&disk.path(), "/x"), settings(&disk.path(), "/x")];
    assert!(matches!(
        Exports::open(KEY, twice).unwrap_err(),
        ExportError::SameId { .. }
    ));
    let below = vec![settings(&disk.path(), "/x"), settings(&disk.path(), "/x/y")];
    let said = Exports::open(KEY, below).unwrap_err();
    assert!(
        matches!(said, ExportError::NotMountedThere { .. }),
        "{said}"
    );
}

#[test]
fn root_a_callers_identity_is_of_one_export() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    fs::create_dir(disk.path().join("a")).unwrap();
    let both = [
        settings(&disk.path(), "/a"),
        settings(&disk.path().join("a"), "/b"),
    ];
    let exported = Exported::of(both.to_vec());
    let other = exported.exports.by_client_path("/b").unwrap();
    let of_other = support::caller(&other, 0, &[]);
    let top = exported.root();
    let said = top
        .lookup(&exported.exports, &of_other, name("a"))
        .unwrap_err();
    assert!(matches!(said, FileError::OtherExport { .. }), "{said}");
    let attributes = support::mode(0o644);
    let said = top
        .make_directory(&of_other, name("x"), &attributes)
        .unwrap_err();
    assert!(matches!(said, FileError::OtherExport { .. }), "{said}");
}
