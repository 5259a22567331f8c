//! Identify: what this controller and its namespaces are. NVMe Base 2.1, section 5.1.13.

use capstan_nvme_proto::command::Identify;
use capstan_nvme_proto::copy::CopyFormat;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::identify::{
    AnaCapabilities, CapstanBlock, CapstanCapabilities, Cns, CommandSetList, CommandSetVector,
    ControllerAttributes, ControllerType, Csi, DeallocateFeatures, IDENTIFY_BYTES,
    IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace, LbaFormat,
    LogPageAttributes, MultiPath, NamespaceAttributes, NamespaceFeatures, NamespaceId,
    NamespaceList, NamespaceSharing, NamespaceStatus, NvmAdminCommands, NvmIdentifyController,
    NvmIdentifyNamespace, OptionalFabricsCommands, OptionalNvmCommands, ReservationCapabilities,
    VolatileWriteCacheSupport, write_namespace_ids,
};
use capstan_nvme_proto::property::Version;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::text::space_padded;
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use crate::bounds::{
    ABORT_MAX, AER_MAX, ANA_GROUPS_MAX, COPY_RANGES_MAX, CROSS_RESETS_MAX, ERROR_LOG_ENTRIES,
    IORCSZ, KAS, MDTS, NAMESPACES_MAX, QUIESCE_MS, RETRY_DELAY_100MS,
};
use crate::control::{Executed, Execution, Target, gone};
use crate::controller::{Controller, ControllerKind, Instance, VERSION};
use crate::features::supported_events;
use crate::io_queue::CopyLimits;
use crate::namespace::Namespace;
use crate::wire::wire;

/// RTD3E: how long a shutdown may take, which is how long hosts wait for CSTS.SHST. Writing back
/// a volatile cache takes as long as the medium needs; 10 s is what hosts give at most by default.
const SHUTDOWN_US: u32 = 10_000_000;
/// ANATT: the longest time in ANA Change state, in seconds.
const ANA_TRANSITION_SECONDS: u8 = 10;
/// NSFEAT bit of the command set independent structure: no volatile write cache.
const VWC_NOT_PRESENT_BIT: u32 = 5;
/// FRMW: one firmware slot, read only.
const FRMW_ONE_READ_ONLY_SLOT: u8 = 1 << 1 | 1;
/// NWPC: No Write Protect and Write Protect states, not the permanent ones.
const NWPC_SUPPORTED: u8 = 1;
/// Version of the NVM Command Set specification: 1.0, which belongs to NVMe Base 2.0.
const NVM_COMMAND_SET_VERSION: Version = Version {
    major: 1,
    minor: 0,
    tertiary: 0,
};
/// DCTYPE: direct discovery controller.
const DCTYPE_DIRECT: u8 = 1;

/// Texts of Identify Controller.
struct Texts<'a> {
    serial: &'a str,
    model: &'a str,
    firmware: &'a str,
    ieee_oui: [u8; 3],
}

impl Target {
    pub(crate) fn identify(
        &self,
        identify: &Identify,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let controller = self.controller(execution.id).ok_or_else(gone)?;
        let mut page = [0; IDENTIFY_BYTES];
        match (controller.kind, identify.cns) {
            (_, Cns::CONTROLLER) => {
                write(&mut page, self.identify_controller(controller).as_bytes());
            }
            (ControllerKind::Io, cns) => identify_io(controller, cns, identify, &mut page)?,
            (ControllerKind::Discovery, other) => return Err(unsupported(other)),
        }
        execution.out.extend_from_slice(&page);
        Ok(Executed::OK)
    }

    /// CNS 01h.
    fn identify_controller(&self, controller: &Controller) -> IdentifyController {
        let subnqn = &controller.association.subnqn;
        let config = self.config();
        let texts = match self.subsystem_config(subnqn) {
            Some(subsystem) => Texts {
                serial: &subsystem.serial,
                model: &subsystem.model,
                firmware: &subsystem.firmware,
                ieee_oui: subsystem.ieee_oui,
            },
            None => Texts {
                serial: &config.serial,
                model: &config.model,
                firmware: &config.firmware,
                ieee_oui: [0; 3],
            },
        };
        let [oui_high, oui_middle, oui_low] = texts.ieee_oui;
        // Numbers of others, which only they may give; Linux nvmet leaves them to its operator,
        // too.
        let [vid, ssvid] = config.vendor_ids;
        let support = controller.transport.data_support();
        let mut data = wire!(IdentifyController {
            vid: vid.into(),
            ssvid: ssvid.into(),
            sn: space_padded(texts.serial),
            mn: space_padded(texts.model),
            fr: space_padded(texts.firmware),
            // 2^6 commands.
            rab: 6,
            ieee: [oui_low, oui_middle, oui_high],
            mdts: MDTS,
            cntlid: controller.association.cntlid.into(),
            ver: VERSION.encode().into(),
            rtd3e_us: SHUTDOWN_US.into(),
            oaes: supported_events(controller.kind).bits().into(),
            ctratt: (ControllerAttributes::HOST_ID_128
                | ControllerAttributes::TRAFFIC_BASED_KEEP_ALIVE
                | ControllerAttributes::RESERVATIONS_HOST_ID)
                .bits()
                .into(),
            acl_z: zeroes_based(ABORT_MAX),
            aerl_z: zeroes_based(AER_MAX),
            frmw: FRMW_ONE_READ_ONLY_SLOT,
            lpa: (LogPageAttributes::EXTENDED_DATA | LogPageAttributes::SUPPORTED_LOG_PAGES).bits(),
            elpe_z: zeroes_based(ERROR_LOG_ENTRIES),
            kas_100ms: KAS.into(),
            sgls: support.sgls.bits().into(),
            subnqn: subnqn.to_field(),
            ioccsz_16bytes: support.ioccsz_16bytes().into(),
            iorcsz_16bytes: IORCSZ.into(),
            icdoff_16bytes: support.in_capsule_offset_16bytes.into(),
            msdbd: support.descriptors_max,
        });
        match controller.kind {
            ControllerKind::Discovery => {
                data.cntrltype = ControllerType::DISCOVERY;
                data.maxcmd = config.admin_queue_entries.into();
                data.dctype = DCTYPE_DIRECT;
            }
            ControllerKind::Io => {
                data.cntrltype = ControllerType::IO;
                data.maxcmd = config.io_queue_entries.into();
                io_controller(controller, &mut data);
                let promises = CapstanCapabilities::FENCES_EARLIER_ASSOCIATIONS;
                data.set_capstan(&CapstanBlock::new(promises, config.boot_id));
            }
        }
        data
    }
}

/// 70 °C, which is recommended for WCTEMP (NVMe Base 2.1, section 5.1.13.2.1): no medium has a
/// threshold of its own to tell, and 0 is not allowed since revision 1.2.
pub(crate) const WARNING_TEMPERATURE_KELVINS: u16 = 0x157;
/// 100 °C. No number is recommended for CCTEMP, which may not be 0 either.
const CRITICAL_TEMPERATURE_KELVINS: u16 = 0x175;

/// The fields of a controller that executes I/O commands.
fn io_controller(controller: &Controller, data: &mut IdentifyController) {
    let namespaces = &controller.namespaces;
    let capacity_bytes = namespaces
        .iter()
        .map(capacity_bytes)
        .fold(0_u128, u128::saturating_add);
    if let Some(Instance { ciu, cirn }) = controller.instance {
        data.ciu = ciu;
        data.cirn = cirn.into();
    }
    data.wctemp_kelvins = WARNING_TEMPERATURE_KELVINS.into();
    data.cctemp_kelvins = CRITICAL_TEMPERATURE_KELVINS.into();
    data.crdt1_100ms = RETRY_DELAY_100MS.into();
    data.ccrl = CROSS_RESETS_MAX;
    data.cqt_ms = QUIESCE_MS.into();
    data.cmic = (MultiPath::PORTS | MultiPath::CONTROLLERS | MultiPath::ANA).bits();
    data.lpa |=
        (LogPageAttributes::COMMAND_EFFECTS | LogPageAttributes::SMART_PER_NAMESPACE).bits();
    data.tnvmcap_bytes = capacity_bytes.into();
    data.anatt_seconds = ANA_TRANSITION_SECONDS;
    // Not that ANAGRPID stays as it is: the operator moves namespaces while hosts use them.
    data.anacap = (AnaCapabilities::OPTIMIZED
        | AnaCapabilities::NON_OPTIMIZED
        | AnaCapabilities::INACCESSIBLE
        | AnaCapabilities::PERSISTENT_LOSS
        | AnaCapabilities::CHANGE)
        .bits();
    data.anagrpmax = ANA_GROUPS_MAX.into();
    data.nanagrpid = ANA_GROUPS_MAX.into();
    // 64 byte SQEs and 16 byte CQEs, required and maximum.
    data.sqes = 0x66;
    data.cqes = 0x44;
    data.nn = NAMESPACES_MAX.into();
    data.mnan = NAMESPACES_MAX.into();
    let mut oncs = OptionalNvmCommands::COMPARE
        | OptionalNvmCommands::WRITE_ZEROES
        | OptionalNvmCommands::SAVE_AND_SELECT
        | OptionalNvmCommands::RESERVATIONS
        | OptionalNvmCommands::VERIFY
        | OptionalNvmCommands::COPY;
    // Without a namespace that can discard, the command would be a hint without effect.
    let discards = namespaces.iter().any(|ns| ns.geometry.discard);
    oncs.set(
        OptionalNvmCommands::DATASET_MANAGEMENT,
        discards || namespaces.iter().len() == 0,
    );
    data.oncs = oncs.bits().into();
    data.nwpc = NWPC_SUPPORTED;
    let mut vwc = VolatileWriteCacheSupport::FLUSH_BROADCAST_NOT_SUPPORTED;
    vwc.set(
        VolatileWriteCacheSupport::PRESENT,
        controller.has_volatile_write_cache(),
    );
    data.vwc = vwc.bits();
    data.ocfs = 1_u16.wrapping_shl(CopyFormat::FORMAT_0.0.into()).into();
    data.ofcs = OptionalFabricsCommands::DISCONNECT.bits().into();
}

/// Every CNS but 01h, for a controller that executes I/O commands.
fn identify_io(
    controller: &Controller,
    cns: Cns,
    identify: &Identify,
    page: &mut [u8],
) -> Result<(), CommandError> {
    let nsid = identify.nsid;
    match cns {
        Cns::NAMESPACE => {
            if let Some(namespace) = possible(controller, nsid)? {
                write(page, identify_namespace(namespace).as_bytes());
            }
        }
        Cns::ACTIVE_NAMESPACES => write_list(controller, nsid, page)?,
        Cns::NAMESPACE_ID_DESCRIPTORS => {
            let identity = active(controller, nsid)?.identity;
            let ids = [
                identity.eui64.map(NamespaceId::Eui64),
                identity.nguid.map(NamespaceId::Nguid),
                identity.uuid.map(NamespaceId::Uuid),
                Some(NamespaceId::CommandSet(Csi::NVM)),
            ];
            write_namespace_ids(page, ids.into_iter().flatten()).map_err(|_| gone())?;
        }
        Cns::NAMESPACE_IOCS => {
            require_nvm(identify)?;
            if possible(controller, nsid)?.is_some() {
                write(page, NvmIdentifyNamespace::new_zeroed().as_bytes());
            }
        }
        Cns::CONTROLLER_IOCS => {
            require_nvm(identify)?;
            let data = wire!(NvmIdentifyController {
                vsl: MDTS,
                aocs: NvmAdminCommands::REPORTS_ALLOCATED.bits().into(),
                ver: NVM_COMMAND_SET_VERSION.encode().into(),
            });
            write(page, data.as_bytes());
        }
        Cns::ACTIVE_NAMESPACES_IOCS => {
            require_nvm(identify)?;
            write_list(controller, nsid, page)?;
        }
        Cns::NAMESPACE_INDEPENDENT => {
            let namespace = active(controller, nsid)?;
            write(page, independent_namespace(namespace).as_bytes());
        }
        Cns::COMMAND_SETS => {
            let own = controller.association.cntlid;
            if identify.cntid != own && identify.cntid != 0xFFFF {
                return Err(CommandError::invalid_field(
                    "CNTID",
                    42,
                    identify.cntid.into(),
                    "this controller's CNTLID, or FFFFh",
                ));
            }
            let list = CommandSetList::single(CommandSetVector::NVM);
            write(page, list.as_bytes());
        }
        other => return Err(unsupported(other)),
    }
    Ok(())
}

/// Pages of memory, blocks of file systems and of disks: what is written in units of it, and in
/// whole ones, is not read first.
const WRITE_GRANULARITY_BYTES: u32 = 4096;

/// So many blocks as there are in `bytes`, 0's based: 0 where there is not a whole one.
fn blocks_z(bytes: u32, lba_bytes: u32) -> U16 {
    let blocks = bytes.checked_div(lba_bytes).unwrap_or(0);
    u16::try_from(blocks.saturating_sub(1))
        .unwrap_or(u16::MAX)
        .into()
}

/// CNS 00h.
fn identify_namespace(namespace: &Namespace) -> IdentifyNamespace {
    let geometry = &namespace.geometry;
    let limits = CopyLimits::new(geometry.lba_bytes);
    let mut dlfeat = DeallocateFeatures::empty();
    if geometry.write_zeroes {
        dlfeat |= DeallocateFeatures::READS_ZEROES | DeallocateFeatures::WRITE_ZEROES_DEALLOCATE;
    }
    let lba_bytes = geometry.lba_bytes;
    let granularity_z = blocks_z(
        geometry.optimal_io_bytes.min(WRITE_GRANULARITY_BYTES),
        lba_bytes,
    );
    // NAWUN, NAWUPF and NACWU stay 0: a write of one block is atomic, and of more it is not,
    // whatever is behind it. The sizes are preferences, as those of Linux nvmet.
    let features =
        NamespaceFeatures::ATOMIC_BOUNDARY_PARAMETERS | NamespaceFeatures::OPTIMAL_PERFORMANCE;
    let mut data = wire!(IdentifyNamespace {
        nsfeat: features.bits(),
        npwg_z: granularity_z,
        npwa_z: granularity_z,
        npdg_z: granularity_z,
        npda_z: granularity_z,
        nows_z: blocks_z(geometry.optimal_io_bytes, lba_bytes),
        nsze_lbas: geometry.lbas.into(),
        ncap_lbas: geometry.lbas.into(),
        nuse_lbas: geometry.lbas.into(),
        nmic: NamespaceSharing::SHARED.bits(),
        rescap: reservations(namespace).bits(),
        dlfeat: dlfeat.bits(),
        nvmcap_bytes: capacity_bytes(namespace).into(),
        mssrl_lbas: limits.mssrl_lbas.into(),
        mcl_lbas: limits.mcl_lbas.into(),
        msrc_z: zeroes_based(COPY_RANGES_MAX.into()),
        anagrpid: namespace.anagrpid.into(),
        nsattr: attributes(namespace).bits(),
        nguid: namespace.identity.nguid.unwrap_or_default(),
        eui64: namespace.identity.eui64.unwrap_or_default(),
    });
    let lbads = geometry.lba_bytes.trailing_zeros();
    let [format, ..] = &mut data.lbaf;
    *format = LbaFormat::without_metadata(u8::try_from(lbads).unwrap_or(0));
    data
}

/// CNS 08h.
fn independent_namespace(namespace: &Namespace) -> IndependentIdentifyNamespace {
    let no_cache = !namespace.geometry.volatile_write_cache;
    wire!(IndependentIdentifyNamespace {
        nsfeat: u8::from(no_cache).wrapping_shl(VWC_NOT_PRESENT_BIT),
        nmic: NamespaceSharing::SHARED.bits(),
        rescap: reservations(namespace).bits(),
        anagrpid: namespace.anagrpid.into(),
        nsattr: attributes(namespace).bits(),
        nstat: NamespaceStatus::READY.bits(),
    })
}

/// RESCAP: every type.
fn reservations(namespace: &Namespace) -> ReservationCapabilities {
    let mut capabilities = ReservationCapabilities::all();
    capabilities.set(
        ReservationCapabilities::PERSIST_THROUGH_POWER_LOSS,
        namespace.persistent,
    );
    capabilities
}

fn attributes(namespace: &Namespace) -> NamespaceAttributes {
    let mut attributes = NamespaceAttributes::empty();
    attributes.set(
        NamespaceAttributes::WRITE_PROTECTED,
        namespace.is_write_protected(),
    );
    attributes
}

fn capacity_bytes(namespace: &Namespace) -> u128 {
    u128::from(namespace.geometry.lbas).saturating_mul(namespace.geometry.lba_bytes.into())
}

/// The NSIDs above `nsid`.
fn write_list(controller: &Controller, nsid: u32, page: &mut [u8]) -> Result<(), CommandError> {
    if nsid >= 0xFFFF_FFFE {
        return Err(invalid_namespace(nsid, "at most FFFFFFFDh"));
    }
    let mut list = NamespaceList::new_zeroed();
    list.fill(
        controller
            .namespaces
            .iter()
            .map(|namespace| namespace.nsid)
            .filter(|other| *other > nsid),
    );
    write(page, list.as_bytes());
    Ok(())
}

/// An active namespace, `None` for an NSID that could be one. NVMe Base 2.1, section 3.2.1
/// (valid, active and inactive NSIDs).
fn possible(controller: &Controller, nsid: u32) -> Result<Option<&Namespace>, CommandError> {
    if nsid == 0 || nsid > NAMESPACES_MAX {
        return Err(invalid_namespace(nsid, "1 to NN"));
    }
    Ok(controller.namespaces.find(nsid))
}

fn active(controller: &Controller, nsid: u32) -> Result<&Namespace, CommandError> {
    controller
        .namespaces
        .find(nsid)
        .ok_or_else(|| invalid_namespace(nsid, "an active namespace"))
}

fn invalid_namespace(nsid: u32, expected: &'static str) -> CommandError {
    CommandError {
        status: Status::INVALID_NAMESPACE_OR_FORMAT.dnr(),
        location: ErrorLocation::sqe(4),
        field: "NSID",
        value: nsid.into(),
        expected,
    }
}

fn require_nvm(identify: &Identify) -> Result<(), CommandError> {
    if identify.csi == Csi::NVM.0 {
        return Ok(());
    }
    Err(CommandError::invalid_field(
        "CSI",
        47,
        identify.csi.into(),
        "0 (NVM command set)",
    ))
}

fn unsupported(cns: Cns) -> CommandError {
    CommandError::invalid_field("CNS", 40, cns.0.into(), "a supported structure")
}

fn write(page: &mut [u8], data: &[u8]) {
    for (to, from) in page.iter_mut().zip(data) {
        *to = *from;
    }
}

/// A count of 1 to 256 as a 0's based byte.
fn zeroes_based(count: usize) -> u8 {
    u16::try_from(count)
        .ok()
        .and_then(capstan_nvme_proto::zeroes_based::to_u8)
        .unwrap_or(0)
}
