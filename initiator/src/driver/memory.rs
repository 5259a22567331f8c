//! The memory of one association that the target reads and writes.

use capstan_memory::{Pages, Pool};

use crate::error::ConnectError;

/// Memory for the data of admin commands: a page for each of the 31 that can be outstanding, and
/// room for a few long log pages.
const ADMIN_MEMORY_BYTES: usize = 512 << 10;

/// In two slabs, so that long log pages take nothing from I/O.
pub(super) struct Memory {
    /// Data of admin commands.
    pub(super) admin: Pool,
    /// Data of I/O; what [`DirectQueue`](crate::DirectQueue) and front ends lease.
    pub(super) data: Pool,
}

impl Memory {
    /// With `data_bytes` for I/O.
    pub(super) fn new(data_bytes: usize) -> Result<Self, ConnectError> {
        let pool = |len_bytes| {
            Pool::new(len_bytes, Pages::Ordinary).map_err(|error| ConnectError::Resources {
                what: "memory",
                message: error.to_string(),
            })
        };
        Ok(Self {
            admin: pool(ADMIN_MEMORY_BYTES)?,
            data: pool(data_bytes.max(1))?,
        })
    }
}
