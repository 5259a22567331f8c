//! SMART / Health Information (LID 02h): what really was counted, over the whole NVM subsystem and
//! its life, or over that of one namespace (Identify Controller LPA bit 0).

use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::log::HealthLog;
use capstan_nvme_proto::sqe::NSID_BROADCAST;

use crate::ControllerId;
use crate::control::{Target, gone};
use crate::wire::wire;

const MICROSECONDS_PER_HOUR: u64 = 3_600_000_000;
/// 25 °C. There is no one medium with a sensor to ask, and monitors take 0 K for a reading.
const COMPOSITE_TEMPERATURE_KELVINS: u16 = 298;

impl Target {
    pub(super) fn health_page(
        &self,
        id: ControllerId,
        nsid: u32,
        now_us: u64,
    ) -> Result<HealthLog, CommandError> {
        let controller = self.controller(id).ok_or_else(gone)?;
        let subnqn = &controller.association.subnqn;
        let (totals, warning) = match nsid {
            0 | NSID_BROADCAST => (self.totals(subnqn), self.critical_warning(id)),
            nsid => {
                let namespace = controller.feature_namespace(nsid)?;
                let warning = self.critical_warning_of(namespace.backend);
                (self.totals_of(subnqn, nsid), warning)
            }
        };
        let hours = now_us
            .saturating_sub(self.started_us())
            .checked_div(MICROSECONDS_PER_HOUR)
            .unwrap_or(0);
        Ok(wire!(HealthLog {
            critical_warning: warning.bits(),
            composite_temperature_kelvins: COMPOSITE_TEMPERATURE_KELVINS.into(),
            available_spare_percent: 100,
            data_units_read: HealthLog::data_units(totals.read_bytes.into()).into(),
            data_units_written: HealthLog::data_units(totals.written_bytes.into()).into(),
            host_read_commands: u128::from(totals.read_commands).into(),
            host_write_commands: u128::from(totals.write_commands).into(),
            power_cycles: 1.into(),
            power_on_hours: u128::from(hours).into(),
            media_errors: u128::from(totals.media_errors).into(),
            error_log_entries: u128::from(controller.shared.errors()).into(),
        }))
    }
}
