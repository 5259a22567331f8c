//! What `check`, `doctor` and a start find out about exports: they open what would be served.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use capstan_config::{Config, Listener, Nfs, Transports};
use capstan_doctor::{Check, Machine, Verdict, nfs};
use capstan_exports::clients::Squash;
use capstan_exports::key::KEY_BYTES;
use capstan_exports::{ExportSettings, Exports, Key};
use capstan_rdma::ProviderKind;
use nix::errno::Errno;

use super::{NEEDS_STATE, in_words};
use crate::listen_error::{Obstacle, obstacle};
use crate::providers::choose;
use crate::state;

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
    checks.push(state_folder(state::folder().as_deref()));
    checks.extend(of_exports(&nfs.exports, may));
    let ports: Vec<_> = nfs.tcp.iter().chain(&nfs.rdma).copied().collect();
    checks.extend(nfs::kernel_server(machine, &ports));
    checks.extend(nfs.tcp.iter().map(|at| over_tcp(machine, *at)));
    checks.extend(nfs.rdma.iter().map(|at| over_rdma(machine, nfs, *at)));
    let exports = u64::try_from(nfs.exports.len()).unwrap_or(u64::MAX);
    checks.push(nfs::open_files(machine, others.saturating_add(exports)));
    checks
}

fn state_folder(folder: Option<&Path>) -> Check {
    const NAME: &str = "state folder of NFS";
    let Some(folder) = folder else {
        return Check::error(
            NAME,
            format!("{} is not there", state::wanted().display()),
            format!("one: {NEEDS_STATE}"),
            format!(
                "make it (mode 0700), or name another one in {}",
                state::FOLDER_VARIABLE
            ),
        );
    };
    match Key::look(folder) {
        Ok(true) => Check::ok(
            NAME,
            format!("{}, with the key of file handles", folder.display()),
        ),
        Ok(false) => Check::ok(
            NAME,
            format!(
                "{}; the first start makes the key of file handles",
                folder.display()
            ),
        ),
        // The words say what is expected, and what mends it.
        Err(error) => in_its_words(NAME, &error.to_string()),
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
/// has the rights to.
fn of_exports(exports: &[ExportSettings], may: bool) -> Vec<Check> {
    let mut checks: Vec<Check> = exports
        .iter()
        .map(|export| of_export(export, may))
        .collect();
    if may && checks.iter().all(|check| check.verdict == Verdict::Ok) {
        let together = open(exports.to_vec()).err();
        checks.extend(together.map(|error| in_its_words("exports", &error)));
    }
    checks
}

fn of_export(export: &ExportSettings, may: bool) -> Check {
    let name = format!("export {}", export.client_path);
    // What is no directory is told of by the check of the configuration.
    if may
        && export.path.is_dir()
        && let Err(error) = open(vec![export.clone()])
    {
        return in_its_words(&name, &error);
    }
    let seen = in_words(export);
    let seen = seen.strip_prefix(&export.client_path).unwrap_or(&seen);
    Check::ok(name, seen.trim_start_matches(": "))
}

/// No handle is made with this key.
fn open(exports: Vec<ExportSettings>) -> Result<(), String> {
    let opened = Exports::open(Key::from_bytes([0; KEY_BYTES]), exports);
    opened.map(drop).map_err(|error| error.to_string())
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
