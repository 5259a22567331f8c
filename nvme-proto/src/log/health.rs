//! SMART / Health Information (LID 02h).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags! {
    /// Critical Warning.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CriticalWarning: u8 {
        /// Available spare is below its threshold.
        const AVAILABLE_SPARE = 1 << 0;
        /// A temperature is at or over (or under) its threshold.
        const TEMPERATURE = 1 << 1;
        /// Reliability is degraded.
        const RELIABILITY = 1 << 2;
        /// All media is read-only.
        const READ_ONLY = 1 << 3;
        /// The volatile memory backup device failed.
        const VOLATILE_MEMORY_BACKUP = 1 << 4;
        /// The persistent memory region is read-only or unreliable.
        const PERSISTENT_MEMORY = 1 << 5;
    }
}

/// SMART / Health Information log page, 512 bytes. NVMe Base 2.1, section 5.1.12.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct HealthLog {
    /// Critical Warning: see [`CriticalWarning`].
    pub critical_warning: u8,
    /// Composite Temperature in kelvins.
    pub composite_temperature_kelvins: U16,
    /// Available Spare in percent.
    pub available_spare_percent: u8,
    /// Available Spare Threshold in percent.
    pub available_spare_threshold_percent: u8,
    /// Percentage Used: may exceed 100.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_critical_warning: u8,
    reserved7: [u8; 25],
    /// Data Units Read, in units of 1000 times 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written, in units of 1000 times 512 bytes, rounded up.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_read_commands: U128,
    /// Host Write Commands.
    pub host_write_commands: U128,
    /// Controller Busy Time in minutes.
    pub controller_busy_minutes: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unexpected Power Losses (Unsafe Shutdowns).
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_minutes: U32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_minutes: U32,
    /// Temperature Sensors 1 to 8 in kelvins; 0 for a sensor that is not there.
    pub temperature_sensors_kelvins: [U16; 8],
    /// Thermal Management Temperature 1 Transition Count.
    pub tmt1_transitions: U32,
    /// Thermal Management Temperature 2 Transition Count.
    pub tmt2_transitions: U32,
    /// Total Time For Thermal Management Temperature 1 in seconds.
    pub tmt1_seconds: U32,
    /// Total Time For Thermal Management Temperature 2 in seconds.
    pub tmt2_seconds: U32,
    reserved232: [u8; 280],
}

const _: () = {
    assert!(size_of::<HealthLog>() == 512 && align_of::<HealthLog>() == 1);
    assert!(offset_of!(HealthLog, composite_temperature_kelvins) == 1);
    assert!(offset_of!(HealthLog, available_spare_percent) == 3);
    assert!(offset_of!(HealthLog, percentage_used) == 5);
    assert!(offset_of!(HealthLog, data_units_read) == 32);
    assert!(offset_of!(HealthLog, host_read_commands) == 64);
    assert!(offset_of!(HealthLog, controller_busy_minutes) == 96);
    assert!(offset_of!(HealthLog, unsafe_shutdowns) == 144);
    assert!(offset_of!(HealthLog, error_log_entries) == 176);
    assert!(offset_of!(HealthLog, warning_temperature_minutes) == 192);
    assert!(offset_of!(HealthLog, temperature_sensors_kelvins) == 200);
    assert!(offset_of!(HealthLog, tmt1_transitions) == 216);
    assert!(offset_of!(HealthLog, tmt2_seconds) == 228);
};

impl HealthLog {
    /// From the data of the command; `None` when there are fewer than 512 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(data).ok().map(|(log, _rest)| log)
    }

    /// Data units (of 1000 times 512 bytes, rounded up) for `bytes`.
    #[must_use]
    pub const fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_units_round_up() {
        assert_eq!(HealthLog::data_units(0), 0);
        assert_eq!(HealthLog::data_units(1), 1);
        assert_eq!(HealthLog::data_units(512_000), 1);
        assert_eq!(HealthLog::data_units(512_001), 2);
    }
}
