//! Options that a command has in common with others and that do nothing for it: not shown in its
//! help, and refused.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};

/// Commands that send admin commands only.
const ADMIN: [&str; 9] = [
    "discover",
    "id-ctrl",
    "id-ns",
    "list-ns",
    "smart-log",
    "error-log",
    "effects-log",
    "get-feature",
    "admin-passthru",
];

/// Options that do nothing for some commands.
struct Idle {
    options: &'static [&'static str],
    commands: &'static [&'static [&'static str]],
    why: &'static str,
}

const IDLE: [Idle; 3] = [
    Idle {
        options: &["nr_io_queues", "queue_size", "io_timeout"],
        commands: &[&ADMIN],
        why: "which has no I/O queues",
    },
    Idle {
        options: &["reconnect_delay", "ctrl_loss_tmo"],
        commands: &[&ADMIN, &["doctor"]],
        why: "which does not connect again when the controller is lost",
    },
    Idle {
        options: &["keep_alive_tmo"],
        commands: &[&["discover"]],
        why: "which is over before a Keep Alive is due",
    },
];

impl Idle {
    fn is_of(&self, command: &str) -> bool {
        self.commands.iter().any(|names| names.contains(&command))
    }
}

/// Whether `option` does nothing for `command`.
pub(super) fn is_idle(command: &str, option: &str) -> bool {
    IDLE.iter()
        .any(|idle| idle.is_of(command) && idle.options.contains(&option))
}

/// Refuses options that do nothing for their command.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let Some((name, matches)) = matches.subcommand() else {
        return Ok(());
    };
    for idle in IDLE.iter().filter(|idle| idle.is_of(name)) {
        let given = idle
            .options
            .iter()
            .find(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        if let Some(id) = given {
            let option = id.replace('_', "-");
            let text = format!(
                "'--{option}' has no effect on '{name}', {}; leave it out",
                idle.why
            );
            let command = command.find_subcommand_mut(name);
            return Err(match command {
                Some(command) => command.error(ErrorKind::ArgumentConflict, text),
                None => Error::raw(ErrorKind::ArgumentConflict, text),
            });
        }
    }
    Ok(())
}

/// Says of an option that a command does not have which commands have it.
pub(super) fn with_owners(mut error: Error, command: &Command) -> Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let option = option.split('=').next().unwrap_or_default().to_owned();
    let is_it = |arg: &clap::Arg| {
        let long = arg.get_long_and_visible_aliases().unwrap_or_default();
        let short = arg.get_short_and_visible_aliases().unwrap_or_default();
        !arg.is_hide_set()
            && (long.iter().any(|long| option == format!("--{long}"))
                || short.iter().any(|short| option == format!("-{short}")))
    };
    let owners: Vec<_> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_arguments().any(is_it))
        .map(|command| format!("'{}'", command.get_name()))
        .collect();
    if !owners.is_empty() {
        let tip = format!("'{option}' is an option of {}", owners.join(", "));
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

#[cfg(test)]
mod tests {
    use super::super::{command, parse};
    use super::IDLE;

    fn error(line: &str) -> String {
        let words = line.split_whitespace();
        match parse(words.map(Into::into)) {
            Ok(_) => panic!("accepted: {line}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_option_without_effect_is_one_of_its_commands() {
        let command = command();
        for idle in &IDLE {
            for name in idle.commands.iter().copied().flatten() {
                let command = command.find_subcommand(name).expect(name);
                for option in idle.options {
                    let arg = command.get_arguments().find(|arg| arg.get_id() == option);
                    assert!(arg.expect(option).is_hide_set(), "{name} {option}");
                }
            }
        }
    }

    #[test]
    fn an_option_without_effect_is_refused() {
        for (line, words) in [
            (
                "capstan id-ctrl -a ::1 -i 4",
                "'--nr-io-queues' has no effect on 'id-ctrl'",
            ),
            (
                "capstan list-ns -a ::1 -Q 16",
                "'--queue-size' has no effect on 'list-ns'",
            ),
            (
                "capstan discover -a ::1 -k 3",
                "'--keep-alive-tmo' has no effect on 'discover'",
            ),
            (
                "capstan doctor -a ::1 -c 3",
                "'--reconnect-delay' has no effect on 'doctor'",
            ),
        ] {
            let error = error(line);
            assert!(error.contains(words), "{line}: {error}");
        }
        for line in [
            "capstan read -a ::1 -i 4 -Q 16 -c 3 -k 3",
            "capstan id-ctrl -a ::1 -k 3",
            "capstan doctor -a ::1 -i 4",
        ] {
            let words = line.split_whitespace();
            assert!(parse(words.map(Into::into)).is_ok(), "{line}");
        }
    }

    #[test]
    fn an_option_of_another_command_is_told_to_be_that() {
        let told = error("capstan id-ctrl -a ::1 --iodepth 4");
        assert!(
            told.contains("'--iodepth' is an option of 'bench'"),
            "{told}"
        );
        let told = error("capstan detach /dev/loop0 -a ::1");
        assert!(
            told.contains("'-a' is an option of 'discover', 'id-ctrl'"),
            "{told}"
        );
        let told = error("capstan list --no-such-thing");
        assert!(!told.contains("is an option of"), "{told}");
    }
}
