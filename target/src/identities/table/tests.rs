use std::path::Path;

use capstan_config::{Config, Nqn, Subsystem, namespace_uuid};
use uuid::Uuid;

use crate::limits::{NAMESPACES_KEPT, NAMESPACES_TEXT_BYTES_MAX};

use super::{Medium, Shown, Table};

/// A file with this inode number under this path; `None`: nothing tells it.
fn on(path: &str, inode: Option<u32>) -> Medium {
    let mut facts = std::collections::BTreeMap::from([("kind".to_owned(), "file".to_owned())]);
    facts.extend(inode.map(|inode| ("inode".to_owned(), inode.to_string())));
    Medium {
        path: path.into(),
        id: facts.into(),
        boot: None,
        twins: Vec::new(),
    }
}

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.org.example:a").unwrap()
}

fn derived(nsid: u32) -> Uuid {
    namespace_uuid(&nqn(), nsid)
}

/// Chooses, and remembers. The UUID, and whether another medium was there.
fn start(table: &mut Table, nsid: u32, medium: &Medium, written: Option<Uuid>) -> (Uuid, bool) {
    let choice = table.choose(&nqn(), nsid, medium, written, derived(nsid));
    table.remember(&what_is_shown(nsid, choice.uuid, Some(medium.clone())));
    (choice.uuid, choice.before.is_some())
}

fn what_is_shown(nsid: u32, uuid: Uuid, on: Option<Medium>) -> Shown {
    let nqn = nqn();
    Shown {
        nqn,
        nsid,
        uuid,
        on,
    }
}

/// Whether hosts have seen others where this one is now.
fn is_other(table: &Table, nsid: u32, uuid: Uuid) -> bool {
    table.has_shown_others(&nqn(), nsid, uuid)
}

#[test]
fn where_hosts_have_seen_others_that_stays_so() {
    let mut table = Table::default();
    let (a, b) = (on("/a", Some(1)), on("/b", Some(2)));
    let (of_a, _) = start(&mut table, 1, &a, None);
    assert!(!is_other(&table, 1, of_a));
    let (of_b, _) = start(&mut table, 1, &b, None);
    // Also once more, and back: some host may have missed all of it.
    for medium in [&b, &b, &a, &a] {
        let (uuid, _) = start(&mut table, 1, medium, None);
        assert!(is_other(&table, 1, uuid));
    }
    // The UUID goes with its data to another place: nothing else is remembered of this one.
    start(&mut table, 2, &b, Some(of_b));
    start(&mut table, 3, &a, Some(of_a));
    let (of_c, _) = start(&mut table, 1, &on("/c", Some(3)), None);
    assert!(of_c != derived(1) && is_other(&table, 1, of_c));
    assert!(!is_other(&table, 2, of_b));
    // A copy that has the UUID of what it was copied from is what hosts have.
    start(&mut table, 3, &on("/copy", Some(4)), Some(of_a));
    assert!(!is_other(&table, 3, of_a));
}

#[test]
fn what_did_not_last_was_seen_as_well() {
    let mut table = Table::default();
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    assert!(table.remember(&what_is_shown(1, first, None)));
    assert!(!is_other(&table, 1, first));
    assert!(is_other(&table, 1, second), "memory of another process");
    let (of_a, _) = start(&mut table, 1, &on("/a", Some(1)), None);
    assert!(is_other(&table, 1, of_a), "a file in its place");
    // Of what was in memory under a path until the machine started anew, no medium is kept.
    let shm = Medium {
        boot: Some(first),
        ..on("/dev/shm/a", Some(1))
    };
    let (in_memory, _) = start(&mut table, 2, &shm, None);
    table.forget_other_boots(second);
    let (of_b, _) = start(&mut table, 2, &on("/b", Some(2)), None);
    assert!(of_b != in_memory && is_other(&table, 2, of_b));
}

#[test]
fn what_is_cut_off_counts_as_seen() {
    let mut table = Table::default();
    let (of_a, _) = start(&mut table, 1, &on("/a", Some(1)), None);
    for nsid in 2..=u32::try_from(NAMESPACES_KEPT).unwrap() {
        table.see(&nqn(), nsid, of_a);
    }
    assert!(!is_other(&table, 1, of_a) && !is_other(&table, u32::MAX, of_a));
    table.see(&nqn(), u32::MAX, of_a);
    assert_eq!(table.seen.len(), NAMESPACES_KEPT);
    assert!(is_other(&table, 1, of_a), "it is not known any more");
    let (other, _) = start(&mut table, 7_000_000, &on("/b", Some(2)), None);
    assert!(other != derived(7_000_000) && is_other(&table, 7_000_000, other));
    let text = toml::to_string(&table).unwrap();
    assert_eq!(toml::from_str::<Table>(&text).unwrap(), table);
    assert!(text.len() as u64 <= NAMESPACES_TEXT_BYTES_MAX);
}

#[test]
fn a_medium_has_its_uuid_wherever_it_is_and_another_one_never_gets_it() {
    let mut table = Table::default();
    let (a, b) = (on("/a", Some(1)), on("/b", Some(2)));
    assert_eq!(start(&mut table, 1, &a, None), (derived(1), false));
    assert_eq!(start(&mut table, 1, &a, None), (derived(1), false));
    // Moved.
    let moved = on("/moved", Some(1));
    assert_eq!(start(&mut table, 1, &moved, None), (derived(1), false));
    // Another path; and under the path of the first one another file.
    let (of_b, is_other) = start(&mut table, 1, &b, None);
    assert!(is_other && of_b != derived(1));
    let (of_c, is_other) = start(&mut table, 1, &on("/a", Some(3)), None);
    assert!(is_other && of_c != derived(1) && of_c != of_b);
    // Back.
    assert_eq!(start(&mut table, 1, &b, None), (of_b, true));
    assert_eq!(start(&mut table, 1, &a, None), (derived(1), true));
    // Another place is another namespace.
    assert_eq!(start(&mut table, 2, &b, None), (derived(2), false));
    // The same without a memory of it: nothing depends on what could be written down.
    let mut forgetful = Table::default();
    start(&mut forgetful, 1, &a, None);
    assert_eq!(start(&mut forgetful, 1, &b, None), (of_b, true));
}

#[test]
fn what_nothing_tells_is_known_by_its_path() {
    let mut table = Table::default();
    start(&mut table, 1, &on("/dev/x", None), None);
    let (same, is_other) = start(&mut table, 1, &on("/dev/x", None), None);
    assert_eq!((same, is_other), (derived(1), false));
    // A kernel that tells more.
    let more = on("/dev/x", Some(7));
    assert_eq!(start(&mut table, 1, &more, None), (derived(1), false));
    let (other, is_other) = start(&mut table, 1, &on("/dev/y", None), None);
    assert!(is_other && other != derived(1));
    let (third, _) = start(&mut table, 1, &on("/dev/z", None), None);
    assert_ne!(third, other);
}

#[test]
fn a_written_uuid_stands_and_belongs_to_what_had_it_last() {
    let mut table = Table::default();
    let (a, b) = (on("/a", Some(1)), on("/b", Some(2)));
    start(&mut table, 1, &a, None);
    // A copy goes on under the old name, also when the line is taken out.
    let pinned = Some(derived(1));
    assert_eq!(start(&mut table, 1, &b, pinned), (derived(1), true));
    assert_eq!(start(&mut table, 1, &b, None), (derived(1), false));
    // What it was copied from is behind it by now.
    let (stale, is_other) = start(&mut table, 1, &a, None);
    assert!(is_other && stale != derived(1));
    // The name went to another NSID with the data.
    let mut table = Table::default();
    start(&mut table, 1, &a, None);
    assert_eq!(start(&mut table, 5, &a, pinned), (derived(1), false));
    let (other, _) = start(&mut table, 1, &b, None);
    assert_ne!(other, derived(1));
}

#[test]
fn a_snapshot_beside_what_it_is_of_is_another_medium() {
    let mut table = Table::default();
    start(&mut table, 1, &on("/srv/a", Some(1)), None);
    let snapshot = Medium {
        twins: vec!["/srv/a".into()],
        ..on("/snapshot/a", Some(1))
    };
    let (uuid, is_other) = start(&mut table, 1, &snapshot, None);
    assert!(is_other && uuid != derived(1));
}

#[test]
fn memory_under_a_path_is_forgotten_with_its_boot() {
    let mut table = Table::default();
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let shm = |boot| Medium {
        boot: Some(boot),
        ..on("/dev/shm/a", Some(1))
    };
    start(&mut table, 1, &on("/a", Some(1)), None);
    start(&mut table, 2, &shm(first), None);
    table.forget_other_boots(second);
    let nsids: Vec<_> = table.all().iter().map(|known| known.nsid).collect();
    assert_eq!(nsids, [1]);
    let (a, _) = start(&mut table, 1, &shm(first), None);
    table.forget_other_boots(second);
    let (b, _) = start(&mut table, 1, &shm(second), None);
    assert_ne!(a, b);
}

fn subsystem(entries: &[&str]) -> Subsystem {
    let mut toml = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
                    nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n"
        .to_owned();
    for entry in entries {
        toml += &format!("[[subsystem.namespace]]\n{entry}\n");
    }
    Config::from_toml(&toml).unwrap().subsystems.remove(0)
}

/// The inode is the last byte of the path.
fn medium_at(path: &Path) -> Option<Medium> {
    let text = path.to_str()?;
    Some(on(text, text.bytes().last().map(Into::into)))
}

/// Starts with these entries after what `table` remembers: path or size, and NSID.
fn numbers(table: &mut Table, entries: &[&str], served: Option<&Subsystem>) -> Subsystem {
    let mut subsystem = subsystem(entries);
    table.number(&mut subsystem, served, medium_at);
    for namespace in &subsystem.namespaces {
        if let capstan_config::Backing::Path(path) = &namespace.backing {
            start(table, namespace.nsid, &medium_at(path).unwrap(), None);
        }
    }
    subsystem
}

fn shown(subsystem: &Subsystem) -> Vec<String> {
    let namespaces = subsystem.namespaces.iter();
    namespaces
        .map(|n| format!("{} {}", n.nsid, n.backing))
        .collect()
}

#[test]
fn an_entry_without_nsid_keeps_the_one_that_hosts_know_it_by() {
    let mut table = Table::default();
    let [a, b, c] = ["path = \"/a\"", "path = \"/b\"", "path = \"/c\""];
    let fixed = "path = \"/x\"\nnsid = 1";
    for (entries, expected) in [
        (vec![a, b], vec!["1 /a", "2 /b"]),
        // The first goes.
        (vec![b], vec!["2 /b"]),
        // Others come before it, and the first comes back.
        (vec![c, b], vec!["1 /c", "2 /b"]),
        (vec![a, b, c], vec!["1 /c", "2 /b", "3 /a"]),
        // Turned round, and moved.
        (vec![c, a, b], vec!["1 /c", "2 /b", "3 /a"]),
        (vec!["path = \"/moved/b\""], vec!["2 /moved/b"]),
        // A written one has the word.
        (vec![fixed, c], vec!["1 /x", "2 /c"]),
    ] {
        let found = shown(&numbers(&mut table, &entries, None));
        assert_eq!(found, expected);
    }
}

#[test]
fn what_is_served_is_not_renumbered_by_a_reload() {
    let mut table = Table::default();
    let [small, large] = ["ram = 4096", "ram = 8192"];
    let first = numbers(&mut table, &[small, "path = \"/a\"", large], None);
    assert_eq!(shown(&first), ["1 ram:4KiB", "2 /a", "3 ram:8KiB"]);
    let second = numbers(&mut table, &[large], Some(&first));
    assert_eq!(shown(&second), ["3 ram:8KiB"]);
    // What was there once does not push away what is served.
    let third = numbers(&mut table, &[small, large], Some(&second));
    assert_eq!(shown(&third), ["1 ram:4KiB", "3 ram:8KiB"]);
    let both = ["path = \"/a\"", large, "null = 4096"];
    let fourth = numbers(&mut table, &both, Some(&third));
    assert_eq!(shown(&fourth), ["1 null:4KiB", "2 /a", "3 ram:8KiB"]);
    // In the place of a path that is taken out at the same time.
    let fifth = numbers(&mut table, &["path = \"/b\"", large], Some(&fourth));
    assert_eq!(shown(&fifth), ["1 /b", "3 ram:8KiB"]);
}

#[test]
fn a_table_comes_back_from_its_file_and_is_bounded() {
    let mut table = Table::default();
    start(&mut table, 1, &on("/a", Some(1)), None);
    start(&mut table, 1, &on("/b \"quoted\"", None), None);
    let text = toml::to_string(&table).unwrap();
    assert_eq!(toml::from_str::<Table>(&text).unwrap(), table);
    let (medium, uuid) = (on("/c", Some(3)), Uuid::from_u128(3));
    let third = what_is_shown(3, uuid, Some(medium));
    assert!(table.remember(&third));
    assert!(!table.remember(&third), "it is known");
    assert_eq!(table.all().len(), 3);
}
