//! Which LBAs of a file have storage behind them, according to its file system (`SEEK_DATA` and
//! `SEEK_HOLE`, lseek(2)). What is between them reads as zeroes.

use std::fs::File;
use std::ops::Range;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Extents of `lbas` that may hold something other than zeroes, in ascending order and not touching
/// one another, `extents_max` at most. An LBA that is allocated in part counts as allocated. Where
/// the file system cannot say, everything does.
pub(crate) fn of_file(
    file: &File,
    lba_bytes: u32,
    lbas: Range<u64>,
    extents_max: usize,
) -> Vec<Range<u64>> {
    let end = lbas.end;
    let unknown = |from: u64| (from < end).then_some(from..end);
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut at = lbas.start;
    while at < end {
        let (data, hole) = match next_data(file, at.saturating_mul(u64::from(lba_bytes))) {
            Ok(Some(extent)) => extent,
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(%error, "the file system does not tell what is allocated");
                push(&mut found, unknown(at));
                break;
            }
        };
        let first = (data / u64::from(lba_bytes)).max(at);
        let behind = hole.div_ceil(lba_bytes.into()).min(end);
        let extent = (first < behind).then_some(first..behind);
        let touches = found.last().is_some_and(|last| last.end == first);
        if found.len() >= extents_max && !touches {
            break;
        }
        push(&mut found, extent);
        // A file system that makes no progress would keep this loop going for ever.
        at = behind.max(at + 1);
    }
    found.truncate(extents_max);
    found
}

/// Adds an extent behind the others.
fn push(found: &mut Vec<Range<u64>>, extent: Option<Range<u64>>) {
    let Some(extent) = extent else { return };
    match found.last_mut() {
        Some(last) if last.end == extent.start => last.end = extent.end,
        _ => found.push(extent),
    }
}

/// First byte of the data at or behind `from`, and of the hole behind that; `None` when there is no
/// data up to the end.
fn next_data(file: &File, from: u64) -> nix::Result<Option<(u64, u64)>> {
    let seek = |offset: i64, whence| {
        let found = lseek(file, offset, whence)?;
        u64::try_from(found).map_err(|_| Errno::EOVERFLOW)
    };
    let signed = |offset: u64| i64::try_from(offset).map_err(|_| Errno::EOVERFLOW);
    let data = match seek(signed(from)?, Whence::SeekData) {
        Ok(data) => data,
        Err(Errno::ENXIO) => return Ok(None),
        Err(error) => return Err(error),
    };
    match seek(signed(data)?, Whence::SeekHole) {
        Ok(hole) => Ok(Some((data, hole))),
        // The file was cut in between.
        Err(Errno::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    use super::of_file;

    #[test]
    fn pieces_are_whole_lbas_and_no_more_than_asked_for() {
        let path = std::env::temp_dir().join(format!("capstan-holes-{}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        let all = 0..(1 << 30) / 4096;
        assert_eq!(of_file(&file, 4096, all.clone(), 8), []);
        // One byte, a megabyte that begins and ends inside an LBA of 64 KiB, and the last byte.
        file.write_all_at(&[1], 5 << 20).unwrap();
        file.write_all_at(&vec![2; 1 << 20], (100 << 20) + 4096)
            .unwrap();
        file.write_all_at(&[3], (1 << 30) - 1).unwrap();
        let found = of_file(&file, 4096, all.clone(), 8);
        assert_eq!(found, [1280..1281, 25601..25857, 262_143..262_144]);
        assert_eq!(of_file(&file, 4096, all.clone(), 2), found[..2]);
        assert_eq!(of_file(&file, 4096, 1281..25600, 8), []);
        assert_eq!(
            of_file(&file, 4096, 1280..25602, 8),
            [1280..1281, 25601..25602]
        );
        let within = 1600..1617;
        assert_eq!(of_file(&file, 65_536, within.clone(), 8), [within]);
        assert_eq!(of_file(&file, 65_536, 1617..1700, 8), []);
        // Beyond the end nothing is allocated, and nothing fails.
        assert_eq!(of_file(&file, 4096, 262_144..1 << 40, 8), []);
        // Beyond what a file can be.
        let beyond = 1 << 60..1 << 61;
        assert_eq!(of_file(&file, 4096, beyond.clone(), 8), [beyond]);
    }

    #[test]
    fn what_has_no_file_system_is_allocated() {
        // A descriptor that does not seek stands for a device, whose kernel returns EINVAL.
        let (read, _write) = nix::unistd::pipe().unwrap();
        let lbas = 3..9;
        let found = of_file(&std::fs::File::from(read), 512, lbas.clone(), 8);
        assert_eq!(found, [lbas]);
    }
}
