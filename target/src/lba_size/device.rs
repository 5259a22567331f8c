//! The LBA size of a block device, which says one itself: that of its logical blocks. What is on it
//! may have been used with another one, as a file or through another device: that is not changed
//! without a word.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::bail;
use capstan_config::{Backing, Namespace};
use capstan_storage::MediumId;
use nix::sys::stat::{major, minor};

use super::evidence::Evidence;
use super::{Chosen, FILE, LbaSizes, facts_at};
use crate::state;

impl LbaSizes {
    /// The LBA size to open a namespace on a block device with; that of its logical blocks, where
    /// nothing else is remembered of what it is on.
    ///
    /// # Errors
    /// What is on it was used with LBAs that the device cannot have.
    pub(super) fn of_device(&self, namespace: &Namespace) -> anyhow::Result<Chosen> {
        let asked = known(namespace).and_then(|path| Some((path, block_bytes(path)?)));
        let Some((path, block_bytes)) = asked else {
            return Ok(Chosen::default());
        };
        let name = path.display();
        let folder = self.folder.as_deref();
        let file = folder.unwrap_or_else(|| Path::new(state::FOLDER));
        let file = file.join(FILE);
        let file = file.display();
        let table = match &self.table {
            Ok(table) => table,
            Err(error) => {
                return Ok(Chosen {
                    size: None,
                    warning: Some(format!(
                        "{name} has LBAs of {block_bytes} bytes, as the device says, whatever it was used with: {file} cannot \
                         be read ({error}); restore it, or write `lba` (with --export: --lba)"
                    )),
                });
            }
        };
        let known = table.on(&MediumId::from(facts_at(path)));
        let Some(known) = known.filter(|known| known.lba != block_bytes) else {
            return Ok(Chosen::default());
        };
        let lba = known.lba;
        if Evidence::of(path).is_some_and(|found| found.is_for(block_bytes)) {
            return Ok(Chosen {
                size: None,
                warning: Some(format!(
                    "{name} has LBAs of {block_bytes} bytes, because what is on it is for such; it was used with {lba} before \
                     ({file}, as {}); `lba` in the configuration says another size",
                    known.path.display()
                )),
            });
        }
        // A larger size is a multiple of the device's.
        if lba > block_bytes {
            return Ok(Chosen {
                size: known.size(),
                warning: None,
            });
        }
        bail!(
            "{name} has blocks of {block_bytes} bytes, and what is on it was used with LBAs of {lba} ({file}, as {}), which it \
             cannot have now: hosts would not find what they have on it. Let it have blocks of {lba} again (a loop device: \
             `losetup --sector-size {lba}`), or write `lba = {block_bytes}` (with --export: --lba {block_bytes}) if what is \
             on it may be lost",
            known.path.display()
        )
    }
}

/// The block device that a namespace is on, where something lasting tells what is under it.
pub(super) fn known(namespace: &Namespace) -> Option<&Path> {
    let Backing::Path(path) = &namespace.backing else {
        return None;
    };
    let is_device = fs::metadata(path).is_ok_and(|of| of.file_type().is_block_device());
    (is_device && MediumId::from(facts_at(path)).is_known()).then_some(path)
}

/// Bytes of its logical blocks, as the kernel tells (Documentation/ABI/stable/sysfs-block); a
/// partition has those of its disk.
fn block_bytes(path: &Path) -> Option<u32> {
    let device = fs::metadata(path).ok()?.rdev();
    let place = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    ["queue", "../queue"].into_iter().find_map(|queue| {
        let told = fs::read_to_string(format!("{place}/{queue}/logical_block_size")).ok()?;
        told.trim().parse().ok()
    })
}
