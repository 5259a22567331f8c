//! The other process of cases that need two: POSIX locks are a process's, and go when it ends.
//!
//! It reads lines from its standard input and answers each with one line: `ok`, what was asked
//! for, or the name of an error. It ends when its input does.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK};

use crate::expect::{Expect, Failure, Outcome, equal};
use crate::sys;

/// What is locked, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lock {
    Read,
    Write,
    Unlock,
}

impl Lock {
    const fn number(self) -> i32 {
        match self {
            Self::Read => F_RDLCK,
            Self::Write => F_WRLCK,
            Self::Unlock => F_UNLCK,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Unlock => "unlock",
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        [Self::Read, Self::Write, Self::Unlock]
            .into_iter()
            .find(|lock| lock.word() == word)
    }
}

/// Sets a POSIX lock without waiting.
pub(crate) fn set(file: &File, lock: Lock, start: i64, bytes: i64) -> nix::Result<()> {
    fcntl(
        file,
        FcntlArg::F_SETLK(&sys::range(lock.number(), start, bytes)),
    )
    .map(drop)
}

/// Sets a POSIX lock as soon as that is possible.
pub(crate) fn set_waiting(file: &File, lock: Lock, start: i64, bytes: i64) -> nix::Result<()> {
    fcntl(
        file,
        FcntlArg::F_SETLKW(&sys::range(lock.number(), start, bytes)),
    )
    .map(drop)
}

/// Sets a lock of the open file description without waiting.
pub(crate) fn set_ofd(file: &File, lock: Lock, start: i64, bytes: i64) -> nix::Result<()> {
    fcntl(
        file,
        FcntlArg::F_OFD_SETLK(&sys::range(lock.number(), start, bytes)),
    )
    .map(drop)
}

/// What stands in the way of a POSIX lock: `none`, or `read START BYTES` and the like.
pub(crate) fn test(file: &File, lock: Lock, start: i64, bytes: i64) -> nix::Result<String> {
    let mut range = sys::range(lock.number(), start, bytes);
    fcntl(file, FcntlArg::F_GETLK(&mut range))?;
    let kind = i32::from(range.l_type);
    Ok(
        match [Lock::Read, Lock::Write]
            .into_iter()
            .find(|lock| lock.number() == kind)
        {
            Some(lock) => format!("{} {} {}", lock.word(), range.l_start, range.l_len),
            None => "none".to_owned(),
        },
    )
}

/// Appends lines of one client, and closes.
fn append(path: &str, client: i64, lines: i64) -> nix::Result<String> {
    let mut file = sys::open(Path::new(path), OFlag::O_WRONLY | OFlag::O_APPEND, 0)?;
    for number in 0..lines {
        let text = format!("{client} {number:06}\n");
        file.write_all(text.as_bytes())
            .map_err(|_error| Errno::EIO)?;
    }
    sys::close(file).map(|()| "ok".to_owned())
}

#[derive(Default)]
struct Server {
    files: HashMap<String, File>,
}

impl Server {
    fn file(&mut self, path: &str) -> nix::Result<&File> {
        if !self.files.contains_key(path) {
            let file = sys::open(Path::new(path), OFlag::O_RDWR, 0)?;
            self.files.insert(path.to_owned(), file);
        }
        self.files.get(path).ok_or(Errno::EBADF)
    }

    fn answer(&mut self, line: &str) -> nix::Result<String> {
        let mut words = line.splitn(5, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (verb, lock) = (word(), word());
        let mut number = || word().parse::<i64>().map_err(|_text| Errno::EINVAL);
        let (start, bytes) = (number()?, number()?);
        let path = word();
        if verb == "close" {
            self.files.remove(path);
            return Ok("ok".to_owned());
        }
        // Nothing of the file stays open: what a client has open for writing it keeps in its
        // memory, whatever others write meanwhile.
        if verb == "append" {
            return append(path, start, bytes);
        }
        let lock = Lock::of_word(lock).ok_or(Errno::EINVAL)?;
        let file = self.file(path)?;
        match verb {
            "set" => set(file, lock, start, bytes).map(|()| "ok".to_owned()),
            "wait" => set_waiting(file, lock, start, bytes).map(|()| "ok".to_owned()),
            "test" => test(file, lock, start, bytes),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Is the other process, until its input ends.
#[expect(
    clippy::print_stdout,
    reason = "the answers are what this process is for"
)]
pub(crate) fn serve() -> ExitCode {
    let mut server = Server::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else {
            return ExitCode::FAILURE;
        };
        match server.answer(&line) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("{error:?}"),
        }
    }
    ExitCode::SUCCESS
}

/// The other process, as the one that started it sees it.
pub(crate) struct Other {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start() -> Outcome<Self> {
        let program = std::env::current_exe().succeeds("the path of this program")?;
        let mut process = Command::new(program)
            .arg("--helper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .succeeds("starting another process")?;
        let to = process.stdin.take();
        let from = process.stdout.take().map(BufReader::new);
        let from = from.ok_or_else(|| Failure::new("the other process has no output"))?;
        Ok(Self { process, to, from })
    }

    /// Begins something, which may have to wait; [`Other::answer`] says how it went.
    pub(crate) fn begin(
        &mut self,
        verb: &str,
        lock: Lock,
        start: i64,
        bytes: i64,
        path: &Path,
    ) -> Outcome {
        let to = self
            .to
            .as_mut()
            .ok_or_else(|| Failure::new("the other process has no input"))?;
        writeln!(
            to,
            "{verb} {} {start} {bytes} {}",
            lock.word(),
            path.display()
        )
        .succeeds("asking the other process")
    }

    pub(crate) fn answer(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.from
            .read_line(&mut line)
            .succeeds("what the other process says")?;
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn ask(
        &mut self,
        verb: &str,
        lock: Lock,
        start: i64,
        bytes: i64,
        path: &Path,
    ) -> Outcome<String> {
        self.begin(verb, lock, start, bytes, path)?;
        self.answer()
    }

    /// Asks, and says what is expected.
    pub(crate) fn says(
        &mut self,
        (verb, lock, start, bytes): (&str, Lock, i64, i64),
        path: &Path,
        expected: &str,
    ) -> Outcome {
        let said = self.ask(verb, lock, start, bytes, path)?;
        equal(
            format!(
                "{verb} {} of {bytes} from {start} by another process",
                lock.word()
            ),
            said.as_str(),
            expected,
        )
    }

    /// Ends it as a crash does: its files are closed by the kernel.
    pub(crate) fn kill(mut self) -> Outcome {
        self.process.kill().succeeds("killing the other process")?;
        self.process
            .wait()
            .succeeds("waiting for the other process")
            .map(drop)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Its input ends, and so does it.
        drop(self.to.take());
        let _status = self.process.wait();
    }
}
