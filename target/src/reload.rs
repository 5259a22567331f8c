//! What differs between the configuration that is served and the one that is wanted, by SIGHUP and
//! by the control socket (`steering`), is carried out while hosts are connected. Either all of it
//! is, or nothing.

use std::collections::HashMap;
use std::fs::Metadata;
use std::mem;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use capstan_config::{Config, Namespace, Nqn, Warning, first_of};
use capstan_subsystem::{BackendId, NamespaceConfig, PortId};

use crate::absent::{Awaited, Wait, keep_out};
use crate::answers;
use crate::control_plane::{ControlPlane, Message};
use crate::identities::{Identities, Kept};
use crate::lba_size::{LbaSizes, Unknown};
use crate::limits::OPEN_TIMEOUT;
use crate::listening;
use crate::metrics::Told;
use crate::nfs::Files;
use crate::overlaps::Opened;
use crate::plan::{Export, Opening, ana_states, host_policy, subsystem_config};
use crate::ports::Ports;
use crate::reservations::Reservations;
use crate::room;
use altered::Reopened;
use difference::{Difference, difference, find};
use file_id::FileId;
use replaced::Replaced;

mod absent;
mod altered;
mod difference;
mod exports;
mod file_id;
mod refused;
mod replaced;
mod swapped;

/// What is being served.
pub(crate) struct Served {
    config: Config,
    /// Where the blocks of each namespace are, by subsystem and NSID.
    backends: HashMap<(Nqn, u32), BackendId>,
    /// What is open, by subsystem and NSID.
    files: HashMap<FileId, (Nqn, u32)>,
    opened: Opened,
    /// Never used before: a volume that is being closed keeps its name to itself.
    next_backend: u32,
    lba_sizes: LbaSizes,
    identities: Identities,
    /// What NFS clients get, where there is an export.
    nfs: Option<Files>,
    /// Which port each listener is.
    ports: Ports,
    /// Configured, and not served since the start, as their LBA sizes cannot be known.
    unknown: Vec<Unknown>,
    /// What is configured and not there yet.
    waits: Vec<Wait>,
    /// Where what is counted is told.
    told: Told,
}

/// What a reload is carried out by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Whole,
    /// What is put back by the next step goes, and nothing comes.
    TakeOut,
    /// A namespace comes that was waited for, and all else is as it was.
    TakeIn,
}

/// What a reload has done, in words.
#[derive(Debug)]
pub(crate) struct Reloaded {
    /// Counts of what was changed.
    pub(crate) summary: String,
    /// What has happened to namespaces, a line each.
    pub(crate) namespaces: Vec<String>,
    /// What was warned of that was not before.
    pub(crate) warnings: Vec<String>,
}

/// A namespace that is about to be shown: its volume, and what hosts see of it.
struct Prepared {
    subnqn: Nqn,
    export: Arc<Export>,
    shown: NamespaceConfig,
}

impl Served {
    /// What [`build`](crate::plan::build) has made of `config`, with these LBA sizes, and without
    /// those that are `unknown`.
    pub(crate) fn new(
        config: &Config,
        ports: Ports,
        unknown: Vec<Unknown>,
        (lba_sizes, identities): (LbaSizes, Identities),
        nfs: Option<Files>,
        told: Told,
    ) -> Self {
        let namespaces = config.subsystems.iter().flat_map(|subsystem| {
            let nqn = &subsystem.nqn;
            subsystem.namespaces.iter().map(|n| (nqn.clone(), n.nsid))
        });
        let backends: HashMap<_, _> = namespaces.zip((0..).map(BackendId)).collect();
        let files = config.subsystems.iter().flat_map(|subsystem| {
            let of_this = subsystem.namespaces.iter();
            of_this.filter_map(|n| Some((FileId::of(n)?, (subsystem.nqn.clone(), n.nsid))))
        });
        Self {
            config: config.clone(),
            next_backend: u32::try_from(backends.len()).unwrap_or(u32::MAX),
            backends,
            files: files.collect(),
            opened: Opened::of(config),
            lba_sizes,
            identities,
            nfs,
            ports,
            unknown,
            waits: Vec::new(),
            told,
        }
    }

    /// The port of each listener of [`config`](Self::config), in its order.
    pub(crate) fn ports(&self) -> Vec<PortId> {
        self.ports.in_order(&self.config.listeners)
    }

    /// Whether this namespace is on the file or device with that metadata.
    pub(crate) fn has_open(&self, metadata: &Metadata, subnqn: &Nqn, nsid: u32) -> bool {
        let place = self.files.get(&FileId::of_metadata(metadata));
        place.is_some_and(|(nqn, other)| (nqn, *other) == (subnqn, nsid))
    }

    /// What is served.
    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// Carries out what is different in `written`, and serves what is there now of what was waited
    /// for. Returns it in words.
    ///
    /// # Errors
    /// Something cannot be opened, or the change needs a restart. Then
    /// what was served is served as before; but for files that have exchanged their names, which
    /// are taken out before they can be opened: what can be checked before that is.
    pub(crate) fn reload(
        &mut self,
        mut written: Config,
        control: &Arc<ControlPlane>,
        reactors: usize,
    ) -> anyhow::Result<Reloaded> {
        for line in answers::take_out_silent_exports(&mut written) {
            tracing::error!("{line}");
        }
        let answering = keep_out(&mut written, &self.config);
        let mut reloaded = self.carry_out_swapped(&written, control, reactors)?;
        let answers = |awaited: &Awaited| match awaited {
            Awaited::Export(path) => answering.contains(path),
            Awaited::Listener(_) | Awaited::Namespace(..) => true,
        };
        match self.take_in_there(answers, control, reactors) {
            0 => {}
            come => reloaded.summary += &format!(", come that were waited for: {come}"),
        }
        Ok(reloaded)
    }

    fn carry_out_swapped(
        &mut self,
        written: &Config,
        control: &Arc<ControlPlane>,
        reactors: usize,
    ) -> anyhow::Result<Reloaded> {
        control.look_at_media();
        let swapped = self.swapped(written, &control.media().elsewhere());
        if swapped.is_empty() {
            return self.carry_out(written, control, reactors, Step::Whole);
        }
        let rest = self.rest(&swapped);
        self.check_put_back(written, &rest, &swapped, reactors)
            .context(
                "files have exchanged their names, and could not all be put back once they were taken out; nothing was \
                 changed",
            )?;
        // It has none of these, and forgets them otherwise.
        let unknown = mem::take(&mut self.unknown);
        let first = self.carry_out(&rest, control, reactors, Step::TakeOut);
        self.unknown = unknown;
        let first = first?;
        for one in &swapped {
            tracing::info!("{}", one.in_words());
        }
        let then = self.carry_out(written, control, reactors, Step::Whole);
        let then = then.with_context(|| {
            format!(
                "files had exchanged their names, and their namespaces were taken out ({}); they are not put back: a reload tries \
                 again",
                first.summary
            )
        })?;
        Ok(Reloaded {
            summary: format!("{}, and then {}", first.summary, then.summary),
            namespaces: [first.namespaces, then.namespaces].concat(),
            warnings: [first.warnings, then.warnings].concat(),
        })
    }

    /// Carries out what is different in `written`.
    fn carry_out(
        &mut self,
        written: &Config,
        control: &Arc<ControlPlane>,
        reactors: usize,
        step: Step,
    ) -> anyhow::Result<Reloaded> {
        let (wanted, difference, replaced) =
            self.compare(written, &control.media().replaceable())?;
        self.check_files_are_free(&difference, |_| true)?;
        let is_added = |subnqn: &Nqn, namespace: &Namespace| {
            let mut added = difference.namespaces_added.iter();
            added.any(|(nqn, new)| nqn == subnqn && new.nsid == namespace.nsid)
        };
        let is_writable = |nqn: &Nqn, n: &Namespace| difference.makes_writable(nqn, n);
        let is_written = |nqn: &Nqn, n: &Namespace| is_added(nqn, n) || is_writable(nqn, n);
        self.opened.check_added(&self.config, &wanted, is_written)?;
        let is_reopened =
            |nqn: &Nqn, n: &Namespace| is_writable(nqn, n) && self.is_reopened(control, nqn, n);
        let is_opened = |nqn: &Nqn, n: &Namespace| is_added(nqn, n) || is_reopened(nqn, n);
        let warnings = wanted.check_machine_opening(is_opened)?;
        // What is wrong with a configuration was said when it was read.
        let warnings = match step {
            Step::Whole => warnings,
            Step::TakeOut | Step::TakeIn => Vec::new(),
        };
        for warning in first_of(&warnings) {
            tracing::warn!("{warning}");
        }
        let warnings = self.new_of(&warnings);
        room::check_added(&wanted, is_added, reactors)?;
        // Directories that are the same may have another file system mounted by now.
        let directories = match (&self.nfs, &wanted.nfs) {
            (Some(files), Some(nfs)) if step == Step::Whole => Some(files.prepare(nfs)?),
            _ => None,
        };
        let namespaces = wanted.subsystems.iter();
        let namespaces = namespaces.flat_map(|of| of.namespaces.iter().map(|n| (&of.nqn, n)));
        let opened = namespaces.filter(|(nqn, namespace)| is_opened(nqn, namespace));
        let claim = |files: &Files| files.claim(opened);
        let claims = self.nfs.as_ref().map(claim).transpose();
        let claims = claims.context("nothing was changed")?;
        let told = self.told.prepare(&wanted.metrics, control);
        let told = told.context("nothing was changed")?;
        let prepared = self.prepare(&difference, reactors)?;
        let reopened = self.reopen(&difference, control, reactors)?;
        let added = prepared.iter().map(|p| &p.export);
        let both = added.chain(reopened.iter().map(|of| &of.after));
        let exports: Vec<_> = both.map(Arc::clone).collect();
        let opened = open(&exports, control, reactors).and_then(|()| match self.identities.keep()? {
            Kept::Yes => Ok(()),
            Kept::ChooseAgain => bail!(
                "another target with the same state folder has chosen what hosts know a namespace by meanwhile: reload \
                 again; nothing was changed"
            ),
        });
        let listens = opened.and_then(|()| {
            listening::check(&self.config.listeners, &wanted.listeners)?;
            listening::change(control, &mut self.ports, &wanted.listeners)
        });
        let ports_gone = match listens {
            Ok(gone) => gone,
            Err(error) => {
                close(prepared.iter().map(|p| p.export.backend), control);
                altered::undo(&reopened, control, reactors);
                // One that was in the way is another port now.
                offer(&self.ports, &self.config, control)?;
                return Err(error);
            }
        };
        let removed: Vec<_> = difference
            .namespaces_removed
            .iter()
            .filter_map(|name| self.backends.remove(name))
            .collect();
        self.files
            .retain(|_, name| !difference.namespaces_removed.contains(name));
        let added = difference.namespaces_added.iter();
        self.files
            .extend(added.filter_map(|(nqn, n)| Some((FileId::of(n)?, (nqn.clone(), n.nsid)))));
        for Prepared {
            subnqn,
            shown,
            export,
        } in &prepared
        {
            let name = (subnqn.clone(), shown.nsid);
            self.backends.insert(name, shown.backend);
            control.backend_opened(export);
        }
        listening::remove(control, &mut self.ports, &ports_gone);
        altered::watch(&difference, &reopened, control);
        let numbers = self.ports.in_order(&wanted.listeners);
        let ports = (&self.ports, &numbers[..]);
        let reservations = self.identities.reservations();
        let shown = (prepared, &reopened[..], reservations);
        show(ports, &difference, shown, control)?;
        if !difference.listeners.is_empty() {
            offer(&self.ports, &wanted, control)?;
        }
        control.tell_of_lost();
        // The queues have their new tables in the mailbox before this.
        close(removed.into_iter(), control);
        let mut moved = 0;
        if let Some(files) = &mut self.nfs {
            files.keep(claims.unwrap_or_default(), &difference.namespaces_removed);
            if let Some(directories) = directories {
                moved = files
                    .replace(directories)
                    .iter()
                    .filter(|of| of.is_elsewhere())
                    .count();
            }
        }
        let namespaces: Vec<_> = difference
            .of_namespaces()
            .chain(difference.of_groups(&wanted.listeners))
            .collect();
        for line in namespaces
            .iter()
            .cloned()
            .chain(numbers_kept(written, &wanted))
        {
            tracing::info!("{line}");
        }
        for one in &replaced {
            tracing::info!("{}", one.in_words());
        }
        self.opened.follow(&wanted, is_added);
        let silent = exports::absent_and_served(&wanted, &self.config);
        self.told.replace(told, control);
        if wanted.target.log != self.config.target.log {
            crate::log::set_level(wanted.target.log.as_str());
        }
        self.config = wanted;
        self.wait_for_absent();
        let resized = control.look_at_media();
        let away = control.media().away();
        for words in away.iter().filter(|_| step == Step::Whole) {
            tracing::warn!("{words}");
        }
        let mut words = Vec::new();
        if !self.unknown.is_empty() {
            let count = self.unknown.len();
            words.push(format!(
                "namespaces that are not served, as their LBA size is not known: {count}"
            ));
        }
        if moved > 0 {
            words.push(format!("exports whose paths lead elsewhere now: {moved}"));
        }
        if silent > 0 {
            words.push(format!("exports that do not answer any more: {silent}"));
        }
        let of_exports = moved + silent;
        let is_all = resized == 0 && away.is_empty() && of_exports == 0;
        if difference != Difference::default() || is_all {
            words.push(difference.to_string());
        }
        if resized > 0 {
            words.push(format!("namespaces resized: {resized}"));
        }
        if !away.is_empty() {
            let count = away.len();
            words.push(format!(
                "namespaces that go on with what is not at its path any more: {count}"
            ));
        }
        Ok(Reloaded {
            summary: words.join(", "),
            namespaces,
            warnings,
        })
    }

    /// Those of the warnings of a configuration that there are not of what is served.
    fn new_of(&self, warnings: &[Warning]) -> Vec<String> {
        if warnings.is_empty() {
            return Vec::new();
        }
        let before = self.config.check_machine_opening(|_, _| false);
        // What is served is in order; where it is not any more, everything is news.
        let before = before.unwrap_or_default();
        let is_new = |warning: &&Warning| before.iter().all(|of| of.message != warning.message);
        warnings
            .iter()
            .filter(is_new)
            .map(ToString::to_string)
            .collect()
    }

    /// What is written with an NSID for each namespace, and what that changes, with what another
    /// medium has taken the place of: of those that may be `left`. The state folder is asked for
    /// namespaces that come alone: it may not answer, and what goes does not wait for it.
    fn compare(
        &mut self,
        written: &Config,
        left: &[(Nqn, u32, String)],
    ) -> anyhow::Result<(Config, Difference, Vec<Replaced>)> {
        // What is known so far may not let it be numbered.
        if let Ok(wanted) = self.identities.number(written, Some(&self.config)) {
            let known = self.compare_with(wanted, left)?;
            if known.1.namespaces_added.is_empty() {
                self.unknown.clear();
                return Ok(known);
            }
        }
        self.identities.look_again()?;
        self.lba_sizes.look_again();
        let mut wanted = self.identities.number(written, Some(&self.config))?;
        // What the start could not serve keeps no other change waiting.
        let is_asked = |nqn: &Nqn, namespace: &Namespace| self.was_unknown(nqn, namespace);
        let was_served = |path: &Path| self.identities.was_served(path);
        let unknown = self
            .lba_sizes
            .take_out_unknown(&mut wanted, is_asked, was_served);
        for unknown in &unknown {
            tracing::error!("{unknown}. Then reload");
        }
        let compared = self.compare_with(wanted, left)?;
        if !compared.2.is_empty() {
            let rest = self.config_without(&compared.2);
            self.identities.check(&compared.0, &rest)?;
        }
        self.unknown = unknown;
        Ok(compared)
    }

    /// Whether the start could not serve it, nor a reload since.
    fn was_unknown(&self, nqn: &Nqn, namespace: &Namespace) -> bool {
        let mut unknown = self.unknown.iter();
        unknown.any(|of| of.subnqn == *nqn && of.namespace.backing == namespace.backing)
    }

    fn compare_with(
        &self,
        wanted: Config,
        left: &[(Nqn, u32, String)],
    ) -> anyhow::Result<(Config, Difference, Vec<Replaced>)> {
        let mut difference = difference(&self.config, &wanted)?;
        let replaced = self.replaced(&wanted, left);
        difference.replace(&replaced);
        Ok((wanted, difference, replaced))
    }

    /// A file or device that is served, or was until now, is open until what it is served as has
    /// been taken out.
    /// Those that do not stay are taken out before.
    fn check_files_are_free(
        &self,
        difference: &Difference,
        stays: impl Fn(&(Nqn, u32)) -> bool,
    ) -> anyhow::Result<()> {
        for (nqn, namespace) in &difference.namespaces_added {
            let served = FileId::of(namespace).and_then(|file| self.files.get(&file));
            if let Some((other, nsid)) = served.filter(|place| stays(place)) {
                let step = if (other, *nsid) == (nqn, namespace.nsid) {
                    " under another path: take it out of the file, reload, put it back in"
                } else {
                    ": take both out of the file, reload, put this one back in"
                };
                bail!(
                    "namespace {} of {nqn} is {}, which is served as namespace {nsid} of {other}{step}, \
                     and reload again; nothing was changed",
                    namespace.nsid,
                    namespace.backing,
                );
            }
        }
        Ok(())
    }

    fn prepare(
        &mut self,
        difference: &Difference,
        reactors: usize,
    ) -> anyhow::Result<Vec<Prepared>> {
        let added = difference.namespaces_added.iter();
        self.identities.drop_chosen();
        added
            .map(|(subnqn, namespace)| {
                let backend = BackendId(self.next_backend);
                self.next_backend = self
                    .next_backend
                    .checked_add(1)
                    .context("too many reloads: restart the target")?;
                // A reload does not wait for what a killed target has left.
                let opening = Opening {
                    reactors,
                    waits: Duration::ZERO,
                    lba_sizes: &mut self.lba_sizes,
                    identities: &mut self.identities,
                };
                let (export, shown) = opening.export(subnqn, namespace, backend)?;
                Ok(Prepared {
                    subnqn: subnqn.clone(),
                    export: Arc::new(export),
                    shown,
                })
            })
            .collect()
    }
}

/// The namespaces that have another NSID than that of their place, in words.
pub(crate) fn numbers_kept(written: &Config, wanted: &Config) -> impl Iterator<Item = String> {
    let subsystems = written.subsystems.iter().zip(&wanted.subsystems);
    subsystems.flat_map(|(written, wanted)| {
        let open = written.namespaces.iter();
        open.filter(|n| !n.nsid_is_written && n.backing.lasts())
            .filter_map(|n| {
                let same = wanted.namespaces.iter().find(|w| w.backing == n.backing)?;
                (same.nsid != n.nsid).then(|| {
                    format!(
                        "namespace {} of {}: number kept, on {} (`nsid` in its [[subsystem.namespace]] says one)",
                        same.nsid, wanted.nqn, n.backing
                    )
                })
            })
    })
}

/// Volumes whose losses the operator has cleared by the command are opened anew, which the kernel
/// has told nothing yet, and promise again. So many.
///
/// # Errors
/// A reactor does not open them; then nothing is cleared.
pub(crate) fn clear_lost(control: &ControlPlane, reactors: usize) -> anyhow::Result<usize> {
    let cleared: Vec<_> = control.cleared_by_command();
    let cleared: Vec<_> = cleared.into_iter().map(Arc::new).collect();
    open(&cleared, control, reactors)?;
    for export in &cleared {
        control.loss_cleared(export);
        let path = export.store.name();
        tracing::warn!(
            "what {path} has lost is cleared by `capstan-target clear-lost-writes`: Flush and FUA writes of it are carried \
             out again"
        );
    }
    Ok(cleared.len())
}

/// Lets every reactor open the volumes.
fn open(exports: &[Arc<Export>], control: &ControlPlane, reactors: usize) -> anyhow::Result<()> {
    let (opened, answers) = mpsc::channel();
    for export in exports {
        control.broadcast(|| Message::OpenVolume {
            export: Arc::clone(export),
            opened: opened.clone(),
        });
    }
    let deadline = Instant::now() + OPEN_TIMEOUT;
    for _ in 0..exports.len() * reactors {
        let left = deadline.saturating_duration_since(Instant::now());
        answers
            .recv_timeout(left.max(Duration::from_millis(1)))
            .map_err(|_| anyhow!("a reactor does not open a volume within {OPEN_TIMEOUT:?}"))??;
    }
    Ok(())
}

fn close(backends: impl Iterator<Item = BackendId>, control: &ControlPlane) {
    for backend in backends {
        control.backend_closed(backend);
    }
}

/// Offers every subsystem at every port, in the ANA states that its groups have there.
fn offer(ports: &Ports, config: &Config, control: &ControlPlane) -> anyhow::Result<()> {
    let ids = ports.ids();
    let numbers = ports.in_order(&config.listeners);
    let offered = control.with(|target| {
        let mut subsystems = config.subsystems.iter();
        subsystems.try_for_each(|of| {
            target.set_ports(&of.nqn, &ids)?;
            target.set_ana_states(&of.nqn, ana_states(of, &numbers))
        })
    });
    offered.context("the controllers do not take the change: restart the target")
}

/// Changes what hosts see, in one step.
fn show(
    (ports, numbers): (&Ports, &[PortId]),
    difference: &Difference,
    (prepared, reopened, reservations): (Vec<Prepared>, &[Reopened], &Reservations),
    control: &ControlPlane,
) -> anyhow::Result<()> {
    control
        .with(|target| {
            for nqn in &difference.subsystems_removed {
                target.remove_subsystem(nqn)?;
            }
            for (nqn, nsid) in &difference.namespaces_removed {
                if !difference.subsystems_removed.contains(nqn) {
                    target.remove_namespace(nqn, *nsid)?;
                }
            }
            for subsystem in &difference.subsystems_added {
                target.add_subsystem(subsystem_config(subsystem, ports.ids()))?;
                target.set_ana_states(&subsystem.nqn, ana_states(subsystem, numbers))?;
            }
            for (nqn, access) in &difference.hosts_changed {
                target.set_hosts(nqn, host_policy(access))?;
            }
            difference.show_altered(target, reopened, numbers)?;
            prepared.into_iter().try_for_each(|new| {
                let mut shown = new.shown;
                // A host may have changed those of a namespace that has just gone, since they were
                // looked for.
                reservations.refresh(shown.identity.uuid, &mut shown.persistence);
                target.add_namespace(&new.subnqn, shown)
            })
        })
        .context("the controllers do not take the change: restart the target")
}

#[cfg(test)]
mod tests;
