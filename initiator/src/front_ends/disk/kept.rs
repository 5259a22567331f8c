//! The log of a volume that is gone and has lost writes: kept beside the folders of the others,
//! with what was lost in its first line.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::record::{Record, VolumeDir};
use crate::error::Losses;

/// What their names begin with.
const PREFIX: &str = "lost-";
/// Logs that are kept: of 1 MiB at most each, in memory.
const KEPT_MAX: usize = 16;

/// The log of the volume of `dir` that its process keeps when writes were lost.
#[must_use]
pub fn path(dir: &VolumeDir, record: &Record) -> PathBuf {
    let name = format!("{PREFIX}{}", record.loop_name);
    dir.path().with_file_name(name)
}

/// Keeps the log.
///
/// # Errors
/// It cannot be read or written.
pub fn keep(dir: &VolumeDir, record: &Record, losses: &Losses) -> io::Result<()> {
    let path = path(dir, record);
    make_room(&path);
    let log = fs::read(dir.log())?;
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    writeln!(file, "{losses}")?;
    file.write_all(&log)
}

/// What the volume has lost, when its process has ended; `None` when nothing.
#[must_use]
pub fn losses(dir: &VolumeDir, record: &Record) -> Option<String> {
    let text = fs::read_to_string(path(dir, record)).ok()?;
    text.lines().next().map(str::to_owned)
}

/// Removes the oldest where there are many.
fn make_room(path: &Path) {
    let entries = path.parent().map(fs::read_dir);
    let Some(Ok(entries)) = entries else {
        return;
    };
    let mut kept: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    kept.sort();
    let many = (kept.len() + 1).saturating_sub(KEPT_MAX);
    for (_, oldest) in kept.into_iter().take(many) {
        // One that stays is one more.
        let _ = fs::remove_file(oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::{KEPT_MAX, keep, losses, path};
    use crate::error::Losses;
    use crate::front_ends::disk::record::{Record, VolumeDir};
    use crate::front_ends::disk::serving::Process;

    #[test]
    fn the_newest_logs_are_kept_with_what_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let volume = VolumeDir::create(dir.path()).unwrap();
        let record = |number: usize| Record {
            process: Process::this().unwrap(),
            device: PathBuf::from("/dev/loop0"),
            loop_name: format!("capstan-{number}-2"),
            subnqn: "nqn.2026-11.io.capstan:vol".to_owned(),
            nsid: 1,
            traddr: "127.0.0.1".to_owned(),
            trsvcid: 4420,
            way: "-a 127.0.0.1 -s 4420".to_owned(),
            transport: None,
            transport_why: None,
            wire: crate::wire::WireFields::default(),
            size_bytes: 1 << 30,
            lba_bytes: 512,
            read_only: false,
            mount_points: Vec::new(),
            fuse: None,
            volume_name: None,
            identifier: None,
        };
        fs::write(volume.log(), "what happened\n").unwrap();
        let lost = Losses(vec!["one".to_owned(), "two".to_owned()]);
        for number in 0..KEPT_MAX + 3 {
            keep(&volume, &record(number), &lost).unwrap();
            let kept = path(&volume, &record(number));
            assert_eq!(kept.parent(), Some(dir.path()));
            let file = fs::File::options().write(true).open(&kept).unwrap();
            let age = std::time::Duration::from_secs(1000 - u64::try_from(number).unwrap());
            file.set_modified(std::time::SystemTime::now() - age)
                .unwrap();
            assert_eq!(
                fs::read_to_string(kept).unwrap(),
                "one; two\nwhat happened\n"
            );
        }
        for number in 0..KEPT_MAX + 3 {
            let expected = (number >= 3).then(|| "one; two".to_owned());
            assert_eq!(losses(&volume, &record(number)), expected, "{number}");
        }
    }
}
