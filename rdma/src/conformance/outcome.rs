//! How a case ends.

use std::fmt;
use std::panic::Location;

use capstan_memory::SlabError;

use crate::contract::{CmError, PostError, RdmaError};

/// Why a case stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The provider broke the contract, or something the case needs could not be had.
    Failed(String),
    /// The device or the transport lacks what the case is about.
    NotApplicable(String),
}

/// What a case returns.
pub type Outcome<T = ()> = Result<T, Stop>;

impl Stop {
    #[track_caller]
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        let at = Location::caller();
        let file = at.file().rsplit('/').next().unwrap_or_default();
        Self::Failed(format!("{message} ({file}:{})", at.line()))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::NotApplicable(why) => write!(f, "not applicable: {why}"),
        }
    }
}

macro_rules! stop_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Stop {
            #[track_caller]
            fn from(error: $error) -> Self {
                Self::failed(error)
            }
        }
    )*};
}
stop_from!(PostError, RdmaError, CmError, SlabError);

/// Fails the case unless `condition` holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::outcome::Stop::failed(format_args!($($message)+)));
        }
    };
}
/// Fails the case unless both values are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => if left != right {
                return Err($crate::conformance::outcome::Stop::failed(format_args!(
                    "{}: {left:?}, expected {right:?}", format_args!($($message)+))));
            }
        }
    };
}
pub(crate) use {ensure, ensure_eq};
