use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use capstan_config::{Config, Subsystem, namespace_uuid};
use capstan_storage::{DirectIo, Lifetime, MediumId, VolumeSpec};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use uuid::Uuid;

use crate::limits::NAMESPACES_TEXT_BYTES_MAX;

use super::{FILE, Identities, Kept, Told};

const BOOT: Uuid = Uuid::from_u128(1);

/// A state folder, and files beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("state")).unwrap();
        Self(root)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn image(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    }

    fn identities(&self) -> Identities {
        Identities::in_folder(Some(self.state()), BOOT).unwrap()
    }
}

fn config(entries: &[(&Path, &str)]) -> Config {
    let mut toml = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
                    nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n"
        .to_owned();
    for (path, keys) in entries {
        toml += &format!("[[subsystem.namespace]]\npath = {path:?}\n{keys}\n");
    }
    Config::from_toml(&toml).unwrap()
}

/// Starts a target: NSID and UUID of each namespace, and what is said of it.
fn start(identities: &mut Identities, entries: &[(&Path, &str)]) -> Vec<(u32, Uuid, String)> {
    let config = identities.number(&config(entries), None).unwrap();
    let said: Vec<_> = identities
        .expected(&config, None)
        .unwrap()
        .iter()
        .map(Told::to_string)
        .collect();
    let Subsystem {
        nqn, namespaces, ..
    } = &config.subsystems[0];
    let shown: Vec<_> = namespaces
        .iter()
        .map(|namespace| {
            let capstan_config::Backing::Path(path) = &namespace.backing else {
                panic!("a path")
            };
            let spec = VolumeSpec::Path {
                path: path.clone(),
                lba_bytes: None,
                read_only: false,
                direct: DirectIo::Off,
            };
            let store = spec.prepare().unwrap();
            let identity = identities.identity(nqn, namespace, &store).unwrap().shown;
            let uuid = identity.uuid.unwrap();
            assert_eq!(identity.nguid, Some(uuid.into_bytes()));
            (namespace.nsid, uuid)
        })
        .collect();
    assert_eq!(identities.keep().unwrap(), Kept::Yes);
    shown
        .into_iter()
        .zip(said)
        .map(|((nsid, uuid), said)| (nsid, uuid, said))
        .collect()
}

fn derived(nsid: u32) -> Uuid {
    namespace_uuid(&config(&[]).subsystems[0].nqn, nsid)
}

#[test]
fn what_a_namespace_was_on_outlives_the_process() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let (one, two) = ((a.as_path(), ""), (b.as_path(), ""));
    let again = |entries: &[_]| start(&mut place.identities(), entries);
    let lasts = Lifetime::at(&a).unwrap() == Lifetime::Lasting;
    let both = again(&[one, two]);
    if lasts {
        assert_eq!([both[0].1, both[1].1], [derived(1), derived(2)]);
    }
    // The first one goes, and the second one does not slide.
    assert_eq!(again(&[two])[0].1, both[1].1);
    let swapped = again(&[(&b, "nsid = 1")]);
    assert!(
        ![both[0].1, both[1].1].contains(&swapped[0].1),
        "{swapped:?}"
    );
    for words in [
        "namespace 1 of nqn.2026-11.org.example:a is on another medium",
        b.to_str().unwrap(),
        a.to_str().unwrap(),
        &format!("write `uuid = \"{}\"`", both[0].1),
    ] {
        assert!(swapped[0].2.contains(words), "{swapped:?}");
    }
    let one = (a.as_path(), "nsid = 1");
    assert_eq!(again(&[one])[0].1, both[0].1, "back");
    // Made anew under its path.
    fs::remove_file(&a).unwrap();
    place.image("a");
    let anew = again(&[one]);
    assert!(anew[0].1 != both[0].1, "{anew:?}");
    assert!(anew[0].2.contains("made anew, restored"), "{anew:?}");
    let pinned = format!("uuid = \"{}\"", both[0].1);
    assert_eq!(again(&[(&a, &pinned)])[0].1, both[0].1);
    assert_eq!(again(&[one])[0].1, both[0].1, "the line is taken out");
}

#[test]
fn a_file_that_is_moved_or_reached_otherwise_is_the_same() {
    let place = Place::new();
    let a = place.image("a");
    let first = start(&mut place.identities(), &[(&a, "")]);
    let link = place.0.path().join("link");
    symlink(&a, &link).unwrap();
    let hard = place.0.path().join("hard");
    fs::hard_link(&a, &hard).unwrap();
    let moved = place.0.path().join("moved");
    for path in [&link, &hard] {
        assert_eq!(
            start(&mut place.identities(), &[(path, "")])[0].1,
            first[0].1
        );
    }
    fs::rename(&a, &moved).unwrap();
    assert_eq!(
        start(&mut place.identities(), &[(&moved, "")])[0].1,
        first[0].1
    );
}

#[test]
fn what_cannot_be_written_changes_no_identity_and_what_cannot_be_read_is_an_error() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    start(&mut place.identities(), &[(&a, "")]);
    let file = place.state().join(FILE);
    let text = fs::read_to_string(&file).unwrap();
    // As where the folder cannot be written to: each start has only what the first one wrote.
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        seen.insert(start(&mut place.identities(), &[(&b, "")])[0].1);
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(seen.len(), 1);
    // No folder: what is served is remembered as long as the process.
    let mut alone = Identities::in_folder(None, BOOT).unwrap();
    let first = start(&mut alone, &[(&a, "")]);
    let second = start(&mut alone, &[(&b, "")]);
    assert_ne!(first[0].1, second[0].1);
    // Another process's, or spoilt; emptied, or longer than what is read of it.
    let long = "#".repeat(usize::try_from(NAMESPACES_TEXT_BYTES_MAX).unwrap()) + "\n" + &text;
    for spoil in [
        "not = [a table",
        "[[namespace]]\nnqn = 1",
        "",
        super::HEAD,
        &long,
    ] {
        fs::write(&file, spoil).unwrap();
        let error = Identities::in_folder(Some(place.state()), BOOT).unwrap_err();
        assert!(
            error.to_string().contains("restore it, or remove it"),
            "{error}"
        );
        let left = fs::read_to_string(&file).unwrap();
        assert!(left == spoil, "left as it is");
    }
    fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap();
    let error = Identities::in_folder(Some(place.state()), BOOT).unwrap_err();
    assert!(error.to_string().contains("no regular file"), "{error}");
}

#[test]
fn what_is_wrong_with_a_table_is_said_in_one_line_with_its_place() {
    let place = Place::new();
    fs::write(place.state().join(FILE), "[[namespace]]\nnqn = 1\n").unwrap();
    let error = Identities::in_folder(Some(place.state()), BOOT).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("line 2, column 7: ") && !words.contains('\n'),
        "{words}"
    );
}

#[test]
fn two_targets_that_start_at_once_give_no_uuid_to_two_media() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    // Each has read the table before the other one writes it.
    let (mut one, mut two) = (place.identities(), place.identities());
    let first = choose(&mut one, &a);
    let second = choose(&mut two, &b);
    assert_eq!(first, second, "derived from their place");
    assert_eq!(one.keep().unwrap(), Kept::Yes);
    assert_eq!(two.keep().unwrap(), Kept::ChooseAgain);
    assert_ne!(choose(&mut two, &b), first);
    assert_eq!(two.keep().unwrap(), Kept::Yes);
    // Both are there.
    assert_eq!(start(&mut place.identities(), &[(&a, "")])[0].1, first);
}

/// What hosts would know the first namespace by, on `path`.
fn choose(identities: &mut Identities, path: &Path) -> Uuid {
    let config = identities.number(&config(&[(path, "")]), None).unwrap();
    let Subsystem {
        nqn, namespaces, ..
    } = &config.subsystems[0];
    let spec = VolumeSpec::Path {
        path: path.to_owned(),
        lba_bytes: None,
        read_only: true,
        direct: DirectIo::Off,
    };
    let identity = identities.identity(nqn, &namespaces[0], &spec.prepare().unwrap());
    identity.unwrap().shown.uuid.unwrap()
}

#[test]
fn what_a_process_has_told_stands_whatever_becomes_of_the_table() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let file = place.state().join(FILE);
    let one = (a.as_path(), "nsid = 1");
    let mut running = place.identities();
    let first = start(&mut running, &[one])[0].1;
    let backup = fs::read_to_string(&file).unwrap();
    let both = start(&mut running, &[one, (&b, "nsid = 2")]);
    let text = fs::read_to_string(&file).unwrap();
    let reload = |running: &mut Identities| {
        running.look_again().unwrap();
        start(running, &[one]);
        fs::read_to_string(&file).unwrap()
    };
    fs::remove_file(&file).unwrap();
    assert_eq!(reload(&mut running), text, "removed");
    fs::write(&file, &backup).unwrap();
    assert_eq!(reload(&mut running), text, "restored");
    // Another target has given the second one its place meanwhile.
    let other = start(&mut place.identities(), &[(&a, "nsid = 2")])[0].1;
    assert!(other != first && other != both[1].1);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(reload(&mut running), text, "nothing is missing");
    // What cannot be read is not written over.
    for garbage in ["garbage", ""] {
        fs::write(&file, garbage).unwrap();
        running.look_again().unwrap_err();
        choose(&mut running, &b);
        running.keep().unwrap_err();
        assert_eq!(fs::read_to_string(&file).unwrap(), garbage);
    }
}

#[test]
fn a_table_that_is_gone_is_told_where_there_was_one() {
    let place = Place::new();
    let a = place.image("a");
    let config = config(&[(&a, "")]);
    assert_eq!(place.identities().lost(&config), None, "a first start");
    fs::write(place.state().join("lba-sizes.toml"), "namespace = []").unwrap();
    let words = place.identities().lost(&config).unwrap();
    assert!(words.contains("namespaces.toml is not there") && words.contains("restore it"));
    start(&mut place.identities(), &[(&a, "")]);
    assert_eq!(place.identities().lost(&config), None);
}

#[test]
fn an_nguid_that_another_namespace_has_is_refused() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let first = start(&mut place.identities(), &[(&a, "nsid = 1")])[0].1;
    // That of the other one is derived from its place, or from the UUID that is written there.
    let taken = format!("nguid = \"{}\"", first.simple());
    let pinned = format!("nsid = 2\n{taken}");
    for other in [
        "nsid = 1".to_owned(),
        format!("nsid = 1\nuuid = \"{first}\""),
    ] {
        let both = config(&[(&a, &other), (&b, &pinned)]);
        let error = place.identities().number(&both, None).unwrap_err();
        let error = error.to_string();
        for words in [
            "has NGUID",
            &first.simple().to_string(),
            "namespace 1 of",
            "write another `nguid`",
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
    // A namespace may have its own UUID as its NGUID written down, and go on with it elsewhere.
    let own = format!("nsid = 1\n{taken}");
    assert!(
        place
            .identities()
            .number(&config(&[(&a, &own)]), None)
            .is_ok()
    );
}

#[test]
fn a_uuid_that_another_namespace_has_is_refused() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let first = start(&mut place.identities(), &[(&a, "nsid = 1")])[0].1;
    let pinned = format!("nsid = 2\nuuid = \"{first}\"");
    let both = config(&[(&a, "nsid = 1"), (&b, &pinned)]);
    let error = place.identities().number(&both, None).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("namespace 1 of") && error.contains("gives to namespace 2 of"),
        "{error}"
    );
    // What has it by derivation only has never had it once it is on another medium.
    start(&mut place.identities(), &[(&b, "nsid = 1")]);
    let moved = config(&[(&b, "nsid = 1"), (&a, &pinned)]);
    assert!(place.identities().number(&moved, None).is_ok());
}

#[test]
fn an_identity_lasts_as_long_as_the_blocks_do() {
    let place = Place::new();
    let a = place.image("a");
    let subsystem = config(&[(&a, "")]).subsystems.remove(0);
    let namespace = &subsystem.namespaces[0];
    let of = |lifetime, boot| {
        let identities = Identities::in_folder(None, boot).unwrap();
        let medium = identities.medium(&a, MediumId::at(&a).unwrap(), lifetime);
        identities.take(&subsystem.nqn, namespace, &medium)
    };
    let lasting = of(Lifetime::Lasting, BOOT);
    assert_eq!(lasting, derived(1));
    let boot = of(Lifetime::Boot, BOOT);
    assert_eq!(of(Lifetime::Boot, BOOT), boot, "the same in every process");
    let later = of(Lifetime::Boot, Uuid::from_u128(2));
    assert!(boot != later && boot != lasting && later != lasting);
    let ram = VolumeSpec::Ram {
        bytes: 1 << 20,
        lba_bytes: 4096,
    };
    let toml = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
                nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
                [[subsystem.namespace]]\nram = \"1MiB\"\n";
    let subsystem = Config::from_toml(toml).unwrap().subsystems.remove(0);
    let stores = [(), ()].map(|()| {
        let store = ram.prepare().unwrap();
        let mut identities = place.identities();
        let identity = identities.identity(&subsystem.nqn, &subsystem.namespaces[0], &store);
        identity.unwrap().shown.uuid
    });
    assert_ne!(stores[0], stores[1]);
}
