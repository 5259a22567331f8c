//! Stable storage in a real file.

use std::sync::Arc;

use super::*;

fn client(name: &str) -> Record {
    Record::Client {
        owner: Arc::from(name.as_bytes()),
    }
}

fn names(replay: &Replay) -> Vec<&str> {
    replay
        .owners
        .iter()
        .map(|owner| std::str::from_utf8(owner).unwrap())
        .collect()
}

#[test]
fn records_are_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (mut file, before) = StableFile::open(&path).unwrap();
    assert_eq!(before, Replay::default());
    file.append(&[Record::Boot { instance: 1 }, client("a")])
        .unwrap();
    file.append(&[]).unwrap();
    file.append(&[client("b")]).unwrap();
    drop(file);
    let (mut file, before) = StableFile::open(&path).unwrap();
    assert_eq!((before.instance, names(&before)), (1, vec!["a", "b"]));
    file.replace(&[Record::Boot { instance: 7 }, client("c")])
        .unwrap();
    file.append(&[client("d")]).unwrap();
    drop(file);
    let (_, before) = StableFile::open(&path).unwrap();
    assert_eq!((before.instance, names(&before)), (7, vec!["c", "d"]));
    assert_eq!(
        std::fs::read_dir(&directory).unwrap().count(),
        1,
        "no other file is left"
    );
}

#[test]
fn a_torn_end_is_cut_off_before_more_is_appended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (mut file, _) = StableFile::open(&path).unwrap();
    file.append(&[client("a")]).unwrap();
    drop(file);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend([0, 5, 2]);
    std::fs::write(&path, &bytes).unwrap();
    let (mut file, _) = StableFile::open(&path).unwrap();
    file.append(&[client("b")]).unwrap();
    drop(file);
    let (_, before) = StableFile::open(&path).unwrap();
    assert_eq!(names(&before), ["a", "b"]);
}

#[test]
fn two_servers_cannot_have_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (mut file, _) = StableFile::open(&path).unwrap();
    assert!(matches!(
        StableFile::open(&path),
        Err(StableFileError::InUse { .. })
    ));
    file.replace(&[client("a")]).unwrap();
    let error = StableFile::open(&path).unwrap_err();
    assert!(matches!(error, StableFileError::InUse { .. }));
    assert!(error.to_string().contains("another server uses it"));
}

#[test]
fn a_file_of_something_else_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    std::fs::write(&path, "[settings]\n").unwrap();
    assert!(matches!(
        StableFile::open(&path),
        Err(StableFileError::Content { .. })
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"[settings]\n");
    let file = File::create(&path).unwrap();
    file.set_len(STABLE_BYTES_MAX + 1).unwrap();
    assert!(matches!(
        StableFile::open(&path),
        Err(StableFileError::TooLarge { .. })
    ));
    let missing = directory.path().join("missing/state");
    let error = StableFile::open(&missing).unwrap_err();
    assert!(error.to_string().contains("open failed"), "{error}");
}

#[test]
fn it_wants_to_be_replaced_when_it_has_grown() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StableFile::open(&directory.path().join("state")).unwrap();
    let records: Vec<_> = (0..1024).map(|_| client(&"a".repeat(1024))).collect();
    let mut appends = 0;
    while !file.wants_replacing() {
        file.append(&records).unwrap();
        appends += 1;
    }
    assert_eq!(appends, 4);
    file.replace(&records[..1]).unwrap();
    assert!(!file.wants_replacing());
}

#[test]
fn a_look_finds_what_open_would_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    StableFile::look(&path).unwrap();
    assert!(!path.exists());
    let (mut file, _) = StableFile::open(&path).unwrap();
    file.append(&[client("a")]).unwrap();
    let looked = StableFile::look(&path);
    assert!(
        matches!(looked, Err(StableFileError::InUse { .. })),
        "{looked:?}"
    );
    drop(file);
    StableFile::look(&path).unwrap();
    let (file, before) = StableFile::open(&path).unwrap();
    assert_eq!(names(&before), ["a"]);
    drop(file);
    std::fs::write(&path, b"something else").unwrap();
    let looked = StableFile::look(&path);
    assert!(
        matches!(looked, Err(StableFileError::Content { .. })),
        "{looked:?}"
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let looked = StableFile::look(&path);
    assert!(
        matches!(looked, Err(StableFileError::Io { .. })),
        "{looked:?}"
    );
}
