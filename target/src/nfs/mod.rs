//! The directories of `[[export]]` that NFS clients get: opened at the start, replaced by a reload,
//! with the files in them that hosts write as namespaces.

mod checks;
mod server;

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::path::Path;
use std::slice;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use capstan_config::{Backing, Config, Namespace, Nfs, Nqn};
use capstan_exports::clients::ClientRules;
use capstan_exports::reload::{Change, Changed, Fresh};
use capstan_exports::{ExportSettings, Exports, FileId, Key, NamespaceClaim, mountinfo};
use capstan_nfs::service::Service;
use capstan_nfs::state::stable::file::StableFile;

use crate::handover::Handover;
use crate::state;

pub(crate) use checks::checks;
pub(crate) use server::{NfsServer, data_bytes, threads};

/// What NFS needs the state folder for.
pub(super) const NEEDS_STATE: &str = "a folder that the target can write to, for the key of file handles and what clients reclaim after a restart";

/// What a start does, and what is to be done, where what clients reclaim is damaged.
pub(crate) const WITHOUT_NFS: &str = "NFS is not served until then, and its ports are closed; hosts are \
     served. Then `systemctl restart capstan-target` serves it: clients lose the opens and locks that they \
     had, and no data that was written";

/// Why what clients reclaim cannot be read in a state folder, if so, also while a target has it.
pub(crate) fn stable_state(folder: &Path) -> Option<String> {
    let looked = StableFile::look_beside(&folder.join(server::STABLE_FILE));
    looked.err().map(|error| error.to_string())
}

/// Whether a start has failed for nothing but what clients reclaim.
pub(crate) fn is_damaged(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(server::is_damaged)
}

/// A namespace of a subsystem.
type Place = (Nqn, u32);

/// The exports that are open, and what hosts write of their files.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) exports: Arc<Exports>,
    /// What serves them; `None` until it does.
    service: Option<Arc<Service>>,
    /// Of every namespace that hosts may write and that is on a regular file.
    claims: HashMap<Place, NamespaceClaim>,
}

impl Files {
    /// Opens every export of the configuration; `None` where it has none. Its namespaces are open
    /// and no client is there yet.
    ///
    /// # Errors
    /// There is no state folder, or one cannot be exported.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(nfs) = &config.nfs else {
            return Ok(None);
        };
        Self::open_with(config, nfs, state::folder().as_deref()).map(Some)
    }

    fn open_with(config: &Config, nfs: &Nfs, folder: Option<&Path>) -> anyhow::Result<Self> {
        let Some(folder) = folder else {
            let wanted = state::wanted();
            bail!("{}", state::for_nfs("NFS", &wanted, NEEDS_STATE).line());
        };
        refuse_state_in(&nfs.exports, folder)?;
        let key = Key::open_or_make(folder).context("the key of file handles")?;
        let exports = Arc::new(Exports::open_but(
            key,
            nfs.exports.clone(),
            nfs.absent.clone(),
        )?);
        let mut files = Self {
            exports,
            service: None,
            claims: HashMap::new(),
        };
        let subsystems = config.subsystems.iter();
        let namespaces = subsystems.flat_map(|of| of.namespaces.iter().map(|n| (&of.nqn, n)));
        files.claims = files.claim(namespaces)?;
        for export in &nfs.exports {
            tracing::info!("export {}", in_words(export));
        }
        Ok(files)
    }

    /// Starts serving what is open to clients.
    ///
    /// # Errors
    /// There is no state folder, an address cannot be listened at, or what clients reclaim cannot
    /// be used.
    pub(crate) fn serve(&mut self, nfs: &Nfs, handover: &Handover) -> anyhow::Result<NfsServer> {
        let folder = state::folder().with_context(|| format!("NFS needs {NEEDS_STATE}"))?;
        let (server, service) = NfsServer::start(nfs, &self.exports, &folder, handover)?;
        self.service = Some(service);
        Ok(server)
    }

    /// What serves clients.
    pub(crate) const fn service(&self) -> Option<&Arc<Service>> {
        self.service.as_ref()
    }

    /// Whether clients are served.
    pub(crate) const fn is_served(&self) -> bool {
        self.service.is_some()
    }

    /// Keeps clients from writing the files of these namespaces, before they are opened. The claims
    /// belong to [`keep`](Self::keep).
    ///
    /// # Errors
    /// Clients have one open for writing.
    pub(crate) fn claim<'n>(
        &self,
        namespaces: impl Iterator<Item = (&'n Nqn, &'n Namespace)>,
    ) -> anyhow::Result<HashMap<Place, NamespaceClaim>> {
        let mut claims = HashMap::new();
        for (subnqn, namespace) in namespaces.filter(|(_, namespace)| !namespace.read_only) {
            let Backing::Path(path) = &namespace.backing else {
                continue;
            };
            // Clients open no devices; and what is not there is not opened either.
            let Some(file) = fs::metadata(path).ok().filter(Metadata::is_file) else {
                continue;
            };
            let nsid = namespace.nsid;
            let name = format!("namespace {nsid} of {subnqn} ({})", path.display());
            let claim = self.exports.writers().claim(FileId::of(&file), nsid, &name);
            claims.insert((subnqn.clone(), nsid), claim?);
        }
        Ok(claims)
    }

    /// The namespaces of `added` are open now, and no host reaches those of `removed`. Commands in
    /// flight may still end.
    pub(crate) fn keep(&mut self, added: HashMap<Place, NamespaceClaim>, removed: &[Place]) {
        self.claims.retain(|place, _| !removed.contains(place));
        self.claims.extend(added);
    }

    /// Opens what is to be exported next.
    ///
    /// # Errors
    /// One cannot be exported.
    pub(crate) fn prepare(&self, wanted: &Nfs) -> anyhow::Result<Fresh> {
        if let Some(folder) = state::folder() {
            refuse_state_in(&wanted.exports, &folder).context("nothing was changed")?;
        }
        let (exports, absent) = (wanted.exports.clone(), wanted.absent.clone());
        let prepared = self.exports.prepare(exports, absent);
        prepared.context("nothing was changed")
    }

    /// As [`prepare`](Self::prepare), where no more than `comes` is to come: what is served is not
    /// looked at, as it may not answer.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn prepare_beside(
        &self,
        wanted: &Nfs,
        comes: &ExportSettings,
    ) -> anyhow::Result<Fresh> {
        if let Some(folder) = state::folder() {
            refuse_state_in(slice::from_ref(comes), &folder)?;
        }
        let (exports, absent) = (wanted.exports.clone(), wanted.absent.clone());
        Ok(self.exports.prepare_beside(exports, absent)?)
    }

    /// Exports it, and tells the log what that has changed.
    pub(crate) fn replace(&self, fresh: Fresh) -> Vec<Change> {
        let changes = self.exports.replace(fresh);
        if let Some(service) = &self.service {
            service.exports_changed(&changes);
            server::exports_changed(service);
        }
        for change in &changes {
            if let Some(words) = in_words_of(change, &changes) {
                tracing::info!("{words}");
            }
        }
        for words in self.exports.not_exported() {
            tracing::warn!("{words}");
        }
        changes
    }
}

/// A line for a change; one that has another id instead of the one before has one line for both.
fn in_words_of(change: &Change, changes: &[Change]) -> Option<String> {
    let settings = change.export.settings();
    let beside = |changed| {
        let mut same = changes.iter().filter(|other| {
            other.changed == changed && other.export.settings().client_path == settings.client_path
        });
        same.next().map(|other| other.export.id().0)
    };
    Some(match change.changed {
        Changed::Removed if beside(Changed::Added).is_some() => return None,
        Changed::Removed => format!("{change}{}", renamed(change, changes).unwrap_or_default()),
        Changed::Added if let Some(id) = beside(Changed::Removed) => format!(
            "export {}: changed, {}; its id is {} now, and what clients had of the id {id} is stale; {}",
            settings.client_path,
            settings.path.display(),
            change.export.id().0,
            of_clients(&settings.clients)
        ),
        _ => format!("{change}; {}", of_clients(&settings.clients)),
    })
}

/// What to do about an export that has gone as its path for clients has changed.
fn renamed(gone: &Change, changes: &[Change]) -> Option<String> {
    let was = gone.export.settings();
    let now = changes.iter().find(|change| {
        let settings = change.export.settings();
        change.changed == Changed::Added && settings.path == was.path
    })?;
    let (now, id) = (&now.export.settings().client_path, gone.export.id().0);
    Some(format!(
        "; its directory is {now} now: `id = {id}` there, and a reload, lets clients go on with what they have"
    ))
}

/// # Errors
/// Clients can read the key of file handles in an export.
fn refuse_state_in(exports: &[ExportSettings], folder: &Path) -> anyhow::Result<()> {
    let mut around = mountinfo::around(exports, folder).into_iter();
    match around.find(|export| checks::shows_key(export, folder)) {
        Some(export) => bail!("{}", checks::holds_state(export, folder)),
        None => Ok(()),
    }
}

/// An export with its clients, in one line.
fn in_words(export: &ExportSettings) -> String {
    let (path, clients) = (export.path.display(), of_clients(&export.clients));
    format!("{}: {path}; {clients}", export.client_path)
}

/// Clients of an export that are named in one line.
const CLIENTS_TOLD: usize = 8;

fn of_clients(clients: &ClientRules) -> String {
    let rules = clients.rules();
    let told = rules.iter().take(CLIENTS_TOLD).map(ToString::to_string);
    let mut told: Vec<_> = told.collect();
    if let Some(more) = rules
        .len()
        .checked_sub(CLIENTS_TOLD)
        .filter(|&more| more > 0)
    {
        told.push(format!("and {more} more"));
    }
    format!("clients {}", told.join("; "))
}

#[cfg(test)]
mod tests;
