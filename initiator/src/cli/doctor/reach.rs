//! Whether the target's address can be reached at all.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use capstan_doctor::Check;
use capstan_initiator::identity::Identity;
use capstan_rdma::choose;

use super::super::args::ConnectArgs;

/// Connections that are made and closed to measure the round trip: a few, as the target takes each
/// for a host that changed its mind.
const TCP_CONNECTIONS: usize = 9;

/// What the way to the target is.
pub(super) struct Reached {
    pub(super) identity: Identity,
    pub(super) address: SocketAddr,
    /// Median time of a TCP connect; none when the provider does not use TCP.
    pub(super) tcp_round_trip: Option<Duration>,
}

/// Who this host is, where the target is, over what, and whether it answers. `None` when it is of no
/// use to go on.
pub(super) fn reach(connect: &ConnectArgs, checks: &mut Vec<Check>) -> Option<Reached> {
    let identity = match connect.identity() {
        Ok(identity) => identity,
        Err(error) => {
            checks.push(Check::error(
                "host NQN",
                format!("{error:#}"),
                "an NQN and a UUID",
                "nvme gen-hostnqn > /etc/nvme/hostnqn, or give --hostnqn and --hostid",
            ));
            return None;
        }
    };
    checks.push(Check::ok("host NQN", identity.hostnqn.as_str()));
    let address = match connect.discovery_options(&identity).socket_addr() {
        Ok(address) => address,
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
    checks.push(Check::ok(
        "address",
        format!("{} is {address}", connect.traddr),
    ));
    let (kind, why) = match choose(connect.preference(), address.ip()) {
        Ok(chosen) => chosen,
        Err(error) => {
            checks.push(Check::error(
                "provider",
                error.to_string(),
                "a provider that reaches the target",
                "--provider iwarp",
            ));
            return None;
        }
    };
    checks.push(Check::ok("provider", format!("{}: {why}", kind.name())));
    let mut reached = Reached {
        identity,
        address,
        tcp_round_trip: None,
    };
    if kind.name() != "iwarp" {
        // Other fabrics have no TCP port to knock at.
        return Some(reached);
    }
    match tcp_round_trip(address, Duration::from_secs(connect.connect_timeout.into())) {
        Ok(median) => {
            let us = median.as_secs_f64() * 1e6;
            let seen =
                format!("answers; connecting takes {us:.0} us (median of {TCP_CONNECTIONS})");
            checks.push(Check::ok("TCP", seen).with_figure("tcp_connect_us", us));
            reached.tcp_round_trip = Some(median);
            Some(reached)
        }
        Err(error) => {
            checks.push(Check::error(
                "TCP",
                format!("{address}: {error}"),
                "a target that listens there",
                unreachable_remedy(&error, address),
            ));
            None
        }
    }
}

fn unreachable_remedy(error: &io::Error, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    match error.kind() {
        ErrorKind::ConnectionRefused => format!(
            "on the target: ss -ltn 'sport = :{port}' shows who listens; capstan-target serve … \
             --listen {address} does"
        ),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("ping {ip}; on the target: nft list ruleset, for what drops port {port}")
        }
        _ => format!("ip route get {ip}"),
    }
}

/// The median time that connecting takes.
fn tcp_round_trip(address: SocketAddr, patience: Duration) -> io::Result<Duration> {
    let mut times = Vec::with_capacity(TCP_CONNECTIONS);
    for _ in 0..TCP_CONNECTIONS {
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&address, patience.max(Duration::from_millis(1)))?;
        times.push(start.elapsed());
        drop(stream);
    }
    times.sort();
    Ok(times[TCP_CONNECTIONS / 2])
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::{tcp_round_trip, unreachable_remedy};

    #[test]
    fn a_listener_answers_and_a_closed_port_refuses_with_a_remedy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(tcp_round_trip(address, Duration::from_secs(5)).unwrap() > Duration::ZERO);
        drop(listener);
        let error = tcp_round_trip(address, Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let remedy = unreachable_remedy(&error, address);
        assert!(remedy.contains(&format!("--listen {address}")), "{remedy}");
    }
}
