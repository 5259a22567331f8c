//! Whether files have the space that they promise.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use capstan_config::{Backing, Config, Namespace, Size};
use capstan_doctor::{Check, Verdict};
use capstan_nvme_proto::text::Word;
use nix::sys::statvfs::statvfs;

const NAME: &str = "space";
/// What `st_blocks` counts in (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// Files that are named with a command of their own.
const COMMANDS_TOLD: usize = 4;

/// The files of one file system.
#[derive(Debug, Default, PartialEq, Eq)]
struct Promised {
    /// What they promise and have no space for yet.
    missing_bytes: u64,
    free_bytes: u64,
    /// Those that have none, and their sizes in bytes.
    files: Vec<(String, u64)>,
    /// Whether writes to one of them go through the page cache.
    cached: bool,
}

/// One check for each file system with sparse files that are exported for writing.
pub(crate) fn checks(config: &Config) -> Vec<Check> {
    let namespaces = config.subsystems.iter().flat_map(|s| &s.namespaces);
    let mut promised: BTreeMap<u64, Promised> = BTreeMap::new();
    for namespace in namespaces.filter(|namespace| !namespace.read_only) {
        if let Backing::Path(path) = &namespace.backing {
            add(&mut promised, namespace, path);
        }
    }
    promised.values().map(Promised::check).collect()
}

/// What `check` says of files that have not the space that they promise, a line each.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let checks = checks(config).into_iter();
    let promise_more = checks.filter(|check| check.verdict != Verdict::Ok);
    promise_more.map(|check| check.line()).collect()
}

/// What cannot be looked at is told by the check of the configuration.
fn add(promised: &mut BTreeMap<u64, Promised>, namespace: &Namespace, path: &Path) {
    let Ok(metadata) = fs::metadata(path) else {
        return;
    };
    let stored_bytes = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES);
    let missing_bytes = metadata.len().saturating_sub(stored_bytes);
    let Ok(free) = statvfs(path) else {
        return;
    };
    if !metadata.is_file() || missing_bytes == 0 {
        return;
    }
    let of = promised.entry(metadata.dev()).or_default();
    of.missing_bytes = of.missing_bytes.saturating_add(missing_bytes);
    of.free_bytes = free.blocks_available().saturating_mul(free.fragment_size());
    of.files.push((path.display().to_string(), metadata.len()));
    of.cached |= namespace.direct == capstan_config::DirectIo::Off;
}

impl Promised {
    fn reserve(&self) -> String {
        let told = self.files.iter().take(COMMANDS_TOLD);
        let told = told.map(|(name, bytes)| {
            let name = Word::path(name.as_bytes());
            format!("`fallocate --keep-size --length {bytes} {name}`")
        });
        let mut told: Vec<_> = told.collect();
        if self.files.len() > COMMANDS_TOLD {
            told.push("and so on".to_owned());
        }
        told.join(", ")
    }

    fn check(&self) -> Check {
        let [missing, free] = [self.missing_bytes, self.free_bytes].map(Size);
        let names: Vec<&str> = self.files.iter().map(|(name, _)| &**name).collect();
        let files = names.join(", ");
        let seen = format!("{files}: {missing} not stored yet, {free} free in its file system");
        if self.missing_bytes <= self.free_bytes {
            return Check::ok(NAME, seen + " (what is below that is not looked at)");
        }
        let consequence = if self.cached {
            "; through the page cache (direct = false) writes may be lost behind an answer, and then every later Flush fails"
        } else {
            "; a write that finds no space fails"
        };
        Check::warning(
            NAME,
            seen + consequence,
            format!("{missing} of free space"),
            format!("free some, and reserve it then: {}", self.reserve()),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use capstan_config::Config;

    #[test]
    fn sparse_files_are_added_up_and_compared_with_what_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes| {
            let path = folder.path().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            format!(
                "[[subsystem.namespace]]\npath = {:?}\n",
                path.display().to_string()
            )
        };
        let check = |namespaces: &str| {
            let config = Config::from_toml(&format!(
                "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
                 nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n{namespaces}"
            ));
            checks(&config.unwrap())
        };
        let small = file("small", 1 << 20) + &file("other", 1 << 20);
        let found = check(&small);
        assert_eq!(found.len(), 1, "one file system");
        assert_eq!(found[0].verdict, Verdict::Ok, "{found:?}");
        assert!(found[0].seen.contains("2 MiB not stored yet"), "{found:?}");
        // The file system may be an image on another one that is full: nothing reports that.
        let limit = "in its file system (what is below that is not looked at)";
        assert!(found[0].seen.ends_with(limit), "{found:?}");
        // More than any disk has, in a file that takes nothing.
        let found = check(&(small + &file("huge", 8 << 40)));
        assert_eq!(found[0].verdict, Verdict::Warning, "{found:?}");
        assert!(found[0].seen.contains("a write that finds no space fails"));
        let read_only = file("huge", 8 << 40) + "read_only = true\n";
        assert!(check(&read_only).is_empty());
        let cached = file("huge", 8 << 40) + "direct = false\n";
        let found = check(&cached);
        assert!(
            found[0].seen.contains("may be lost behind an answer"),
            "{found:?}"
        );
        assert!(check("[[subsystem.namespace]]\nram = \"1MiB\"\n").is_empty());
    }

    #[test]
    fn exactly_enough_is_enough() {
        let promised = Promised {
            missing_bytes: 4096,
            free_bytes: 4096,
            ..Promised::default()
        };
        assert_eq!(promised.check().verdict, Verdict::Ok);
    }
}
