//! Operations, the buffers they own, and how they end.

use capstan_memory::Buffer;

use crate::IoError;

/// What to do. LBAs count from 0; a range of zero LBAs is a success that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fills the data with `lbas` LBAs starting at `lba`.
    Read {
        /// First LBA.
        lba: u64,
        /// How many LBAs.
        lbas: u32,
    },
    /// Stores the data at `lba`.
    Write {
        /// First LBA.
        lba: u64,
        /// How many LBAs.
        lbas: u32,
        /// Whether the data is on the medium when the write completes (force unit access).
        fua: bool,
    },
    /// Puts every write that completed before this was submitted on the medium.
    Flush,
    /// Makes the range read as zeroes.
    WriteZeroes {
        /// First LBA.
        lba: u64,
        /// How many LBAs.
        lbas: u32,
        /// Whether the space may be given back, as NVMe's DEAC bit allows.
        deallocate: bool,
        /// Whether the zeroes are on the medium when the operation completes.
        fua: bool,
    },
    /// Gives the range back (NVMe Deallocate): a hint, after which its contents are old data or
    /// zeroes.
    Discard {
        /// First LBA.
        lba: u64,
        /// How many LBAs.
        lbas: u64,
    },
}

/// An operation's kind, without its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// [`Op::Read`].
    Read,
    /// [`Op::Write`].
    Write,
    /// [`Op::Flush`].
    Flush,
    /// [`Op::WriteZeroes`].
    WriteZeroes,
    /// [`Op::Discard`].
    Discard,
}

impl Op {
    /// The kind of operation.
    #[must_use]
    pub fn kind(&self) -> OpKind {
        match self {
            Self::Read { .. } => OpKind::Read,
            Self::Write { .. } => OpKind::Write,
            Self::Flush => OpKind::Flush,
            Self::WriteZeroes { .. } => OpKind::WriteZeroes,
            Self::Discard { .. } => OpKind::Discard,
        }
    }

    /// Whether it promises that something is on the medium when it succeeds: a Flush, or FUA.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        match *self {
            Self::Write { fua, .. } | Self::WriteZeroes { fua, .. } => fua,
            Self::Flush => true,
            Self::Read { .. } | Self::Discard { .. } => false,
        }
    }

    /// First LBA and number of LBAs; `(0, 0)` for Flush.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match *self {
            Self::Read { lba, lbas }
            | Self::Write { lba, lbas, .. }
            | Self::WriteZeroes { lba, lbas, .. } => (lba, u64::from(lbas)),
            Self::Flush => (0, 0),
            Self::Discard { lba, lbas } => (lba, lbas),
        }
    }
}

impl OpKind {
    /// Whether the operation changes what later reads return.
    #[must_use]
    pub fn changes_data(self) -> bool {
        match self {
            Self::Read | Self::Flush => false,
            Self::Write | Self::WriteZeroes | Self::Discard => true,
        }
    }

    /// The operation's name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::WriteZeroes => "write zeroes",
            Self::Discard => "discard",
        }
    }
}

/// The bytes of a Read or Write. The operation owns them while it is in flight; the length follows
/// from the operation.
#[derive(Debug)]
pub struct Data {
    /// The memory.
    pub buffer: Buffer,
    /// Where in `buffer` the data starts: in-capsule data sits behind a 64-byte SQE, for example.
    pub offset_bytes: u32,
}

/// One operation on a volume.
#[derive(Debug)]
pub struct Io {
    /// The submitter's number for it; comes back in the [`Completion`]. The volume never reads it.
    pub token: u64,
    /// What to do.
    pub op: Op,
    /// The memory of a Read or Write; ignored (and given back) for everything else.
    pub data: Option<Data>,
}

/// The end of an [`Io`]; each has exactly one.
#[derive(Debug)]
pub struct Completion {
    /// [`Io::token`].
    pub token: u64,
    /// Whether all of it was done. After an error of a Write, WriteZeroes or Discard the range
    /// holds old or new data, LBA by LBA; after an error of a Read the memory may hold anything
    /// the volume holds.
    pub result: Result<(), IoError>,
    /// [`Io::data`], given back.
    pub data: Option<Data>,
}

/// What [`Volume::submit`](crate::Volume::submit) returns.
#[derive(Debug)]
pub enum Submitted {
    /// It ended at once.
    Done(Completion),
    /// Its completion will come out of [`Engine::poll`](crate::Engine::poll) or
    /// [`Volume::poll`](crate::Volume::poll).
    Pending,
}
