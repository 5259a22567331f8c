//! The socket of a serving process: one request, one answer, both a line of JSON.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire::WireFields;

/// How long either side waits for the other. The serving process answers at once or after a
/// detach, which has limits of its own: 5 s for the kernel to clear the device, 5 s to see whether
/// others have it open, and 10 s for those.
pub const PATIENCE: Duration = Duration::from_secs(25);
/// Longest line, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What a serving process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Where the association is.
    Status,
    /// Disconnect and connect again; I/O waits.
    Reset,
    /// Look for namespaces again.
    Rescan,
    /// End in order, unless the disk is in use.
    Detach,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Where the association is.
    Status(State),
    /// It is under way; `Status` tells how it goes.
    Begun,
    /// The disk is gone; the process ends.
    Detached,
    /// It is not possible, for this reason.
    Refused(String),
}

/// Where an association is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// `live`, `reconnecting`, `lost`, or `refused`: the controller is live, and all I/O to the
    /// volume fails, as its namespace is not what it was.
    pub state: String,
    /// The attempt that is under way or comes next, when reconnecting.
    pub attempt: Option<u32>,
    /// In words.
    pub detail: String,
    /// Writes wait until an old controller is known to be gone: how long, in words.
    #[serde(default)]
    pub held: Option<String>,
    /// What is wrong with the volume though its controller may be live, and what to do.
    #[serde(default)]
    pub attention: Option<String>,
    /// What the controller warns of the medium, also where that is not the worst.
    #[serde(default)]
    pub medium: Option<String>,
    /// Why all I/O is refused.
    #[serde(default)]
    pub refused: Option<String>,
    /// Namespaces are being looked for.
    #[serde(default)]
    pub scanning: bool,
    /// For how long the target has not answered what it is asked for the state, where it has not.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// What carries the queues of the association, or did when it was last live.
    #[serde(flatten)]
    pub wire: Box<WireFields>,
}

impl State {
    /// Whether there is a controller, whatever has become of the volume.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.state.as_str(), "live" | "refused")
    }

    /// What there is to say of it in a line of its own: also why it waits, and until when.
    #[must_use]
    pub fn below(&self) -> Option<Cow<'_, str>> {
        let (detail, attention) = (self.detail.as_str(), self.attention.as_deref());
        if self.state != "reconnecting" {
            return attention.map(Cow::Borrowed);
        }
        Some(match attention {
            Some(text) if text.contains(detail) => Cow::Borrowed(text),
            Some(text) if !detail.contains(text) => Cow::Owned(format!("{text}; {detail}")),
            _ => Cow::Borrowed(detail),
        })
    }
}

/// The serving side.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
}

impl ControlSocket {
    /// Listens at `path`, in a folder that only its owner can enter.
    ///
    /// # Errors
    /// bind(2).
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Takes one request; `None` when none has come, or it made no sense.
    #[must_use]
    pub(crate) fn accept(&self) -> Option<(Request, Asker)> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .ok()?;
        let request = receive(&stream).ok()?;
        Some((request, Asker(stream)))
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Who asked.
#[derive(Debug)]
pub(crate) struct Asker(UnixStream);

impl Asker {
    /// Answers. If nothing reads it any more, it is not missed.
    pub(crate) fn answer(self, answer: &Answer) {
        let _ = send(&self.0, answer);
    }
}

/// Asks the serving process behind `path`.
///
/// # Errors
/// Nobody listens there, or no answer comes in time.
pub fn ask(path: &Path, request: Request) -> io::Result<Answer> {
    ask_within(path, request, PATIENCE)
}

/// The same, where no answer comes later than after `patience`.
///
/// # Errors
/// As for [`ask`].
pub fn ask_within(path: &Path, request: Request, patience: Duration) -> io::Result<Answer> {
    // Zero would be none (setsockopt(2), SO_RCVTIMEO).
    let patience = patience.max(Duration::from_millis(1));
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    send(&stream, &request)?;
    receive(&stream)
}

fn send(mut stream: &UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn receive<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::{Answer, ControlSocket, Request, State, ask};

    #[test]
    fn what_waits_says_until_when_whatever_else_there_is() {
        let below = |state: &str, attention: Option<&str>| {
            let state = State {
                state: state.to_owned(),
                detail: "fails in 3 s; lost".to_owned(),
                attention: attention.map(str::to_owned),
                ..State::default()
            };
            state.below().map(|text| text.into_owned())
        };
        for (attention, told) in [
            (None, "fails in 3 s; lost"),
            (Some("lost"), "fails in 3 s; lost"),
            (
                Some("refused: fails in 3 s; lost"),
                "refused: fails in 3 s; lost",
            ),
            (Some("unmounted"), "unmounted; fails in 3 s; lost"),
        ] {
            assert_eq!(below("reconnecting", attention).as_deref(), Some(told));
            assert_eq!(below("live", attention).as_deref(), attention);
        }
    }

    #[test]
    fn a_question_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let socket = ControlSocket::bind(&path).unwrap();
        assert!(socket.accept().is_none());
        let asking = {
            let path = path.clone();
            std::thread::spawn(move || ask(&path, Request::Status).unwrap())
        };
        let (request, asker) = loop {
            if let Some(asked) = socket.accept() {
                break asked;
            }
            std::thread::yield_now();
        };
        assert_eq!(request, Request::Status);
        let answer = Answer::Status(State {
            state: "live".to_owned(),
            detail: "live".to_owned(),
            ..State::default()
        });
        asker.answer(&answer);
        assert_eq!(asking.join().unwrap(), answer);
        let mut rude = UnixStream::connect(&path).unwrap();
        rude.write_all(b"what?\n").unwrap();
        assert!(socket.accept().is_none());
        drop(socket);
        assert!(ask(&path, Request::Detach).is_err());
    }
}
