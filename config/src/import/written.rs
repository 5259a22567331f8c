//! The configuration as text.

use std::collections::{BTreeMap, BTreeSet};

use toml_edit::{Array, DocumentMut, Table};

use super::nvmet::{Namespace, Subsystem};
use super::ports::{FIRST_GROUP, Port};
use crate::complete::{put, put_all};
use crate::{Access, AnaState};

const HEAD: &str = "# Made by `capstan-target import` of a saved configuration of nvmet.\n";

pub(super) fn toml(ports: &[Port], subsystems: &[Subsystem]) -> String {
    let mut document = DocumentMut::new();
    let root = document.as_table_mut();
    put_all(root, "listener", ports.iter().map(listener));
    let subsystems = subsystems.iter().map(|of| subsystem(of, ports));
    put_all(root, "subsystem", subsystems);
    format!("{HEAD}\n{document}")
}

fn listener(port: &Port) -> Table {
    let mut table = Table::new();
    let listener = &port.listener;
    put(&mut table, "address", listener.address.ip().to_string());
    put(&mut table, "port", i64::from(listener.address.port()));
    let named = [
        (listener.transports.rdma, "rdma"),
        (listener.transports.tcp, "tcp"),
    ];
    let named = named.iter().filter(|(has, _)| *has).map(|(_, word)| *word);
    put(&mut table, "transports", named.collect::<Array>());
    table
}

fn subsystem(subsystem: &Subsystem, ports: &[Port]) -> Table {
    let mut table = Table::new();
    put(&mut table, "nqn", subsystem.nqn.as_str());
    for (key, value) in [("serial", &subsystem.serial), ("model", &subsystem.model)] {
        if let Some(value) = value {
            put(&mut table, key, value.as_str());
        }
    }
    match &subsystem.access {
        Access::AnyHost => put(&mut table, "allow_any_host", true),
        Access::Hosts(hosts) => {
            let hosts: Array = hosts.iter().map(|host| host.as_str()).collect();
            put(&mut table, "allowed_hosts", hosts);
        }
    }
    put_all(&mut table, "ana", states(subsystem, ports).into_iter());
    let namespaces = subsystem.namespaces.iter();
    let namespaces = namespaces.map(|(nsid, of)| namespace(*nsid, of));
    put_all(&mut table, "namespace", namespaces);
    table
}

/// The states of the groups that the subsystem has namespaces in, by the ports that it was linked
/// to: the others have none of it to say.
fn states(subsystem: &Subsystem, ports: &[Port]) -> Vec<Table> {
    let groups: BTreeSet<u32> = subsystem.namespaces.values().map(|of| of.group).collect();
    let ports: Vec<_> = ports
        .iter()
        .filter(|port| port.has(&subsystem.nqn))
        .collect();
    let mut tables = Vec::new();
    for group in groups {
        let mut by_state: BTreeMap<&str, Array> = BTreeMap::new();
        for port in &ports {
            let state = port.state(group);
            if state != AnaState::Optimized {
                let at = port.listener.address.to_string();
                by_state.entry(state.as_str()).or_default().push(at);
            }
        }
        for (state, listeners) in by_state {
            let mut table = Table::new();
            put(&mut table, "group", i64::from(group));
            put(&mut table, "state", state);
            put(&mut table, "listeners", listeners);
            tables.push(table);
        }
    }
    tables
}

fn namespace(nsid: u32, namespace: &Namespace) -> Table {
    let mut table = Table::new();
    put(&mut table, "nsid", i64::from(nsid));
    put(
        &mut table,
        "path",
        namespace.path.to_string_lossy().as_ref(),
    );
    if let Some(uuid) = namespace.uuid {
        put(&mut table, "uuid", uuid.to_string());
    }
    if let Some(nguid) = namespace.nguid {
        put(&mut table, "nguid", nguid.simple().to_string());
    }
    if namespace.is_buffered {
        put(&mut table, "direct", false);
    }
    if namespace.group != FIRST_GROUP {
        put(&mut table, "ana_group", i64::from(namespace.group));
    }
    table
}
