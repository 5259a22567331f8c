//! What has to survive a restart, so that clients that had state may reclaim it and no others
//! may: a list of records that grows at its end. RFC 8881, sections 8.4.2.1 and 8.4.3.
//!
//! # What has to be durable before which answer
//! | record | before |
//! | --- | --- |
//! | [`Record::Boot`] | anything is answered: client IDs, sessions and stateids have its number |
//! | [`Record::Client`] | RECLAIM_COMPLETE is answered, which lets the client open and lock |
//! | [`Record::Gone`] | others get what it held, or its next instance or its end is confirmed |
//! | [`Record::GraceEnded`] | the first open or lock after the grace period is answered |
//! | [`Record::Revoked`] | others get what it held |
//! | [`Record::Acknowledged`] | the client is given an open or a lock |
//!
//! Other answers wait for none of them (`recording.rs`).
//!
//! # The format
//! Numbers are big-endian. The first eight bytes are [`MAGIC`], whose last is the version. Each
//! record follows as the length of its body (2 bytes), the body, and the CRC-32C of both (4 bytes).
//! A body is one byte that tells the kind, and an instance (1: 4 bytes), an owner (2, 3, 6: 0 to
//! 1024 bytes), nothing (4), or the number of an export (8 bytes) and an owner (5).
//!
//! A record at the end that is not whole was never answered for, and is left out ("torn"). One that
//! is wrong in the middle means that the file is damaged: no client may reclaim by it.

pub mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_nfs_proto::limits::OWNER_BYTES_MAX;
use thiserror::Error;

use super::limits::CLIENTS_MAX;

/// The first bytes: a name, and the version of the format.
pub const MAGIC: [u8; 8] = *b"CAPNFSS\x01";

/// Bytes around a body: its length and its checksum.
const FRAME_BYTES: usize = 2 + 4;
/// Bytes of the number of an export.
const EXPORT_BYTES: usize = 8;
/// Bytes of the longest body: its kind, an export and an owner.
const BODY_BYTES_MAX: usize = 1 + EXPORT_BYTES + OWNER_BYTES_MAX as usize;
/// Owners that are there at once: those of before the restart that have not reclaimed yet, and
/// clients.
const OWNERS_MAX: u64 = 2 * CLIENTS_MAX;

const BOOT: u8 = 1;
const CLIENT: u8 = 2;
const GONE: u8 = 3;
const GRACE_ENDED: u8 = 4;
const REVOKED: u8 = 5;
const ACKNOWLEDGED: u8 = 6;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The server has started.
    Boot {
        /// For so many times.
        instance: u32,
    },
    /// A client may have state from now on. It is known by its owner, whatever its verifier: a
    /// client keeps its verifier over a restart of the server, and makes a new one for its own.
    Client {
        /// The owner.
        owner: Arc<[u8]>,
    },
    /// A client has lost its state, or has none any longer.
    Gone {
        /// Its owner.
        owner: Arc<[u8]>,
    },
    /// The grace period is over: clients of earlier instances that have not come since have lost
    /// their state.
    GraceEnded,
    /// A client has lost what it had of the files of an export that was taken out. The export may
    /// be there again after a restart, and others may have had the files in between.
    Revoked {
        /// Its owner.
        owner: Arc<[u8]>,
        /// The number of the export.
        export: u64,
    },
    /// A client knows that it has lost all that was revoked: what it has from now on is new.
    Acknowledged {
        /// Its owner.
        owner: Arc<[u8]>,
    },
}

/// What stable storage says about the time before the server started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replay {
    /// The number of the last instance; 0 if there was none.
    pub instance: u32,
    /// Owners of the clients that may reclaim.
    pub owners: BTreeSet<Arc<[u8]>>,
    /// Of those, the numbers of the exports of whose files they may reclaim nothing.
    pub revoked: BTreeMap<Arc<[u8]>, BTreeSet<u64>>,
}

/// Stable storage that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StableError {
    /// It is something else, or of another version.
    #[error(
        "the first bytes are {found:02x?}, expected {MAGIC:02x?}: it is no file of this server's \
         state, or of another version; name another file, or move this one away, after which no \
         client can reclaim its opens and locks"
    )]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// A record is wrong, and something follows it.
    #[error(
        "the record at offset {offset} is damaged ({what}) and not the last: expected a length, a \
         body and its CRC-32C; move the file away, after which no client can reclaim its opens and \
         locks, and look at the medium"
    )]
    Damaged {
        /// Where, in bytes from the start.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// There are more owners than a server has clients.
    #[error(
        "{found} owners, expected {OWNERS_MAX} at most: it is not written by this server; move the \
         file away"
    )]
    Owners {
        /// How many there are.
        found: u64,
    },
}

/// Appends a record to `to`.
pub fn encode(record: &Record, to: &mut Vec<u8>) {
    let mut body = Vec::new();
    match record {
        Record::Boot { instance } => {
            body.push(BOOT);
            body.extend(instance.to_be_bytes());
        }
        Record::Client { owner } => {
            body.push(CLIENT);
            body.extend(owner.iter());
        }
        Record::Gone { owner } => {
            body.push(GONE);
            body.extend(owner.iter());
        }
        Record::GraceEnded => body.push(GRACE_ENDED),
        Record::Revoked { owner, export } => {
            body.push(REVOKED);
            body.extend(export.to_be_bytes());
            body.extend(owner.iter());
        }
        Record::Acknowledged { owner } => {
            body.push(ACKNOWLEDGED);
            body.extend(owner.iter());
        }
    }
    let start = to.len();
    to.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    to.extend(body);
    let checksum = crc_fast::crc32_iscsi(to.get(start..).unwrap_or_default());
    to.extend(checksum.to_be_bytes());
}

/// A record at the start of `bytes`, and how many bytes it has.
fn decode(bytes: &[u8]) -> Result<(Record, usize), &'static str> {
    let (length, _) = bytes
        .split_first_chunk::<2>()
        .ok_or("it has no whole length")?;
    let length = usize::from(u16::from_be_bytes(*length));
    if length == 0 || length > BODY_BYTES_MAX {
        return Err("its length is not one of a record");
    }
    let whole = length.saturating_add(FRAME_BYTES);
    let record = bytes.get(..whole).ok_or("it ends before its length says")?;
    let (framed, checksum) = record.split_last_chunk::<4>().ok_or("it has no checksum")?;
    if crc_fast::crc32_iscsi(framed).to_be_bytes() != *checksum {
        return Err("its checksum is wrong");
    }
    let (kind, rest) = framed
        .get(2..)
        .and_then(<[u8]>::split_first)
        .ok_or("it has no kind")?;
    let record = match (kind, rest) {
        (&BOOT, rest) => {
            let instance = rest
                .try_into()
                .map_err(|_| "its instance has not 4 bytes")?;
            Record::Boot {
                instance: u32::from_be_bytes(instance),
            }
        }
        (&CLIENT, owner) => Record::Client {
            owner: owner.into(),
        },
        (&GONE, owner) => Record::Gone {
            owner: owner.into(),
        },
        (&GRACE_ENDED, []) => Record::GraceEnded,
        (&REVOKED, rest) => {
            let (export, owner) = rest
                .split_first_chunk::<EXPORT_BYTES>()
                .ok_or("it has no whole export")?;
            Record::Revoked {
                owner: owner.into(),
                export: u64::from_be_bytes(*export),
            }
        }
        (&ACKNOWLEDGED, owner) => Record::Acknowledged {
            owner: owner.into(),
        },
        _ => return Err("its kind is unknown"),
    };
    Ok((record, whole))
}

/// Whether bytes that do not begin with a whole record are the rest of one that was being written
/// when the server ended. Behind its own bytes nothing was written then: nothing is there, or the
/// zeroes of a file that was made longer first. What it holds is not looked at, as an owner may
/// look like a record.
fn is_torn(bytes: &[u8]) -> bool {
    let length = bytes
        .first_chunk::<2>()
        .map(|length| usize::from(u16::from_be_bytes(*length)));
    match length {
        Some(length @ 1..=BODY_BYTES_MAX) => {
            let behind = bytes
                .get(length.saturating_add(FRAME_BYTES)..)
                .unwrap_or_default();
            behind.iter().all(|byte| *byte == 0)
        }
        Some(_) | None => !has_record(bytes.get(1..).unwrap_or_default()),
    }
}

/// Whether a whole record begins anywhere in `bytes`.
fn has_record(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|at| bytes.get(at..).is_some_and(|rest| decode(rest).is_ok()))
}

/// Replays the bytes of stable storage; none are a server that starts for the first time. Returns
/// as well how many bytes are whole: what is behind them is torn, and to be cut off before anything
/// is appended.
///
/// # Errors
/// They cannot be used.
pub fn replay(bytes: &[u8]) -> Result<(Replay, usize), StableError> {
    let Some(records) = bytes.strip_prefix(&MAGIC) else {
        // The first write may be torn as well.
        if MAGIC.starts_with(bytes) {
            return Ok((Replay::default(), 0));
        }
        let found = bytes.iter().take(MAGIC.len()).copied().collect();
        return Err(StableError::Magic { found });
    };
    let mut instance = 0;
    let mut owners = BTreeMap::<Arc<[u8]>, u32>::new();
    let mut revoked = BTreeMap::<Arc<[u8]>, BTreeSet<u64>>::new();
    let mut left = records;
    while !left.is_empty() {
        let offset = bytes.len().saturating_sub(left.len());
        let (record, used) = match decode(left) {
            Ok(decoded) => decoded,
            Err(_) if is_torn(left) => break,
            Err(what) => return Err(StableError::Damaged { offset, what }),
        };
        left = left.get(used..).unwrap_or_default();
        match record {
            Record::Boot { instance: number } => instance = number,
            Record::Client { owner } => {
                owners.insert(owner, instance);
            }
            Record::Gone { owner } => {
                owners.remove(&owner);
                revoked.remove(&owner);
            }
            Record::GraceEnded => owners.retain(|_, since| *since == instance),
            Record::Revoked { owner, export } => {
                revoked.entry(owner).or_default().insert(export);
            }
            Record::Acknowledged { owner } => {
                revoked.remove(&owner);
            }
        }
        let found = u64::try_from(owners.len()).unwrap_or(u64::MAX);
        if found > OWNERS_MAX {
            return Err(StableError::Owners { found });
        }
    }
    let whole = bytes.len().saturating_sub(left.len());
    revoked.retain(|owner, _| owners.contains_key(owner));
    Ok((
        Replay {
            instance,
            owners: owners.into_keys().collect(),
            revoked,
        },
        whole,
    ))
}

#[cfg(test)]
#[path = "tests/stable.rs"]
mod tests;
