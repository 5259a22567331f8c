//! The end that asks.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::frame::{self, Answered};
use crate::{ANSWER_BYTES_MAX, Failure, Request};

/// A connection to a target's control socket.
///
/// ```no_run
/// use capstan_control::{Client, Request, SOCKET, answer::Status};
///
/// let mut target = Client::connect(SOCKET.as_ref())?;
/// let status: Status = target.ask(&Request::Status {})?;
/// println!("{} subsystems", status.subsystems.len());
/// # Ok::<_, capstan_control::CallError>(())
/// ```
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    next_id: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing listens there, or this user may not connect.
    #[error("{}: {error}; {}", path.display(), next_step(error))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The target went away, or did not answer in time.
    #[error("{}: {error}; the target's log says what it does", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What came is no answer to what was asked.
    #[error("{}: what answers is no capstan-target of this version: {why}", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The target does not carry it out.
    #[error(transparent)]
    Failed(#[from] Failure),
}

fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "no target has this control socket: start it (`systemctl start capstan-target`), or name its socket with \
             --control-socket"
        }
        io::ErrorKind::ConnectionRefused => {
            "the target that made it is gone: start it (`systemctl start capstan-target`)"
        }
        io::ErrorKind::PermissionDenied => {
            "root may, and members of the group that the socket has: `usermod -aG capstan USER`"
        }
        _ => "expected the control socket of a target",
    }
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`CallError::Connect`].
    pub fn connect(path: &Path) -> Result<Self, CallError> {
        let stream = UnixStream::connect(path).map_err(|error| CallError::Connect {
            path: path.to_owned(),
            error,
        })?;
        Ok(Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
            next_id: 1,
        })
    }

    /// Waits for answers no longer than this; for ever without it.
    ///
    /// # Errors
    /// [`CallError::Io`]: zero.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), CallError> {
        let set = self.stream.get_ref().set_read_timeout(timeout);
        set.map_err(|error| self.io(error))
    }

    /// Asks, and waits for the answer, which is of the type that the request says.
    ///
    /// # Errors
    /// All of [`CallError`] but of connecting.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, CallError> {
        let value = self.call(request)?;
        serde_json::from_value(value).map_err(|error| self.no_answer(error.to_string()))
    }

    /// As [`ask`](Self::ask), with the answer as it came.
    ///
    /// # Errors
    /// As there.
    pub fn call(&mut self, request: &Request) -> Result<Value, CallError> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let line = frame::ask(id, request);
        match self.stream.get_mut().write_all(line.as_bytes()) {
            // A target that takes no more connections has said so before it was asked.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|error| self.io(error))?,
        }
        let mut line = Vec::new();
        let limit = u64::try_from(ANSWER_BYTES_MAX).unwrap_or(u64::MAX);
        let read = (&mut self.stream).take(limit).read_until(b'\n', &mut line);
        read.map_err(|error| self.io(error))?;
        if line.is_empty() {
            return Err(self.io(io::ErrorKind::UnexpectedEof.into()));
        }
        let answered: Answered =
            serde_json::from_slice(&line).map_err(|error| self.no_answer(error.to_string()))?;
        if let Some(failure) = answered.error {
            return Err(failure.into());
        }
        if answered.id.as_u64() != Some(id) {
            return Err(self.no_answer(format!("it answers {}, expected {id}", answered.id)));
        }
        Ok(answered.result.unwrap_or_default())
    }

    fn io(&self, error: io::Error) -> CallError {
        CallError::Io {
            path: self.path.clone(),
            error,
        }
    }

    fn no_answer(&self, why: String) -> CallError {
        CallError::NoAnswer {
            path: self.path.clone(),
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::{CallError, Client};
    use crate::answer::LogLevel;
    use crate::{Failure, Kind, Levels, Request, frame};

    #[test]
    fn what_is_said_before_the_question_is_heard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = Client::connect(&path).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let failure = Failure::new(Kind::Busy, "32 connections are being served");
        let line = frame::answer(&serde_json::Value::Null, Err(&failure));
        stream.write_all(line.as_bytes()).unwrap();
        drop(stream);
        let said = client.call(&Request::Status {}).unwrap_err().to_string();
        assert!(said.contains("32 connections"), "{said}");
    }

    #[test]
    fn answers_and_failures_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let target = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let mut stream = stream;
            let call = frame::parse(lines.next().unwrap().unwrap().as_bytes()).unwrap();
            let level = serde_json::json!({"level": "info", "was": "warn", "later": 1});
            stream
                .write_all(frame::answer(&call.id, Ok(&level)).as_bytes())
                .unwrap();
            let call = frame::parse(lines.next().unwrap().unwrap().as_bytes()).unwrap();
            let failure = Failure::new(Kind::Busy, "not now");
            stream
                .write_all(frame::answer(&call.id, Err(&failure)).as_bytes())
                .unwrap();
        });
        let mut client = Client::connect(&path).unwrap();
        let ask = Request::LogLevel(Levels::default());
        let level: LogLevel = client.ask(&ask).unwrap();
        assert_eq!(level.was, "warn");
        let failed = client.call(&ask).unwrap_err();
        assert!(matches!(failed, CallError::Failed(failure) if failure.message == "not now"));
        target.join().unwrap();
        let gone = client.call(&ask).unwrap_err().to_string();
        assert!(gone.contains("control.sock"), "{gone}");
    }

    #[test]
    fn a_socket_without_a_target_says_what_to_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let none = Client::connect(&path).unwrap_err().to_string();
        assert!(none.contains("systemctl start capstan-target"), "{none}");
        drop(UnixListener::bind(&path).unwrap());
        let left = Client::connect(&path).unwrap_err().to_string();
        assert!(left.contains("is gone"), "{left}");
    }
}
