//! Other exports in the place of those there are, while clients use them.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, PoisonError};

use crate::error::ExportError;
use crate::export::{Export, ExportSettings, Exports, Table};
use crate::handle::ExportId;

/// What has become of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It was not there before.
    Added,
    /// It is not there any more, and its handles are stale.
    Removed,
    /// Its path leads to another file system now: what clients had of it is stale.
    FileSystem,
    /// Its path leads to another directory of the same file system.
    Directory,
    /// Other clients, or others of its settings. What clients have of it stays as it is.
    Settings,
}

/// An export that a reload has changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// In what way.
    pub changed: Changed,
    /// As it is now; one that was removed, as it was.
    pub export: Arc<Export>,
}

impl Change {
    /// Whether no handle that was given out before leads to it any more, so that open files and
    /// other state of clients are of no use.
    pub const fn is_stale(&self) -> bool {
        matches!(self.changed, Changed::Removed | Changed::FileSystem)
    }

    /// Whether the same path leads to something else, with the same settings or with others.
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self.changed, Changed::Directory | Changed::FileSystem)
    }
}

/// As it is told in the log.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.export.settings();
        write!(f, "export {}: ", settings.client_path)?;
        let path = settings.path.display();
        match self.changed {
            Changed::Added => write!(f, "added, {path}"),
            Changed::Removed => f.write_str("removed; what clients have of it is stale"),
            Changed::FileSystem => write!(
                f,
                "another file system is at {path} now; what clients have of the former one is stale"
            ),
            Changed::Directory => write!(f, "another directory is exported now, {path}"),
            Changed::Settings => write!(f, "changed, {path}"),
        }
    }
}

/// Exports that are open, and that no client sees yet.
#[derive(Debug)]
pub struct Fresh(Table);

impl Exports {
    /// Exports these directories and no others: [`prepare`](Self::prepare), and
    /// [`replace`](Self::replace) at once.
    ///
    /// # Errors
    /// Where one cannot be exported: then those there were stay.
    pub fn reload(&self, exports: Vec<ExportSettings>) -> Result<Vec<Change>, ExportError> {
        let fresh = self.prepare(exports, Vec::new())?;
        Ok(self.replace(fresh))
    }

    /// Opens what is to be exported next, under the same key, but for what is `absent` (see
    /// [`open_but`](Self::open_but)). Clients have what there was until then.
    ///
    /// # Errors
    /// Where one cannot be exported.
    pub fn prepare(
        &self,
        exports: Vec<ExportSettings>,
        absent: Vec<ExportSettings>,
    ) -> Result<Fresh, ExportError> {
        self.prepare_but(exports, absent, &HashMap::new())
    }

    /// As [`prepare`](Self::prepare), but for what is open with the same settings: it stays open,
    /// and is not looked at, as it may not answer.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_beside(
        &self,
        exports: Vec<ExportSettings>,
        absent: Vec<ExportSettings>,
    ) -> Result<Fresh, ExportError> {
        let open = self.table().by_id.clone();
        self.prepare_but(exports, absent, &open)
    }

    fn prepare_but(
        &self,
        exports: Vec<ExportSettings>,
        absent: Vec<ExportSettings>,
        open: &HashMap<ExportId, Arc<Export>>,
    ) -> Result<Fresh, ExportError> {
        let (key, writers) = (self.key.clone(), self.writers().clone());
        let fresh = Self::open_beside(key, exports, absent, writers, open)?;
        let fresh = fresh.table.into_inner();
        Ok(Fresh(fresh.unwrap_or_else(PoisonError::into_inner)))
    }

    /// Exports what was prepared, and nothing else: handles of exports that stay lead where they
    /// did, and clients keep what they have open. What runs meanwhile ends as it began. Answers
    /// with what has changed, by the paths for clients; of what is absent now, nothing is known to
    /// have changed.
    pub fn replace(&self, Fresh(fresh): Fresh) -> Vec<Change> {
        let now: Vec<_> = fresh.by_id.values().cloned().collect();
        let mut table = self.table_to_change();
        let mut before = mem::replace(&mut *table, fresh).by_id;
        before.retain(|id, _| table.by_id.contains_key(id) || !table.absent.has(*id));
        drop(table);
        let mut changes = Vec::new();
        for export in now.iter().filter(|export| !export.is_adopted()) {
            let was = before.get(&export.id()).filter(|was| !was.is_adopted());
            let changed = match was {
                None => Changed::Added,
                Some(was) if was.file_system() != export.file_system() => Changed::FileSystem,
                Some(was) if was.root_handle() != export.root_handle() => Changed::Directory,
                Some(was) if was.settings() != export.settings() => Changed::Settings,
                Some(_) => continue,
            };
            changes.push(Change {
                changed,
                export: export.clone(),
            });
        }
        let is_gone =
            |was: &Arc<Export>| !was.is_adopted() && !now.iter().any(|now| now.id() == was.id());
        let removed = before.into_values().filter(is_gone);
        changes.extend(removed.map(|export| Change {
            changed: Changed::Removed,
            export,
        }));
        let path = |change: &Change| change.export.settings().client_path.clone();
        changes.sort_by_cached_key(path);
        changes
    }
}
