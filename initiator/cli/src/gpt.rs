//! GUID partition tables (UEFI 2.10, 5.3) that cannot be used as they are: made for LBAs of another
//! size than the disk has, or with a first copy that is damaged.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crc_fast::{CrcAlgorithm, checksum};

use super::tool::Tools;

/// What a header begins with, and all that is read of it, in bytes (UEFI 2.10, table 5.5).
const SIGNATURE: &[u8; 8] = b"EFI PART";
const HEADER_BYTES: usize = 92;
/// The array of entries is 16 KiB, mostly (UEFI 2.10, 5.3.1).
const ENTRIES_BYTES_MAX: usize = 1 << 20;
/// What begins an entry: the type of its partition, zero where there is none (table 5.6).
const TYPE_BYTES: usize = 16;
/// LBA sizes that volumes have.
const LBA_BYTES: [u32; 2] = [512, 4096];

/// What is wrong with a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// It was made for LBAs of so many bytes.
    Lbas(u32),
    /// Only the backup at the end is whole, and has so many partitions.
    FirstCopy(usize),
}

/// What to do about the table on `device`, with LBAs of `lba_bytes`, if it cannot be used.
pub(super) fn advice(device: &Path, lba_bytes: u32, tools: &Tools<'_>) -> Option<String> {
    let (what, path) = (device.display().to_string(), device.to_owned());
    let found = tools.read(&what, move || Ok(trouble(&File::open(&path)?, lba_bytes)));
    found.ok()?.map(|trouble| match trouble {
        Trouble::Lbas(made_for) => format!(
            "that is a GPT for LBAs of {made_for} bytes, and the volume has LBAs of {lba_bytes}: {}",
            with_lbas(made_for)
        ),
        Trouble::FirstCopy(count) => format!(
            "the first copy of its GPT is damaged, and the backup at its end is whole, with {count} partition{}: attach it \
             (`capstan attach …`), have the first copy made from the backup by gdisk (`{RESTORE} DEVICE`), detach it, and \
             mount it with --part N",
            if count == 1 { "" } else { "s" }
        ),
    })
}

/// Whether a header of a table begins at LBA 1 or at the last LBA (UEFI 2.10, 5.3.2), by LBAs of
/// `lba_bytes` or of another size that disks have. It need not be whole, nor a protective MBR be
/// there.
pub(super) fn has_signature(disk: &File, lba_bytes: u32) -> bool {
    let mut end = disk;
    let Ok(size_bytes) = end.seek(SeekFrom::End(0)) else {
        return false;
    };
    let is_at = |at: u64| {
        let mut found = [0; SIGNATURE.len()];
        disk.read_exact_at(&mut found, at).is_ok() && found == *SIGNATURE
    };
    let mut sizes = LBA_BYTES.into_iter().chain([lba_bytes]).map(u64::from);
    sizes.any(|lba_bytes| is_at(lba_bytes) || size_bytes.checked_sub(lba_bytes).is_some_and(is_at))
}

/// What is typed into gdisk: that the GPT is to be used, `r`ecovery, the `b`ackup's header and its
/// partitions (`c`), and that they are to be `w`ritten.
const RESTORE: &str = r"printf '1\nr\nb\nc\ny\nw\ny\n' | gdisk";

/// What is to be done at the target for LBAs of so many bytes.
pub(super) fn with_lbas(lba_bytes: u32) -> String {
    format!(
        "on the target, say `lba = {lba_bytes}` of that namespace and restart it, or export it with `--lba {lba_bytes}`"
    )
}

fn trouble(disk: &File, lba_bytes: u32) -> Option<Trouble> {
    let others = || {
        LBA_BYTES
            .into_iter()
            .filter(move |&other| other != lba_bytes)
    };
    let mut end = disk;
    let size_bytes = end.seek(SeekFrom::End(0)).ok()?;
    let at_end = |lba_bytes: u32| size_bytes.checked_sub(lba_bytes.into());
    // The first one is at LBA 1.
    if table(disk, lba_bytes.into(), lba_bytes).is_some() {
        return None;
    }
    let first = |&other: &u32| header(disk, other.into(), other).is_some();
    if let Some(other) = others().find(first) {
        return Some(Trouble::Lbas(other));
    }
    if let Some(count) = at_end(lba_bytes).and_then(|at| table(disk, at, lba_bytes)) {
        return Some(Trouble::FirstCopy(count));
    }
    let backup = |&other: &u32| at_end(other).is_some_and(|at| header(disk, at, other).is_some());
    others().find(backup).map(Trouble::Lbas)
}

/// The partitions of the table whose header is at byte `at`, for LBAs of so many bytes; `None`
/// where it is not whole.
fn table(disk: &File, at: u64, lba_bytes: u32) -> Option<usize> {
    let header = header(disk, at, lba_bytes)?;
    let entries_at = u64_at(&header, 72)?.checked_mul(lba_bytes.into())?;
    let [count, entry_bytes] = [80, 84].map(|at| u32_at(&header, at));
    let entry_bytes = usize::try_from(entry_bytes?).ok()?;
    let bytes = usize::try_from(count?).ok()?.checked_mul(entry_bytes)?;
    if entry_bytes < TYPE_BYTES || bytes > ENTRIES_BYTES_MAX {
        return None;
    }
    let mut entries = vec![0; bytes];
    disk.read_exact_at(&mut entries, entries_at).ok()?;
    if crc(&entries) != u32_at(&header, 88)? {
        return None;
    }
    let types = entries
        .chunks(entry_bytes)
        .map(|entry| entry.get(..TYPE_BYTES));
    let used = types.filter(|of| of.is_some_and(|of| of.iter().any(|&byte| byte != 0)));
    Some(used.count())
}

/// The header at byte `at`, where it is whole and says that it is there (UEFI 2.10, 5.3.2).
fn header(disk: &File, at: u64, lba_bytes: u32) -> Option<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    disk.read_exact_at(&mut header, at).ok()?;
    let is_there = u64_at(&header, 24)?.checked_mul(lba_bytes.into()) == Some(at);
    let bytes = usize::try_from(u32_at(&header, 12)?).ok()?;
    if !header.starts_with(SIGNATURE) || !is_there || bytes != HEADER_BYTES {
        return None;
    }
    // Its own CRC counts as zero.
    let mut checked = header;
    checked.get_mut(16..20)?.fill(0);
    (crc(&checked) == u32_at(&header, 16)?).then_some(header)
}

fn crc(bytes: &[u8]) -> u32 {
    // A CRC of 32 bits in 64.
    u32::try_from(checksum(CrcAlgorithm::Crc32IsoHdlc, bytes)).unwrap_or_default()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK_BYTES: u64 = 1 << 20;

    /// A disk with a whole table of two partitions.
    fn disk(lba_bytes: u32) -> File {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(DISK_BYTES).unwrap();
        let lba: u64 = lba_bytes.into();
        let last = DISK_BYTES / lba - 1;
        let mut entries = vec![0; 128 * 128];
        entries[0] = 1;
        entries[5 * 128 + 15] = 1;
        let entries_lbas = (128_u64 * 128).div_ceil(lba);
        for (at, entries_at) in [(1, 2), (last, last - entries_lbas)] {
            let mut header = [0; HEADER_BYTES];
            header[..8].copy_from_slice(SIGNATURE);
            header[12..16].copy_from_slice(&92_u32.to_le_bytes());
            header[24..32].copy_from_slice(&at.to_le_bytes());
            header[72..80].copy_from_slice(&entries_at.to_le_bytes());
            header[80..84].copy_from_slice(&128_u32.to_le_bytes());
            header[84..88].copy_from_slice(&128_u32.to_le_bytes());
            header[88..].copy_from_slice(&crc(&entries).to_le_bytes());
            let own = crc(&header).to_le_bytes();
            header[16..20].copy_from_slice(&own);
            disk.write_all_at(&header, at * lba).unwrap();
            disk.write_all_at(&entries, entries_at * lba).unwrap();
        }
        disk
    }

    #[test]
    fn the_crc_is_the_one_of_uefi() {
        // The check value of CRC-32.
        assert_eq!(crc(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_table_for_other_lbas_is_told_from_the_disk_s_own() {
        for (own, other) in [(512, 4096), (4096, 512)] {
            let disk = disk(own);
            assert_eq!(trouble(&disk, own), None);
            assert_eq!(trouble(&disk, other), Some(Trouble::Lbas(own)));
            // Of the backup alone as well.
            disk.write_all_at(&[0; 8192], 0).unwrap();
            assert_eq!(trouble(&disk, other), Some(Trouble::Lbas(own)));
        }
    }

    #[test]
    fn a_table_has_a_signature_at_either_end_by_whatever_lbas() {
        for lba_bytes in [512, 4096, 65536] {
            for wiped in [0, DISK_BYTES / 2] {
                let disk = disk(lba_bytes);
                disk.write_all_at(&vec![0; 1 << 19], wiped).unwrap();
                assert!(has_signature(&disk, lba_bytes), "{lba_bytes}, {wiped}");
            }
        }
        assert!(has_signature(&disk(4096), 512));
        let blank = tempfile::tempfile().unwrap();
        assert!(!has_signature(&blank, 4096), "shorter than an LBA");
        blank.set_len(DISK_BYTES).unwrap();
        assert!(!has_signature(&blank, 4096));
    }

    #[test]
    fn a_first_copy_is_damaged_where_only_the_backup_is_whole() {
        for lba_bytes in LBA_BYTES {
            let lba: u64 = lba_bytes.into();
            // Its header, its signature, its entries.
            for at in [lba + 40, lba, 2 * lba] {
                let disk = disk(lba_bytes);
                disk.write_all_at(&[7], at).unwrap();
                assert_eq!(trouble(&disk, lba_bytes), Some(Trouble::FirstCopy(2)));
                disk.write_all_at(&[7], DISK_BYTES - lba).unwrap();
                assert_eq!(trouble(&disk, lba_bytes), None, "nothing is left");
            }
        }
        assert_eq!(trouble(&tempfile::tempfile().unwrap(), 512), None);
    }
}
