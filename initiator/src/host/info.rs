//! What the host keeps of a controller and of a namespace.

use std::fmt;
use std::sync::Arc;

use capstan_nvme_proto::features::AsyncEventConfiguration;
use capstan_nvme_proto::identify::{
    CapstanBlock, CapstanCapabilities, ControllerAttributes, ControllerType, Csi,
    IdentifyController, IdentifyNamespace, NamespaceAttributes, NamespaceId,
    NamespaceIdDescriptors, OptionalNvmCommands, SglSupport, VolatileWriteCacheSupport,
};
use capstan_nvme_proto::property::{Cap, Version};
use capstan_nvme_proto::status::Status;
use uuid::Uuid;

use super::config::HostConfig;
use crate::error::{ConnectError, IoError};
use crate::options::{TRANSFER_BYTES_MAX, Transport};

/// The least IOCCSZ: the 64 bytes of an SQE, in units of 16.
const IOCCSZ_MIN: u32 = 4;

/// A controller, as far as the set-up has come.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerInfo {
    /// Controller identifier of the association.
    pub cntlid: u16,
    /// VS.
    pub version: Version,
    /// CAP.
    pub cap: Option<Cap>,
    /// Serial number, model and firmware revision, printable.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Most data of one command in bytes (MDTS); `None` when the controller has no limit.
    pub transfer_bytes_max: Option<u32>,
    /// Most data in a command capsule of an I/O queue, in bytes.
    pub in_capsule_bytes: u32,
    /// I/O queues the controller gave.
    pub io_queues: u16,
    /// MAXCMD: commands of one I/O queue outstanding at once; 0 is not told.
    pub maxcmd: u16,
    /// Asynchronous Event Requests outstanding at once.
    pub async_events_max: u16,
    /// There is a volatile write cache: a write is durable only after Flush, or with FUA.
    pub volatile_write_cache: bool,
    /// Compare is supported.
    pub compare: bool,
    /// Write Zeroes is supported.
    pub write_zeroes: bool,
    /// Dataset Management is supported.
    pub dataset_management: bool,
    /// Verify is supported.
    pub verify: bool,
    /// Controller Instance Uniquifier; 0 is not told.
    pub ciu: u8,
    /// Controller Instance Random Number.
    pub cirn: u64,
    /// Command Quiesce Time in milliseconds; 0 is not told.
    pub cqt_ms: u16,
    /// Cross-Controller Resets at a time; 0 is none.
    pub ccrl: u8,
    /// Which boot of its machine the target is of, where it tells.
    pub boot_id: Option<[u8; 16]>,
    /// A Capstan target: a controller is ready, and its identifier given out again, only when
    /// nothing is left of earlier ones.
    pub(super) fences: bool,
    /// Granularity of KATO in milliseconds.
    pub(super) kas_ms: u32,
    /// Any command counts as Keep Alive.
    pub(super) tbkas: bool,
    /// Events it can send.
    pub(super) events: AsyncEventConfiguration,
}

impl Default for ControllerInfo {
    fn default() -> Self {
        Self {
            cntlid: 0,
            version: Version::decode(0),
            cap: None,
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            transfer_bytes_max: None,
            in_capsule_bytes: 0,
            io_queues: 0,
            maxcmd: 0,
            async_events_max: 0,
            volatile_write_cache: false,
            compare: false,
            write_zeroes: false,
            dataset_management: false,
            verify: false,
            ciu: 0,
            cirn: 0,
            cqt_ms: 0,
            ccrl: 0,
            boot_id: None,
            fences: false,
            kas_ms: 0,
            tbkas: false,
            events: AsyncEventConfiguration::empty(),
        }
    }
}

impl ControllerInfo {
    /// Takes Identify Controller data, and refuses a controller this host cannot use.
    pub(super) fn identified(
        &mut self,
        data: &[u8],
        config: &HostConfig,
    ) -> Result<(), ConnectError> {
        let identify = IdentifyController::from_data(data).ok_or_else(|| {
            let what = format!(
                "Identify Controller has {} bytes, expected 4096",
                data.len()
            );
            ConnectError::Protocol { qid: 0, what }
        })?;
        let sgls = SglSupport::from_bits_retain(identify.sgls.get());
        if config.nr_io_queues > 0 {
            // NVMe Base 2.1, section 3.1.3.3: a discovery controller has neither I/O queues nor
            // namespaces.
            let is_discovery = identify.cntrltype == ControllerType::DISCOVERY;
            if is_discovery || config.subnqn.is_discovery() {
                let subnqn = Box::new(config.subnqn.clone());
                return Err(ConnectError::Discovery { subnqn });
            }
            require(config.transport, sgls, identify.ioccsz_16bytes.get())?;
        }
        self.serial = identify.serial_number().to_string();
        self.model = identify.model_number().to_string();
        self.firmware = identify.firmware_revision().to_string();
        let mpsmin = self.cap.map_or(0, |cap| cap.mpsmin);
        self.transfer_bytes_max = identify
            .max_data_transfer_bytes(mpsmin)
            .map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        // Data at an offset behind the SQE would need a gap in the capsule; no controller in the
        // field has one.
        let in_capsule = sgls.contains(SglSupport::OFFSET) && identify.icdoff_16bytes.get() == 0;
        self.in_capsule_bytes = match u32::try_from(identify.in_capsule_data_bytes()) {
            Ok(bytes) if in_capsule => bytes.min(TRANSFER_BYTES_MAX),
            _ => 0,
        };
        self.maxcmd = identify.maxcmd.get();
        self.async_events_max = u16::from(identify.aerl_z) + 1;
        self.volatile_write_cache = VolatileWriteCacheSupport::from_bits_retain(identify.vwc)
            .contains(VolatileWriteCacheSupport::PRESENT);
        let oncs = OptionalNvmCommands::from_bits_retain(identify.oncs.get());
        self.compare = oncs.contains(OptionalNvmCommands::COMPARE);
        self.write_zeroes = oncs.contains(OptionalNvmCommands::WRITE_ZEROES);
        self.dataset_management = oncs.contains(OptionalNvmCommands::DATASET_MANAGEMENT);
        self.verify = oncs.contains(OptionalNvmCommands::VERIFY);
        self.ciu = identify.ciu;
        self.cirn = identify.cirn.get();
        self.cqt_ms = identify.cqt_ms.get();
        self.ccrl = identify.ccrl;
        let capstan = identify.capstan();
        self.boot_id = capstan.and_then(CapstanBlock::boot_id);
        self.fences = capstan.is_some_and(|block| {
            let promises = block.capabilities();
            promises.contains(CapstanCapabilities::FENCES_EARLIER_ASSOCIATIONS)
        });
        self.kas_ms = u32::from(identify.kas_100ms.get()) * 100;
        self.tbkas = ControllerAttributes::from_bits_retain(identify.ctratt.get())
            .contains(ControllerAttributes::TRAFFIC_BASED_KEEP_ALIVE);
        self.events = AsyncEventConfiguration::from_bits_retain(identify.oaes.get());
        Ok(())
    }

    /// The events this host asks for, of those the controller has.
    pub(super) fn wanted_events(&self) -> AsyncEventConfiguration {
        self.events
            & (AsyncEventConfiguration::NAMESPACE_ATTRIBUTE
                | AsyncEventConfiguration::DISCOVERY_LOG_CHANGE
                | AsyncEventConfiguration::CROSS_CONTROLLER_RESET_COMPLETED)
    }
}

/// Capsules that hold an SQE; and NVMe over RDMA Transport 1.1, section 3.2: keyed SGLs.
fn require(transport: Transport, sgls: SglSupport, ioccsz: u32) -> Result<(), ConnectError> {
    if transport != Transport::Tcp && !sgls.contains(SglSupport::KEYED) {
        return Err(ConnectError::Unsupported {
            what: "SGLS of Identify Controller",
            value: sgls.bits().into(),
            expected: "bit 2 set (keyed SGL data blocks, without which RDMA cannot move data)",
        });
    }
    if ioccsz < IOCCSZ_MIN {
        return Err(ConnectError::Unsupported {
            what: "IOCCSZ of Identify Controller",
            value: ioccsz.into(),
            expected: "at least 4 (a capsule of 64 bytes)",
        });
    }
    Ok(())
}

/// Why I/O to a namespace is refused by this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Its format is one this host has no use for.
    Format(&'static str, u64),
    /// It is not the namespace it was when this host first saw its NSID.
    Replaced(Arc<str>),
}

impl Unusable {
    /// The error of an I/O to namespace `nsid`.
    #[must_use]
    pub fn to_error(&self, nsid: u32) -> IoError {
        match self {
            Self::Format(what, value) => IoError::Invalid {
                what,
                value: *value,
                expected: "a format this host supports (LBAs of 512 bytes to 64 KiB, no metadata)",
            },
            Self::Replaced(change) => IoError::NamespaceReplaced {
                nsid,
                change: Arc::clone(change),
            },
        }
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Size in LBAs.
    pub nsze_lbas: u64,
    /// Bytes of an LBA.
    pub lba_bytes: u32,
    /// Metadata bytes of an LBA.
    pub metadata_bytes: u16,
    /// The controller refuses writes.
    pub read_only: bool,
    /// EUI64; zero is none.
    pub eui64: [u8; 8],
    /// NGUID; zero is none.
    pub nguid: [u8; 16],
    /// UUID.
    pub uuid: Option<Uuid>,
    /// Command set.
    pub csi: Csi,
    /// Set when this host refuses I/O to it.
    pub unusable: Option<Unusable>,
}

/// A namespace that is active and left out, as its Identify has failed. That there is none
/// (Invalid Namespace or Format, or a size of zero) is no failure: it has gone since the controller
/// made its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unidentified {
    /// Namespace identifier.
    pub nsid: u32,
    /// The status of Identify; success where its data was none.
    pub status: Status,
}

impl fmt::Display for Unidentified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nsid, status } = self;
        match status.is_success() {
            true => write!(
                f,
                "Identify of namespace {nsid} has answered with too little data"
            ),
            false => write!(f, "Identify of namespace {nsid} has failed: {status}"),
        }
    }
}

impl NamespaceInfo {
    /// From Identify Namespace data; `None` when the NSID is not active.
    pub(super) fn parse(nsid: u32, data: &[u8]) -> Option<Self> {
        let identify = IdentifyNamespace::from_data(data)?;
        if identify.nsze_lbas.get() == 0 {
            return None;
        }
        let format = identify.formatted_lba_format();
        let lba_bytes = format.and_then(|format| format.lba_bytes()).unwrap_or(0);
        let metadata_bytes = format.map_or(0, |format| format.ms_bytes.get());
        let unusable = if !(512..=65_536).contains(&lba_bytes) {
            Some(Unusable::Format("LBA size", lba_bytes.into()))
        } else if metadata_bytes != 0 {
            Some(Unusable::Format("metadata size", metadata_bytes.into()))
        } else {
            None
        };
        let attributes = NamespaceAttributes::from_bits_retain(identify.nsattr);
        Some(Self {
            nsid,
            nsze_lbas: identify.nsze_lbas.get(),
            lba_bytes,
            metadata_bytes,
            read_only: attributes.contains(NamespaceAttributes::WRITE_PROTECTED),
            eui64: identify.eui64,
            nguid: identify.nguid,
            uuid: None,
            csi: Csi::NVM,
            unusable,
        })
    }

    /// Adds what the Namespace Identification Descriptor list says.
    pub(super) fn describe(&mut self, data: &[u8]) {
        for id in NamespaceIdDescriptors::new(data) {
            match id {
                NamespaceId::Eui64(eui64) => self.eui64 = eui64,
                NamespaceId::Nguid(nguid) => self.nguid = nguid,
                NamespaceId::Uuid(uuid) => self.uuid = Some(uuid),
                NamespaceId::CommandSet(csi) => self.csi = csi,
                NamespaceId::Unknown { .. } => {}
            }
        }
        if self.csi != Csi::NVM {
            self.unusable = Some(Unusable::Format("command set", self.csi.0.into()));
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.nsze_lbas.saturating_mul(self.lba_bytes.into())
    }

    /// Marks the namespace unusable when it is not the one `first` was: writing to another volume
    /// under the same NSID would destroy it.
    pub(super) fn compare_with(&mut self, first: &Self) {
        let change = if first.lba_bytes != self.lba_bytes {
            Some(format!(
                "its LBAs have {} bytes, had {}",
                self.lba_bytes, first.lba_bytes
            ))
        } else if first.uuid != self.uuid {
            let name =
                |uuid: Option<Uuid>| uuid.map_or_else(|| "none".to_owned(), |u| u.to_string());
            Some(format!(
                "its UUID is {}, was {} (another volume has its place, or it was memory of a target \
                 that was started anew, which is empty then)",
                name(self.uuid),
                name(first.uuid)
            ))
        } else if first.nguid != self.nguid {
            Some("its NGUID changed".to_owned())
        } else if first.eui64 != self.eui64 {
            Some("its EUI64 changed".to_owned())
        } else {
            None
        };
        if let Some(change) = change {
            self.unusable = Some(Unusable::Replaced(change.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn namespace(lbads: u8) -> NamespaceInfo {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.nsze_lbas = 1000.into();
        identify.lbaf[0].lbads = lbads;
        NamespaceInfo::parse(1, identify.as_bytes()).unwrap()
    }

    #[test]
    fn formats_without_use_are_marked() {
        assert_eq!(namespace(12).unusable, None);
        assert_eq!(namespace(12).size_bytes(), 4_096_000);
        for lbads in [0, 8, 17, 40, 255] {
            assert!(namespace(lbads).unusable.is_some(), "LBADS {lbads}");
        }
    }

    #[test]
    fn an_inactive_namespace_is_none() {
        let identify = IdentifyNamespace::new_zeroed();
        assert_eq!(NamespaceInfo::parse(1, identify.as_bytes()), None);
        assert_eq!(NamespaceInfo::parse(1, &[0; 100]), None);
    }

    #[test]
    fn another_namespace_under_the_same_nsid_is_refused() {
        let first = namespace(12);
        let mut grown = first.clone();
        grown.nsze_lbas += 1;
        grown.compare_with(&first);
        assert_eq!(grown.unusable, None, "growing is no other namespace");
        let mut other = first.clone();
        other.nguid = [7; 16];
        other.compare_with(&first);
        assert!(matches!(other.unusable, Some(Unusable::Replaced(_))));
        let mut other = first.clone();
        other.uuid = Some(Uuid::from_u128(1));
        other.compare_with(&first);
        let error = other.unusable.unwrap().to_error(1).to_string();
        assert!(error.contains("was none"), "{error}");
    }
}
