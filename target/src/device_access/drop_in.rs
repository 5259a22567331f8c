//! The text of the drop-in (systemd.resource-control(5), `DeviceAllow=`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use capstan_config::{Backing, Config};
use nix::sys::stat::{major, minor};

/// How it begins, by which it is known again.
pub(super) const HEAD: &str = "# Written by `capstan-target device-access`";

/// What RDMA takes, as in the unit.
const OF_RDMA: [&str; 2] = ["char-infiniband_verbs", "/dev/infiniband/rdma_cm"];

/// What the service does with a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Access {
    Read,
    ReadWrite,
}

impl Access {
    /// As in `DeviceAllow=`.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::ReadWrite => "rw",
        }
    }
}

/// A device of a configuration.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    /// Major and minor number (`st_rdev`); `None` where it is not there.
    pub(super) number: Option<u64>,
}

/// The block devices of a configuration by their paths, each once. What is below /dev and not there
/// is one as well: it comes later.
pub(super) fn devices(config: &Config) -> Vec<Device> {
    let mut by_path = BTreeMap::new();
    for namespace in config.subsystems.iter().flat_map(|of| &of.namespaces) {
        let Backing::Path(path) = &namespace.backing else {
            continue;
        };
        let access = match namespace.read_only {
            true => Access::Read,
            false => Access::ReadWrite,
        };
        let widest = by_path.entry(path.clone()).or_insert(access);
        *widest = access.max(*widest);
    }
    let devices = by_path.into_iter().filter_map(|(path, access)| {
        let number = match fs::metadata(&path) {
            Ok(metadata) if metadata.file_type().is_block_device() => Some(metadata.rdev()),
            Ok(_) => return None,
            Err(_) if path.starts_with("/dev") => None,
            Err(_) => return None,
        };
        Some(Device {
            path,
            access,
            number,
        })
    });
    devices.collect()
}

/// A drop-in.
#[derive(Debug)]
pub(super) struct DropIn {
    pub(super) text: String,
    /// What is said of devices that are not there.
    pub(super) absent: Vec<String>,
}

/// The drop-in for the configuration in `file`.
pub(super) fn drop_in(config: &Config, file: &Path) -> DropIn {
    let mut text = format!(
        "{HEAD} --config {}: the service may open the\n\
         # block devices of that file and no others. Write it again when they change, and run `systemctl daemon-reload`.\n\
         [Service]\n\
         DeviceAllow=\n",
        file.display()
    );
    for of_rdma in OF_RDMA {
        let _ = writeln!(text, "DeviceAllow={of_rdma} rw");
    }
    let mut absent = Vec::new();
    for device in devices(config) {
        let _ = writeln!(text, "DeviceAllow={}", allowed(&device));
        if device.number.is_none() {
            absent.push(format!(
                "{}: it is not there; systemd lets in what is there when the unit starts: once it is, run `systemctl daemon-reload`",
                device.path.display()
            ));
        }
    }
    DropIn { text, absent }
}

/// The value of `DeviceAllow=`, which is taken apart at blanks, and in which `%` begins a specifier
/// (systemd.syntax(7), systemd.unit(5)). Paths that are not below /dev are no paths of devices
/// there.
fn allowed(device: &Device) -> String {
    let path = match device.number {
        Some(number) if !device.path.starts_with("/dev") => {
            format!("/dev/block/{}:{}", major(number), minor(number))
        }
        _ => device.path.display().to_string(),
    };
    let mut quoted = String::new();
    for character in path.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '%' => quoted.push_str("%%"),
            _ => quoted.push(character),
        }
    }
    let word = device.access.word();
    if quoted == path && !path.contains([' ', '\t', '\'']) {
        return format!("{path} {word}");
    }
    format!("\"{quoted}\" {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(namespaces: &str) -> DropIn {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n{namespaces}"
        );
        drop_in(&Config::from_toml(&text).unwrap(), Path::new("t.toml"))
    }

    #[test]
    fn only_devices_are_let_in_and_what_is_read_is_not_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let made = written(&format!(
            "[[subsystem.namespace]]\npath = \"/dev/capstan-a\"\n\
             [[subsystem.namespace]]\npath = \"/dev/capstan-b\"\nread_only = true\n\
             [[subsystem.namespace]]\npath = \"{}\"\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\n",
            file.path().display()
        ));
        let lines: Vec<_> = made
            .text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        assert_eq!(
            lines,
            [
                "[Service]",
                "DeviceAllow=",
                "DeviceAllow=char-infiniband_verbs rw",
                "DeviceAllow=/dev/infiniband/rdma_cm rw",
                "DeviceAllow=/dev/capstan-a rw",
                "DeviceAllow=/dev/capstan-b r",
            ]
        );
        assert_eq!(made.absent.len(), 2);
    }

    #[test]
    fn what_systemd_would_take_apart_is_quoted() {
        for (path, number, value) in [
            ("/dev/a b", None, "\"/dev/a b\" rw"),
            ("/dev/100%", None, "\"/dev/100%%\" rw"),
            ("/dev/a\"b\\c", None, r#""/dev/a\"b\\c" rw"#),
            (
                "/srv/disk",
                Some(nix::sys::stat::makedev(7, 3)),
                "/dev/block/7:3 rw",
            ),
        ] {
            let device = Device {
                path: path.into(),
                access: Access::ReadWrite,
                number,
            };
            assert_eq!(allowed(&device), value);
        }
    }
}
