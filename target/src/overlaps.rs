//! Namespaces of one configuration that have the same bytes under two names: a file, and a loop
//! device or a partition of one on it. Hosts of one would overwrite what hosts of the other wrote.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::bail;
use capstan_config::{Backing, Config, Namespace, Nqn};
use capstan_storage::Layers;

/// A namespace on a file or device.
struct Place<'a> {
    subnqn: &'a Nqn,
    namespace: &'a Namespace,
    path: &'a Path,
    layers: Layers,
}

impl Place<'_> {
    /// Whether one of them may be written, with bytes of the other. That one path is not two
    /// namespaces is for the configuration's own check to say.
    fn collides(&self, other: &Self) -> bool {
        let is_written = !(self.namespace.read_only && other.namespace.read_only);
        is_written && self.path != other.path && self.layers.overlaps(&other.layers)
    }

    fn is(&self, other: &Self) -> bool {
        (self.subnqn, self.namespace.nsid) == (other.subnqn, other.namespace.nsid)
    }

    fn name(&self) -> String {
        let nsid = self.namespace.nsid;
        format!(
            "namespace {nsid} of {} ({})",
            self.subnqn,
            self.path.display()
        )
    }
}

/// Those that `layers` tells of.
fn places(
    config: &Config,
    layers: impl Fn(&Nqn, &Namespace, &Path) -> Option<Layers>,
) -> Vec<Place<'_>> {
    let namespaces = config.subsystems.iter().flat_map(|subsystem| {
        let namespaces = subsystem.namespaces.iter();
        namespaces.map(|namespace| (&subsystem.nqn, namespace))
    });
    let places = namespaces.filter_map(|(subnqn, namespace)| {
        let Backing::Path(path) = &namespace.backing else {
            return None;
        };
        Some(Place {
            subnqn,
            namespace,
            path,
            layers: layers(subnqn, namespace, path)?,
        })
    });
    places.collect()
}

/// What the namespaces of a configuration have in common, a line for each two.
pub(crate) fn found(config: &Config) -> Vec<String> {
    let places = places(config, |_, _, path| Layers::of(path).ok());
    let pairs = places.iter().enumerate().flat_map(|(at, one)| {
        let others = places[at + 1..].iter();
        // Two paths to one file are told by the configuration's own check, too.
        others
            .filter(|other| one.collides(other) && !is_one_file(one.path, other.path))
            .map(move |other| (one, other))
    });
    pairs.map(|(one, other)| both(one, other)).collect()
}

fn is_one_file(one: &Path, other: &Path) -> bool {
    let [Ok(one), Ok(other)] = [one, other].map(fs::metadata) else {
        return false;
    };
    let is_device = [&one, &other].map(|of| of.file_type().is_block_device());
    match is_device {
        [true, true] => one.rdev() == other.rdev(),
        [false, false] => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

fn both(one: &Place<'_>, other: &Place<'_>) -> String {
    format!(
        "{} and {} have the same bytes, so hosts of one would overwrite what hosts of the other wrote: take one of them out \
         of the configuration (`lsblk` and `losetup --list` show which device is on what)",
        one.name(),
        other.name()
    )
}

/// What the files and devices that are served are on, as it was when they were opened: they are not
/// looked at again, as they may not answer.
pub(crate) struct Opened(HashMap<PathBuf, Layers>);

impl Opened {
    /// Of a configuration that is about to be served.
    pub(crate) fn of(config: &Config) -> Self {
        let mut opened = Self(HashMap::new());
        opened.follow(config, |_, _| true);
        opened
    }

    /// What was added is open, and what is in `served` no more has been closed.
    pub(crate) fn follow(&mut self, served: &Config, is_added: impl Fn(&Nqn, &Namespace) -> bool) {
        let layers = |subnqn: &Nqn, namespace: &Namespace, path: &Path| {
            if is_added(subnqn, namespace) {
                Layers::of(path).ok()
            } else {
                self.0.get(path).cloned()
            }
        };
        let places = places(served, layers).into_iter();
        self.0 = places
            .map(|place| (place.path.to_owned(), place.layers))
            .collect();
    }

    /// Compares what a reload adds with all else that is `wanted`, and with what is `served`
    /// before.
    ///
    /// # Errors
    /// Some of it has the same bytes.
    pub(crate) fn check_added(
        &self,
        served: &Config,
        wanted: &Config,
        is_added: impl Fn(&Nqn, &Namespace) -> bool,
    ) -> anyhow::Result<()> {
        let opened = |path: &Path| self.0.get(path).cloned();
        let before = places(served, |_, _, path| opened(path));
        let after = places(wanted, |subnqn, namespace, path| {
            if is_added(subnqn, namespace) {
                Layers::of(path).ok()
            } else {
                opened(path)
            }
        });
        for new in after.iter().filter(|p| is_added(p.subnqn, p.namespace)) {
            let mut others = after.iter().filter(|other| !other.is(new));
            if let Some(other) = others.find(|other| new.collides(other)) {
                bail!("{}; nothing was changed", both(other, new));
            }
            if let Some(other) = before.iter().find(|other| new.collides(other)) {
                bail!(
                    "{} has bytes of {}, which is open until that has been taken out: take both out of the file, reload, put \
                     this one back in, and reload again; nothing was changed",
                    new.name(),
                    other.name()
                );
            }
        }
        Ok(())
    }
}
