use std::fs::{self, File, OpenOptions};
use std::path::Path;

use capstan_nvme_proto::nqn::Nqn;
use capstan_storage::{DirectIo, Place, VolumeSpec};
use capstan_subsystem::BackendId;

use super::{Media, Watched};
use crate::lost::What;
use crate::plan::Export;

const MIB: u64 = 1 << 20;

fn watched(path: &Path) -> Watched {
    let spec = VolumeSpec::Path {
        path: path.to_owned(),
        lba_bytes: Some(4096),
        read_only: false,
        direct: DirectIo::Auto,
    };
    let store = spec.prepare().unwrap();
    let media = Media::default();
    media.add(&Export {
        backend: BackendId(0),
        subnqn: Nqn::new("nqn.2026-11.org.example:a").unwrap(),
        nsid: 7,
        shown: crate::plan::shown_geometry(store.geometry(), false),
        counted: crate::metrics::uncounted(),
        store,
    });
    let mut volumes = media.volumes();
    volumes.remove(&BackendId(0)).unwrap()
}

fn look(watched: &mut Watched) -> Option<super::Change> {
    let look = watched.store.look().unwrap();
    watched.becomes(look)
}

#[test]
fn each_change_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(MIB).unwrap();
    let mut watched = watched(&path);
    assert_eq!(look(&mut watched), None);
    file.set_len(2 * MIB).unwrap();
    let grown = look(&mut watched).unwrap();
    assert_eq!((grown.nsid, grown.lost, grown.is_sound), (7, None, true));
    assert_eq!(grown.state, None);
    assert_eq!(grown.geometry.unwrap().lbas, 512);
    assert_eq!(look(&mut watched), None);
    // Less than an LBA more is nothing for hosts.
    file.set_len(2 * MIB + 512).unwrap();
    assert_eq!(look(&mut watched).unwrap().geometry, None);
    file.set_len(MIB).unwrap();
    let cut = look(&mut watched).unwrap();
    assert_eq!(cut.geometry.unwrap().lbas, 256);
    assert!(
        cut.lost
            .unwrap()
            .what
            .contains("was cut from 2097664 to 1048576 bytes")
    );
    // Of nothing there is no namespace: what hosts see stays, and fails.
    file.set_len(0).unwrap();
    let emptied = look(&mut watched).unwrap();
    assert!(emptied.geometry.is_none() && emptied.lost.is_some());
    file.set_len(MIB).unwrap();
    assert_eq!(
        look(&mut watched).unwrap().geometry,
        None,
        "as hosts see it"
    );
    assert_eq!(look(&mut watched), None);
    let aside = folder.path().join("it's b");
    fs::rename(&path, &aside).unwrap();
    let moved = look(&mut watched).unwrap();
    let (what, said) = moved.state.unwrap();
    assert!(!moved.is_sound && what == What::Place);
    let (from, to) = (folder.path().display(), path.display());
    assert_eq!(
        said.unwrap().next,
        format!("move it back (mv -n '{from}/it'\\''s b' {to})")
    );
    File::create(&path).unwrap();
    assert_eq!(look(&mut watched), None, "replaced is as bad as moved");
    fs::rename(&aside, &path).unwrap();
    let back = look(&mut watched).unwrap();
    assert!(back.is_sound && back.state == Some((What::Place, None)));
    fs::remove_file(&path).unwrap();
    assert!(!look(&mut watched).unwrap().is_sound);
    assert!(matches!(watched.place, Place::Deleted(_)));
    assert_eq!(look(&mut watched), None);
}

/// What is closed without a loss has a name that stays.
#[test]
fn what_others_have_taken_the_place_of_is_kept_under_a_name_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    File::create(&path).unwrap().set_len(MIB).unwrap();
    let mut watched = watched(&path);
    assert_eq!(watched.kept_as(), None, "it is there");
    // As NFS has what is deleted and still open.
    let hidden = folder.path().join(".nfs0000000000000001");
    fs::rename(&path, &hidden).unwrap();
    File::create(&path).unwrap();
    look(&mut watched).unwrap();
    assert_eq!(watched.kept_as(), None);
    let aside = folder.path().join("b");
    fs::rename(&hidden, &aside).unwrap();
    assert_eq!(watched.kept_as(), Some(format!("is {}", aside.display())));
    fs::remove_file(&aside).unwrap();
    assert_eq!(
        watched.kept_as(),
        None,
        "it has changed since the last look"
    );
    look(&mut watched).unwrap();
    assert_eq!(watched.kept_as(), None, "deleted");
}
