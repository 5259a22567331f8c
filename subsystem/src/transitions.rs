//! State machines as tables: every transition is one line, everything else is an error, and the
//! whole table can be printed (a test compares it with a committed file).

/// A transition that the table does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{machine}: {event} is not possible in state {state}")]
pub struct IllegalTransition {
    /// Name of the state machine.
    pub machine: &'static str,
    /// State it is in.
    pub state: &'static str,
    /// What happened.
    pub event: &'static str,
}

/// Declares a state enum, an event enum and the transitions between the states.
macro_rules! transitions {
    (
        $(#[$state_meta:meta])*
        states $state:ident { $( $(#[$sv_meta:meta])* $sv:ident, )+ }
        $(#[$event_meta:meta])*
        events $event:ident { $( $(#[$ev_meta:meta])* $ev:ident, )+ }
        table { $( $from:ident, $on:ident => $to:ident; )+ }
    ) => {
        $(#[$state_meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $state { $( $(#[$sv_meta])* $sv, )+ }

        $(#[$event_meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $event { $( $(#[$ev_meta])* $ev, )+ }

        impl $state {
            /// Every state, in the order of the declaration.
            pub const ALL: &'static [Self] = &[ $( Self::$sv, )+ ];
            /// Every transition: state, event, next state.
            pub const TABLE: &'static [(Self, $event, Self)] =
                &[ $( (Self::$from, $event::$on, Self::$to), )+ ];

            /// Name of the state.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$sv => stringify!($sv), )+ }
            }

            /// The state after `event`.
            ///
            /// # Errors
            /// [`IllegalTransition`](crate::IllegalTransition) when the table has none.
            pub fn after(self, event: $event) -> Result<Self, $crate::IllegalTransition> {
                match (self, event) {
                    $( (Self::$from, $event::$on) => Ok(Self::$to), )+
                    (state, event) => Err($crate::IllegalTransition {
                        machine: stringify!($state),
                        state: state.name(),
                        event: event.name(),
                    }),
                }
            }
        }

        impl $event {
            /// Every event, in the order of the declaration.
            pub const ALL: &'static [Self] = &[ $( Self::$ev, )+ ];

            /// Name of the event.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$ev => stringify!($ev), )+ }
            }
        }
    };
}
pub(crate) use transitions;

#[cfg(test)]
mod tests {
    extern crate std;
    use std::fmt::Write as _;
    use std::string::String;

    use crate::controller::{ControllerEvent, ControllerState};
    use crate::{IoQueueEvent, IoQueueState};

    macro_rules! render {
        ($out:ident, $state:ident, $event:ident) => {
            writeln!($out, "{}", stringify!($state)).unwrap();
            for state in $state::ALL {
                for event in $event::ALL {
                    let next = match state.after(*event) {
                        Ok(next) => next.name(),
                        Err(_) => "-",
                    };
                    writeln!($out, "  {:<14} {:<20} {next}", state.name(), event.name()).unwrap();
                }
            }
            assert_eq!(
                $state::ALL.len() * $event::ALL.len() - $state::TABLE.len(),
                $state::ALL
                    .iter()
                    .flat_map(|state| $event::ALL.iter().map(|event| state.after(*event)))
                    .filter(Result::is_err)
                    .count(),
                "a transition is declared twice"
            );
        };
    }

    /// `tests/transitions.txt` is the reviewed table: a change of behaviour is a change of it.
    #[test]
    fn the_tables_are_those_on_file() {
        let mut table = String::new();
        render!(table, ControllerState, ControllerEvent);
        render!(table, IoQueueState, IoQueueEvent);
        let on_file = include_str!("../tests/transitions.txt");
        assert!(
            table == on_file,
            "tests/transitions.txt differs; if the change is meant, make it:\n{table}"
        );
    }
}
