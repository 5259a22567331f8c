//! Connecting over whatever there is: RDMA devices, then iWARP, then NVMe/TCP, each for a bounded
//! time, until one leads to a controller.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_rdma::{ProviderKind, ProviderPreference, choose};

use crate::driver::AssociationEngine;
use crate::error::{ConnectError, TransportFailures};
use crate::limits::TRANSPORT_ATTEMPT_MS;
use crate::names::Name;
use crate::options::{Options, Transport};
use crate::race;

/// A person notices no shorter wait, in milliseconds.
const NOTICED_MS: u64 = 1000;

/// The transport that an association with [`Transport::Auto`] has taken. It reconnects over that
/// one only.
#[derive(Clone, Debug)]
pub struct TakenTransport {
    candidate: Candidate,
    /// Why a device is used or none, where it is the first that was tried.
    why: Option<String>,
    /// Those that were tried before it, and why they do not lead to a controller.
    pub passed: TransportFailures,
}

impl TakenTransport {
    /// RDMA or TCP.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.wire(ProviderPreference::Auto).0
    }

    /// The transport and, of RDMA, the provider; `provider` where it has none.
    pub(crate) fn wire(&self, provider: ProviderPreference) -> (Transport, ProviderPreference) {
        self.candidate.wire(provider)
    }

    /// What was taken and why, in one line for people.
    #[must_use]
    pub fn in_words(&self, traddr: &str, trsvcid: u16) -> String {
        format!("connected to {traddr} port {trsvcid} {self}")
    }

    /// `options` with what was taken in place of [`Transport::Auto`].
    #[must_use]
    pub fn in_options(&self, options: Options) -> Options {
        let (transport, provider) = self.wire(options.provider);
        Options {
            transport,
            provider,
            ..options
        }
    }
}

impl fmt::Display for TakenTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over {}", self.candidate)?;
        match &self.passed.0[..] {
            [] => match &self.why {
                Some(why) => write!(f, ", the first that can be tried: {why}"),
                None => f.write_str(", the first that can be tried"),
            },
            _ => write!(
                f,
                ", which {} takes at once; tried before: {}",
                self.candidate.asked_by(),
                self.passed.without_next_steps()
            ),
        }
    }
}

/// One of the transports that are tried: a way to a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    Verbs,
    Iwarp,
    Tcp,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "RDMA (verbs)",
            Self::Iwarp => "RDMA (iwarp)",
            Self::Tcp => "NVMe/TCP",
        })
    }
}

impl Candidate {
    /// The transports to be tried, in order. What RDMA device reaches an address is known
    /// beforehand.
    fn in_order(options: &Options, addresses: &[SocketAddr]) -> Vec<Self> {
        if options.asks_digests() {
            return vec![Self::Tcp];
        }
        let preference = options.provider;
        let chosen = |address: &SocketAddr| choose(preference, address.ip()).ok();
        let has_device = addresses
            .iter()
            .filter_map(chosen)
            .any(|(kind, _)| kind == ProviderKind::Verbs);
        let mut candidates = Vec::new();
        // Without a device it says so.
        if has_device || preference == ProviderPreference::Verbs {
            candidates.push(Self::Verbs);
        }
        if preference != ProviderPreference::Verbs {
            candidates.push(Self::Iwarp);
        }
        candidates.push(Self::Tcp);
        candidates
    }

    /// Its transport and, of RDMA, its provider; `provider` where it has none.
    fn wire(self, provider: ProviderPreference) -> (Transport, ProviderPreference) {
        match self {
            Self::Verbs => (Transport::Rdma, ProviderPreference::Verbs),
            Self::Iwarp => (Transport::Rdma, ProviderPreference::Iwarp),
            Self::Tcp => (Transport::Tcp, provider),
        }
    }

    /// What asks for it alone.
    fn asked_by(self) -> Name {
        match self {
            Self::Verbs => Name::OverVerbs,
            Self::Iwarp => Name::OverIwarp,
            Self::Tcp => Name::OverTcp,
        }
    }

    /// The options of an attempt.
    fn options(self, options: &Options) -> Options {
        let (transport, provider) = self.wire(options.provider);
        let bound = Duration::from_millis(TRANSPORT_ATTEMPT_MS);
        Options {
            transport,
            provider,
            connect_timeout: options
                .transport_timeout
                .unwrap_or_else(|| options.connect_timeout.min(bound)),
            ..options.clone()
        }
    }
}

/// Starts an association with one of `addresses`, over the first transport that leads to a
/// controller; it is live. What was taken and why is one line of the log, and
/// [`AssociationEngine::taken`].
///
/// # Errors
/// Why it is none of them; or why a controller that was reached does not take this host.
pub(crate) fn connect(
    options: &Options,
    addresses: &[SocketAddr],
) -> Result<AssociationEngine, ConnectError> {
    let mut failures = Vec::new();
    let begun = Instant::now();
    for candidate in Candidate::in_order(options, addresses) {
        match race::settle(&candidate.options(options), addresses, true) {
            Ok(mut engine) => {
                let why = match &failures[..] {
                    [] => why(options, addresses),
                    _ => None,
                };
                let passed = TransportFailures(failures.into());
                let taken = TakenTransport {
                    candidate,
                    why,
                    passed,
                };
                tracing::info!("{}", taken.in_words(&options.traddr, options.trsvcid));
                engine.set_taken(taken, options.connect_timeout);
                return Ok(engine);
            }
            Err(error) if leads_on(&error) => {
                failures.push((candidate.to_string(), Arc::new(error)));
            }
            Err(error) => return Err(error),
        }
    }
    Err(ConnectError::Transports {
        name: options.traddr.clone(),
        tried_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        failures: TransportFailures(failures.into()),
    })
}

/// Which device is used, or why none is.
fn why(options: &Options, addresses: &[SocketAddr]) -> Option<String> {
    if options.asks_digests() {
        return Some("digests are asked for, which NVMe/TCP alone has".to_owned());
    }
    let (_, why) = choose(options.provider, addresses.first()?.ip()).ok()?;
    Some(why)
}

/// Whether another transport may lead where this one did not: there was no connection.
fn leads_on(error: &ConnectError) -> bool {
    match error {
        ConnectError::Transport { .. }
        | ConnectError::Rejected { .. }
        | ConnectError::Timeout { .. }
        | ConnectError::Disconnected { .. }
        | ConnectError::NoIcResp { .. }
        | ConnectError::Protocol { .. }
        | ConnectError::Resources { .. } => true,
        ConnectError::Addresses { failures, .. } => {
            failures.0.iter().all(|(_, error)| leads_on(error))
        }
        _ => false,
    }
}

/// How long a host has waited for all transports, in words, where it could be noticed: more than
/// its `connect_timeout`, and less where that is long.
pub(crate) fn tried_for(tried_ms: u64) -> String {
    match tried_ms {
        ..NOTICED_MS => String::new(),
        _ => format!(
            " after {:.1} s (each has {:.1} s, or what {} says)",
            Duration::from_millis(tried_ms).as_secs_f32(),
            Duration::from_millis(TRANSPORT_ATTEMPT_MS).as_secs_f32(),
            Name::TransportTimeout,
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    use capstan_nvme_proto::nqn::Nqn;
    use capstan_rdma::ProviderPreference;
    use capstan_reactor::Clock;

    use super::{Candidate, Options, connect};
    use crate::driver::tests::tcp::Peer;
    use crate::error::ConnectError;
    use crate::host::AssociationStatus;
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
        let mut options = options(address);
        options.connect_timeout = Duration::from_secs(20);
        let engine = connect(&options, &[address]).unwrap();
        assert!(matches!(
            engine.status(Clock.now_us()),
            AssociationStatus::Live
        ));
        assert!(engine.device_attributes().is_none(), "it is RDMA");
        let taken = engine.taken().unwrap();
        assert_eq!(taken.in_options(options.clone()).transport, Transport::Tcp);
        let told = taken.to_string();
        let begin =
            "over NVMe/TCP, which Transport::Tcp takes at once; tried before: RDMA (iwarp): ";
        assert!(told.starts_with(begin), "{told}");
        // What bounds an attempt is for the attempt.
        let timeout_us = engine.connect_timeout_us();
        assert_eq!(u128::from(timeout_us), options.connect_timeout.as_micros());
        drop(engine);
        stop.store(true, Ordering::Relaxed);
        target.join().unwrap();
    }

    /// A port that says nothing at all is waited for no longer than each transport has.
    #[test]
    fn a_port_that_says_nothing_costs_the_time_of_each_transport() {
        let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = mute.local_addr().unwrap();
        let mut options = options(address);
        options.connect_timeout = Duration::from_millis(600);
        let begun = Instant::now();
        let error = connect(&options, &[address]).err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
        let ConnectError::Transports { failures, .. } = &error else {
            panic!("{error:?}");
        };
        let told = error.to_string();
        assert!(
            told.contains("no transport reaches 127.0.0.1 after "),
            "{told}"
        );
        assert!(
            told.contains("(each has 3.5 s, or what Options::transport_timeout says)"),
            "{told}"
        );
        let names: Vec<_> = failures.0.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["RDMA (iwarp)", "NVMe/TCP"]);
        let long = Duration::from_secs(30);
        let of_attempt = |transport_timeout| {
            let options = Options {
                connect_timeout: long,
                transport_timeout,
                ..options.clone()
            };
            Candidate::Iwarp.options(&options).connect_timeout
        };
        assert!(of_attempt(None) < Duration::from_secs(4));
        // What is asked for is given.
        assert_eq!(of_attempt(Some(long)), long);
    }

    /// What answers with something else is not waited for.
    #[test]
    fn a_port_that_refuses_is_left_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // The other side may have closed it.
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                }
            }
        });
        let begun = Instant::now();
        let error = connect(&options(address), &[address]).err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{error}");
        assert!(!error.to_string().contains("connect_timeout"), "{error}");
        assert!(
            matches!(error, ConnectError::Transports { .. }),
            "{error:?}"
        );
        stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(address).unwrap());
        other.join().unwrap();
    }

    #[test]
    fn a_provider_that_is_named_and_cannot_be_had_is_told_of() {
        let address = "192.0.2.1:4420".parse().unwrap();
        let candidates = |provider| {
            let options = Options {
                provider,
                ..options(address)
            };
            Candidate::in_order(&options, &[address])
        };
        assert_eq!(
            candidates(ProviderPreference::Verbs),
            [Candidate::Verbs, Candidate::Tcp]
        );
        assert_eq!(
            candidates(ProviderPreference::Iwarp),
            [Candidate::Iwarp, Candidate::Tcp]
        );
    }

    /// They would be left out without a word.
    #[test]
    fn no_transport_without_digests_is_tried_where_they_are_asked_for() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        for (header_digest, data_digest) in [(true, false), (false, true)] {
            let options = Options {
                header_digest,
                data_digest,
                ..options(address)
            };
            let ConnectError::Transports { failures, .. } =
                connect(&options, &[address]).err().unwrap()
            else {
                panic!("not one of several transports");
            };
            let names: Vec<_> = failures.0.iter().map(|(name, _)| &**name).collect();
            assert_eq!(names, ["NVMe/TCP"]);
            let why = super::why(&options, &[address]).unwrap();
            assert!(why.starts_with("digests are asked for"), "{why}");
        }
    }

    #[test]
    fn where_nothing_listens_each_transport_is_named_with_its_reason() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = connect(&options(address), &[address]).err().unwrap();
        assert!(
            matches!(error, ConnectError::Transports { .. }),
            "{error:?}"
        );
        let told = error.to_string();
        for candidate in [Candidate::Iwarp, Candidate::Tcp] {
            let begin = format!("{candidate}: queue 0: ");
            assert_eq!(told.matches(&begin).count(), 1, "{told}");
        }
    }
}
