//! Options that a command has in common with others and that do nothing for it: not shown in its
//! help, and refused.

use capstan_nvme_proto::opcode::IoOpcode;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, Error};

use super::args::{ConnectArgs, Transport};
use super::bench::Workload;
use super::passthru::may_write;

/// Commands that send admin commands only.
const ADMIN: [&str; 10] = [
    "discover",
    "id-ctrl",
    "id-ns",
    "list-ns",
    "smart-log",
    "error-log",
    "effects-log",
    "ana-log",
    "get-feature",
    "admin-passthru",
];

/// Options that do nothing for some commands.
struct Idle {
    options: &'static [&'static str],
    commands: &'static [&'static [&'static str]],
    why: &'static str,
}

const IDLE: [Idle; 4] = [
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
    Idle {
        options: &["shared"],
        commands: &[&["admin-passthru"]],
        why: "which claims no namespace",
    },
];

/// Options that do nothing beside what another one says, whatever the command.
struct Beside {
    options: &'static [&'static str],
    /// Beside what, and why, where that is so.
    what: fn(&ArgMatches) -> Option<String>,
}

const BESIDE: [Beside; 7] = [
    Beside {
        options: &["hdr_digest", "data_digest"],
        what: |matches| {
            let is_rdma = value(matches, "transport") == Some(Transport::Rdma);
            (is_rdma && is_given(matches, "transport"))
                .then(|| "'--transport rdma': digests are of NVMe/TCP".to_owned())
        },
    },
    Beside {
        options: &["provider"],
        what: |matches| {
            let is_tcp = value(matches, "transport") == Some(Transport::Tcp);
            is_tcp.then(|| "'--transport tcp', which takes no RDMA".to_owned())
        },
    },
    Beside {
        options: &["provider"],
        what: |matches| {
            let mut digests = ["hdr_digest", "data_digest"].iter();
            let digest = digests.find(|id| value(matches, id) == Some(true))?;
            let digest = digest.replace('_', "-");
            Some(format!("'--{digest}', with which NVMe/TCP alone is tried"))
        },
    },
    Beside {
        options: &["reconnect_delay", "replay_writes"],
        what: |matches| {
            let gives_up = value(matches, "ctrl_loss_tmo") == Some(0_i64);
            gives_up.then(|| "'--ctrl-loss-tmo 0', which does not connect again".to_owned())
        },
    },
    Beside {
        options: &["shared", "replay_writes"],
        what: |matches| {
            let reads = value(matches, "read_only") == Some(true);
            reads.then(|| "'--read-only', which writes nothing".to_owned())
        },
    },
    Beside {
        options: &["shared"],
        what: |matches| {
            let opcode: Option<u8> = value(matches, "opcode");
            let reads = opcode.filter(|opcode| !may_write(IoOpcode(*opcode)));
            reads.map(|opcode| format!("'--opcode {opcode:#04x}', which writes nothing"))
        },
    },
    Beside {
        options: &["randseed"],
        what: |matches| {
            let reads_in_order = value(matches, "rw") == Some(Workload::Read);
            reads_in_order.then(|| "'--rw read', in which nothing is random".to_owned())
        },
    },
];

/// What an option is, given or by default; `None` also where the command does not have it.
pub(super) fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, id: &str) -> Option<T> {
    matches.try_get_one(id).ok().flatten().cloned()
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).is_ok_and(|has| has)
        && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// An option beside another, or beside the lack of one, that makes it do nothing: which, and why.
fn beside(name: &str, matches: &ArgMatches) -> Option<(String, String)> {
    for Beside { options, what } in &BESIDE {
        if let Some(id) = options.iter().find(|id| is_given(matches, id))
            && let Some(what) = what(matches)
        {
            return Some((
                (*id).to_owned(),
                format!("with {what}; leave one of them out"),
            ));
        }
    }
    if name != "doctor" || is_given(matches, "traddr") {
        return None;
    }
    // Its connection is optional, and is none without an address.
    let of_connection = ConnectArgs::augment_args(Command::new("of"));
    let mut ids = of_connection
        .get_arguments()
        .map(|arg| arg.get_id().as_str());
    // Which transport it is about matters to what the machine is looked at for.
    let id = ids.find(|id| *id != "transport" && is_given(matches, id))?;
    let why = "on 'doctor' without '--traddr', the target to try; give that too, or leave it out";
    Some((id.to_owned(), why.to_owned()))
}

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
    // What `capstan` starts itself has every option.
    if command
        .find_subcommand(name)
        .is_some_and(Command::is_hide_set)
    {
        return Ok(());
    }
    let of_command = IDLE
        .iter()
        .filter(|idle| idle.is_of(name))
        .find_map(|idle| {
            let id = idle.options.iter().find(|id| is_given(matches, id))?;
            let why = format!("on '{name}', {}; leave it out", idle.why);
            Some(((*id).to_owned(), why))
        });
    let Some((id, why)) = of_command.or_else(|| beside(name, matches)) else {
        return Ok(());
    };
    let text = format!("'--{}' has no effect {why}", id.replace('_', "-"));
    Err(match command.find_subcommand_mut(name) {
        Some(command) => command.error(ErrorKind::ArgumentConflict, text),
        None => Error::raw(ErrorKind::ArgumentConflict, text),
    })
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
            (
                "capstan admin-passthru -a ::1 --opcode 6 --shared",
                "'--shared' has no effect on 'admin-passthru'",
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
    fn an_option_that_does_nothing_beside_another_is_refused() {
        for (line, option, other) in [
            (
                "read -t rdma --hdr-digest",
                "hdr-digest",
                "--transport rdma",
            ),
            (
                "id-ctrl -t rdma --data-digest",
                "data-digest",
                "--transport rdma",
            ),
            (
                "discover -t tcp --provider iwarp",
                "provider",
                "--transport tcp",
            ),
            (
                "attach -t tcp --provider verbs",
                "provider",
                "--transport tcp",
            ),
            ("read -t tcp --provider auto", "provider", "--transport tcp"),
            (
                "read -t auto --data-digest --provider iwarp",
                "provider",
                "--data-digest",
            ),
            // It is not named where it was not given.
            (
                "read --provider iwarp --hdr-digest",
                "provider",
                "--hdr-digest",
            ),
            ("bench -l 0 -c 3", "reconnect-delay", "--ctrl-loss-tmo 0"),
            (
                "write -l 0 --replay-writes immediate",
                "replay-writes",
                "--ctrl-loss-tmo 0",
            ),
            ("attach -r --shared", "shared", "--read-only"),
            ("serve-nbd -r --shared --socket s", "shared", "--read-only"),
            (
                "mount -r --replay-writes fenced x",
                "replay-writes",
                "--read-only",
            ),
            ("io-passthru --opcode 2 --shared", "shared", "--opcode 0x02"),
            ("bench --rw read --randseed 7", "randseed", "--rw read"),
            ("bench --randseed 7", "randseed", "--rw read"),
        ] {
            let told = error(&format!("capstan {line} -a ::1"));
            let words = format!("'--{option}' has no effect with '{other}'");
            assert!(told.contains(&words), "{line}: {told}");
        }
        let told = error("capstan doctor -s 4421");
        assert!(
            told.contains("'--trsvcid' has no effect on 'doctor' without '--traddr'"),
            "{told}"
        );
        for line in [
            "read -t tcp --hdr-digest --data-digest",
            "read -t auto --hdr-digest",
            "read -t auto --provider auto",
            "io-passthru --opcode 1 --shared",
            "bench --rw write --randseed 7",
            "bench --rw randread --randseed 7",
            "write -l 0 --shared",
        ] {
            let line = format!("capstan {line} -a ::1");
            let parsed = parse(line.split_whitespace().map(Into::into));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        // What the process behind a disk gets is written by `capstan`, with every option.
        let line = "capstan serve-fuse -a ::1 -l 0 -c 10 -t tcp --volume-dir x";
        assert!(parse(line.split_whitespace().map(Into::into)).is_ok());
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
