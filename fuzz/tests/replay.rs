//! Replays the committed seeds, and every file a fuzzer found worth keeping, on a stable compiler.

use std::path::{Path, PathBuf};

use capstan_fuzz::TARGETS;

fn seeds(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/seeds")).join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

#[test]
fn every_seed_passes() {
    for (name, body) in TARGETS {
        let files = seeds(name);
        assert!(!files.is_empty(), "{name} has no seeds");
        for file in files {
            let bytes = std::fs::read(&file).expect("a readable seed");
            let outcome = std::panic::catch_unwind(|| body(&bytes));
            assert!(outcome.is_ok(), "{name}: {}", file.display());
        }
    }
}

#[test]
fn every_target_takes_empty_and_uniform_input() {
    for (_name, body) in TARGETS {
        for length in [
            0, 1, 2, 15, 16, 17, 63, 64, 65, 512, 1023, 1024, 1025, 4095, 4096, 4097,
        ] {
            for byte in [0x00, 0x01, 0x7F, 0x80, 0xFF] {
                body(&vec![byte; length]);
            }
        }
    }
}

#[test]
fn every_target_has_its_binary() {
    let manifest = include_str!("../Cargo.toml");
    for (name, _body) in TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} has no [[bin]]"
        );
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}
