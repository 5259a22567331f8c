//! The state folder may be on a file system that does not answer, such as one of a network that is
//! gone: what waits for it says so, and what must go on does not wait.

use std::cell::Cell;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::limits::STATE_PATIENCE;

thread_local! {
    /// Something further out says it of this thread.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work` on `path`, which the log names when it takes longer than [`STATE_PATIENCE`].
pub(crate) fn told<R>(path: &Path, work: impl FnOnce() -> R) -> R {
    if IS_WATCHED.replace(true) {
        return work();
    }
    let (over, waits) = mpsc::channel::<()>();
    let of = path.to_owned();
    let watch = move || {
        let since = Instant::now();
        if waits.recv_timeout(STATE_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            say_silent(&of);
            let _ = waits.recv();
            let seconds = since.elapsed().as_secs();
            tracing::info!("{} answers again, after {seconds} s", of.display());
        }
    };
    // Without a thread nobody says it.
    let _ = thread::Builder::new().name("state".into()).spawn(watch);
    let result = work();
    drop(over);
    IS_WATCHED.set(false);
    result
}

fn say_silent(path: &Path) {
    let line = format!(
        "{} has not answered for {STATE_PATIENCE:?} and is waited for: see the kernel log for a hung device, and whether what \
         serves its file system is there",
        path.display()
    );
    // The commands have no log.
    match tracing::dispatcher::has_been_set() {
        true => tracing::warn!("{line}"),
        // There is nowhere left to tell that stderr is gone.
        false => drop(writeln!(io::stderr(), "capstan-target: {line}")),
    }
}

/// Does `work` in a thread of its own. `None` when that takes longer than `limit`: it goes on.
///
/// # Errors
/// There is no thread to be had.
pub(crate) fn within<R: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<Option<R>> {
    let (result, done) = mpsc::channel();
    let work = move || {
        // Nobody may wait any more.
        let _ = result.send(work());
    };
    thread::Builder::new().name("state".into()).spawn(work)?;
    Ok(done.recv_timeout(limit).ok())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::{told, within};

    #[test]
    fn what_takes_too_long_goes_on_by_itself() {
        assert_eq!(within(Duration::from_secs(60), || 7).unwrap(), Some(7));
        let (go, wait) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let work = move || {
            let _ = wait.recv();
            ended.send(7)
        };
        assert!(within(Duration::from_millis(1), work).unwrap().is_none());
        drop(go);
        assert_eq!(end.recv(), Ok(7));
        let inner = || told(Path::new("/b"), || 7);
        assert_eq!(told(Path::new("/a"), inner), 7);
    }
}
