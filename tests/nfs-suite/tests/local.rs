//! The suite on a local file system, where its cases are known to hold.

use std::path::Path;
use std::process::{Command, Output};

fn suite(arguments: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nfs_suite"))
        .args(arguments)
        .arg(folder)
        .output()
        .expect("nfs_suite starts")
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

/// What every file system of Linux has.
const SUBJECTS: [&str; 11] = [
    "chmod", "chown", "create", "link", "remove", "rename", "truncate", "names", "locks",
    "clients", "verify",
];

#[test]
fn cases_hold_on_a_local_file_system() {
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("SKIPPED: the suite changes owners, which takes root");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let only: Vec<&str> = SUBJECTS
        .iter()
        .flat_map(|subject| ["--only", subject])
        .collect();
    let output = suite(&only, folder.path());
    let lines = lines(&output);
    let failed: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("FAIL"))
        .collect();
    assert!(failed.is_empty() && output.status.success(), "{failed:?}");
    for subject in SUBJECTS {
        let passed = format!("PASS {subject}/");
        assert!(
            lines.iter().any(|line| line.starts_with(&passed)),
            "{passed}"
        );
    }
    let left = folder.path().read_dir().expect("the folder").count();
    assert_eq!(left, 0, "files that the cases have left");
}

#[test]
fn what_fails_and_what_is_left_out_is_told() {
    let arguments = ["--only", "link", "--skip", "link/many"];
    let output = suite(&arguments, Path::new("/proc/no-such-folder"));
    assert!(!output.status.success());
    let lines = lines(&output);
    assert_eq!(lines.len(), 6, "{lines:?}");
    for line in &lines[..4] {
        assert!(line.starts_with("FAIL link/"), "{line}");
        assert!(line.contains("ENOENT, expected it to succeed"), "{line}");
    }
    assert_eq!(lines[4], "SKIPPED link/many: --skip");
    assert_eq!(lines[5], "0 passed, 4 failed, 1 skipped");
}

#[test]
fn a_name_that_no_case_has_is_refused() {
    let output = suite(&["--only", "lonk"], Path::new("/tmp"));
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("lonk: no case or subject is called so"),
        "{said}"
    );
}
