//! The configuration that is served with all that is known of it (`config show --complete`).

use capstan_config::{Config, LbaSize, Namespace, Nqn, namespace_uuid};
use capstan_subsystem::{NamespaceConfig, Persistence};

use super::Steering;

impl Steering {
    /// As a file that makes the same target on this machine, also without its state folder.
    pub(super) fn complete_config(&self) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut config: Config = self.published().config.complete(cores);
        self.control.with(|target| {
            for subsystem in &mut config.subsystems {
                for shown in target.namespaces(&subsystem.nqn) {
                    let mut namespaces = subsystem.namespaces.iter_mut();
                    if let Some(namespace) = namespaces.find(|of| of.nsid == shown.nsid) {
                        complete(&subsystem.nqn, namespace, shown);
                    }
                }
            }
        });
        config.to_toml()
    }
}

/// What hosts know it by goes with it, but where it is another one after each start.
fn complete(subnqn: &Nqn, namespace: &mut Namespace, shown: &NamespaceConfig) {
    namespace.lba = LbaSize::from_bytes(shown.geometry.lba_bytes.into());
    let Some(uuid) = shown.identity.uuid else {
        return;
    };
    // Without a state folder nothing persists, and what lasts has the derived one.
    let lasts = namespace.backing.lasts()
        && (shown.persistence != Persistence::None
            || uuid == namespace_uuid(subnqn, namespace.nsid));
    if namespace.uuid.is_some() || lasts {
        namespace.uuid = Some(uuid);
        namespace.nguid = shown.identity.nguid;
    }
}
