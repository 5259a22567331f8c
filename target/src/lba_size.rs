//! The LBA size of an exported file: chosen once, and never again by its size.
//!
//! A file has no LBA size of its own, but what hosts have put on it depends on one: a GPT lies at
//! LBA 1. So what a file was exported with is remembered in the state folder, by the namespace's
//! UUID and the file's path. A block device says its LBA size itself; what is in memory is new each
//! time.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::{io, mem};

use anyhow::anyhow;
use capstan_config::{Backing, Config, LbaSize, Namespace, Nqn, namespace_uuid};
use capstan_nvme_proto::text::Count;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::limits::{LBA_SIZES_KEPT, LBA_SIZES_TEXT_BYTES_MAX};
use crate::state;

/// In the state folder.
pub(crate) const FILE: &str = "lba-sizes.toml";
const HEAD: &str = "\
# The LBA size that each exported file is used with, by namespace and path; written by capstan-target.\n\
# What hosts have on a file depends on it: `lba` in the configuration says another one.\n\n";
/// A GPT's header is at LBA 1 and begins so (UEFI 2.10, section 5.3.2).
const GPT_SIGNATURE: [u8; 8] = *b"EFI PART";
/// Where partition tables and file systems have something, but for btrfs (64 KiB).
const FIRST_BYTES: usize = (64 << 10) + 4096;

/// What is remembered.
#[derive(Debug)]
pub(crate) struct LbaSizes {
    /// `None`: this process remembers, and no other one will.
    folder: Option<PathBuf>,
    /// `Err`: something is remembered, and cannot be read.
    table: io::Result<Table>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Oldest first.
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
        let table = read(&folder);
        Self {
            folder: Some(folder),
            table,
        }
    }

    /// Other targets may have remembered something meanwhile.
    pub(crate) fn look_again(&mut self) {
        let Some(folder) = &self.folder else { return };
        let before = mem::replace(&mut self.table, read(folder));
        if let (Ok(table), Ok(before)) = (&mut self.table, before) {
            // What could not be written, or was removed.
            let there: HashSet<_> = table.namespace.iter().map(|k| k.path.clone()).collect();
            let mut missing = before.namespace;
            missing.retain(|known| !there.contains(&known.path));
            if missing.is_empty() {
                return;
            }
            let file = folder.join(FILE);
            match keep(folder, &missing) {
                Ok(()) => tracing::warn!(
                    "{} did not say any more which LBA sizes this process had read or written there: that is written again",
                    file.display()
                ),
                Err(error) => tracing::warn!(
                    "{} does not say which LBA size each file has, and cannot be written: {error}",
                    file.display()
                ),
            }
            table.namespace.append(&mut missing);
        }
    }

    /// The LBA size to open a namespace with; `None` leaves it to what the namespace is on.
    ///
    /// # Errors
    /// What the file was used with cannot be read: hosts might not find what they have on it.
    pub(crate) fn of(
        &self,
        subnqn: &Nqn,
        namespace: &Namespace,
    ) -> anyhow::Result<Option<LbaSize>> {
        if namespace.lba.is_some() {
            return Ok(namespace.lba);
        }
        let Some(path) = file_of(namespace) else {
            return Ok(None);
        };
        let table = self
            .table
            .as_ref()
            .map_err(|error| self.unreadable(path, error))?;
        // Where it cannot be looked at, opening it will tell.
        Ok(
            evidence(path).and_then(|found| match table.known(name(subnqn, namespace), path) {
                Some(known) => known.size(),
                None => Some(first(path, &found, self.folder.is_some())),
            }),
        )
    }

    fn unreadable(&self, path: &Path, error: &io::Error) -> anyhow::Error {
        let folder = self
            .folder
            .as_deref()
            .unwrap_or_else(|| Path::new(state::FOLDER));
        anyhow!(
            "{} says which LBA size each file was used with, and cannot be read: {error}; restore it, let the user that \
             the target runs as read it, or write what {} was used with, `lba = 512` or `lba = 4096` (with --export: \
             --lba)",
            folder.join(FILE).display(),
            path.display()
        )
    }

    /// A namespace was opened with LBAs of this size.
    pub(crate) fn remember(&mut self, subnqn: &Nqn, namespace: &Namespace, lba_bytes: u32) {
        let Some(path) = file_of(namespace) else {
            return;
        };
        let new = Known {
            uuid: name(subnqn, namespace),
            path: path.to_owned(),
            lba: lba_bytes,
        };
        let table = self.table.as_ref().ok();
        let before = table.and_then(|table| table.known(new.uuid, path));
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
        if let Some(folder) = &self.folder
            && let Err(error) = keep(folder, std::slice::from_ref(&new))
        {
            tracing::warn!(
                "that {name} has LBAs of {lba_bytes} bytes cannot be remembered in {}: {error}; write `lba = {lba_bytes}` \
                 in its [[subsystem.namespace]] (with --export: --lba {lba_bytes}), and mend that",
                folder.join(FILE).display()
            );
        }
        if let Ok(table) = &mut self.table {
            table.add(new);
        }
    }

    /// What is to be said of files whose LBA size the configuration leaves open.
    fn check(&self, config: &Config) -> anyhow::Result<Vec<String>> {
        let mut warnings = Vec::new();
        let namespaces = config.subsystems.iter().flat_map(|subsystem| {
            let namespaces = subsystem.namespaces.iter();
            namespaces.map(|namespace| (&subsystem.nqn, namespace))
        });
        for (subnqn, namespace) in namespaces.filter(|(_, namespace)| namespace.lba.is_none()) {
            let Some(path) = file_of(namespace) else {
                continue;
            };
            match self.of(subnqn, namespace) {
                Ok(None) => {}
                Ok(Some(size)) => {
                    let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
                    warnings.extend(out_of_reach(&path.display(), bytes, size.bytes()));
                }
                // The user that the target runs as may read it.
                Err(error) if self.is_of_another_user() => warnings.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(warnings)
    }

    fn is_of_another_user(&self) -> bool {
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        self.table.as_ref().is_err_and(denied)
    }
}

impl Default for LbaSizes {
    fn default() -> Self {
        Self {
            folder: None,
            table: Ok(Table::default()),
        }
    }
}

impl Table {
    /// By path, for the size is the file's; by UUID where the namespace's file has moved.
    fn known(&self, uuid: Uuid, path: &Path) -> Option<&Known> {
        let mut latest_first = self.namespace.iter().rev();
        let by_path = latest_first.clone().find(|known| known.path == path);
        by_path.or_else(|| latest_first.find(|known| known.uuid == uuid && !known.path.exists()))
    }

    fn add(&mut self, new: Known) {
        self.namespace.retain(|known| known.path != new.path);
        self.namespace.push(new);
        let too_many = self.namespace.len().saturating_sub(LBA_SIZES_KEPT);
        self.namespace.drain(..too_many);
    }
}

impl Known {
    fn size(&self) -> Option<LbaSize> {
        LbaSize::from_bytes(self.lba.into())
    }
}

/// What `check` says of files whose LBA size the configuration leaves open.
///
/// # Errors
/// What one was used with cannot be read: a target would not start.
pub fn check(config: &Config) -> anyhow::Result<Vec<String>> {
    LbaSizes::here().check(config)
}

/// Whether what is remembered can be read, whatever is configured.
///
/// # Errors
/// It cannot.
pub(crate) fn look() -> anyhow::Result<()> {
    let sizes = LbaSizes::here();
    let error = sizes.table.as_ref().err();
    error.map_or(Ok(()), |error| {
        Err(sizes.unreadable(Path::new("FILE"), error))
    })
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
            "{name} has {}, no whole number of LBAs of {lba_bytes}, which leaves {} at its end out of reach of hosts; \
             `truncate --size=%{lba_bytes} FILE` rounds it up",
            Count(bytes, "byte"),
            Count(tail_bytes, "byte")
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

/// Beside what is there, which another target may have written meanwhile. What cannot be read is not
/// written over: it may be restored yet.
fn keep(folder: &Path, new: &[Known]) -> io::Result<()> {
    // What cannot be locked is not written either, or its file system has no locks.
    let _lock = state::lock(folder);
    let mut table = read(folder)?;
    for known in new {
        table.add(known.clone());
    }
    write(folder, &table)
}

/// An absent file is an empty table.
fn read(folder: &Path) -> io::Result<Table> {
    let Some(text) = state::read(folder, FILE, LBA_SIZES_TEXT_BYTES_MAX)? else {
        return Ok(Table::default());
    };
    let table: Table = toml::from_str(&text).map_err(|error| state::not_toml(&text, &error))?;
    match table.namespace.iter().find(|known| known.size().is_none()) {
        Some(Known { path, lba, .. }) => Err(io::Error::other(format!(
            "{}: lba is {lba}, expected 512 or 4096",
            path.display()
        ))),
        None => Ok(table),
    }
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

    /// The size of what `namespace` has made.
    fn size(sizes: &LbaSizes, (nqn, namespace): &(Nqn, Namespace)) -> Option<LbaSize> {
        sizes.of(nqn, namespace).unwrap()
    }

    fn remember(sizes: &mut LbaSizes, (nqn, namespace): &(Nqn, Namespace), lba_bytes: u32) {
        sizes.remember(nqn, namespace, lba_bytes);
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
        assert_eq!(size(&sizes(), &a), Some(LbaSize::B4096));
        remember(&mut sizes(), &a, 4096);
        image(root.path(), "a", MIB + 1536, &[(0, b"data")]);
        assert_eq!(size(&sizes(), &a), Some(LbaSize::B4096), "grown");
        // Chosen by the configuration, which does not say it any more.
        let explicit = namespace(&path, "a", "lba = 512");
        assert_eq!(size(&sizes(), &explicit), Some(LbaSize::B512));
        remember(&mut sizes(), &explicit, 512);
        assert_eq!(size(&sizes(), &a), Some(LbaSize::B512));
        image(root.path(), "a", MIB, &[(0, b"data")]);
        assert_eq!(size(&sizes(), &a), Some(LbaSize::B512), "shrunk");
        // Under another name, and in another subsystem.
        let moved = image(root.path(), "b", MIB, &[(0, b"data")]);
        let of = |path: &Path, nqn: &str| size(&sizes(), &namespace(path, nqn, ""));
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
            let of = |sizes: &LbaSizes| size(sizes, &namespace(&path, "a", "")).unwrap().bytes();
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
            let namespace = namespace(Path::new(path), "a", "");
            assert_eq!(size(&sizes, &namespace), None);
            remember(&mut sizes, &namespace, 4096);
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    /// Puts something in the place of the table.
    type Spoil = fn(&Path);

    #[test]
    fn where_the_table_cannot_be_read_no_size_is_guessed_and_nothing_is_written_over_it() {
        let spoilt: [(&str, Spoil); 6] = [
            ("garbage", |file| std::fs::write(file, "garbage").unwrap()),
            ("another key", |file| std::fs::write(file, "a = 1").unwrap()),
            ("empty", |file| std::fs::write(file, "").unwrap()),
            ("a size that is none", |file| {
                let text = std::fs::read_to_string(file).unwrap();
                std::fs::write(file, text.replace("lba = 512", "lba = 513")).unwrap();
            }),
            ("a folder", |file| {
                std::fs::remove_file(file).unwrap();
                std::fs::create_dir(file).unwrap();
            }),
            ("a link", |file| {
                let other = file.with_extension("other");
                std::fs::rename(file, &other).unwrap();
                std::os::unix::fs::symlink(other, file).unwrap();
            }),
        ];
        for (what, spoil) in spoilt {
            let root = tempfile::tempdir().unwrap();
            let path = image(root.path(), "a", MIB, &[(0, b"data")]);
            let sizes = || LbaSizes::in_folder(root.path().to_owned());
            let explicit = namespace(&path, "a", "lba = 512");
            remember(&mut sizes(), &explicit, 512);
            let file = root.path().join(super::FILE);
            let mut running = sizes();
            spoil(&file);
            let spoilt = || {
                (
                    std::fs::symlink_metadata(&file).unwrap(),
                    std::fs::read(&file).ok(),
                )
            };
            let (metadata, content) = spoilt();
            let open = namespace(&path, "a", "");
            let error = sizes().of(&open.0, &open.1).expect_err(what).to_string();
            for word in [
                &*file.display().to_string(),
                &*path.display().to_string(),
                "--lba",
            ] {
                assert!(error.contains(word), "{what}: {error}");
            }
            sizes().check(&config(&path, "a", "")).expect_err(what);
            // What says its size needs no table, nor do devices.
            assert_eq!(size(&sizes(), &explicit), Some(LbaSize::B512), "{what}");
            sizes().check(&config(&path, "a", "lba = 512")).expect(what);
            assert_eq!(
                size(&sizes(), &namespace(Path::new("/dev/null"), "a", "")),
                None
            );
            // One that runs knows what it has read, until it looks again.
            assert_eq!(size(&running, &open), Some(LbaSize::B512), "{what}");
            remember(&mut running, &namespace(&path, "b", "lba = 4096"), 4096);
            running.look_again();
            running.of(&open.0, &open.1).expect_err(what);
            let (now, content_now) = spoilt();
            assert_eq!(
                (metadata.file_type(), content),
                (now.file_type(), content_now),
                "{what}"
            );
        }
    }

    #[test]
    fn a_reload_knows_what_other_targets_and_this_one_have_opened_files_with() {
        let root = tempfile::tempdir().unwrap();
        let [one, two] = ["a", "b"].map(|name| image(root.path(), name, MIB, &[(0, b"data")]));
        let mut sizes = LbaSizes::in_folder(root.path().to_owned());
        let mut other = LbaSizes::in_folder(root.path().to_owned());
        remember(&mut other, &namespace(&two, "b", "lba = 512"), 512);
        remember(&mut sizes, &namespace(&one, "a", "lba = 512"), 512);
        sizes.look_again();
        for path in [&one, &two] {
            let known = size(&sizes, &namespace(path, "z", ""));
            assert_eq!(known, Some(LbaSize::B512), "{}", path.display());
        }
        // Without a folder a line that goes changes nothing either, while the process lives.
        let mut alone = LbaSizes::default();
        remember(&mut alone, &namespace(&one, "a", "lba = 512"), 512);
        alone.look_again();
        let known = size(&alone, &namespace(&one, "a", ""));
        assert_eq!(known, Some(LbaSize::B512));
        // What could not be written is known as long as that.
        let gone = root.path().join("gone");
        let mut unwritten = LbaSizes::in_folder(gone);
        remember(&mut unwritten, &namespace(&one, "a", "lba = 512"), 512);
        unwritten.look_again();
        let known = size(&unwritten, &namespace(&one, "a", ""));
        assert_eq!(known, Some(LbaSize::B512));
    }

    #[test]
    fn what_is_out_of_reach_is_said_in_bytes() {
        assert_eq!(out_of_reach(&"/a", MIB, 4096), None);
        let words = out_of_reach(&"/a", MIB + 1536, 4096).unwrap();
        assert!(
            words.contains("1536 bytes at its end out of reach"),
            "{words}"
        );
        let root = tempfile::tempdir().unwrap();
        let path = image(root.path(), "a", MIB + 1536, &[]);
        let sizes = LbaSizes::default();
        assert_eq!(sizes.check(&config(&path, "a", "")).unwrap().len(), 1);
        // The check of the configuration says it already.
        let explicit = sizes.check(&config(&path, "a", "lba = 512")).unwrap();
        assert!(explicit.is_empty(), "{explicit:?}");
    }
}
