//! A file or block device as one reactor uses it.

use std::rc::Rc;
use std::sync::Arc;

use super::engine::Engine;
use super::open_file::OpenFile;
use super::request::Request;
use crate::error::{IoError, IoErrorKind};
use crate::file::FileStore;
use crate::geometry::Geometry;
use crate::io::{Completion, Io, Op, Submitted};
use crate::medium::SIZE_LOOK_US;
use crate::volume::Volume;

/// Operations go to the engine; completions come out of [`Engine::poll`].
pub(crate) struct UringVolume {
    engine: Rc<Engine>,
    /// `None` only while it is dropped.
    file: Option<Rc<OpenFile>>,
    geometry: Geometry,
    /// When to look at the file's size again before a write.
    look_at_us: u64,
    name: Arc<str>,
}

impl UringVolume {
    pub(crate) fn new(engine: &Rc<Engine>, store: &Arc<FileStore>) -> Self {
        Self {
            engine: Rc::clone(engine),
            geometry: store.geometry(),
            look_at_us: 0,
            name: Arc::clone(store.name()),
            file: Some(engine.open_file(store)),
        }
    }
}

impl UringVolume {
    /// The host made no mistake when it named a range that was there.
    fn kind_of(&self, kind: IoErrorKind, io: &Io) -> IoErrorKind {
        let Some(file) = self
            .file
            .as_ref()
            .filter(|_| kind == IoErrorKind::OutOfRange)
        else {
            return kind;
        };
        let as_it_was = Geometry {
            lbas: file.store.most_lbas(),
            ..self.geometry
        };
        match as_it_was.check(io) {
            Ok(_) => IoErrorKind::Truncated,
            Err(kind) => kind,
        }
    }
}

impl Volume for UringVolume {
    fn geometry(&self) -> Geometry {
        let lbas = self.file.as_ref().map(|file| file.store.lbas());
        Geometry {
            lbas: lbas.unwrap_or_default(),
            ..self.geometry
        }
    }

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn submit(&mut self, io: Io, now_us: u64) -> Submitted {
        let done = |io: Io, result| {
            Submitted::Done(Completion {
                token: io.token,
                result,
                data: io.data,
            })
        };
        if let Some(file) = &self.file {
            let writes = io.op.kind().changes_data() && !file.store.is_block_device();
            if matches!(io.op, Op::Flush) || (writes && now_us >= self.look_at_us) {
                self.look_at_us = now_us.saturating_add(SIZE_LOOK_US);
                file.store.look_at_size();
            }
            self.geometry.lbas = file.store.lbas();
        }
        let extent = match self.geometry.check(&io) {
            Ok(extent) => extent,
            Err(kind) => {
                let kind = self.kind_of(kind, &io);
                let error = IoError::new(kind, &io.op, &self.name);
                return done(io, Err(error));
            }
        };
        if let Some(file) = self.file.as_ref().filter(|_| io.op.is_durable())
            && let Some(errno) = file.store.loss().errno()
        {
            let error = IoError::from_errno(errno, &io.op, &self.name);
            let kind = IoErrorKind::Lost;
            return done(io, Err(IoError { kind, ..error }));
        }
        let nothing = matches!(io.op, Op::Discard { .. }) && !self.geometry.discard;
        let Some(file) = self.file.as_ref().filter(|_| !nothing) else {
            return done(io, Ok(()));
        };
        let request = Request::new(io, Rc::clone(file), extent);
        if request.is_done() {
            return Submitted::Done(request.complete(Ok(())));
        }
        match self.engine.submit(request) {
            None => Submitted::Pending,
            Some(refused) => Submitted::Done(refused.fail(IoErrorKind::Retry)),
        }
    }

    fn poll(&mut self, _now_us: u64, _out: &mut Vec<Completion>) {}

    fn next_deadline_us(&self) -> Option<u64> {
        None
    }
}

impl Drop for UringVolume {
    fn drop(&mut self) {
        // Operations in flight keep the file; the engine closes it after the last of them.
        self.file = None;
        self.engine.close_retired();
    }
}
