//! The LBA size of an exported file: chosen once, and never again by its size.
//!
//! A file has no LBA size of its own, but what hosts have put on it depends on one: a GPT lies at
//! LBA 1. So what a file was exported with is remembered in the state folder, by the namespace's
//! UUID and the file's path. A block device says its LBA size itself; what is in memory is new each
//! time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use capstan_config::{Backing, Config, LbaSize, Namespace, Nqn, namespace_uuid};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::limits::{LBA_SIZES_KEPT, LBA_SIZES_TEXT_BYTES_MAX};
use crate::state;

const FILE: &str = "lba-sizes.toml";
const HEAD: &str = "\
# The LBA size that each exported file is used with, by namespace and path; written by capstan-target.\n\
# What hosts have on a file depends on it: `lba` in the configuration says another one.\n\n";
/// A GPT's header is at LBA 1 and begins so (UEFI 2.10, section 5.3.2).
const GPT_SIGNATURE: [u8; 8] = *b"EFI PART";
/// Where partition tables and file systems have something, but for btrfs (64 KiB).
const FIRST_BYTES: usize = (64 << 10) + 4096;

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct LbaSizes {
    /// `None`: nothing is.
    folder: Option<PathBuf>,
    table: Table,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Table {
    /// Oldest first.
    #[serde(default)]
    namespace: Vec<Known>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    uuid: Uuid,
    path: PathBuf,
    lba: u32,
}

impl LbaSizes {
    /// Of this process: what earlier ones have remembered in the state folder, where there is one.
    pub(crate) fn here() -> Self {
        state::folder().map_or_else(Self::default, Self::in_folder)
    }

    fn in_folder(folder: PathBuf) -> Self {
        let table = read(&folder).unwrap_or_else(|error| {
            let file = folder.join(FILE);
            tracing::warn!(
                "the LBA sizes that files were used with cannot be read from {}: {error}; files whose `lba` the \
                 configuration does not say have LBAs of 4096 bytes: mend or remove it, and restart",
                file.display()
            );
            Table::default()
        });
        Self {
            folder: Some(folder),
            table,
        }
    }

    /// The LBA size to open a namespace with; `None` leaves it to what the namespace is on.
    pub(crate) fn of(&self, subnqn: &Nqn, namespace: &Namespace) -> Option<LbaSize> {
        if namespace.lba.is_some() {
            return namespace.lba;
        }
        let path = file_of(namespace)?;
        let (known, found) = (self.known(name(subnqn, namespace), path), evidence(path)?);
        Some(match known {
            Some(known) => LbaSize::from_bytes(known.lba.into())?,
            None => first(path, &found, self.folder.is_some()),
        })
    }

    /// By path, for the size is the file's; by UUID where the namespace's file has moved.
    fn known(&self, uuid: Uuid, path: &Path) -> Option<&Known> {
        let mut latest_first = self.table.namespace.iter().rev();
        let by_path = latest_first.clone().find(|known| known.path == path);
        by_path.or_else(|| latest_first.find(|known| known.uuid == uuid && !known.path.exists()))
    }

    /// A namespace was opened with LBAs of this size.
    pub(crate) fn remember(&mut self, subnqn: &Nqn, namespace: &Namespace, lba_bytes: u32) {
        let (Some(folder), Some(path)) = (&self.folder, file_of(namespace)) else {
            return;
        };
        let new = Known {
            uuid: name(subnqn, namespace),
            path: path.to_owned(),
            lba: lba_bytes,
        };
        let before = self.known(new.uuid, path);
        if before == Some(&new) {
            return;
        }
        let name = path.display();
        match before {
            Some(before) if before.lba != lba_bytes => tracing::warn!(
                "{name} was used with LBAs of {} bytes and has {lba_bytes} now, as the configuration says: a partition \
                 table that hosts have made is not found any more",
                before.lba
            ),
            _ => {}
        }
        // Another target may have written meanwhile. What cannot be locked is not written either, or
        // its file system has no locks.
        let _lock = state::lock(folder);
        let mut table = read(folder).unwrap_or_else(|_| self.table.clone());
        table.namespace.retain(|known| known.path != new.path);
        table.namespace.push(new);
        let too_many = table.namespace.len().saturating_sub(LBA_SIZES_KEPT);
        table.namespace.drain(..too_many);
        if let Err(error) = write(folder, &table) {
            tracing::warn!(
                "that {name} has LBAs of {lba_bytes} bytes cannot be remembered in {}: {error}; write `lba = {lba_bytes}` \
                 in its [[subsystem.namespace]] (with --export: --lba {lba_bytes}), or make the folder writable",
                folder.display()
            );
        }
        self.table = table;
    }

    /// What is to be said of files whose LBA size the configuration leaves open.
    fn warnings(&self, config: &Config) -> Vec<String> {
        let namespaces = config.subsystems.iter().flat_map(|subsystem| {
            let namespaces = subsystem.namespaces.iter();
            namespaces.map(|namespace| (&subsystem.nqn, namespace))
        });
        let warnings = namespaces.filter_map(|(subnqn, namespace)| {
            let path = file_of(namespace).filter(|_| namespace.lba.is_none())?;
            let lba_bytes = self.of(subnqn, namespace)?.bytes();
            out_of_reach(&path.display(), fs::metadata(path).ok()?.len(), lba_bytes)
        });
        warnings.collect()
    }
}

/// What `check` says of files whose LBA size the configuration leaves open.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    LbaSizes::here().warnings(config)
}

/// What is behind the last whole LBA, in words, if there is anything.
pub(crate) fn out_of_reach(
    name: &dyn std::fmt::Display,
    bytes: u64,
    lba_bytes: u32,
) -> Option<String> {
    let tail_bytes = bytes % u64::from(lba_bytes);
    (tail_bytes != 0).then(|| {
        format!(
            "{name} has {bytes} bytes, no whole number of LBAs of {lba_bytes}: its last {tail_bytes} bytes are out of reach \
             of hosts; `truncate --size=%{lba_bytes} FILE` rounds it up"
        )
    })
}

/// What a namespace is called whatever it is on.
fn name(subnqn: &Nqn, namespace: &Namespace) -> Uuid {
    let derived = || namespace_uuid(subnqn, namespace.nsid);
    namespace.uuid.unwrap_or_else(derived)
}

/// The path of a namespace that is on a file.
fn file_of(namespace: &Namespace) -> Option<&Path> {
    let Backing::Path(path) = &namespace.backing else {
        return None;
    };
    fs::metadata(path).ok()?.is_file().then_some(path)
}

/// What a file says of the LBA size that it was used with.
#[derive(Debug, Default, PartialEq, Eq)]
struct Evidence {
    bytes: u64,
    gpt_of_512: bool,
    gpt_of_4096: bool,
    is_blank: bool,
}

/// `None` where it cannot be looked at: opening it will tell.
fn evidence(path: &Path) -> Option<Evidence> {
    let file = File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    let mut start = vec![0; FIRST_BYTES.min(usize::try_from(bytes).unwrap_or(FIRST_BYTES))];
    file.read_exact_at(&mut start, 0).ok()?;
    let gpt_at = |at: usize| start.get(at..at + 8) == Some(&GPT_SIGNATURE);
    Some(Evidence {
        bytes,
        gpt_of_512: gpt_at(512),
        gpt_of_4096: gpt_at(4096),
        is_blank: start.iter().all(|&byte| byte == 0),
    })
}

/// The LBA size of a file of which nothing is known. `remembers`: whether it would be, if this
/// version had served it. Until 0.1 files whose size is no multiple of 4096 had 512.
fn first(path: &Path, found: &Evidence, remembers: bool) -> LbaSize {
    let name = path.display();
    let had_512 = !found.bytes.is_multiple_of(4096) && !found.gpt_of_4096;
    if had_512 && (found.gpt_of_512 || (remembers && !found.is_blank)) {
        let why = if found.gpt_of_512 {
            "it has a partition table for such"
        } else {
            "it has data on it, and earlier versions used such where the size is no multiple of 4096"
        };
        tracing::warn!(
            "{name} has LBAs of 512 bytes, because {why}; `lba` in the configuration says another size"
        );
        return LbaSize::B512;
    }
    if found.gpt_of_512 && !found.gpt_of_4096 {
        tracing::warn!(
            "{name} has a partition table for LBAs of 512 bytes, which hosts do not find with LBAs of 4096, the default: \
             write `lba = 512` (with --export: --lba 512) if it is to be used"
        );
    } else if had_512 && !found.is_blank {
        tracing::warn!(
            "{name} has LBAs of 4096 bytes; earlier versions used 512 where the size is no multiple of 4096: write --lba 512 \
             if hosts have used it so"
        );
    }
    LbaSize::DEFAULT
}

/// An absent file is an empty table.
fn read(folder: &Path) -> io::Result<Table> {
    let text = state::read(folder, FILE, LBA_SIZES_TEXT_BYTES_MAX)?.unwrap_or_default();
    toml::from_str(&text).map_err(io::Error::other)
}

fn write(folder: &Path, table: &Table) -> io::Result<()> {
    let text = toml::to_string(table).map_err(io::Error::other)?;
    state::write(folder, FILE, &format!("{HEAD}{text}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::path::{Path, PathBuf};

    use capstan_config::{Config, LbaSize, Namespace, Nqn};

    use super::{LbaSizes, out_of_reach};

    fn image(folder: &Path, name: &str, bytes: u64, write: &[(u64, &[u8])]) -> PathBuf {
        let path = folder.join(name);
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        for (at, data) in write {
            file.write_all_at(data, *at).unwrap();
        }
        path
    }

    fn config(path: &Path, nqn: &str, keys: &str) -> Config {
        let toml = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:{nqn}\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = {:?}\n{keys}",
            path.display().to_string()
        );
        Config::from_toml(&toml).unwrap()
    }

    fn namespace(path: &Path, nqn: &str, keys: &str) -> (Nqn, Namespace) {
        let subsystem = config(path, nqn, keys).subsystems.remove(0);
        (subsystem.nqn, subsystem.namespaces[0].clone())
    }

    const MIB: u64 = 1 << 20;
    /// Name, bytes and content of a file, and its LBA size with and without a state folder.
    type Case<'a> = (&'a str, u64, &'a [(u64, &'a [u8])], u32, u32);

    #[test]
    fn what_a_file_was_used_with_outlives_growth_moves_and_lines_that_go() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        std::fs::create_dir(&state).unwrap();
        // Each start reads it anew.
        let sizes = || LbaSizes::in_folder(state.clone());
        let path = image(root.path(), "a", MIB, &[(0, b"data")]);
        let a = namespace(&path, "a", "");
        assert_eq!(sizes().of(&a.0, &a.1), Some(LbaSize::B4096));
        sizes().remember(&a.0, &a.1, 4096);
        image(root.path(), "a", MIB + 1536, &[(0, b"data")]);
        assert_eq!(sizes().of(&a.0, &a.1), Some(LbaSize::B4096), "grown");
        // Chosen by the configuration, which does not say it any more.
        let explicit = namespace(&path, "a", "lba = 512");
        assert_eq!(sizes().of(&explicit.0, &explicit.1), Some(LbaSize::B512));
        sizes().remember(&explicit.0, &explicit.1, 512);
        assert_eq!(sizes().of(&a.0, &a.1), Some(LbaSize::B512));
        image(root.path(), "a", MIB, &[(0, b"data")]);
        assert_eq!(sizes().of(&a.0, &a.1), Some(LbaSize::B512), "shrunk");
        // Under another name, and in another subsystem.
        let moved = image(root.path(), "b", MIB, &[(0, b"data")]);
        let of = |path: &Path, nqn: &str| {
            let (nqn, namespace) = namespace(path, nqn, "");
            sizes().of(&nqn, &namespace)
        };
        assert_eq!(of(&path, "z"), Some(LbaSize::B512));
        assert_eq!(of(&moved, "a"), Some(LbaSize::B4096), "both are there");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(of(&moved, "a"), Some(LbaSize::B512));
        assert_eq!(of(&moved, "z"), Some(LbaSize::B4096));
    }

    #[test]
    fn a_file_of_which_nothing_is_known_has_4096_unless_it_was_used_otherwise() {
        let root = tempfile::tempdir().unwrap();
        let remembers = LbaSizes::in_folder(root.path().to_owned());
        let forgets = LbaSizes::default();
        let gpt: &[u8] = b"EFI PART";
        let cases: [Case<'_>; 7] = [
            ("whole", MIB, &[(0, b"x")], 4096, 4096),
            ("blank", MIB + 1536, &[], 4096, 4096),
            // Upgraded: there is no telling from a file that has grown before the first start.
            ("odd", MIB + 512, &[(1080, b"x")], 512, 4096),
            ("odd with a GPT", MIB + 512, &[(512, gpt)], 512, 512),
            (
                "odd with a larger GPT",
                MIB + 512,
                &[(4096, gpt)],
                4096,
                4096,
            ),
            // It had 4096 in earlier versions, too.
            ("whole with a GPT", MIB, &[(512, gpt)], 4096, 4096),
            ("tiny", 512, &[(0, b"x")], 512, 4096),
        ];
        for (name, bytes, write, with_state, without) in cases {
            let path = image(root.path(), name, bytes, write);
            let (nqn, namespace) = namespace(&path, "a", "");
            let of = |sizes: &LbaSizes| sizes.of(&nqn, &namespace).unwrap().bytes();
            assert_eq!(
                (of(&remembers), of(&forgets)),
                (with_state, without),
                "{name}"
            );
        }
    }

    #[test]
    fn devices_and_memory_are_asked_themselves() {
        let root = tempfile::tempdir().unwrap();
        let mut sizes = LbaSizes::in_folder(root.path().to_owned());
        for path in ["/dev/null", "/no/such/file"] {
            let (nqn, namespace) = namespace(Path::new(path), "a", "");
            assert_eq!(sizes.of(&nqn, &namespace), None);
            sizes.remember(&nqn, &namespace, 4096);
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_table_that_cannot_be_read_or_is_a_link_harms_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = image(root.path(), "a", MIB, &[]);
        let other = root.path().join("other");
        std::fs::write(&other, "not = [a table").unwrap();
        let state = root.path().join("state");
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::symlink(&other, state.join(super::FILE)).unwrap();
        let mut sizes = LbaSizes::in_folder(state.clone());
        let a = namespace(&path, "a", "");
        assert_eq!(sizes.of(&a.0, &a.1), Some(LbaSize::B4096));
        sizes.remember(&a.0, &a.1, 4096);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "not = [a table");
        assert_eq!(LbaSizes::in_folder(state).table.namespace.len(), 1);
    }

    #[test]
    fn what_is_out_of_reach_is_said_in_bytes() {
        assert_eq!(out_of_reach(&"/a", MIB, 4096), None);
        let words = out_of_reach(&"/a", MIB + 1536, 4096).unwrap();
        assert!(
            words.contains("its last 1536 bytes are out of reach"),
            "{words}"
        );
        let root = tempfile::tempdir().unwrap();
        let path = image(root.path(), "a", MIB + 1536, &[]);
        let sizes = LbaSizes::default();
        assert_eq!(sizes.warnings(&config(&path, "a", "")).len(), 1);
        // The check of the configuration says it already.
        assert!(sizes.warnings(&config(&path, "a", "lba = 512")).is_empty());
    }
}
