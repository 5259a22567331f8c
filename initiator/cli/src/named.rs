//! What `capstan` calls the settings and steps that texts of the library name.

use capstan_initiator::names::Name;

/// The option or the command line.
pub(crate) fn named(name: Name) -> &'static str {
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
        Name::Discover => "`capstan discover`",
        Name::Namespaces => "`capstan list-ns`",
        Name::Flush => "`capstan flush`",
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
