//! Listeners: at the start, those that are waited for, and those that come and go while the target
//! runs. Reactor 0 has them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use anyhow::{Context as _, anyhow, bail};
use capstan_config::{Config, Listener, ProviderChoice};
use capstan_doctor::Machine;
use capstan_nvme_proto::log::RdmaProviderType;
use capstan_rdma::ProviderKind;
use capstan_subsystem::{PortConfig, PortId};
use capstan_transport::tcp::NVME_TCP;

use crate::absent::missing_at;
use crate::control_plane::{ControlPlane, Message};
use crate::io_path::IoPath;
use crate::limits::OPEN_TIMEOUT;
use crate::listen_error::cannot_listen;
use crate::ports::Ports;
use crate::providers::{self, Chosen, choose};
use crate::tcp_port::{self, OWN_LISTENER, TcpPort};

/// A listener as the target starts.
#[derive(Debug)]
pub(crate) struct AtStart {
    pub(crate) listener: Listener,
    pub(crate) port: PortId,
    pub(crate) chosen: Chosen,
    /// Why it is waited for, where it is.
    pub(crate) absent: Option<String>,
}

impl AtStart {
    /// The listeners of a configuration, of which those that are not there yet are waited for where
    /// it `may_wait`.
    ///
    /// # Errors
    /// The providers that are asked for cannot be had, a line for each.
    pub(crate) fn of(config: &Config, ports: &Ports, may_wait: bool) -> anyhow::Result<Vec<Self>> {
        let numbers = ports.in_order(&config.listeners);
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        for (listener, port) in config.listeners.iter().zip(numbers) {
            let absent = may_wait.then(|| missing_at(listener)).flatten();
            let chosen = match (choose(listener), &absent) {
                (Ok(chosen), _) => chosen,
                // What it is then is chosen when it is there.
                (Err(error), Some(_)) => Chosen {
                    kind: ProviderKind::Verbs,
                    why: error.to_string(),
                },
                (Err(error), None) => {
                    refused.push(providers::in_words(listener, &error));
                    continue;
                }
            };
            all.push(Self {
                listener: *listener,
                port,
                chosen,
                absent,
            });
        }
        match refused.is_empty() {
            true => Ok(all),
            false => bail!("{}", refused.join("\n")),
        }
    }

    /// The kinds of providers that these listeners have, or may have once they are there.
    pub(crate) fn kinds(all: &[Self]) -> BTreeSet<ProviderKind> {
        let there = all.iter().filter(|of| of.absent.is_none());
        let mut kinds: BTreeSet<_> = there.map(|of| of.chosen.kind).collect();
        // It has the sockets at which NVMe/TCP is listened for.
        let is_of_sockets = |of: &Self| of.listener.transports.tcp || of.absent.is_some();
        if all.iter().any(is_of_sockets) {
            kinds.insert(ProviderKind::Iwarp);
        }
        let may_be_verbs = |of: &Self| {
            let Listener {
                provider,
                transports,
                ..
            } = of.listener;
            of.absent.is_some() && transports.rdma && provider != ProviderChoice::Iwarp
        };
        // A machine without the drivers has no manager of that kind, and may have no device, ever.
        let verbs = ProviderKind::Verbs;
        if all.iter().any(may_be_verbs) && verbs.connection_manager_beside(NVME_TCP).is_ok() {
            kinds.insert(verbs);
        }
        kinds
    }
}

/// A listener that is to come.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: Listener,
    chosen: Chosen,
    port: PortId,
    /// All that there will be, for the port of NVMe/TCP.
    all: Vec<Listener>,
    /// Where the answer goes.
    done: mpsc::Sender<anyhow::Result<Vec<SocketAddr>>>,
}

/// What the controllers know of a listener before it is bound.
pub(crate) fn port_config(id: PortId, listener: &Listener, kind: ProviderKind) -> PortConfig {
    PortConfig {
        id,
        address: listener.address,
        rdma: listener.transports.rdma.then_some(match kind {
            ProviderKind::Iwarp => RdmaProviderType::IWARP,
            // Which kind of device it is shows when a host connects; a wildcard has several.
            ProviderKind::Verbs => RdmaProviderType::NOT_SPECIFIED,
        }),
        tcp: listener.transports.tcp,
        tcp_port: None,
    }
}

/// Listens there. Returns the addresses, with the ports that the kernel chose.
///
/// # Errors
/// The address cannot be listened at, or there is no connection manager of the provider.
pub(crate) fn listen(
    path: &mut IoPath,
    control: &ControlPlane,
    all: &[Listener],
    (listener, Chosen { kind, why }): (&Listener, &Chosen),
    port: PortId,
) -> anyhow::Result<Vec<SocketAddr>> {
    let transports = listener.transports;
    let fabric = fabric(path, *kind, listener)?;
    let bound = path
        .listen(fabric, listener.address, port, transports.rdma)
        .map_err(|error| cannot_listen(listener.address, error))?;
    if transports.rdma {
        let provider = kind.name();
        tracing::info!(address = %bound, provider, "listening for NVMe/RDMA by {provider} ({why})");
    }
    control.with(|target| target.set_port_address(port, bound))?;
    let mut addresses = vec![bound];
    if !transports.tcp {
        return Ok(addresses);
    }
    let taken = match kind {
        ProviderKind::Iwarp => TcpPort::Same,
        ProviderKind::Verbs => beside(path, all, (listener, bound), port)?,
    };
    match taken {
        TcpPort::Same => tracing::info!(address = %bound, "listening for NVMe/TCP"),
        TcpPort::Next(next, why) => {
            tracing::info!(address = %next, "listening for NVMe/TCP: {why}");
            control.with(|target| target.set_tcp_port(port, next.port()))?;
            addresses.push(next);
        }
        TcpPort::None(why) => {
            tracing::info!(address = %bound, "no NVMe/TCP there: {why}; {OWN_LISTENER}");
            let rdma = Some(RdmaProviderType::NOT_SPECIFIED);
            control.with(|target| target.set_port_transports(port, rdma, false))?;
        }
    }
    Ok(addresses)
}

fn fabric(path: &IoPath, kind: ProviderKind, listener: &Listener) -> anyhow::Result<usize> {
    path.fabric_of(kind).ok_or_else(|| {
        anyhow!(
            "a listener at {} needs a restart: it is the first one of the {} provider",
            listener.address,
            kind.name()
        )
    })
}

/// Takes a port for NVMe/TCP beside a listener of the verbs provider.
fn beside(
    path: &mut IoPath,
    all: &[Listener],
    (listener, bound): (&Listener, SocketAddr),
    port: PortId,
) -> anyhow::Result<TcpPort> {
    let sockets = fabric(path, ProviderKind::Iwarp, listener)?;
    let machine = Machine::here();
    tcp_port::take(&machine, all, bound, listener.transports, |address| {
        path.listen(sockets, address, port, false)
    })
    .map_err(|(address, error)| {
        let next = format!("NVMe/TCP needs a port of its own: {OWN_LISTENER}");
        cannot_listen(address, error).context(next)
    })
}

impl Listening {
    /// On reactor 0.
    pub(crate) fn carry_out(self, path: &mut IoPath, control: &ControlPlane) {
        let of = (&self.listener, &self.chosen);
        let listens = listen(path, control, &self.all, of, self.port);
        if listens.is_err() {
            path.close_listeners(self.port);
        }
        // The thread that asked may have given up waiting.
        let _ = self.done.send(listens);
    }
}

/// Has reactor 0 listen where all of these say. No subsystem is offered at those that come yet.
/// Returns the ports that are to go when one is: those in the way of others have gone.
///
/// # Errors
/// One cannot; then all is as it was, but for what hosts had through those in the way, where no
/// subsystem is offered any more.
pub(crate) fn change(
    control: &Arc<ControlPlane>,
    ports: &mut Ports,
    all: &[Listener],
) -> anyhow::Result<Vec<PortId>> {
    let (gone, come) = ports.compare(all);
    let in_way = |id: &PortId| {
        let listener = ports.listener(*id);
        listener.is_some_and(|of| come.iter().any(|new| of.meets(new.address)))
    };
    let (first, later): (Vec<_>, Vec<_>) = gone.into_iter().partition(in_way);
    let back: Vec<_> = first.iter().filter_map(|id| ports.listener(*id)).collect();
    remove(control, ports, &first);
    add(control, ports, all, &come).map_err(|error| match add(control, ports, &back, &back) {
        Ok(_) => error.context("nothing was changed"),
        Err(lost) => error.context(format!(
            "what was in its way could not be put back ({lost:#}): reload again"
        )),
    })?;
    Ok(later)
}

/// Gives each of those that come a port.
///
/// # Errors
/// One cannot; then none of them is there.
fn add(
    control: &Arc<ControlPlane>,
    ports: &mut Ports,
    all: &[Listener],
    come: &[Listener],
) -> anyhow::Result<()> {
    let mut added = Vec::new();
    for listener in come {
        match add_one(control, ports, all, listener) {
            Ok(port) => added.push(port),
            Err(error) => {
                remove(control, ports, &added);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn add_one(
    control: &Arc<ControlPlane>,
    ports: &mut Ports,
    all: &[Listener],
    listener: &Listener,
) -> anyhow::Result<PortId> {
    let chosen = choose(listener).with_context(|| format!("listen {}", listener.address))?;
    let port = ports.next()?;
    control.with(|target| target.add_port(port_config(port, listener, chosen.kind)))?;
    ports.add(*listener, port);
    let listens = listen_by_reactor(control, (listener, chosen), port, all);
    if listens.is_err() {
        remove(control, ports, &[port]);
    }
    listens.map(|()| port)
}

/// Listens at a port that was waited for and is there now.
///
/// # Errors
/// It cannot; then it is not listened at, as before.
pub(crate) fn take_in(
    control: &Arc<ControlPlane>,
    listener: &Listener,
    port: PortId,
    all: &[Listener],
) -> anyhow::Result<()> {
    let chosen = choose(listener).with_context(|| format!("listen {}", listener.address))?;
    let PortConfig { rdma, tcp, .. } = port_config(port, listener, chosen.kind);
    control.with(|target| target.set_port_transports(port, rdma, tcp))?;
    let listens = listen_by_reactor(control, (listener, chosen), port, all);
    if listens.is_err() {
        hide(control, port)?;
    }
    listens
}

/// No host is told of a port that is not listened at.
///
/// # Errors
/// There is no such port.
pub(crate) fn hide(control: &ControlPlane, port: PortId) -> anyhow::Result<()> {
    Ok(control.with(|target| target.set_port_transports(port, None, false))?)
}

fn listen_by_reactor(
    control: &Arc<ControlPlane>,
    (listener, chosen): (&Listener, Chosen),
    port: PortId,
    all: &[Listener],
) -> anyhow::Result<()> {
    let (done, answer) = mpsc::channel();
    let listening = Listening {
        listener: *listener,
        chosen,
        port,
        all: all.to_vec(),
        done,
    };
    control.send(0, Message::Listen(Box::new(listening)));
    match answer.recv_timeout(OPEN_TIMEOUT) {
        Ok(listens) => listens.map(drop),
        Err(_) => Err(anyhow!(
            "reactor 0 does not listen at {} within {OPEN_TIMEOUT:?}",
            listener.address
        )),
    }
}

/// Takes listeners away; what hosts have through them ends.
pub(crate) fn remove(control: &ControlPlane, ports: &mut Ports, gone: &[PortId]) {
    for port in gone {
        ports.remove(*port);
        control.send(0, Message::StopListening(*port));
        if let Err(error) = control.with(|target| target.remove_port(*port)) {
            tracing::debug!(%error, "a port was gone already");
        }
    }
}

/// Refuses a change of listeners that other parts of the target depend on.
///
/// # Errors
/// There is one.
pub(crate) fn check(before: &[Listener], after: &[Listener]) -> anyhow::Result<()> {
    let tcp = |listeners: &[Listener]| listeners.iter().any(|of| of.transports.tcp);
    // The budget sets memory aside for it once.
    if tcp(after) && !tcp(before) {
        bail!(
            "the first listener with NVMe/TCP needs a restart, as memory is set aside for that when the target starts; \
             nothing was changed"
        );
    }
    Ok(())
}
