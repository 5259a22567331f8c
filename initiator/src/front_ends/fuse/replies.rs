//! What the kernel is told through the descriptor of a FUSE mount.

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::libc;
use zerocopy::IntoBytes;

use super::file_system::FILE_ID;
use super::wire::{NOTIFY_STORE, OutHeader, StoreOut};
use crate::front_ends::lease::{self, Part};

/// The descriptor of a FUSE mount, for replies.
pub(super) struct Device(pub(super) File);

impl Device {
    pub(super) fn reply(&mut self, unique: u64, data: &[u8]) {
        self.send(unique, 0, Part::Bytes(data));
    }

    pub(super) fn error(&mut self, unique: u64, errno: Errno) {
        self.send(unique, -(errno as i32), Part::EMPTY);
    }

    /// Tells the kernel that the file is longer, by its last byte: by no bytes Linux 6.12 does not
    /// learn it. That byte is never read, as the file is not cached (`FOPEN_DIRECT_IO`).
    pub(super) fn tell_size(&mut self, size_bytes: u64) {
        let out = StoreOut {
            nodeid: FILE_ID,
            offset_bytes: size_bytes.saturating_sub(1),
            size_bytes: 1,
            padding: 0,
        };
        let message = [out.as_bytes(), &[0]].concat();
        self.send(0, NOTIFY_STORE, Part::Bytes(&message));
    }

    pub(super) fn send(&mut self, unique: u64, error: i32, data: Part<'_>) {
        let len = size_of::<OutHeader>() + data.len();
        let header = OutHeader {
            len_bytes: u32::try_from(len).unwrap_or(u32::MAX),
            error,
            unique,
        };
        let parts = [Part::Bytes(header.as_bytes()), data];
        match lease::send(self.0.as_fd(), &parts) {
            Ok(_) => {}
            // Nobody waits for it any more.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => tracing::warn!(unique, "a FUSE reply was not taken: {error}"),
        }
    }
}
