//! What is kept is found again; what is damaged is told, and lets no host in.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::reservation::ReservationType;
use capstan_subsystem::{KeptReservations, Persistence};
use uuid::Uuid;

use super::{Named, Reservations, file_name, unreadable};

const NAMESPACE: Uuid = Uuid::from_u128(7);

fn reservations(folder: &Path) -> Reservations {
    Reservations::in_folder(Some(folder.to_owned()))
}

fn found(folder: &Path) -> Persistence {
    reservations(folder).found(NAMESPACE, named())
}

fn named() -> Named {
    Named {
        subnqn: Nqn::new("nqn.2026-11.org.example:a").unwrap(),
        nsid: 3,
        path: "/srv/a".into(),
    }
}

fn kept(rtype: u8) -> KeptReservations {
    KeptReservations {
        generation: u32::MAX,
        held: Some((ReservationType(rtype), [1; 16])),
        registrants: BTreeMap::from([([1; 16], u64::MAX), ([2; 16], 0)]),
        is_unknown: false,
    }
}

fn write(folder: &Path, state: Option<&KeptReservations>) -> bool {
    let all = reservations(folder);
    all.found(NAMESPACE, named());
    all.write(NAMESPACE, &state.cloned())
}

/// What a namespace has that comes in the place of one with its UUID.
fn refreshed(all: &Reservations, mut found: Persistence) -> Persistence {
    all.refresh(Some(NAMESPACE), &mut found);
    found
}

#[test]
fn every_state_is_found_by_the_next_process_and_nothing_once_it_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(found(folder), Persistence::Ready);
    let states = (1..=6).map(kept);
    let others = [
        KeptReservations::default(),
        KeptReservations {
            is_unknown: true,
            held: None,
            ..kept(1)
        },
    ];
    for state in states.chain(others) {
        assert!(write(folder, Some(&state)));
        assert_eq!(found(folder), Persistence::Found(state));
    }
    assert!(write(folder, None));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    assert_eq!(found(folder), Persistence::Ready);
    // Forgotten twice.
    assert!(write(folder, None));
}

#[test]
fn without_a_folder_nothing_can_persist() {
    let none = Reservations::in_folder(None);
    assert_eq!(none.found(NAMESPACE, named()), Persistence::None);
}

/// A reload that takes a namespace out and puts it back in does not wait for the disk.
#[test]
fn what_is_about_to_be_written_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let all = reservations(folder.path());
    assert_eq!(refreshed(&all, Persistence::Unknown), Persistence::Unknown);
    assert_eq!(all.found(NAMESPACE, named()), Persistence::Ready);
    for state in [Some(kept(1)), None] {
        let expected = state.clone().map_or(Persistence::Ready, Persistence::Found);
        all.note(NAMESPACE, &state);
        assert_eq!(all.found(NAMESPACE, named()), expected);
        assert_eq!(refreshed(&all, Persistence::Ready), expected);
        // On a medium that does not last, it is another namespace.
        assert_eq!(refreshed(&all, Persistence::None), Persistence::None);
    }
}

#[test]
fn what_cannot_be_written_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gone = folder.join("gone");
    assert!(!write(&gone, Some(&kept(1))));
    assert!(!write(&gone, None));
    assert!(write(folder, Some(&kept(1))));
    let all = reservations(folder);
    let before = Persistence::Found(kept(1));
    assert_eq!(all.found(NAMESPACE, named()), before);
    // What is written first has no place to be.
    let new = folder.join(format!(".{}.{}", file_name(NAMESPACE), std::process::id()));
    fs::create_dir(&new).unwrap();
    all.note(NAMESPACE, &Some(kept(2)));
    assert!(!all.write(NAMESPACE, &Some(kept(2))));
    assert_eq!(all.found(NAMESPACE, named()), before);
    assert_eq!(found(folder), before);
    fs::remove_dir(&new).unwrap();
    assert!(all.write(NAMESPACE, &Some(kept(2))));
    assert_eq!(found(folder), Persistence::Found(kept(2)));
}

#[test]
fn a_damaged_file_is_no_reservation_that_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(write(folder, Some(&kept(2))));
    let file = folder.join(file_name(NAMESPACE));
    let whole = fs::read_to_string(&file).unwrap();
    assert!(whole.contains("/srv/a"), "for an operator: {whole}");
    let other = Uuid::from_u128(8).to_string();
    let uuid = NAMESPACE.to_string();
    let ones = "01010101010101010101010101010101";
    let twos = "02020202020202020202020202020202";
    let without_last_line = whole.trim_end().rsplit_once('\n').unwrap().0.to_owned();
    let sum = |text: String| {
        let text = text.rsplit_once("# checksum").unwrap().0.to_owned();
        format!(
            "{text}# checksum {:08x}\n",
            crc_fast::crc32_iscsi(text.as_bytes())
        )
    };
    let without_registrants = whole.split_once("[[registrant]]").unwrap().0.to_owned();
    let damages = [
        (String::new(), "missing field"),
        (whole[..whole.len() / 2].to_owned(), ""),
        (without_last_line, "its last line"),
        (without_registrants, "its last line"),
        (
            whole.replacen("4294967295", "4294967294", 1),
            "its checksum",
        ),
        (whole.replace(&uuid, &other), "its checksum"),
        (sum(whole.replace(&uuid, &other)), "the UUID"),
        (
            sum(whole.replace("\"exclusive-access\"", "\"mine\"")),
            "no type",
        ),
        (
            sum(whole.replacen(ones, "0101", 1)),
            "32 hexadecimal digits",
        ),
        (
            sum(whole.replace("ffffffffffffffff", "key")),
            "16 hexadecimal",
        ),
        (sum(whole.replace(twos, ones)), "registered twice"),
        (
            sum(whole.replacen(ones, "ff010101010101010101010101010101", 1)),
            "not registered",
        ),
        (" ".repeat(1 << 20), "longer than"),
    ];
    for (text, why) in damages {
        assert_ne!(text, whole, "{why}");
        fs::write(&file, &text).unwrap();
        let error = super::read(folder, NAMESPACE).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(found(folder), Persistence::Unknown);
        let told = named().lost(&file, &error);
        assert!(told.contains("namespace 3 of") && told.contains("resv-release"));
        // It is as it was: for the operator to look at.
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

/// It may be all that is left of what hosts relied on.
#[test]
fn what_is_damaged_is_kept_when_it_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = folder.join(file_name(NAMESPACE));
    for text in ["generation = \"", "generation = ["] {
        fs::write(&file, text).unwrap();
        let all = reservations(folder);
        assert_eq!(all.found(NAMESPACE, named()), Persistence::Unknown);
        for lines in [all.unknown(), unreadable(folder)] {
            let named = file.display().to_string();
            assert!(
                matches!(&lines[..], [line] if line.contains(&named)),
                "{lines:?}"
            );
        }
        assert!(all.write(NAMESPACE, &Some(kept(1))));
        assert_eq!(
            (all.unknown(), unreadable(folder)),
            (Vec::new(), Vec::new())
        );
        let aside = file.with_extension("toml.damaged");
        assert_eq!(fs::read_to_string(&aside).unwrap(), text);
        assert_eq!(found(folder), Persistence::Found(kept(1)));
        // Only once.
        assert!(all.write(NAMESPACE, &Some(kept(2))));
        assert_eq!(fs::read_to_string(&aside).unwrap(), text);
    }
}

/// One that is repaired, or restored, is found by the reload that puts the namespace back in.
#[test]
fn what_is_restored_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(write(folder, Some(&kept(1))));
    let file = folder.join(file_name(NAMESPACE));
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, "").unwrap();
    let all = reservations(folder);
    assert_eq!(all.found(NAMESPACE, named()), Persistence::Unknown);
    fs::write(&file, &whole).unwrap();
    let restored = Persistence::Found(kept(1));
    assert_eq!(all.found(NAMESPACE, named()), restored);
    assert!(all.write(NAMESPACE, &Some(kept(2))));
    assert_eq!(
        fs::read_dir(folder).unwrap().count(),
        1,
        "nothing put aside"
    );
}
