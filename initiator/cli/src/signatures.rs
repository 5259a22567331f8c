//! What is on a disk, as libblkid knows it: file systems, and all else that has a signature.
//!
//! The tools of util-linux are asked: `blkid` for what counts, `wipefs` for everything that is
//! there, `partx` for partitions.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Error, Result, anyhow, bail};
use serde::Deserialize;

use super::interrupt::Interrupted;
use super::tool::Tools;
use super::{gpt, output};

/// Where signatures live at the start of a disk, in bytes: the last that libblkid looks for are
/// VMFS's at 1 and 2 MiB.
pub(super) const HEAD_BYTES: u64 = 4 << 20;
/// The same at the end: RAID, ZFS, the second GPT.
pub(super) const TAIL_BYTES: u64 = 1 << 20;
/// LBA size of most disks, in bytes.
const COMMON_LBA_BYTES: u32 = 512;
/// `blkid -p`: nothing was found.
const BLKID_NOTHING: i32 = 2;
/// `blkid -p`: several signatures contradict each other.
const BLKID_AMBIVALENT: i32 = 8;

/// What is on a disk that has not just a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoFileSystem {
    /// Something else, or several things.
    Signatures {
        /// What counts, where that can be told.
        main: Option<String>,
        all: Vec<Signature>,
    },
    /// Nothing that is known, but this byte is not zero.
    Unknown { first_byte: u64 },
    /// Zeroes wherever signatures live, of so many bytes.
    Blank { size_bytes: u64 },
}

/// A signature, as `wipefs` shows it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Signature {
    #[serde(rename = "type")]
    kind: String,
    /// Where it is, like `0x438`.
    offset: String,
}

/// A partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) number: u32,
    pub(super) device: PathBuf,
    pub(super) size_bytes: u64,
    /// What is on it, in libblkid's words.
    pub(super) kind: Option<String>,
    /// Why it has no device: the kernel takes no partition that is no whole number of LBAs, as an
    /// extended one of an MBR is with LBAs of 4096 bytes.
    pub(super) refused: Option<String>,
}

impl Partition {
    pub(super) fn in_words(&self) -> String {
        let kind = match (&self.kind, &self.refused) {
            (Some(kind), _) => kind,
            (None, Some(_)) => "not taken by the kernel",
            (None, None) => "no signature",
        };
        let size = output::size(self.size_bytes);
        format!("{}: {kind}, {size}", self.number)
    }
}

/// The answer of `blkid -p`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    kind: Option<String>,
    is_file_system: bool,
    table: Option<String>,
    /// Of a file system: what it is read and written in.
    block_bytes: Option<u32>,
    ambivalent: bool,
}

impl Verdict {
    fn parse(text: &str) -> Self {
        let mut verdict = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match name {
                "TYPE" => verdict.kind = Some(value.to_owned()),
                "USAGE" => verdict.is_file_system = value == "filesystem",
                "BLOCK_SIZE" => verdict.block_bytes = value.parse().ok(),
                "PTTYPE" => verdict.table = Some(value.to_owned()),
                _ => {}
            }
        }
        verdict
    }

    /// The file system, if nothing contradicts it. Hybrid images of optical disks have a partition
    /// table on purpose.
    fn file_system(&self) -> Option<&str> {
        let kind = self.kind.as_deref().filter(|_| self.is_file_system)?;
        (self.table.is_none() || kind == "iso9660").then_some(kind)
    }

    /// What counts, if it is one thing.
    fn main(&self) -> Option<&str> {
        match (&self.kind, &self.table) {
            (Some(one), None) | (None, Some(one)) => Some(one),
            _ => None,
        }
    }
}

/// The type of the file system on `device`, or what is there instead.
///
/// # Errors
/// A tool is missing, or the device cannot be read.
pub(super) fn file_system(
    device: &Path,
    tools: &Tools<'_>,
) -> Result<Result<String, NoFileSystem>> {
    let verdict = blkid(device, tools)?;
    if let Some(kind) = verdict.file_system() {
        return Ok(Ok(kind.to_owned()));
    }
    let all = signatures(device, tools)?;
    if !all.is_empty() || verdict.main().is_some() {
        let main = verdict.main().map(str::to_owned);
        return Ok(Err(NoFileSystem::Signatures { main, all }));
    }
    if verdict.ambivalent {
        bail!(
            "blkid finds several signatures on {} and wipefs none; expected both to agree",
            device.display()
        );
    }
    let name = device.display().to_string();
    let content = tools.read(&name, {
        let (device, name) = (device.to_owned(), name.clone());
        move || without_signature(&device).with_context(|| format!("reading {name}"))
    })?;
    Ok(Err(content))
}

/// What has a signature on `device`, in words; `None` where nothing has.
///
/// # Errors
/// As [`file_system`].
pub(super) fn signature_in_words(device: &Path, tools: &Tools<'_>) -> Result<Option<String>> {
    let main = match file_system(device, tools)? {
        Ok(kind) => Some(kind),
        Err(NoFileSystem::Signatures { main, all }) => {
            Some(main.unwrap_or_else(|| kinds(&all).join(" and ")))
        }
        Err(NoFileSystem::Unknown { .. } | NoFileSystem::Blank { .. }) => None,
    };
    Ok(main.map(|kind| match kind.as_str() {
        "dos" | "gpt" | "PMBR" => format!("a partition table ({kind})"),
        _ => match used_otherwise(&kind) {
            Some((name, _)) => format!("{name} ({kind})"),
            None => kind,
        },
    }))
}

/// Why there is nothing to mount on `device`, which is called `what`, and what to do about it. It
/// is the partition `part` of the disk, or all of it.
pub(super) fn nothing_to_mount(
    what: &str,
    part: Option<u32>,
    device: &Path,
    content: &NoFileSystem,
    tools: &Tools<'_>,
) -> Error {
    match content {
        NoFileSystem::Blank { size_bytes } => anyhow!(
            "{what} has no signature of a file system or of anything else: {} make a file system \
             (`capstan attach …`, then {})",
            match *size_bytes > HEAD_BYTES + TAIL_BYTES {
                true => format!(
                    "its first {} and its last {}, where signatures live, hold only zeroes, and what is between was not \
                     looked at; where nothing of that is wanted,",
                    output::size(HEAD_BYTES),
                    output::size(TAIL_BYTES)
                ),
                false => format!(
                    "it is blank, as all of its {} are zeroes;",
                    output::size(*size_bytes)
                ),
            },
            on_part("`mkfs.ext4 DEVICE`", part)
        ),
        NoFileSystem::Unknown { first_byte } => match advice_on_gpt(device, tools) {
            Some(advice) => {
                anyhow!("{what} holds a partition table (gpt), and no file system; {advice}")
            }
            None => anyhow!(
                "{what} holds no file system that blkid knows, and is not blank: byte {first_byte} \
                 is not zero; find out what it is before anything is written to it, or say which \
                 file system with --type"
            ),
        },
        NoFileSystem::Signatures { main, all } => {
            let kinds = kinds(all);
            let main = main.as_deref().or(match kinds.as_slice() {
                [one] => Some(one),
                _ => None,
            });
            let Some(main) = main else {
                return anyhow!(
                    "{what} has several signatures: {}; which of them counts cannot be told: \
                     mount a partition with --part, or say which file system with --type",
                    at_offsets(all)
                );
            };
            let others: Vec<_> = kinds.into_iter().filter(|kind| *kind != main).collect();
            let besides = if others.is_empty() {
                String::new()
            } else {
                format!(", with signatures of {} besides", others.join(" and "))
            };
            let (name, advice) = known(main, device, tools);
            let advice = on_part(&advice, part);
            anyhow!("{what} holds {name} ({main}){besides}, and no file system; {advice}")
        }
    }
}

/// Advice about a disk, for the partition `part` of it: what is done to all of it would destroy the
/// other ones.
fn on_part(advice: &str, part: Option<u32>) -> String {
    match part {
        None => advice.to_owned(),
        Some(number) => advice.replace("DEVICE", &format!("DEVICEp{number}")),
    }
}

/// What a signature stands for, and what to do with a disk that has it.
fn known(kind: &str, device: &Path, tools: &Tools<'_>) -> (&'static str, String) {
    match kind {
        "dos" | "gpt" | "PMBR" | "mac" | "bsd" | "sun" | "sgi" | "atari" => {
            ("a partition table", advice_on_partitions(device, tools))
        }
        _ => used_otherwise(kind).unwrap_or_else(|| {
            (
                "something with a signature",
                format!("{ATTACH}use what it was made with"),
            )
        }),
    }
}

/// The step before what is done with a disk.
const ATTACH: &str = "attach it (`capstan attach …`), then ";

/// What has this name of libblkid's, is no file system and is not mounted; and how it is used.
pub(super) fn used_otherwise(kind: &str) -> Option<(&'static str, String)> {
    let attach = ATTACH;
    let found = match kind {
        "crypto_LUKS" | "BitLocker" => (
            "an encrypted volume",
            format!("{attach}open it: `cryptsetup open DEVICE NAME`"),
        ),
        "LVM2_member" | "LVM1_member" => (
            "an LVM physical volume",
            format!("{attach}`vgchange --activate y`, and mount the logical volume"),
        ),
        "zfs_member" => (
            "a member of a ZFS pool",
            format!("{attach}`zpool import -d DEVICE`"),
        ),
        "swap" | "swsuspend" => ("swap space", format!("{attach}`swapon DEVICE`")),
        _ if kind.ends_with("_raid_member") => (
            "a member of a RAID",
            "attach all of them (`capstan attach …`), then `mdadm --assemble --scan`".to_owned(),
        ),
        _ => return None,
    };
    Some(found)
}

fn advice_on_partitions(device: &Path, tools: &Tools<'_>) -> String {
    if let Some(advice) = advice_on_gpt(device, tools) {
        return advice;
    }
    match partitions(device, tools) {
        Ok(found) if found.is_empty() => {
            "it names no partition; `partx --show DEVICE` and `fdisk --list DEVICE` show it"
                .to_owned()
        }
        Ok(found) => {
            let found: Vec<_> = found.iter().map(Partition::in_words).collect();
            format!(
                "mount one of its partitions with --part N: {}",
                found.join("; ")
            )
        }
        Err(error) => format!("its partitions cannot be listed: {error:#}"),
    }
}

/// Why a file system that is on `device`, which is called `what` and is the partition `part` or all
/// of a disk, cannot be mounted as `fs_type`, where what is on it says so.
pub(super) fn why_not_mounted(
    what: &str,
    part: Option<u32>,
    device: &Path,
    fs_type: &str,
    tools: &Tools<'_>,
) -> Option<String> {
    let found = blkid(device, tools).ok()?;
    let Some(kind) = found.file_system() else {
        let content = file_system(device, tools).ok()?.err()?;
        // A file system that blkid does not know is one that --type may name.
        let is_known = !matches!(content, NoFileSystem::Unknown { .. });
        return is_known.then(|| {
            let content = nothing_to_mount(what, part, device, &content, tools);
            format!("--type is {fs_type}, and {content}")
        });
    };
    if let (Some(block_bytes), Some(lba_bytes)) =
        (found.block_bytes, lba_bytes(&disk_of(device.to_owned())))
        && block_bytes < lba_bytes
    {
        return Some(format!(
            "{what} holds {kind} with blocks of {block_bytes} bytes, which cannot be mounted from a volume with LBAs of \
             {lba_bytes}: {}",
            gpt::with_lbas(COMMON_LBA_BYTES)
        ));
    }
    let is_other = kind != fs_type && !(kind.starts_with("ext") && fs_type.starts_with("ext"));
    is_other.then(|| {
        format!("{what} holds {kind}, and --type is {fs_type}: leave --type out, or say {kind}")
    })
}

/// What an LBA of a disk has.
fn lba_bytes(device: &Path) -> Option<u32> {
    let name = device.file_name()?.display();
    let lba_bytes = format!("/sys/class/block/{name}/queue/logical_block_size");
    std::fs::read_to_string(lba_bytes).ok()?.trim().parse().ok()
}

/// What to do about a GPT on `device` that cannot be used as it is.
fn advice_on_gpt(device: &Path, tools: &Tools<'_>) -> Option<String> {
    gpt::advice(device, lba_bytes(device)?, tools)
}

/// The different kinds, once each. The protective MBR belongs to its GPT.
fn kinds(all: &[Signature]) -> Vec<&str> {
    let has_gpt = all.iter().any(|one| one.kind == "gpt");
    let mut kinds: Vec<&str> = Vec::new();
    for Signature { kind, .. } in all {
        let is_known = kinds.contains(&kind.as_str());
        let is_of_gpt = has_gpt && kind == "PMBR";
        if !is_known && !is_of_gpt {
            kinds.push(kind);
        }
    }
    kinds
}

fn at_offsets(all: &[Signature]) -> String {
    let all: Vec<_> = all
        .iter()
        .map(|one| format!("{} at {}", one.kind, one.offset))
        .collect();
    all.join(", ")
}

/// The partitions of `device`, each with a device: those that the kernel does not know are shown
/// to it.
///
/// # Errors
/// A tool is missing or fails.
pub(super) fn partitions(device: &Path, tools: &Tools<'_>) -> Result<Vec<Partition>> {
    if blkid(device, tools)?.table.is_none() {
        return Ok(Vec::new());
    }
    let show = ["--noheadings", "--raw", "--bytes", "--output", "NR,SIZE"];
    let output = tools.look(Command::new("partx").args(show).arg(device))?;
    if !output.status.success() {
        return Err(failed("partx --raw", device, &output));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| {
        let (number, size_bytes) = line.trim().split_once(' ')?;
        Some((number.parse().ok()?, size_bytes.trim().parse().ok()?))
    });
    lines
        .map(|(number, size_bytes)| {
            let path = partition_path(device, number);
            let shown = show_to_kernel(device, number, &path, tools);
            let found = shown.and_then(|()| match path.exists() {
                true => blkid(&path, tools),
                false => Ok(Verdict::default()),
            });
            // One that cannot be had keeps nobody from the others.
            let (kind, refused) = match found {
                Ok(found) => (found.kind.or(found.table), None),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            Ok(Partition {
                number,
                device: path,
                size_bytes,
                kind,
                refused,
            })
        })
        .collect()
}

/// The device of partition `number`.
///
/// # Errors
/// There is none: which there are.
pub(super) fn partition(device: &Path, number: u32, tools: &Tools<'_>) -> Result<PathBuf> {
    let found = partitions(device, tools)?;
    let Some(one) = found.iter().find(|one| one.number == number) else {
        let words: Vec<_> = found.iter().map(Partition::in_words).collect();
        if words.is_empty() {
            if let Some(advice) = advice_on_gpt(device, tools) {
                bail!(
                    "--part is {number}, and the volume's partition table cannot be read: {advice}"
                );
            }
            if blkid(device, tools)?.table.is_some() {
                bail!(
                    "--part is {number}, and the volume's partition table names no partition; `partx --show DEVICE` and \
                     `fdisk --list DEVICE` show it"
                );
            }
            bail!(
                "--part is {number}, but the volume has no partitions; leave it out to mount the \
                 volume itself"
            );
        }
        bail!("--part is {number}, expected one of: {}", words.join("; "));
    };
    if let Some(error) = &one.refused {
        let words: Vec<_> = found.iter().map(Partition::in_words).collect();
        bail!(
            "partition {number} cannot be had from the kernel: {error}; there are {}",
            words.join("; ")
        );
    }
    if !one.device.exists() {
        bail!(
            "{} does not exist; expected devtmpfs or udev to make it",
            one.device.display()
        );
    }
    Ok(one.device.clone())
}

/// The device of that partition, or of the disk where there is no number.
pub(super) fn device_of(disk: &Path, part: Option<u32>) -> PathBuf {
    part.map_or_else(|| disk.to_owned(), |number| partition_path(disk, number))
}

/// `/dev/loop0p1` of `/dev/loop0`.
fn partition_path(device: &Path, number: u32) -> PathBuf {
    let mut path = device.as_os_str().to_owned();
    path.push(format!("p{number}"));
    PathBuf::from(path)
}

/// The disk of a partition's device; other devices are their own.
pub(super) fn disk_of(device: PathBuf) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    // Links to a folder of the partition inside that of its disk (Documentation/ABI, sysfs-block).
    let folder = Path::new("/sys/class/block").join(name);
    let folder = folder.join("partition").exists().then_some(folder);
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    let disk = folder.as_deref().and_then(Path::parent);
    match disk.and_then(Path::file_name) {
        Some(disk) => Path::new("/dev").join(disk),
        None => device,
    }
}

/// Some kernels are built without a parser of partition tables.
fn show_to_kernel(device: &Path, number: u32, path: &Path, tools: &Tools<'_>) -> Result<()> {
    let known = || {
        let disk = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
        disk.join(path.file_name().unwrap_or_default()).exists()
    };
    if known() {
        return Ok(());
    }
    let mut partx = Command::new("partx");
    let range = format!("{number}:{number}");
    let output = tools.look(partx.args(["--add", "--nr", &range]).arg(device))?;
    // The kernel, or udev, may have been faster.
    if output.status.success() || known() {
        return Ok(());
    }
    Err(failed("partx --add", device, &output))
}

/// Whether this kernel has no file system of this type, nor a program that mounts it. To be asked
/// after an attempt to mount: that loads modules.
pub(super) fn is_unknown_to_kernel(fs_type: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known.lines().any(|line| {
        let name = line.rsplit('\t').next();
        name == Some(fs_type)
    });
    let helper = format!("mount.{fs_type}");
    let helpers = ["/sbin", "/usr/sbin"].map(|folder| Path::new(folder).join(&helper));
    !known && !helpers.iter().any(|helper| helper.exists())
}

fn blkid(device: &Path, tools: &Tools<'_>) -> Result<Verdict> {
    let mut blkid = Command::new("blkid");
    let output = tools.look(blkid.args(["--probe", "--output", "export"]).arg(device))?;
    match output.status.code() {
        Some(0) => Ok(Verdict::parse(&String::from_utf8_lossy(&output.stdout))),
        Some(BLKID_NOTHING) if output.stderr.is_empty() => Ok(Verdict::default()),
        Some(BLKID_AMBIVALENT) => Ok(Verdict {
            ambivalent: true,
            ..Verdict::default()
        }),
        _ => Err(failed("blkid --probe", device, &output)),
    }
}

/// Everything on `device` that has a signature.
fn signatures(device: &Path, tools: &Tools<'_>) -> Result<Vec<Signature>> {
    #[derive(Deserialize)]
    struct All {
        signatures: Vec<Signature>,
    }
    let arguments = ["--no-act", "--json", "--output", "TYPE,OFFSET"];
    let output = tools.look(Command::new("wipefs").args(arguments).arg(device))?;
    if !output.status.success() {
        return Err(failed("wipefs --no-act", device, &output));
    }
    // Of a disk without any, some versions print nothing at all.
    if output.stdout.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let all: All = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what wipefs --json tells of {}", device.display()))?;
    Ok(all.signatures)
}

fn failed(what: &str, device: &Path, output: &Output) -> Error {
    let told = String::from_utf8_lossy(&output.stderr);
    let (device, status) = (device.display(), output.status);
    anyhow!("{what} {device}: {} ({status})", told.trim())
}

/// What a device without a signature holds, by the first byte that is not zero where these live.
fn without_signature(device: &Path) -> io::Result<NoFileSystem> {
    let file = File::open(device)?;
    let size_bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
    let head_end = HEAD_BYTES.min(size_bytes);
    let tail_start = size_bytes.saturating_sub(TAIL_BYTES).max(head_end);
    let mut bytes = vec![0; usize::try_from(TAIL_BYTES).unwrap_or(1 << 20)];
    for (mut at, end) in [(0, head_end), (tail_start, size_bytes)] {
        while at < end {
            let count = usize::try_from(end - at).unwrap_or(usize::MAX);
            let count = count.min(bytes.len());
            let piece = bytes.get_mut(..count).unwrap_or_default();
            file.read_exact_at(piece, at)?;
            if let Some(found) = piece.iter().position(|&byte| byte != 0) {
                let first_byte = at + found as u64;
                return Ok(NoFileSystem::Unknown { first_byte });
            }
            at += count as u64;
        }
    }
    Ok(NoFileSystem::Blank { size_bytes })
}

#[cfg(test)]
mod tests;
