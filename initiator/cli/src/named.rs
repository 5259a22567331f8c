//! What `capstan` calls the settings and steps that texts of the library name.

use std::sync::OnceLock;

use capstan_initiator::internals::disk::serving::COMMAND;
use capstan_initiator::internals::way::Way;
use capstan_initiator::names::Name;

/// Commands that lead to where this one leads.
struct Commands {
    discover: String,
    namespaces: String,
    flush: String,
    /// This process serves an attached volume, whose options stay as they are.
    is_attached: bool,
}

static COMMANDS: OnceLock<Commands> = OnceLock::new();

/// Has texts name commands as they are typed for this connection: of the command `command`, to the
/// namespace `nsid`, where it has one.
pub(crate) fn connection(command: &str, way: &Way, nsid: Option<u32>) {
    let at = way.to_the_address();
    let nsid = nsid.map_or_else(String::new, |nsid| format!(" -N {nsid}"));
    let _ = COMMANDS.set(Commands {
        discover: format!("`capstan discover {at}`"),
        namespaces: format!("`capstan list-ns {way}`"),
        flush: format!("`capstan flush {way}{nsid}`"),
        is_attached: command == COMMAND,
    });
}

/// The option or the command line.
pub(crate) fn named(name: Name) -> &'static str {
    let commands = COMMANDS.get();
    match name {
        Name::Subnqn => "--nqn",
        Name::Hostnqn => "--hostnqn",
        Name::Hostid => "--hostid",
        Name::NrIoQueues => "--nr-io-queues",
        Name::QueueSize => "--queue-size",
        Name::KeepAliveTmo => "--keep-alive-tmo",
        Name::ConnectTimeout => "--connect-timeout",
        Name::CtrlLossTmo => "--ctrl-loss-tmo",
        Name::HeaderDigest => "--hdr-digest",
        Name::DataDigest => "--data-digest",
        Name::Provider => "--provider",
        Name::OverRdma => "`-t rdma`",
        Name::OverVerbs => "`--provider verbs`",
        Name::OverIwarp => "`--provider iwarp`",
        Name::OverTcp => "`-t tcp`",
        Name::ReplayImmediate => "--replay-writes=immediate",
        Name::TryRdma | Name::TryTcp if commands.is_some_and(|of| of.is_attached) => {
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
        Name::ReadOnly => "--read-only",
        Name::ConnectAnew => {
            "`capstan detach`, then `capstan attach` (where it is mounted: `capstan umount`, then `capstan mount`)"
        }
        Name::Socket => "--socket",
    }
}

#[cfg(test)]
mod tests {
    use capstan_initiator::names::Name;

    use super::super::command;
    use super::named;

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
}
