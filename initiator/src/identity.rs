//! Who this host is: host NQN and host identifier.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use capstan_nvme_proto::nqn::{HostId, Nqn};
use uuid::Uuid;

use crate::names::Name;

/// Where nvme-cli keeps the host NQN.
const HOSTNQN_PATH: &str = "/etc/nvme/hostnqn";
/// Where nvme-cli keeps the host identifier.
const HOSTID_PATH: &str = "/etc/nvme/hostid";
/// The machine's identity (systemd `machine-id(5)`).
const MACHINE_ID_PATHS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// What stands in for it in containers and machines without systemd: a UUID that lasts until the
/// next boot and is the same in all containers of a kernel, and what tells those apart.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
const HOSTNAME_PATH: &str = "/proc/sys/kernel/hostname";

/// Name and identifier of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Host NQN.
    pub hostnqn: Nqn,
    /// Host identifier.
    pub hostid: HostId,
}

/// This host's identity cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A name is no NQN.
    #[error("{from} is {value:?}, expected an NQN: {problem}")]
    HostNqn {
        /// Where the value came from.
        from: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An identifier is no UUID.
    #[error("{from} is {value:?}, expected a UUID other than zero (`uuidgen` makes one)")]
    HostId {
        /// Where the value came from.
        from: String,
        /// The value.
        value: String,
    },
    /// The host NQN has one UUID, and the host identifier is another one.
    #[error(
        "{} is {hostid}, and the UUID in {} is {uuid}; expected the same: give one of the two options",
        Name::Hostid,
        Name::Hostnqn
    )]
    Contradiction {
        /// The host identifier.
        hostid: Uuid,
        /// What the host NQN says.
        uuid: Uuid,
    },
    /// A file is there and cannot be read as text.
    #[error("{path}: {problem}; expected a line of text that this user may read")]
    File {
        /// The file.
        path: &'static str,
        /// The system's words.
        problem: String,
    },
    /// There is nothing to make an identity from.
    #[error(
        "this machine has neither /etc/machine-id nor {BOOT_ID_PATH} to make a host NQN from; give {} \
         and {}, or write /etc/nvme/hostnqn and /etc/nvme/hostid",
        Name::Hostnqn,
        Name::Hostid
    )]
    NoMachineId,
}

impl Identity {
    /// What is given, else what nvme-cli has written down, else a stable identity made from the
    /// machine's, else one that lasts until the next boot (the log says so). A host NQN of the UUID
    /// form brings its host identifier with it, so that the pair belongs together as targets
    /// expect.
    ///
    /// # Errors
    /// A value is not what it should be, or there is none at all.
    pub fn find(hostnqn: Option<&str>, hostid: Option<&str>) -> Result<Self, IdentityError> {
        Self::find_in(Path::new("/"), hostnqn, hostid)
    }

    fn find_in(
        root: &Path,
        hostnqn: Option<&str>,
        hostid: Option<&str>,
    ) -> Result<Self, IdentityError> {
        let hostid_is_given = hostid.is_some();
        let (name_from, name) = match hostnqn {
            Some(name) => (Name::Hostnqn.to_string(), Some(name.to_owned())),
            None => (HOSTNQN_PATH.to_owned(), first_line(root, HOSTNQN_PATH)?),
        };
        let (id_from, id) = match hostid {
            Some(id) => (Name::Hostid.to_string(), Some(id.to_owned())),
            // The file's identifier belongs to the file's name.
            None if hostnqn.is_none() => (HOSTID_PATH.to_owned(), first_line(root, HOSTID_PATH)?),
            None => (String::new(), None),
        };
        let name = name
            .map(|value| {
                Nqn::new(&value).map_err(|error| IdentityError::HostNqn {
                    from: name_from.clone(),
                    value,
                    problem: error.to_string(),
                })
            })
            .transpose()?;
        let id = id
            .map(|value| {
                let uuid = Uuid::parse_str(&value).ok().filter(|uuid| !uuid.is_nil());
                uuid.ok_or_else(|| IdentityError::HostId {
                    from: id_from.clone(),
                    value,
                })
            })
            .transpose()?;
        if let Some(text) = name
            .as_ref()
            .and_then(|name| not_of_the_form(&name_from, name))
        {
            tracing::warn!("{text}");
        }
        if let (Some(hostid), Some(uuid)) = (id, name.as_ref().and_then(Nqn::uuid))
            && hostid != uuid
        {
            if hostnqn.is_some() {
                return Err(IdentityError::Contradiction { hostid, uuid });
            }
            let text = format!(
                "{id_from} is {hostid}, and the UUID in {name_from} is {uuid}; expected the same: targets take \
                 this host for another one than with either alone; make them agree"
            );
            // Some distributions install two files that disagree: `capstan doctor` warns of them.
            match hostid_is_given {
                true => tracing::warn!("{text}"),
                false => tracing::info!("{text}"),
            }
        }
        let made = || machine_uuid(root).ok_or(IdentityError::NoMachineId);
        let (hostnqn, uuid) = match (name, id) {
            (Some(name), Some(id)) => (name, id),
            (Some(name), None) => {
                let id = name.uuid();
                let id = id.map_or_else(|| made().map(|m| derived(m, name.as_str())), Ok)?;
                (name, id)
            }
            (None, Some(id)) => (Nqn::from_uuid(id), id),
            (None, None) => {
                let id = made()?;
                (Nqn::from_uuid(id), id)
            }
        };
        Ok(Self {
            hostnqn,
            hostid: HostId::from_uuid(uuid),
        })
    }
}

/// What is said of a name that is taken though it is not of the form.
fn not_of_the_form(from: &str, name: &Nqn) -> Option<String> {
    let form = name.check_form().err()?;
    Some(format!(
        "{from} is {:?}: {form}; it is used as it is, and `nvme gen-hostnqn` makes one that is",
        name.as_str()
    ))
}

fn read(root: &Path, path: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(path.trim_start_matches('/'))).ok()?;
    first_line_of(&text)
}

/// The files of nvme-cli that are there and have nothing in their first line, each with the command
/// that fills it.
#[must_use]
pub fn empty_files() -> Vec<(&'static str, String)> {
    let paths = [HOSTNQN_PATH, HOSTID_PATH].into_iter();
    let empty = paths
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| first_line_of(&text).is_none()));
    empty.map(|path| (path, what_fills(path))).collect()
}

fn what_fills(path: &str) -> String {
    let tool = match path {
        HOSTNQN_PATH => "nvme gen-hostnqn",
        _ => "uuidgen",
    };
    format!("{tool} > {path}")
}

fn first_line_of(text: &str) -> Option<String> {
    let line = text.lines().next().unwrap_or_default().trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The first line of a file that a person or nvme-cli has written; `None` when there is no file, or
/// nothing in it, which is said.
fn first_line(root: &Path, path: &'static str) -> Result<Option<String>, IdentityError> {
    let text = match fs::read_to_string(root.join(path.trim_start_matches('/'))) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => {
            let problem = error.to_string();
            return Err(IdentityError::File { path, problem });
        }
    };
    let line = first_line_of(&text);
    if line.is_none() {
        tracing::warn!(
            "{path} is empty, and this host is known by what is made without it: `{}` fills it, or remove it",
            what_fills(path)
        );
    }
    Ok(line)
}

/// A UUID of this machine that does not disclose its machine-id, as `machine-id(5)` asks: a name
/// under it.
fn machine_uuid(root: &Path) -> Option<Uuid> {
    let uuid = |path| Uuid::parse_str(&read(root, path)?).ok();
    if let Some(machine) = MACHINE_ID_PATHS.into_iter().find_map(uuid) {
        return Some(derived(machine, "capstan host"));
    }
    let boot = uuid(BOOT_ID_PATH)?;
    let hostname = read(root, HOSTNAME_PATH).unwrap_or_default();
    tracing::warn!(
        "no /etc/machine-id here: the host NQN lasts until the next boot only; to keep one, write \
         {HOSTNQN_PATH} and {HOSTID_PATH}, or give {} and {}",
        Name::Hostnqn,
        Name::Hostid
    );
    Some(derived(boot, &format!("capstan host {hostname}")))
}

/// A UUID for `name`, stable and unlike any other name's.
fn derived(machine: Uuid, name: &str) -> Uuid {
    Uuid::new_v5(&machine, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::{HOSTNQN_PATH, Identity, IdentityError, Nqn, not_of_the_form};

    const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("capstan-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_of_nvme_cli_are_used() {
        let root = Root::new(
            "files",
            &[
                ("etc/nvme/hostnqn", "nqn.2026-11.io.capstan:h\n"),
                ("etc/nvme/hostid", &format!("{UUID}\n")),
            ],
        );
        let identity = Identity::find_in(&root.0, None, None).unwrap();
        assert_eq!(identity.hostnqn.as_str(), "nqn.2026-11.io.capstan:h");
        assert_eq!(identity.hostid.to_string(), UUID);
    }

    #[test]
    fn the_identity_made_is_stable_and_of_the_uuid_form() {
        let root = Root::new(
            "made",
            &[("etc/machine-id", "0123456789abcdef0123456789abcdef\n")],
        );
        let identity = Identity::find_in(&root.0, None, None).unwrap();
        assert_eq!(identity.hostnqn.uuid(), Some(identity.hostid.uuid()));
        assert_eq!(Identity::find_in(&root.0, None, None), Ok(identity.clone()));
        assert!(!identity.hostnqn.as_str().contains("01234567"));
        let named = Identity::find_in(&root.0, Some("nqn.2026-11.io.capstan:x"), None).unwrap();
        assert_ne!(named.hostid, identity.hostid);
    }

    #[test]
    fn without_a_machine_id_the_boot_and_the_host_name_make_the_identity() {
        let made = |boot: &str, hostname: &str, machine_id: &str| {
            let files = [
                ("proc/sys/kernel/random/boot_id", boot),
                ("proc/sys/kernel/hostname", hostname),
                // As systemd leaves it in images, to be filled in at the first boot.
                ("etc/machine-id", machine_id),
            ];
            let root = Root::new("boot", &files);
            Identity::find_in(&root.0, None, None).unwrap()
        };
        let one = made(UUID, "one\n", "");
        assert_eq!(one.hostnqn.uuid(), Some(one.hostid.uuid()));
        assert!(!one.hostnqn.as_str().contains(UUID));
        assert_eq!(one, made(UUID, "one\n", "uninitialized\n"));
        assert_ne!(one, made(UUID, "two\n", ""));
        assert_ne!(one, made(&UUID.replace("00", "77"), "one\n", ""));
        assert_ne!(
            one,
            made(UUID, "one\n", "0123456789abcdef0123456789abcdef\n")
        );
    }

    #[test]
    fn a_name_of_the_uuid_form_brings_its_identifier() {
        let root = Root::new("uuid", &[]);
        let name = format!("nqn.2014-08.org.nvmexpress:uuid:{UUID}");
        let identity = Identity::find_in(&root.0, Some(&name), None).unwrap();
        assert_eq!(identity.hostid.to_string(), UUID);
        let identity = Identity::find_in(&root.0, None, Some(UUID)).unwrap();
        assert_eq!(identity.hostnqn.as_str(), name);
    }

    #[test]
    fn nothing_to_go_by_and_nonsense_are_errors() {
        let root = Root::new("none", &[]);
        assert_eq!(
            Identity::find_in(&root.0, None, None),
            Err(IdentityError::NoMachineId)
        );
        let error = Identity::find_in(&root.0, None, Some("7")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("Options::hostid is \"7\", expected a UUID other than zero"),
            "{text}"
        );
        let zero = Identity::find_in(&root.0, None, Some(&UUID.replace(|c| c != '-', "0")));
        assert!(
            matches!(zero, Err(IdentityError::HostId { .. })),
            "{zero:?}"
        );
        assert!(Identity::find_in(&root.0, Some(""), Some(UUID)).is_err());
    }

    #[test]
    fn files_that_are_no_text_are_errors_and_those_that_are_not_there_are_none() {
        for path in ["etc/nvme/hostnqn", "etc/nvme/hostid"] {
            let root = Root::new("garbage", &[("etc/machine-id", UUID), (path, "")]);
            assert!(
                Identity::find_in(&root.0, None, None).is_ok(),
                "{path} is empty"
            );
            fs::write(root.0.join(path), [0xFF, 0xFE, b'x']).unwrap();
            let error = Identity::find_in(&root.0, None, None)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(&format!("/{path}: ")), "{error}");
            fs::remove_file(root.0.join(path)).unwrap();
            fs::create_dir(root.0.join(path)).unwrap();
            assert!(
                Identity::find_in(&root.0, None, None).is_err(),
                "{path} is a folder"
            );
        }
        let root = Root::new("control", &[("etc/nvme/hostnqn", "nqn.2026-11.io\u{7}x\n")]);
        let error = Identity::find_in(&root.0, None, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("control character"), "{error}");
    }

    #[test]
    fn text_in_the_files_that_is_of_no_form_is_used_with_a_warning_and_zero_is_refused() {
        let garbage = [("etc/machine-id", UUID), ("etc/nvme/hostnqn", "garbage\n")];
        let root = Root::new("no-form", &garbage);
        let identity = Identity::find_in(&root.0, None, None).unwrap();
        assert_eq!(identity.hostnqn.as_str(), "garbage");
        let told = not_of_the_form(HOSTNQN_PATH, &identity.hostnqn).unwrap();
        assert!(told.starts_with("/etc/nvme/hostnqn is \"garbage\": the NQN is not of the form"));
        let good = Nqn::new("nqn.2026-11.io.capstan:h").unwrap();
        assert_eq!(not_of_the_form("--hostnqn", &good), None);
        let zero = UUID.replace(|c| c != '-', "0");
        let root = Root::new("zero", &[("etc/nvme/hostid", &zero)]);
        let error = Identity::find_in(&root.0, None, None).unwrap_err();
        let expected = format!(
            "/etc/nvme/hostid is {zero:?}, expected a UUID other than zero (`uuidgen` makes one)"
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_name_and_an_identifier_of_different_uuids_are_a_contradiction() {
        let root = Root::new("contradiction", &[]);
        let name = format!("nqn.2014-08.org.nvmexpress:uuid:{UUID}");
        let other = UUID.replace("00", "77");
        let error = Identity::find_in(&root.0, Some(&name), Some(&other)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(UUID) && text.contains(&other), "{text}");
        assert!(Identity::find_in(&root.0, Some(&name), Some(&UUID.to_uppercase())).is_ok());
        assert!(Identity::find_in(&root.0, Some("nqn.2026-11.io.capstan:x"), Some(&other)).is_ok());
        // Files that disagree, as nvme-cli leaves them on some machines, are told and used.
        let files = [("etc/nvme/hostnqn", &*name), ("etc/nvme/hostid", &*other)];
        let root = Root::new("files-disagree", &files);
        let identity = Identity::find_in(&root.0, None, None).unwrap();
        assert_eq!(identity.hostid.to_string(), other);
    }
}
