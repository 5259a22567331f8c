//! The port at which a listener has NVMe/TCP: that of RDMA, or the next one where an iWARP device
//! of the kernel has that. Such a device binds real TCP ports; RoCE and InfiniBand leave them to
//! others.

use std::net::SocketAddr;

use capstan_config::{Listener, Transports};
use capstan_doctor::{Machine, iwarp_device};
use capstan_rdma::contract::CmError;

use crate::listen_error::is_in_use;

/// What gives NVMe/TCP a port where an RDMA device takes TCP ports of the kernel.
pub(crate) const OWN_LISTENER: &str =
    "give NVMe/TCP a listener of its own, with transports = [\"tcp\"] and another port";

/// Where a listener of the verbs provider has NVMe/TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpPort {
    /// At the port of RDMA.
    Same,
    /// At this one, as an iWARP device has the port of RDMA; why, in words.
    Next(SocketAddr, String),
    /// At none, as nobody has asked for it by name; why, in words.
    None(String),
}

/// Has `listen` take a port for the NVMe/TCP of a listener that has RDMA at `bound`, one of
/// `listeners`.
///
/// # Errors
/// The address that could not be listened at, and why: NVMe/TCP is named by the configuration, or
/// it is not another socket that has the port.
pub(crate) fn take(
    machine: &Machine,
    listeners: &[Listener],
    bound: SocketAddr,
    transports: Transports,
    mut listen: impl FnMut(SocketAddr) -> Result<SocketAddr, CmError>,
) -> Result<TcpPort, (SocketAddr, CmError)> {
    let taken = match listen(bound) {
        Ok(_) => return Ok(TcpPort::Same),
        Err(error) if !is_in_use(&error) => return Err((bound, error)),
        Err(error) => error,
    };
    let nowhere = |at, error, why| match transports.by_default {
        true => Ok(TcpPort::None(why)),
        false => Err((at, error)),
    };
    let (next, why) = match expected(machine, listeners, bound) {
        TcpPort::Next(next, why) => (next, why),
        TcpPort::None(why) => return nowhere(bound, taken, why),
        TcpPort::Same => {
            let why = format!("another socket has TCP port {}", bound.port());
            return nowhere(bound, taken, why);
        }
    };
    match listen(next) {
        Ok(_) => Ok(TcpPort::Next(next, why)),
        Err(error) if is_in_use(&error) => {
            let why = format!("{why}, and another socket the next one, {}", next.port());
            nowhere(next, error, why)
        }
        Err(error) => Err((next, error)),
    }
}

/// Where a listener with RDMA at `bound` will have NVMe/TCP, as far as no other program is in the
/// way.
pub(crate) fn expected(machine: &Machine, listeners: &[Listener], bound: SocketAddr) -> TcpPort {
    let Some(device) = iwarp_device(machine, bound.ip()) else {
        return TcpPort::Same;
    };
    let why = match bound.port() {
        0 => format!("the iWARP device {device} has the first"),
        port => format!("the iWARP device {device} has TCP port {port}"),
    };
    match next_port(listeners, bound) {
        Some(next) => TcpPort::Next(next, why),
        None => TcpPort::None(format!(
            "{why}, and the next port is no port or another listener's"
        )),
    }
}

/// The port behind that of `bound`, where no other listener is in the way of it.
pub(crate) fn next_port(listeners: &[Listener], bound: SocketAddr) -> Option<SocketAddr> {
    let next = SocketAddr::new(bound.ip(), bound.port().checked_add(1)?);
    let is_free = !listeners.iter().any(|listener| listener.meets(next));
    is_free.then_some(next)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{SocketAddr, TcpListener};

    use capstan_config::{Config, Transports};
    use capstan_doctor::Machine;
    use capstan_rdma::contract::CmError;

    use super::{TcpPort, next_port, take};

    /// A machine with an iWARP device that has 127.0.0.1, or with none.
    fn machine(has_device: bool) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("sys/class/infiniband/siw0/node_type", "4: RNIC\n"),
            ("sys/class/infiniband/siw0/ports/1/state", "4: ACTIVE\n"),
            (
                "sys/class/infiniband/siw0/ports/1/gids/0",
                "0000:0000:0000:0000:0000:ffff:7f00:0001\n",
            ),
            (
                "sys/class/infiniband/siw0/ports/1/gid_attrs/ndevs/0",
                "lo\n",
            ),
        ];
        for (file, text) in files.iter().take(if has_device { files.len() } else { 0 }) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let addresses = vec![("lo".to_owned(), "127.0.0.1".parse().unwrap())];
        let machine = Machine::at(root.path(), addresses);
        (root, machine)
    }

    fn config(ports: &[u16]) -> Config {
        let listeners = ports
            .iter()
            .map(|port| format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\n"));
        Config::from_toml(&format!(
            "{}[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\n",
            listeners.collect::<String>()
        ))
        .unwrap()
    }

    /// Two ports in a row: the first is taken, the second is free.
    fn taken_and_free() -> (TcpListener, SocketAddr, SocketAddr) {
        for _ in 0..1000 {
            let taken = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = taken.local_addr().unwrap();
            let Some(next) = at.port().checked_add(1) else {
                continue;
            };
            let next = SocketAddr::new(at.ip(), next);
            if TcpListener::bind(next).is_ok() {
                return (taken, at, next);
            }
        }
        panic!("no two ports in a row")
    }

    /// As the provider listens; what it holds stays in `held`.
    fn listening(
        held: &mut Vec<TcpListener>,
    ) -> impl FnMut(SocketAddr) -> Result<SocketAddr, CmError> {
        move |at| {
            let socket = TcpListener::bind(at).map_err(|error| CmError::System {
                what: format!("listening at {at}"),
                message: error.to_string(),
                errno: error.raw_os_error(),
            })?;
            held.push(socket);
            Ok(at)
        }
    }

    #[test]
    fn the_next_port_is_taken_where_an_iwarp_device_has_the_first() {
        let (taken, at, next) = taken_and_free();
        let listeners = config(&[at.port()]).listeners;
        let (_root, machine) = machine(true);
        for transports in [Transports::default(), Transports::named(true, true)] {
            let mut held = Vec::new();
            let listen = listening(&mut held);
            let found = take(&machine, &listeners, at, transports, listen).unwrap();
            let why = format!("the iWARP device siw0 has TCP port {}", at.port());
            assert_eq!(found, TcpPort::Next(next, why));
            assert_eq!(held[0].local_addr().unwrap(), next);
        }
        drop(taken);
        let mut held = Vec::new();
        let listen = listening(&mut held);
        let found = take(&machine, &listeners, at, Transports::default(), listen);
        assert_eq!(found.unwrap(), TcpPort::Same);
    }

    #[test]
    fn where_the_next_port_is_not_free_there_is_none_and_who_named_it_is_told() {
        let (_taken, at, next) = taken_and_free();
        let (_root, machine) = machine(true);
        let _other = TcpListener::bind(next).unwrap();
        let listeners = config(&[at.port()]).listeners;
        let found = |listeners: &[_], transports| {
            let mut held = Vec::new();
            take(&machine, listeners, at, transports, listening(&mut held))
        };
        let TcpPort::None(why) = found(&listeners, Transports::default()).unwrap() else {
            panic!("it is taken");
        };
        let words = format!("another socket the next one, {}", next.port());
        assert!(why.contains(&words), "{why}");
        let (place, _) = found(&listeners, Transports::named(true, true)).unwrap_err();
        assert_eq!(place, next);
        // Nobody has it yet, and a listener behind this one is going to.
        let both = config(&[at.port(), next.port()]).listeners;
        let TcpPort::None(why) = found(&both, Transports::default()).unwrap() else {
            panic!("it is another listener's");
        };
        assert!(why.contains("another listener's"), "{why}");
    }

    #[test]
    fn a_port_that_another_program_has_is_not_made_up_for() {
        let (_taken, at, _) = taken_and_free();
        let listeners = config(&[at.port()]).listeners;
        let (_root, machine) = machine(false);
        let found = |transports| {
            let mut held = Vec::new();
            take(&machine, &listeners, at, transports, listening(&mut held))
        };
        let by_default = found(Transports::default()).unwrap();
        assert!(matches!(by_default, TcpPort::None(_)), "{by_default:?}");
        assert_eq!(found(Transports::named(true, true)).unwrap_err().0, at);
    }

    #[test]
    fn there_is_no_port_behind_the_last() {
        let listeners = config(&[4420]).listeners;
        let next = |text: &str| next_port(&listeners, text.parse().unwrap());
        assert_eq!(next("127.0.0.1:65535"), None);
        assert_eq!(next("127.0.0.1:4419"), None);
        assert_eq!(next("127.0.0.1:4420").unwrap().port(), 4421);
    }
}
