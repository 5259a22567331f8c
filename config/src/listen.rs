//! Addresses to listen on.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

use crate::DEFAULT_PORT;

/// Why a text is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// An IPv6 zone.
    #[error(
        "`{0}` has a zone; link-local addresses cannot be listened on, use a global or unique-local one, or `::`"
    )]
    Zone(String),
    /// A link-local IPv6 address without a zone names no interface.
    #[error(
        "`{0}` is link-local and cannot be listened on; use a global or unique-local address, or `::`"
    )]
    LinkLocal(String),
    /// A multicast or broadcast address.
    #[error(
        "`{0}` is not the address of one machine; use an address of this machine, 0.0.0.0 or ::"
    )]
    NotUnicast(String),
    /// A port above 65535.
    #[error("`{text}` has port {port}, expected 0 to 65535; 0 lets the system choose")]
    Port {
        /// What was written.
        text: String,
        /// The digits of the port.
        port: String,
    },
    /// An IPv6 address whose end may be meant for a port.
    #[error(
        "`{text}` is an IPv6 address, and may be meant for port {port} of {address}; write [{text}] or [{address}]:{port}"
    )]
    Ambiguous {
        /// What was written.
        text: String,
        /// All before the last colon.
        address: String,
        /// What is behind it.
        port: String,
    },
    /// An IPv6 address with a port, and without brackets.
    #[error("`{text}` lacks the brackets of an IPv6 address with a port; write [{address}]:{port}")]
    NoBrackets {
        /// What was written.
        text: String,
        /// All before the last colon.
        address: String,
        /// What is behind it.
        port: String,
    },
    /// Anything else.
    #[error(
        "`{0}` is not an address; write an IPv4 or IPv6 address of this machine, 0.0.0.0 or :: for all of them (names are not resolved)"
    )]
    NotAnAddress(String),
    /// An address where a port is expected too.
    #[error("`{0}` is not ADDRESS or ADDRESS:PORT; examples: 127.0.0.1:4420, [::1]:4420, 0.0.0.0")]
    NotAnAddressAndPort(String),
    /// A name without addresses.
    #[error(
        "`{name}` has no address: {message}; check it with `getent ahosts {name}`, or give an address"
    )]
    Lookup {
        /// The name.
        name: String,
        /// The resolver's words.
        message: String,
    },
    /// A name of another machine.
    #[error(
        "`{name}` is {addresses}: none is an address of this machine, which `ip address` lists"
    )]
    Elsewhere {
        /// The name.
        name: String,
        /// Its addresses, each with why it will not do.
        addresses: String,
    },
}

/// Where to listen, by one address or a name that has several: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddresses {
    first: SocketAddr,
    others: Vec<SocketAddr>,
    port_is_written: bool,
}

impl ListenAddresses {
    /// The addresses.
    pub fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        [self.first].into_iter().chain(self.others.iter().copied())
    }

    /// The port, where one was written.
    pub(crate) fn port(&self) -> Option<u16> {
        self.port_is_written.then(|| self.first.port())
    }

    /// One of them, the same in whatever order a name is resolved.
    pub(crate) fn least(&self) -> SocketAddr {
        self.others
            .iter()
            .copied()
            .fold(self.first, SocketAddr::min)
    }
}

impl From<SocketAddr> for ListenAddresses {
    fn from(first: SocketAddr) -> Self {
        Self {
            first,
            others: Vec::new(),
            port_is_written: true,
        }
    }
}

/// An address without a port, `0.0.0.0` and `::` included.
pub(crate) fn parse_address(text: &str) -> Result<IpAddr, ListenError> {
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    if bare.contains('%') {
        return Err(ListenError::Zone(text.to_owned()));
    }
    let address = bare
        .parse()
        .map_err(|_| ListenError::NotAnAddress(text.to_owned()))?;
    check_unicast(address, text)?;
    Ok(address)
}

/// `ADDRESS:PORT` or `ADDRESS` with [`DEFAULT_PORT`]; an IPv6 address with a port is in brackets.
///
/// # Errors
/// What is wrong with `text`, and an example of what is right.
pub fn parse_listen(text: &str) -> Result<SocketAddr, ListenError> {
    if text.contains('%') {
        return Err(ListenError::Zone(text.to_owned()));
    }
    if let Ok(listen) = text.parse::<SocketAddr>() {
        check_unicast(listen.ip(), text)?;
        return Ok(listen);
    }
    if let Some((address, port)) = text.rsplit_once(':') {
        let bare = address.trim_start_matches('[').trim_end_matches(']');
        let text = text.to_owned();
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let is_ipv6 = text.parse::<Ipv6Addr>().is_ok();
        if is_number && !is_ipv6 && port.parse::<u16>().is_err() && bare.parse::<IpAddr>().is_ok() {
            let port = port.to_owned();
            return Err(ListenError::Port { text, port });
        }
        if is_number && address.parse::<Ipv6Addr>().is_ok() {
            let (address, port) = (address.to_owned(), port.to_owned());
            return Err(if is_ipv6 {
                ListenError::Ambiguous {
                    text,
                    address,
                    port,
                }
            } else {
                ListenError::NoBrackets {
                    text,
                    address,
                    port,
                }
            });
        }
    }
    match parse_address(text) {
        Ok(address) => Ok(SocketAddr::new(address, DEFAULT_PORT)),
        Err(ListenError::NotAnAddress(_)) => Err(ListenError::NotAnAddressAndPort(text.to_owned())),
        Err(error) => Err(error),
    }
}

impl FromStr for ListenAddresses {
    type Err = ListenError;

    /// As [`parse_listen`], or `NAME:PORT` or `NAME`: then it is every address of that name that
    /// this machine has. Looks the name up, which may block.
    fn from_str(text: &str) -> Result<Self, ListenError> {
        match parse_listen(text) {
            Ok(address) => Ok(Self {
                port_is_written: text.parse::<SocketAddr>().is_ok(),
                ..address.into()
            }),
            Err(error @ ListenError::NotAnAddressAndPort(_)) => {
                let (name, port) = name_and_port(text).ok_or(error)?;
                let found = (name, port).to_socket_addrs();
                let found = found.map_err(|error| ListenError::Lookup {
                    name: name.to_owned(),
                    message: error.to_string(),
                })?;
                Ok(Self {
                    port_is_written: text.contains(':'),
                    ..of_this_machine(name, found)?
                })
            }
            Err(error) => Err(error),
        }
    }
}

/// A host name has a letter, and no colon but before its port.
fn name_and_port(text: &str) -> Option<(&str, u16)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, port.parse().ok()?),
        None => (text, DEFAULT_PORT),
    };
    let is_name = name.bytes().any(|byte| byte.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_name.then_some((name, port))
}

fn of_this_machine(
    name: &str,
    found: impl Iterator<Item = SocketAddr>,
) -> Result<ListenAddresses, ListenError> {
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    for address in found {
        let ip = address.ip();
        let usable = check_unicast(ip, &ip.to_string())
            .map_err(|error| error.to_string())
            .and_then(|()| {
                let bound = UdpSocket::bind((ip, 0));
                bound.map_err(|error| format!("{ip}: {error}"))
            });
        match usable {
            Ok(_) if here.contains(&address) => {}
            Ok(_) => here.push(address),
            Err(why) if elsewhere.contains(&why) => {}
            Err(why) => elsewhere.push(why),
        }
    }
    let mut here = here.into_iter();
    let Some(first) = here.next() else {
        return Err(ListenError::Elsewhere {
            name: name.to_owned(),
            addresses: elsewhere.join(", "),
        });
    };
    Ok(ListenAddresses {
        others: here.collect(),
        ..first.into()
    })
}

fn check_unicast(address: IpAddr, text: &str) -> Result<(), ListenError> {
    let not_unicast = match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    };
    if not_unicast {
        return Err(ListenError::NotUnicast(text.to_owned()));
    }
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            Err(ListenError::LinkLocal(text.to_owned()))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_port() {
        for (text, listen) in [
            ("127.0.0.1:4421", "127.0.0.1:4421"),
            ("127.0.0.1", "127.0.0.1:4420"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:4420", "[::1]:4420"),
            ("::", "[::]:4420"),
            ("[fd00::7]", "[fd00::7]:4420"),
            ("fd00::7", "[fd00::7]:4420"),
            ("[::1:5003]", "[::1:5003]:4420"),
        ] {
            assert_eq!(parse_listen(text), Ok(listen.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_name_is_all_its_addresses_that_are_of_this_machine() {
        let at = |list: &[&str]| {
            list.iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<_>>()
        };
        let listed = |listen: ListenAddresses| listen.iter().collect::<Vec<_>>();
        assert_eq!(listed("127.0.0.1:1".parse().unwrap()), at(&["127.0.0.1:1"]));
        let local = listed("localhost:5001".parse().unwrap());
        assert!(local.contains(&at(&["127.0.0.1:5001"])[0]), "{local:?}");
        assert_eq!(
            name_and_port("host-1.example"),
            Some(("host-1.example", 4420))
        );
        for text in ["localhost:99999", "::1:x", "a b:1", "", "a/b:1"] {
            assert_eq!(
                text.parse::<ListenAddresses>(),
                Err(ListenError::NotAnAddressAndPort(text.to_owned()))
            );
        }
        // Two of documentation (RFC 5737, RFC 3849), one twice, and one that is here.
        let found = at(&[
            "192.0.2.7:1",
            "127.0.0.1:1",
            "[2001:db8::7]:1",
            "127.0.0.1:1",
        ]);
        let kept = of_this_machine("disks", found.iter().copied()).unwrap();
        assert_eq!(listed(kept), at(&["127.0.0.1:1"]));
        let both = |list: &[&str]| of_this_machine("disks", at(list).into_iter()).unwrap();
        let [one, other] = ["127.0.0.1:1", "127.0.0.2:1"];
        assert_eq!(both(&[one, other]).least(), both(&[other, one]).least());
        let none = at(&["192.0.2.7:1", "[fe80::1]:1", "192.0.2.7:1"]);
        let error = of_this_machine("disks", none.into_iter()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("`disks` is 192.0.2.7: Cannot assign"),
            "{error}"
        );
        assert_eq!(error.matches("192.0.2.7").count(), 1, "{error}");
        assert!(error.contains("`fe80::1` is link-local"), "{error}");
        let error = "no-such-host.invalid"
            .parse::<ListenAddresses>()
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`getent ahosts no-such-host.invalid`"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_address_says_so() {
        for (text, words) in [
            ("localhost:4420", "is not ADDRESS or ADDRESS:PORT"),
            ("10.0.0.1:99999", "has port 99999, expected 0 to 65535"),
            ("[::1]:65536", "has port 65536, expected 0 to 65535"),
            ("::1:5003", "write [::1:5003] or [::1]:5003"),
            ("::1:99999", "has port 99999, expected 0 to 65535"),
            ("fd00::2:44200", "write [fd00::2]:44200"),
            ("", "is not ADDRESS or ADDRESS:PORT"),
            ("224.0.0.1:4420", "is not the address of one machine"),
            ("255.255.255.255", "is not the address of one machine"),
            ("[fe80::1]:4420", "is link-local"),
            ("fe80::1%eth0", "has a zone"),
        ] {
            let error = parse_listen(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
