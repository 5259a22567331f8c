//! What the operator decides: ports, subsystems, namespaces, hosts. Values, checked when they are
//! given to the [`Target`](crate::Target).

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt;
use core::net::SocketAddr;

use capstan_nvme_proto::log::{RdmaProviderType, TransportType};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::transfer::DataSupport;
use capstan_nvme_proto::{rdma_sgl, tcp};

use crate::bounds;
use crate::namespace::{BackendId, Geometry, NamespaceIdentity};
use crate::reservation::Persistence;

/// Port Identifier: names a listener in the discovery log (PORTID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// Bounds of the whole target, and what its discovery controllers call themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetConfig {
    /// I/O queues of one controller, 1 to [`bounds::IO_QUEUES_MAX`].
    pub io_queues: u16,
    /// Entries of an I/O queue, 2 to [`bounds::IO_QUEUE_ENTRIES_MAX`]: MQES + 1.
    pub io_queue_entries: u16,
    /// Entries of an Admin queue, 32 to [`bounds::ADMIN_QUEUE_ENTRIES_MAX`].
    pub admin_queue_entries: u16,
    /// Controllers at the same time, 1 to [`bounds::CONTROLLERS_MAX`].
    /// They serve I/O; discovery controllers have a number of their own.
    pub controllers: usize,
    /// Discovery controllers at the same time, 1 to [`bounds::DISCOVERY_CONTROLLERS_MAX`]. For one
    /// more, the oldest of the address that has most ends.
    pub discovery_controllers: usize,
    /// Serial Number of discovery controllers: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model Number of discovery controllers: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Firmware Revision of discovery controllers: 1 to 8 printable ASCII characters.
    pub firmware: String,
    /// PCI Vendor ID and PCI Subsystem Vendor ID in Identify Controller; 0 tells none.
    pub vendor_ids: [u16; 2],
    /// Instance of the machine, for Identify Controller: another one after every boot. Zeroes tell
    /// the hosts nothing.
    pub boot_id: [u8; 16],
    /// What Controller Instance Random Numbers are made of: random, so that no instance of this
    /// process is taken for one of another. Hosts do not learn it.
    pub seed: [u64; 2],
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            io_queues: bounds::IO_QUEUES_MAX,
            io_queue_entries: 128,
            admin_queue_entries: 32,
            controllers: bounds::CONTROLLERS_MAX,
            discovery_controllers: bounds::DISCOVERY_CONTROLLERS_MAX,
            serial: "discovery".into(),
            model: "Capstan discovery".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            vendor_ids: [0; 2],
            boot_id: [0; 16],
            seed: [0; 2],
        }
    }
}

/// An NVMe transport that queues are reached by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// NVMe/RDMA.
    #[default]
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "NVMe/RDMA",
            Self::Tcp => "NVMe/TCP",
        })
    }
}

impl Transport {
    /// Its TRTYPE.
    #[must_use]
    pub const fn trtype(self) -> TransportType {
        match self {
            Self::Rdma => TransportType::RDMA,
            Self::Tcp => TransportType::TCP,
        }
    }

    /// What its wire says of the data of commands.
    #[must_use]
    pub(crate) const fn data_support(self) -> DataSupport {
        match self {
            Self::Rdma => rdma_sgl::SUPPORT,
            Self::Tcp => tcp::command::SUPPORT,
        }
    }
}

/// A listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Its identifier.
    pub id: PortId,
    /// Where it listens. A wildcard address is replaced, in the discovery log, by the address
    /// the asking host reached.
    pub address: SocketAddr,
    /// The kind of RDMA it speaks, if any, for the discovery log.
    pub rdma: Option<RdmaProviderType>,
    /// Whether it speaks NVMe/TCP.
    pub tcp: bool,
    /// The port of NVMe/TCP, where that is not the one of `address`.
    pub tcp_port: Option<u16>,
}

impl PortConfig {
    /// Whether it speaks `transport`.
    #[must_use]
    pub const fn speaks(&self, transport: Transport) -> bool {
        match transport {
            Transport::Rdma => self.rdma.is_some(),
            Transport::Tcp => self.tcp,
        }
    }

    /// The addresses where it is listened at, of one or two ports; none where it speaks nothing.
    pub fn listened_at(&self) -> impl Iterator<Item = SocketAddr> {
        let at = |transport| self.with_port_of(self.address, transport);
        let rdma = self.rdma.map(|_| at(Transport::Rdma));
        let tcp = self.tcp.then(|| at(Transport::Tcp));
        rdma.into_iter()
            .chain(tcp.filter(move |tcp| rdma != Some(*tcp)))
    }

    /// `address`, which has the port of RDMA, with the port of `transport`.
    #[must_use]
    pub(crate) fn with_port_of(&self, address: SocketAddr, transport: Transport) -> SocketAddr {
        match (transport, self.tcp_port) {
            (Transport::Tcp, Some(port)) => SocketAddr::new(address.ip(), port),
            _ => address,
        }
    }
}

/// Who may connect to a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostPolicy {
    /// Any host.
    Any,
    /// These hosts, by host NQN. Nobody when empty.
    Only(BTreeSet<Nqn>),
}

impl HostPolicy {
    /// Whether `host` may connect ([`Nqn::is_same`]).
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Only(hosts) => hosts.iter().any(|other| other.is_same(host)),
        }
    }
}

/// An NVM subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemConfig {
    /// NVM Subsystem NQN.
    pub nqn: Nqn,
    /// Serial Number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model Number: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Firmware Revision: 1 to 8 printable ASCII characters.
    pub firmware: String,
    /// IEEE OUI Identifier of the vendor, most significant byte first; zero when there is none.
    pub ieee_oui: [u8; 3],
    /// Who may connect.
    pub hosts: HostPolicy,
    /// Ports it is reached through.
    pub ports: BTreeSet<PortId>,
    /// Whether a new association of a host ends the older ones with the same Host NQN, Host
    /// Identifier and pair of addresses.
    pub end_older_association: bool,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceConfig {
    /// Namespace Identifier, 1 to [`bounds::NAMESPACES_MAX`].
    pub nsid: u32,
    /// The driver's name for where its blocks are.
    pub backend: BackendId,
    /// Size and capabilities.
    pub geometry: Geometry,
    /// Identity; give at least one identifier, hosts need it to tell paths from namespaces.
    pub identity: NamespaceIdentity,
    /// ANA Group Identifier, 1 to [`bounds::ANA_GROUPS_MAX`].
    pub anagrpid: u32,
    /// Hosts that see it, among those the subsystem allows.
    pub visible_to: HostPolicy,
    /// Hosts have seen something else under this NSID. One that comes back from then may send
    /// commands before it looks: each association has to identify it before its I/O is taken.
    pub replaces: bool,
    /// Whether reservations of it can persist through power loss, and those that have. Without a
    /// UUID they cannot.
    pub persistence: Persistence,
}

/// Why a configuration value was not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number outside its bounds.
    #[error("{what} is {value}, expected {min} to {max}")]
    OutOfBounds {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: u64,
        /// Smallest that is accepted.
        min: u64,
        /// Largest that is accepted.
        max: u64,
    },
    /// A logical block size that is no power of two.
    #[error("logical block size is {lba_bytes} bytes, expected a power of two from 512 to 65536")]
    LbaBytes {
        /// The size.
        lba_bytes: u32,
    },
    /// Text of Identify Controller that does not fit or is not printable ASCII.
    #[error("{what} is {value:?}, expected 1 to {max} printable ASCII characters")]
    Text {
        /// What the text is.
        what: &'static str,
        /// The text.
        value: String,
        /// Most characters.
        max: usize,
    },
    /// Something with this name exists.
    #[error("{what} {name} exists already, expected a new one")]
    Duplicate {
        /// Kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Nothing with this name exists.
    #[error("{what} {name} does not exist; check its name")]
    Unknown {
        /// Kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The discovery subsystem is built in.
    #[error("the discovery subsystem is built in and cannot be changed")]
    Discovery,
}

/// Checks that `value` is in `min ..= max`.
pub(crate) fn within(
    what: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfBounds {
        what,
        value,
        min,
        max,
    })
}

fn text(what: &'static str, value: &str, max: usize) -> Result<(), ConfigError> {
    let printable = value.bytes().all(|byte| (0x20..0x7F).contains(&byte));
    if printable && (1..=max).contains(&value.len()) {
        return Ok(());
    }
    Err(ConfigError::Text {
        what,
        value: value.into(),
        max,
    })
}

fn check_texts(serial: &str, model: &str, firmware: &str) -> Result<(), ConfigError> {
    text("serial", serial, 20)?;
    text("model", model, 40)?;
    text("firmware", firmware, 8)
}

impl TargetConfig {
    /// Checks the bounds.
    ///
    /// # Errors
    /// The first number that is out of bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        let most = |limit: u16| u64::from(limit);
        within(
            "io_queues",
            self.io_queues.into(),
            1,
            most(bounds::IO_QUEUES_MAX),
        )?;
        within(
            "io_queue_entries",
            self.io_queue_entries.into(),
            bounds::QUEUE_ENTRIES_MIN.into(),
            most(bounds::IO_QUEUE_ENTRIES_MAX),
        )?;
        within(
            "admin_queue_entries",
            self.admin_queue_entries.into(),
            bounds::ADMIN_QUEUE_ENTRIES_MIN.into(),
            most(bounds::ADMIN_QUEUE_ENTRIES_MAX),
        )?;
        let controllers = u64::try_from(self.controllers).unwrap_or(u64::MAX);
        let most = u64::try_from(bounds::CONTROLLERS_MAX).unwrap_or(u64::MAX);
        within("controllers", controllers, 1, most)?;
        let controllers = u64::try_from(self.discovery_controllers).unwrap_or(u64::MAX);
        let most = u64::try_from(bounds::DISCOVERY_CONTROLLERS_MAX).unwrap_or(u64::MAX);
        within("discovery_controllers", controllers, 1, most)?;
        check_texts(&self.serial, &self.model, &self.firmware)
    }
}

impl SubsystemConfig {
    /// Checks everything but that the ports exist.
    ///
    /// # Errors
    /// The first value that is not accepted.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.nqn.is_discovery() {
            return Err(ConfigError::Discovery);
        }
        check_texts(&self.serial, &self.model, &self.firmware)
    }
}

impl NamespaceConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value that is not accepted.
    pub fn check(&self) -> Result<(), ConfigError> {
        within("nsid", self.nsid.into(), 1, bounds::NAMESPACES_MAX.into())?;
        within(
            "anagrpid",
            self.anagrpid.into(),
            1,
            bounds::ANA_GROUPS_MAX.into(),
        )?;
        let lba_bytes = self.geometry.lba_bytes;
        if !lba_bytes.is_power_of_two() || !(512..=65_536).contains(&lba_bytes) {
            return Err(ConfigError::LbaBytes { lba_bytes });
        }
        within("lbas", self.geometry.lbas, 1, u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn defaults_are_within_bounds() {
        assert_eq!(TargetConfig::default().check(), Ok(()));
    }

    #[test]
    fn errors_name_the_value_and_what_was_expected() {
        let config = TargetConfig {
            io_queues: 0,
            ..TargetConfig::default()
        };
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "io_queues is 0, expected 1 to 128"
        );
        assert_eq!(
            text("serial", "", 20).unwrap_err().to_string(),
            "serial is \"\", expected 1 to 20 printable ASCII characters"
        );
        assert!(text("serial", "123456789012345678901", 20).is_err());
        assert!(text("serial", "no\ttabs", 20).is_err());
        assert_eq!(text("serial", "12345678901234567890", 20), Ok(()));
    }

    #[test]
    fn nobody_is_allowed_unless_written_down() {
        let host = Nqn::new("nqn.2014-08.org.example:host").unwrap();
        assert!(!HostPolicy::Only(BTreeSet::new()).allows(&host));
        assert!(HostPolicy::Only(BTreeSet::from([host.clone()])).allows(&host));
        assert!(HostPolicy::Any.allows(&host));
    }
}
