//! Changes that a reload does not make, by key, with what is served and what is wanted.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use capstan_config::{
    Config, DirectIo, LbaSize, Listener, Namespace, Nfs, ProviderChoice, QueueBounds, Reactors,
    Size, Subsystem, Target, first_of,
};

/// What is said of each.
#[derive(Default)]
pub(super) struct Refused(Vec<String>);

/// Keys that differ.
#[derive(Default)]
struct Keys(Vec<String>);

impl Keys {
    fn compare<T: PartialEq, D: Display>(
        &mut self,
        key: &str,
        served: &T,
        wanted: &T,
        shown: impl Fn(&T) -> D,
    ) {
        if served != wanted {
            let (served, wanted) = (shown(served), shown(wanted));
            self.0.push(format!("{key} from {served} to {wanted}"));
        }
    }
}

impl Refused {
    /// Everything of all hosts and subsystems.
    pub(super) fn of_target(&mut self, served: &Config, wanted: &Config) {
        let mut keys = Keys::default();
        let to = &wanted.target;
        // Spelled out, so that none is forgotten.
        let Target {
            reactors: of_reactors,
            memory_budget_bytes,
            spin,
            // It is changed while the target runs.
            log: _,
            hosts_max,
            shared_receive_queue,
            // What subsystems have of them is compared.
            serial_prefix: _,
            model: _,
            vendor_id,
            subsystem_vendor_id,
        } = &served.target;
        keys.compare("target.reactors", of_reactors, &to.reactors, reactors);
        keys.compare(
            "target.memory_budget",
            memory_budget_bytes,
            &to.memory_budget_bytes,
            |bytes| Size(*bytes),
        );
        keys.compare("target.spin", spin, &to.spin, |spin| format!("{spin:?}"));
        keys.compare("target.hosts_max", hosts_max, &to.hosts_max, u32::clone);
        keys.compare(
            "target.shared_receive_queue",
            shared_receive_queue,
            &to.shared_receive_queue,
            bool::clone,
        );
        keys.compare("target.vendor_id", vendor_id, &to.vendor_id, u16::clone);
        keys.compare(
            "target.subsystem_vendor_id",
            subsystem_vendor_id,
            &to.subsystem_vendor_id,
            u16::clone,
        );
        let QueueBounds {
            io_queues_max,
            depth_max,
        } = &served.queues;
        let to = &wanted.queues;
        keys.compare(
            "queues.io_queues_max",
            io_queues_max,
            &to.io_queues_max,
            u16::clone,
        );
        keys.compare("queues.depth_max", depth_max, &to.depth_max, u16::clone);
        let none = served.listeners.is_empty() != wanted.listeners.is_empty();
        if none {
            let shown = |all: &Vec<Listener>| listeners(all);
            keys.compare("[[listener]]", &served.listeners, &wanted.listeners, shown);
        }
        of_nfs(&mut keys, served.nfs.as_ref(), wanted.nfs.as_ref());
        self.needs_restart(keys);
    }

    /// What hosts have read of a subsystem, or hold it to.
    pub(super) fn of_subsystem(&mut self, served: &Subsystem, wanted: &Subsystem) {
        let mut keys = Keys::default();
        let of = |key: &str| format!("{key} of {}", served.nqn);
        keys.compare(&of("serial"), &served.serial, &wanted.serial, String::clone);
        keys.compare(&of("model"), &served.model, &wanted.model, String::clone);
        keys.compare(
            &of("end_older_association"),
            &served.end_older_association,
            &wanted.end_older_association,
            bool::clone,
        );
        self.needs_restart(keys);
    }

    fn needs_restart(&mut self, Keys(keys): Keys) {
        let each = keys.into_iter();
        self.0
            .extend(each.map(|key| format!("a change of {key} needs a restart")));
    }

    /// A namespace on what it was on before, which is open as long as it is served.
    pub(super) fn of_namespace(&mut self, of: &Subsystem, served: &Namespace, wanted: &Namespace) {
        let mut keys = Keys::default();
        keys.compare("lba", &served.lba, &wanted.lba, |lba| {
            written(lba.map(LbaSize::bytes))
        });
        keys.compare("uuid", &served.uuid, &wanted.uuid, |uuid| written(*uuid));
        keys.compare("nguid", &served.nguid, &wanted.nguid, |nguid| {
            written(nguid.map(|nguid| format!("{:032x}", u128::from_be_bytes(nguid))))
        });
        keys.compare("direct", &served.direct, &wanted.direct, |direct| {
            written(match direct {
                DirectIo::WherePossible => None,
                DirectIo::Required => Some(true),
                DirectIo::Off => Some(false),
            })
        });
        let (nsid, nqn, keys) = (served.nsid, &of.nqn, keys.0.join(", "));
        self.0.push(format!(
            "namespace {nsid} of {nqn} has changed ({keys}): take it out of the file, reload, put it \
             back in, and reload again"
        ));
    }

    /// # Errors
    /// There is one.
    pub(super) fn none(self) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        bail!("{}; nothing was changed", first_of(&self.0).join("; "))
    }
}

fn written<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "what is left out".to_owned(), |value| value.to_string())
}

/// All but the exports, as long as there is one.
fn of_nfs(keys: &mut Keys, served: Option<&Nfs>, wanted: Option<&Nfs>) {
    let (Some(served), Some(to)) = (served, wanted) else {
        let exports = |nfs: &Option<&Nfs>| match nfs {
            None => "none".to_owned(),
            Some(nfs) => nfs.exports.len().to_string(),
        };
        if served.is_some() != wanted.is_some() {
            keys.compare("[[export]]", &served, &wanted, exports);
            if let Some(key) = keys.0.last_mut().filter(|_| wanted.is_none()) {
                key.push_str(" (with `[nfs]` left there NFS goes on without one)");
            }
        }
        return;
    };
    // Spelled out, so that none is forgotten.
    let Nfs {
        tcp,
        rdma,
        provider,
        lease_time,
        grace_time,
        threads_written,
        memory_bytes,
        exports: _,
        absent: _,
    } = served;
    keys.compare("[nfs] over TCP", tcp, &to.tcp, |all| addresses(all));
    keys.compare("[nfs] over RDMA", rdma, &to.rdma, |all| addresses(all));
    keys.compare(
        "nfs.provider",
        provider,
        &to.provider,
        ProviderChoice::clone,
    );
    let shown = |time: &Duration| format!("{time:?}");
    keys.compare("nfs.lease_time", lease_time, &to.lease_time, shown);
    keys.compare("nfs.grace_time", grace_time, &to.grace_time, shown);
    keys.compare("nfs.threads", threads_written, &to.threads_written, |of| {
        written(*of)
    });
    keys.compare("nfs.memory", memory_bytes, &to.memory_bytes, |bytes| {
        Size(*bytes)
    });
}

fn addresses(all: &[SocketAddr]) -> String {
    let each: Vec<_> = all.iter().map(ToString::to_string).collect();
    match each.is_empty() {
        true => "no address".to_owned(),
        false => each.join(", "),
    }
}

fn reactors(reactors: &Reactors) -> String {
    match reactors {
        Reactors::Auto => "\"auto\"".to_owned(),
        Reactors::Count(count) => count.to_string(),
        Reactors::Cores(cores) => format!("{cores:?}"),
    }
}

fn listeners(listeners: &[Listener]) -> String {
    let each = listeners.iter().map(|listener| {
        // Spelled out, so that none is forgotten.
        let Listener {
            address,
            provider,
            transports,
        } = listener;
        match transports.by_default {
            true => format!("{address} ({provider})"),
            false => format!("{address} ({provider}, transports = {transports})"),
        }
    });
    match listeners {
        [] => "none".to_owned(),
        _ => each.collect::<Vec<_>>().join(", "),
    }
}
