//! What is configured and not there yet: files, devices, directories, and addresses to listen at. A
//! target that starts goes on without them, and serves each as soon as it is there.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Instant;

use capstan_config::{Backing, Config, Listener, Namespace, Nqn};
use capstan_exports::ExportSettings;
use capstan_rdma::ProviderKind;
use capstan_subsystem::PortId;
use capstan_transport::tcp::NVME_TCP;
use nix::errno::Errno;

use crate::providers::choose;

/// Something that is waited for.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) of: Awaited,
    pub(crate) why: String,
    pub(crate) since: Instant,
    /// How often it was there and could not be served.
    pub(crate) failures: u32,
}

/// What can be waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are few, and none where data goes"
)]
pub(crate) enum Awaited {
    Listener(PortId),
    Namespace(Nqn, u32),
    /// By its path for clients.
    Export(String),
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listener(port) => write!(f, "listener with port {}", port.0),
            Self::Namespace(nqn, nsid) => write!(f, "namespace {nsid} of {nqn}"),
            Self::Export(path) => write!(f, "export {path}"),
        }
    }
}

/// Marks what of `config` is on paths where nothing is: a target that starts goes on without it.
/// Says which exports these are, a line each; namespaces are told when they have their NSIDs.
pub fn take_out(config: &mut Config) -> Vec<String> {
    for subsystem in &mut config.subsystems {
        let absent = subsystem
            .namespaces
            .extract_if(.., |of| missing_under(of).is_some());
        subsystem.absent.extend(absent);
    }
    let Some(nfs) = &mut config.nfs else {
        return Vec::new();
    };
    let mut told = Vec::new();
    let absent = nfs.exports.extract_if(.., |of| {
        let why = missing_export(of);
        told.extend(why.iter().map(|why| {
            let path = &of.client_path;
            format!("export {path}: {why}; its clients wait until it is there, and the others are served")
        }));
        why.is_some()
    });
    nfs.absent.extend(absent);
    told
}

/// Marks what `served` lacks as well: it comes alone, when it is there and can be served, and keeps
/// no other change from being carried out. Returns the exports, by their paths for clients.
pub(crate) fn keep_out(config: &mut Config, served: &Config) -> Vec<String> {
    for subsystem in &mut config.subsystems {
        let before = served.subsystems.iter().find(|of| of.nqn == subsystem.nqn);
        let was_absent = |namespace: &mut Namespace| {
            let mut absent = before.into_iter().flat_map(|of| &of.absent);
            absent.any(|of| of.backing == namespace.backing)
        };
        let absent = subsystem.namespaces.extract_if(.., was_absent);
        subsystem.absent.extend(absent);
    }
    let Some(nfs) = &mut config.nfs else {
        return Vec::new();
    };
    let was_absent = |export: &mut ExportSettings| {
        let mut absent = served.nfs.iter().flat_map(|nfs| &nfs.absent);
        absent.any(|of| of.path == export.path)
    };
    let absent: Vec<_> = nfs.exports.extract_if(.., was_absent).collect();
    let paths = absent.iter().map(|of| of.client_path.clone()).collect();
    nfs.absent.extend(absent);
    paths
}

/// Why something that is waited for is still not there; `ports` are those of the listeners. An
/// export is on a file system that answers.
pub(crate) fn why_not_there(
    awaited: &Awaited,
    config: &Config,
    ports: &[PortId],
) -> Option<String> {
    match awaited {
        Awaited::Listener(port) => {
            let mut listeners = config.listeners.iter().zip(ports);
            let (listener, _) = listeners.find(|(_, id)| *id == port)?;
            missing_at(listener)
        }
        Awaited::Namespace(nqn, nsid) => {
            let subsystem = config.subsystems.iter().find(|of| of.nqn == *nqn)?;
            let namespace = subsystem.absent.iter().find(|of| of.nsid == *nsid)?;
            missing_under(namespace)
        }
        Awaited::Export(path) => missing_export(absent_export(config, path)?),
    }
}

/// An export that is waited for, by its path for clients.
pub(crate) fn absent_export<'c>(config: &'c Config, path: &str) -> Option<&'c ExportSettings> {
    let mut absent = config.nfs.iter().flat_map(|nfs| &nfs.absent);
    absent.find(|export| export.client_path == path)
}

/// That an export has no directory, or that what is to be mounted there is not.
fn missing_export(export: &ExportSettings) -> Option<String> {
    missing(&export.path).or_else(|| {
        let lacks = export.lacks_mount().unwrap_or(false);
        lacks.then(|| format!("nothing is mounted at {}", export.path.display()))
    })
}

/// That nothing is where the blocks of a namespace are to be.
fn missing_under(namespace: &Namespace) -> Option<String> {
    match &namespace.backing {
        Backing::Path(path) => missing(path),
        Backing::Ram { .. } | Backing::Null { .. } => None,
    }
}

/// That nothing is at this path, or a device that has no disk behind it.
fn missing(path: &Path) -> Option<String> {
    let found = fs::metadata(path).and_then(|metadata| {
        if metadata.file_type().is_block_device() {
            File::open(path)?;
        }
        Ok(())
    });
    let error = found.err().filter(is_of_absence)?;
    Some(format!("{}: {error}", path.display()))
}

fn is_of_absence(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENXIO | Errno::ENODEV | Errno::ENOMEDIUM)
    )
}

/// That this machine has not the address of a listener, or no device for it.
pub(crate) fn missing_at(listener: &Listener) -> Option<String> {
    let ip = listener.address.ip();
    if let Err(error) = UdpSocket::bind((ip, 0)) {
        let errno = error.raw_os_error().map(Errno::from_raw);
        return (errno == Some(Errno::EADDRNOTAVAIL))
            .then(|| format!("{ip} is not an address of this machine now"));
    }
    let error = choose(listener).err()?;
    // Without the drivers no device will come.
    let has_drivers = ProviderKind::Verbs
        .connection_manager_beside(NVME_TCP)
        .is_ok();
    has_drivers.then(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use capstan_config::Config;

    use super::{Awaited, keep_out, missing, missing_at, take_out, why_not_there};

    fn config(listener: &str, paths: &[&str]) -> Config {
        let mut toml = format!(
            "[[listener]]\naddress = \"{listener}\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n"
        );
        for path in paths {
            toml += &format!("[[subsystem.namespace]]\npath = \"{path}\"\n");
        }
        Config::from_toml(&toml).unwrap()
    }

    #[test]
    fn what_is_not_there_is_left_out_until_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        let later = folder.path().join("later");
        fs::write(&there, [0; 4096]).unwrap();
        let paths = [&later, &there].map(|path| path.to_str().unwrap());
        let written = config("127.0.0.1", &paths);
        let mut started = written.clone();
        assert!(take_out(&mut started).is_empty());
        let nsids =
            |of: &[capstan_config::Namespace]| of.iter().map(|n| n.nsid).collect::<Vec<_>>();
        let of = &started.subsystems[0];
        assert_eq!(
            (nsids(&of.namespaces), nsids(&of.absent)),
            (vec![2], vec![1])
        );

        // What is served and goes stays where it is, and what was waited for comes alone.
        let mut again = written.clone();
        fs::remove_file(&there).unwrap();
        assert!(keep_out(&mut again, &started).is_empty());
        assert_eq!(again, started);
        let nqn = started.subsystems[0].nqn.clone();
        let awaited = Awaited::Namespace(nqn, 1);
        assert!(why_not_there(&awaited, &again, &[]).is_some());
        fs::write(&later, [0; 4096]).unwrap();
        assert_eq!(why_not_there(&awaited, &again, &[]), None);
    }

    #[test]
    fn what_is_there_and_cannot_be_served_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(missing(folder.path()), None);
        assert!(missing(&folder.path().join("a/b")).is_some());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(missing(&file.join("below")).is_some());
    }

    #[test]
    fn an_address_of_this_machine_is_not_waited_for() {
        assert_eq!(missing_at(&config("127.0.0.1", &[]).listeners[0]), None);
        let foreign = missing_at(&config("192.0.2.1", &[]).listeners[0]).unwrap();
        assert_eq!(foreign, "192.0.2.1 is not an address of this machine now");
    }
}
