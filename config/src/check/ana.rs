//! Checks of `[[subsystem.ana]]`.

use std::collections::{BTreeMap, HashMap};

use toml::Spanned;

use super::Checker;
use crate::schema::RawAna;
use crate::{AnaState, At, Listener, ProblemKind, limits, suggest};

/// The listeners that the file has: not all may be in order.
pub(super) struct Listeners<'c> {
    pub(super) all: &'c [Listener],
    pub(super) written: usize,
}

impl Checker<'_> {
    /// The states of a subsystem's groups through each listener, by its number.
    pub(super) fn ana(
        &mut self,
        field: &str,
        raw: &[Spanned<RawAna>],
        listeners: &Listeners<'_>,
    ) -> BTreeMap<(usize, u32), AnaState> {
        let list = format!("{field}.ana");
        self.count(&list, raw.len(), limits::ANA_TABLES_MAX);
        let mut states = BTreeMap::new();
        let mut first: HashMap<(usize, u32), At> = HashMap::new();
        for (index, entry) in raw.iter().enumerate().take(limits::ANA_TABLES_MAX) {
            let field = format!("{list}[{index}]");
            let group = self.ana_group(&field, entry);
            let state = entry.get_ref().state;
            if state.is_none() {
                let kind = ProblemKind::Missing(
                    "`state = \"…\"`: optimized, non-optimized, inaccessible, persistent-loss or change",
                );
                self.report(format!("{field}.state"), Some(entry.span()), kind);
            }
            let through = self.ana_listeners(&field, entry, listeners);
            let (Some(group), Some(state)) = (group, state) else {
                continue;
            };
            for listener in through {
                let at = self.at(&field, Some(entry.span()));
                if let Some(first) = first.get(&(listener, group)) {
                    let kind = ProblemKind::TwoAnaStates {
                        group,
                        listener: listeners.all[listener].address,
                        first: first.clone(),
                    };
                    self.report(&field, Some(entry.span()), kind);
                    // Once for a table.
                    break;
                }
                first.insert((listener, group), at);
                states.insert((listener, group), state);
            }
        }
        states
    }

    fn ana_group(&mut self, field: &str, entry: &Spanned<RawAna>) -> Option<u32> {
        let field = format!("{field}.group");
        let Some(group) = &entry.get_ref().group else {
            let kind = ProblemKind::Missing("`group = …`, the `ana_group` of its namespaces");
            self.report(field, Some(entry.span()), kind);
            return None;
        };
        Some(self.number(&field, Some(group), 0, limits::ANA_GROUP)).filter(|&group| group != 0)
    }

    /// The numbers of the listeners that a table names, or of all.
    fn ana_listeners(
        &mut self,
        field: &str,
        entry: &Spanned<RawAna>,
        listeners: &Listeners<'_>,
    ) -> Vec<usize> {
        let Some(named) = &entry.get_ref().listeners else {
            return (0..listeners.all.len()).collect();
        };
        let field = format!("{field}.listeners");
        if named.get_ref().is_empty() {
            let allowed = "addresses and ports of listeners; left out, it is all of them";
            self.not_allowed(&field, named.span(), "[]", allowed);
        }
        let known: Vec<String> = listeners
            .all
            .iter()
            .map(|of| of.address.to_string())
            .collect();
        let mut through = Vec::new();
        for name in named.get_ref() {
            let address = name.get_ref().parse().ok();
            let found = (0..).zip(listeners.all);
            let mut found = found.filter(|(_, listener)| Some(listener.address) == address);
            match found.next() {
                // Port 0 may be that of several.
                Some((at, _)) => through.extend([at].into_iter().chain(found.map(|(at, _)| at))),
                // It may be the one that is not in order.
                None if listeners.all.len() < listeners.written => {}
                None => {
                    let nearest =
                        suggest::nearest(name.get_ref(), known.iter().map(String::as_str));
                    let kind = ProblemKind::NoListener {
                        value: name.get_ref().clone(),
                        nearest: nearest.map(str::to_owned),
                        known: known.join(", "),
                    };
                    self.report(&field, Some(name.span()), kind);
                }
            }
        }
        through
    }
}
