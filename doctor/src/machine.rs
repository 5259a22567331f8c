//! Where the checks look: the machine, or a folder that looks like one.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;

/// Capabilities that lift limits (`capabilities(7)`), by their bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// CAP_CHOWN: a file may be given to any user.
    Chown = 0,
    /// CAP_DAC_OVERRIDE: modes of files do not hold.
    DacOverride = 1,
    /// CAP_DAC_READ_SEARCH: files are opened by their handles.
    DacReadSearch = 2,
    /// CAP_FOWNER: a file is everybody's own.
    Fowner = 3,
    /// CAP_FSETID: setgid outlives a change.
    Fsetid = 4,
    /// CAP_SETGID: a thread may act for other groups.
    SetGid = 6,
    /// CAP_SETUID: a thread may act for other users.
    SetUid = 7,
    /// CAP_NET_ADMIN: any congestion control may be chosen.
    NetAdmin = 12,
    /// CAP_IPC_LOCK: RLIMIT_MEMLOCK does not hold.
    IpcLock = 14,
    /// CAP_SYS_ADMIN: RLIMIT_NPROC does not hold.
    SysAdmin = 21,
    /// CAP_SYS_RESOURCE: the same.
    SysResource = 24,
    /// CAP_MKNOD: device nodes may be made.
    Mknod = 27,
}

/// What a device file lets this process do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFile {
    /// It can be opened for reading and writing.
    Usable,
    /// It is there, and opening it is refused.
    Refused,
    /// It is not there.
    Missing,
}

/// A machine, seen through its `/proc`, `/sys`, `/dev` and `/lib/modules`.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    /// Addresses of the interfaces: interface, address.
    pub addresses: Vec<(String, IpAddr)>,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here() -> Self {
        let interfaces = getifaddrs().into_iter().flatten();
        let addresses = interfaces
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
                let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
                Some((interface.interface_name, v4.or(v6)?))
            })
            .collect();
        Self::at(Path::new("/"), addresses)
    }

    /// The machine whose root folder is `root`, with these interface addresses.
    #[must_use]
    pub fn at(root: &Path, addresses: Vec<(String, IpAddr)>) -> Self {
        Self {
            root: root.to_owned(),
            addresses,
        }
    }

    /// The place of an absolute path.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the line end; `None` when it cannot be read. (Reading a file of sysfs
    /// fails where the kernel has no value, such as unused GIDs on some devices.)
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// A number in a file.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    /// Where a symbolic link leads.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.into_os_string().into_string().ok()
    }

    /// Names in a folder, sorted; numbers by their value. Empty when there is no such folder.
    #[must_use]
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_by_key(|name| (name.parse::<u64>().ok(), name.clone()));
        names
    }

    /// Whether there is such a file or folder.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What a device file lets this process do. Opening the ones doctor looks at does nothing.
    #[must_use]
    pub fn device_file(&self, path: &str) -> DeviceFile {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path(path));
        match opened {
            Ok(_) => DeviceFile::Usable,
            Err(error) if error.kind() == io::ErrorKind::NotFound => DeviceFile::Missing,
            Err(_) => DeviceFile::Refused,
        }
    }

    /// Whether this process has a capability (`CapEff` of proc_pid_status(5)).
    #[must_use]
    pub fn has_capability(&self, capability: Capability) -> bool {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
        let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        bits.is_some_and(|bits| bits >> (capability as u8) & 1 == 1)
    }

    /// The effective user ID of this process (`Uid` of proc_pid_status(5)).
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        let status = self.read("/proc/self/status")?;
        let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    /// The soft limit in a row of `/proc/self/limits`; `u64::MAX` when there is none.
    #[must_use]
    pub fn limit(&self, row: &str) -> Option<u64> {
        let limits = self.read("/proc/self/limits")?;
        let values = limits.lines().find_map(|line| line.strip_prefix(row))?;
        match values.split_whitespace().next()? {
            "unlimited" => Some(u64::MAX),
            soft => soft.parse().ok(),
        }
    }

    /// The kernel's release, as `uname -r` prints it.
    #[must_use]
    pub fn release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_default()
    }
}

/// Numbers with more digits are told with a larger unit and one decimal.
const EXACT_BELOW: u64 = 10_000;

/// Bytes that there are, for people: rounded down to whole MiB where there are any.
pub(crate) fn rounded(bytes: u64) -> String {
    match bytes >> 20 {
        0 => in_unit(bytes, u128::div_euclid),
        mib => in_unit(mib << 20, u128::div_euclid),
    }
}

/// Bytes that are needed, for people: exact where a unit divides them into a number that can be
/// read, and else rounded up.
pub(crate) fn size(bytes: u64) -> String {
    in_unit(bytes, u128::div_ceil)
}

fn in_unit(bytes: u64, divide: fn(u128, u128) -> u128) -> String {
    const UNITS: [(&str, u32); 7] = [
        ("EiB", 60),
        ("PiB", 50),
        ("TiB", 40),
        ("GiB", 30),
        ("MiB", 20),
        ("KiB", 10),
        ("bytes", 0),
    ];
    let is_exact = |shift: u32| bytes.is_multiple_of(1 << shift);
    let can_be_read = |shift: u32| bytes >> shift < EXACT_BELOW;
    let exact = UNITS.into_iter().find(|&(_, shift)| {
        is_exact(shift) && can_be_read(shift) && (bytes >> shift != 0 || shift == 0)
    });
    if let Some((name, shift)) = exact {
        return format!("{} {name}", bytes >> shift);
    }
    let readable = UNITS
        .into_iter()
        .rev()
        .find(|&(_, shift)| can_be_read(shift));
    let (name, shift) = readable.unwrap_or(("EiB", 60));
    let tenths = divide(u128::from(bytes) * 10, 1 << shift);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::{Capability, DeviceFile, Machine, rounded, size};
    use crate::testing::Tree;

    #[test]
    fn limits_and_capabilities_are_those_of_proc() {
        let machine = Tree::new()
            .file(
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max open files            1024                 524288               files\n\
                 Max locked memory         8388608              8388608              bytes\n\
                 Max file size             unlimited            unlimited            bytes\n",
            )
            .file("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
        let machine = machine.machine();
        assert_eq!(machine.limit("Max locked memory"), Some(8 << 20));
        assert_eq!(machine.limit("Max file size"), Some(u64::MAX));
        assert_eq!(machine.limit("Max cake"), None);
        assert!(machine.has_capability(Capability::IpcLock));
        assert!(!machine.has_capability(Capability::SysAdmin));
    }

    #[test]
    fn device_files_and_names() {
        let tree = Tree::new().file("dev/fuse", "").file("sys/g/10", "");
        let tree = tree.file("sys/g/9", "").file("sys/g/x", "");
        let machine = tree.machine();
        assert_eq!(machine.device_file("/dev/fuse"), DeviceFile::Usable);
        assert_eq!(machine.device_file("/dev/ublk"), DeviceFile::Missing);
        assert_eq!(machine.device_file("/dev"), DeviceFile::Refused);
        assert_eq!(machine.names("/sys/g"), ["x", "9", "10"]);
        assert_eq!(machine.names("/sys/none"), [""; 0]);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_loopback_address() {
        let machine = Machine::here();
        assert!(!machine.release().is_empty());
        let loopback = |(_, ip): &(String, std::net::IpAddr)| ip.is_loopback();
        assert!(machine.addresses.iter().any(loopback));
    }

    #[test]
    fn sizes_can_be_read_and_what_is_said_to_be_needed_is_enough() {
        for (bytes, needed, there) in [
            (0, "0 bytes", "0 bytes"),
            (4097, "4097 bytes", "4097 bytes"),
            (65_537, "64.1 KiB", "64.0 KiB"),
            (256 << 20, "256 MiB", "256 MiB"),
            ((1 << 30) + 4096, "1024.1 MiB", "1 GiB"),
            ((3 << 30) + 4097, "3072.1 MiB", "3 GiB"),
            (24_105 << 20, "23.6 GiB", "23.5 GiB"),
            // Nobody reads 103809280 MiB.
            ((99 << 40) + (256 << 20), "99.1 TiB", "99.0 TiB"),
            (1023 << 50, "1023 PiB", "1023 PiB"),
            ((1023 << 50) + (1 << 30), "1023.1 PiB", "1023.0 PiB"),
            (u64::MAX, "16.0 EiB", "15.9 EiB"),
        ] {
            assert_eq!(
                (&*size(bytes), &*rounded(bytes)),
                (needed, there),
                "{bytes}"
            );
        }
    }
}
