//! Names of disks that stay the same, whatever the number of their loop device:
//! `/dev/capstan/by-name/NAME` and `/dev/capstan/by-id/KIND.ID`. Where udev runs it makes them, by
//! its rules (`systemd/60-capstan.rules`); elsewhere the serving process does.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::record::Record;
use crate::host::NamespaceInfo;

/// The folder of both.
const FOLDER: &str = "/dev/capstan";
/// Is there where udev runs.
const UDEV: &str = "/run/udev/control";

/// What the target calls a namespace, for the name of a file.
#[must_use]
pub(super) fn identifier(namespace: &NamespaceInfo) -> Option<String> {
    let hex = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.iter().any(|byte| *byte != 0).then_some(digits)
    };
    let uuid = namespace.uuid.map(|uuid| format!("uuid.{uuid}"));
    uuid.or_else(|| hex(&namespace.nguid).map(|nguid| format!("nguid.{nguid}")))
        .or_else(|| hex(&namespace.eui64).map(|eui64| format!("eui.{eui64}")))
}

/// The names of a disk.
#[must_use]
pub fn links(record: &Record) -> Vec<PathBuf> {
    links_in(Path::new(FOLDER), record)
}

fn links_in(folder: &Path, record: &Record) -> Vec<PathBuf> {
    let name = record.volume_name.iter().map(|name| ("by-name", name));
    let identifier = record.identifier.iter().map(|id| ("by-id", id));
    name.chain(identifier)
        // One path component each, whatever a record says.
        .filter(|(_, file)| !file.contains('/') && !file.starts_with('.'))
        .map(|(kind, file)| folder.join(kind).join(file))
        .collect()
}

/// Makes them where udev does not. A disk is one without them, too.
pub(super) fn make(record: &Record) {
    if Path::new(UDEV).exists() {
        return;
    }
    for link in links(record) {
        if let Err(error) = make_one(&link, &record.device) {
            tracing::warn!("{} is not made: {error}", link.display());
        }
    }
}

fn make_one(link: &Path, device: &Path) -> io::Result<()> {
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    match symlink(device, link) {
        // Left behind by a process that was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(link)?;
            symlink(device, link)
        }
        made => made,
    }
}

/// Removes those that lead to this disk, where udev does not.
pub fn remove(record: &Record) {
    if Path::new(UDEV).exists() {
        return;
    }
    for link in links(record) {
        if fs::read_link(&link).is_ok_and(|device| device == record.device) {
            // One that stays leads to another disk when that comes.
            let _ = fs::remove_file(&link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front_ends::disk::record::tests::record;

    #[test]
    fn a_link_is_one_file_whatever_a_record_says() {
        let folder = Path::new("/x");
        let of = |name: Option<&str>, id: Option<&str>| {
            let record = Record {
                volume_name: name.map(str::to_owned),
                identifier: id.map(str::to_owned),
                ..record()
            };
            links_in(folder, &record)
        };
        let both = of(Some("data"), Some("eui.0123"));
        let expected = ["/x/by-name/data", "/x/by-id/eui.0123"].map(PathBuf::from);
        assert_eq!(both, expected);
        assert!(of(Some("../a"), Some("a/b")).is_empty());
        assert!(of(None, None).is_empty());
    }

    #[test]
    fn a_link_that_was_left_behind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("by-name/data");
        for device in ["/dev/loop7", "/dev/loop8"] {
            make_one(&link, Path::new(device)).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(device));
        }
    }
}
