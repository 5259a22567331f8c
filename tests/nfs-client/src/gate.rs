//! A file that nothing opens until a test lets it: a server's calls hang in the kernel, as they do
//! where a file system does not answer. For root (fanotify(7), FAN_OPEN_PERM).

use std::os::fd::AsFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags,
    Response,
};

use crate::PATIENCE;

/// What waits to open a file. All of it goes on when this is dropped.
#[derive(Debug)]
pub struct Gate {
    fanotify: Fanotify,
    waiting: Vec<FanotifyEvent>,
}

impl Gate {
    /// Before a file that is there.
    ///
    /// # Panics
    /// When the kernel does not let this process do so.
    #[must_use]
    pub fn before(path: &Path) -> Self {
        let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_NONBLOCK | InitFlags::FAN_CLOEXEC;
        let fanotify = Fanotify::init(flags, EventFFlags::O_RDONLY)
            .expect("root and CONFIG_FANOTIFY_ACCESS_PERMISSIONS");
        let (add, opens) = (MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN_PERM);
        let marked = fanotify.mark(add, opens, AT_FDCWD, Some(path));
        marked.expect("a file that can be marked");
        Self {
            fanotify,
            waiting: Vec::new(),
        }
    }

    /// How many wait now.
    ///
    /// # Panics
    /// When the kernel does not say.
    pub fn waiting(&mut self) -> usize {
        match self.fanotify.read_events() {
            Ok(events) => self.waiting.extend(events),
            Err(Errno::EAGAIN) => {}
            Err(error) => panic!("fanotify: {error}"),
        }
        self.waiting.len()
    }

    /// Returns when so many wait.
    ///
    /// # Panics
    /// When there are not as many in time.
    pub fn until_waiting(&mut self, count: usize) {
        while self.waiting() < count {
            let mut events = [PollFd::new(self.fanotify.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(PATIENCE).expect("it fits");
            let came = poll(&mut events, patience).expect("poll");
            assert!(came > 0, "{} wait, expected {count}", self.waiting.len());
        }
    }

    /// Lets one go on.
    ///
    /// # Panics
    /// When none waits.
    pub fn let_one_in(&mut self) {
        let event = self.waiting.pop().expect("one that waits");
        let fd = event.fd().expect("a descriptor of the file");
        let response = FanotifyResponse::new(fd, Response::FAN_ALLOW);
        self.fanotify.write_response(response).expect("an answer");
    }
}
