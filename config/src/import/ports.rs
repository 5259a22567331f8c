//! `ports` of a saved nvmet configuration: the listeners, the ANA states of their groups, and which
//! subsystems hosts reach by which.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use serde_json::Value;

use super::found::{Found, Object};
use super::nvmet::{in_one_case, nqn_of};
use crate::listen::parse_address;
use crate::{
    AnaState, LISTENERS_MAX, ListenError, Listener, Nqn, ProviderChoice, Transports, limits,
};

/// The group that the kernel has without being asked, and namespaces that name none are in.
pub(super) const FIRST_GROUP: u32 = 1;

/// A port, or two of them that are one listener here.
pub(super) struct Port {
    /// Its place in the document.
    pub(super) at: String,
    pub(super) listener: Listener,
    /// The states of groups that it has; none where the kernel knew no ANA.
    states: Option<BTreeMap<u32, AnaState>>,
    /// NQNs of the subsystems that are linked to it.
    subsystems: HashSet<Nqn>,
}

impl Port {
    /// Whether hosts reach the subsystem by it.
    pub(super) fn has(&self, nqn: &Nqn) -> bool {
        self.subsystems.contains(&in_one_case(nqn))
    }

    /// The state of a group by this port. Where it has no such group the kernel has it
    /// inaccessible, but for the first one.
    pub(super) fn state(&self, group: u32) -> AnaState {
        let Some(states) = &self.states else {
            return AnaState::Optimized;
        };
        let state = states.get(&group).copied();
        state.unwrap_or(match group {
            FIRST_GROUP => AnaState::Optimized,
            _ => AnaState::Inaccessible,
        })
    }
}

/// What ports have, and the places where each NQN is linked.
#[derive(Default)]
pub(super) struct Ports {
    pub(super) all: Vec<Port>,
    /// Every link of every port, also of those that are left out, by the place of the first.
    pub(super) links: HashMap<Nqn, String>,
}

impl Ports {
    pub(super) fn add(&mut self, at: String, value: Value, found: &mut Found) {
        let Some(mut port) = found.object(at, value) else {
            return;
        };
        port.text("portid", found);
        let mut subsystems = HashSet::new();
        for (at, value) in port.list("subsystems", found) {
            if let Some(nqn) = nqn_of(&at, &value, found).map(|nqn| in_one_case(&nqn)) {
                self.links.entry(nqn.clone()).or_insert(at);
                subsystems.insert(nqn);
            }
        }
        let states = port.has("ana_groups").then(|| states(&mut port, found));
        param(&mut port, found);
        for (at, _) in port.list("referrals", found) {
            found.left_out(
                &at,
                "the discovery log has this target's own listeners alone; hosts have to be told of the other target",
            );
        }
        let listener = listener(&mut port, found);
        let at = port.at.clone();
        port.end(found);
        let Some(listener) = listener else { return };
        if subsystems.is_empty() {
            found.left_out(
                &at,
                "no subsystem is linked to it, and so the kernel does not listen there",
            );
            return;
        }
        self.join(
            Port {
                at,
                listener,
                states,
                subsystems,
            },
            found,
        );
    }

    /// A port at an address that another one has is one listener with it.
    fn join(&mut self, port: Port, found: &mut Found) {
        let address = port.listener.address;
        let met = self.all.iter_mut().find(|of| of.listener.meets(address));
        let Some(first) = met else {
            match self.all.len() < LISTENERS_MAX {
                true => self.all.push(port),
                false => found.left_out(
                    &port.at,
                    format!("{LISTENERS_MAX} listeners are the most that there may be"),
                ),
            }
            return;
        };
        if first.listener.address != address {
            let text = format!(
                "{address} overlaps with {} of {}, which is the listener for both",
                first.listener.address, first.at
            );
            found.left_out(&port.at, text);
            return;
        }
        first.listener.transports.rdma |= port.listener.transports.rdma;
        first.listener.transports.tcp |= port.listener.transports.tcp;
        let groups = 1..=u32::try_from(*limits::ANA_GROUP.end()).unwrap_or(FIRST_GROUP);
        let mut differing = groups.filter(|group| first.state(*group) != port.state(*group));
        if let Some(group) = differing.next() {
            let text = format!(
                "{} has the same address, and both are one listener here: of ANA group {group}, and others that \
                 differ, the state of {} holds",
                first.at, first.at
            );
            found.left_out(&format!("{}.ana_groups", port.at), text);
        }
        if first.subsystems != port.subsystems {
            let text = format!(
                "{} has the same address and other subsystems, and both are one listener here: hosts reach what either has by \
                 the transports of both; where that shall not be, serve it by another target with listeners of its own",
                first.at
            );
            found.otherwise(&format!("{}.subsystems", port.at), text);
        }
        first.subsystems.extend(port.subsystems);
    }
}

fn listener(port: &mut Object, found: &mut Found) -> Option<Listener> {
    let mut addr = port.object("addr", found);
    let transport = addr.required("trtype", found);
    let family = addr.text("adrfam", found);
    let address = addr.text("traddr", found);
    let service = addr.text("trsvcid", found);
    let security = addr.text("tsas", found);
    let channel = addr.text("treq", found);
    let places = ["traddr", "trsvcid", "tsas"].map(|key| addr.place(key));
    addr.end(found);
    let transports = match transport?.as_str() {
        "rdma" => Transports::named(true, false),
        "tcp" => Transports::named(false, true),
        other => {
            let text = format!(
                "its transport (trtype) is {other:?}; NVMe/RDMA and NVMe/TCP are what there is here"
            );
            found.left_out(&port.at, text);
            return None;
        }
    };
    if let Some(family) = family.filter(|of| !["ipv4", "ipv6"].contains(&of.as_str())) {
        let text = format!("its address family (adrfam) is {family:?}, expected ipv4 or ipv6");
        found.left_out(&port.at, text);
        return None;
    }
    let [at_address, at_service, at_security] = places;
    if security.is_some_and(|of| of.starts_with("tls")) {
        if channel.as_deref() != Some("not required") {
            let text = "its hosts have to use TLS, which is not there; a listener would let them connect without it";
            found.left_out(&port.at, text);
            return None;
        }
        found.left_out(
            &at_security,
            "TLS is not there; hosts connect without it, as they may already",
        );
    }
    let Some(address) = address else {
        found.mistake(&at_address, "it is missing, expected an address");
        return None;
    };
    let address = match parse_address(&address) {
        Ok(address) => address,
        Err(error @ (ListenError::Zone(_) | ListenError::LinkLocal(_))) => {
            found.left_out(&port.at, error.to_string());
            return None;
        }
        Err(error) => {
            found.mistake(&at_address, error.to_string());
            return None;
        }
    };
    let service = service.unwrap_or_default();
    let Ok(service) = service.parse::<u16>() else {
        found.mistake(
            &at_service,
            format!("{service:?}, expected a port, 0 to 65535"),
        );
        return None;
    };
    Some(Listener {
        address: SocketAddr::new(address, service),
        provider: ProviderChoice::Auto,
        transports,
    })
}

fn states(port: &mut Object, found: &mut Found) -> BTreeMap<u32, AnaState> {
    let mut states = BTreeMap::new();
    for (at, value) in port.list("ana_groups", found) {
        let Some(mut group) = found.object(at, value) else {
            continue;
        };
        let at = group.place("grpid");
        let number = match group.number("grpid", found) {
            Some(number) => ana_group(&at, number, found),
            None => None,
        };
        let mut ana = group.object("ana", found);
        let at = ana.place("state");
        let state = ana.text("state", found);
        ana.end(found);
        group.end(found);
        let word = state.as_deref().unwrap_or("optimized");
        let state = AnaState::ALL.into_iter().find(|of| of.as_str() == word);
        match (number, state) {
            (Some(number), Some(state)) => {
                states.insert(number, state);
            }
            (_, None) => found.mistake(
                &at,
                format!(
                    "{word:?}, expected optimized, non-optimized, inaccessible, persistent-loss or change"
                ),
            ),
            (None, Some(_)) => {}
        }
    }
    states
}

/// A number of a group that there may be.
pub(super) fn ana_group(at: &str, number: u64, found: &mut Found) -> Option<u32> {
    let range = limits::ANA_GROUP;
    if !range.contains(&number) {
        let text = format!("{number}, expected {} to {}", range.start(), range.end());
        found.mistake(at, text);
        return None;
    }
    u32::try_from(number).ok()
}

fn param(port: &mut Object, found: &mut Found) {
    let mut param = port.object("param", found);
    let mut otherwise = |key: &str, usual: &[&str], text: &str| {
        let at = param.place(key);
        let value = param.text(key, found);
        if value.is_some_and(|value| !usual.contains(&value.as_str())) {
            found.left_out_everywhere(&at, text);
        }
    };
    otherwise(
        "inline_data_size",
        &["-1", "8192"],
        "in-capsule data is 8 KiB at every listener; hosts are told so, and send larger writes otherwise",
    );
    otherwise(
        "max_queue_size",
        &["-1"],
        "`queues.depth_max` says it for all listeners",
    );
    otherwise(
        "mdts",
        &["0", "-1"],
        "the largest transfer is 1 MiB at every listener",
    );
    otherwise("pi_enable", &["0"], super::nvmet::NO_PROTECTION);
    param.end(found);
}
