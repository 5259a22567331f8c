//! Which clients may use an export, and with which user and group IDs: rules by network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Addresses that begin with the same bits. An IPv4 address in IPv6 (`::ffff:a.b.c.d`, RFC 4291,
/// 2.5.5.2) counts as the IPv4 address that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

/// Why something is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It cannot be read.
    #[error("{0:?} is no network; write an address, or one with a prefix such as 192.0.2.0/24")]
    Unreadable(String),
    /// The prefix has more bits than the address.
    #[error("{text:?} has a prefix of {bits} bits, and the address has {most}")]
    Prefix {
        /// What was written.
        text: String,
        /// Bits of the prefix.
        bits: u8,
        /// Bits of the address.
        most: u8,
    },
    /// The address has bits behind the prefix.
    #[error(
        "{text:?} has bits behind its prefix; write {network} for the network, or leave the \
             prefix out for the one address"
    )]
    Behind {
        /// What was written.
        text: String,
        /// The network that the address is in.
        network: Network,
    },
}

impl Network {
    /// Its first address; of one address, that.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits that all of its addresses have in common.
    pub const fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// The one address.
    pub fn of_address(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            address,
            prefix_bits: width(address),
        }
    }

    /// Whether the address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && cut(address, self.prefix_bits) == self.address
    }
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The address with zeroes behind its first `bits` bits.
fn cut(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX
                .checked_shl(32_u32.saturating_sub(bits))
                .unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX
                .checked_shl(128_u32.saturating_sub(bits))
                .unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let unreadable = || NetworkError::Unreadable(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix)) => {
                let bits: u8 = prefix.parse().map_err(|_| unreadable())?;
                (address, Some(bits))
            }
        };
        let written: IpAddr = address.parse().map_err(|_| unreadable())?;
        let Some(bits) = prefix else {
            return Ok(Self::of_address(written));
        };
        let most = width(written);
        if bits > most {
            return Err(NetworkError::Prefix {
                text: text.to_owned(),
                bits,
                most,
            });
        }
        let address = cut(written, bits);
        let network = match address.to_canonical() {
            // All of ::ffff:0:0/96 are IPv4 addresses; a shorter prefix holds others as well.
            v4 @ IpAddr::V4(_) if address.is_ipv6() && bits >= 96 => Self {
                address: v4,
                prefix_bits: bits - 96,
            },
            _ => Self {
                address,
                prefix_bits: bits,
            },
        };
        if address == written {
            Ok(network)
        } else {
            Err(NetworkError::Behind {
                text: text.to_owned(),
                network,
            })
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read alone.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// As a configuration has it.
impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
        })
    }
}

/// Whose operations run as the anonymous user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Squash {
    /// Those of uid 0, and of gid 0 as far as the group goes.
    #[default]
    Root,
    /// Everybody's.
    All,
    /// Nobody's: the client's root is root here.
    None,
}

/// As a configuration has it.
impl std::fmt::Display for Squash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::All => "all",
            Self::None => "none",
        })
    }
}

/// The uid and gid that squashed operations run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anonymous {
    /// Not 2^32 - 1, which the kernel takes for no uid.
    pub uid: u32,
    /// Not 2^32 - 1, which the kernel takes for no gid.
    pub gid: u32,
}

/// `nobody` and `nogroup`.
impl Default for Anonymous {
    fn default() -> Self {
        Self {
            uid: 65534,
            gid: 65534,
        }
    }
}

/// What the clients of one network get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRule {
    /// Their addresses.
    pub network: Network,
    /// What they may do.
    pub access: Access,
    /// Which user and group IDs are squashed.
    pub squash: Squash,
    /// The user and group ID that they become.
    pub anonymous: Anonymous,
    /// Only from ports below 1024, which only root has on the machines of those who care.
    pub secure_ports: bool,
}

/// As it is told in the log.
impl std::fmt::Display for ClientRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.network, self.access)?;
        match (self.squash, self.anonymous) {
            (Squash::None, _) => f.write_str(", nobody squashed")?,
            (squash, Anonymous { uid, gid }) => {
                write!(f, ", {squash} squashed to {uid}:{gid}")?;
            }
        }
        match self.secure_ports {
            true => f.write_str(", ports below 1024 alone"),
            false => Ok(()),
        }
    }
}

/// The rules of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules(Box<[ClientRule]>);

/// Why rules cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// Two rules for one network.
    #[error("network {0} has two rules; leave one")]
    Twice(Network),
    /// An anonymous id that is none.
    #[error("network {network}: the anonymous {what} is {id}, which the kernel takes for none; \
             use one below, such as 65534", id = u32::MAX)]
    NoId {
        /// The rule's network.
        network: Network,
        /// uid or gid.
        what: &'static str,
    },
}

/// Why a client gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No rule is for its address.
    #[error("no network of the export has {0}; add one that does to its `clients`, and reload")]
    NoNetwork(IpAddr),
    /// Its port is not privileged.
    #[error(
        "{network} may only come from ports below 1024, and {peer} does not; turn secure_ports \
             off for it, or mount over TCP with resvport (over RDMA no client has such a port)"
    )]
    InsecurePort {
        /// Network of the rule.
        network: Network,
        /// Address and port of the client.
        peer: SocketAddr,
    },
}

/// First port that anybody may have (`ip_unprivileged_port_start` as the kernel sets it).
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

impl ClientRules {
    /// # Errors
    /// Where two rules are for the same network, or an anonymous id is none.
    pub fn new(rules: Vec<ClientRule>) -> Result<Self, RulesError> {
        for (index, rule) in rules.iter().enumerate() {
            let network = rule.network;
            if rules
                .iter()
                .take(index)
                .any(|other| other.network == network)
            {
                return Err(RulesError::Twice(network));
            }
            for (what, id) in [("uid", rule.anonymous.uid), ("gid", rule.anonymous.gid)] {
                if id == u32::MAX {
                    return Err(RulesError::NoId { network, what });
                }
            }
        }
        Ok(Self(rules.into()))
    }

    /// The rules, in the order that they were given.
    pub fn rules(&self) -> &[ClientRule] {
        &self.0
    }

    /// The rule for a client: that of the smallest network which has its address.
    ///
    /// # Errors
    /// Where it may not use the export.
    pub fn for_client(&self, peer: SocketAddr) -> Result<&ClientRule, Refused> {
        let address = peer.ip().to_canonical();
        let rule = self
            .0
            .iter()
            .filter(|rule| rule.network.contains(address))
            .max_by_key(|rule| rule.network.prefix_bits)
            .ok_or(Refused::NoNetwork(address))?;
        if rule.secure_ports && peer.port() >= FIRST_UNPRIVILEGED_PORT {
            return Err(Refused::InsecurePort {
                network: rule.network,
                peer,
            });
        }
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(network: &str, access: Access) -> ClientRule {
        ClientRule {
            network: network.parse().unwrap(),
            access,
            squash: Squash::Root,
            anonymous: Anonymous::default(),
            secure_ports: false,
        }
    }

    #[test]
    fn networks_are_read_and_written() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "*",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/256",
            "10.0.0/8",
            "host",
        ] {
            let said = text.parse::<Network>().unwrap_err();
            assert_eq!(said, NetworkError::Unreadable(text.to_owned()));
        }
        let said = "10.0.0.0/33".parse::<Network>().unwrap_err().to_string();
        assert!(said.contains("the address has 32"), "{said}");
        let said = "10.1.2.3/8".parse::<Network>().unwrap_err().to_string();
        assert!(said.contains("write 10.0.0.0/8 for the network"), "{said}");
    }

    #[test]
    fn the_smallest_network_wins_in_any_order() {
        let rules = [
            rule("0.0.0.0/0", Access::ReadOnly),
            rule("10.0.0.0/8", Access::ReadWrite),
            rule("10.1.0.0/16", Access::ReadOnly),
            rule("10.1.2.3", Access::ReadWrite),
            rule("2001:db8::/32", Access::ReadWrite),
        ];
        let reversed = rules.iter().rev().copied().collect();
        for rules in [rules.to_vec(), reversed] {
            let rules = ClientRules::new(rules).unwrap();
            let network = |peer: &str| {
                let rule = rules.for_client(peer.parse().unwrap());
                rule.map(|rule| rule.network.to_string())
                    .map_err(|refused| refused.to_string())
            };
            assert_eq!(network("192.0.2.1:700").unwrap(), "0.0.0.0/0");
            assert_eq!(network("10.2.0.1:700").unwrap(), "10.0.0.0/8");
            assert_eq!(network("10.1.0.1:700").unwrap(), "10.1.0.0/16");
            assert_eq!(network("10.1.2.3:700").unwrap(), "10.1.2.3/32");
            assert_eq!(network("[::ffff:10.1.2.3]:700").unwrap(), "10.1.2.3/32");
            assert_eq!(network("[2001:db8::9]:700").unwrap(), "2001:db8::/32");
            // All IPv4 addresses are no IPv6 address.
            let said = network("[2001:db9::9]:700").unwrap_err();
            assert!(
                said.contains("no network of the export has 2001:db9::9"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_secure_port_is_below_1024() {
        let mut only = rule("10.0.0.0/8", Access::ReadOnly);
        only.secure_ports = true;
        let rules = ClientRules::new(vec![only, rule("0.0.0.0/0", Access::ReadWrite)]).unwrap();
        assert!(rules.for_client("10.0.0.1:1023".parse().unwrap()).is_ok());
        // A client that the smaller network refuses is not let in by the wider one.
        let said = rules
            .for_client("10.0.0.1:1024".parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("10.0.0.0/8 may only come from ports below 1024"),
            "{said}"
        );
        assert!(rules.for_client("11.0.0.1:1024".parse().unwrap()).is_ok());
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        let twice = vec![
            rule("10.0.0.0/8", Access::ReadOnly),
            rule("::ffff:10.0.0.0/104", Access::ReadWrite),
        ];
        let said = ClientRules::new(twice).unwrap_err();
        assert_eq!(said, RulesError::Twice("10.0.0.0/8".parse().unwrap()));
        let mut no_id = rule("10.0.0.0/8", Access::ReadOnly);
        no_id.anonymous.gid = u32::MAX;
        let said = ClientRules::new(vec![no_id]).unwrap_err().to_string();
        assert!(said.contains("the anonymous gid is 4294967295"), "{said}");
    }

    proptest! {
        #[test]
        fn a_network_has_its_own_addresses_and_no_others(
            address: u128, other: u128, bits in 0_u8..=128
        ) {
            let network = Network { address: cut(IpAddr::V6(address.into()), bits), prefix_bits: bits };
            let same = bits == 0 || (address ^ other) >> (128 - u32::from(bits)) == 0;
            let other = IpAddr::V6(other.into());
            prop_assume!(other.to_canonical().is_ipv6());
            prop_assert_eq!(network.contains(other), same);
        }
    }
}
