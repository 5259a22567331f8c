//! Why there is no configuration.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::machine::next_step::{leads_nowhere, nearest_sibling, with_next_step};
use crate::machine::unmounted;
use crate::{Problems, shown};

/// Why there is no [`Config`](crate::Config).
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// What is in a file is wrong.
    #[error("{}{error}", in_file(path, error))]
    In {
        /// The file, or `-` for stdin.
        path: PathBuf,
        /// What is wrong.
        error: Box<Self>,
    },
    /// The file cannot be read.
    #[error(
        "cannot read the configuration {}: {}",
        name(path),
        shown::line(&not_read(path, error))
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file, or all in a folder, are larger than
    /// [`CONFIG_BYTES_MAX`](crate::CONFIG_BYTES_MAX).
    #[error(
        "the configuration {} is larger than 1 MiB; is it the right file?",
        name(path)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A folder has more files than a configuration may have.
    #[error(
        "the folder {} has more than {most} files `*.toml`: put some of them together",
        name(folder),
        most = crate::limits::CONFIG_FILES_MAX
    )]
    TooManyFiles {
        /// The folder.
        folder: PathBuf,
    },
    /// The file is not text.
    #[error(
        "the configuration {} is not UTF-8 text: byte {at} is invalid; is it the right file?",
        name(path)
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte that is wrong.
        at: usize,
    },
    /// Not TOML.
    #[error("{}", shown::lines(message))]
    Syntax {
        /// The parser's words, with line, column and the text of the line. Ends in a newline.
        message: String,
    },
    /// TOML with keys that are none, or values that are wrong or contradict each other.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// A file as messages name it.
fn name(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "on stdin".to_owned(),
        _ => shown::line(&path.display().to_string()),
    }
}

/// What the system said, and what would be right.
fn not_read(path: &Path, error: &io::Error) -> String {
    match (error.kind(), path.metadata()) {
        (io::ErrorKind::NotFound, _) if let Some(words) = unmounted::in_words(path) => {
            format!("{error}; {words}")
        }
        (io::ErrorKind::NotFound, _) => match (leads_nowhere(path), nearest_sibling(path)) {
            (Some(words), _) => format!("{error}; {words}"),
            (None, Some(nearest)) => format!("{error}; did you mean {}?", nearest.display()),
            (None, None) => format!("{error}; expected a TOML file"),
        },
        (io::ErrorKind::IsADirectory, _) => format!("{error}; expected a TOML file, as one in it"),
        (io::ErrorKind::PermissionDenied, Ok(metadata)) => format!(
            "{error}; it belongs to UID {} and GID {} with mode {:04o}: expected one that the user of the \
             target may read",
            metadata.uid(),
            metadata.gid(),
            metadata.mode() & 0o7777,
        ),
        (io::ErrorKind::NotADirectory, _) => with_next_step(error, path, None),
        _ if error.raw_os_error() == Some(libc::ELOOP) => with_next_step(error, path, None),
        (io::ErrorKind::Other, _) => format!("{error}; expected a TOML file, or `-` for stdin"),
        _ => error.to_string(),
    }
}

/// Before what is wrong in a file: on the same line where that is one line.
fn in_file(path: &Path, error: &ConfigError) -> String {
    let ends = if error.to_string().contains('\n') {
        '\n'
    } else {
        ' '
    };
    format!("{}:{ends}", name(path))
}
