//! Taking the file away from the loop device of a volume.

use super::loop_device::is_configured;
use super::loop_process::{self, LoopAnswer, LoopRequest};
use super::record::Record;
use super::users::known_users_of;
use super::uses::Use;

/// When the loop device of a volume was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// Now.
    Now,
    /// Before, with its last user.
    Before,
    /// Now, but others have it open: it goes with the last of them.
    WithLastUser,
    /// Before, and it is another's since.
    Anothers,
}

/// Clears the loop device of a volume, if it still is one and nobody has claimed it.
///
/// # Errors
/// Why it cannot be cleared, in words.
pub fn clear_loop(record: &Record) -> Result<Cleared, String> {
    clear(record, false)
}

/// Takes the file away from a volume's disk though it is in use: with its last user at the latest.
///
/// # Errors
/// Why not, in words.
pub fn clear_loop_later(record: &Record) -> Result<(), String> {
    clear(record, true).map(drop)
}

fn clear(record: &Record, in_use_too: bool) -> Result<Cleared, String> {
    let path = &record.device;
    if !is_configured(path) {
        return Ok(Cleared::Before);
    }
    let request = LoopRequest::Clear {
        device: path.clone(),
        name: record.loop_name.clone(),
        in_use_too,
    };
    match loop_process::ask(&request) {
        Ok(LoopAnswer::InUse) => Err(Use::of(record).to_string()),
        Ok(LoopAnswer::Another) => Ok(Cleared::Anothers),
        Ok(LoopAnswer::Gone) => Ok(Cleared::Before),
        Ok(_) if known_users_of(path).is_some() && is_its_disk(record) => Ok(Cleared::WithLastUser),
        Ok(_) => Ok(Cleared::Now),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the device is a volume's still: one that has gone may be another's by now.
#[must_use]
pub fn is_its_disk(record: &Record) -> bool {
    let path = &record.device;
    is_configured(path)
        && loop_process::look(path).is_ok_and(|now| now.name.as_ref() == Some(&record.loop_name))
}
