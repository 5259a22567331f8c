//! What texts call a setting or a next step: the items of this library, or what a program has in
//! their place.

use std::fmt;
use std::sync::OnceLock;

/// Defines [`Name`] with what this library calls each.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident => $own:literal,)*) => {
        /// Something that a text tells a person to set or to do. `Display` is what the program
        /// calls it ([`call`]), or else the item of this library.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Name {
            $($(#[$doc])* $name,)*
        }

        impl Name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What this library calls it.
            #[must_use]
            pub const fn in_library(self) -> &'static str {
                match self {
                    $(Self::$name => $own,)*
                }
            }
        }
    };
}

names! {
    /// [`Options::subnqn`](crate::Options::subnqn).
    Subnqn => "Options::subnqn",
    /// [`Options::hostnqn`](crate::Options::hostnqn).
    Hostnqn => "Options::hostnqn",
    /// [`Options::hostid`](crate::Options::hostid).
    Hostid => "Options::hostid",
    /// [`Options::nr_io_queues`](crate::Options::nr_io_queues).
    NrIoQueues => "Options::nr_io_queues",
    /// What is lowered where a target has no room for so many queues.
    FewerQueues => "Options::nr_io_queues",
    /// [`Options::queue_size`](crate::Options::queue_size).
    QueueSize => "Options::queue_size",
    /// [`Options::keep_alive_tmo`](crate::Options::keep_alive_tmo).
    KeepAliveTmo => "Options::keep_alive_tmo",
    /// [`Options::connect_timeout`](crate::Options::connect_timeout).
    ConnectTimeout => "Options::connect_timeout",
    /// [`Options::transport_timeout`](crate::Options::transport_timeout).
    TransportTimeout => "Options::transport_timeout",
    /// [`Options::ctrl_loss_tmo`](crate::Options::ctrl_loss_tmo).
    CtrlLossTmo => "Options::ctrl_loss_tmo",
    /// [`Options::header_digest`](crate::Options::header_digest).
    HeaderDigest => "Options::header_digest",
    /// [`Options::data_digest`](crate::Options::data_digest).
    DataDigest => "Options::data_digest",
    /// [`Options::provider`](crate::Options::provider).
    Provider => "Options::provider",
    /// [`Transport::Rdma`](crate::Transport::Rdma).
    OverRdma => "Transport::Rdma",
    /// [`Transport::Rdma`](crate::Transport::Rdma) through the provider verbs.
    OverVerbs => "ProviderPreference::Verbs",
    /// [`Transport::Rdma`](crate::Transport::Rdma) through the provider iwarp.
    OverIwarp => "ProviderPreference::Iwarp",
    /// [`Transport::Tcp`](crate::Transport::Tcp).
    OverTcp => "Transport::Tcp",
    /// What takes [`Transport::Rdma`](crate::Transport::Rdma) in place of the transport of this
    /// association.
    TryRdma => "Transport::Rdma",
    /// The same for [`Transport::Tcp`](crate::Transport::Tcp).
    TryTcp => "Transport::Tcp",
    /// [`ReplayWrites::Immediate`](crate::ReplayWrites::Immediate).
    ReplayImmediate => "ReplayWrites::Immediate",
    /// [`DirectQueue::discover`](crate::DirectQueue::discover) at the same address.
    Discover => "DirectQueue::discover",
    /// [`Controller::namespaces`](crate::Controller::namespaces).
    Namespaces => "Controller::namespaces",
    /// [`Volume::flush`](crate::Volume::flush) through a new association.
    Flush => "Volume::flush",
    /// A volume that is only read from.
    ReadOnly => "reads alone",
    /// The end of the association, and another one.
    ConnectAnew => "another Controller",
    /// The path of a socket that is listened at.
    Socket => "path",
}

/// Names of a program.
static CALLED: OnceLock<fn(Name) -> &'static str> = OnceLock::new();

/// Has all texts of this process call things by the `names` of a program, as the options and
/// commands of its command line. To be called before anything else of this library, and once:
/// later calls change nothing.
pub fn call(names: fn(Name) -> &'static str) {
    let _ = CALLED.set(names);
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match CALLED.get() {
            Some(names) => names(*self),
            None => self.in_library(),
        })
    }
}
