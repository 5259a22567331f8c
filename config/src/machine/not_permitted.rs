//! `EPERM` at the open of a file or device: what keeps this process from it.
//!
//! What a mode forbids is `EACCES` (open(2)). This one comes from an attribute of the file, a
//! device rule of the control group, a security module or a filter of system calls, of which only
//! the first can be looked at.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use capstan_storage::{Attributes, attributes};

use crate::shown::word_of;

/// What was found out by a look at the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// It can be read, and has these attributes (chattr(1)).
    Attributes(Attributes),
    /// It can be read, and does not tell them: its file system has none, or it is a device.
    Readable,
    /// It may not be read either, which no attribute forbids.
    Refused,
    /// This user may not look.
    Hidden,
}

/// Why `path` may not be opened, and what to do; `metadata` where there is some.
pub(super) fn in_words(path: &Path, metadata: Option<&Metadata>) -> String {
    let is_device = metadata.is_some_and(|metadata| metadata.file_type().is_block_device());
    if is_device {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        return device(path, look(path), unit_of(&groups));
    }
    // What opening would do to other things is not known here.
    let looked = match metadata {
        Some(metadata) if metadata.is_file() => look(path),
        _ => Looked::Hidden,
    };
    file(path, looked)
}

fn look(path: &Path) -> Looked {
    match File::open(path) {
        Ok(file) => attributes(&file).map_or(Looked::Readable, Looked::Attributes),
        Err(error) if is_eperm(&error) => Looked::Refused,
        Err(_) => Looked::Hidden,
    }
}

pub(super) fn is_eperm(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

fn file(path: &Path, looked: Looked) -> String {
    let path = word_of(path);
    let found = match looked {
        Looked::Attributes(found) => found,
        _ => Attributes::default(),
    };
    let set = match (found.immutable, found.append_only) {
        (true, true) => Some(("immutable and append-only", "ia")),
        (true, false) => Some(("immutable", "i")),
        (false, true) => Some(("append-only", "a")),
        (false, false) => None,
    };
    if let Some((what, letters)) = set {
        return format!(
            "it is {what} (`lsattr {path}` shows {letters}): `chattr -{letters} {path}`, or export it with `read_only = true`"
        );
    }
    let others = "a security module (SELinux, AppArmor) or a filter of system calls (SystemCallFilter= of the unit) \
                  forbids it; `dmesg` may say which";
    let left = read_only(looked);
    match looked {
        Looked::Attributes(_) => {
            format!("it is neither immutable nor append-only: {others}{left}")
        }
        Looked::Readable => format!(
            "its file system does not tell whether it is immutable or append-only; if it is not, {others}{left}"
        ),
        Looked::Refused => {
            format!("it may not be read either, which no attribute forbids: {others}{left}")
        }
        Looked::Hidden => format!(
            "this user cannot look whether it is immutable or append-only (as root: `lsattr {path}`); if it is not, {others}"
        ),
    }
}

fn device(path: &Path, looked: Looked, unit: Option<&str>) -> String {
    let unit = unit.unwrap_or("the unit");
    format!(
        "a device rule of the control group (DevicePolicy= and DeviceAllow= of {unit}, or the devices of a container) or a \
         security module forbids it: DeviceAllow={} rw in {unit} lets it, and `dmesg` may tell of a security module{}",
        path.display(),
        read_only(looked)
    )
}

/// A way that is left where it can be read.
fn read_only(looked: Looked) -> &'static str {
    match looked {
        Looked::Attributes(_) | Looked::Readable => "; or export it with `read_only = true`",
        Looked::Refused | Looked::Hidden => "",
    }
}

/// The service of systemd that this process belongs to, from the text of `/proc/self/cgroup`
/// (cgroups(7)).
fn unit_of(groups: &str) -> Option<&str> {
    let mut names = groups.lines().flat_map(|line| line.rsplit('/'));
    names.find(|name| name.ends_with(".service"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use capstan_storage::Attributes;

    use super::{Looked, device, file, in_words, unit_of};

    #[test]
    fn an_attribute_is_named_where_it_is_set_and_nowhere_else() {
        let path = Path::new("/srv/a");
        let told = |immutable, append_only| {
            let found = Attributes {
                immutable,
                append_only,
            };
            file(path, Looked::Attributes(found))
        };
        assert_eq!(
            told(true, false),
            "it is immutable (`lsattr /srv/a` shows i): `chattr -i /srv/a`, or export it with `read_only = true`"
        );
        for (words, command) in [
            (told(false, true), "`chattr -a /srv/a`"),
            (told(true, true), "`chattr -ia /srv/a`"),
        ] {
            assert!(words.contains(command), "{words}");
        }
        for looked in [
            Looked::Attributes(Attributes::default()),
            Looked::Readable,
            Looked::Refused,
            Looked::Hidden,
        ] {
            let words = file(path, looked);
            assert!(!words.contains("chattr"), "{words}");
            assert!(words.contains("a security module"), "{words}");
        }
        let readable = |looked| file(path, looked).contains("read_only");
        assert!(readable(Looked::Readable) && !readable(Looked::Refused));
        assert!(file(path, Looked::Hidden).contains("as root: `lsattr /srv/a`"));
    }

    #[test]
    fn an_ordinary_file_is_looked_at() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let words = in_words(file.path(), Some(&metadata));
        assert!(
            !words.contains("chattr") && words.contains("a security module"),
            "{words}"
        );
    }

    #[test]
    fn a_device_names_the_rule_of_its_unit() {
        let groups = "1:name=systemd:/\n0::/system.slice/capstan-target.service\n";
        assert_eq!(unit_of(groups), Some("capstan-target.service"));
        assert_eq!(unit_of("0::/user.slice/session-1.scope\n"), None);
        let path = Path::new("/dev/vdb");
        let words = device(path, Looked::Refused, unit_of(groups));
        for word in [
            "DevicePolicy= and DeviceAllow= of capstan-target.service",
            "DeviceAllow=/dev/vdb rw in capstan-target.service",
        ] {
            assert!(words.contains(word), "{words}");
        }
        assert!(
            !words.contains("immutable") && !words.contains("chattr"),
            "{words}"
        );
        let words = device(path, Looked::Readable, None);
        assert!(
            words.contains("rw in the unit") && words.contains("read_only"),
            "{words}"
        );
    }
}
