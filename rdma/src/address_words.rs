//! Words for an address that nothing can connect to or from: which address is at fault, and the
//! next step.

use std::net::{IpAddr, SocketAddr};
use std::{fmt, fs, io};

use crate::contract::CmError;

/// The address to connect from, as a socket address: a link-local one, which names no link of its
/// own, gets the link of `destination`.
#[must_use]
pub fn source_address(source: IpAddr, destination: SocketAddr) -> SocketAddr {
    let mut address = SocketAddr::new(source, 0);
    if let (SocketAddr::V6(address), SocketAddr::V6(destination)) = (&mut address, destination)
        && address.ip().is_unicast_link_local()
    {
        address.set_scope_id(destination.scope_id());
    }
    address
}

/// Refuses a source address of the other family than `destination`, which system calls refuse in
/// different ways.
///
/// # Errors
/// The family of the source, and the one that is needed.
pub fn check_families(
    what: impl FnOnce() -> String,
    destination: SocketAddr,
    source: Option<IpAddr>,
) -> Result<(), CmError> {
    let Some(source) = source.filter(|source| source.is_ipv4() != destination.is_ipv4()) else {
        return Ok(());
    };
    let (wrong, right) = match source {
        IpAddr::V4(_) => ("IPv4", "IPv6"),
        IpAddr::V6(_) => ("IPv6", "IPv4"),
    };
    Err(CmError::System {
        what: what(),
        message: format!(
            "the address to connect from (host-traddr), {source}, is {wrong}, expected an {right} address of this \
             machine (`ip address` lists them), or none"
        ),
        errno: Some(libc::EAFNOSUPPORT),
    })
}

/// Why the system refused, with `error`, a step of a connect to `destination`, from `source` where
/// that was given.
#[must_use]
pub fn refused(
    what: String,
    destination: SocketAddr,
    source: Option<IpAddr>,
    error: &io::Error,
) -> CmError {
    let (ip, route) = (destination.ip(), RouteTo(destination));
    let is_link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let message = match (error.raw_os_error(), source) {
        (Some(libc::EADDRNOTAVAIL), Some(source)) => format!(
            "the address to connect from (host-traddr), {source}, is not one of this machine: {error}; \
             `ip address` lists those it has"
        ),
        (Some(libc::EADDRNOTAVAIL), None) => format!(
            "{error}: every local port to {destination} is in use, or this machine has no address of that family; \
             see `ss -s` and `ip address`"
        ),
        (Some(libc::EINVAL), _) if is_link_local => format!(
            "{error}: a link-local address needs the interface it is reached by, as in {ip}%eth0"
        ),
        (Some(libc::EINVAL), Some(source)) => format!(
            "{error}: {destination} cannot be reached from {source} (host-traddr); `ip route get {route}` says which \
             address is used without one"
        ),
        (Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN), _) => format!(
            "{error}; check the address, the route (`ip route get {route}`) and that the target is up"
        ),
        (Some(libc::EACCES | libc::EPERM), _) => format!(
            "{error}; check that {ip} is the address of one machine, and that no firewall of this one is in the way \
             (`nft list ruleset`)"
        ),
        (Some(libc::EAFNOSUPPORT), _) => {
            format!("{error}; this machine has no IP of that version: give an address of the other")
        }
        (Some(libc::ETIMEDOUT), _) => {
            format!("{error}; check that the address is right and reachable")
        }
        _ => system_words(error),
    };
    CmError::System {
        what,
        message,
        errno: error.raw_os_error(),
    }
}

/// An address as `ip route get` takes it: a link-local one is looked for on its link, which is not
/// in the address.
#[derive(Clone, Copy, Debug)]
pub struct RouteTo(pub SocketAddr);

impl fmt::Display for RouteTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address) = self;
        write!(f, "{}", address.ip())?;
        match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                write!(f, " oif {}", interface(v6.scope_id()))
            }
            _ => Ok(()),
        }
    }
}

/// The name of an interface, or what `ip` takes for one where it is gone.
fn interface(index: u32) -> String {
    let all = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let mut names = all.filter_map(|entry| {
        let told = fs::read_to_string(entry.path().join("ifindex")).ok()?;
        (told.trim().parse() == Ok(index)).then(|| entry.file_name().into_string().ok())?
    });
    names.next().unwrap_or_else(|| format!("if{index}"))
}

/// What the system said, with the next step where a limit is the reason.
pub(crate) fn system_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => format!("{error}; raise it (`ulimit -Hn`, LimitNOFILE= of the unit)"),
        Some(libc::ENFILE) => format!("{error}; raise it (`sysctl fs.file-max`)"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use super::{check_families, refused, source_address};

    #[test]
    fn a_link_local_source_is_of_the_link_of_its_destination() {
        let destination: SocketAddr = "[fe80::1%7]:4420".parse().unwrap();
        let source = source_address("fe80::2".parse().unwrap(), destination);
        assert_eq!(source, "[fe80::2%7]:0".parse().unwrap());
        let source = source_address("fd00::2".parse().unwrap(), destination);
        assert_eq!(source, "[fd00::2]:0".parse().unwrap());
        let source = source_address("10.0.0.2".parse().unwrap(), destination);
        assert_eq!(source, "10.0.0.2:0".parse().unwrap());
    }

    #[test]
    fn an_address_of_the_other_family_is_named() {
        for (destination, source, words) in [
            (
                "10.0.0.1:4420",
                "fe80::1",
                "fe80::1, is IPv6, expected an IPv4 address",
            ),
            (
                "[::1]:4420",
                "10.0.0.2",
                "10.0.0.2, is IPv4, expected an IPv6 address",
            ),
        ] {
            let source = Some(source.parse().unwrap());
            let error = check_families(|| "route".to_owned(), destination.parse().unwrap(), source);
            let text = error.unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
        let same = "10.0.0.1:4420".parse().unwrap();
        assert!(check_families(String::new, same, Some(same.ip())).is_ok());
        assert!(check_families(String::new, same, None).is_ok());
    }

    #[test]
    fn what_is_refused_names_the_address_at_fault_and_the_next_step() {
        for (destination, source, errno, words) in [
            (
                "10.0.0.1:4420",
                Some("10.0.0.7"),
                libc::EADDRNOTAVAIL,
                "10.0.0.7, is not one of this machine",
            ),
            ("10.0.0.1:4420", None, libc::EADDRNOTAVAIL, "`ss -s`"),
            ("[fe80::1]:4420", None, libc::EINVAL, "as in fe80::1%eth0"),
            (
                "10.0.0.1:4420",
                Some("127.0.0.1"),
                libc::EINVAL,
                "cannot be reached from 127.0.0.1",
            ),
            (
                "10.0.0.1:4420",
                None,
                libc::EHOSTUNREACH,
                "`ip route get 10.0.0.1`",
            ),
            // The loopback interface is the first one everywhere.
            (
                "[fe80::1%1]:4420",
                None,
                libc::EHOSTUNREACH,
                "`ip route get fe80::1 oif lo`",
            ),
            (
                "[fe80::1%99999]:4420",
                Some("::1"),
                libc::ENETUNREACH,
                "`ip route get fe80::1 oif if99999`",
            ),
            ("10.0.0.1:4420", None, libc::EACCES, "`nft list ruleset`"),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            let source = source.map(|source| source.parse().unwrap());
            let what = "route".to_owned();
            let text = refused(what, destination.parse().unwrap(), source, &error).to_string();
            assert!(text.starts_with("route: "), "{text}");
            assert!(text.contains(words), "{text}");
            assert_eq!(text.matches("os error").count(), 1, "{text}");
        }
    }
}
