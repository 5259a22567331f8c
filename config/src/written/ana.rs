//! Changes of `[[subsystem.ana]]`: the states of ANA groups.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use toml_edit::{Item, TableLike};

use super::{
    EditError, Entry, EntryValue, Written, document, no_subsystem, not_there, push, set, subsystem,
    subsystem_at, tables, without,
};
use crate::{AnaState, Nqn};

/// The listeners that are meant, and all that there are.
#[derive(Clone, Copy, Debug)]
pub struct Through<'a> {
    /// Those that are meant; `None`: all, also those that come later.
    pub meant: Option<&'a [SocketAddr]>,
    /// All, which a table without `listeners` means.
    pub all: &'a [SocketAddr],
}

impl Through<'_> {
    fn means(&self, listener: &SocketAddr) -> bool {
        self.meant.is_none_or(|meant| meant.contains(listener))
    }

    /// Those of a table.
    fn of(&self, table: &dyn TableLike) -> Vec<SocketAddr> {
        let Some(named) = table.get("listeners").and_then(Item::as_array) else {
            return self.all.to_vec();
        };
        let texts = named.iter().filter_map(|name| name.as_str());
        texts.filter_map(|text| text.parse().ok()).collect()
    }

    /// Says nothing of those that are meant any more. Which tables have none left, by their
    /// numbers; `None`: nothing was said of them.
    fn take_out(&self, within: &mut dyn TableLike, group: u32) -> Option<Vec<usize>> {
        let mut gone = None;
        for (at, table) in tables(within, "ana").into_iter().enumerate() {
            if group_of(table) != Some(group) {
                continue;
            }
            let of_it = self.of(table);
            let is_left = |one: &SocketAddr| !self.means(one);
            let left: Vec<_> = of_it.iter().copied().filter(is_left).collect();
            if left.len() == of_it.len() {
                continue;
            }
            let gone = gone.get_or_insert_with(Vec::new);
            match left.is_empty() {
                true => gone.push(at),
                false => set(table, "listeners", Some(&texts(&left))),
            }
        }
        gone
    }

    /// Says it of those that are meant, in the table with this number or in one more.
    fn put_in(
        &self,
        within: &mut dyn TableLike,
        group: u32,
        state: AnaState,
        at: Option<usize>,
    ) -> Result<(), EditError> {
        let state = EntryValue::Text(state.as_str().to_owned());
        let listeners = self.meant.map(texts);
        let table = at.and_then(|at| tables(within, "ana").into_iter().nth(at));
        if let Some(table) = table {
            set(table, "state", Some(&state));
            set(table, "listeners", listeners.as_ref());
            return Ok(());
        }
        let mut entry: Entry = vec![("group", EntryValue::Number(group)), ("state", state)];
        entry.extend(listeners.map(|listeners| ("listeners", listeners)));
        push(within, "ana", &entry)
    }
}

impl Written {
    /// Gives an ANA group of a subsystem a state by some listeners. Without a state nothing is said
    /// of it by these any more: it is optimized.
    ///
    /// # Errors
    /// The subsystem is not there; or nothing is said of it, where it is to be taken out.
    pub fn set_ana_state(
        &mut self,
        nqn: &Nqn,
        group: u32,
        state: Option<AnaState>,
        through: Through<'_>,
    ) -> Result<(), EditError> {
        self.edit_text(|text| {
            let mut document = document(text)?;
            let subsystem_at = subsystem_at(&mut document, nqn).ok_or_else(|| no_subsystem(nqn))?;
            let within = subsystem(&mut document, nqn)?;
            let mut gone = through.take_out(within, group);
            match (state, &mut gone) {
                (None, None) => {
                    let what = format!("a state of ANA group {group} of {nqn}");
                    return Err(not_there(what));
                }
                (None, Some(_)) => {}
                (Some(state), gone) => {
                    // One that would go says it now, with the comments that it has.
                    let kept = gone.as_mut().filter(|gone| !gone.is_empty());
                    let kept = kept.map(|gone| gone.remove(0));
                    through.put_in(within, group, state, kept)?;
                }
            }
            let places = gone.unwrap_or_default();
            // From the last on, as each moves those behind it.
            let mut places = places.into_iter().rev();
            places.try_fold(document.to_string(), |text, at| {
                without(&text, &[("subsystem", subsystem_at), ("ana", at)])
            })
        })
    }
}

/// What `listeners` says of these.
fn texts(these: &[SocketAddr]) -> EntryValue {
    EntryValue::Texts(these.iter().map(ToString::to_string).collect())
}

/// Says nothing of a listener that goes, in any subsystem of a file.
pub(super) fn without_listener(text: &str, listener: SocketAddr) -> Result<String, EditError> {
    let mut document = document(text)?;
    let through = Through {
        meant: Some(&[listener]),
        all: &[],
    };
    let mut gone = Vec::new();
    let subsystems = tables(document.as_table_mut(), "subsystem");
    for (subsystem_at, within) in subsystems.into_iter().enumerate() {
        let states = tables(within, "ana").into_iter();
        let groups: BTreeSet<_> = states.filter_map(|table| group_of(table)).collect();
        for group in groups {
            let of_group = through.take_out(within, group).unwrap_or_default();
            gone.extend(of_group.into_iter().map(|at| (subsystem_at, at)));
        }
    }
    // From the last on, as each moves those behind it.
    gone.sort_unstable();
    let mut places = gone.into_iter().rev();
    places.try_fold(document.to_string(), |text, (subsystem_at, at)| {
        without(&text, &[("subsystem", subsystem_at), ("ana", at)])
    })
}

fn group_of(table: &dyn TableLike) -> Option<u32> {
    let group = table.get("group").and_then(Item::as_integer)?;
    u32::try_from(group).ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::Through;
    use crate::{AnaState, EditError, Nqn, Written};

    const FILE: &str = r#"[[listener]]
address = "127.0.0.1"

[[listener]]
address = "127.0.0.2"

[[subsystem]]
nqn = "nqn.2026-11.org.example:a"
allow_any_host = true

# By the second one it is slower.
[[subsystem.ana]]
group = 1
state = "non-optimized"   # for now
listeners = ["127.0.0.2:4420"]

# Not yet.
[[subsystem.ana]]
group = 2
state = "inaccessible"

[[subsystem.namespace]]
ram = "1MiB"

[[subsystem]]
nqn = "nqn.2026-11.org.example:b"
allow_any_host = true

[[subsystem.namespace]]
ram = "1MiB"
"#;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:{name}")).unwrap()
    }

    fn listeners() -> [SocketAddr; 2] {
        [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 4420)))
    }

    /// The listener, from 1, the group and the state.
    type State = (usize, u32, AnaState);

    /// What the text says then of subsystem `a` and `b`.
    fn changed(
        text: &mut Written,
        name: &str,
        (group, state): (u32, Option<AnaState>),
        meant: &[usize],
    ) -> Result<[Vec<State>; 2], EditError> {
        let all = listeners();
        let meant: Vec<_> = meant.iter().map(|number| all[number - 1]).collect();
        let through = Through {
            meant: (!meant.is_empty()).then_some(&meant[..]),
            all: &all,
        };
        text.set_ana_state(&nqn(name), group, state, through)?;
        let config = text.config().unwrap();
        Ok([0, 1].map(|at: usize| {
            let states = config.subsystems[at].ana_states();
            states
                .map(|(listener, group, state)| (listener + 1, group, state))
                .collect()
        }))
    }

    #[test]
    fn a_state_is_said_once_for_each_listener_and_comments_stay() {
        use AnaState::{Change, Inaccessible, NonOptimized, PersistentLoss};
        let mut text = Written::of_text(FILE.to_owned());
        // One of the listeners of a table that means both.
        let [a, _] = changed(&mut text, "a", (2, Some(Change)), &[1]).unwrap();
        assert_eq!(
            a,
            [(1, 2, Change), (2, 1, NonOptimized), (2, 2, Inaccessible)]
        );
        assert!(
            text.files()[0].text.contains("# Not yet.\n"),
            "{}",
            text.files()[0].text
        );
        // The only one of a table: that says it now.
        let [a, _] = changed(&mut text, "a", (1, Some(PersistentLoss)), &[2]).unwrap();
        assert_eq!(a[1], (2, 1, PersistentLoss));
        let line = "state = \"persistent-loss\"   # for now\n";
        assert!(
            text.files()[0].text.contains(line),
            "{}",
            text.files()[0].text
        );
        // All of them, of which two tables told.
        let [a, _] = changed(&mut text, "a", (2, Some(NonOptimized)), &[1, 2]).unwrap();
        assert_eq!(
            a,
            [
                (1, 2, NonOptimized),
                (2, 1, PersistentLoss),
                (2, 2, NonOptimized)
            ]
        );
        assert_eq!(text.files()[0].text.matches("[[subsystem.ana]]").count(), 2);
        // A subsystem of which nothing is said.
        let [_, b] = changed(&mut text, "b", (1, Some(Inaccessible)), &[1, 2]).unwrap();
        assert_eq!(b, [(1, 1, Inaccessible), (2, 1, Inaccessible)]);
        // Of listeners that come later nothing is said where those of today were named.
        let [_, b] = changed(&mut text, "b", (1, None), &[1, 2]).unwrap();
        assert_eq!(b, []);
        changed(&mut text, "b", (1, Some(Inaccessible)), &[]).unwrap();
        let table = text.files()[0].text.rsplit("[[subsystem.ana]]").next();
        assert!(table.is_some_and(|table| !table.contains("listeners")));
        // And back to the beginning.
        let [_, b] = changed(&mut text, "b", (1, None), &[1, 2]).unwrap();
        assert_eq!(b, []);
        let [a, _] = changed(&mut text, "a", (2, None), &[2]).unwrap();
        assert_eq!(a, [(1, 2, NonOptimized), (2, 1, PersistentLoss)]);
        changed(&mut text, "a", (2, None), &[1]).unwrap();
        let [a, _] = changed(&mut text, "a", (1, None), &[2]).unwrap();
        assert_eq!(a, []);
        let none = changed(&mut text, "a", (1, None), &[1, 2]);
        assert!(matches!(none, Err(EditError::NotThere(_))), "{none:?}");
        let none = changed(&mut text, "c", (1, Some(Change)), &[1]);
        assert!(matches!(none, Err(EditError::NotThere(_))), "{none:?}");
    }

    #[test]
    fn nothing_is_said_of_a_listener_that_is_taken_out() {
        let mut text = Written::of_text(FILE.to_owned());
        changed(&mut text, "b", (3, Some(AnaState::Change)), &[1, 2]).unwrap();
        text.remove_listener(listeners()[1]).unwrap();
        let config = text.config().unwrap();
        let states = |at: usize| config.subsystems[at].ana_states().collect::<Vec<_>>();
        assert_eq!(states(0), [(0, 2, AnaState::Inaccessible)]);
        assert_eq!(states(1), [(0, 3, AnaState::Change)]);
        assert!(!text.files()[0].text.contains("127.0.0.2"));
        assert!(text.files()[0].text.contains("# Not yet.\n"));
    }
}
