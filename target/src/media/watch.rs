//! The thread that has media looked at.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::control_plane::ControlPlane;
use crate::limits::MEDIA_LOOK_EVERY;

/// The thread that has volumes looked at. It ends with this.
pub(crate) struct Watch {
    end: Option<mpsc::Sender<()>>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Looks at the media of `control` every [`MEDIA_LOOK_EVERY`].
    pub(crate) fn start(control: &Arc<ControlPlane>) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let control = Arc::clone(control);
        let thread = thread::Builder::new().name("media".into()).spawn(move || {
            while ended.recv_timeout(MEDIA_LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                control.look_at_media();
            }
        })?;
        Ok(Self {
            end: Some(end),
            thread,
        })
    }

    /// Ends it. A look that a file system or device keeps waiting is left alone.
    pub(crate) fn stop(mut self) {
        self.end = None;
        let deadline = Instant::now() + MEDIA_LOOK_EVERY;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if self.thread.is_finished() {
            let _ = self.thread.join();
        }
    }
}
