use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use capstan_nvme_proto::nqn::Nqn;
use capstan_storage::{DirectIo, IoError, Op, VolumeSpec};
use capstan_subsystem::BackendId;

use super::super::note::Note;
use super::super::running::Running;
use super::super::{Lost, Said, What, note};
use super::Kept;
use crate::plan::{Export, shown_geometry};

fn export(backend: u32, path: &Path) -> Export {
    export_for(backend, path, false)
}

fn export_for(backend: u32, path: &Path, read_only: bool) -> Export {
    let spec = VolumeSpec::Path {
        path: path.to_owned(),
        lba_bytes: Some(4096),
        read_only,
        direct: DirectIo::Auto,
    };
    let store = spec.prepare().unwrap();
    Export {
        backend: BackendId(backend),
        subnqn: Nqn::new("nqn.2026-11.org.example:a").unwrap(),
        nsid: 7,
        shown: shown_geometry(store.geometry(), read_only),
        counted: crate::metrics::uncounted(),
        store,
    }
}

fn image(path: &Path) {
    File::create(path).unwrap().set_len(1 << 20).unwrap();
}

fn kept(folder: &Path) -> Arc<Kept> {
    Arc::new(Kept::in_folder(Some(folder.to_owned())))
}

fn backends(kept: &Kept) -> Vec<BackendId> {
    let noted = kept.noted().into_iter();
    noted.map(|noted| noted.backend).collect()
}

fn keep(kept: &Arc<Kept>, export: &Export) {
    let errno = nix::errno::Errno::ENOSPC as i32;
    let error = IoError::from_errno(errno, &Op::Flush, export.store.name());
    let what = error.to_string();
    let note = note(export, What::Writes, errno, what);
    Arc::clone(kept).keep(export, note);
}

#[test]
fn the_next_process_finds_what_this_one_has_kept_until_it_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    fs::create_dir(&state).unwrap();
    let [a, b] = ["a", "b"].map(|name| root.path().join(name));
    image(&a);
    image(&b);
    let this = kept(&state);
    keep(&this, &export(1, &a));
    assert_eq!(backends(&this), [BackendId(1)]);
    // Moved meanwhile; and another file has its path.
    let moved = root.path().join("moved");
    fs::rename(&a, &moved).unwrap();
    fs::rename(&b, &a).unwrap();
    let next = kept(&state);
    assert_eq!(next.find(&export(1, &a)), []);
    let note = next.find(&export(2, &moved)).remove(0);
    assert_eq!((note.errno, note.path, note.nsid), (28, a.clone(), 7));
    assert!(note.what.starts_with("flush on "), "{}", note.what);
    // What was lost behind the others is not removed with them.
    keep(&next, &export(3, &a));
    assert_eq!(backends(&next), [BackendId(2), BackendId(3)]);
    let removed = next.remove(|of, _| of == BackendId(2));
    assert!(removed.len() == 1 && removed[0].1.is_ok(), "{removed:?}");
    let third = kept(&state);
    assert_eq!(third.find(&export(1, &moved)), []);
    assert!(third.find(&export(2, &a)).len() == 1);
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
}

#[test]
fn a_note_that_the_operator_clears_is_cleared_and_one_that_was_never_written_is_not() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let path = root.path().join("a");
    image(&path);
    let this = kept(&state);
    keep(&this, &export(1, &path));
    assert!(this.noted().is_empty(), "there is no folder");
    assert!(this.cleared().is_empty());
    // It is tried again.
    fs::create_dir(&state).unwrap();
    this.write_missing();
    assert_eq!(backends(&this), [BackendId(1)]);
    assert!(this.cleared().is_empty());
    for found in note::all(&state).unwrap().found {
        note::clear(&state, &found.name).unwrap();
    }
    assert_eq!(this.cleared(), [BackendId(1)]);
    this.write_missing();
    assert_eq!(this.cleared(), [BackendId(1)], "it stays cleared");
    this.forget(BackendId(1));
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "no mark is left");
    // A folder that is not mounted clears nothing.
    keep(&this, &export(1, &path));
    fs::remove_dir_all(&state).unwrap();
    assert!(this.cleared().is_empty());
}

/// Other targets may have the same state folder.
#[test]
fn only_who_writes_clears_a_note_by_its_end_and_only_the_command_while_it_runs() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    fs::create_dir(&state).unwrap();
    let path = root.path().join("a");
    image(&path);
    let names = || {
        note::all(&state)
            .unwrap()
            .found
            .into_iter()
            .map(|found| found.name)
    };
    let writer = kept(&state);
    let written = export(1, &path);
    keep(&writer, &written);
    let reader = kept(&state);
    let read = export_for(1, &path, true);
    let (_, removed) = {
        assert_eq!(reader.find(&read).len(), 1);
        reader.remove(|of, _| of == BackendId(1)).remove(0)
    };
    assert!(removed.unwrap_err().to_string().contains("reading only"));
    assert_eq!(names().count(), 1);
    // Whatever removes it.
    assert_eq!(reader.find(&read).len(), 1);
    note::remove(&state, &names().next().unwrap()).unwrap();
    assert!(writer.cleared().is_empty(), "no mark");
    assert_eq!(reader.cleared(), [BackendId(1)], "it has nothing to keep");
    writer.write_missing();
    assert_eq!(names().count(), 1, "written once more");
    assert!(reader.cleared().is_empty());
    // The mark is of one loss; a target that writes to the medium takes it.
    note::clear(&state, &names().next().unwrap()).unwrap();
    assert_eq!(
        (writer.cleared(), reader.cleared()),
        (vec![BackendId(1)], vec![BackendId(1)])
    );
    reader.forget(BackendId(1));
    assert_eq!(writer.cleared(), [BackendId(1)]);
    keep(&writer, &written);
    note::remove(&state, &names().next().unwrap()).unwrap();
    assert!(
        writer.cleared().is_empty(),
        "the mark was of an earlier loss"
    );
    writer.write_missing();
    note::clear(&state, &names().next().unwrap()).unwrap();
    drop(writer);
    let next = kept(&state);
    assert!(next.find(&read).is_empty() && next.find(&written).is_empty());
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "no mark is left");
}

#[test]
fn a_file_that_is_cut_short_and_loses_writes_has_a_note_of_each() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    image(&path);
    let lost = || Lost {
        running: Running::in_folder(root.path().join("run")),
        kept: kept(root.path()),
    };
    let notes = || note::all(root.path()).unwrap().found;
    let first = lost();
    let export = export(1, &path);
    let cut = || Said {
        path: path.display().to_string(),
        what: "a was cut from 2 to 1 bytes".to_owned(),
        next: "make it as long as it was".to_owned(),
    };
    let errno = nix::errno::Errno::EIO as i32;
    let error = IoError::from_errno(errno, &Op::Flush, export.store.name());
    for _ in 0..2 {
        first.add_writes(&export, &error);
    }
    assert_eq!(notes().len(), 1);
    assert_eq!(notes()[0].note.kind, What::Writes);
    let of_writes = first.noted().remove(0).name;
    for _ in 0..2 {
        first.add_cut(&export, cut());
    }
    // Now each Flush fails for the cut.
    first.add_writes(&export, &error);
    assert_eq!(backends(&first.kept), [export.backend, export.backend]);
    // One is cleared by the command, which is not all.
    let mut noted = first.noted().into_iter();
    let of_cut = noted.find(|noted| noted.name != of_writes).unwrap().name;
    note::clear(root.path(), &of_cut).unwrap();
    assert!(first.cleared_by_command().is_empty());

    first.add_cut(&export, cut());
    drop(first);
    let second = lost();
    second.find(&export);
    assert_eq!(notes().len(), 1, "that of the writes");
    second.add_cut(&export, cut());
    let names: Vec<_> = notes().into_iter().map(|found| found.name).collect();
    assert_eq!(names.len(), 2);
    for name in &names {
        note::clear(root.path(), name).unwrap();
    }
    assert_eq!(second.cleared_by_command(), [export.backend]);
    second.forget(export.backend);
    second.add_cut(&export, cut());
    second.remove(export.backend);
    assert!(second.noted().is_empty() && second.backends().is_empty());
    assert!(notes().is_empty());

    // What is exported for reading only was promised to nobody here.
    let third = lost();
    third.add_cut(&export_for(1, &path, true), cut());
    assert!(notes().is_empty() && third.backends() == [export.backend]);
}

#[test]
fn without_a_folder_nothing_is_kept_and_nothing_fails() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    image(&path);
    let this = Arc::new(Kept::in_folder(None));
    let export = export(1, &path);
    keep(&this, &export);
    this.write_missing();
    assert!(this.noted().is_empty() && this.cleared().is_empty());
    assert!(this.find(&export).is_empty() && this.remove(|_, _| true).is_empty());
}

/// Snapshots of a file system on a device without a name have the same files.
#[test]
fn twins_have_a_note_each() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    fs::create_dir(&state).unwrap();
    let [a, b] = ["a", "b"].map(|name| root.path().join(name));
    image(&a);
    image(&b);
    let facts = [("kind", "file"), ("part", "all")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let lost = |export: &Export| Note {
        medium: facts.clone().into(),
        ..note(export, What::Writes, 28, export.store.name().to_string())
    };
    let this = kept(&state);
    let exports = [export(1, &a), export(2, &b)];
    for export in &exports {
        Arc::clone(&this).keep(export, lost(export));
    }
    assert_eq!(backends(&this), [BackendId(1), BackendId(2)]);
    assert_eq!(fs::read_dir(&state).unwrap().count(), 2);
    // Each is found by its own, also by a process that starts with the second.
    for order in [[0, 1], [1, 0]] {
        let next = kept(&state);
        for of in order {
            let found = next.find(&exports[of]);
            let path = Path::new(&**exports[of].store.name());
            assert!(found.len() == 1 && found[0].path == path, "{found:?}");
        }
    }
    // The clear of one is not that of the other.
    let name = |of: BackendId| {
        let noted = this.noted().into_iter();
        noted
            .filter(|noted| noted.backend == of)
            .map(|noted| noted.name)
            .next()
            .unwrap()
    };
    note::clear(&state, &name(BackendId(2))).unwrap();
    assert_eq!(this.cleared(), [BackendId(2)]);
    this.forget(BackendId(2));
    assert_eq!(kept(&state).find(&exports[1]), []);
    assert_eq!(kept(&state).find(&exports[0]).len(), 1);
}
