//! Loop devices: `/dev/loop-control` and the ioctls of `include/uapi/linux/loop.h`.
#![expect(unsafe_code, reason = "ioctls of the loop driver")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;

/// Where free devices are asked for.
const LOOP_CONTROL: &str = "/dev/loop-control";
/// Times a device that was free is taken by another program before it could be configured.
const ATTEMPTS_MAX: u32 = 32;
/// Bytes of `lo_file_name`, with the zero at its end.
const NAME_BYTES: usize = 64;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<LoopInfo64>() == 232);

/// `struct loop_config`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

mod ioctl {
    use super::{LoopConfig, LoopInfo64};

    nix::ioctl_none_bad!(ctl_get_free, 0x4c82);
    nix::ioctl_none_bad!(clr_fd, 0x4c01);
    nix::ioctl_write_ptr_bad!(set_status64, 0x4c04, LoopInfo64);
    nix::ioctl_none_bad!(set_capacity, 0x4c07);
    nix::ioctl_read_bad!(get_status64, 0x4c05, LoopInfo64);
    nix::ioctl_write_ptr_bad!(configure, 0x4c0a, LoopConfig);
}

/// A loop device could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// No device to be had.
    #[error(
        "{LOOP_CONTROL}: {0}; expected a kernel with loop devices (`modprobe loop`) and root (`sudo`)"
    )]
    Control(io::Error),
    /// The device cannot be opened.
    #[error("{}: {source}; expected a loop device that root can open", .path.display())]
    Open {
        /// The device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refuses the configuration.
    #[error("{}: LOOP_CONFIGURE: {source}; expected Linux 5.8 or later and an LBA size of at most a page ({lba_bytes} bytes here)", .path.display())]
    Configure {
        /// The device.
        path: PathBuf,
        /// LBA size asked for.
        lba_bytes: u32,
        /// Why.
        source: io::Error,
    },
    /// An ioctl failed.
    #[error("{}: {what}: {source}", .path.display())]
    Ioctl {
        /// The device.
        path: PathBuf,
        /// The ioctl.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl LoopError {
    /// Whether the device is being cleared, and is not opened meanwhile.
    #[must_use]
    pub fn is_going(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.raw_os_error() == Some(libc::ENXIO))
    }
}

/// How a loop device is to be.
#[derive(Clone, Copy, Debug)]
pub struct LoopOptions<'a> {
    /// Logical block size in bytes.
    pub lba_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// What [`LoopDevice::name`] says, at most 63 bytes.
    pub name: &'a str,
}

/// A loop device, open.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: File,
}

impl LoopDevice {
    /// Makes a free loop device a disk of `backing`, with direct I/O and a scan for partitions. It
    /// ends with its last user: [`LoopDevice::set_autoclear`]. `choose` is told which device it is
    /// going to be; `None` when it does not want it.
    ///
    /// # Errors
    /// [`LoopError`].
    pub fn configure(
        backing: &File,
        options: &LoopOptions<'_>,
        mut choose: impl FnMut(&Path) -> bool,
    ) -> Result<Option<Self>, LoopError> {
        let control = File::options()
            .read(true)
            .write(true)
            .open(LOOP_CONTROL)
            .map_err(LoopError::Control)?;
        let mut flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_PARTSCAN | LO_FLAGS_AUTOCLEAR;
        if options.read_only {
            flags |= LO_FLAGS_READ_ONLY;
        }
        let config = LoopConfig {
            fd: u32::try_from(backing.as_raw_fd()).unwrap_or(u32::MAX),
            block_size: options.lba_bytes,
            info: LoopInfo64 {
                flags,
                file_name: name_field(options.name),
                ..EMPTY_INFO
            },
            reserved: [0; 8],
        };
        let mut attempts = 0;
        loop {
            // SAFETY: the ioctl takes no argument; the descriptor is open.
            let number = unsafe { ioctl::ctl_get_free(control.as_raw_fd()) }
                .map_err(|errno| LoopError::Control(errno.into()))?;
            let device = Self::open_for(&PathBuf::from(format!("/dev/loop{number}")), options)?;
            if !choose(&device.path) {
                return Ok(None);
            }
            // SAFETY: `config` is the structure the ioctl reads; it lives through the call.
            match unsafe { ioctl::configure(device.file.as_raw_fd(), &raw const config) } {
                Ok(_) => return Ok(Some(device)),
                Err(Errno::EBUSY) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(errno) => {
                    return Err(LoopError::Configure {
                        path: device.path,
                        lba_bytes: options.lba_bytes,
                        source: errno.into(),
                    });
                }
            }
        }
    }

    fn open_for(path: &Path, options: &LoopOptions<'_>) -> Result<Self, LoopError> {
        open(path, !options.read_only, 0)
    }

    /// Opens a loop device that is in use or free, without claiming it.
    ///
    /// # Errors
    /// [`LoopError::Open`]: among others, `path` is no loop device.
    pub fn open(path: &Path) -> Result<Self, LoopError> {
        open(path, false, 0)
    }

    /// Opens a loop device, and claims it: it is not mounted, and cannot be meanwhile.
    /// `None` when it is claimed by a mount, a mapping or whatever else claims block devices.
    ///
    /// # Errors
    /// [`LoopError::Open`].
    pub fn claim(path: &Path) -> Result<Option<Self>, LoopError> {
        match open(path, false, libc::O_EXCL) {
            Ok(device) => Ok(Some(device)),
            Err(LoopError::Open { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The device's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name it was configured with; `None` when it is not configured.
    ///
    /// # Errors
    /// [`LoopError::Ioctl`].
    pub fn name(&self) -> Result<Option<String>, LoopError> {
        Ok(self.info()?.map(|info| {
            let end = info.file_name.iter().position(|&byte| byte == 0);
            let name = info.file_name.get(..end.unwrap_or(NAME_BYTES));
            String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
        }))
    }

    /// Whether the device ends with its last user.
    ///
    /// # Errors
    /// [`LoopError::Ioctl`].
    pub fn is_autoclear(&self) -> Result<bool, LoopError> {
        let info = self.info()?;
        Ok(info.is_some_and(|info| info.flags & LO_FLAGS_AUTOCLEAR != 0))
    }

    /// Whether the device is to end with its last user: with the file system on it, when that is
    /// unmounted.
    ///
    /// # Errors
    /// [`LoopError::Ioctl`].
    pub fn set_autoclear(&self, autoclear: bool) -> Result<(), LoopError> {
        let Some(mut info) = self.info()? else {
            return Err(self.error("LOOP_GET_STATUS64", Errno::ENXIO));
        };
        info.flags &= !LO_FLAGS_AUTOCLEAR;
        info.flags |= if autoclear { LO_FLAGS_AUTOCLEAR } else { 0 };
        // SAFETY: `info` is the structure the ioctl reads; it lives through the call.
        unsafe { ioctl::set_status64(self.file.as_raw_fd(), &raw const info) }
            .map_err(|errno| self.error("LOOP_SET_STATUS64", errno))?;
        Ok(())
    }

    /// Makes the device as long as its file is now.
    ///
    /// # Errors
    /// [`LoopError::Ioctl`].
    pub fn take_size(&self) -> Result<(), LoopError> {
        // SAFETY: the ioctl takes no argument; the descriptor is open.
        unsafe { ioctl::set_capacity(self.file.as_raw_fd()) }
            .map_err(|errno| self.error("LOOP_SET_CAPACITY", errno))?;
        Ok(())
    }

    /// Takes the file away from the device: when this handle is dropped, or, while others have the
    /// device open, with the last of them.
    ///
    /// # Errors
    /// [`LoopError::Ioctl`].
    pub fn clear(&self) -> Result<(), LoopError> {
        // SAFETY: the ioctl takes no argument; the descriptor is open.
        match unsafe { ioctl::clr_fd(self.file.as_raw_fd()) } {
            // Cleared already is as good.
            Ok(_) | Err(Errno::ENXIO) => Ok(()),
            Err(errno) => Err(self.error("LOOP_CLR_FD", errno)),
        }
    }

    fn info(&self) -> Result<Option<LoopInfo64>, LoopError> {
        let mut info = EMPTY_INFO;
        // SAFETY: `info` is the structure the ioctl fills; it lives through the call.
        match unsafe { ioctl::get_status64(self.file.as_raw_fd(), &raw mut info) } {
            Ok(_) => Ok(Some(info)),
            Err(Errno::ENXIO) => Ok(None),
            Err(errno) => Err(self.error("LOOP_GET_STATUS64", errno)),
        }
    }

    fn error(&self, what: &'static str, errno: Errno) -> LoopError {
        LoopError::Ioctl {
            path: self.path.clone(),
            what,
            source: errno.into(),
        }
    }
}

/// What uses a loop device or its partitions, as far as the kernel tells: devices stacked on them,
/// and swap.
#[must_use]
pub fn holders(path: &Path) -> Vec<String> {
    let name = path.file_name().unwrap_or_default();
    let folder = Path::new("/sys/block").join(name);
    let parts = entries(&folder).filter(|entry| entry.join("partition").exists());
    let parts: Vec<PathBuf> = std::iter::once(folder).chain(parts).collect();
    let stacked = parts.iter().flat_map(|part| entries(&part.join("holders")));
    let stacked =
        stacked.filter_map(|entry| Some(entry.file_name()?.to_string_lossy().into_owned()));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let nodes = parts
        .iter()
        .filter_map(|part| Some(Path::new("/dev").join(part.file_name()?)));
    let swap = nodes.filter(|node| {
        let mut used = swaps
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        used.any(|used| Path::new(used) == node)
    });
    let swap = swap.map(|node| format!("swap (swapoff {})", node.display()));
    stacked.chain(swap).collect()
}

/// Whether it is configured, as far as that can be told without opening it.
#[must_use]
pub fn is_configured(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name).join("loop").exists()
}

/// Whether its file is called `name`, as far as that can be told without opening it.
#[must_use]
pub(crate) fn has_file(path: &Path, name: &str) -> bool {
    let device = path.file_name().unwrap_or_default();
    let file = Path::new("/sys/block")
        .join(device)
        .join("loop/backing_file");
    fs::read_to_string(file).is_ok_and(|file| Path::new(file.trim_end()).ends_with(name))
}

/// Devices stacked on each other at most, as far as they are followed.
const STACKED_MAX: u32 = 8;

/// Device numbers (as `st_rdev`) of a block device or a partition, of its partitions, of what is
/// stacked on those (LVM, dm-crypt, md), and of the devices that a btrfs has besides them.
#[must_use]
pub fn device_numbers(path: &Path) -> Vec<(u32, u32)> {
    let name = path.file_name().unwrap_or_default();
    let mut found = BTreeSet::new();
    let folder = Path::new("/sys/class/block").join(name);
    follow(&folder, STACKED_MAX, &mut found);
    found.into_iter().collect()
}

/// Adds the numbers of the device of a folder of sysfs, and of what lies on it.
fn follow(device: &Path, depth: u32, found: &mut BTreeSet<(u32, u32)>) {
    let Some(number) = number(device) else {
        return;
    };
    if !found.insert(number) || depth == 0 {
        return;
    }
    for entry in entries(device).chain(entries(&device.join("holders"))) {
        // A partition, or a link to the device that holds this one.
        follow(&entry, depth - 1, found);
    }
    let name = device.file_name().unwrap_or_default();
    for file_system in entries(Path::new("/sys/fs/btrfs")) {
        let devices = file_system.join("devices");
        if devices.join(name).exists() {
            found.extend(entries(&devices).filter_map(|device| self::number(&device)));
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn number(device: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(device.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn open(path: &Path, write: bool, flags: i32) -> Result<LoopDevice, LoopError> {
    let error = |source| LoopError::Open {
        path: path.to_owned(),
        source,
    };
    let file = File::options()
        .read(true)
        .write(write)
        .custom_flags(flags)
        .open(path)
        .map_err(error)?;
    let meta = file.metadata().map_err(error)?;
    // Major number 7 is the loop driver's (Documentation/admin-guide/devices.txt).
    if !meta.file_type().is_block_device() || libc::major(meta.rdev()) != 7 {
        return Err(error(io::Error::other("it is none")));
    }
    Ok(LoopDevice {
        path: path.to_owned(),
        file,
    })
}

fn name_field(name: &str) -> [u8; NAME_BYTES] {
    let mut field = [0; NAME_BYTES];
    for (place, byte) in field.iter_mut().take(NAME_BYTES - 1).zip(name.bytes()) {
        *place = byte;
    }
    field
}

const EMPTY_INFO: LoopInfo64 = LoopInfo64 {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    sizelimit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; NAME_BYTES],
    crypt_name: [0; NAME_BYTES],
    encrypt_key: [0; 32],
    init: [0; 2],
};

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::{LoopDevice, LoopError, LoopOptions, device_numbers, name_field};

    #[test]
    fn a_long_name_is_cut_before_its_zero() {
        let field = name_field(&"x".repeat(100));
        assert_eq!((field[62], field[63]), (b'x', 0));
    }

    #[test]
    fn what_is_no_loop_device_is_refused() {
        for path in ["/dev/null", "/etc/hostname", "/dev/no-such-device"] {
            let opened = LoopDevice::open(Path::new(path));
            assert!(matches!(opened, Err(LoopError::Open { .. })), "{path}");
        }
    }

    #[test]
    fn a_device_lives_until_it_is_cleared() {
        if !nix::unistd::geteuid().is_root() || !Path::new(super::LOOP_CONTROL).exists() {
            eprintln!("SKIPPED a_device_lives_until_it_is_cleared: needs root and loop devices");
            return;
        }
        let backing = tempfile::tempfile().unwrap();
        backing.set_len(1 << 20).unwrap();
        let options = LoopOptions {
            lba_bytes: 4096,
            read_only: false,
            name: "capstan-test",
        };
        let unwanted = LoopDevice::configure(&backing, &options, |_| false);
        assert!(unwanted.unwrap().is_none());
        let mut chosen = Vec::new();
        let device = LoopDevice::configure(&backing, &options, |path| {
            chosen.push(path.to_owned());
            true
        });
        let device = device.unwrap().unwrap();
        let path = device.path().to_owned();
        assert_eq!(chosen.last(), Some(&path));
        assert!(device.is_autoclear().unwrap());
        device.set_autoclear(false).unwrap();
        assert!(!device.is_autoclear().unwrap());
        assert_eq!(device.name().unwrap().as_deref(), Some("capstan-test"));
        let disk = File::options().write(true).open(&path).unwrap();
        disk.write_all_at(&[7; 4096], 8192).unwrap();
        disk.sync_all().unwrap();
        let mut back = [0; 4096];
        backing.read_exact_at(&mut back, 8192).unwrap();
        assert_eq!(back, [7; 4096]);
        assert_eq!(device_numbers(&path)[0].0, 7);
        backing.set_len(2 << 20).unwrap();
        device.take_size().unwrap();
        disk.write_all_at(&[8; 4096], (2 << 20) - 4096).unwrap();
        let claimed = LoopDevice::claim(&path).unwrap().expect("nobody claims it");
        assert!(LoopDevice::claim(&path).unwrap().is_none());
        drop((disk, device));
        claimed.clear().unwrap();
        drop(claimed);
        // The last close clears it.
        assert_eq!(LoopDevice::open(&path).unwrap().name().unwrap(), None);
    }
}
