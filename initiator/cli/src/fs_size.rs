//! What the superblock of a file system says of its size: one that is larger than its volume, as an
//! image that was cut or copied in part, cannot be mounted, and mount(8) does not say why.

use std::fs;
use std::path::Path;
use std::process::Command;

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
