//! What is on a file that tells the LBA size it was used with.

use std::fmt;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use capstan_config::LbaSize;

use super::dos::{self, DosTable};

/// A GPT's header is at LBA 1 and begins so (UEFI 2.10, section 5.3.2).
const GPT_SIGNATURE: [u8; 8] = *b"EFI PART";
/// Where partition tables and file systems have something; btrfs has it at 64 KiB.
pub(super) const FIRST_BYTES: usize = (64 << 10) + 4096;

/// What a file says of the LBA size that it was used with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) bytes: u64,
    pub(super) gpt_of_512: bool,
    pub(super) gpt_of_4096: bool,
    /// Where there is neither a GPT nor a file system on the whole file.
    pub(super) dos: Option<DosTable>,
    /// Whether its first [`FIRST_BYTES`], or all if it has fewer, are zeroes.
    pub(super) is_blank: bool,
    pub(super) file_system: Option<FileSystem>,
}

/// A file system that is on the whole file, without a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    name: &'static str,
    /// No device with larger LBAs can hold it.
    unit_bytes: u32,
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a file system ({}) with blocks of {} bytes",
            self.name, self.unit_bytes
        )
    }
}

impl Evidence {
    /// `None` where the file cannot be looked at: opening it will tell.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        // A device has no length among its metadata.
        let bytes = (&file).seek(SeekFrom::End(0)).ok()?;
        let mut start = vec![0; FIRST_BYTES.min(usize::try_from(bytes).unwrap_or(FIRST_BYTES))];
        file.read_exact_at(&mut start, 0).ok()?;
        let gpt_at = |at: usize| start.get(at..at + 8) == Some(&GPT_SIGNATURE);
        let (gpt_of_512, gpt_of_4096) = (gpt_at(512), gpt_at(4096));
        let has_gpt = gpt_of_512 || gpt_of_4096;
        let file_system = file_system(&start).filter(|_| !has_gpt);
        let may_have_dos = !has_gpt && file_system.is_none();
        let dos = may_have_dos
            .then(|| dos::look(&file, bytes, &start))
            .flatten();
        Some(Self {
            bytes,
            gpt_of_512,
            gpt_of_4096,
            dos,
            is_blank: start.iter().all(|&byte| byte == 0),
            file_system,
        })
    }

    /// The LBA size that the file must have been used with, and why; `None` where what is on it
    /// goes with either, or tells nothing.
    pub(super) fn surely(&self) -> Option<(LbaSize, String)> {
        if self.gpt_of_512 && self.gpt_of_4096 {
            return None;
        }
        if let Some(size) = self.table_of() {
            return Some((size, HAS_TABLE.to_owned()));
        }
        // Blocks of 4096 bytes and more are made on either.
        let found = self.small_blocks()?;
        Some((LbaSize::B512, format!("it has {found}")))
    }

    /// What a blank file is, in words: no more was looked at.
    pub(super) fn blank_in_words(&self) -> String {
        match usize::try_from(self.bytes) {
            Ok(bytes) if bytes <= FIRST_BYTES => "all of it is zeroes".to_owned(),
            _ => format!(
                "its first {} KiB, where partition tables and file systems begin, are zeroes",
                FIRST_BYTES >> 10
            ),
        }
    }

    /// The LBA size that a partition table on the file is for.
    pub(super) fn table_of(&self) -> Option<LbaSize> {
        match (self.gpt_of_512, self.gpt_of_4096, self.dos) {
            (true, false, _) => Some(LbaSize::B512),
            (false, true, _) => Some(LbaSize::B4096),
            (false, false, Some(DosTable::Of(size))) => Some(size),
            _ => None,
        }
    }

    /// A file system that no device with LBAs of 4096 bytes can hold.
    fn small_blocks(&self) -> Option<FileSystem> {
        self.file_system
            .filter(|found| found.unit_bytes < LbaSize::B4096.bytes())
    }

    /// What hosts do not find, or cannot mount, with LBAs of 4096 bytes, and with which they would.
    pub(super) fn needs_512(&self) -> Option<String> {
        if self.table_of() == Some(LbaSize::B512) {
            return Some(
                "has a partition table for LBAs of 512 bytes, which hosts do not find with LBAs of 4096"
                    .to_owned(),
            );
        }
        let found = self.small_blocks()?;
        Some(format!(
            "has {found}, which hosts cannot mount with LBAs of 4096"
        ))
    }

    /// Whether what is on the file is for LBAs of so many bytes and of no others.
    pub(super) fn is_for(&self, lba_bytes: u32) -> bool {
        self.surely()
            .is_some_and(|(size, _)| size.bytes() == lba_bytes)
    }
}

pub(super) const HAS_TABLE: &str = "it has a partition table for such";

/// What file system the first bytes are of, as far as its blocks have to do with LBAs.
pub(super) fn file_system(start: &[u8]) -> Option<FileSystem> {
    let has = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    let le16 = |at: usize| Some(u16::from_le_bytes(start.get(at..at + 2)?.try_into().ok()?));
    let found = |name, unit_bytes| FileSystem { name, unit_bytes };
    // The superblock of ext2 to ext4 is at 1024 (`s_magic`, `s_log_block_size`).
    if has(1024 + 56, &[0x53, 0xef]) {
        let log = start.get(1024 + 24).copied()?;
        return (log <= 6).then(|| found("ext2 to ext4", 1024 << log));
    }
    // `sb_sectsize`, big-endian.
    if has(0, b"XFSB") {
        let bytes = u16::from_be_bytes(start.get(102..104)?.try_into().ok()?);
        return Some(found("xfs", bytes.into()));
    }
    // ISO 9660 has sectors of 2048 bytes, and its first descriptor in the 17th.
    if has(32_768 + 1, b"CD001") {
        return Some(found("iso9660", 2048));
    }
    if has(3, b"EXFAT   ") {
        let log = start.get(108).copied()?;
        return (9..=12).contains(&log).then(|| found("exfat", 1 << log));
    }
    // A boot sector says its bytes per sector at 11. An MBR has code there, and no name.
    let name = if has(3, b"NTFS    ") {
        "ntfs"
    } else if has(54, b"FAT") || has(82, b"FAT32") {
        "vfat"
    } else {
        return None;
    };
    let bytes = le16(11).filter(|bytes| bytes.is_power_of_two() && (512..=4096).contains(bytes))?;
    Some(found(name, bytes.into()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::Evidence;

    #[test]
    fn what_mkfs_has_made_says_its_blocks() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("image");
        // Where and what is there, the size that it was surely used with, and whether it needs 512.
        type Case<'a> = (&'a str, &'a [(u64, &'a [u8])], Option<u32>, bool);
        let ext: (u64, &[u8]) = (1080, &[0x53, 0xef]);
        let cases: [Case<'_>; 11] = [
            ("nothing", &[], None, false),
            ("data", &[(0, b"data")], None, false),
            ("ext4 of 1 KiB", &[ext], Some(512), true),
            ("ext4 of 4 KiB", &[ext, (1048, &[2])], None, false),
            ("ext4 of nonsense", &[ext, (1048, &[99])], None, false),
            (
                "xfs of 512",
                &[(0, b"XFSB"), (102, &[2, 0])],
                Some(512),
                true,
            ),
            ("xfs of 4096", &[(0, b"XFSB"), (102, &[16, 0])], None, false),
            ("iso9660", &[(32_769, b"CD001")], Some(512), true),
            ("vfat", &[(54, b"FAT16"), (11, &[0, 2])], Some(512), true),
            ("gpt of 512", &[(512, b"EFI PART"), ext], Some(512), true),
            (
                "gpt of 4096",
                &[(4096, b"EFI PART"), ext],
                Some(4096),
                false,
            ),
        ];
        for (name, write, surely, needs_512) in cases {
            let file = File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            for (at, data) in write {
                file.write_all_at(data, *at).unwrap();
            }
            let found = Evidence::of(&path).unwrap();
            assert_eq!(
                found.surely().map(|(size, _)| size.bytes()),
                surely,
                "{name}"
            );
            assert_eq!(found.needs_512().is_some(), needs_512, "{name}");
        }
    }
}
