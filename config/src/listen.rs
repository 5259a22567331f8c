//! Addresses to listen on.

use std::net::{IpAddr, SocketAddr};

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
    /// Anything else.
    #[error(
        "`{0}` is not an address; write an IPv4 or IPv6 address of this machine, 0.0.0.0 or :: for all of them (names are not resolved)"
    )]
    NotAnAddress(String),
    /// An address where a port is expected too.
    #[error("`{0}` is not ADDRESS or ADDRESS:PORT; examples: 127.0.0.1:4420, [::1]:4420, 0.0.0.0")]
    NotAnAddressAndPort(String),
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
    match parse_address(text) {
        Ok(address) => Ok(SocketAddr::new(address, DEFAULT_PORT)),
        Err(ListenError::NotAnAddress(_)) => Err(ListenError::NotAnAddressAndPort(text.to_owned())),
        Err(error) => Err(error),
    }
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
        ] {
            assert_eq!(parse_listen(text), Ok(listen.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_says_so() {
        for (text, words) in [
            ("localhost:4420", "is not ADDRESS or ADDRESS:PORT"),
            ("10.0.0.1:99999", "is not ADDRESS or ADDRESS:PORT"),
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
