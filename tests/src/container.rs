//! A process with mounts of its own, as a container has them.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::disks::in_own_mounts;
use crate::program::utf8;

/// A process in a mount namespace of its own, until it is told to end.
pub struct Container {
    process: Child,
    /// What the script reads.
    pub stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Container {
    /// Runs a script of `sh` with arguments, which prints a line once it is there. Of the mounts
    /// below temporary folders it has the one at `point`.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn run(point: &Path, script: &str, arguments: &[&str]) -> Self {
        let [unshare, own_mounts @ ..] = in_own_mounts(point);
        let mut process = Command::new(unshare)
            .args(own_mounts)
            .args(["sh", "-c", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut new = Self {
            stdin: process.stdin.take().unwrap(),
            stdout: process.stdout.take().unwrap(),
            process,
        };
        new.wait_for_line();
        new
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for one more line, which is empty.
    ///
    /// # Panics
    /// When it has ended.
    pub fn wait_for_line(&mut self) {
        self.stdout.read_exact(&mut [0]).unwrap();
    }

    /// What unmounts `point` in its namespace.
    #[must_use]
    pub fn advice(&self, point: &Path) -> String {
        format!(
            "nsenter --target {} --mount umount {}",
            self.pid(),
            utf8(point)
        )
    }

    /// Has nothing more for it to read, and waits for its end.
    ///
    /// # Panics
    /// When that cannot be had.
    pub fn end(self) {
        let Self {
            mut process, stdin, ..
        } = self;
        drop(stdin);
        assert!(process.wait().is_ok());
    }
}
