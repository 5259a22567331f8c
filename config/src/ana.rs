//! Asymmetric Namespace Access: states of groups of namespaces.

use std::fmt;

use serde::Deserialize;

use crate::Subsystem;

/// `state` of `[[subsystem.ana]]`: what hosts may do with the namespaces of a group by one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnaState {
    /// ANA Optimized: as well as by any path.
    Optimized,
    /// ANA Non-Optimized: not as well as by another path, which hosts take instead.
    NonOptimized,
    /// ANA Inaccessible: nothing, by this path and for now.
    Inaccessible,
    /// ANA Persistent Loss: nothing, by this path and for good.
    PersistentLoss,
    /// ANA Change: nothing until it has another state.
    Change,
}

impl AnaState {
    /// Every state, in the order of the specification.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// The word as written in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Subsystem {
    /// The states of its groups that are not optimized: the number of the listener, the group, and
    /// the state.
    pub fn ana_states(&self) -> impl Iterator<Item = (usize, u32, AnaState)> {
        let written = self.ana.iter();
        written
            .filter(|(_, state)| **state != AnaState::Optimized)
            .map(|((listener, group), state)| (*listener, *group, *state))
    }
}
