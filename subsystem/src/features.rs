//! Features: what a host can set and ask for. NVMe Base 2.1, section 5.1.25.1.

use alloc::collections::BTreeMap;

use capstan_nvme_proto::command::{GetFeatures, SetFeatures};
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::features::{
    AsyncEventConfiguration, ErrorRecovery, FeatureCapabilities, FeatureId, FeatureSelect,
    HostBehaviorSupport, HostIdentifier, NumberOfQueues, PowerManagement,
    ReservationNotificationMask, TemperatureThreshold, VolatileWriteCache, WriteAtomicityNormal,
    WriteProtectionState,
};
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use capstan_nvme_proto::status::Status;
use zerocopy::FromBytes as _;

use crate::controller::{Controller, ControllerKind, KeepAlive};
use crate::identify::WARNING_TEMPERATURE_KELVINS;
use crate::log_page::reservation::Notifications;
use crate::namespace::Namespace;

/// Events that hosts get without asking: those whose loss would cost data or a path.
const DEFAULT_EVENTS: AsyncEventConfiguration =
    AsyncEventConfiguration::NAMESPACE_ATTRIBUTE.union(AsyncEventConfiguration::ANA_CHANGE);

/// Byte of the submission queue entry where FID is.
const FID_BYTE: u8 = 40;
/// Byte of the submission queue entry where SV is, in bit 7.
const SAVE_BYTE: u8 = 43;
/// Byte of the submission queue entry where the value is.
const VALUE_BYTE: u8 = 44;

/// The events a controller of this kind can send: Identify Controller OAES.
pub(crate) fn supported_events(kind: ControllerKind) -> AsyncEventConfiguration {
    match kind {
        // What only a host that asks for resets wants to hear.
        ControllerKind::Io => {
            DEFAULT_EVENTS.union(AsyncEventConfiguration::CROSS_CONTROLLER_RESET_COMPLETED)
        }
        ControllerKind::Discovery => AsyncEventConfiguration::DISCOVERY_LOG_CHANGE,
    }
}

/// The events a controller of this kind sends until the host says otherwise.
pub(crate) fn default_events(kind: ControllerKind) -> AsyncEventConfiguration {
    match kind {
        ControllerKind::Io => DEFAULT_EVENTS.union(AsyncEventConfiguration::RELIABILITY),
        ControllerKind::Discovery => AsyncEventConfiguration::empty(),
    }
}

/// Values of the features that nothing else remembers. A controller reset makes them new.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    arbitration: u32,
    /// Over and under temperature threshold of the composite temperature.
    temperature: [u16; 2],
    write_atomicity: u32,
    power: u32,
    /// Host Behavior Support, ACRE: the host waits as long as a status tells it to (CRD).
    pub(crate) acre: bool,
    /// Time Limited Error Recovery by NSID, for namespaces where the host set it.
    error_recovery: BTreeMap<u32, u16>,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            // No limit on the burst, equal weights.
            arbitration: 0b111,
            // WCTEMP, and no threshold beneath (NVMe Base 2.1, section 5.1.25.1.3).
            temperature: [WARNING_TEMPERATURE_KELVINS, 0],
            write_atomicity: 0,
            power: 0,
            acre: false,
            error_recovery: BTreeMap::new(),
        }
    }
}

/// The value of a feature: dword 0, or data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FeatureValue {
    Dword(u32),
    HostIdentifier,
    HostBehavior { acre: bool },
}

/// What a feature can do, if a controller of `kind` has it.
fn capabilities(fid: FeatureId, controller: &Controller) -> Option<FeatureCapabilities> {
    let (namespace_specific, changeable) = match (fid, controller.kind) {
        (
            FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION | FeatureId::KEEP_ALIVE_TIMER,
            ControllerKind::Io | ControllerKind::Discovery,
        ) => (false, true),
        (_, ControllerKind::Discovery) => return None,
        (FeatureId::VOLATILE_WRITE_CACHE, ControllerKind::Io)
            if !controller.has_volatile_write_cache() =>
        {
            return None;
        }
        (
            FeatureId::ARBITRATION
            | FeatureId::POWER_MANAGEMENT
            | FeatureId::TEMPERATURE_THRESHOLD
            | FeatureId::VOLATILE_WRITE_CACHE
            | FeatureId::NUMBER_OF_QUEUES
            | FeatureId::WRITE_ATOMICITY_NORMAL
            | FeatureId::HOST_BEHAVIOR_SUPPORT
            | FeatureId::IO_COMMAND_SET_PROFILE,
            ControllerKind::Io,
        ) => (false, true),
        (FeatureId::HOST_IDENTIFIER, ControllerKind::Io) => (false, false),
        (
            FeatureId::ERROR_RECOVERY
            | FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG
            | FeatureId::RESERVATION_NOTIFICATION_MASK
            | FeatureId::RESERVATION_PERSISTENCE,
            ControllerKind::Io,
        ) => (true, true),
        (_, ControllerKind::Io) => return None,
    };
    Some(FeatureCapabilities {
        saveable: false,
        namespace_specific,
        changeable,
    })
}

fn unsupported(fid: FeatureId) -> CommandError {
    CommandError::invalid_field("FID", FID_BYTE, fid.0.into(), "a supported feature")
}

fn invalid_value(field: &'static str, value: u32, expected: &'static str) -> CommandError {
    CommandError::invalid_field(field, VALUE_BYTE, value.into(), expected)
}

impl Controller {
    /// Features are back at their defaults: the controller was reset.
    pub(crate) fn reset_features(&mut self) {
        self.features = Features::default();
        self.notifications = Notifications::default();
        self.shared.set_write_cache_disabled(false);
    }

    pub(crate) fn has_volatile_write_cache(&self) -> bool {
        self.namespaces
            .iter()
            .any(|namespace| namespace.geometry.volatile_write_cache)
    }

    /// The namespaces a feature of namespaces is set for, or read from.
    fn check_feature_nsid(
        &self,
        nsid: u32,
        namespace_specific: bool,
        broadcast: bool,
    ) -> Result<(), CommandError> {
        let error = |status: Status, expected| CommandError {
            status: status.dnr(),
            location: ErrorLocation::sqe(4),
            field: "NSID",
            value: nsid.into(),
            expected,
        };
        if !namespace_specific {
            // A value for one namespace would silently hold for all of them. NVMe Base 2.1,
            // section 5.1.25 (Feature Not Namespace Specific).
            return match nsid {
                0 | NSID_BROADCAST => Ok(()),
                nsid if self.namespaces.find(nsid).is_some() => Err(error(
                    Status::FEATURE_NOT_NAMESPACE_SPECIFIC,
                    "0 or FFFFFFFFh",
                )),
                _ => Err(error(Status::INVALID_NAMESPACE_OR_FORMAT, "0 or FFFFFFFFh")),
            };
        }
        if nsid == NSID_BROADCAST && broadcast {
            return Ok(());
        }
        match self.namespaces.find(nsid) {
            Some(_) => Ok(()),
            None => Err(error(
                Status::INVALID_NAMESPACE_OR_FORMAT,
                "an active namespace",
            )),
        }
    }

    /// Get Features: the value that was asked for.
    pub(crate) fn feature(
        &self,
        get: &GetFeatures,
        io_queues: u16,
    ) -> Result<FeatureValue, CommandError> {
        let capabilities = capabilities(get.fid, self).ok_or_else(|| unsupported(get.fid))?;
        match get.select {
            FeatureSelect::SUPPORTED_CAPABILITIES => {
                return Ok(FeatureValue::Dword(capabilities.encode()));
            }
            // Nothing is saved, so the saved value is the default one.
            FeatureSelect::CURRENT | FeatureSelect::DEFAULT | FeatureSelect::SAVED => {}
            other => {
                return Err(CommandError::invalid_field(
                    "SEL",
                    41,
                    other.0.into(),
                    "0 to 3",
                ));
            }
        }
        if capabilities.namespace_specific {
            self.check_feature_nsid(get.nsid, true, false)?;
        }
        let fresh = Features::default();
        let is_current = get.select == FeatureSelect::CURRENT;
        let features = if is_current { &self.features } else { &fresh };
        Ok(FeatureValue::Dword(match get.fid {
            FeatureId::ARBITRATION => features.arbitration,
            FeatureId::POWER_MANAGEMENT => features.power,
            FeatureId::TEMPERATURE_THRESHOLD => {
                let asked = TemperatureThreshold::decode(get.cdw11);
                let at = temperature_index(asked, get.cdw11)?;
                features.temperature.get(at).copied().unwrap_or(0).into()
            }
            FeatureId::ERROR_RECOVERY => features
                .error_recovery
                .get(&get.nsid)
                .copied()
                .unwrap_or(0)
                .into(),
            FeatureId::VOLATILE_WRITE_CACHE => VolatileWriteCache {
                enabled: !(is_current && self.shared.is_write_cache_disabled()),
            }
            .encode(),
            FeatureId::NUMBER_OF_QUEUES => number_of_queues(io_queues),
            FeatureId::WRITE_ATOMICITY_NORMAL => features.write_atomicity,
            FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION => if is_current {
                self.events.configuration()
            } else {
                default_events(self.kind)
            }
            .bits(),
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.kato_ms(),
            FeatureId::HOST_BEHAVIOR_SUPPORT => {
                let acre = features.acre;
                return Ok(FeatureValue::HostBehavior { acre });
            }
            FeatureId::IO_COMMAND_SET_PROFILE => 0,
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                let namespace = self.feature_namespace(get.nsid)?;
                if is_current {
                    self.notifications.mask(namespace.nsid).bits()
                } else {
                    0
                }
            }
            // The current one is the subsystem's to say.
            FeatureId::RESERVATION_PERSISTENCE => {
                self.feature_namespace(get.nsid)?;
                0
            }
            FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => {
                let namespace = self.feature_namespace(get.nsid)?;
                if is_current && namespace.is_write_protected() || namespace.geometry.read_only {
                    WriteProtectionState::PROTECTED.encode()
                } else {
                    WriteProtectionState::NOT_PROTECTED.encode()
                }
            }
            FeatureId::HOST_IDENTIFIER => {
                if !HostIdentifier::decode(get.cdw11).extended {
                    return Err(invalid_value(
                        "EXHID",
                        get.cdw11,
                        "1 (fabrics has 128-bit host identifiers only)",
                    ));
                }
                return Ok(FeatureValue::HostIdentifier);
            }
            other => return Err(unsupported(other)),
        }))
    }

    /// The one namespace a feature of namespaces is about.
    pub(crate) fn feature_namespace(&self, nsid: u32) -> Result<&Namespace, CommandError> {
        self.namespaces.find(nsid).ok_or_else(|| CommandError {
            status: Status::INVALID_NAMESPACE_OR_FORMAT.dnr(),
            location: ErrorLocation::sqe(4),
            field: "NSID",
            value: nsid.into(),
            expected: "an active namespace",
        })
    }

    /// What every Set Features must fulfil, whatever the feature.
    pub(crate) fn check_set(&self, set: &SetFeatures) -> Result<(), CommandError> {
        let capabilities = capabilities(set.fid, self).ok_or_else(|| unsupported(set.fid))?;
        if set.save {
            return Err(CommandError {
                status: Status::FEATURE_IDENTIFIER_NOT_SAVEABLE.dnr(),
                location: ErrorLocation::Sqe {
                    byte: SAVE_BYTE,
                    bit: 7,
                },
                field: "SV",
                value: 1,
                expected: "0 (no feature is saved)",
            });
        }
        if !capabilities.changeable {
            // The Host Identifier came with Connect. NVMe Base 2.1, section 5.1.25.1.28.
            return Err(CommandError {
                status: Status::COMMAND_SEQUENCE_ERROR.dnr(),
                ..unsupported(set.fid)
            });
        }
        self.check_feature_nsid(set.nsid, capabilities.namespace_specific, true)?;
        if capabilities.namespace_specific {
            self.check_identified(set.nsid)?;
        }
        Ok(())
    }

    /// What is set for a namespace that the host has not identified may be meant for another one,
    /// as its I/O may.
    fn check_identified(&self, nsid: u32) -> Result<(), CommandError> {
        let mut namespaces = self.namespaces.iter();
        let refused = namespaces.find_map(|namespace| {
            let is_meant = nsid == NSID_BROADCAST || nsid == namespace.nsid;
            let refused = is_meant.then(|| namespace.gate.check_identified().err());
            refused.flatten()
        });
        match refused {
            Some(status) => Err(CommandError {
                status,
                location: ErrorLocation::sqe(4),
                field: "NSID",
                value: nsid.into(),
                expected: "namespaces that the host has identified in this association",
            }),
            None => Ok(()),
        }
    }

    /// Set Features, with the `data` of the host. Returns dword 0 of the response.
    pub(crate) fn set_feature(
        &mut self,
        set: &SetFeatures,
        data: &[u8],
        io_queues: u16,
        now_us: u64,
    ) -> Result<u32, CommandError> {
        self.check_set(set)?;
        let value = set.cdw11;
        match set.fid {
            FeatureId::ARBITRATION => self.features.arbitration = value,
            FeatureId::POWER_MANAGEMENT => {
                if PowerManagement::decode(value).power_state != 0 {
                    return Err(invalid_value("PS", value, "0, the one power state"));
                }
                self.features.power = value;
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let threshold = TemperatureThreshold::decode(value);
                let at = temperature_index(threshold, value)?;
                if let Some(place) = self.features.temperature.get_mut(at) {
                    *place = threshold.threshold_kelvins;
                }
            }
            FeatureId::ERROR_RECOVERY => self.set_error_recovery(set.nsid, value)?,
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                let mask = ReservationNotificationMask::from_bits_truncate(value);
                for namespace in self.namespaces.iter() {
                    if set.nsid == NSID_BROADCAST || set.nsid == namespace.nsid {
                        self.notifications.set_mask(namespace.nsid, mask);
                    }
                }
            }
            FeatureId::VOLATILE_WRITE_CACHE => {
                let enabled = VolatileWriteCache::decode(value).enabled;
                self.shared.set_write_cache_disabled(!enabled);
            }
            FeatureId::NUMBER_OF_QUEUES => {
                if !self.io_queues.is_empty() {
                    return Err(CommandError {
                        status: Status::COMMAND_SEQUENCE_ERROR.dnr(),
                        ..invalid_value("NSQR", value, "a request before any I/O queue exists")
                    });
                }
                NumberOfQueues::parse(value)?;
                return Ok(number_of_queues(io_queues));
            }
            FeatureId::WRITE_ATOMICITY_NORMAL => {
                self.features.write_atomicity = WriteAtomicityNormal::decode(value).encode();
            }
            FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION => {
                let wanted = AsyncEventConfiguration::from_bits_retain(value);
                self.events.configure(wanted);
            }
            FeatureId::HOST_BEHAVIOR_SUPPORT => self.features.acre = acre(data)?,
            FeatureId::KEEP_ALIVE_TIMER => {
                self.keep_alive = KeepAlive::new(self.kind.kato_ms(value), now_us);
            }
            FeatureId::IO_COMMAND_SET_PROFILE => {
                if value & 0x1FF != 0 {
                    return Err(CommandError {
                        status: Status::IO_COMMAND_SET_COMBINATION_REJECTED.dnr(),
                        ..invalid_value("IOCSCI", value, "0, the one combination")
                    });
                }
            }
            other => return Err(unsupported(other)),
        }
        Ok(0)
    }

    /// Time Limited Error Recovery is kept, and has no effect: reads are not retried here.
    fn set_error_recovery(&mut self, nsid: u32, value: u32) -> Result<(), CommandError> {
        let recovery = ErrorRecovery::decode(value);
        if recovery.dulbe {
            return Err(invalid_value(
                "DULBE",
                value,
                "0 (Identify Namespace NSFEAT does not offer it)",
            ));
        }
        for namespace in self.namespaces.iter() {
            if nsid == NSID_BROADCAST || nsid == namespace.nsid {
                self.features
                    .error_recovery
                    .insert(namespace.nsid, recovery.time_limit_100ms);
            }
        }
        Ok(())
    }
}

/// What the host does of what this controller offers: Advanced Command Retry (Identify Controller
/// CRDT1). NVMe Base 2.1, feature 16h (Host Behavior
/// Support). What else it says that it can do changes nothing.
fn acre(data: &[u8]) -> Result<bool, CommandError> {
    let refused = |field, offset, value: u16, expected| CommandError {
        status: Status::INVALID_FIELD.dnr(),
        location: ErrorLocation::Data { offset },
        field,
        value: value.into(),
        expected,
    };
    let Ok((behavior, _)) = HostBehaviorSupport::ref_from_prefix(data) else {
        return Err(refused("data", 0, 0, "512 bytes"));
    };
    match (behavior.acre, behavior.lbafee, behavior.cdfe.get()) {
        (acre @ 0..=1, 0, 0) => Ok(acre == 1),
        (0..=1, 0, cdfe) => Err(refused("CDFE", 4, cdfe, "0, no more Copy formats")),
        (0..=1, lbafee, _) => Err(refused(
            "LBAFEE",
            2,
            lbafee.into(),
            "0, no more LBA formats",
        )),
        (acre, ..) => Err(refused("ACRE", 0, acre.into(), "0 or 1")),
    }
}

/// There is one temperature, the composite one, with an over and an under threshold.
fn temperature_index(threshold: TemperatureThreshold, value: u32) -> Result<usize, CommandError> {
    if !matches!(threshold.sensor, 0 | 0xF) {
        return Err(invalid_value(
            "TMPSEL",
            value,
            "0 (Composite Temperature) or Fh",
        ));
    }
    match threshold.threshold_type {
        0 => Ok(0),
        1 => Ok(1),
        _ => Err(invalid_value("THSEL", value, "0 or 1")),
    }
}

fn number_of_queues(io_queues: u16) -> u32 {
    NumberOfQueues {
        submission: io_queues.into(),
        completion: io_queues.into(),
    }
    .encode()
}
