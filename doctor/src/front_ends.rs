//! Ways to make a volume a disk of this machine.

use crate::modules::{State, state};
use crate::{Check, DeviceFile, Machine};

/// FUSE and loop, which `attach` and `mount` use; ublk and the kernel's own host, which they do
/// not.
pub(crate) fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        needed(machine, "FUSE", "/dev/fuse", "fuse"),
        needed(machine, "loop devices", "/dev/loop-control", "loop"),
        other(machine, "ublk", "/dev/ublk-control", "ublk_drv"),
        other(
            machine,
            "Linux NVMe host",
            "/dev/nvme-fabrics",
            "nvme_fabrics",
        ),
    ]
}

/// A device file that `attach` and `mount` need. Without it everything else works.
fn needed(machine: &Machine, name: &str, file: &str, module: &str) -> Check {
    let expected = format!("{file}, for `capstan attach` and `mount`; the rest works without");
    match machine.device_file(file) {
        DeviceFile::Usable => Check::ok(name, file),
        DeviceFile::Refused => Check::warning(
            name,
            format!("{file} is not for this user"),
            expected,
            "sudo capstan attach … (both commands need root)",
        ),
        DeviceFile::Missing => {
            let mend = match state(machine, module) {
                State::Absent => format!(
                    "the kernel {} has no module {module}: `capstan serve-nbd` needs none",
                    machine.release()
                ),
                State::Loaded => format!("give the container the device: --device {file}"),
                State::Loadable => format!("modprobe {module}"),
            };
            Check::warning(name, format!("{file} is missing"), expected, mend)
        }
    }
}

/// What this version does without.
fn other(machine: &Machine, name: &str, file: &str, module: &str) -> Check {
    let seen = match (machine.has(file), state(machine, module)) {
        (true, _) => file.to_owned(),
        (false, State::Absent) => "not in this kernel".to_owned(),
        (false, State::Loadable) => format!("not loaded (modprobe {module})"),
        (false, State::Loaded) => format!("{file} is missing"),
    };
    Check::ok(name, format!("{seen}; not used by this version"))
}

#[cfg(test)]
mod tests {
    use super::checks;
    use crate::testing::Tree;
    use crate::{Verdict, trees};

    #[test]
    fn what_is_missing_is_loaded_given_or_done_without() {
        let release = ("proc/sys/kernel/osrelease", "6.12.0\n");
        let bare = Tree::new().file(release.0, release.1);
        let bare_checks = checks(&bare.machine());
        assert_eq!(bare_checks[0].verdict, Verdict::Warning);
        assert!(
            bare_checks[0]
                .remedy
                .as_ref()
                .unwrap()
                .contains("serve-nbd")
        );
        let loadable = Tree::new().file(release.0, release.1).file(
            "lib/modules/6.12.0/modules.dep",
            "kernel/fs/fuse/fuse.ko.xz:\nkernel/drivers/block/loop.ko:\n",
        );
        let remedies: Vec<_> = checks(&loadable.machine())
            .into_iter()
            .filter_map(|check| check.remedy)
            .collect();
        assert_eq!(remedies, ["modprobe fuse", "modprobe loop"]);
        let container = Tree::new().file("sys/module/fuse/refcnt", "1\n");
        assert_eq!(
            checks(&container.machine())[0].remedy.as_deref(),
            Some("give the container the device: --device /dev/fuse")
        );
    }

    #[test]
    fn what_is_not_used_is_never_wrong() {
        let checks = checks(&trees::well(Tree::new()).machine());
        assert!(checks.iter().all(|check| check.verdict == Verdict::Ok));
        assert_eq!(checks[0].seen, "/dev/fuse");
        assert_eq!(
            checks[2].seen,
            "not in this kernel; not used by this version"
        );
    }
}
