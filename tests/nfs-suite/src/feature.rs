//! What a version of NFS may lack.

use std::fmt::{self, Display, Formatter};

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Feature {
    /// Byte-range locks between clients (NFSv3 with nolock).
    Locks,
    /// Extended attributes of users (before 4.2).
    Xattrs,
    /// SEEK_DATA and SEEK_HOLE of holes (before 4.2).
    Seek,
    /// fallocate(2) (before 4.2).
    Fallocate,
    /// Times after 2106 (NFSv3).
    LateTimes,
    /// Names that are no UTF-8.
    RawNames,
    /// Another client, for which DIR2 stands.
    SecondClient,
    /// A file system of less than a gibibyte, which can be filled up.
    SmallVolume,
}

impl Display for Feature {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self.to_possible_value() {
            Some(value) => to.write_str(value.get_name()),
            None => Ok(()),
        }
    }
}
