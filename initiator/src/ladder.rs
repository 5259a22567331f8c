//! Connecting over whatever there is: RDMA devices, then iWARP, then NVMe/TCP, each for a bounded
//! time, until one leads to a controller.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use capstan_rdma::{Preference, ProviderKind, choose};

use crate::driver::AssociationEngine;
use crate::error::{ConnectError, RungFailures};
use crate::limits::RUNG_MS;
use crate::options::{Options, Transport};
use crate::race;

/// One way to a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    Verbs,
    Iwarp,
    Tcp,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "RDMA (verbs)",
            Self::Iwarp => "RDMA (iwarp)",
            Self::Tcp => "NVMe/TCP",
        })
    }
}

impl Rung {
    /// Those to be tried, in order. What RDMA device reaches an address is known beforehand.
    fn of(preference: Preference, addresses: &[SocketAddr]) -> Vec<Self> {
        let chosen = |address: &SocketAddr| choose(preference, address.ip()).ok();
        let has_device = addresses
            .iter()
            .filter_map(chosen)
            .any(|(kind, _)| kind == ProviderKind::Verbs);
        let mut rungs = Vec::new();
        if has_device {
            rungs.push(Self::Verbs);
        }
        if preference != Preference::Verbs {
            rungs.push(Self::Iwarp);
        }
        rungs.push(Self::Tcp);
        rungs
    }

    /// The options of an attempt.
    fn options(self, options: &Options) -> Options {
        let (transport, provider) = match self {
            Self::Verbs => (Transport::Rdma, Preference::Verbs),
            Self::Iwarp => (Transport::Rdma, Preference::Iwarp),
            Self::Tcp => (Transport::Tcp, options.provider),
        };
        let bound = Duration::from_millis(RUNG_MS);
        Options {
            transport,
            provider,
            connect_timeout: options.connect_timeout.min(bound),
            ..options.clone()
        }
    }
}

/// Starts an association with one of `addresses`, over the first transport that leads to a
/// controller; it is live. What was taken and why is one line of the log.
///
/// # Errors
/// Why it is none of them; or why a controller that was reached does not take this host.
pub(crate) fn climb(
    options: &Options,
    addresses: &[SocketAddr],
) -> Result<AssociationEngine, ConnectError> {
    let mut failures = Vec::new();
    for rung in Rung::of(options.provider, addresses) {
        match race::settle(&rung.options(options), addresses, true) {
            Ok(engine) => {
                let why = match &failures[..] {
                    [] => "it is the first that can be tried".to_owned(),
                    failures => RungFailures::told(failures),
                };
                tracing::info!("connected to {} over {rung}: {why}", options.traddr);
                return Ok(engine);
            }
            Err(error) if leads_on(&error) => failures.push((rung.to_string(), Arc::new(error))),
            Err(error) => return Err(error),
        }
    }
    Err(ConnectError::Ladder {
        name: options.traddr.clone(),
        failures: RungFailures(failures.into()),
    })
}

/// Whether another transport may lead where this one did not: there was no connection.
fn leads_on(error: &ConnectError) -> bool {
    match error {
        ConnectError::Transport { .. }
        | ConnectError::Rejected { .. }
        | ConnectError::Timeout { .. }
        | ConnectError::Disconnected { .. }
        | ConnectError::Protocol { .. }
        | ConnectError::Resources { .. } => true,
        ConnectError::Addresses { failures, .. } => {
            failures.0.iter().all(|(_, error)| leads_on(error))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;

    use capstan_nvme_proto::nqn::Nqn;
    use capstan_reactor::Clock;

    use super::{Options, Rung, climb};
    use crate::driver::tests::tcp::Peer;
    use crate::error::ConnectError;
    use crate::host::Status;
    use crate::options::Transport;
    use crate::scripted::HOSTID;

    fn options(address: SocketAddr) -> Options {
        let nqn = |name| Nqn::new(name).unwrap();
        let mut options = Options::new("127.0.0.1", nqn("nqn.s"), nqn("nqn.h"), HOSTID);
        options.trsvcid = address.port();
        options.transport = Transport::Auto;
        options
    }

    /// A target that speaks NVMe/TCP alone, until `stop`.
    fn serve(stop: &AtomicBool, address: &mpsc::Sender<SocketAddr>) {
        let mut peer = Peer::new();
        address.send(peer.address()).unwrap();
        while !stop.load(Ordering::Relaxed) {
            if !peer.turn(Clock.now_us()) {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_target_of_nvme_tcp_alone_is_found_behind_iwarp() {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let target = thread::spawn({
            let stop = Arc::clone(&stop);
            move || serve(&stop, &sender)
        });
        let address = receiver.recv().unwrap();
        let engine = climb(&options(address), &[address]).unwrap();
        assert!(matches!(engine.status(Clock.now_us()), Status::Live));
        assert!(engine.device_attributes().is_none(), "it is RDMA");
        drop(engine);
        stop.store(true, Ordering::Relaxed);
        target.join().unwrap();
    }

    #[test]
    fn where_nothing_listens_each_transport_is_named_with_its_reason() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = climb(&options(address), &[address]).err().unwrap();
        assert!(matches!(error, ConnectError::Ladder { .. }), "{error:?}");
        let told = error.to_string();
        for rung in [Rung::Iwarp, Rung::Tcp] {
            let begin = format!("{rung}: queue 0: ");
            assert_eq!(told.matches(&begin).count(), 1, "{told}");
        }
    }
}
