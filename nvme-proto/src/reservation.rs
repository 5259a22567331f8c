//! Reservation commands and their data.
//!
//! Source: NVMe Base 2.1, sections 7.5 to 7.8.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits;
use crate::dataset::too_short;
use crate::error::CommandError;
use crate::macros::open_enum;
use crate::nqn::HostId;
use crate::sqe::Sqe;
use crate::zeroes_based;

open_enum! {
    /// Reservation Type (RTYPE).
    pub struct ReservationType(u8) {
        NONE = 0 => "No reservation",
        WRITE_EXCLUSIVE = 1 => "Write Exclusive",
        EXCLUSIVE_ACCESS = 2 => "Exclusive Access",
        WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 3 => "Write Exclusive - Registrants Only",
        EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 4 => "Exclusive Access - Registrants Only",
        WRITE_EXCLUSIVE_ALL_REGISTRANTS = 5 => "Write Exclusive - All Registrants",
        EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 6 => "Exclusive Access - All Registrants",
    }
}

/// RREGA, Reservation Register Action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegisterAction {
    /// 000b: register NRKEY.
    Register,
    /// 001b: unregister.
    Unregister,
    /// 010b: replace CRKEY by NRKEY.
    Replace,
}

/// CPTPL, Change Persist Through Power Loss State.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChangePtpl {
    /// 00b: no change.
    NoChange,
    /// 10b: reservations and registrations end with power.
    Clear,
    /// 11b: reservations and registrations persist.
    Set,
}

/// RACQA, Reservation Acquire Action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AcquireAction {
    /// 000b: acquire.
    Acquire,
    /// 001b: preempt the holder with PRKEY.
    Preempt,
    /// 010b: preempt, and abort the commands of those preempted.
    PreemptAndAbort,
}

/// RRELA, Reservation Release Action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReleaseAction {
    /// 000b: release.
    Release,
    /// 001b: clear the reservation and all registrations.
    Clear,
}

/// Reservation Register. NVMe Base 2.1, section 7.6. Its data is [`RegisterData`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReservationRegister {
    /// Namespace.
    pub nsid: u32,
    /// RREGA.
    pub action: RegisterAction,
    /// IEKEY, Ignore Existing Key.
    pub ignore_existing_key: bool,
    /// CPTPL.
    pub change_ptpl: ChangePtpl,
}

/// Reservation Acquire. NVMe Base 2.1, section 7.5. Its data is [`AcquireData`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReservationAcquire {
    /// Namespace.
    pub nsid: u32,
    /// RACQA.
    pub action: AcquireAction,
    /// IEKEY, Ignore Existing Key.
    pub ignore_existing_key: bool,
    /// RTYPE.
    pub reservation_type: ReservationType,
}

/// Reservation Release. NVMe Base 2.1, section 7.7. Its data is [`ReleaseData`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReservationRelease {
    /// Namespace.
    pub nsid: u32,
    /// RRELA.
    pub action: ReleaseAction,
    /// IEKEY, Ignore Existing Key.
    pub ignore_existing_key: bool,
    /// RTYPE.
    pub reservation_type: ReservationType,
}

/// Reservation Report. NVMe Base 2.1, section 7.8. Its data is a [`ReservationStatus`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReservationReport {
    /// Namespace.
    pub nsid: u32,
    /// Bytes to return: a multiple of 4, 4 to 2^34 (on the wire dwords, 0's based).
    pub length_bytes: u64,
    /// EDS, Extended Data Structure: with 128-bit host identifiers. Fabrics requires it.
    pub extended: bool,
}

/// Byte 40: the action and IEKEY.
const ACTION_BYTE: u8 = 40;
/// Byte 41: RTYPE.
const RTYPE_BYTE: u8 = 41;
/// Byte 43: CPTPL.
const CPTPL_BYTE: u8 = 43;

fn invalid_action<T>(
    field: &'static str,
    cdw10: u32,
    last: &'static str,
) -> Result<T, CommandError> {
    Err(CommandError::invalid_field(
        field,
        ACTION_BYTE,
        u64::from(bits::field(cdw10, 0, 3)),
        last,
    ))
}

fn reservation_type(cdw10: u32) -> ReservationType {
    ReservationType(bits::byte(cdw10, 8))
}

impl ReservationRegister {
    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        let cdw10 = sqe.cdw10.get();
        let action = match bits::field(cdw10, 0, 3) {
            0 => RegisterAction::Register,
            1 => RegisterAction::Unregister,
            2 => RegisterAction::Replace,
            _ => return invalid_action("RREGA", cdw10, "0 to 2"),
        };
        let change_ptpl = match bits::field(cdw10, 30, 2) {
            0b00 => ChangePtpl::NoChange,
            0b10 => ChangePtpl::Clear,
            0b11 => ChangePtpl::Set,
            reserved => {
                let value = u64::from(reserved);
                return Err(CommandError::invalid_field(
                    "CPTPL",
                    CPTPL_BYTE,
                    value,
                    "0, 2 or 3",
                ));
            }
        };
        Ok(Self {
            nsid: sqe.nsid.get(),
            action,
            ignore_existing_key: bits::bit(cdw10, 3),
            change_ptpl,
        })
    }

    pub(crate) fn encode(&self, sqe: &mut Sqe) {
        let action = match self.action {
            RegisterAction::Register => 0,
            RegisterAction::Unregister => 1,
            RegisterAction::Replace => 2,
        };
        let cptpl = match self.change_ptpl {
            ChangePtpl::NoChange => 0b00,
            ChangePtpl::Clear => 0b10,
            ChangePtpl::Set => 0b11,
        };
        sqe.cdw10 =
            (action | bits::flag(self.ignore_existing_key, 3) | bits::place(cptpl, 30, 2)).into();
    }
}

impl ReservationAcquire {
    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        let cdw10 = sqe.cdw10.get();
        let action = match bits::field(cdw10, 0, 3) {
            0 => AcquireAction::Acquire,
            1 => AcquireAction::Preempt,
            2 => AcquireAction::PreemptAndAbort,
            _ => return invalid_action("RACQA", cdw10, "0 to 2"),
        };
        let reservation_type = reservation_type(cdw10);
        if !matches!(reservation_type.0, 1..=6) {
            let value = u64::from(reservation_type.0);
            return Err(CommandError::invalid_field(
                "RTYPE", RTYPE_BYTE, value, "1 to 6",
            ));
        }
        Ok(Self {
            nsid: sqe.nsid.get(),
            action,
            ignore_existing_key: bits::bit(cdw10, 3),
            reservation_type,
        })
    }

    pub(crate) fn encode(&self, sqe: &mut Sqe) {
        let action = match self.action {
            AcquireAction::Acquire => 0,
            AcquireAction::Preempt => 1,
            AcquireAction::PreemptAndAbort => 2,
        };
        sqe.cdw10 = (action
            | bits::flag(self.ignore_existing_key, 3)
            | bits::place(u32::from(self.reservation_type.0), 8, 8))
        .into();
    }
}

impl ReservationRelease {
    /// RTYPE is left as it is: a Release with a type that is not the reservation's is refused by
    /// the controller, and a Clear ignores it.
    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        let cdw10 = sqe.cdw10.get();
        let action = match bits::field(cdw10, 0, 3) {
            0 => ReleaseAction::Release,
            1 => ReleaseAction::Clear,
            _ => return invalid_action("RRELA", cdw10, "0 or 1"),
        };
        Ok(Self {
            nsid: sqe.nsid.get(),
            action,
            ignore_existing_key: bits::bit(cdw10, 3),
            reservation_type: reservation_type(cdw10),
        })
    }

    pub(crate) fn encode(&self, sqe: &mut Sqe) {
        let action = match self.action {
            ReleaseAction::Release => 0,
            ReleaseAction::Clear => 1,
        };
        sqe.cdw10 = (action
            | bits::flag(self.ignore_existing_key, 3)
            | bits::place(u32::from(self.reservation_type.0), 8, 8))
        .into();
    }
}

impl ReservationReport {
    pub(crate) fn parse(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid.get(),
            length_bytes: zeroes_based::from_u32(sqe.cdw10.get()).saturating_mul(4),
            extended: bits::bit(sqe.cdw11.get(), 0),
        }
    }

    pub(crate) fn encode(&self, sqe: &mut Sqe) {
        let numd = self.length_bytes.div_ceil(4).clamp(1, 1 << 32);
        sqe.cdw10 = zeroes_based::to_u32(numd).unwrap_or(u32::MAX).into();
        sqe.cdw11 = bits::flag(self.extended, 0).into();
    }
}

/// Data of Reservation Register, 16 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct RegisterData {
    /// CRKEY, Current Reservation Key.
    pub crkey: U64,
    /// NRKEY, New Reservation Key.
    pub nrkey: U64,
}

/// Data of Reservation Acquire, 16 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct AcquireData {
    /// CRKEY, Current Reservation Key.
    pub crkey: U64,
    /// PRKEY, Preempt Reservation Key.
    pub prkey: U64,
}

/// Data of Reservation Release, 8 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct ReleaseData {
    /// CRKEY, Current Reservation Key.
    pub crkey: U64,
}

const _: () = {
    assert!(size_of::<RegisterData>() == 16 && align_of::<RegisterData>() == 1);
    assert!(offset_of!(RegisterData, nrkey) == 8);
    assert!(size_of::<AcquireData>() == 16 && align_of::<AcquireData>() == 1);
    assert!(offset_of!(AcquireData, prkey) == 8);
    assert!(size_of::<ReleaseData>() == 8 && align_of::<ReleaseData>() == 1);
};

/// `parse` of a data structure from the data of a command.
macro_rules! data_parse {
    ($type:ident, $expected:literal) => {
        impl $type {
            /// From the data of the command; bytes after it are ignored.
            ///
            /// # Errors
            /// Data SGL Length Invalid when there are fewer bytes.
            pub fn parse(data: &[u8]) -> Result<&Self, CommandError> {
                match Self::ref_from_prefix(data) {
                    Ok((parsed, _rest)) => Ok(parsed),
                    Err(_) => Err(too_short(data, $expected)),
                }
            }
        }
    };
}
data_parse!(RegisterData, "10h bytes");
data_parse!(AcquireData, "10h bytes");
data_parse!(ReleaseData, "8 bytes");

/// Head of the Reservation Status data structure, 24 bytes; with EDS 40 reserved bytes follow.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct ReservationStatusHeader {
    /// GEN, Generation: counts the register, acquire and release actions.
    pub generation: U32,
    /// RTYPE, or 0 when there is no reservation.
    pub rtype: u8,
    /// REGSTRNT, Number of Registrants.
    pub registrants: U16,
    reserved7: [u8; 2],
    /// PTPLS, Persist Through Power Loss State.
    pub ptpls: u8,
    reserved10: [u8; 14],
}

/// A registrant, 24 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Registrant {
    /// Controller Identifier; FFFFh of a dynamic controller that has no association now.
    pub cntlid: U16,
    /// RCSTS: bit 0 set when this registrant holds the reservation.
    pub rcsts: u8,
    reserved3: [u8; 5],
    /// 64-bit Host Identifier.
    pub hostid: U64,
    /// Reservation Key.
    pub rkey: U64,
}

/// A registrant of the extended data structure, 64 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct ExtendedRegistrant {
    /// Controller Identifier; FFFFh of a dynamic controller that has no association now.
    pub cntlid: U16,
    /// RCSTS: bit 0 set when this registrant holds the reservation.
    pub rcsts: u8,
    reserved3: [u8; 5],
    /// Reservation Key.
    pub rkey: U64,
    /// 128-bit Host Identifier.
    pub hostid: HostId,
    reserved32: [u8; 32],
}

const _: () = {
    assert!(size_of::<ReservationStatusHeader>() == 24);
    assert!(align_of::<ReservationStatusHeader>() == 1);
    assert!(offset_of!(ReservationStatusHeader, rtype) == 4);
    assert!(offset_of!(ReservationStatusHeader, registrants) == 5);
    assert!(offset_of!(ReservationStatusHeader, ptpls) == 9);
    assert!(size_of::<Registrant>() == 24 && align_of::<Registrant>() == 1);
    assert!(offset_of!(Registrant, rcsts) == 2);
    assert!(offset_of!(Registrant, hostid) == 8);
    assert!(offset_of!(Registrant, rkey) == 16);
    assert!(size_of::<ExtendedRegistrant>() == 64 && align_of::<ExtendedRegistrant>() == 1);
    assert!(offset_of!(ExtendedRegistrant, rcsts) == 2);
    assert!(offset_of!(ExtendedRegistrant, rkey) == 8);
    assert!(offset_of!(ExtendedRegistrant, hostid) == 16);
};

impl ReservationStatusHeader {
    /// Bytes before the first [`ExtendedRegistrant`] of an extended data structure.
    pub const EXTENDED_BYTES: usize = 64;

    /// A header, its reserved bytes zero.
    #[must_use]
    pub fn new(generation: u32, rtype: ReservationType, registrants: u16, ptpl: bool) -> Self {
        Self {
            generation: generation.into(),
            rtype: rtype.0,
            registrants: registrants.into(),
            ptpls: u8::from(ptpl),
            ..Self::new_zeroed()
        }
    }
}

impl Registrant {
    /// A registrant, its reserved bytes zero.
    #[must_use]
    pub fn new(cntlid: u16, holds_reservation: bool, hostid: u64, rkey: u64) -> Self {
        Self {
            cntlid: cntlid.into(),
            rcsts: u8::from(holds_reservation),
            hostid: hostid.into(),
            rkey: rkey.into(),
            ..Self::new_zeroed()
        }
    }
}

impl ExtendedRegistrant {
    /// A registrant, its reserved bytes zero.
    #[must_use]
    pub fn new(cntlid: u16, holds_reservation: bool, hostid: HostId, rkey: u64) -> Self {
        Self {
            cntlid: cntlid.into(),
            rcsts: u8::from(holds_reservation),
            rkey: rkey.into(),
            hostid,
            ..Self::new_zeroed()
        }
    }
}

/// What a Reservation Report returned, as a host reads it.
#[derive(Clone, Copy, Debug)]
pub struct ReservationStatus<'a> {
    /// The head.
    pub header: &'a ReservationStatusHeader,
    /// The registrants that fit the data; `header.registrants` says how many there are.
    pub registrants: Registrants<'a>,
}

/// The registrants of a [`ReservationStatus`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registrants<'a> {
    /// Without EDS.
    Short(&'a [Registrant]),
    /// With EDS.
    Extended(&'a [ExtendedRegistrant]),
}

impl<'a> ReservationStatus<'a> {
    /// From the data of a Reservation Report with `extended` as its EDS. A list cut short by the
    /// length asked for is given as far as it goes.
    ///
    /// # Errors
    /// Data SGL Length Invalid when there are fewer bytes than the head has.
    pub fn parse(data: &'a [u8], extended: bool) -> Result<Self, CommandError> {
        let too_short = || too_short(data, "18h bytes, or 40h with EDS");
        let (header, rest) =
            ReservationStatusHeader::ref_from_prefix(data).map_err(|_| too_short())?;
        let count = usize::from(header.registrants.get());
        let registrants = if extended {
            let (_reserved, rest) = <[u8; 40]>::ref_from_prefix(rest).map_err(|_| too_short())?;
            let fitting = rest
                .len()
                .checked_div(size_of::<ExtendedRegistrant>())
                .unwrap_or(0);
            <[ExtendedRegistrant]>::ref_from_prefix_with_elems(rest, count.min(fitting))
                .map(|(list, _rest)| Registrants::Extended(list))
                .map_err(|_| too_short())?
        } else {
            let fitting = rest.len().checked_div(size_of::<Registrant>()).unwrap_or(0);
            <[Registrant]>::ref_from_prefix_with_elems(rest, count.min(fitting))
                .map(|(list, _rest)| Registrants::Short(list))
                .map_err(|_| too_short())?
        };
        Ok(Self {
            header,
            registrants,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::error::ErrorLocation;
    use crate::opcode::IoOpcode;
    use crate::status::Status;
    use std::vec::Vec;

    fn sqe(opcode: IoOpcode, cdw10: u32) -> Sqe {
        let mut sqe = Sqe::new(opcode.0, 1, 1);
        sqe.cdw10 = cdw10.into();
        sqe
    }

    #[test]
    fn reserved_values_are_refused_where_they_are() {
        let register =
            |cdw10| ReservationRegister::parse(&sqe(IoOpcode::RESERVATION_REGISTER, cdw10));
        let acquire = |cdw10| ReservationAcquire::parse(&sqe(IoOpcode::RESERVATION_ACQUIRE, cdw10));
        let release = |cdw10| ReservationRelease::parse(&sqe(IoOpcode::RESERVATION_RELEASE, cdw10));
        for cdw10 in 3..8 {
            assert_eq!(
                register(cdw10).unwrap_err().location,
                ErrorLocation::sqe(40)
            );
            assert_eq!(
                acquire(0x100 | cdw10).unwrap_err().location,
                ErrorLocation::sqe(40)
            );
            assert_eq!(release(cdw10).unwrap_err().location, ErrorLocation::sqe(40));
        }
        assert_eq!(
            register(1 << 30).unwrap_err().location,
            ErrorLocation::sqe(43)
        );
        for rtype in [0, 7, 255] {
            let error = acquire(rtype << 8).unwrap_err();
            assert_eq!(error.location, ErrorLocation::sqe(41));
            assert_eq!(error.status, Status::INVALID_FIELD.dnr());
        }
        assert_eq!(
            release(0x0001).map(|command| command.action),
            Ok(ReleaseAction::Clear)
        );
    }

    #[test]
    fn data_needs_its_whole_length() {
        let data = AcquireData {
            crkey: 1.into(),
            prkey: 2.into(),
        };
        assert_eq!(AcquireData::parse(data.as_bytes()), Ok(&data));
        let status = Status::DATA_SGL_LENGTH_INVALID.dnr();
        assert_eq!(AcquireData::parse(&[0; 15]).unwrap_err().status, status);
        assert_eq!(RegisterData::parse(&[]).unwrap_err().status, status);
        assert_eq!(ReleaseData::parse(&[0; 7]).unwrap_err().status, status);
    }

    #[test]
    fn reports_give_the_registrants_that_arrived() {
        let header = ReservationStatusHeader::new(9, ReservationType::WRITE_EXCLUSIVE, 3, true);
        let host = HostId([7; 16]);
        let mut extended: Vec<u8> = header.as_bytes().to_vec();
        extended.resize(ReservationStatusHeader::EXTENDED_BYTES, 0);
        extended.extend_from_slice(ExtendedRegistrant::new(1, true, host, 0x55).as_bytes());
        extended.extend_from_slice(&[0; 63]);
        let status = ReservationStatus::parse(&extended, true).unwrap();
        assert_eq!(status.header, &header);
        let expected = [ExtendedRegistrant::new(1, true, host, 0x55)];
        assert_eq!(status.registrants, Registrants::Extended(&expected));

        let mut short: Vec<u8> = header.as_bytes().to_vec();
        for cntlid in 0..5 {
            short.extend_from_slice(Registrant::new(cntlid, false, 1, 2).as_bytes());
        }
        let status = ReservationStatus::parse(&short, false).unwrap();
        assert!(matches!(status.registrants, Registrants::Short(list) if list.len() == 3));

        assert!(ReservationStatus::parse(&extended[..63], true).is_err());
        assert!(ReservationStatus::parse(&short[..23], false).is_err());
    }
}
