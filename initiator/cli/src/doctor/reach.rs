//! Who connects, to what address, by which provider. Nothing is sent: no bare TCP connect either,
//! as one that is closed at once ends the listener of siw on Linux 6.12 (tests/lab/README.md).
//! Whether the target answers is for the first connect.

use std::net::SocketAddr;

use anyhow::{Error, Result};
use capstan_doctor::Check;
use capstan_initiator::identity::{Identity, IdentityError};
use capstan_initiator::internals::identity::empty_files;
use capstan_initiator::{Options, TakenTransport};
use capstan_rdma::choose;

use super::super::args::{ConnectArgs, Provider, Transport};
use super::super::offers::Offers;

/// What the way to the target is.
pub(super) struct Reached {
    pub(super) identity: Identity,
    /// The subsystems that the target offers by the transport that it was reached by, where they
    /// are known.
    pub(super) offered: Option<Offers>,
    pub(super) address: SocketAddr,
    /// With the transport that was taken, once it is known.
    pub(super) connect: ConnectArgs,
}

impl Reached {
    /// What connecting is called.
    pub(super) fn connecting(&self) -> &'static str {
        match self.connect.transport {
            Transport::Rdma => "CM connect",
            Transport::Tcp => "TCP connect",
            Transport::Auto => "connect",
        }
    }

    /// Takes what a connection was made over for what follows, and tells it.
    pub(super) fn take(
        &mut self,
        options: Options,
        taken: &TakenTransport,
        checks: &mut Vec<Check>,
    ) {
        checks.push(Check::ok("transport", taken.to_string()));
        self.connect = self.connect.over(&taken.in_options(options));
    }
}

/// The host NQN, which has the host identifier in it where it has a UUID.
fn host_nqn(identity: &Identity, or_give: &str) -> Check {
    const NAME: &str = "host NQN";
    let name = identity.hostnqn.as_str();
    match identity.hostnqn.uuid() {
        Some(uuid) if uuid != identity.hostid.uuid() => Check::warning(
            NAME,
            format!("{name}, with host identifier {}", identity.hostid),
            "a host identifier that is the UUID in the host NQN",
            format!("echo {uuid} > /etc/nvme/hostid, or give --hostid {uuid}{or_give}"),
        ),
        _ => Check::ok(NAME, name),
    }
}

/// Who this host is without options, for every command.
pub(super) fn this_host() -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(empty());
    let found = Identity::find(None, None).map_err(Error::from);
    who(found, TO_COMMANDS, &mut checks);
    checks
}

const EXPECTED: &str = "an NQN and a UUID";
/// Without an address, `doctor` takes no option of a connection.
const TO_COMMANDS: &str = " to each command that connects";

/// Files that would say who this host is, and say nothing.
fn empty() -> impl Iterator<Item = Check> {
    let empty = empty_files().into_iter();
    empty.map(|(path, remedy)| Check::warning(path, "is empty", EXPECTED, remedy))
}

/// Who this host is; `None` when that cannot be told.
fn who(found: Result<Identity>, or_give: &str, checks: &mut Vec<Check>) -> Option<Identity> {
    match found {
        Ok(identity) => {
            checks.push(host_nqn(&identity, or_give));
            Some(identity)
        }
        Err(error) => {
            let remedy = match error.downcast_ref() {
                Some(IdentityError::HostId { from, .. }) if from.starts_with('/') => {
                    format!("uuidgen > {from}, or give --hostid{or_give}")
                }
                _ => format!(
                    "nvme gen-hostnqn > /etc/nvme/hostnqn, or give --hostnqn and --hostid{or_give}"
                ),
            };
            let seen = format!("{error:#}");
            checks.push(Check::error("host NQN", seen, EXPECTED, remedy));
            None
        }
    }
}

/// Who this host is, where the target is, and over what. `None` when it is of no use to go on.
pub(super) fn reach(connect: &ConnectArgs, checks: &mut Vec<Check>) -> Option<Reached> {
    if connect.hostnqn.is_none() {
        checks.extend(empty());
    }
    let identity = who(connect.identity(), "", checks)?;
    let addresses = match connect.discovery_options(&identity).socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => {
            checks.push(Check::error(
                "address",
                error.to_string(),
                "an address",
                format!("getent ahosts {}; or give an address", connect.traddr),
            ));
            return None;
        }
    };
    let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    checks.push(Check::ok(
        "address",
        format!("{} is {}", connect.traddr, list.join(", ")),
    ));
    let address = *addresses.first()?;
    let reached = Reached {
        identity,
        offered: None,
        address,
        connect: connect.clone(),
    };
    match connect.transport {
        Transport::Tcp => {
            checks.push(Check::ok("transport", "NVMe/TCP: asked for".to_owned()));
            return Some(reached);
        }
        // The first connection tells.
        Transport::Auto => return Some(reached),
        Transport::Rdma => {}
    }
    let (kind, why) = match choose(connect.preference(), address.ip()) {
        Ok(chosen) => chosen,
        Err(error) => {
            let through_iwarp = ConnectArgs {
                provider: Provider::Iwarp,
                ..connect.clone()
            };
            checks.push(Check::error(
                "provider",
                error.to_string(),
                "a provider that reaches the target",
                format!("capstan doctor {}", through_iwarp.way()),
            ));
            return None;
        }
    };
    checks.push(Check::ok("provider", format!("{}: {why}", kind.name())));
    Some(reached)
}
