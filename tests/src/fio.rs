//! fio, with the job files of tests/fio.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::program::{complaint, program, told, tool, utf8};

/// A copy of the job files and of `capstan`, in a folder that any user can read, write and enter:
/// the repository may be in a home.
pub struct Fio {
    dir: tempfile::TempDir,
    unprivileged: bool,
}

impl Fio {
    /// To run as this user.
    ///
    /// # Panics
    /// When the files cannot be copied.
    #[must_use]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mode = fs::Permissions::from_mode(0o777);
        fs::set_permissions(dir.path(), mode).expect("our folder");
        let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("fio");
        for folder in ["", "nbd"] {
            let to = dir.path().join("fio").join(folder);
            fs::create_dir(&to).expect("a new folder");
            for entry in fs::read_dir(jobs.join(folder)).expect("tests/fio") {
                let path = entry.expect("an entry").path();
                if path.is_file() {
                    fs::copy(&path, to.join(path.file_name().expect("a file"))).expect("a copy");
                }
            }
        }
        // By a process of its own: a child that another test starts while this one writes the
        // program would hold it open, and a program that is open for writing cannot be run.
        tool(
            "cp",
            &[utf8(&program("capstan")), utf8(&dir.path().join("capstan"))],
        );
        Self {
            dir,
            unprivileged: false,
        }
    }

    /// To run as nobody when this user is root, as this user otherwise.
    #[must_use]
    pub fn unprivileged() -> Self {
        Self {
            unprivileged: nix::unistd::geteuid().is_root(),
            ..Self::new()
        }
    }

    /// A path in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The job files, without folder and ending.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn jobs(&self) -> Vec<String> {
        let files = fs::read_dir(self.path("fio")).expect("a folder");
        let mut names: Vec<String> = files
            .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
            .filter_map(|name| Some(name.strip_suffix(".fio")?.to_owned()))
            .collect();
        names.sort();
        assert!(names.contains(&"verify".to_owned()), "{names:?}");
        names
    }

    /// A program of the system, or `capstan`, to be run in the folder; it ends when the test does.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if self.unprivileged {
            command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
            command.args(["--bounding-set", "-all", "--no-new-privs"]);
        }
        command.arg(if name == "capstan" {
            self.path(name)
        } else {
            PathBuf::from(name)
        });
        command.current_dir(self.dir.path());
        command
    }

    /// `fio ARGS fio/JOB.fio`, to be run, with its report in report.json.
    #[must_use]
    pub fn job(&self, job: &str, args: &[&str]) -> Command {
        let mut fio = self.command("fio");
        fio.args(["--output-format=json", "--output=report.json"])
            .args(args)
            .arg(format!("fio/{job}.fio"));
        fio
    }

    /// Runs a job; gives its report.
    ///
    /// # Panics
    /// When it fails, or a job of it has done no I/O.
    #[must_use]
    pub fn run(&self, mut job: Command) -> Value {
        told(&job.output().expect("fio runs"));
        let text = fs::read_to_string(self.path("report.json")).expect("fio's report");
        let report: Value = serde_json::from_str(&text).expect("JSON");
        let jobs = report["jobs"].as_array().expect("jobs");
        assert!(!jobs.is_empty(), "{text}");
        for job in jobs {
            let ios = |way: &str| job[way]["total_ios"].as_u64().expect("a count");
            assert_eq!(job["error"], 0, "{text}");
            assert!(ios("read") + ios("write") > 0, "{text}");
        }
        report
    }

    /// Runs a job that must fail; gives what it says.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn run_to_fail(&self, mut job: Command) -> String {
        complaint(&job.output().expect("fio runs"))
    }
}

impl Default for Fio {
    fn default() -> Self {
        Self::new()
    }
}

/// Every byte of the volume's 256 MiB was written, and read again with the right checksum.
///
/// # Panics
/// When the report of the verify job says otherwise.
pub fn assert_verified(report: &Value) {
    let job = &report["jobs"][0];
    assert_eq!(job["write"]["io_bytes"], 256 << 20, "{report}");
    assert_eq!(job["read"]["io_bytes"], 256 << 20, "{report}");
}
