//! Why an address cannot be listened at, with the thing at fault and the next step.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use capstan_doctor::{Machine, listener};
use capstan_rdma::contract::CmError;
use nix::errno::Errno;

/// Addresses of the machine that are named.
const ADDRESSES_TOLD: usize = 8;

/// What is wrong, what would be right, and what mends it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) seen: String,
    pub(crate) expected: String,
    pub(crate) remedy: String,
}

/// The error of a listener as one for people.
pub(crate) fn cannot_listen(address: SocketAddr, error: CmError) -> anyhow::Error {
    let CmError::System { message, errno, .. } = error else {
        return anyhow::Error::new(error).context(format!("cannot listen at {address}"));
    };
    let errno = errno.map(Errno::from_raw);
    let Obstacle {
        seen,
        expected,
        remedy,
    } = obstacle(&Machine::here(), address, errno, &message);
    anyhow::anyhow!("cannot listen at {address}: {seen}; expected {expected}: {remedy}")
}

/// Whether another socket has the port of a listener.
pub(crate) fn is_in_use(error: &CmError) -> bool {
    let CmError::System { errno, .. } = error else {
        return false;
    };
    errno.map(Errno::from_raw) == Some(Errno::EADDRINUSE)
}

/// Why `address` cannot be listened at, by the system's `errno` and `message`.
pub(crate) fn obstacle(
    machine: &Machine,
    address: SocketAddr,
    errno: Option<Errno>,
    message: &str,
) -> Obstacle {
    let (ip, port) = (address.ip(), address.port());
    let (seen, expected, remedy) = match errno {
        Some(Errno::EADDRINUSE) => {
            let by = listener(machine, address).map_or_else(
                || {
                    "in use, and nothing is seen to listen there (another network namespace, or a \
                    socket that is only bound)"
                        .to_owned()
                },
                |listener| format!("in use by {listener}"),
            );
            (
                format!("port {port} is {by}"),
                "a free port".to_owned(),
                format!(
                    "end that, or listen at another port; `ss -ltnp 'sport = :{port}'` shows more"
                ),
            )
        }
        Some(Errno::EACCES) if port < unprivileged(machine) => {
            let first = unprivileged(machine);
            (
                format!("port {port} is below {first}, which only a privileged process may take"),
                format!("a port from {first} on, or CAP_NET_BIND_SERVICE"),
                format!(
                    "listen at another port, or AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit, or \
                     `sysctl -w net.ipv4.ip_unprivileged_port_start={port}`"
                ),
            )
        }
        Some(Errno::EADDRNOTAVAIL) => absent(machine, ip),
        Some(Errno::ENODEV) => (
            format!("no RDMA device has {ip}"),
            "the address of an RDMA device's port".to_owned(),
            "`rdma link` shows the devices; provider = \"iwarp\" or \"auto\" needs none".to_owned(),
        ),
        Some(Errno::EAFNOSUPPORT) => (
            format!("the kernel does not speak {}", family(ip)),
            "an address of a family that it speaks".to_owned(),
            "listen at one, or boot without ipv6.disable=1".to_owned(),
        ),
        Some(Errno::EMFILE | Errno::ENFILE) => (
            "no descriptor is left for it".to_owned(),
            "a higher limit of open files".to_owned(),
            "`ulimit -Hn` of the process, LimitNOFILE= of the unit, `sysctl fs.file-max`"
                .to_owned(),
        ),
        _ => (
            message.to_owned(),
            "an address and port of this machine".to_owned(),
            "`ip address` lists the addresses, `ss -ltn` the ports in use".to_owned(),
        ),
    };
    Obstacle {
        seen,
        expected,
        remedy,
    }
}

/// An address that the machine has not, or not yet.
fn absent(machine: &Machine, ip: IpAddr) -> (String, String, String) {
    let own = machine
        .addresses
        .iter()
        .filter(|(_, own)| own.is_ipv4() == ip.is_ipv4());
    if let Some((interface, _)) = own.clone().find(|(_, own)| *own == ip) {
        return (
            format!("{ip} of {interface} is not ready yet"),
            "an address that is up and found to be unique (not tentative)".to_owned(),
            format!("wait, or look at `ip address show dev {interface}`"),
        );
    }
    let mut list: Vec<_> = own.map(|(name, own)| format!("{own} ({name})")).collect();
    if list.len() > ADDRESSES_TOLD {
        list.truncate(ADDRESSES_TOLD);
        list.push("…".to_owned());
    }
    let list = if list.is_empty() {
        format!("none of {}", family(ip))
    } else {
        list.join(", ")
    };
    (
        format!("{ip} is not an address of this machine now"),
        format!("one of its addresses: {list}"),
        format!("listen at one of them, or `ip address add {ip}/PREFIX dev INTERFACE`"),
    )
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The first port that any process may take (ip(7)).
fn unprivileged(machine: &Machine) -> u16 {
    let file = machine.path("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;

    use capstan_doctor::Machine;
    use capstan_rdma::contract::CmError;
    use nix::errno::Errno;

    use super::{Obstacle, cannot_listen, obstacle};

    fn machine(addresses: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/sys/net/ipv4");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("ip_unprivileged_port_start"), "1024\n").unwrap();
        let addresses = addresses
            .iter()
            .map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap()))
            .collect();
        let machine = Machine::at(root.path(), addresses);
        (root, machine)
    }

    fn told(errno: Errno, address: &str, addresses: &[(&str, &str)]) -> Obstacle {
        let (_root, machine) = machine(addresses);
        obstacle(&machine, address.parse().unwrap(), Some(errno), "words")
    }

    #[test]
    fn each_errno_names_the_thing_at_fault() {
        let low = told(Errno::EACCES, "0.0.0.0:441", &[]);
        assert_eq!(
            low.seen,
            "port 441 is below 1024, which only a privileged process may take"
        );
        assert!(low.remedy.contains("CAP_NET_BIND_SERVICE"), "{low:?}");
        // What a security module forbids is another matter.
        assert_eq!(told(Errno::EACCES, "0.0.0.0:4420", &[]).seen, "words");

        let own = [("lo", "127.0.0.1"), ("eth0", "10.0.0.5"), ("lo", "::1")];
        let foreign = told(Errno::EADDRNOTAVAIL, "192.0.2.1:4420", &own);
        assert_eq!(
            foreign.seen,
            "192.0.2.1 is not an address of this machine now"
        );
        assert_eq!(
            foreign.expected,
            "one of its addresses: 127.0.0.1 (lo), 10.0.0.5 (eth0)"
        );
        let early = told(
            Errno::EADDRNOTAVAIL,
            "[fd00::7]:4420",
            &[("eth0", "fd00::7")],
        );
        assert_eq!(early.seen, "fd00::7 of eth0 is not ready yet");
        let none = told(Errno::EADDRNOTAVAIL, "[::1]:4420", &[("lo", "127.0.0.1")]);
        assert_eq!(none.expected, "one of its addresses: none of IPv6");
        let old = told(Errno::EAFNOSUPPORT, "[::1]:4420", &[]);
        assert_eq!(old.seen, "the kernel does not speak IPv6");
        let plain = told(Errno::ENODEV, "10.0.0.5:4420", &[]);
        assert_eq!(plain.seen, "no RDMA device has 10.0.0.5");
        let full = told(Errno::EMFILE, "10.0.0.5:4420", &[]);
        assert!(full.remedy.contains("LimitNOFILE="), "{full:?}");
        assert_eq!(told(Errno::EINVAL, "10.0.0.5:4420", &[]).seen, "words");
    }

    #[test]
    fn a_port_in_use_names_the_process_once() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = CmError::System {
            what: format!("listening at {address}"),
            message: "Address already in use (os error 98)".to_owned(),
            errno: Some(98),
        };
        let told = format!("{:#}", cannot_listen(address, error));
        let port = address.port();
        let start = format!(
            "cannot listen at {address}: port {port} is in use by process {} (",
            std::process::id()
        );
        assert!(told.starts_with(&start), "{told}");
        assert_eq!(told.matches("in use by").count(), 1, "{told}");
        assert!(!told.contains("os error"), "{told}");
        assert!(
            told.ends_with(&format!(
                "; expected a free port: end that, or listen at another port; `ss -ltnp 'sport = \
                 :{port}'` shows more"
            )),
            "{told}"
        );
    }
}
