//! A DOS partition table (MBR): it says where partitions are in LBAs, and not how large those are.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use capstan_config::LbaSize;

use super::evidence::{FIRST_BYTES, file_system};

/// The four entries, and the bytes behind them that say that it is a table (UEFI 2.10, section
/// 5.2.1).
const ENTRIES_AT: usize = 446;
const ENTRY_BYTES: usize = 16;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Of the only partition before a GPT (UEFI 2.10, section 5.2.3): the GPT tells.
const PROTECTIVE: u8 = 0xee;
const SIZES: [LbaSize; 2] = [LbaSize::B512, LbaSize::B4096];

/// A DOS partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DosTable {
    /// It goes with LBAs of this size only.
    Of(LbaSize),
    /// Its partitions fit either way, and what is in them does not tell.
    Either,
}

/// The table in the `start` of a file of so many bytes, if there is one.
pub(super) fn look(file: &File, bytes: u64, start: &[u8]) -> Option<DosTable> {
    let table = start.get(ENTRIES_AT..512)?;
    let (entries, signature) = table.split_at(4 * ENTRY_BYTES);
    if signature != SIGNATURE {
        return None;
    }
    let mut partitions = Vec::new();
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let le32 = |at: usize| Some(u32::from_le_bytes(entry.get(at..at + 4)?.try_into().ok()?));
        let (status, kind) = (*entry.first()?, *entry.get(4)?);
        let (first, lbas) = (u64::from(le32(8)?), u64::from(le32(12)?));
        match kind {
            0 => continue,
            PROTECTIVE => return None,
            _ => {}
        }
        // Code, or the boot sector of a file system.
        if status & 0x7f != 0 || first == 0 || lbas == 0 {
            return None;
        }
        partitions.push((first, lbas));
    }
    let fit = SIZES.map(|size| {
        let end = |(first, lbas): (u64, u64)| (first + lbas) * u64::from(size.bytes());
        partitions.iter().all(|partition| end(*partition) <= bytes)
    });
    match fit {
        _ if partitions.is_empty() => None,
        // It is of a longer file: where its partitions end tells nothing.
        [false, _] => None,
        [true, fits_4096] => {
            let has_content = SIZES.map(|size| {
                let at = |first: u64| first * u64::from(size.bytes());
                let mut firsts = partitions.iter().map(|(first, _)| at(*first));
                firsts.any(|at| begins_there(file, at, bytes))
            });
            Some(match (has_content, fits_4096) {
                ([true, false], _) | ([false, false], false) => DosTable::Of(LbaSize::B512),
                ([false, true], true) => DosTable::Of(LbaSize::B4096),
                // Of a file that was cut, perhaps.
                _ => DosTable::Either,
            })
        }
    }
}

/// Whether something that a partition holds begins at this byte.
fn begins_there(file: &File, at: u64, bytes: u64) -> bool {
    let room = usize::try_from(bytes.saturating_sub(at)).unwrap_or(FIRST_BYTES);
    let mut start = vec![0; FIRST_BYTES.min(room)];
    if file.read_exact_at(&mut start, at).is_err() {
        return false;
    }
    let has = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    file_system(&start).is_some()
        || has(0, b"LUKS\xba\xbe")
        || has(512, b"LABELONE")
        || has(4086, b"SWAPSPACE2")
        || has((64 << 10) + 64, b"_BHRfS_M")
        // The boot sector of a file system, or the table in an extended partition.
        || has(510, &SIGNATURE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use capstan_config::LbaSize;

    use super::super::evidence::Evidence;
    use super::DosTable;

    /// A table with partitions of this type, first LBA and number of LBAs.
    fn table(partitions: &[(u8, u32, u32)]) -> Vec<u8> {
        let mut sector = vec![0; 512];
        for ((kind, first, lbas), entry) in
            partitions.iter().zip(sector[446..510].chunks_exact_mut(16))
        {
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&first.to_le_bytes());
            entry[12..].copy_from_slice(&lbas.to_le_bytes());
        }
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    #[test]
    fn a_dos_table_tells_its_lba_size_by_where_partitions_end_or_what_begins_in_them() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("image");
        let linux = |first, lbas| table(&[(0x83, first, lbas)]);
        let ext: &[u8] = &[0x53, 0xef];
        let (of_512, of_4096) = (DosTable::Of(LbaSize::B512), DosTable::Of(LbaSize::B4096));
        // Sector 0, what is elsewhere, and what is found.
        type Case<'a> = (&'a str, Vec<u8>, &'a [(u64, &'a [u8])], Option<DosTable>);
        let cases: [Case<'_>; 11] = [
            ("the whole of it", linux(2048, 129_024), &[], Some(of_512)),
            (
                "the start of it",
                linux(2048, 4096),
                &[],
                Some(DosTable::Either),
            ),
            (
                "ext4 where LBAs of 512 have it",
                linux(2048, 4096),
                &[((1 << 20) + 1080, ext)],
                Some(of_512),
            ),
            (
                "ext4 where LBAs of 4096 have it",
                linux(256, 1024),
                &[((1 << 20) + 1080, ext)],
                Some(of_4096),
            ),
            (
                "something at either place",
                linux(2048, 4096),
                &[((1 << 20) + 1080, ext), ((8 << 20) + 1080, ext)],
                Some(DosTable::Either),
            ),
            ("beyond its end", linux(2048, 1 << 20), &[], None),
            ("protective", table(&[(0xee, 1, 4096)]), &[], None),
            ("empty", table(&[]), &[], None),
            ("no partition begins at 0", linux(0, 8), &[], None),
            ("no signature", vec![0x83; 512], &[], None),
            (
                "a file system on all of it",
                linux(2048, 129_024),
                &[(1080, ext), (1048, &[2])],
                None,
            ),
        ];
        for (name, sector, elsewhere, expected) in cases {
            let file = File::create(&path).unwrap();
            file.set_len(64 << 20).unwrap();
            file.write_all_at(&sector, 0).unwrap();
            for (at, data) in elsewhere {
                file.write_all_at(data, *at).unwrap();
            }
            let found = Evidence::of(&path).unwrap();
            assert_eq!(found.dos, expected, "{name}");
            let surely = found.surely().map(|(size, _)| size);
            let expected = match expected {
                Some(DosTable::Of(size)) => Some(size),
                _ => None,
            };
            assert_eq!(surely, expected, "{name}");
        }
    }
}
