//! `GET /metrics`: a small HTTP/1.1 server on a thread of its own.
//!
//! What asks is not trusted to be quick, or to be what it should be: a connection has one request
//! of a few kilobytes, a few seconds for it and for taking the answer, and beyond a number of them
//! the oldest one ends. So one that keeps a connection keeps no other from being answered.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use capstan_config::Metrics as Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{self, JoinHandle as Task, LocalSet};

use super::{snapshot, text};
use crate::control_plane::ControlPlane;

/// Connections at a time: of some servers of Prometheus and some operators. Each may have a
/// request here, and an answer to take: the answers that were made within [`SNAPSHOT_AGE`] of each
/// other are one.
const CONNECTIONS_MAX: usize = 16;
/// A request line and headers: what Prometheus sends has some 400 bytes, and a proxy adds to it.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// How long a request may take to come.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer may take to be taken.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// An answer that is no older is given once more: whatever asks again and again has what is counted
/// read a hundred times a second, and no more often.
const SNAPSHOT_AGE: Duration = Duration::from_millis(10);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Where it listens, with the port that the kernel chose.
    pub(crate) address: SocketAddr,
    /// Dropped when it is to end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at an address, and tells there what is counted.
    ///
    /// # Errors
    /// It cannot be listened at, or there is no thread.
    fn start(listen: SocketAddr, control: &Arc<ControlPlane>) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind(listen).with_context(|| {
            format!(
                "metrics.listen: {listen} cannot be listened at; `ss -ltn` says what has the port, `ip address` the \
                 addresses of this machine"
            )
        })?;
        listener.set_nonblocking(true).context("metrics.listen")?;
        let address = listener.local_addr().context("metrics.listen")?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("metrics.listen: no epoll")?;
        let (stop, stopped) = oneshot::channel();
        let control = Arc::clone(control);
        let work = move || {
            let served = async move {
                if let Err(error) = serve(listener, control, stopped).await {
                    tracing::error!(%error, "metrics are not told any more at {address}; a reload with another address does");
                }
            };
            LocalSet::new().block_on(&runtime, served);
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(work);
        let thread = thread.context("metrics.listen: no thread")?;
        tracing::info!("metrics at http://{address}/metrics");
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // What it has to say of a panic is in the log.
            let _ = thread.join();
        }
    }
}

/// Where what is counted is told, as the configuration says.
#[derive(Debug, Default)]
pub(crate) struct Told {
    settings: Settings,
    endpoint: Option<Endpoint>,
}

/// What takes the place of what is there.
#[derive(Debug)]
pub(crate) struct Fresh {
    settings: Settings,
    /// `None`: what is there stays.
    endpoint: Option<Option<Endpoint>>,
}

impl Told {
    /// Opens what is told from then on. Nothing of what is there ends before [`Told::replace`].
    ///
    /// # Errors
    /// It cannot be listened there.
    pub(crate) fn prepare(
        &self,
        settings: &Settings,
        control: &Arc<ControlPlane>,
    ) -> anyhow::Result<Fresh> {
        let endpoint = (settings.listen != self.settings.listen).then(|| {
            let listen = settings.listen;
            listen
                .map(|listen| Endpoint::start(listen, control))
                .transpose()
        });
        Ok(Fresh {
            settings: *settings,
            endpoint: endpoint.transpose()?,
        })
    }

    /// What was opened takes the place of what is there.
    pub(crate) fn replace(&mut self, fresh: Fresh, control: &ControlPlane) {
        let Fresh { settings, endpoint } = fresh;
        self.settings = settings;
        control.metrics().set_sample(settings.sample);
        if let Some(endpoint) = endpoint {
            self.endpoint = endpoint;
        }
    }

    /// Where it is told.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|endpoint| endpoint.address)
    }
}

async fn serve(
    listener: std::net::TcpListener,
    control: Arc<ControlPlane>,
    mut stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let answers = Rc::new(Answers {
        control,
        last: RefCell::new(None),
    });
    let mut connections: VecDeque<Task<()>> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No descriptor: one comes back when a connection ends.
                tracing::debug!(%error, "a connection for metrics was not taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        while connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let answers = Rc::clone(&answers);
        connections.push_back(task::spawn_local(async move {
            if let Err(error) = converse(stream, &answers).await {
                tracing::debug!(%error, "a connection for metrics has ended");
            }
        }));
    }
}

/// An answer: its status line, the type of its body, and that.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: Rc<str>,
    /// Whether the body is sent, and not only said.
    is_whole: bool,
}

impl Answer {
    fn no(status: &'static str, words: &str) -> Self {
        Self {
            status,
            content_type: PLAIN,
            body: format!("{words}\n").into(),
            is_whole: true,
        }
    }
}

async fn converse(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    let answer = match tokio::time::timeout(REQUEST_PATIENCE, request(&mut stream)).await {
        Ok(read) => match read? {
            Some(request) => answers.to(&request),
            None => Answer::no(
                "431 Request Header Fields Too Large",
                "the request has more than 8 KiB",
            ),
        },
        Err(_) => Answer::no("408 Request Timeout", "no whole request within 5 s"),
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.content_type,
        answer.body.len()
    );
    let sent = async {
        stream.write_all(head.as_bytes()).await?;
        if answer.is_whole {
            stream.write_all(answer.body.as_bytes()).await?;
        }
        stream.shutdown().await
    };
    tokio::time::timeout(ANSWER_PATIENCE, sent)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

/// Reads a request up to the end of its headers; `None` where that does not come soon enough.
async fn request(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let read = (&mut *stream).take(1024).read_buf(&mut bytes).await?;
        let is_whole = bytes.windows(4).any(|end| end == b"\r\n\r\n");
        if is_whole {
            return Ok(Some(bytes));
        }
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// What is answered.
struct Answers {
    control: Arc<ControlPlane>,
    /// The last one, and when it was made.
    last: RefCell<Option<(Instant, Rc<str>)>>,
}

impl Answers {
    fn to(&self, request: &[u8]) -> Answer {
        let line = request.split(|byte| *byte == b'\r').next();
        let mut words = line.unwrap_or_default().split(|byte| *byte == b' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let (Some(method), Some(target), Some(version), None) =
            (method, target, version, words.next())
        else {
            return Answer::no("400 Bad Request", "expected GET /metrics HTTP/1.1");
        };
        if !version.starts_with(b"HTTP/1.") {
            return Answer::no("505 HTTP Version Not Supported", "expected HTTP/1.1");
        }
        if method != b"GET" && method != b"HEAD" {
            return Answer::no("405 Method Not Allowed", "expected GET");
        }
        let path = target.split(|byte| *byte == b'?').next();
        if path != Some(b"/metrics") {
            return Answer::no("404 Not Found", "expected /metrics");
        }
        self.control.metrics().scraped();
        Answer {
            status: "200 OK",
            content_type: OPEN_METRICS,
            body: self.text(),
            is_whole: method == b"GET",
        }
    }

    fn text(&self) -> Rc<str> {
        let mut last = self.last.borrow_mut();
        if let Some((made, text)) = &*last
            && made.elapsed() < SNAPSHOT_AGE
        {
            return Rc::clone(text);
        }
        let text: Rc<str> = text::open_metrics(snapshot(&self.control)).into();
        *last = Some((Instant::now(), Rc::clone(&text)));
        text
    }
}
