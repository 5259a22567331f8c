//! ANA groups: what hosts may do with their namespaces by each listener.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use capstan_config::{AnaState, Config, Subsystem, Through, Written};
use capstan_control::answer::{AnaGroup, AnaPath, Changed};
use capstan_control::{AnaPlace, Failure, Kind, SetAna};

use super::Steering;
use super::change::{Edited, edited, subsystem};
use super::words::Words;

impl Steering {
    pub(super) fn set_ana(&self, set: &SetAna) -> Result<Changed, Failure> {
        let SetAna {
            subsystem: of,
            group,
            state,
            listeners,
        } = set;
        let words = Words::new("ana set").argument(of).argument(group);
        let words = by(words.argument(state), listeners);
        self.change(words, |text, config| {
            let state = read_state(state)?;
            let of = subsystem("subsystem", of, config)?;
            let chosen = chosen(listeners, config)?;
            let is_so = |at: &usize| state_of(of, *at, *group) == state;
            let all = || (0..config.listeners.len()).collect();
            if chosen.clone().unwrap_or_else(all).iter().all(is_so) {
                let words = format!(
                    "ANA group {group} of {} is {state} already{}; nothing is to be changed",
                    of.nqn,
                    match listeners.is_empty() {
                        true => String::new(),
                        false => format!(" through {}", listeners.join(", ")),
                    }
                );
                return Err(Failure::new(Kind::Exists, words));
            }
            edit(text, config, of, (*group, Some(state)), chosen.as_deref())
        })
    }

    pub(super) fn remove_ana(&self, place: &AnaPlace) -> Result<Changed, Failure> {
        let AnaPlace {
            subsystem: of,
            group,
            listeners,
        } = place;
        let words = by(
            Words::new("ana remove").argument(of).argument(group),
            listeners,
        );
        self.change(words, |text, config| {
            let of = subsystem("subsystem", of, config)?;
            let chosen = chosen(listeners, config)?;
            edit(text, config, of, (*group, None), chosen.as_deref())
        })
    }

    /// Groups that have a namespace or a state that is written down.
    pub(super) fn ana_groups(&self, of: Option<&str>) -> Result<Vec<AnaGroup>, Failure> {
        let published = self.published();
        let config = &published.config;
        let one = of
            .map(|of| subsystem("subsystem", of, config))
            .transpose()?;
        // As hosts connect to them.
        let listeners = self.listeners();
        let all = config.subsystems.iter();
        let chosen = all.filter(|of| one.is_none_or(|one| one.nqn == of.nqn));
        let groups = chosen.flat_map(|of| {
            let used = of.namespaces.iter().map(|namespace| namespace.ana_group);
            let written = of.ana.keys().map(|(_, group)| *group);
            let groups: BTreeSet<_> = used.chain(written).collect();
            groups.into_iter().map(move |group| (of, group))
        });
        let shown = groups.map(|(of, group)| AnaGroup {
            subsystem: of.nqn.to_string(),
            group,
            namespaces: of
                .namespaces
                .iter()
                .filter(|namespace| namespace.ana_group == group)
                .map(|namespace| namespace.nsid)
                .collect(),
            paths: (0..)
                .zip(&listeners)
                .map(|(at, listener)| AnaPath {
                    listener: listener.address.clone(),
                    state: state_of(of, at, group).to_string(),
                })
                .collect(),
        });
        Ok(shown.collect())
    }
}

/// The state of a group by a listener.
pub(super) fn state_of(of: &Subsystem, listener: usize, group: u32) -> AnaState {
    let written = of.ana.get(&(listener, group)).copied();
    written.unwrap_or(AnaState::Optimized)
}

fn edit(
    text: &mut Written,
    config: &Config,
    of: &Subsystem,
    (group, state): (u32, Option<AnaState>),
    chosen: Option<&[usize]>,
) -> Edited {
    let all: Vec<SocketAddr> = config.listeners.iter().map(|of| of.address).collect();
    let meant: Vec<SocketAddr> = chosen
        .into_iter()
        .flatten()
        .filter_map(|at| all.get(*at).copied())
        .collect();
    let through = Through {
        meant: chosen.is_some().then_some(&meant[..]),
        all: &all,
    };
    edited(text.set_ana_state(&of.nqn, group, state, through))
}

/// With listeners by their names, as options; what has changed of groups says that it is done.
fn by(words: Words, listeners: &[String]) -> Words {
    let with = |words: Words, one| words.option("--listener", Some(one));
    listeners.iter().fold(words, with).told_by_namespaces()
}

fn read_state(word: &str) -> Result<AnaState, Failure> {
    let found = AnaState::ALL
        .into_iter()
        .find(|state| state.as_str() == word);
    found.ok_or_else(|| {
        let names = AnaState::ALL.map(AnaState::as_str).join(", ");
        let words = format!(
            "state is `{}`; expected one of {names}",
            word.escape_debug()
        );
        Failure::new(Kind::Invalid, words)
            .of_field("state")
            .of_value(word)
            .allowed(names)
    })
}

/// The numbers of the listeners that are named; `None`: none is, they are all meant.
fn chosen(named: &[String], config: &Config) -> Result<Option<Vec<usize>>, Failure> {
    let all = &config.listeners;
    if named.is_empty() {
        return Ok(None);
    }
    let known: Vec<_> = all.iter().map(|of| of.address.to_string()).collect();
    let mut chosen = Vec::new();
    for name in named {
        let address = name.parse::<SocketAddr>().ok();
        let found = (0..).zip(all);
        // Port 0 may be that of several.
        let found = found.filter(|(_, listener)| Some(listener.address) == address);
        let before = chosen.len();
        chosen.extend(found.map(|(at, _)| at));
        if chosen.len() == before {
            let names = known.iter().map(String::as_str);
            return Err(Failure::not_found("listener", "listeners", name, names));
        }
    }
    Ok(Some(chosen))
}
