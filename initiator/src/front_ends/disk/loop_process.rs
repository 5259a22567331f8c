//! Loop devices through processes of their own.
//!
//! What opens, configures or clears a loop device may wait in the kernel, where no signal ends it,
//! for I/O of that device: the kernel reads partition tables, and holds a lock of the device
//! meanwhile. Were that the process that serves the device, it would wait for itself, and the
//! kernel would not let go of it when it is killed. So these calls are a process's of their own,
//! which is waited for with a deadline. It ends when the device's I/O does, at the latest with the
//! serving process.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::loop_device::{LoopDevice, LoopError, LoopOptions};

/// The command of such a process; its only argument is a [`LoopRequest`] in JSON.
pub(crate) const COMMAND: &str = "loop-device";
/// How long the kernel may take for what needs no I/O of the device. Longer, and its target does
/// not answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What a process does with a loop device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopRequest {
    /// Make a free device a disk of `file`. It answers `LoopAnswer::Chosen` before it touches the
    /// device, goes on with a line on its stdin, answers `LoopAnswer::Done`, and lets the device
    /// live on with another line. Without it the device goes.
    Configure {
        /// What the disk is of.
        file: PathBuf,
        /// Logical block size in bytes.
        lba_bytes: u32,
        /// Writes are refused.
        read_only: bool,
        /// The device's name.
        name: String,
    },
    /// Say what it is.
    Look {
        /// The device.
        device: PathBuf,
    },
    /// Take the file away from it.
    Clear {
        /// The device.
        device: PathBuf,
        /// Its name; a device of another name is left alone.
        name: String,
        /// Also when it is in use: with its last user.
        in_use_too: bool,
    },
    /// Make it as long as its file is now.
    TakeSize {
        /// The device.
        device: PathBuf,
    },
    /// Let it end with its last user.
    Autoclear {
        /// The device.
        device: PathBuf,
    },
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoopAnswer {
    /// This device is configured next.
    Chosen(PathBuf),
    /// It is what was asked for.
    Done,
    /// It is mounted, or claimed by another device: it was left alone.
    InUse,
    /// It has another name: it was left alone.
    Another,
    /// It is no disk any more: it has gone with its last user, or goes now.
    Gone,
    /// What it is.
    Is(LoopState),
    /// It failed, in words.
    Failed(String),
}

/// A loop device as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopState {
    /// The name it was configured with; none when it is not configured.
    pub name: Option<String>,
    /// It ends with its last user.
    pub autoclear: bool,
    /// It is mounted, or claimed by another device.
    pub in_use: bool,
}

/// No answer about a loop device.
#[derive(Debug, thiserror::Error)]
pub enum LoopProcessError {
    /// The process cannot be had.
    #[error("starting the process that configures loop devices: {0}")]
    Start(#[source] io::Error),
    /// It has ended without an answer.
    #[error("the process for {what} ended ({status}) without an answer")]
    Ended {
        /// What it was asked.
        what: String,
        /// How it ended.
        status: String,
    },
    /// The kernel keeps it.
    #[error("{what} has taken {} s: the kernel waits for I/O of the disk, whose target does not answer", .patience.as_secs())]
    Late {
        /// What it was asked.
        what: String,
        /// How long that was waited for.
        patience: Duration,
    },
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl LoopRequest {
    fn what(&self) -> String {
        match self {
            Self::Configure { .. } => "configuring a loop device".to_owned(),
            Self::Look { device } => format!("looking at {}", device.display()),
            Self::Clear { device, .. } => format!("clearing {}", device.display()),
            Self::TakeSize { device } | Self::Autoclear { device } => {
                format!("changing {}", device.display())
            }
        }
    }
}

/// Has a process do something that is over soon, or not before its target answers.
///
/// # Errors
/// [`LoopProcessError`].
pub(crate) fn ask(request: &LoopRequest) -> Result<LoopAnswer, LoopProcessError> {
    let mut process = LoopProcess::start(request)?;
    let start = Instant::now();
    while !process.is_readable(PATIENCE.saturating_sub(start.elapsed())) {
        if start.elapsed() >= PATIENCE {
            let what = request.what();
            // It may have to wait still, but does nothing any more.
            process.end(Duration::ZERO);
            let patience = PATIENCE;
            return Err(LoopProcessError::Late { what, patience });
        }
    }
    let answer = process.answer();
    process.end(PATIENCE);
    answer
}

/// What `device` is.
///
/// # Errors
/// `LoopProcessError`.
pub fn look(device: &Path) -> Result<LoopState, LoopProcessError> {
    let device = device.to_owned();
    match ask(&LoopRequest::Look { device })? {
        LoopAnswer::Is(state) => Ok(state),
        other => Err(LoopProcessError::Failed(format!("it said {other:?}"))),
    }
}

/// Lets `device` end with its last user.
///
/// # Errors
/// `LoopProcessError`.
pub fn set_autoclear(device: &Path) -> Result<(), LoopProcessError> {
    let device = device.to_owned();
    ask(&LoopRequest::Autoclear { device }).map(drop)
}

/// A process at work.
pub(crate) struct LoopProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    what: String,
}

impl LoopProcess {
    /// Starts it.
    ///
    /// # Errors
    /// [`LoopProcessError::Start`].
    pub(crate) fn start(request: &LoopRequest) -> Result<Self, LoopProcessError> {
        let text = serde_json::to_string(request).map_err(io::Error::from);
        let text = text.map_err(LoopProcessError::Start)?;
        // This program, also when its file has been replaced.
        let mut child = Command::new("/proc/self/exe")
            .arg0("capstan")
            .args([COMMAND, &text])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(LoopProcessError::Start)?;
        let none = || LoopProcessError::Start(io::ErrorKind::BrokenPipe.into());
        Ok(Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().ok_or_else(none)?),
            child,
            what: request.what(),
        })
    }

    /// Readable when it answers or ends.
    #[must_use]
    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stdout.get_ref().as_fd()
    }

    fn is_readable(&self, patience: Duration) -> bool {
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => false,
            // What goes wrong with the pipe shows when it is read.
            Ok(_) | Err(_) => true,
        }
    }

    /// Its next answer.
    ///
    /// # Errors
    /// [`LoopProcessError`].
    pub(crate) fn answer(&mut self) -> Result<LoopAnswer, LoopProcessError> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        match read.map(|_| serde_json::from_str(&line)) {
            Ok(Ok(LoopAnswer::Failed(text))) => Err(LoopProcessError::Failed(text)),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => {
                let status = self.child.wait().map(|status| status.to_string());
                Err(LoopProcessError::Ended {
                    what: self.what.clone(),
                    status: status.unwrap_or_else(|error| error.to_string()),
                })
            }
        }
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.stdin
            .as_mut()
            .map_or(Ok(()), |pipe| pipe.write_all(b"\n"))
    }

    /// Ends it, and waits for that; `false` when the kernel still keeps it after `patience`.
    pub(crate) fn end(mut self, patience: Duration) -> bool {
        drop(self.stdin.take());
        let start = Instant::now();
        let mut line = String::new();
        while self.is_readable(patience.saturating_sub(start.elapsed())) {
            line.clear();
            if !matches!(self.stdout.read_line(&mut line), Ok(1..)) {
                return self.child.wait().is_ok();
            }
        }
        // At once where it is at work, and when the kernel lets go of it where it waits.
        let _ = self.child.kill();
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

/// The work of such a process: answers on `out`, waits for lines of `go_on`.
///
/// # Errors
/// Nobody listens.
pub fn run(request: &LoopRequest, go_on: impl BufRead, mut out: impl Write) -> io::Result<()> {
    let mut tell = |answer: &LoopAnswer| {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()
    };
    let answer = match request {
        LoopRequest::Configure {
            file,
            lba_bytes,
            read_only,
            name,
        } => {
            let options = LoopOptions {
                lba_bytes: *lba_bytes,
                read_only: *read_only,
                name,
            };
            return match configure(file, &options, go_on, &mut tell) {
                Ok(()) => Ok(()),
                Err(error) => tell(&LoopAnswer::Failed(error)),
            };
        }
        LoopRequest::Look { device } => is(device).map(LoopAnswer::Is),
        LoopRequest::Clear {
            device,
            name,
            in_use_too,
        } => clear(device, name, *in_use_too),
        LoopRequest::TakeSize { device } => LoopDevice::open(device)
            .and_then(|device| device.take_size())
            .map(|()| LoopAnswer::Done),
        LoopRequest::Autoclear { device } => LoopDevice::open(device)
            .and_then(|device| device.set_autoclear(true))
            .map(|()| LoopAnswer::Done),
    };
    tell(&answer.unwrap_or_else(|error| LoopAnswer::Failed(error.to_string())))
}

fn configure(
    path: &Path,
    options: &LoopOptions<'_>,
    mut go_on: impl BufRead,
    tell: &mut impl FnMut(&LoopAnswer) -> io::Result<()>,
) -> Result<(), String> {
    let mut is_wanted = || matches!(go_on.read_line(&mut String::new()), Ok(1..));
    let words = |error: LoopError| error.to_string();
    let file = File::options()
        .read(true)
        .write(!options.read_only)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(|error| format!("opening the FUSE file {}: {error}", path.display()))?;
    // It ends with this process, however that ends, until it is to live on.
    let device = LoopDevice::configure(&file, options, |path| {
        tell(&LoopAnswer::Chosen(path.to_owned())).is_ok() && is_wanted()
    });
    let Some(device) = device.map_err(words)? else {
        return Err("it is not wanted any more".to_owned());
    };
    let told = tell(&LoopAnswer::Done);
    if told.is_ok() && is_wanted() {
        device.set_autoclear(false).map_err(words)?;
    }
    Ok(())
}

fn is(path: &Path) -> Result<LoopState, LoopError> {
    let claimed = LoopDevice::claim(path)?;
    let in_use = claimed.is_none();
    let device = claimed.map_or_else(|| LoopDevice::open(path), Ok)?;
    let name = device.name()?;
    let autoclear = device.is_autoclear()?;
    Ok(LoopState {
        name,
        autoclear,
        in_use,
    })
}

fn clear(path: &Path, name: &str, in_use_too: bool) -> Result<LoopAnswer, LoopError> {
    let opened = match in_use_too {
        true => LoopDevice::open(path).map(Some),
        false => LoopDevice::claim(path),
    };
    let device = match opened {
        Ok(Some(device)) => device,
        Ok(None) => return Ok(LoopAnswer::InUse),
        // What its last user has just closed is not opened again before it is free.
        Err(error) if error.is_going() => return Ok(LoopAnswer::Gone),
        Err(error) => return Err(error),
    };
    // It may have been cleared, and be another's by now.
    match device.name()? {
        None => Ok(LoopAnswer::Gone),
        Some(other) if other != name => Ok(LoopAnswer::Another),
        Some(_) => {
            device.clear()?;
            Ok(LoopAnswer::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::{LoopAnswer, LoopDevice, LoopOptions, LoopRequest, run};

    /// What a process that is to clear the device of this name says.
    fn clears(device: &Path, name: &str) -> LoopAnswer {
        let request = LoopRequest::Clear {
            device: device.to_owned(),
            name: name.to_owned(),
            in_use_too: false,
        };
        let mut told = Vec::new();
        run(&request, io::empty(), &mut told).unwrap();
        serde_json::from_slice(&told).unwrap()
    }

    #[test]
    fn a_device_that_goes_is_not_taken_for_anothers() {
        let control = Path::new("/dev/loop-control");
        if !nix::unistd::geteuid().is_root() || !control.exists() {
            eprintln!("SKIPPED a_device_that_goes_is_not_taken_for_anothers: no root or no loop");
            return;
        }
        let backing = tempfile::tempfile().unwrap();
        backing.set_len(1 << 20).unwrap();
        let options = LoopOptions {
            lba_bytes: 4096,
            read_only: false,
            name: "capstan-one",
        };
        let device = LoopDevice::configure(&backing, &options, |_| true);
        let device = device.unwrap().unwrap();
        let path = device.path().to_owned();
        assert_eq!(clears(&path, "capstan-other"), LoopAnswer::Another);
        // Its last user closes it: first it is going, then it is gone.
        device.clear().unwrap();
        assert_eq!(clears(&path, "capstan-one"), LoopAnswer::Gone);
        drop(device);
        let again = clears(&path, "capstan-one");
        // Another test may have it by now.
        assert!(
            matches!(again, LoopAnswer::Gone | LoopAnswer::Another),
            "{again:?}"
        );
    }
}
