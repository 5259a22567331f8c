//! Which process listens at a TCP port of this machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Machine;

/// `TCP_LISTEN` in the `st` column.
const LISTENS: &str = "0A";

/// What has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listener {
    /// A process.
    Process {
        /// Its number.
        pid: u32,
        /// Its name, as far as the kernel keeps it.
        name: String,
    },
    /// A process of another user, which only root sees, or the kernel.
    Hidden,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Hidden => f.write_str("a process that is not seen from here (of another user or PID namespace, or the kernel)"),
        }
    }
}

/// What listens where `address` would; `None` when nothing does.
#[must_use]
pub fn listener(machine: &Machine, address: SocketAddr) -> Option<Listener> {
    let table = if address.is_ipv4() { "tcp" } else { "tcp6" };
    let table = machine.read(&format!("/proc/net/{table}"))?;
    let inode = table.lines().find_map(|line| listening(line, address))?;
    Some(process(machine, inode).unwrap_or(Listener::Hidden))
}

/// The inode of a line of `/proc/net/tcp` (proc_net(5)) that is in the way of `address`.
fn listening(line: &str, address: SocketAddr) -> Option<&str> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, state) = (fields.next()?, fields.nth(1)?);
    let inode = fields.nth(5)?;
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip = parse_ip(ip)?;
    let meets = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
    (state == LISTENS && port == address.port() && meets).then_some(inode)
}

/// Words of 32 bits as the machine has them in memory, in network order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hex.get(at..at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// The process with that socket among its descriptors, as far as this user may look.
fn process(machine: &Machine, inode: &str) -> Option<Listener> {
    let socket = format!("socket:[{inode}]");
    let pids = machine.names("/proc");
    let pids = pids.iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in pids {
        let folder = format!("/proc/{pid}/fd");
        let has = |fd: &String| machine.link(&format!("{folder}/{fd}")).as_ref() == Some(&socket);
        if machine.names(&folder).iter().any(has) {
            let name = machine
                .read(&format!("/proc/{pid}/comm"))
                .unwrap_or_default();
            // It may be the process of another user.
            let name = name.escape_debug().to_string();
            return Some(Listener::Process { pid, name });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::{Listener, listener};
    use crate::Machine;
    use crate::testing::Tree;

    #[test]
    fn a_port_of_this_process_is_found_at_either_family() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = TcpListener::bind(address) else {
                eprintln!("SKIPPED the half of the test about {address}: it cannot be bound");
                continue;
            };
            let at = socket.local_addr().unwrap();
            let pid = std::process::id();
            let found = listener(&Machine::here(), at);
            assert!(
                matches!(found, Some(Listener::Process { pid: found, .. }) if found == pid),
                "{found:?}"
            );
            drop(socket);
            assert_eq!(listener(&Machine::here(), at), None);
        }
    }

    /// Lines of Linux 6.18 on a little-endian machine.
    #[cfg(target_endian = "little")]
    #[test]
    fn wildcards_are_in_the_way_and_connections_are_not() {
        let tree = Tree::new().file(
            "proc/net/tcp",
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                0: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1060 1 0 100 0 0 10 0\n\
                1: 0100007F:1780 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1061 1 0 100 0 0 10 0\n\
                2: 0100007F:1144 0100007F:CC69 01 00000000:00000000 02:00000221 00000000     0        0 43599 2 0 20 4 29 10 -1\n",
        );
        let machine = tree.machine();
        let found = |text: &str| listener(&machine, text.parse::<SocketAddr>().unwrap());
        assert_eq!(found("127.0.0.1:2024"), Some(Listener::Hidden));
        assert_eq!(found("127.0.0.1:6016"), Some(Listener::Hidden));
        assert_eq!(found("0.0.0.0:6016"), Some(Listener::Hidden));
        assert_eq!(found("127.0.0.2:6016"), None);
        assert_eq!(found("127.0.0.1:4420"), None);
        assert_eq!(
            Listener::Hidden.to_string(),
            "a process that is not seen from here (of another user or PID namespace, or the kernel)"
        );
    }
}
