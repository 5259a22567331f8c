//! An I/O as its submitter says it.

use capstan_memory::Buffer;
use capstan_nvme_proto::opcode::IoOpcode;

use crate::error::IoError;

/// What to do with a range of logical blocks. `nlb` counts blocks (it is not 0's based) and may be
/// larger than one command takes: the driver splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read into the buffer.
    Read {
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
    },
    /// Write from the buffer.
    Write {
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
        /// Force Unit Access: complete only when the blocks are on stable media.
        fua: bool,
    },
    /// Compare with the buffer; a difference completes with Compare Failure.
    Compare {
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
    },
    /// Make every write completed so far durable.
    Flush,
    /// Set blocks to zero.
    WriteZeroes {
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
        /// The controller may deallocate them, as long as they read as zero.
        may_deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// Tell that the contents are not needed any more (Dataset Management, Deallocate).
    Discard {
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
    },
    /// Let the controller check that the blocks can be read.
    Verify {
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
    },
}

/// Which way an operation's buffer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    None,
    /// The controller writes it.
    In,
    /// The controller reads it.
    Out,
}

impl Op {
    /// The range: first LBA and blocks. Flush has none.
    #[must_use]
    pub fn range(&self) -> (u64, u32) {
        match *self {
            Self::Flush => (0, 0),
            Self::Read { slba, nlb }
            | Self::Write { slba, nlb, .. }
            | Self::Compare { slba, nlb }
            | Self::WriteZeroes { slba, nlb, .. }
            | Self::Discard { slba, nlb }
            | Self::Verify { slba, nlb } => (slba, nlb),
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::Read { .. } => Direction::In,
            Self::Write { .. } | Self::Compare { .. } => Direction::Out,
            // The ranges of a discard are the driver's own data.
            Self::Discard { .. } | Self::Flush | Self::WriteZeroes { .. } | Self::Verify { .. } => {
                Direction::None
            }
        }
    }

    /// The opcode it becomes.
    #[must_use]
    pub fn opcode(&self) -> IoOpcode {
        match self {
            Self::Read { .. } => IoOpcode::READ,
            Self::Write { .. } => IoOpcode::WRITE,
            Self::Compare { .. } => IoOpcode::COMPARE,
            Self::Flush => IoOpcode::FLUSH,
            Self::WriteZeroes { .. } => IoOpcode::WRITE_ZEROES,
            Self::Discard { .. } => IoOpcode::DATASET_MANAGEMENT,
            Self::Verify { .. } => IoOpcode::VERIFY,
        }
    }
}

/// An operation on a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Io {
    /// Namespace.
    pub nsid: u32,
    /// Operation.
    pub op: Op,
}

/// Which of a driver's submitters an I/O is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Source(pub(crate) u32);

/// A finished I/O.
#[derive(Debug)]
pub struct Completion {
    pub(crate) source: Source,
    /// The submitter's token.
    pub token: u64,
    /// Outcome.
    pub result: Result<(), IoError>,
    /// The buffer it was submitted with; the driver and the controller are done with it.
    pub buffer: Option<Buffer>,
}

/// An I/O was not taken; its buffer comes back.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// Why.
    #[source]
    pub reason: SubmitError,
    /// The buffer.
    pub buffer: Option<Buffer>,
}

/// Why an I/O was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many I/Os are in progress as the driver keeps; submit again after a completion.
    #[error("too many I/Os are in progress")]
    Busy,
    /// It cannot succeed.
    #[error(transparent)]
    Invalid(#[from] IoError),
}
