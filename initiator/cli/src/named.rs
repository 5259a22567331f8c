//! What `capstan` calls the settings and steps that texts of the library name.

use std::sync::OnceLock;

use capstan_initiator::internals::disk::serving::COMMAND;
use capstan_initiator::internals::way::Way;
use capstan_initiator::names::Name;

/// Commands that lead to where this one leads.
#[derive(Debug)]
struct Commands {
    discover: String,
    namespaces: String,
    flush: String,
    /// The one that runs.
    command: String,
}

impl Commands {
    /// This process serves an attached volume, whose options stay as they are.
    fn is_attached(&self) -> bool {
        self.command == COMMAND
    }

    /// This command makes an attached volume, or serves one.
    fn is_volume(&self) -> bool {
        self.is_attached() || ["attach", "mount"].contains(&&*self.command)
    }
}

static COMMANDS: OnceLock<Commands> = OnceLock::new();

impl Commands {
    fn of(command: &str, way: &Way, nsid: Option<u32>) -> Self {
        let at = way.to_the_address();
        let nsid = nsid.map_or_else(String::new, |nsid| format!(" -N {nsid}"));
        Self {
            discover: format!("`capstan discover {at}`"),
            namespaces: format!("`capstan list-ns {way}`"),
            flush: format!("`capstan flush {way}{nsid}`"),
            command: command.to_owned(),
        }
    }
}

/// Has texts name commands as they are typed for this connection: of the command `command`, to the
/// namespace `nsid`, where it has one.
pub(crate) fn connection(command: &str, way: &Way, nsid: Option<u32>) {
    let _ = COMMANDS.set(Commands::of(command, way, nsid));
}

/// The option or the command line.
pub(crate) fn named(name: Name) -> &'static str {
    named_by(COMMANDS.get(), name)
}

fn named_by(commands: Option<&'static Commands>, name: Name) -> &'static str {
    match name {
        Name::Subnqn => "--nqn",
        Name::Hostnqn => "--hostnqn",
        Name::Hostid => "--hostid",
        Name::NrIoQueues => "--nr-io-queues",
        Name::FewerQueues => match commands.map(|of| &*of.command) {
            Some("bench") => "--numjobs, --nr-io-queues",
            _ => "--nr-io-queues",
        },
        Name::QueueSize => "--queue-size",
        Name::KeepAliveTmo => "--keep-alive-tmo",
        Name::ConnectTimeout | Name::TransportTimeout => "--connect-timeout",
        Name::CtrlLossTmo => "--ctrl-loss-tmo",
        Name::HeaderDigest => "--hdr-digest",
        Name::DataDigest => "--data-digest",
        Name::Provider => "--provider",
        Name::OverRdma => "`-t rdma`",
        Name::OverVerbs => "`--provider verbs`",
        Name::OverIwarp => "`--provider iwarp`",
        Name::OverTcp => "`-t tcp`",
        Name::ReplayImmediate => "--replay-writes=immediate",
        Name::TryRdma | Name::TryTcp if commands.is_some_and(Commands::is_attached) => {
            match name == Name::TryTcp {
                true => "`capstan detach`, then `capstan attach` with `-t tcp`",
                false => "`capstan detach`, then `capstan attach` with `-t rdma`",
            }
        }
        Name::TryRdma => "`-t rdma`",
        Name::TryTcp => "`-t tcp`",
        Name::Discover => commands.map_or("`capstan discover`", |of| &of.discover),
        Name::Namespaces => commands.map_or("`capstan list-ns`", |of| &of.namespaces),
        Name::Flush => commands.map_or("`capstan flush`", |of| &of.flush),
        Name::ReadOnly => match commands.map(|of| &*of.command) {
            Some("bench") => "--rw read or randread",
            Some("write") => "`capstan read`",
            Some("io-passthru") => "an opcode that reads",
            _ => "--read-only",
        },
        Name::ConnectAnew if !commands.is_none_or(Commands::is_volume) => {
            "start this command again"
        }
        Name::ConnectAnew => {
            "`capstan detach`, then `capstan attach` (where it is mounted: `capstan umount`, then `capstan mount`)"
        }
        Name::Socket => "--socket",
    }
}

#[cfg(test)]
mod tests {
    use capstan_initiator::names::Name;
    use clap::Parser as _;

    use super::super::command;
    use super::{Commands, named, named_by};
    use crate::args::ConnectArgs;

    #[test]
    fn options_that_stand_for_settings_are_options() {
        let command = command();
        let arguments = command
            .get_subcommands()
            .flat_map(clap::Command::get_arguments);
        let longs: Vec<_> = arguments.filter_map(clap::Arg::get_long).collect();
        let mut seen = 0;
        for name in Name::ALL {
            for word in named(*name).split([' ', '`', '=']) {
                if let Some(option) = word.strip_prefix("--") {
                    assert!(longs.contains(&option), "{name:?} is --{option}");
                    seen += 1;
                }
            }
        }
        assert!(seen >= 10, "{seen}");
    }

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        connect: ConnectArgs,
    }

    /// What `name` is for `command` at a target over NVMe/TCP.
    fn of(command: &str, name: Name) -> &'static str {
        let line = "x -a ::1 -s 4421 -n nqn.a -t tcp --hdr-digest";
        let way = Only::parse_from(line.split(' ')).connect.way();
        let commands = Commands::of(command, &way, Some(3));
        named_by(Some(Box::leak(Box::new(commands))), name)
    }

    #[test]
    fn a_command_that_is_named_leads_to_where_this_one_leads() {
        let way = "-a ::1 -s 4421 -n nqn.a -t tcp --hdr-digest";
        assert_eq!(
            of("bench", Name::Discover),
            "`capstan discover -a ::1 -s 4421 -t tcp --hdr-digest`"
        );
        assert_eq!(
            of("read", Name::Namespaces),
            format!("`capstan list-ns {way}`")
        );
        assert_eq!(
            of("write", Name::Flush),
            format!("`capstan flush {way} -N 3`")
        );
    }

    #[test]
    fn a_step_is_one_of_the_command_that_runs() {
        for command in ["attach", "mount", "serve-fuse"] {
            assert!(of(command, Name::ConnectAnew).starts_with("`capstan detach`"));
            assert_eq!(of(command, Name::ReadOnly), "--read-only");
        }
        for command in ["bench", "read", "serve-nbd"] {
            assert_eq!(of(command, Name::ConnectAnew), "start this command again");
        }
        assert_eq!(of("bench", Name::ReadOnly), "--rw read or randread");
        assert_eq!(of("write", Name::ReadOnly), "`capstan read`");
        assert!(of("bench", Name::FewerQueues).contains("--numjobs"));
        assert!(!of("read", Name::FewerQueues).contains("--numjobs"));
        // The transport of a disk that is attached stays as it is.
        assert!(of("serve-fuse", Name::TryTcp).contains("`capstan detach`, then"));
        assert_eq!(of("attach", Name::TryTcp), "`-t tcp`");
    }
}
