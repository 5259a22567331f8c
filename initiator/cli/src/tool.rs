//! Tools of the system, which wait where a disk does not answer: each is given up after a time, or
//! when a signal asks this process to end.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use capstan_initiator::internals::disk::process::unblock_signals;
use capstan_initiator::internals::words::Word;

use super::interrupt::{Interrupted, Interrupts, wait_for};
use super::output;

/// Between two looks whether a tool that has closed its output has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const PIECE_BYTES: usize = 4 << 10;

/// How tools are run for one command.
pub(super) struct Tools<'a> {
    interrupts: Option<&'a Interrupts>,
    /// How long one may take that only looks at a disk.
    patience: Duration,
    /// The signal that has ended one of them.
    ended_by: Cell<Option<Interrupted>>,
    /// They are in the process group of this process.
    in_this_group: bool,
}

impl<'a> Tools<'a> {
    pub(super) fn new(interrupts: &'a Interrupts, patience: Duration) -> Self {
        Self {
            interrupts: Some(interrupts),
            patience,
            ended_by: Cell::new(None),
            in_this_group: false,
        }
    }

    /// Leaves them in the process group of this process, where that is one that systemd has made a
    /// mount in: the kernel lets that group alone come to a folder with an automount.
    pub(super) fn in_this_group(self, in_this_group: bool) -> Self {
        Self {
            in_this_group,
            ..self
        }
    }

    /// The error of a command that has run them: [`Interrupted`] where a signal has ended one of
    /// them, whatever the command took that for.
    pub(super) fn or_interrupted(&self, error: Error) -> Error {
        match self.ended_by.get() {
            Some(interrupted) if !error.is::<Interrupted>() => {
                Error::new(interrupted).context(format!("{error:#}"))
            }
            _ => error,
        }
    }

    /// Runs a tool that only looks at a disk.
    ///
    /// # Errors
    /// [`Interrupted`]; it cannot be started, or does not end.
    pub(super) fn look(&self, command: &mut Command) -> Result<Output> {
        // A signal that has ended one of them does not come again.
        if let Some(interrupted) = self.ended_by.get() {
            return Err(interrupted.into());
        }
        let (tool, patience) = (self.start(command)?, self.patience);
        self.finish(tool, Some(patience))
    }

    /// Runs a tool that takes as long as it takes.
    ///
    /// # Errors
    /// [`Interrupted`]; it cannot be started, or fails.
    pub(super) fn run(&self, command: &mut Command) -> Result<()> {
        let tool = self.start(command)?;
        let words = tool.words.clone();
        check(&words, &self.finish(tool, None)?)
    }

    fn start(&self, command: &mut Command) -> Result<Tool> {
        match self.in_this_group {
            true => Tool::start_in_this_group(command),
            false => Tool::start(command),
        }
    }

    fn finish(&self, mut tool: Tool, patience: Option<Duration>) -> Result<Output> {
        match tool.wait(self.interrupts, patience)? {
            Outcome::Ended(output) => Ok(output),
            Outcome::Interrupted(interrupted) => {
                tool.give_up();
                self.ended_by.set(Some(interrupted));
                Err(interrupted.into())
            }
            Outcome::Late => {
                tool.give_up();
                bail!(
                    "`{}` has not ended after {} s and was given up: the disk does not answer; `capstan list` tells \
                     whether its controller is live",
                    tool.words,
                    patience.unwrap_or_default().as_secs()
                )
            }
        }
    }

    /// Does `work`, which reads a disk, on a thread: left behind where `look` would give up.
    pub(super) fn read<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = match self.interrupts {
            Some(interrupts) => {
                let done = interrupts.unless_one_comes_within(self.patience, work);
                let interrupted = done.as_ref().err().and_then(Error::downcast_ref);
                if let Some(&interrupted) = interrupted {
                    self.ended_by.set(Some(interrupted));
                }
                done?
            }
            None => Some(work()?),
        };
        done.with_context(|| {
            let seconds = self.patience.as_secs();
            format!("{what} is not read after {seconds} s: it does not answer; see `capstan list`")
        })
    }
}

impl Tools<'_> {
    /// Of a thread that no signal asks to end; each may take so long.
    pub(super) fn alone(patience: Duration) -> Self {
        Self {
            interrupts: None,
            patience,
            ended_by: Cell::new(None),
            in_this_group: false,
        }
    }

    /// For disks that answer.
    #[cfg(test)]
    pub(super) fn patient() -> Self {
        Self::alone(Duration::from_secs(600))
    }
}

/// What has become of a tool.
pub(super) enum Outcome {
    Ended(Output),
    /// A signal came first.
    Interrupted(Interrupted),
    Late,
}

/// A tool at work.
pub(super) struct Tool {
    child: Child,
    /// Its command line.
    pub(super) words: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Tool {
    /// In a group of its own: ctrl-C and timeout(1) signal that of this process, which decides what
    /// that means.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        Self::start_in_this_group(command.process_group(0))
    }

    fn start_in_this_group(command: &mut Command) -> Result<Self> {
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| Word::new(&word.to_string_lossy()).to_string())
            .collect();
        let words = words.join(" ");
        let child = unblock_signals(command)
            .env("PATH", search_path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let program = command.get_program().display();
        let child = output::started(child, || {
            format!("running {program}, expected it to be installed (package util-linux)")
        })?;
        Ok(Self {
            child,
            words,
            stdout: Vec::new(),
            stderr: Vec::new(),
        })
    }

    /// Waits for its end, or a signal to this process.
    pub(super) fn wait(
        &mut self,
        interrupts: Option<&Interrupts>,
        patience: Option<Duration>,
    ) -> Result<Outcome> {
        let start = Instant::now();
        loop {
            let rest = patience.map(|patience| patience.saturating_sub(start.elapsed()));
            if rest == Some(Duration::ZERO) {
                return Ok(Outcome::Late);
            }
            let is_silent = self.child.stdout.is_none() && self.child.stderr.is_none();
            if is_silent && let Some(status) = self.child.try_wait().context("wait")? {
                return Ok(Outcome::Ended(Output {
                    status,
                    stdout: std::mem::take(&mut self.stdout),
                    stderr: std::mem::take(&mut self.stderr),
                }));
            }
            let mut fds: Vec<_> = interrupts.iter().map(|i| i.as_fd()).collect();
            fds.extend(self.child.stdout.iter().map(AsFd::as_fd));
            fds.extend(self.child.stderr.iter().map(AsFd::as_fd));
            // Mostly it has ended by then.
            let look = is_silent.then_some(LOOK_EVERY);
            wait_for(&fds, look.or(rest))?;
            if let Some(interrupted) = interrupts.and_then(Interrupts::next) {
                return Ok(Outcome::Interrupted(interrupted));
            }
            take(&mut self.child.stdout, &mut self.stdout)?;
            take(&mut self.child.stderr, &mut self.stderr)?;
        }
    }

    /// Ends it, at the latest when the kernel lets go of it.
    pub(super) fn give_up(&mut self) {
        let _ = self.child.kill();
        thread::sleep(LOOK_EVERY);
        let _ = self.child.try_wait();
    }
}

/// Where tools are looked for: the tools of disks are in folders that a user's path may lack.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(match path.is_empty() {
        true => "/usr/bin:/bin:/usr/sbin:/sbin",
        false => ":/usr/sbin:/sbin",
    });
    path
}

/// Takes what `pipe` has, and closes it at its end.
fn take<P: Read + AsFd>(pipe: &mut Option<P>, all: &mut Vec<u8>) -> Result<()> {
    let Some(open) = pipe.as_mut() else {
        return Ok(());
    };
    if !wait_for(&[open.as_fd()], Some(Duration::ZERO))? {
        return Ok(());
    }
    let mut piece = [0; PIECE_BYTES];
    match open.read(&mut piece) {
        Ok(0) => *pipe = None,
        Ok(count) => all.extend(piece.iter().take(count)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(error) => return Err(error).context("reading what a tool says"),
    }
    Ok(())
}

/// Fails with what a tool that failed has said.
pub(super) fn check(words: &str, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    // As mount(8), which has its next step in a line of its own.
    let lines: Vec<&str> = told.trim().lines().map(str::trim).collect();
    let told = lines.join(" ");
    bail!("{words}: {} ({})", unrepeated(words, &told), output.status)
}

/// What a tool says behind its name and its last argument, with which it mostly begins and which
/// stand before that already.
fn unrepeated<'a>(words: &str, told: &'a str) -> &'a str {
    let behind = |told: &'a str, name: &str| {
        let rest = told
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(": "));
        rest.unwrap_or(told)
    };
    let ends = [words.split(' ').next(), words.rsplit(' ').next()];
    ends.into_iter().flatten().fold(told, behind)
}

/// Runs a tool to its end, whatever comes.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let mut tool = Tool::start(command)?;
    match tool.wait(None, None)? {
        Outcome::Ended(output) => check(&tool.words, &output),
        Outcome::Interrupted(_) | Outcome::Late => bail!("{}: no end", tool.words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_repeats_of_its_command_is_left_out() {
        let told = unrepeated("umount /m", "umount: /m: target is busy.");
        assert_eq!(told, "target is busy.");
        let words = "mount -t ext4 -- /dev/loop3 /m";
        let told = unrepeated(words, "mount: /m: wrong fs type.");
        assert_eq!(told, "wrong fs type.");
        assert_eq!(unrepeated("sync", "sync: sync"), "sync");
        assert_eq!(unrepeated("sync -f /m", "no room"), "no room");
    }

    #[test]
    fn what_a_tool_says_in_several_lines_is_told_in_one() {
        let output = Command::new("sh")
            .args([
                "-c",
                "printf 'wrong fs type.\n       dmesg(1) may have more.\n' >&2; exit 32",
            ])
            .output();
        let error = check("mount", &output.unwrap()).unwrap_err();
        let said = "mount: wrong fs type. dmesg(1) may have more. (exit status: 32)";
        assert_eq!(error.to_string(), said);
    }
}
