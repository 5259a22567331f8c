//! The configuration file: operators write it, so it is not hostile, but every mistake must end in
//! a message. What is imported may come from anywhere.

use capstan_config::import::{ImportError, nvmet};
use capstan_config::{Backing, Config, Reactors};

/// The text of a configuration file. One that is accepted is consistent.
pub fn config_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // The same text as option values.
    let _ = capstan_config::parse_listen(text);
    if let Ok(backing) = text.parse::<Backing>() {
        assert_eq!(backing.to_string().parse(), Ok(backing));
    }
    let config = match Config::from_toml(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let serves_hosts = !config.listeners.is_empty() && !config.subsystems.is_empty();
    let serves_clients = config.nfs.as_ref().is_some_and(|nfs| {
        let listens = !nfs.tcp.is_empty() || !nfs.rdma.is_empty();
        let is_used = nfs.exports.iter().all(|of| !of.clients.rules().is_empty());
        assert!(listens && is_used && nfs.grace_time >= nfs.lease_time);
        !nfs.exports.is_empty()
    });
    assert!(serves_hosts || serves_clients);
    let reactors = match &config.target.reactors {
        Reactors::Cores(cores) => cores.len(),
        other => other.count(1),
    };
    let plan = config.memory_plan(reactors).expect("checked already");
    assert!(plan.hosts(1) >= 1, "{plan}");
    let mut uuids = Vec::new();
    for subsystem in &config.subsystems {
        assert!((1..=223).contains(&subsystem.nqn.as_str().len()));
        assert!((1..=20).contains(&subsystem.serial.len()) && subsystem.serial.is_ascii());
        assert!((1..=40).contains(&subsystem.model.len()) && subsystem.model.is_ascii());
        let ascending = subsystem.namespaces.is_sorted_by(|a, b| a.nsid < b.nsid);
        assert!(ascending, "NSIDs are unique and in order");
        for namespace in &subsystem.namespaces {
            assert!((1..=capstan_config::NAMESPACES_MAX).contains(&namespace.nsid));
            assert_ne!(namespace.nguid, Some([0; 16]));
            uuids.extend(namespace.uuid);
            if let Some(size_bytes) = namespace.backing.size_bytes() {
                let lba_bytes = namespace
                    .lba
                    .unwrap_or(capstan_config::LbaSize::DEFAULT)
                    .bytes();
                assert!(size_bytes > 0 && size_bytes.is_multiple_of(lba_bytes.into()));
            }
        }
    }
    let count = uuids.len();
    uuids.sort_unstable();
    uuids.dedup();
    assert_eq!(uuids.len(), count, "UUIDs that are written down are unique");
}

/// The file of another target. What it becomes is a configuration, and serves what a host reached.
pub fn import_nvmet(data: &[u8]) {
    let imported = match nvmet(data) {
        Ok(imported) => imported,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(
                !matches!(error, ImportError::NotAccepted(_)),
                "a mistake is told by its place in the document: {error}"
            );
            return;
        }
    };
    let config = Config::from_toml(&imported.toml).expect("checked already");
    assert!(!config.listeners.is_empty() && !config.subsystems.is_empty());
    for note in &imported.notes {
        let line = note.to_string();
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}
