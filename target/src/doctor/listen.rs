//! A listener of the configuration: what hosts connect by there, and whether its port is free.

use std::net::SocketAddr;

use capstan_config::{Config, Listener};
use capstan_doctor::{Check, Machine, Verdict};
use capstan_rdma::iwarp::can_listen;
use nix::errno::Errno;

use crate::listen_error::{Obstacle, obstacle};
use crate::providers::{Chosen, choose};
use crate::tcp_port::{self, OWN_LISTENER, TcpPort};

const UNLESS_IT_RUNS: &str = ", unless this target runs already";

/// A listener with the provider of its RDMA and the port of its NVMe/TCP.
pub struct Listen<'a> {
    machine: &'a Machine,
    listener: &'a Listener,
    /// None where it has no RDMA, or there is no such provider.
    provider: Option<&'static str>,
    why: String,
    /// None where the configuration leaves it out.
    tcp: Option<TcpPort>,
}

impl<'a> Listen<'a> {
    /// Those of the configuration.
    #[must_use]
    pub fn all(machine: &'a Machine, config: &'a Config) -> Vec<Self> {
        let listeners = config.listeners.iter();
        listeners
            .map(|listener| Self::of(machine, config, listener))
            .collect()
    }

    fn of(machine: &'a Machine, config: &Config, listener: &'a Listener) -> Self {
        let transports = listener.transports;
        let (provider, why) = match choose(listener) {
            _ if !transports.rdma => (None, "transports names NVMe/TCP only".to_owned()),
            Ok(Chosen { kind, why }) => (Some(kind.name()), why),
            Err(error) => (None, error.to_string()),
        };
        let tcp = match provider {
            Some("verbs") => tcp_port::expected(machine, &config.listeners, listener.address),
            _ => TcpPort::Same,
        };
        Self {
            machine,
            listener,
            provider,
            why,
            tcp: transports.tcp.then_some(tcp),
        }
    }

    pub(super) fn uses_verbs(&self) -> bool {
        self.provider == Some("verbs")
    }

    /// What hosts connect by there, and why not by the other, in one line; of a listener that the
    /// target would not start with, nothing.
    #[must_use]
    pub fn serves(&self) -> Option<String> {
        let Self { listener, why, .. } = self;
        let (address, tcp) = (listener.address, self.tcp_words());
        match self.provider {
            Some(provider) => Some(format!(
                "listen {address}: NVMe/RDMA by {provider}, {why}; {tcp}"
            )),
            None if listener.transports.rdma => None,
            None => Some(format!("listen {address}: {tcp}; no NVMe/RDMA, {why}")),
        }
    }

    fn tcp_words(&self) -> String {
        match &self.tcp {
            None => "no NVMe/TCP, transports names NVMe/RDMA only".to_owned(),
            Some(TcpPort::Same) if self.listener.transports.rdma => {
                "NVMe/TCP at the same port".to_owned()
            }
            Some(TcpPort::Same) => "NVMe/TCP".to_owned(),
            Some(TcpPort::Next(next, why)) if self.listener.address.port() != 0 => {
                format!("NVMe/TCP at the next port, {}, as {why}", next.port())
            }
            Some(TcpPort::Next(_, why)) => format!("NVMe/TCP at the next port, as {why}"),
            Some(TcpPort::None(why)) => format!("no NVMe/TCP, {why}; {OWN_LISTENER}"),
        }
    }

    /// Its provider, its device, what hosts connect by, and whether its port is free.
    pub(super) fn check(&self) -> Check {
        let address = self.listener.address;
        let name = format!("listen {address}");
        let begin = match self.provider {
            Some(provider) => format!("{provider}: {}; ", self.why),
            None if self.listener.transports.rdma => {
                let expected = "a provider for this address";
                return Check::error(
                    name,
                    &self.why,
                    expected,
                    "provider = \"auto\" or \"iwarp\"",
                );
            }
            None => String::new(),
        };
        let place = capstan_doctor::address(self.machine, address.ip());
        let tcp = self.tcp_words();
        let seen = match self.listener.transports.rdma {
            true => format!("{begin}{}; {tcp}", place.seen),
            // Which RDMA devices there are, or none, is nothing to it.
            false => format!("{tcp}; {}", place.seen.trim_end_matches(", no RDMA device")),
        };
        if place.verdict != Verdict::Ok {
            return Check {
                name,
                seen,
                ..place
            };
        }
        let Some((errno, obstacle)) = self.obstacle() else {
            return Check::ok(name, seen);
        };
        let seen = format!("{seen}; {}", obstacle.seen);
        if errno == Some(Errno::EADDRINUSE) {
            let expected = format!("{}{UNLESS_IT_RUNS}", obstacle.expected);
            return Check::warning(name, seen, expected, obstacle.remedy);
        }
        Check::error(name, seen, obstacle.expected, obstacle.remedy)
    }

    /// Where sockets of this process are to listen; none where NVMe/TCP does without if need be.
    fn sockets(&self) -> Option<SocketAddr> {
        let address = self.listener.address;
        let transports = self.listener.transports;
        match (self.provider, &self.tcp) {
            (Some("verbs"), Some(TcpPort::Same)) if !transports.by_default => Some(address),
            (Some("verbs"), Some(TcpPort::Next(next, _))) if !transports.by_default => Some(*next),
            (Some("verbs"), _) => None,
            (Some(_), _) => Some(address),
            (None, tcp) => tcp.as_ref().filter(|_| !transports.rdma).map(|_| address),
        }
    }

    /// What keeps a TCP port from being listened at now.
    fn obstacle(&self) -> Option<(Option<Errno>, Obstacle)> {
        let address = self.sockets()?;
        if self.listener.address.port() == 0 {
            return None;
        }
        // As a start makes it: a socket of IPv4 is not in the way of one of IPv6.
        let error = can_listen(address).err()?;
        let errno = error.raw_os_error().map(Errno::from_raw);
        let obstacle = obstacle(self.machine, address, errno, &error.to_string());
        Some((errno, obstacle))
    }

    /// That its port is in use, in one line.
    #[must_use]
    pub fn port_in_use(&self) -> Option<String> {
        let (errno, obstacle) = self.obstacle()?;
        (errno == Some(Errno::EADDRINUSE)).then(|| {
            let Obstacle {
                seen,
                expected,
                remedy,
            } = obstacle;
            let address = self.listener.address;
            format!("listen {address}: {seen}, expected {expected}{UNLESS_IT_RUNS}: {remedy}")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use capstan_config::Config;
    use capstan_doctor::Machine;

    use super::{Listen, TcpPort};

    fn config(listener: &str) -> Config {
        Config::from_toml(&format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n{listener}\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\n"
        ))
        .unwrap()
    }

    /// A start takes the port of IPv6 for itself alone.
    #[test]
    fn a_socket_of_ipv4_is_not_in_the_way_of_every_address_of_ipv6() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let config = Config::from_toml(&format!(
            "[[listener]]\naddress = \"::\"\nport = {port}\nprovider = \"iwarp\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\n"
        ))
        .unwrap();
        let machine = Machine::here();
        let listen = &Listen::all(&machine, &config)[0];
        assert_eq!(listen.port_in_use(), None);
        // One of IPv6 is, whatever it takes besides.
        let same = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
        drop(taken);
        let _taken = TcpListener::bind(same).unwrap();
        assert!(listen.port_in_use().is_some());
    }

    fn serves(listener: &str) -> String {
        let (machine, config) = (Machine::here(), config(listener));
        Listen::all(&machine, &config)[0].serves().unwrap()
    }

    #[test]
    fn a_listener_says_what_hosts_connect_by() {
        for (listener, words) in [
            (
                "provider = \"iwarp\"",
                "listen 127.0.0.1:4420: NVMe/RDMA by iwarp, asked for; NVMe/TCP at the same port",
            ),
            (
                "port = 4421\ntransports = [\"tcp\"]",
                "listen 127.0.0.1:4421: NVMe/TCP; no NVMe/RDMA, transports names NVMe/TCP only",
            ),
            (
                "provider = \"iwarp\"\ntransports = [\"rdma\"]",
                "listen 127.0.0.1:4420: NVMe/RDMA by iwarp, asked for; no NVMe/TCP, transports \
                 names NVMe/RDMA only",
            ),
        ] {
            assert_eq!(serves(listener), words);
        }
    }

    /// What a machine with an iWARP device of the kernel has.
    #[test]
    fn a_second_port_of_nvme_tcp_is_told_and_looked_at() {
        let (machine, config) = (Machine::here(), config("transports = [\"rdma\", \"tcp\"]"));
        let next = "127.0.0.1:4421".parse().unwrap();
        let listen = |tcp| Listen {
            machine: &machine,
            listener: &config.listeners[0],
            provider: Some("verbs"),
            why: "RDMA device siw0 has or reaches 127.0.0.1".to_owned(),
            tcp: Some(tcp),
        };
        let why = "the iWARP device siw0 has TCP port 4420".to_owned();
        let second = listen(TcpPort::Next(next, why.clone()));
        let told = second.serves().unwrap();
        let end = "; NVMe/TCP at the next port, 4421, as the iWARP device siw0 has TCP port 4420";
        assert!(told.ends_with(end), "{told}");
        assert_eq!(second.sockets(), Some(next));
        let none = listen(TcpPort::None(why)).serves().unwrap();
        assert!(none.contains("; no NVMe/TCP, the iWARP device"), "{none}");
        assert!(
            none.ends_with("transports = [\"tcp\"] and another port"),
            "{none}"
        );
    }
}
