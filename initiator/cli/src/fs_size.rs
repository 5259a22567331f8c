//! What the superblock of a file system says of its size and its devices: one that is larger than
//! its volume, as an image that was cut or copied in part, or has devices that are not here, cannot
//! be mounted, and mount(8) does not say why.

use std::fs;
use std::path::Path;
use std::process::Command;

use uuid::Uuid;

use super::output;
use super::tool::Tools;

/// From the start of the disk to the end of ext4's superblock (`struct ext4_super_block` of Linux,
/// 1024 bytes at 1024).
const HEAD_BYTES: usize = 2048;
/// `INCOMPAT_64BIT` of ext4: block counts have a high half.
const EXT4_64BIT: u32 = 0x80;

/// Why a file system on `device`, which is called `what`, cannot be mounted, where it is larger.
pub(super) fn why_not_mounted(
    what: &str,
    device: &Path,
    fs_type: &str,
    tools: &Tools<'_>,
) -> Option<String> {
    // By a tool, which is left behind where the disk does not answer.
    let mut head = Command::new("head");
    head.args(["--bytes", &HEAD_BYTES.to_string(), "--"])
        .arg(device);
    let head = tools.look(&mut head).ok()?.stdout;
    let has_bytes = size_bytes(device)?;
    let needs_bytes = bytes(fs_type, &head)?;
    (needs_bytes > has_bytes).then(|| {
        format!(
            "{what} has {has_bytes} bytes ({}), and the {fs_type} on it was made for {needs_bytes} ({}): the image was cut, or \
             copied in part; make the volume as long again at the target, or restore what is on it",
            output::size(has_bytes),
            output::size(needs_bytes)
        )
    })
}

/// Where btrfs has its first superblock (`struct btrfs_super_block` of Linux), and what is read of
/// it.
const BTRFS_AT: usize = 64 << 10;
const BTRFS_BYTES: usize = 4096;

/// Why a file system on `device`, which is called `what`, cannot be mounted, where it is one device
/// of several: the kernel knows the others when it has looked at them.
pub(super) fn one_of_several(
    what: &str,
    device: &Path,
    fs_type: &str,
    tools: &Tools<'_>,
) -> Option<String> {
    if fs_type != "btrfs" {
        return None;
    }
    let mut head = Command::new("head");
    head.args(["--bytes", &(BTRFS_AT + BTRFS_BYTES).to_string(), "--"])
        .arg(device);
    let head = tools.look(&mut head).ok()?.stdout;
    let (number, count, id) = btrfs_device(head.get(BTRFS_AT..)?)?;
    (count > 1).then(|| {
        format!(
            "{what} is device {number} of the {count} of btrfs {id}, and is mounted once all of them are here: attach each \
             (`capstan attach …`), have the kernel look at them (`btrfs device scan`), and mount one \
             (`mount DEVICE FOLDER`); `btrfs filesystem show DEVICE` says which is missing, and `-o degraded` mounts \
             without it what has a copy here"
        )
    })
}

/// Number of this device, number of devices, and name of the file system.
fn btrfs_device(superblock: &[u8]) -> Option<(u64, u64, Uuid)> {
    // fsid, magic, num_devices, dev_item.devid.
    let number = |at: usize| Some(u64::from_le_bytes(*superblock.get(at..)?.first_chunk()?));
    let id = Uuid::from_slice(superblock.get(32..48)?).ok()?;
    let is_btrfs = superblock.get(64..72)? == b"_BHRfS_M";
    is_btrfs.then_some((number(201)?, number(136)?, id))
}

/// Bytes of a block device (sysfs `size`, in 512 bytes whatever its LBAs are).
fn size_bytes(device: &Path) -> Option<u64> {
    let name = device.file_name()?.display();
    let text = fs::read_to_string(format!("/sys/class/block/{name}/size")).ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(512)
}

/// Bytes that a file system takes, by the first of its disk.
fn bytes(fs_type: &str, head: &[u8]) -> Option<u64> {
    let field = |at: usize| head.get(at..)?.first_chunk::<4>().copied();
    let little = |at| field(at).map(u32::from_le_bytes);
    match fs_type {
        // s_magic; s_log_block_size, s_blocks_count_lo and _hi, s_feature_incompat.
        "ext2" | "ext3" | "ext4" => {
            let magic = head.get(0x438..)?.first_chunk::<2>()?;
            let is_64bit = little(0x460)? & EXT4_64BIT != 0;
            let high = if is_64bit { little(0x550)? } else { 0 };
            let blocks = u64::from(high) << 32 | u64::from(little(0x404)?);
            let block_bytes = 1024_u64.checked_shl(little(0x418)?)?;
            (*magic == [0x53, 0xef]).then(|| blocks.checked_mul(block_bytes))?
        }
        // sb_magicnum, sb_blocksize and sb_dblocks (`struct xfs_dsb` of Linux), big-endian.
        "xfs" => {
            let block_bytes = u64::from(u32::from_be_bytes(field(4)?));
            let blocks = u64::from_be_bytes(*head.get(8..)?.first_chunk()?);
            (field(0)? == *b"XFSB").then(|| blocks.checked_mul(block_bytes))?
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::process::Command;

    use super::bytes;

    #[test]
    fn superblocks_tell_the_size() {
        let folder = tempfile::tempdir().unwrap();
        for (fs_type, tool, options, size) in [
            ("ext4", "mkfs.ext4", &["-q", "-F", "-b", "4096"][..], 100),
            (
                "ext2",
                "mkfs.ext4",
                &["-q", "-F", "-b", "1024", "-O", "none"],
                20,
            ),
            ("xfs", "mkfs.xfs", &["-q"], 400),
        ] {
            let image = folder.path().join(fs_type);
            File::create(&image).unwrap().set_len(size << 20).unwrap();
            let Ok(status) = Command::new(tool).args(options).arg(&image).status() else {
                eprintln!("SKIPPED superblocks_tell_the_size of {fs_type}: no {tool}");
                continue;
            };
            assert!(status.success(), "{tool}");
            let head = &fs::read(&image).unwrap()[..super::HEAD_BYTES];
            assert_eq!(bytes(fs_type, head), Some(size << 20), "{fs_type}");
            assert_eq!(bytes("btrfs", head), None);
            assert_eq!(bytes(fs_type, &[0; super::HEAD_BYTES]), None);
            assert_eq!(bytes(fs_type, &head[..3]), None);
        }
    }
}
