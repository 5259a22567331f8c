//! What `check`, `doctor` and a start find out about exports: they open what would be served.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use capstan_config::{Config, Listener, Nfs, Transports, word_of};
use capstan_doctor::{Check, Machine, Verdict, nfs};
use capstan_exports::clients::Squash;
use capstan_exports::key::KEY_BYTES;
use capstan_exports::{ExportSettings, Exports, Key, mountinfo};
use capstan_nfs::state::stable::file::{StableFile, StableFileError};
use capstan_rdma::ProviderKind;
use nix::errno::Errno;
use nix::unistd::geteuid;

use super::server::{STABLE_FILE, is_damaged};
use super::{NEEDS_STATE, WITHOUT_NFS, in_words};
use crate::listen_error::{Obstacle, obstacle};
use crate::providers::choose;
use crate::state;

const STATE: &str = "state folder of NFS";

/// Of exports, none where the configuration has none. `others` is how many descriptors the target
/// needs for all else.
pub(crate) fn checks(machine: &Machine, config: &Config, others: u64) -> Vec<Check> {
    let Some(nfs) = &config.nfs else {
        return Vec::new();
    };
    let rules = nfs.exports.iter().flat_map(|export| export.clients.rules());
    let mut squashes = rules.map(|rule| rule.squash);
    let rights = nfs::rights(machine, squashes.any(|squash| squash == Squash::None));
    let may = rights.verdict != Verdict::Error;
    let mut checks = vec![rights];
    let folder = state::wanted();
    checks.extend(state_folder(&folder, !config.listeners.is_empty()));
    checks.extend(of_exports(&nfs.exports, may));
    checks.extend(
        mountinfo::around(&nfs.exports, &folder)
            .into_iter()
            .map(|export| of_state(export, &folder)),
    );
    let ports: Vec<_> = nfs.tcp.iter().chain(&nfs.rdma).copied().collect();
    checks.extend(nfs::kernel_server(machine, &ports));
    checks.extend(nfs.tcp.iter().map(|at| over_tcp(machine, *at)));
    // One line for an address that is not this machine's.
    let is_told = |at: &&SocketAddr| !nfs.tcp.is_empty() && UdpSocket::bind((at.ip(), 0)).is_err();
    let rdma = nfs.rdma.iter().filter(|at| !is_told(at));
    checks.extend(rdma.map(|at| over_rdma(machine, nfs, *at)));
    let exports = u64::try_from(nfs.exports.len()).unwrap_or(u64::MAX);
    checks.push(nfs::open_files(machine, others.saturating_add(exports)));
    checks
}

/// As a start uses it, which goes on without NFS where there are hosts to be served.
pub(super) fn state_folder(folder: &Path, has_hosts: bool) -> Vec<Check> {
    let usable = state::for_nfs(STATE, folder, NEEDS_STATE);
    if usable.verdict == Verdict::Error {
        return vec![usable];
    }
    let mut checks = vec![match Key::look(folder) {
        Ok(true) => Check::ok(
            STATE,
            format!("{}, with the key of file handles", folder.display()),
        ),
        Ok(false) if let Some(words) = key_was_lost(folder) => Check {
            verdict: Verdict::Warning,
            ..Check::ok(STATE, words)
        },
        Ok(false) => Check::ok(
            STATE,
            format!(
                "{}; the first start makes the key of file handles",
                folder.display()
            ),
        ),
        // The words say what is expected, and what mends it.
        Err(error) => in_its_words(STATE, &error.to_string()),
    }];
    if usable.verdict == Verdict::Warning {
        checks.push(usable);
    }
    match StableFile::look(&folder.join(STABLE_FILE)) {
        Ok(()) => {}
        // As of a port that is taken.
        Err(error @ StableFileError::InUse { .. }) => checks.push(Check {
            verdict: Verdict::Warning,
            ..Check::ok(
                STATE,
                format!("{error}; nothing, where it is this target that runs"),
            )
        }),
        Err(error) if is_damaged(&error) => {
            checks.push(match has_hosts {
                true => Check {
                    verdict: Verdict::Warning,
                    ..Check::ok(STATE, format!("{error}; {WITHOUT_NFS}"))
                },
                false => in_its_words(STATE, &error.to_string()),
            });
        }
        Err(error) => checks.push(in_its_words(STATE, &error.to_string())),
    }
    checks.extend(of_owner(folder));
    let mode = fs::metadata(folder).map_or(0, |of| of.mode() & 0o7777);
    if mode & 0o002 != 0 {
        checks.push(Check::warning(
            STATE,
            format!("{} has mode {mode:04o}", folder.display()),
            "a folder that its owner alone writes to: every user of this machine can put a key of its own there",
            format!("chmod 0750 {}", word_of(folder)),
        ));
    }
    checks
}

/// The owner of a folder can put another key there, and make a handle of any file with that.
fn of_owner(folder: &Path) -> Option<Check> {
    let uid = fs::metadata(folder).ok()?.uid();
    let (path, mine) = (folder.display(), geteuid().as_raw());
    (uid != 0 && uid != mine).then(|| {
        Check::warning(
            STATE,
            format!("{path} belongs to user {uid}"),
            "a folder of root's: its owner can put a key of its own there, and make a handle of any file",
            format!("chown 0 {}", word_of(folder)),
        )
    })
}

/// That all handles of clients are stale, as there is no key and were clients.
fn key_was_lost(folder: &Path) -> Option<String> {
    let is_lost = matches!(Key::look(folder), Ok(false)) && folder.join(STABLE_FILE).exists();
    is_lost.then(|| {
        format!(
            "the key of file handles ({}/export-handles.key) is gone, and a start makes a new one: what clients have mounted \
             from before is stale then (ESTALE), and they have to mount again; restore it before, where there is a copy",
            folder.display()
        )
    })
}

/// Whether some client can say that it is the user whose the state folder is.
pub(super) fn shows_key(export: &ExportSettings, folder: &Path) -> bool {
    let owner = fs::metadata(folder).map_or(0, |of| of.uid());
    let mut rules = export.clients.rules().iter();
    rules.any(|rule| match rule.squash {
        Squash::None => true,
        Squash::Root => owner != 0 || rule.anonymous.uid == 0,
        Squash::All => rule.anonymous.uid == owner,
    })
}

/// That the state folder is in it, in words.
pub(super) fn holds_state(export: &ExportSettings, folder: &Path) -> String {
    format!(
        "the state folder {} is in {}: who reads the key of file handles there can make a handle of any file; export \
         directories beside it, or name another folder in {}",
        folder.display(),
        export.path.display(),
        state::FOLDER_VARIABLE,
    )
}

fn of_state(export: &ExportSettings, folder: &Path) -> Check {
    Check {
        verdict: match shows_key(export, folder) {
            true => Verdict::Error,
            false => Verdict::Warning,
        },
        ..Check::ok(
            format!("export {}", export.client_path),
            holds_state(export, folder),
        )
    }
}

/// An error whose words say what is expected, and what mends it.
fn in_its_words(name: &str, words: &str) -> Check {
    Check {
        verdict: Verdict::Error,
        ..Check::ok(name, words)
    }
}

/// Each by itself, and all together where each can be had. They are only opened where this process
/// has the rights to. What is no directory is told of by the check of the configuration.
fn of_exports(exports: &[ExportSettings], may: bool) -> Vec<Check> {
    let there: Vec<_> = exports.iter().filter(|of| of.path.is_dir()).collect();
    let mut checks: Vec<Check> = there.iter().map(|export| of_export(export, may)).collect();
    let are_all = there.len() == exports.len();
    if may && are_all && checks.iter().all(|check| check.verdict == Verdict::Ok) {
        match open(exports.to_vec()) {
            Ok(opened) => checks.extend(opened.not_exported().into_iter().map(|words| Check {
                verdict: Verdict::Warning,
                ..Check::ok("crossmnt", words)
            })),
            Err(error) => checks.push(in_its_words("exports", &error)),
        }
    }
    checks
}

fn of_export(export: &ExportSettings, may: bool) -> Check {
    let name = format!("export {}", export.client_path);
    if may && let Err(error) = open(vec![export.clone()]) {
        // Where the name of the check says which directory it is, the error need not.
        let prefix = format!("exporting {}: ", export.client_path);
        return in_its_words(&name, error.strip_prefix(&prefix).unwrap_or(&error));
    }
    let seen = in_words(export);
    let seen = seen.strip_prefix(&export.client_path).unwrap_or(&seen);
    Check::ok(name, seen.trim_start_matches(": "))
}

/// No handle is made with this key.
fn open(exports: Vec<ExportSettings>) -> Result<Exports, String> {
    let opened = Exports::open(Key::from_bytes([0; KEY_BYTES]), exports);
    opened.map_err(|error| error.to_string())
}

fn over_tcp(machine: &Machine, at: SocketAddr) -> Check {
    sockets(machine, format!("NFS over TCP {at}"), at, "TCP")
}

fn over_rdma(machine: &Machine, nfs: &Nfs, at: SocketAddr) -> Check {
    let name = format!("NFS over RDMA {at}");
    let chosen = choose(&Listener {
        address: at,
        provider: nfs.provider,
        transports: Transports::named(true, false),
    });
    match chosen {
        Ok(chosen) if chosen.kind == ProviderKind::Iwarp => {
            let provider = chosen.kind.name();
            sockets(machine, name, at, &format!("{provider}: {}", chosen.why))
        }
        Ok(chosen) => Check::ok(name, format!("{}: {}", chosen.kind.name(), chosen.why)),
        Err(error) => Check::error(
            name,
            error.to_string(),
            "a provider for this address",
            "provider = \"auto\" or \"iwarp\" in [nfs]",
        ),
    }
}

/// Whether a socket can listen there.
fn sockets(machine: &Machine, name: String, at: SocketAddr, seen: &str) -> Check {
    let error = match TcpListener::bind(at) {
        _ if at.port() == 0 => return Check::ok(name, seen),
        Ok(_) => return Check::ok(name, seen),
        Err(error) => error,
    };
    let errno = error.raw_os_error().map(Errno::from_raw);
    let obstacle = obstacle(machine, at, errno, &error.to_string());
    let Obstacle {
        seen: wrong,
        expected,
        remedy,
    } = obstacle;
    let seen = format!("{seen}; {wrong}");
    match errno {
        Some(Errno::EADDRINUSE) => {
            let expected = format!("{expected}, unless this target runs already");
            Check::warning(name, seen, expected, remedy)
        }
        Some(Errno::EADDRNOTAVAIL) => Check::warning(name, seen, expected, remedy),
        _ => Check::error(name, seen, expected, remedy),
    }
}

#[cfg(test)]
mod tests {
    use capstan_exports::error::ExportError;

    use super::{Config, Verdict, of_export};

    #[test]
    fn what_cannot_be_exported_is_named_once() {
        let export = |pseudo: &str| {
            let text = format!(
                "[nfs]\naddresses = [\"127.0.0.1\"]\n[[export]]\npath = \"/proc\"\npseudo = \"{pseudo}\"\n\
                 clients = [\"127.0.0.1\"]\n"
            );
            let nfs = Config::from_toml(&text).unwrap().nfs.unwrap();
            // The kernel gives no handles of its files.
            let check = of_export(&nfs.exports[0], true);
            assert_eq!(check.verdict, Verdict::Error, "{check:?}");
            check.seen
        };
        let same = export("/proc");
        assert!(!same.starts_with("exporting /proc"), "{same}");
        // Here the name of the check is another one.
        let other = export("/pub");
        assert_eq!(other, format!("exporting /proc: {same}"));
    }

    #[test]
    fn where_a_file_system_is_given_an_id_is_told() {
        let path = "/srv".into();
        let told = ExportError::NoFileSystemId { path }.to_string();
        assert!(
            told.contains("`file_system = \"UUID\"` in its [[export]]"),
            "{told}"
        );
        assert!(
            told.contains("`--file-system UUID` of `export add`"),
            "{told}"
        );
    }
}
