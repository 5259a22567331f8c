use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use capstan_config::{Config, LbaSize, Namespace, Nqn};

use super::{LbaSizes, out_of_reach};

fn image(folder: &Path, name: &str, bytes: u64, write: &[(u64, &[u8])]) -> PathBuf {
    let path = folder.join(name);
    let file = File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    for (at, data) in write {
        file.write_all_at(data, *at).unwrap();
    }
    path
}

fn config(path: &Path, nqn: &str, keys: &str) -> Config {
    let toml = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:{nqn}\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\npath = {:?}\n{keys}",
        path.display().to_string()
    );
    Config::from_toml(&toml).unwrap()
}

fn namespace(path: &Path, nqn: &str, keys: &str) -> (Nqn, Namespace) {
    let subsystem = config(path, nqn, keys).subsystems.remove(0);
    (subsystem.nqn, subsystem.namespaces[0].clone())
}

/// The size of what `namespace` has made.
fn size(sizes: &LbaSizes, (nqn, namespace): &(Nqn, Namespace)) -> Option<LbaSize> {
    sizes.of(nqn, namespace, |_| false).unwrap().size
}

fn remember(sizes: &mut LbaSizes, (nqn, namespace): &(Nqn, Namespace), lba_bytes: u32) {
    sizes.remember(nqn, namespace, lba_bytes);
}

const MIB: u64 = 1 << 20;
/// Name, bytes and content of a file, and its LBA size with and without a state folder.
type Case<'a> = (&'a str, u64, &'a [(u64, &'a [u8])], u32, u32);

#[test]
fn what_a_file_was_used_with_outlives_growth_moves_and_lines_that_go() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    std::fs::create_dir(&state).unwrap();
    // Each start reads it anew.
    let sizes = || LbaSizes::in_folder(state.clone());
    let path = image(root.path(), "a", MIB, &[(0, b"data")]);
    let a = namespace(&path, "a", "");
    assert_eq!(size(&sizes(), &a), Some(LbaSize::B4096));
    remember(&mut sizes(), &a, 4096);
    image(root.path(), "a", MIB + 1536, &[(0, b"data")]);
    assert_eq!(size(&sizes(), &a), Some(LbaSize::B4096), "grown");
    // Chosen by the configuration, which does not say it any more.
    let explicit = namespace(&path, "a", "lba = 512");
    assert_eq!(size(&sizes(), &explicit), Some(LbaSize::B512));
    remember(&mut sizes(), &explicit, 512);
    assert_eq!(size(&sizes(), &a), Some(LbaSize::B512));
    image(root.path(), "a", MIB, &[(0, b"data")]);
    assert_eq!(size(&sizes(), &a), Some(LbaSize::B512), "shrunk");
    // Under another name, and in another subsystem.
    let moved = image(root.path(), "b", MIB, &[(0, b"data")]);
    let of = |path: &Path, nqn: &str| size(&sizes(), &namespace(path, nqn, ""));
    assert_eq!(of(&path, "z"), Some(LbaSize::B512));
    assert_eq!(of(&moved, "a"), Some(LbaSize::B4096), "both are there");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(of(&moved, "a"), Some(LbaSize::B512));
    assert_eq!(of(&moved, "z"), Some(LbaSize::B4096));
}

#[test]
fn a_file_that_another_one_has_taken_the_place_of_keeps_its_size() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let sizes = || LbaSizes::in_folder(state.clone());
    let path = image(root.path(), "a", MIB, &[]);
    let first = namespace(&path, "a", "lba = 512");
    remember(&mut sizes(), &first, 512);
    let moved = root.path().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    image(root.path(), "a", MIB, &[]);
    let again = namespace(&path, "a", "lba = 4096");
    remember(&mut sizes(), &again, 4096);
    let of = |path: &Path| size(&sizes(), &namespace(path, "a", ""));
    assert_eq!(of(&path), Some(LbaSize::B4096));
    assert_eq!(of(&moved), Some(LbaSize::B512));
}

#[test]
fn a_file_of_which_nothing_is_known_has_4096_unless_it_was_used_otherwise() {
    let root = tempfile::tempdir().unwrap();
    let remembers = LbaSizes::in_folder(root.path().to_owned());
    let forgets = LbaSizes::default();
    let gpt: &[u8] = b"EFI PART";
    let cases: [Case<'_>; 7] = [
        ("whole", MIB, &[(0, b"x")], 4096, 4096),
        ("blank", MIB + 1536, &[], 4096, 4096),
        // Upgraded: there is no telling from a file that has grown before the first start.
        ("odd", MIB + 512, &[(1080, b"x")], 512, 4096),
        ("odd with a GPT", MIB + 512, &[(512, gpt)], 512, 512),
        (
            "odd with a larger GPT",
            MIB + 512,
            &[(4096, gpt)],
            4096,
            4096,
        ),
        // It had 4096 in earlier versions, too.
        ("whole with a GPT", MIB, &[(512, gpt)], 4096, 4096),
        ("tiny", 512, &[(0, b"x")], 512, 4096),
    ];
    for (name, bytes, write, with_state, without) in cases {
        let path = image(root.path(), name, bytes, write);
        let of = |sizes: &LbaSizes| size(sizes, &namespace(&path, "a", "")).unwrap().bytes();
        assert_eq!(
            (of(&remembers), of(&forgets)),
            (with_state, without),
            "{name}"
        );
    }
}

/// As fdisk makes it with LBAs of 512, whose partition fits with LBAs of 4096 as well.
#[test]
fn a_dos_table_that_goes_with_either_size_is_not_left_without_a_word() {
    let root = tempfile::tempdir().unwrap();
    let partition = [[0, 0, 0, 0, 0x83, 0, 0, 0], [0, 8, 0, 0, 0, 16, 0, 0]].concat();
    let table: &[(u64, &[u8])] = &[(446, &partition), (510, &[0x55, 0xaa])];
    let path = image(root.path(), "small", 64 * MIB, table);
    let alone = LbaSizes::default();
    let (nqn, n) = namespace(&path, "a", "");
    let chosen = alone.of(&nqn, &n, |_| false).unwrap();
    assert_eq!(chosen.size, Some(LbaSize::B4096));
    let warning = chosen.warning.unwrap();
    for words in ["small has LBAs of 4096", "--lba 512", "`lba = 4096`"] {
        assert!(warning.contains(words), "{warning}");
    }
    // The next step, and what is remembered, is not warned of.
    let mut sizes = LbaSizes::in_folder(root.path().to_owned());
    for (keys, bytes) in [("lba = 4096", 4096), ("lba = 512", 512)] {
        let explicit = namespace(&path, "a", keys);
        let chosen = sizes.of(&explicit.0, &explicit.1, |_| false).unwrap();
        assert_eq!(chosen.warning, None);
        remember(&mut sizes, &explicit, bytes);
        let known = sizes.of(&nqn, &n, |_| true).unwrap();
        assert_eq!(known.size.unwrap().bytes(), bytes);
        assert_eq!(known.warning, None);
    }
}

#[test]
fn devices_and_memory_are_asked_themselves() {
    let root = tempfile::tempdir().unwrap();
    let mut sizes = LbaSizes::in_folder(root.path().to_owned());
    for path in ["/dev/null", "/no/such/file"] {
        let namespace = namespace(Path::new(path), "a", "");
        assert_eq!(size(&sizes, &namespace), None);
        remember(&mut sizes, &namespace, 4096);
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// Puts something in the place of the table.
type Spoil = fn(&Path);

#[test]
fn where_the_table_cannot_be_read_no_size_is_guessed_and_nothing_is_written_over_it() {
    let spoilt: [(&str, Spoil); 6] = [
        ("garbage", |file| std::fs::write(file, "garbage").unwrap()),
        ("another key", |file| std::fs::write(file, "a = 1").unwrap()),
        ("empty", |file| std::fs::write(file, "").unwrap()),
        ("a size that is none", |file| {
            let text = std::fs::read_to_string(file).unwrap();
            std::fs::write(file, text.replace("lba = 512", "lba = 513")).unwrap();
        }),
        ("a folder", |file| {
            std::fs::remove_file(file).unwrap();
            std::fs::create_dir(file).unwrap();
        }),
        ("a link", |file| {
            let other = file.with_extension("other");
            std::fs::rename(file, &other).unwrap();
            std::os::unix::fs::symlink(other, file).unwrap();
        }),
    ];
    for (what, spoil) in spoilt {
        let root = tempfile::tempdir().unwrap();
        let path = image(root.path(), "a", MIB, &[(0, b"data")]);
        let sizes = || LbaSizes::in_folder(root.path().to_owned());
        let explicit = namespace(&path, "a", "lba = 512");
        remember(&mut sizes(), &explicit, 512);
        let file = root.path().join(super::FILE);
        let mut running = sizes();
        spoil(&file);
        let spoilt = || {
            (
                std::fs::symlink_metadata(&file).unwrap(),
                std::fs::read(&file).ok(),
            )
        };
        let (metadata, content) = spoilt();
        let open = namespace(&path, "a", "");
        let error = sizes()
            .of(&open.0, &open.1, |_| false)
            .expect_err(what)
            .to_string();
        for word in [
            &*file.display().to_string(),
            &*path.display().to_string(),
            "--lba",
        ] {
            assert!(error.contains(word), "{what}: {error}");
        }
        sizes()
            .check(&config(&path, "a", ""), |_| false)
            .expect_err(what);
        // What says its size needs no table, nor do devices.
        assert_eq!(size(&sizes(), &explicit), Some(LbaSize::B512), "{what}");
        sizes()
            .check(&config(&path, "a", "lba = 512"), |_| false)
            .expect(what);
        assert_eq!(
            size(&sizes(), &namespace(Path::new("/dev/null"), "a", "")),
            None
        );
        // One that runs knows what it has read, until it looks again.
        assert_eq!(size(&running, &open), Some(LbaSize::B512), "{what}");
        remember(&mut running, &namespace(&path, "b", "lba = 4096"), 4096);
        running.look_again();
        running.of(&open.0, &open.1, |_| false).expect_err(what);
        let (now, content_now) = spoilt();
        assert_eq!(
            (metadata.file_type(), content),
            (now.file_type(), content_now),
            "{what}"
        );
    }
}

#[test]
fn a_reload_knows_what_other_targets_and_this_one_have_opened_files_with() {
    let root = tempfile::tempdir().unwrap();
    let [one, two] = ["a", "b"].map(|name| image(root.path(), name, MIB, &[(0, b"data")]));
    let mut sizes = LbaSizes::in_folder(root.path().to_owned());
    let mut other = LbaSizes::in_folder(root.path().to_owned());
    remember(&mut other, &namespace(&two, "b", "lba = 512"), 512);
    remember(&mut sizes, &namespace(&one, "a", "lba = 512"), 512);
    sizes.look_again();
    for path in [&one, &two] {
        let known = size(&sizes, &namespace(path, "z", ""));
        assert_eq!(known, Some(LbaSize::B512), "{}", path.display());
    }
    // Without a folder a line that goes changes nothing either, while the process lives.
    let mut alone = LbaSizes::default();
    remember(&mut alone, &namespace(&one, "a", "lba = 512"), 512);
    alone.look_again();
    let known = size(&alone, &namespace(&one, "a", ""));
    assert_eq!(known, Some(LbaSize::B512));
    // What could not be written is known as long as that.
    let gone = root.path().join("gone");
    let mut unwritten = LbaSizes::in_folder(gone);
    remember(&mut unwritten, &namespace(&one, "a", "lba = 512"), 512);
    unwritten.look_again();
    let known = size(&unwritten, &namespace(&one, "a", ""));
    assert_eq!(known, Some(LbaSize::B512));
}

#[test]
fn a_size_that_is_forgotten_is_found_out_or_asked_for_and_never_guessed() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    std::fs::create_dir(&state).unwrap();
    // It may be another table than the lost one: an older one, which knows other files.
    let mut sizes = LbaSizes::in_folder(state.clone());
    let other = image(root.path(), "other", MIB, &[]);
    remember(&mut sizes, &namespace(&other, "a", "lba = 512"), 512);
    let xfs: &[(u64, &[u8])] = &[(0, b"XFSB"), (102, &[2, 0])];
    for (name, write, bytes) in [("xfs", xfs, 512), ("blank", &[], 4096)] {
        let path = image(root.path(), name, MIB, write);
        let (nqn, n) = namespace(&path, "a", "");
        let chosen = sizes.of(&nqn, &n, |_| true).unwrap();
        assert_eq!(chosen.size.unwrap().bytes(), bytes, "{name}");
        let warning = chosen.warning.unwrap();
        for word in [
            "namespaces.toml has",
            "which hosts may have used",
            "lba-sizes.toml has no LBA size for it",
        ] {
            assert!(warning.contains(word), "{name}: {warning}");
        }
        let is_blank = warning.contains("its first 68 KiB, where");
        assert_eq!(is_blank, name == "blank", "{warning}");
    }
    let path = image(root.path(), "data", MIB, &[(0, b"data")]);
    let (nqn, n) = namespace(&path, "a", "");
    let error = sizes.of(&nqn, &n, |_| true).unwrap_err().to_string();
    for word in [
        "lba-sizes.toml has no LBA size for it",
        "restore",
        "`lba = 512`",
        "--lba",
    ] {
        assert!(error.contains(word), "{error}");
    }
    // Whether there ever was one is not known either.
    std::fs::remove_file(state.join("lba-sizes.toml")).unwrap();
    let error = LbaSizes::in_folder(state.clone()).of(&nqn, &n, |_| true);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("lba-sizes.toml is not there"), "{error}");
    for more in ["served before", "any more"] {
        assert!(!error.contains(more), "{error}");
    }
    // The next step.
    let explicit = namespace(&path, "a", "lba = 512");
    assert_eq!(size(&sizes, &explicit), Some(LbaSize::B512));
    remember(&mut sizes, &explicit, 512);
    let known = sizes.of(&nqn, &n, |_| true).unwrap();
    assert_eq!(known.size, Some(LbaSize::B512));
    // A process that remembers for itself only has forgotten nothing.
    let alone = LbaSizes::default();
    assert_eq!(size(&alone, &(nqn, n)), Some(LbaSize::B4096));
}

/// No more than what was looked at.
#[test]
fn a_blank_start_is_called_no_more_than_that() {
    let root = tempfile::tempdir().unwrap();
    for (bytes, words) in [
        (4096, "all of it is zeroes"),
        (68 << 10, "all of it is zeroes"),
        (
            MIB,
            "its first 68 KiB, where partition tables and file systems begin, are zeroes",
        ),
    ] {
        let path = image(root.path(), "image", bytes, &[]);
        let found = super::Evidence::of(&path).unwrap();
        assert!(found.is_blank);
        assert_eq!(found.blank_in_words(), words, "{bytes}");
    }
}

#[test]
fn what_is_out_of_reach_is_said_in_bytes() {
    assert_eq!(out_of_reach(&"/a", MIB, 4096), None);
    let words = out_of_reach(&"/a", MIB + 1536, 4096).unwrap();
    assert!(
        words.contains("1536 bytes at its end out of reach"),
        "{words}"
    );
    let root = tempfile::tempdir().unwrap();
    let path = image(root.path(), "a", MIB + 1536, &[]);
    let sizes = LbaSizes::default();
    assert_eq!(
        sizes
            .check(&config(&path, "a", ""), |_| false)
            .unwrap()
            .len(),
        1
    );
    // The check of the configuration says it already.
    let explicit = sizes
        .check(&config(&path, "a", "lba = 512"), |_| false)
        .unwrap();
    assert!(explicit.is_empty(), "{explicit:?}");
}
