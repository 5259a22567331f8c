//! Where a namespace's blocks are.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{ExactSize, Size, SizeError};

/// Where a namespace's blocks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A regular file or a block device.
    Path(PathBuf),
    /// Memory of the daemon; gone when it stops.
    Ram {
        /// Size of the namespace.
        size_bytes: u64,
    },
    /// Reads return zeroes, writes vanish; for measuring everything but the disk.
    Null {
        /// Size of the namespace.
        size_bytes: u64,
    },
}

/// A text that is no [`Backing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// Nothing before or after the colon.
    #[error("the export is empty; write PATH, ram:SIZE or null:SIZE")]
    Empty,
    /// `-`, which other programs take for stdin.
    #[error("`-` would be stdin, which cannot be exported; write ./- for a file of that name")]
    Stdin,
    /// `ram:` or `null:` with something else than a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// `RAM:1GiB`.
    #[error(
        "`{0}` would be a file of that name; write `{1}` for what is meant, or ./{0} for the file"
    )]
    Capitals(String, String),
    /// `1GiB`.
    #[error(
        "`{0}` is a size; write `ram:{0}` for so much memory, or ./{0} for a file of that name"
    )]
    BareSize(String),
    /// `ram:0`.
    #[error("`{0}` has no bytes; write a size such as 1GiB")]
    Zero(String),
}

impl Backing {
    /// Size, where the backing says it; a path's is found out when it is opened.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Path(_) => None,
            Self::Ram { size_bytes } | Self::Null { size_bytes } => Some(*size_bytes),
        }
    }

    /// Whether what was written is there again when the target is started anew, so that a host may
    /// go on with it. (What null forgets is gone at once; a host that is cut off would find out as
    /// late.)
    pub fn lasts(&self) -> bool {
        match self {
            Self::Path(_) => true,
            Self::Ram { .. } | Self::Null { .. } => false,
        }
    }

    /// The key in the file: `path`, `ram` or `null`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Path(_) => "path",
            Self::Ram { .. } => "ram",
            Self::Null { .. } => "null",
        }
    }
}

impl FromStr for Backing {
    type Err = BackingError;

    /// `PATH`, `ram:SIZE` or `null:SIZE`. A file whose name starts with `ram:` is `./ram:…`.
    fn from_str(text: &str) -> Result<Self, BackingError> {
        let sized = |size: &str| -> Result<u64, BackingError> {
            match size.parse()? {
                Size(0) => Err(BackingError::Zero(text.to_owned())),
                Size(bytes) => Ok(bytes),
            }
        };
        if let Some(size) = text.strip_prefix("ram:") {
            Ok(Self::Ram {
                size_bytes: sized(size)?,
            })
        } else if let Some(size) = text.strip_prefix("null:") {
            Ok(Self::Null {
                size_bytes: sized(size)?,
            })
        } else if let Some((kind, size)) = text.split_once(':')
            && ["ram", "null"].contains(&kind.to_ascii_lowercase().as_str())
        {
            let meant = format!("{}:{size}", kind.to_ascii_lowercase());
            Err(BackingError::Capitals(text.to_owned(), meant))
        } else if text.parse::<Size>().is_ok() {
            Err(BackingError::BareSize(text.to_owned()))
        } else if text.is_empty() {
            Err(BackingError::Empty)
        } else if text == "-" {
            Err(BackingError::Stdin)
        } else {
            Ok(Self::Path(PathBuf::from(text)))
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Ram { size_bytes } | Self::Null { size_bytes } => {
                write!(f, "{}:{}", self.kind(), ExactSize(*size_bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_parse() {
        assert_eq!(
            "ram:1GiB".parse(),
            Ok(Backing::Ram {
                size_bytes: 1 << 30
            })
        );
        assert_eq!("null:4096".parse(), Ok(Backing::Null { size_bytes: 4096 }));
        assert_eq!("/dev/vda".parse(), Ok(Backing::Path("/dev/vda".into())));
        assert_eq!("./ram:1".parse(), Ok(Backing::Path("./ram:1".into())));
    }

    #[test]
    fn malformed_exports_say_what_to_write() {
        let text = |export: &str| export.parse::<Backing>().unwrap_err().to_string();
        assert_eq!(
            text(""),
            "the export is empty; write PATH, ram:SIZE or null:SIZE"
        );
        assert_eq!(
            text("ram:1GB"),
            "`1GB` has a decimal unit; write `1GiB`, or plain bytes"
        );
        assert_eq!(
            text("null:0"),
            "`null:0` has no bytes; write a size such as 1GiB"
        );
        assert_eq!(
            text("1GiB"),
            "`1GiB` is a size; write `ram:1GiB` for so much memory, or ./1GiB for a file of that name"
        );
        assert_eq!(
            text("RAM:1GiB"),
            "`RAM:1GiB` would be a file of that name; write `ram:1GiB` for what is meant, or ./RAM:1GiB for the file"
        );
        for file in ["./1GiB", "./RAM:1GiB", "1GiB.img", "disk"] {
            assert_eq!(file.parse(), Ok(Backing::Path(file.into())));
        }
        assert!(text("ram:").contains("there is no size"));
        assert!(text("-").contains("write ./- for a file of that name"));
        assert_eq!("./-".parse(), Ok(Backing::Path("./-".into())));
    }

    #[test]
    fn what_is_displayed_parses_back() {
        for text in ["ram:64MiB", "null:512", "/a/b c"] {
            let backing: Backing = text.parse().unwrap();
            assert_eq!(backing.to_string(), text);
            assert_eq!(backing.to_string().parse(), Ok(backing));
        }
    }
}
