//! What the unit of the service lets it open, as systemd says it (systemd.resource-control(5)).

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use nix::sys::stat::major;

use super::drop_in::Access;

const UNIT: &str = "capstan-target.service";
/// Only there where systemd runs (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// The majors of block devices, by the names of their drivers (proc_devices(5)).
const DRIVERS: &str = "/proc/devices";

/// The part of a unit that says which devices it may open.
#[derive(Debug)]
pub(super) struct Unit {
    /// Lines of `DeviceAllow=`: what, and how.
    allowed: Vec<(String, String)>,
}

impl Unit {
    /// The unit, where systemd has it, it serves this configuration, and it may not open all
    /// devices that there are.
    pub(super) fn serving(file: &Path) -> Option<Self> {
        if !Path::new(BOOTED).exists() {
            return None;
        }
        let properties = "--property=ExecStart,DevicePolicy,DeviceAllow";
        let asked = Command::new("systemctl")
            .args(["show", properties, UNIT])
            .output();
        Self::read(&String::from_utf8_lossy(&asked.ok()?.stdout), file)
    }

    /// From what `systemctl show` prints.
    fn read(shown: &str, file: &Path) -> Option<Self> {
        let values = |property: &'static str| {
            let lines = shown.lines().filter_map(|line| line.split_once('='));
            lines.filter_map(move |(name, value)| (name == property).then_some(value))
        };
        let file = format!(" {} ", file.display());
        if !values("ExecStart").any(|command| command.contains(&file)) {
            return None;
        }
        let allowed: Vec<_> = values("DeviceAllow")
            .filter_map(|value| value.rsplit_once(' '))
            .map(|(what, how)| (what.to_owned(), how.to_owned()))
            .collect();
        let all = values("DevicePolicy").all(|policy| policy == "auto") && allowed.is_empty();
        (!all).then_some(Self { allowed })
    }

    /// Whether it may open the block device of this number (`st_rdev`).
    pub(super) fn allows(&self, number: u64, access: Access) -> bool {
        let matching = self.allowed.iter().filter(|(_, how)| match access {
            Access::Read => how.contains('r'),
            Access::ReadWrite => how.contains('r') && how.contains('w'),
        });
        let drivers = fs::read_to_string(DRIVERS).unwrap_or_default();
        matching
            .into_iter()
            .any(|(what, _)| match what.strip_prefix("block-") {
                Some(driver) => is_of_driver(&drivers, number, driver),
                None => is_device(what, number),
            })
    }

    /// What it may open, for people.
    pub(super) fn allowed(&self) -> String {
        let allowed: Vec<_> = self
            .allowed
            .iter()
            .map(|(what, how)| format!("{what} {how}"))
            .collect();
        match allowed.is_empty() {
            true => "none".into(),
            false => allowed.join(", "),
        }
    }
}

fn is_device(path: &str, number: u64) -> bool {
    fs::metadata(path).is_ok_and(|of| of.file_type().is_block_device() && of.rdev() == number)
}

/// Whether a driver whose name matches has the device's major: `*` at the end stands for anything.
fn is_of_driver(drivers: &str, number: u64, pattern: &str) -> bool {
    let of_blocks = drivers.lines().skip_while(|line| *line != "Block devices:");
    let drivers = of_blocks.filter_map(|line| line.trim().split_once(' '));
    let mut names =
        drivers.filter_map(|(of, name)| (of.parse() == Ok(major(number))).then_some(name));
    match pattern.strip_suffix('*') {
        Some(start) => names.any(|name| name.starts_with(start)),
        None => names.any(|name| name == pattern),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;

    use super::*;

    const SHOWN: &str = "ExecStart={ path=/usr/bin/capstan-target ; argv[]=/usr/bin/capstan-target serve --config /etc/capstan/target.toml ; ignore_errors=no }\n\
        DevicePolicy=closed\nDeviceAllow=block-loop r\nDeviceAllow=char-infiniband_verbs rw\n";
    const DRIVERS: &str =
        "Character devices:\n  7 vcs\n\nBlock devices:\n  7 loop\n  8 sd\n259 blkext\n";

    #[test]
    fn a_unit_is_of_the_file_that_it_serves() {
        let file = Path::new("/etc/capstan/target.toml");
        let unit = Unit::read(SHOWN, file).unwrap();
        assert_eq!(unit.allowed(), "block-loop r, char-infiniband_verbs rw");
        assert!(Unit::read(SHOWN, Path::new("/etc/capstan/target")).is_none());
        let open = SHOWN.lines().next().unwrap().to_owned() + "\nDevicePolicy=auto\n";
        assert!(Unit::read(&open, file).is_none(), "it may open all");
    }

    #[test]
    fn drivers_are_known_by_their_majors() {
        for (major, pattern, is) in [
            (7, "loop", true),
            (7, "lo*", true),
            (7, "*", true),
            (7, "vcs", false),
            (8, "loop", false),
            (9, "*", false),
        ] {
            assert_eq!(
                is_of_driver(DRIVERS, makedev(major, 1), pattern),
                is,
                "{major} {pattern}"
            );
        }
    }
}
