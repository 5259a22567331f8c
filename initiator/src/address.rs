//! Addresses of targets as they are given: what is wrong with one that can be told before anything
//! is asked.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nix::net::if_::{if_nameindex, if_nametoindex};

/// Why a text is no address of a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing, or what no name or address has.
    #[error("expected an IPv4 or IPv6 address or a host name")]
    Neither,
    /// What the system's resolver takes for a short form of an IPv4 address, as `0` for 0.0.0.0.
    #[error(
        "it ends with a number, as no host name does, expected an IPv4 address of four numbers up to 255, an IPv6 address or \
         a host name"
    )]
    Number,
    /// A port where only an address belongs.
    #[error("expected an address alone: give `{address}`, and port {port} as trsvcid")]
    WithPort {
        /// All before the last colon.
        address: String,
        /// What is behind it.
        port: String,
    },
    /// An IPv6 address that nobody has, and that may be meant for a port.
    #[error(
        "it is one IPv6 address, of a range that nobody uses (::/96), expected an address of a target; if port \
         {port} of {address} is meant, give `{address}`, and {port} as trsvcid"
    )]
    Compatible {
        /// All before the last colon.
        address: String,
        /// What is behind it.
        port: String,
    },
    /// `0.0.0.0` or `::`.
    #[error("expected the address of one machine; this one is {0}")]
    Unspecified(IpAddr),
    /// A multicast or broadcast address.
    #[error("it is no address of one machine, expected an address of a target")]
    NotUnicast,
    /// A link-local address that says nothing of the link.
    #[error(
        "every interface has such a link-local address, expected the interface behind it, as in {0}%eth0 \
         (`ip -6 route` lists them)"
    )]
    NoZone(Ipv6Addr),
    /// A zone behind an IPv4 address.
    #[error("an IPv4 address has no interface behind it, expected it alone: {0}")]
    ZoneOfIpv4(IpAddr),
    /// Nothing behind the percent sign.
    #[error(
        "nothing is behind the %, expected an interface, as in {0}%eth0 (`ip -6 route` lists them)"
    )]
    EmptyZone(Ipv6Addr),
    /// A zone that is no interface.
    #[error("this machine has no interface `{0}`, expected one of `ip link`")]
    Zone(String),
}

/// Checks an address that stands alone, or a host name. Whether the name has an address is another
/// question.
///
/// # Errors
/// [`AddressError`], to be told behind the option and its value.
pub fn check_traddr(text: &str) -> Result<(), AddressError> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let (address, zone) = match bare.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (bare, None),
    };
    match address.parse::<IpAddr>() {
        Ok(address) => check_address(text, address, zone),
        Err(_) => check_name(text),
    }
}

fn check_address(text: &str, address: IpAddr, zone: Option<&str>) -> Result<(), AddressError> {
    if address.is_unspecified() {
        let this = match address {
            IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        return Err(AddressError::Unspecified(this));
    }
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_multicast() || is_broadcast {
        return Err(AddressError::NotUnicast);
    }
    let IpAddr::V6(address) = address else {
        return zone.map_or(Ok(()), |_| Err(AddressError::ZoneOfIpv4(address)));
    };
    // IPv4-compatible addresses, which RFC 4291 section 2.5.5.1 takes out of use.
    let is_compatible = address.segments().starts_with(&[0; 6]) && !address.is_loopback();
    if is_compatible && let Some((address, port)) = text.rsplit_once(':') {
        return Err(AddressError::Compatible {
            address: address.to_owned(),
            port: port.to_owned(),
        });
    }
    match zone {
        None if address.is_unicast_link_local() => Err(AddressError::NoZone(address)),
        Some("") => Err(AddressError::EmptyZone(address)),
        Some(zone) if !is_interface(zone) => Err(AddressError::Zone(zone.to_owned())),
        _ => Ok(()),
    }
}

/// By name or by number (RFC 4007, section 11.2).
fn is_interface(zone: &str) -> bool {
    let has_index = |index: u32| {
        if_nameindex().is_ok_and(|all| all.iter().any(|interface| interface.index() == index))
    };
    zone.parse().is_ok_and(has_index) || if_nametoindex(zone).is_ok()
}

fn check_name(text: &str) -> Result<(), AddressError> {
    if text.parse::<SocketAddr>().is_ok() || text.matches(':').count() == 1 {
        let (address, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !address.is_empty() {
            return Err(AddressError::WithPort {
                address: address.to_owned(),
                port: port.to_owned(),
            });
        }
    }
    let of_names = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
    if text.is_empty() || !text.chars().all(of_names) {
        return Err(AddressError::Neither);
    }
    // RFC 1123, section 2.1: the last part of a name is no number.
    let last = text.trim_end_matches('.').rsplit('.').next();
    let last = last.unwrap_or_default().to_ascii_lowercase();
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(is_hex);
    match is_number {
        true => Err(AddressError::Number),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_traddr;

    #[test]
    fn addresses_and_names_are_taken() {
        for text in [
            "10.0.0.1",
            "::1",
            "[::1]",
            "fd00::1:5003",
            "::ffff:10.0.0.1",
            "fe80::1%lo",
            "[fe80::1%lo]",
            "fe80::1%1",
            "storage-1.example.com",
            "node_7",
            "7.example",
            "0xyz",
        ] {
            assert_eq!(check_traddr(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_expected() {
        for (text, words) in [
            ("", "expected an IPv4 or IPv6 address or a host name"),
            (" ", "or a host name"),
            ("10.0.0.0/24", "or a host name"),
            ("rdma://10.0.0.1", "or a host name"),
            ("10.0.0.1%eth0", "expected it alone: 10.0.0.1"),
            ("fe80::1%", "nothing is behind the %, expected an interface"),
            ("fe80::1%4000000000", "no interface `4000000000`"),
            ("[::1", "or a host name"),
            ("0", "ends with a number"),
            ("127.1", "ends with a number"),
            ("10.0.0.256", "four numbers up to 255"),
            ("0x7f000001", "ends with a number"),
            ("10.0.0.1:5003", "give `10.0.0.1`, and port 5003 as trsvcid"),
            ("[::1]:5003", "give `[::1]`, and port 5003 as trsvcid"),
            ("storage:4420", "give `storage`, and port 4420 as trsvcid"),
            ("10.0.0.1:99999", "give `10.0.0.1`, and port 99999"),
            ("::1:5003", "if port 5003 of ::1 is meant, give `::1`"),
            ("0.0.0.0", "this one is 127.0.0.1"),
            ("::", "this one is ::1"),
            ("255.255.255.255", "no address of one machine"),
            ("ff02::1%lo", "no address of one machine"),
            ("fe80::1", "as in fe80::1%eth0"),
            ("fe80::1%no-such-if", "no interface `no-such-if`"),
            ("fe80::1%0", "no interface `0`"),
        ] {
            let error = check_traddr(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
