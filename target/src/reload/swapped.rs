//! Files that are served and have exchanged their names: each namespace has what is at its path
//! now, as after a start.
//!
//! Of exchanged ones each is still served, and none can be opened before all are closed: they are
//! taken out and put back, as by two reloads. Those that others have taken the place of alone are
//! in [`replaced`](super::replaced).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use capstan_config::{Backing, Config, Namespace, Nqn};

use super::{FileId, Served, difference, find};
use crate::{plan, room};

/// A namespace, and where its file is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Swapped {
    subnqn: Nqn,
    path: PathBuf,
    nsid: u32,
    /// What its path leads to now.
    served_as: (Nqn, u32),
}

impl Served {
    /// Those of `moved`, whose media are not at their paths any more, that have exchanged their
    /// names among each other and are still `written`. Their paths are looked at: they have
    /// answered just now.
    pub(super) fn swapped(&self, written: &Config, moved: &[(Nqn, u32)]) -> Vec<Swapped> {
        let places = moved.iter().filter_map(|(subnqn, nsid)| {
            let of = |config: &Config| {
                let mut subsystems = config.subsystems.iter();
                subsystems.find(|s| s.nqn == *subnqn).cloned()
            };
            let namespace = find(&of(&self.config)?, *nsid)?.clone();
            let Backing::Path(path) = &namespace.backing else {
                return None;
            };
            let mut wanted = of(written)?.namespaces.into_iter();
            wanted.find(|wanted| wanted.backing == namespace.backing)?;
            Some(Swapped {
                subnqn: subnqn.clone(),
                path: path.clone(),
                nsid: *nsid,
                served_as: self.files.get(&FileId::of(&namespace)?)?.clone(),
            })
        });
        among_each_other(places.collect())
    }

    /// What is served but for those.
    pub(super) fn rest(&self, swapped: &[Swapped]) -> Config {
        without(&self.config, |nqn, namespace| {
            swapped.iter().any(|one| one.is(nqn, namespace))
        })
    }

    /// Checks what can be known of `written` before those are taken out and the `rest` is served: a
    /// reload that cannot be carried out changes nothing.
    ///
    /// # Errors
    /// It could not be carried out then.
    pub(super) fn check_put_back(
        &mut self,
        written: &Config,
        rest: &Config,
        swapped: &[Swapped],
        reactors: usize,
    ) -> anyhow::Result<()> {
        self.identities.look_again()?;
        self.lba_sizes.look_again();
        let mut wanted = self.identities.number(written, Some(rest))?;
        let was_served = |path: &Path| self.identities.was_served(path);
        let is_asked = |nqn: &Nqn, namespace: &Namespace| self.was_unknown(nqn, namespace);
        let sizes = &self.lba_sizes;
        sizes.take_out_unknown(&mut wanted, is_asked, was_served);
        let difference = difference(rest, &wanted)?;
        let is_added = |subnqn: &Nqn, namespace: &Namespace| {
            let mut added = difference.namespaces_added.iter();
            added.any(|(nqn, new)| nqn == subnqn && new.nsid == namespace.nsid)
        };
        let stays = |place: &(Nqn, u32)| !swapped.iter().any(|one| one.place() == *place);
        self.check_files_are_free(&difference, stays)?;
        self.opened.check_added(rest, &wanted, is_added)?;
        wanted.check_machine_opening(is_added)?;
        room::check_added(&wanted, is_added, reactors)?;
        for (nqn, namespace) in &difference.namespaces_added {
            let lba = sizes.of(nqn, namespace, was_served)?;
            plan::try_open(nqn, namespace, lba.size)?;
        }
        Ok(())
    }
}

/// Leaves out what leads to another file than those of the others, or what is at no path.
fn among_each_other(mut swapped: Vec<Swapped>) -> Vec<Swapped> {
    loop {
        let there: HashSet<_> = swapped.iter().map(Swapped::place).collect();
        let mut at: HashMap<_, u32> = HashMap::new();
        for one in &swapped {
            *at.entry(one.served_as.clone()).or_default() += 1;
        }
        let before = swapped.len();
        // One file at two paths leaves another one without.
        swapped.retain(|one| {
            there.contains(&one.served_as)
                && at[&one.served_as] == 1
                && at.contains_key(&one.place())
        });
        if swapped.len() == before {
            return swapped;
        }
    }
}

impl Swapped {
    fn place(&self) -> (Nqn, u32) {
        (self.subnqn.clone(), self.nsid)
    }

    /// What happens to it, in words.
    pub(super) fn in_words(&self) -> String {
        let (other, nsid) = &self.served_as;
        format!(
            "namespace {} of {}: {} has exchanged its name with others that are served, and is what was opened as namespace \
             {nsid} of {other}: it is taken out and put back",
            self.nsid,
            self.subnqn,
            self.path.display()
        )
    }
}

impl Swapped {
    /// Whether it is this one, in a configuration where it may have another number.
    pub(super) fn is(&self, nqn: &Nqn, namespace: &Namespace) -> bool {
        self.subnqn == *nqn && namespace.backing == Backing::Path(self.path.clone())
    }
}

/// The configuration without the namespaces that go.
pub(super) fn without(config: &Config, goes: impl Fn(&Nqn, &Namespace) -> bool) -> Config {
    let mut rest = config.clone();
    for subsystem in &mut rest.subsystems {
        let nqn = &subsystem.nqn;
        subsystem
            .namespaces
            .retain(|namespace| !goes(nqn, namespace));
    }
    rest
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use capstan_config::Nqn;

    use super::{Swapped, among_each_other};

    /// The namespaces that are left of these, each with the one whose file is at its path.
    fn left(leads_to: &[(u32, u32)]) -> Vec<u32> {
        let nqn = Nqn::new("nqn.2026-11.org.example:a").unwrap();
        let all = leads_to.iter().map(|&(nsid, other)| Swapped {
            subnqn: nqn.clone(),
            path: PathBuf::from("/srv/a"),
            nsid,
            served_as: (nqn.clone(), other),
        });
        let left = among_each_other(all.collect());
        left.iter().map(|one| one.nsid).collect()
    }

    #[test]
    fn only_what_is_exchanged_among_each_other_is_opened_anew() {
        assert_eq!(left(&[(1, 2), (2, 1)]), [1, 2]);
        assert_eq!(
            left(&[(1, 2), (2, 3), (3, 1), (5, 6), (6, 5)]),
            [1, 2, 3, 5, 6]
        );
        // Its file is at the path of another one, and nothing is at that of the file there.
        assert_eq!(left(&[(1, 2)]), [0; 0]);
        assert_eq!(left(&[(1, 2), (2, 3)]), [0; 0]);
        // Two paths lead to one of them.
        assert_eq!(left(&[(1, 2), (2, 1), (3, 1)]), [0; 0]);
        assert_eq!(left(&[(1, 2), (2, 1), (3, 4)]), [1, 2]);
    }
}
