//! What is told of a directory that an operation has changed.

mod support;

use std::thread;

use capstan_exports::entries::{Create, Removed, Special};
use capstan_exports::{EntriesChanged, OpenAccess};

use support::{Disk, Exported, mode, name, own_mounts};

/// Each begins with what the one before has left. A tmpfs does not show all changes, so nothing is
/// promised of it.
#[track_caller]
fn check_chain(kind: &str, changes: &[EntriesChanged]) {
    for pair in changes.windows(2) {
        assert_eq!(pair[0].after.change, pair[1].before.change, "{kind}");
    }
    for (at, change) in changes.iter().enumerate() {
        assert_eq!(change.is_atomic, kind != "tmpfs", "{kind}: {at}");
        assert!(change.after.change > change.before.change, "{kind}: {at}");
    }
}

#[test]
fn root_a_client_that_is_alone_learns_so_of_each_change() {
    let test = "root_a_client_that_is_alone_learns_so_of_each_change";
    if !support::tells_changes_apart(test) {
        return;
    }
    own_mounts();
    for disk in Disk::each(test) {
        let exported = Exported::new(&disk.path());
        let (top, user) = (exported.root(), exported.caller(1000));
        let mut seen = Vec::new();
        let how = Create::Guarded;
        let f = top
            .create(&user, name("f"), how, &mode(0o444), OpenAccess::Both)
            .unwrap();
        seen.extend(f.directory);
        let verifier = Create::Exclusive([1; 8]);
        let g = top
            .create(&user, name("g"), verifier, &mode(0o644), OpenAccess::Both)
            .unwrap();
        seen.extend(g.directory);
        let (d, change) = top.make_directory(&user, name("d"), &mode(0o755)).unwrap();
        seen.push(change);
        let made = top.make_symlink(&user, name("l"), b"f", &mode(0));
        seen.push(made.unwrap().1);
        let made = top.make_special(&user, name("p"), Special::Fifo, &mode(0o600));
        seen.push(made.unwrap().1);
        seen.push(top.link(&user, name("h"), &f.node).unwrap());
        let [source, target] = top.rename(&user, name("h"), &top, name("i")).unwrap();
        assert_eq!(source, target);
        seen.push(source);
        let [source, of_d] = top.rename(&user, name("i"), &d, name("i")).unwrap();
        seen.push(source);
        // In the place of another one.
        let [of_d_again, target] = d.rename(&user, name("i"), &top, name("p")).unwrap();
        seen.push(target);
        for text in ["f", "g", "d", "l", "p"] {
            seen.push(top.remove(&user, name(text), Removed::Any).unwrap());
        }
        check_chain(disk.kind, &seen);
        check_chain(disk.kind, &[of_d, of_d_again]);
        assert_eq!(seen.len(), 14);
    }
}

#[test]
fn root_a_rename_that_changes_nothing_is_told_so() {
    let test = "root_a_rename_that_changes_nothing_is_told_so";
    if !support::tells_changes_apart(test) {
        return;
    }
    own_mounts();
    for disk in Disk::each(test) {
        let exported = Exported::new(&disk.path());
        let (top, user) = (exported.root(), exported.caller(1000));
        let how = Create::Guarded;
        let f = top
            .create(&user, name("f"), how, &mode(0o644), OpenAccess::Both)
            .unwrap();
        top.link(&user, name("h"), &f.node).unwrap();
        let before = top.attributes().unwrap();
        // To itself, and to another name of the same file (rename(2)).
        for to in ["f", "h"] {
            for changed in top.rename(&user, name("f"), &top, name(to)).unwrap() {
                if disk.kind == "tmpfs" {
                    assert!(!changed.is_atomic, "{to}");
                    continue;
                }
                assert!(changed.is_atomic, "{} {to}", disk.kind);
                assert_eq!((changed.before, changed.after), (before, before), "{to}");
            }
        }
    }
}

#[test]
fn root_clients_change_a_directory_one_after_the_other() {
    const CLIENTS: usize = 4;
    const FILES: usize = 25;
    let test = "root_clients_change_a_directory_one_after_the_other";
    if !support::tells_changes_apart(test) {
        return;
    }
    own_mounts();
    for disk in Disk::each(test) {
        let exported = Exported::new(&disk.path());
        let (d, _) = exported
            .root()
            .make_directory(&exported.caller(0), name("d"), &mode(0o777))
            .unwrap();
        let top = exported.root();
        let work = |client: usize| {
            let root = exported.caller(0);
            let mut seen = Vec::new();
            for at in 0..FILES {
                let text = format!("{client}-{at}");
                let how = Create::Guarded;
                let made = d.create(&root, name(&text), how, &mode(0o644), OpenAccess::Read);
                seen.extend(made.unwrap().directory);
                // Here and back, each with two directories in another order.
                let [of_d, _] = d.rename(&root, name(&text), &top, name(&text)).unwrap();
                let [_, again] = top.rename(&root, name(&text), &d, name(&text)).unwrap();
                seen.extend([of_d, again]);
            }
            seen
        };
        let mut seen: Vec<_> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| scope.spawn(move || work(client)))
                .collect();
            let seen = clients
                .into_iter()
                .flat_map(|client| client.join().unwrap());
            seen.collect()
        });
        seen.sort_by_key(|change| change.before.change);
        assert_eq!(seen.len(), CLIENTS * FILES * 3);
        check_chain(disk.kind, &seen);
    }
}
