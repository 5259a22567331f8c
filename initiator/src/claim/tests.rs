//! The holder of a claim, what is left of one, and what its file says.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use capstan_nvme_proto::identify::Csi;
use uuid::Uuid;

use super::{Claim, ClaimError, Holder, HolderDisk, Sharing};
use crate::host::NamespaceInfo;

const NQN: &str = "nqn.2026-11.io.capstan:vol";

fn namespace(nsid: u32, uuid: u128) -> NamespaceInfo {
    NamespaceInfo {
        nsid,
        nsze_lbas: 8,
        lba_bytes: 4096,
        metadata_bytes: 0,
        read_only: false,
        eui64: [0; 8],
        nguid: [0; 16],
        uuid: (uuid != 0).then(|| Uuid::from_u128(uuid)),
        csi: Csi::NVM,
        unusable: None,
    }
}

fn holder(what: &str) -> Holder {
    Holder::this(what, "10.0.0.1", 4420).unwrap()
}

fn claim(folder: &Path, namespace: &NamespaceInfo, sharing: Sharing) -> Result<Claim, String> {
    let holder = holder("written to by a test");
    Claim::new_in(folder, NQN, namespace, sharing, holder).map_err(|error| error.to_string())
}

#[test]
fn a_namespace_is_claimed_once() {
    let dir = tempfile::tempdir().unwrap();
    let claim = |namespace: &NamespaceInfo| claim(dir.path(), namespace, Sharing::Exclusive);
    let first = claim(&namespace(1, 7)).unwrap();
    let said = claim(&namespace(1, 7)).unwrap_err();
    let pid = std::process::id();
    let expected = format!("written to by a test (process {pid}, through 10.0.0.1 port 4420)");
    assert!(said.contains(&expected), "{said}");
    assert!(said.contains(&format!("(kill {pid})")), "{said}");
    // Under another NSID it is the same one.
    assert!(claim(&namespace(3, 7)).is_err());
    let others = [namespace(1, 8), namespace(1, 0), namespace(2, 0)];
    let others: Vec<Claim> = others.iter().map(|other| claim(other).unwrap()).collect();
    assert!(claim(&namespace(2, 0)).is_err());
    drop(first);
    drop(claim(&namespace(1, 7)).unwrap());
    drop(others);
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "files are left"
    );
}

#[test]
fn what_no_uuid_names_is_known_by_the_other_identifiers() {
    let dir = tempfile::tempdir().unwrap();
    let claim = |namespace: &NamespaceInfo| claim(dir.path(), namespace, Sharing::Exclusive);
    let mut nguid = namespace(1, 0);
    nguid.nguid = [7; 16];
    let mut eui64 = namespace(1, 0);
    eui64.eui64 = [7; 8];
    let _held = [nguid, eui64].map(|mut namespace| {
        let held = claim(&namespace).unwrap();
        namespace.nsid = 9;
        assert!(claim(&namespace).is_err());
        held
    });
}

#[test]
fn those_who_share_refuse_only_those_who_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let claim = |sharing| claim(dir.path(), &namespace(1, 7), sharing);
    let first = claim(Sharing::Shared).unwrap();
    let second = claim(Sharing::Shared).unwrap();
    assert!(claim(Sharing::Exclusive).unwrap_err().contains("by a test"));
    drop(first);
    assert!(claim(Sharing::Exclusive).is_err());
    drop(second);
    let alone = claim(Sharing::Exclusive).unwrap();
    // What the refusal proposes is taken.
    let beside = claim(Sharing::Shared).unwrap();
    drop(alone);
    assert!(claim(Sharing::Exclusive).is_err());
    drop(beside);
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "files are left"
    );
}

#[test]
fn what_a_dead_process_left_is_no_claim_but_for_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let first = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap();
    let path = first.path.clone();
    // Of one that has not ended yet.
    let alive = serde_json::to_vec(&first.holder).unwrap();
    let mut dead = holder("attached");
    dead.process.start_ticks += 1;
    dead.disk = Some(HolderDisk {
        device: "/dev/null".into(),
        loop_name: "capstan-1-2".to_owned(),
        folder: "/run/capstan-host/0".into(),
    });
    for left in [&b"{"[..], b""] {
        fs::write(&path, left).unwrap();
        // It is locked, by what has not said yet what it is.
        let said = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap_err();
        assert!(said.contains("lslocks"), "{said}");
    }
    drop(first);
    for left in [serde_json::to_vec(&dead).unwrap(), b"{".to_vec(), alive] {
        fs::write(&path, left).unwrap();
        claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap();
    }
}

#[test]
fn a_file_that_is_none_or_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive)
        .unwrap()
        .path
        .clone();
    symlink(dir.path().join("elsewhere"), &path).unwrap();
    let said = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap_err();
    assert!(said.starts_with(path.to_str().unwrap()), "{said}");
    assert!(!dir.path().join("elsewhere").exists());
    let none = dir.path().join("none");
    let error = Claim::new_in(
        &none,
        NQN,
        &namespace(1, 7),
        Sharing::Exclusive,
        holder("x"),
    );
    assert!(matches!(error, Err(ClaimError::System { .. })), "{error:?}");
}

#[test]
fn everybody_may_take_over_a_file_and_nobody_s_words_move_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let holder = holder("written \u{1b}[2J to");
    let first = Claim::new_in(
        dir.path(),
        NQN,
        &namespace(1, 7),
        Sharing::Exclusive,
        holder,
    );
    let first = first.unwrap();
    let mode = fs::metadata(&first.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    let said = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap_err();
    assert!(!said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn a_claim_whose_file_was_removed_is_not_taken_a_second_time() {
    let dir = tempfile::tempdir().unwrap();
    let claim = || claim(dir.path(), &namespace(1, 7), Sharing::Exclusive);
    let first = claim().unwrap();
    fs::remove_file(&first.path).unwrap();
    let said = claim().unwrap_err();
    let pid = std::process::id();
    assert!(
        said.contains(&format!(
            "claimed by process {pid} (see ps -fp {pid}), whose file"
        )) && said.contains("was removed meanwhile"),
        "{said}"
    );
    // Another folder is another place to meet.
    let other = tempfile::tempdir().unwrap();
    let namespace = namespace(1, 7);
    Claim::new_in(
        other.path(),
        NQN,
        &namespace,
        Sharing::Exclusive,
        holder("x"),
    )
    .unwrap();
    drop(first);
    claim().unwrap();
}

#[test]
fn a_process_that_was_killed_may_take_a_moment_to_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let first = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap();
    let mut dead = holder("attached");
    dead.process.start_ticks += 1;
    fs::write(&first.path, serde_json::to_vec(&dead).unwrap()).unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let second = {
        let folder = dir.path().to_owned();
        std::thread::spawn(move || {
            begun.send(()).unwrap();
            claim(&folder, &namespace(1, 7), Sharing::Exclusive)
        })
    };
    begins.recv().unwrap();
    drop(first);
    second.join().unwrap().unwrap();
    // Not for ever.
    let held = claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap();
    fs::write(&held.path, serde_json::to_vec(&dead).unwrap()).unwrap();
    let start = std::time::Instant::now();
    claim(dir.path(), &namespace(1, 7), Sharing::Exclusive).unwrap_err();
    assert!(start.elapsed() < std::time::Duration::from_secs(4));
}
