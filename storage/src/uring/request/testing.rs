//! Helpers for the tests of requests.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use capstan_memory::{Buffer, Pool};

use super::Request;
use crate::error::IoErrorKind;
use crate::file::FileStore;
use crate::io::{Data, Io, Op};
use crate::spec::DirectIo;
use crate::testing::pool;
use crate::uring::command::{Command, Next, Progress};
use crate::uring::open_file::{OpenFile, Refused};
use crate::uring::syncs::Syncs;

/// Runs requests against results that the test makes up.
pub(super) struct Rig {
    pub(super) pool: Pool,
    pub(super) zeroes: Buffer,
    file: Rc<OpenFile>,
}

impl Rig {
    /// On a file of 1 MiB with LBAs of 512 bytes. `align` is what its O_DIRECT requires of memory
    /// and offsets, `None` the page cache.
    pub(super) fn new(align: Option<(u32, u32)>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path: PathBuf =
            std::env::temp_dir().join(format!("capstan-request-{}-{n}", process::id()));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let name = Arc::from("file");
        let store = FileStore::open(&path, &name, Some(512), false, DirectIo::Off).unwrap();
        fs::remove_file(&path).unwrap();
        let store = Arc::new(store.with_alignment(align));
        let (refused, retired) = (Refused::default(), Rc::new(RefCell::default()));
        let file = Rc::new(OpenFile {
            store,
            fixed: None,
            to_sync: None,
            syncs: Syncs::default(),
            refused,
            retired,
        });
        let pool = pool(4 << 20);
        Self {
            zeroes: pool.take(8192).unwrap(),
            file,
            pool,
        }
    }

    /// Cuts the file short.
    pub(super) fn cut(&self, bytes: u64) {
        let path = format!("/proc/self/fd/{}", self.file.store.raw_fd());
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(bytes).unwrap();
    }

    pub(super) fn request(&self, op: Op, data: Option<Data>) -> Request {
        let io = Io { token: 5, op, data };
        let extent = self.file.store.geometry().check(&io).unwrap();
        Request::new(io, Rc::clone(&self.file), extent)
    }

    pub(super) fn command(&self, request: &mut Request) -> Command {
        match request.next(&self.zeroes) {
            Next::Command(command) => command,
            Next::Bounce(_) => panic!("wants to bounce"),
        }
    }
}

pub(super) fn range(command: Command) -> (u64, u64) {
    match command {
        Command::Read {
            len_bytes,
            offset_bytes,
            ..
        }
        | Command::Write {
            len_bytes,
            offset_bytes,
            ..
        } => (offset_bytes, u64::from(len_bytes)),
        Command::Fallocate {
            offset_bytes,
            len_bytes,
            ..
        }
        | Command::BlockDiscard {
            offset_bytes,
            len_bytes,
        } => (offset_bytes, len_bytes),
        Command::Fdatasync {
            offset_bytes,
            len_bytes,
        } => (offset_bytes, u64::from(len_bytes)),
    }
}

pub(super) fn kind(progress: Progress) -> Result<(), IoErrorKind> {
    match progress {
        Progress::Done(result) => result.map_err(|error| error.kind),
        Progress::Again => panic!("goes on"),
    }
}
