//! Controller properties: what Property Get reads, and what a host may write to CC.
//! NVMe Base 2.1, section 3.1.4.

use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::fabrics::{PropertyGet, PropertySet};
use capstan_nvme_proto::property::{
    Cap, Cc, CommandSetSelected, Crto, Property, ShutdownNotification, Version,
};

use super::{Controller, ControllerEvent, ControllerKind, ControllerState};
use crate::bounds::READY_TIMEOUT_500MS;

/// The specification version this controller claims: VS and Identify Controller VER.
pub(crate) const VERSION: Version = Version::V2_0;

/// Byte of the submission queue entry where OFST starts.
const OFST_BYTE: u8 = 44;
/// Byte of the submission queue entry where VALUE starts.
const VALUE_BYTE: u8 = 48;

impl Controller {
    /// CAP for queues of up to `mqes` entries.
    fn cap(&self, mqes: u16) -> Cap {
        Cap {
            mqes: mqes.into(),
            cqr: true,
            to_500ms: READY_TIMEOUT_500MS,
            css: match self.kind {
                ControllerKind::Io => Cap::CSS_NVM | Cap::CSS_IOCS,
                ControllerKind::Discovery => Cap::CSS_NVM | Cap::CSS_NOIO,
            },
            crwms: true,
            ..Cap::decode(0)
        }
    }

    /// The value of a property.
    pub(crate) fn property(&self, get: PropertyGet, mqes: u16) -> Result<u64, CommandError> {
        if get.property.size() != Some(get.size) {
            return Err(unknown(get.property));
        }
        Ok(match get.property {
            Property::CAP => self.cap(mqes).encode(),
            Property::VS => VERSION.encode().into(),
            Property::CC => self.cc.encode().into(),
            Property::CSTS => self.state.csts(self.was_ready).encode().into(),
            Property::CRTO => Crto {
                crwmt_500ms: READY_TIMEOUT_500MS.into(),
                crimt_500ms: 0,
            }
            .encode()
            .into(),
            // CAP.NSSRS and CAP.NSSS are zero, so NSSR and NSSD are not there.
            other => return Err(unknown(other)),
        })
    }

    /// Checks a Property Set and says what it makes happen. Only CC can be written.
    pub(crate) fn check_property_set(
        &self,
        set: PropertySet,
    ) -> Result<(Cc, Option<ControllerEvent>), CommandError> {
        if set.property != Property::CC || set.property.size() != Some(set.size) {
            return Err(CommandError::invalid_field(
                "OFST",
                OFST_BYTE,
                set.property.0.into(),
                "14h (CC), the one property that can be written, with a size of 4 bytes",
            ));
        }
        let value = u32::try_from(set.value).unwrap_or(u32::MAX);
        let cc = Cc::decode(value);
        let shutdown_begins = self.cc.shn == ShutdownNotification::NONE
            && cc.shn != ShutdownNotification::NONE
            && !matches!(
                self.state,
                ControllerState::ShuttingDown | ControllerState::Shutdown
            );
        let event = match (self.cc.en, cc.en) {
            (true, false) => Some(ControllerEvent::ResetRequested),
            (false, true) => {
                self.check_enable(&cc, set.value)?;
                Some(ControllerEvent::Enabled)
            }
            (true, true) | (false, false) if shutdown_begins => {
                Some(ControllerEvent::ShutdownRequested)
            }
            (true, true) | (false, false) => None,
        };
        if cc.shn.name().is_none() {
            return Err(invalid_cc("CC.SHN", cc.shn.0.into(), "00b, 01b or 10b"));
        }
        Ok((cc, event))
    }

    /// What CC may be when EN goes from 0 to 1. Checked here and answered with a status, rather
    /// than with CSTS.CFS, because over fabrics the host sees the status.
    fn check_enable(&self, cc: &Cc, value: u64) -> Result<(), CommandError> {
        let css = match self.kind {
            ControllerKind::Io => [CommandSetSelected::NVM, CommandSetSelected::ALL_SUPPORTED],
            ControllerKind::Discovery => [CommandSetSelected::NVM, CommandSetSelected::ADMIN_ONLY],
        };
        if !css.contains(&cc.css) {
            return Err(invalid_cc("CC.CSS", cc.css.0.into(), "what CAP.CSS offers"));
        }
        if cc.mps != 0 {
            return Err(invalid_cc("CC.MPS", cc.mps.into(), "0 (pages of 4 KiB)"));
        }
        if cc.ams != 0 {
            return Err(invalid_cc("CC.AMS", cc.ams.into(), "0 (round robin)"));
        }
        if cc.crime {
            return Err(invalid_cc("CC.CRIME", value, "0, as CAP.CRMS says"));
        }
        if cc.shn != ShutdownNotification::NONE {
            return Err(invalid_cc("CC.SHN", cc.shn.0.into(), "00b when enabling"));
        }
        // A discovery controller has no I/O queues, so its entry sizes mean nothing; hosts write
        // both the sizes and zeros.
        if self.kind == ControllerKind::Io {
            if cc.iosqes != 6 {
                return Err(invalid_cc("CC.IOSQES", cc.iosqes.into(), "6 (64 bytes)"));
            }
            if cc.iocqes != 4 {
                return Err(invalid_cc("CC.IOCQES", cc.iocqes.into(), "4 (16 bytes)"));
            }
        }
        Ok(())
    }
}

fn invalid_cc(field: &'static str, value: u64, expected: &'static str) -> CommandError {
    CommandError::invalid_field(field, VALUE_BYTE, value, expected)
}

fn unknown(property: Property) -> CommandError {
    CommandError::invalid_field(
        "OFST",
        OFST_BYTE,
        property.0.into(),
        "CAP with 8 bytes, or VS, CC, CSTS or CRTO with 4",
    )
}
