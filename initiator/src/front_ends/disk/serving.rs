//! The process that serves a volume, as others see it: whether it lives, and its end.
#![expect(
    unsafe_code,
    reason = "pidfd_open(2) and pidfd_send_signal(2) without a safe wrapper"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, Uid, geteuid};
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use crate::words::word_of;

/// The command of a serving process, and the option that names its volume's folder.
pub const COMMAND: &str = "serve-fuse";
/// See [`COMMAND`].
pub const FOLDER_OPTION: &str = "--volume-dir";

/// A process, so that another one with its number is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    #[serde(deserialize_with = "number")]
    pub pid: i32,
    /// When it started, in clock ticks since the machine did (proc_pid_stat(5), field 22).
    pub start_ticks: u64,
}

/// The number of a process: 0 and less mean others to the kernel.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let pid = i32::deserialize(deserializer)?;
    if pid > 0 {
        return Ok(pid);
    }
    let expected = "the number of a process, 1 or more";
    Err(D::Error::invalid_value(
        Unexpected::Signed(pid.into()),
        &expected,
    ))
}

/// A process is not ended.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The process of that number does something else.
    #[error(
        "process {pid} {found}, expected user {expected}'s `capstan {COMMAND} {FOLDER_OPTION} {folder}`; it is left alone: \
         see `ps -fp {pid}`, and end it yourself if it serves the volume"
    )]
    Other {
        /// Its number.
        pid: i32,
        /// What it is instead.
        found: String,
        /// Whose it is to be.
        expected: Uid,
        /// The volume's folder.
        folder: String,
    },
    /// The kernel refuses.
    #[error("ending process {pid}: {source}")]
    System {
        /// Its number.
        pid: i32,
        /// Why.
        source: io::Error,
    },
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn this() -> io::Result<Self> {
        let pid = Pid::this().as_raw();
        let start_ticks = start_ticks(pid)?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }

    /// Whether a signal or a debugger has stopped it, so that it answers nothing (proc_pid_stat(5),
    /// field 3).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Waits for its end; `false` when it runs on after `patience`.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        match self.open() {
            Ok(Some(handle)) => handle.wait(patience),
            Ok(None) => true,
            // Without a handle nobody could tell.
            Err(_) => !self.is_alive(),
        }
    }

    /// Ends it at once, if it is the process of this user that serves the volume of `folder`. It
    /// may take a moment to go:
    /// [`Process::wait`].
    ///
    /// # Errors
    /// [`EndError`].
    pub fn end(&self, folder: &Path) -> Result<(), EndError> {
        let pid = self.pid;
        let system = |source| EndError::System { pid, source };
        let Some(handle) = self.open().map_err(system)? else {
            return Ok(());
        };
        self.check_serves(folder)?;
        handle.kill().map_err(system)
    }

    /// Makes sure that it is the process of this user that serves the volume of `folder`, or has
    /// ended.
    ///
    /// # Errors
    /// [`EndError::Other`].
    pub fn check_serves(&self, folder: &Path) -> Result<(), EndError> {
        match serves(self.pid, folder) {
            // What is gone meanwhile has no command line.
            Err(found) if self.is_alive() => Err(EndError::Other {
                pid: self.pid,
                found,
                expected: geteuid(),
                folder: word_of(folder).to_string(),
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// What the process of this number is, where that does something else than serving the volume
    /// of `folder`: a record that has outlived its process by a restart of the machine may name it.
    #[must_use]
    pub fn anothers(&self, folder: &Path) -> Option<EndError> {
        let other = self.check_serves(folder).err()?;
        // One that is just ending has given its memory back, and its command line with it.
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).ok()?;
        (!line.is_empty()).then_some(other)
    }

    /// A handle for this process and no other one with its number; `None` when it has ended.
    fn open(&self) -> io::Result<Option<Handle>> {
        let handle = match Handle::open(self.pid) {
            Ok(handle) => handle,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        // The handle is for the process that has this pid now, and a pid is not given out again
        // while its process lives.
        Ok(self.is_alive().then_some(handle))
    }
}

/// A pidfd.
struct Handle(OwnedFd);

impl Handle {
    /// pidfd_open(2), Linux 5.3.
    fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: the system call takes two numbers and touches no memory of the process.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = RawFd::try_from(Errno::result(result)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor, close-on-exec, and nothing else knows
        // it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// pidfd_send_signal(2), Linux 5.1.
    fn kill(&self) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        let (fd, signal) = (self.0.as_raw_fd(), libc::SIGKILL);
        // SAFETY: the descriptor is open, and no `siginfo_t` is given that the kernel would read.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_info, 0) };
        match Errno::result(result) {
            Ok(_) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the end of the process: its handle is readable then.
    fn wait(&self, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            let rest = patience.saturating_sub(start.elapsed());
            let timeout = PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if start.elapsed() >= patience => return false,
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Whether a process of this user serves the volume of `folder`; what it is instead.
fn serves(pid: i32, folder: &Path) -> Result<(), String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|error| format!("cannot be looked at: {error}"))?;
    // Real, effective, saved and file system user (proc_pid_status(5)).
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let mut users = users.unwrap_or_default().split_whitespace();
    let own = geteuid().to_string();
    if let Some(other) = users.find(|&user| user != own) {
        return Err(format!("is user {other}'s"));
    }
    let line = fs::read(format!("/proc/{pid}/cmdline"))
        .map_err(|error| format!("cannot be looked at: {error}"))?;
    let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    let follows =
        |first: &[u8], second: &[u8]| words.windows(2).any(|pair| pair == [first, second]);
    if words.contains(&COMMAND.as_bytes())
        && follows(FOLDER_OPTION.as_bytes(), folder.as_os_str().as_bytes())
    {
        return Ok(());
    }
    let words: Vec<_> = words
        .iter()
        .take(6)
        .map(|word| String::from_utf8_lossy(word))
        .collect();
    Err(format!("is `{}`", words.join(" ").trim_end()))
}

fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    // The name, field 2, may have spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ").ok_or_else(invalid)?;
    let mut fields = rest.split(' ');
    // A zombie has ended.
    if fields.clone().next() == Some("Z") {
        return Err(io::ErrorKind::NotFound.into());
    }
    let ticks = fields.nth(19).ok_or_else(invalid)?;
    ticks.parse().map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::{EndError, Process, start_ticks};

    const FOLDER: &str = "/run/capstan-host/7";
    const MINUTE: Duration = Duration::from_secs(60);

    /// A shell that waits for the end of its stdin, with these arguments.
    fn start(words: &[&str]) -> (Child, Process) {
        let mut child = Command::new("sh")
            .arg0("@capstan")
            .args(["-c", "echo; read -r _", "--verbose"])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It is that command once it has spoken.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start_ticks = start_ticks(pid).unwrap();
        (child, Process { pid, start_ticks })
    }

    #[test]
    fn another_process_with_the_number_is_not_the_process() {
        let this = Process::this().unwrap();
        assert!(this.is_alive());
        let other = Process {
            start_ticks: this.start_ticks + 1,
            ..this
        };
        assert!(!other.is_alive());
        assert!(other.wait(Duration::ZERO));
        assert!(!this.wait(Duration::from_millis(20)));
        other.end(Path::new(FOLDER)).expect("it has ended already");
    }

    #[test]
    fn the_process_that_serves_the_volume_is_ended() {
        let (mut child, process) = start(&["serve-fuse", "--volume-dir", FOLDER, "--nqn=x"]);
        assert!(!process.wait(Duration::from_millis(1)));
        process.end(Path::new(FOLDER)).unwrap();
        assert!(process.wait(MINUTE));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_does_something_else_is_left_alone() {
        for words in [
            ["serve-fuse", "--volume-dir", "/run/capstan-host/8"],
            ["serve-nbd", "--volume-dir", FOLDER],
            ["serve-fuse", FOLDER, "--volume-dir"],
        ] {
            let (mut child, process) = start(&words);
            let error = process.end(Path::new(FOLDER)).unwrap_err();
            assert!(matches!(error, EndError::Other { .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("is `@capstan") && text.contains("left alone"),
                "{text}"
            );
            assert!(process.is_alive());
            drop(child.stdin.take());
            assert!(child.wait().is_ok());
        }
    }

    #[test]
    fn a_process_of_another_user_is_left_alone() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: only root can start a process of another user");
            return;
        }
        let mut child = Command::new("sh")
            .args([
                "-c",
                "echo; read -r _",
                "x",
                "serve-fuse",
                "--volume-dir",
                FOLDER,
            ])
            .uid(65534)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start_ticks = start_ticks(pid).unwrap();
        let process = Process { pid, start_ticks };
        let text = process.end(Path::new(FOLDER)).unwrap_err().to_string();
        assert!(text.contains("is user 65534's"), "{text}");
        drop(child.stdin.take());
        assert!(child.wait().is_ok());
    }
}
