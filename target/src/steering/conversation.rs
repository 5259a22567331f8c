//! Requests and answers on the control socket, on the control thread: it reads, hands over to the
//! threads of `work`, and writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::{Failure, Kind, REQUEST_BYTES_MAX, frame};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

use super::work::{Outcome, Work};
use super::{News, Steering};

/// Connections at a time: an operator's, some of `top` and of what watches. Each may have a
/// request of [`REQUEST_BYTES_MAX`] bytes here: 2 MiB in all.
const CONNECTIONS_MAX: usize = 32;
/// How long the other end may take to read an answer, before the connection is closed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How often a client that waits for an answer is looked for.
const GONE_LOOKS: Duration = Duration::from_secs(1);

/// Connections that wait for a request, from the one that has waited longest on. Each ends when it
/// is told.
#[derive(Clone, Default)]
struct Idle(Rc<RefCell<VecDeque<Rc<Notify>>>>);

impl Idle {
    /// Ends the connection that has waited longest. Returns whether there is one.
    fn end_longest(&self) -> bool {
        let longest = self.0.borrow_mut().pop_front();
        longest.inspect(|wait| wait.notify_one()).is_some()
    }

    /// Waits for a request of a connection; `None`: another one is to have its place.
    async fn wait(
        &self,
        request: impl Future<Output = io::Result<usize>>,
    ) -> Option<io::Result<usize>> {
        let told = Rc::new(Notify::new());
        self.0.borrow_mut().push_back(Rc::clone(&told));
        let read = tokio::select! {
            read = request => Some(read),
            () = told.notified() => None,
        };
        self.0
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &told));
        read
    }
}

/// Answers requests of all connections, until it is dropped.
pub(crate) async fn serve(
    listener: std::os::unix::net::UnixListener,
    steering: Arc<Steering>,
    work: Rc<Work>,
) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let (places, idle) = (Rc::new(()), Idle::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No descriptor: one comes back when another connection ends.
                tracing::warn!(%error, "a connection to the control socket was not taken");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        if Rc::strong_count(&places) > CONNECTIONS_MAX && !idle.end_longest() {
            // Those that were taken just now do not wait yet.
            tokio::task::yield_now().await;
            if !idle.end_longest() {
                tokio_uring::spawn(refuse(stream));
                continue;
            }
        }
        let (place, steering, work) = (Rc::clone(&places), Arc::clone(&steering), Rc::clone(&work));
        let idle = idle.clone();
        tokio_uring::spawn(async move {
            if let Err(error) = converse(stream, &steering, &work, &idle).await {
                tracing::debug!(%error, "a connection to the control socket has ended");
            }
            drop(place);
        });
    }
}

async fn refuse(mut stream: UnixStream) {
    let words =
        format!("requests of {CONNECTIONS_MAX} connections are being carried out; try again");
    // It is told if it listens.
    let line = busy(words);
    let _ = tokio::time::timeout(ANSWER_PATIENCE, stream.write_all(line.as_bytes())).await;
}

/// Why a connection ends, though nothing is wrong with what it has asked.
fn busy(words: String) -> String {
    frame::answer(&Value::Null, Err(&Failure::new(Kind::Busy, words)))
}

/// The user and process at the other end, for the log.
fn caller(stream: &UnixStream) -> String {
    match stream.peer_cred() {
        Ok(of) => match of.pid() {
            Some(pid) => format!("UID {} (process {pid})", of.uid()),
            None => format!("UID {}", of.uid()),
        },
        Err(_) => "an unknown process".to_owned(),
    }
}

async fn converse(
    stream: UnixStream,
    steering: &Steering,
    work: &Work,
    idle: &Idle,
) -> io::Result<()> {
    let caller = caller(&stream);
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = u64::try_from(REQUEST_BYTES_MAX).unwrap_or(u64::MAX);
        let mut limited = (&mut stream).take(most);
        let Some(read) = idle.wait(limited.read_until(b'\n', &mut line)).await else {
            let words = format!(
                "{CONNECTIONS_MAX} connections are open, and this one had asked for nothing for longest when another came: \
                 connect again"
            );
            return answer(&mut stream, &busy(words)).await;
        };
        let read = read?;
        if read == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") && read == REQUEST_BYTES_MAX {
            let words =
                format!("the request has more than {REQUEST_BYTES_MAX} bytes; expected one line");
            let failure = Failure::new(Kind::NoRequest, words);
            answer(&mut stream, &frame::answer(&Value::Null, Err(&failure))).await?;
            return Ok(());
        }
        // So that a person can press return.
        if line.trim_ascii().is_empty() {
            continue;
        }
        let call = match frame::parse(&line) {
            Ok(call) => call,
            Err(no_call) => {
                answer(
                    &mut stream,
                    &frame::answer(&no_call.id, Err(&no_call.failure)),
                )
                .await?;
                continue;
            }
        };
        let outcome = tokio::select! {
            outcome = work.carry_out(call.request, caller.clone()) => outcome,
            () = gone(stream.get_ref()) => return Ok(()),
        };
        let (result, stops) = match outcome {
            Outcome::Answer(value) => (Ok(value), false),
            Outcome::Stop(value) => (Ok(value), true),
            Outcome::Failed(failure) => (Err(failure), false),
        };
        let told = answer(&mut stream, &frame::answer(&call.id, result.as_ref())).await;
        if stops {
            // Told or not: it was asked for.
            let _ = steering.news.send(News::Stop);
        }
        told?;
    }
}

/// Returns when the other end is closed. One that has only ended its requests still waits for
/// answers.
async fn gone(stream: &UnixStream) {
    loop {
        tokio::time::sleep(GONE_LOOKS).await;
        let mut polled = [PollFd::new(stream.as_fd(), PollFlags::empty())];
        let is_over =
            |events: PollFlags| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        if poll(&mut polled, PollTimeout::ZERO).is_ok() && polled[0].revents().is_some_and(is_over)
        {
            return;
        }
    }
}

async fn answer(stream: &mut BufReader<UnixStream>, line: &str) -> io::Result<()> {
    let written =
        tokio::time::timeout(ANSWER_PATIENCE, stream.get_mut().write_all(line.as_bytes()));
    written.await.map_err(|_| io::ErrorKind::TimedOut)?
}
