//! What one client can have of the places for open files and for those with unsynced data.

mod support;

use std::sync::Arc;

use capstan_exports::cache::OpenFiles;
use capstan_exports::unsynced::{Stable, UnsyncedFiles, WriterId};
use capstan_exports::{OpenAccess, OpenFile};
use support::{Disk, Exported, name, own_mounts, put};

/// So many files of a user, found and not open.
fn files_of(disk: &Disk, count: usize) -> (Exported, Vec<capstan_exports::Node>) {
    let exported = Exported::new(&disk.path());
    let user = exported.caller(1000);
    let find = |at: usize| {
        let text = at.to_string();
        put(&disk.path().join(&text), b"", 1000, 0o644);
        let root = exported.root();
        root.lookup(&exported.exports, &user, name(&text)).unwrap()
    };
    let nodes = (0..count).map(find).collect();
    (exported, nodes)
}

#[test]
fn root_unsynced_files_take_no_place_from_those_kept_open() {
    own_mounts();
    let disk = Disk::of("", "tmpfs").unwrap();
    let (exported, nodes) = files_of(&disk, 9);
    let user = exported.caller(1000);
    let (cached, unsynced) = (OpenFiles::new(4), UnsyncedFiles::new(64));
    // Nothing keeps a file open but the tables, as between two requests.
    for node in &nodes[..8] {
        let file = cached.open(node, &user, OpenAccess::Write).unwrap();
        let data = b"x"[..].into();
        let how = Stable::Unstable;
        let written = unsynced.write(WriterId(1), &user, &file, data, 0, how);
        assert_eq!(written, Ok((1, Stable::Unstable)));
    }
    assert_eq!((cached.count(), unsynced.count()), (4, 8));
    cached.open(&nodes[8], &user, OpenAccess::Read).unwrap();
    assert_eq!(cached.count(), 4);
    for node in &nodes[..8] {
        let committed = unsynced.commit_node(WriterId(1), &user, node);
        assert_eq!(committed, Ok(unsynced.verifier()));
    }
    assert_eq!(unsynced.count(), 0);
}

#[test]
fn root_one_writer_leaves_places_to_others_and_gives_back_what_it_left() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let (exported, nodes) = files_of(&disk, 20);
    let user = exported.caller(1000);
    let open = |node: &capstan_exports::Node| -> Arc<OpenFile> {
        Arc::new(node.open(&user, OpenAccess::Write, false).unwrap())
    };
    let open: Vec<_> = nodes.iter().map(open).collect();
    let files = UnsyncedFiles::new(8);
    let verifier = files.verifier();
    let write = |writer, at: usize| {
        let data = b"x"[..].into();
        let how = Stable::Unstable;
        let written = files.write(WriterId(writer), &user, &open[at], data, 0, how);
        written.unwrap().1
    };
    let kept = |writer, from: usize| {
        let of = (from..20).take_while(|at| write(writer, *at) == Stable::Unstable);
        of.count()
    };
    assert_eq!(kept(1, 0), 6, "three quarters");
    assert_eq!(write(1, 0), Stable::Unstable, "a file that has its place");
    assert_eq!(files.count(), 6);
    // The first one never commits. It loses its oldest files until both have as many.
    assert_eq!(kept(2, 10), 4);
    assert_eq!(files.count(), 7, "one stays for the next writer");
    assert_eq!(write(3, 19), Stable::Unstable);
    // What made room is on the disk, and its writer is told nothing else.
    let committed = files.commit_node(WriterId(1), &user, &nodes[0]);
    assert_eq!(committed, Ok(verifier));
    for writer in 1..=3 {
        files.end_writer(WriterId(writer));
    }
    assert_eq!((files.count(), files.verifier()), (0, verifier));
    assert_eq!(kept(4, 0), 6, "all places are free again");
}

#[test]
fn root_a_file_that_is_being_written_makes_no_room() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let (exported, nodes) = files_of(&disk, 5);
    let user = exported.caller(1000);
    let open = |at: usize| Arc::new(nodes[at].open(&user, OpenAccess::Write, false).unwrap());
    let files = UnsyncedFiles::new(3);
    let write = |writer, file: &Arc<OpenFile>| {
        let data = b"x"[..].into();
        let how = Stable::Unstable;
        let written = files.write(WriterId(writer), &user, file, data, 0, how);
        written.unwrap().1
    };
    let (first, second) = (open(0), open(1));
    let within = files.change(WriterId(1), &first, Stable::Unstable, || {
        files.change(WriterId(1), &second, Stable::Unstable, || {
            let third = write(2, &open(2));
            // A commit meanwhile does not cover what is not written yet.
            files.commit(WriterId(1), &first)?;
            Ok((third, files.count()))
        })
    });
    let (((third, count), _), _) = within.unwrap();
    assert_eq!((third, count), (Stable::Data, 2));
    assert_eq!(files.count(), 2);
    assert_eq!(write(2, &open(3)), Stable::Unstable, "in the place of one");
    files.commit(WriterId(1), &first).unwrap();
    files.commit(WriterId(1), &second).unwrap();
    assert_eq!(files.count(), 1);
}

#[test]
fn root_what_an_export_that_is_given_up_has_unsynced_is_handed_out() {
    own_mounts();
    let disk = Disk::of("", "ext4").unwrap();
    let (exported, nodes) = files_of(&disk, 2);
    let user = exported.caller(1000);
    let files = UnsyncedFiles::new(8);
    for node in &nodes {
        let file = Arc::new(node.open(&user, OpenAccess::Write, false).unwrap());
        let data = b"x"[..].into();
        let written = files.write(WriterId(1), &user, &file, data, 0, Stable::Unstable);
        assert_eq!(written, Ok((1, Stable::Unstable)));
    }
    assert!(files.give_up_exports(|_| false).is_empty());
    let id = exported.export.id();
    drop((nodes, exported));
    let given_up = files.give_up_exports(|other| other == id);
    assert_eq!(files.count(), 0);
    support::run("umount", &[disk.path().to_str().unwrap()]).unwrap_err();
    given_up.sync();
    disk.unmount();
}
