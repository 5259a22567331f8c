//! Volumes of a running service that have lost writes, where `capstan-target doctor` finds them.
//!
//! systemd removes the folder when the service ends, and with it what a restart clears.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use capstan_doctor::{Check, Machine};
use capstan_storage::IoError;
use capstan_subsystem::BackendId;

/// What systemd tells a service with `RuntimeDirectory=` (systemd.exec(5)).
const FOLDER_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// That folder of capstan-target.service.
const FOLDER: &str = "/run/capstan-target";
const FILE: &str = "lost-writes";

/// The volumes, and the file that names them.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    file: Option<PathBuf>,
    volumes: Mutex<BTreeMap<BackendId, String>>,
}

impl Lost {
    /// Of this process, as a service or not.
    pub(crate) fn new() -> Self {
        let folder = env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
        Self {
            file: folder.map(|folder| folder.join(FILE)),
            volumes: Mutex::default(),
        }
    }

    /// A volume has lost writes.
    pub(crate) fn add(&self, backend: BackendId, error: &IoError) {
        self.change(|volumes| volumes.insert(backend, error.to_string()).is_none());
    }

    /// A volume is closed: what it has lost is the operator's now.
    pub(crate) fn remove(&self, backend: BackendId) {
        self.change(|volumes| volumes.remove(&backend).is_some());
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<BackendId, String>) -> bool) {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = self.file.as_ref().filter(|_| change(&mut volumes)) else {
            return;
        };
        let lines: String = volumes.values().map(|line| format!("{line}\n")).collect();
        if let Err(error) = fs::write(file, lines) {
            let file = file.display();
            tracing::warn!(%file, %error, "`capstan-target doctor` will not know of lost writes");
        }
    }
}

/// What the service on this machine has lost.
pub(crate) fn checks(machine: &Machine) -> Vec<Check> {
    let lines = machine
        .read(&format!("{FOLDER}/{FILE}"))
        .unwrap_or_default();
    let check = |line: &str| {
        Check::error(
            "lost writes",
            line,
            "every answered write on its medium",
            "journalctl -u capstan-target -p err; what is on the volume needs a check or a restore",
        )
    };
    lines.lines().map(check).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Arc, Mutex};

    use capstan_doctor::{Machine, Verdict};
    use capstan_storage::{IoError, IoErrorKind, Op};
    use capstan_subsystem::BackendId;

    use super::{FILE, FOLDER, Lost, checks};

    #[test]
    fn doctor_finds_what_the_service_has_lost_until_the_volume_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path(), Vec::new());
        assert!(checks(&machine).is_empty(), "no service");
        let folder = root.path().join(FOLDER.trim_start_matches('/'));
        fs::create_dir_all(&folder).unwrap();
        let lost = Lost {
            file: Some(folder.join(FILE)),
            volumes: Mutex::default(),
        };
        let add = |backend, volume: &str| {
            let error = IoError::new(IoErrorKind::Lost, &Op::Flush, &Arc::from(volume));
            lost.add(BackendId(backend), &error);
        };
        add(1, "/srv/a.img");
        add(1, "/srv/a.img");
        add(2, "/srv/b.img");
        let found = checks(&machine);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].verdict, Verdict::Error);
        assert!(found[0].seen.contains("/srv/a.img"), "{found:?}");
        lost.remove(BackendId(1));
        lost.remove(BackendId(7));
        let found = checks(&machine);
        assert!(
            found.len() == 1 && found[0].seen.contains("/srv/b.img"),
            "{found:?}"
        );
    }
}
