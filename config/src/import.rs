//! Configurations of other targets, as ours.
//!
//! [`nvmet`] converts what `nvmetcli save` writes of the target of the Linux kernel. What there is
//! no like of here is left out, and told by its place in the document ([`Note`]); what is wrong
//! there is a mistake that names its place ([`ImportError`]).
//!
//! The document may come from anywhere: it is bounded ([`IMPORT_BYTES_MAX`]; it may nest as deep as
//! `serde_json` allows, 128 levels), and what is made of it was parsed and checked before it is
//! given out.

mod found;
mod nvmet;
mod ports;
mod written;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::shown::{self, first_of};
use crate::{CONFIG_BYTES_MAX, ConfigError};

pub use nvmet::nvmet;

/// Largest document that is converted, in bytes: what is made of it is less than half as long, and
/// a configuration has a mebibyte at most.
pub const IMPORT_BYTES_MAX: u64 = 4 * CONFIG_BYTES_MAX;

/// What was made of the document of another target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The configuration.
    pub toml: String,
    /// What is not in it, or is otherwise here: in the order of the document.
    pub notes: Vec<Note>,
}

/// What a configuration does not say that was made of another target's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is left out; else it is otherwise here.
    pub is_left_out: bool,
    /// The place in the document, as `subsystems[0].namespaces[1].device.path`.
    pub at: String,
    /// How many more places of the same kind it is said of.
    pub more: usize,
    /// Why, and what to do.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.is_left_out {
            true => "left out",
            false => "warning",
        };
        let at = shown::line(&self.at);
        write!(f, "{kind}: {at}")?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        write!(f, ": {}", shown::line(&self.text))
    }
}

/// What is wrong at a place in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The place, as `ports[0].addr.traddr`.
    pub at: String,
    /// What is wrong, and what was expected.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", shown::line(&self.at), shown::line(&self.text))
    }
}

/// Why a document is not converted.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is larger than [`IMPORT_BYTES_MAX`].
    #[error(
        "it is larger than {} MiB; is it the file that `nvmetcli save` has written?",
        IMPORT_BYTES_MAX >> 20
    )]
    TooLarge,
    /// It is no JSON.
    #[error("it is not JSON: {0}; expected the file that `nvmetcli save` has written")]
    Syntax(String),
    /// Values are wrong, or contradict each other.
    #[error("{}", first_of(.0).join("\n"))]
    Invalid(Vec<Mistake>),
    /// Nothing is left to serve.
    #[error("{}nothing is left to serve: {why}", before(notes))]
    Nothing {
        /// What is missing.
        why: &'static str,
        /// What was left out.
        notes: Vec<Note>,
    },
    /// The configuration would be larger than one may be.
    #[error(
        "the configuration would have {bytes} bytes, expected {CONFIG_BYTES_MAX} at most; take subsystems out of the \
         file, and serve these by another target"
    )]
    TooMuch {
        /// Its length.
        bytes: usize,
    },
    /// The configuration has a mistake.
    #[error("what is made of it is not a configuration: {0}")]
    NotAccepted(#[source] ConfigError),
}

fn before(notes: &[Note]) -> String {
    let mut lines = first_of(notes);
    lines.push(String::new());
    lines.join("\n")
}
