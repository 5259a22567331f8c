//! `capstan smart-log`, `error-log` and `effects-log`.

use anyhow::{Context, Result, bail};
use capstan_initiator::CommandData;
use capstan_initiator::DirectQueue;
use capstan_initiator::internals::health::warning_words;
use capstan_nvme_proto::command::{AdminCommand, GetLogPage};
use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::log::{
    CommandEffects, CommandEffectsLog, CriticalWarning, ErrorInformationEntry, HealthLog, LogPageId,
};
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use clap::Args;
use serde_json::{Value, json};

use super::args::{ConnectArgs, OutputArgs};
use super::identify::{active_nsids_of, not_active};
use super::output::{self, Fields};
use super::values::within;

/// 0 °C in kelvins, as temperatures are rounded in the log page.
const ZERO_CELSIUS_KELVINS: i32 = 273;
/// Bytes of the SMART / Health Information log page.
pub(super) const HEALTH_BYTES: u32 = 512;

/// Arguments of `smart-log`.
#[derive(Args, Debug)]
pub(crate) struct SmartLog {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Namespace [default: the whole controller].
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = NSID_BROADCAST, value_parser = within(0..=NSID_BROADCAST))]
    namespace_id: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `error-log`.
#[derive(Args, Debug)]
pub(crate) struct ErrorLog {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Entries to show.
    #[arg(
        short = 'e',
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = within::<u32>(1..=1024)
    )]
    log_entries: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `effects-log`.
#[derive(Args, Debug)]
pub(crate) struct EffectsLog {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn log_page(
    queue: &mut DirectQueue,
    lid: LogPageId,
    nsid: u32,
    len_bytes: u32,
) -> Result<Vec<u8>> {
    let command = AdminCommand::GetLogPage(GetLogPage {
        nsid,
        rae: true,
        ..GetLogPage::new(lid, len_bytes.into())
    });
    let data = CommandData::FromController(len_bytes);
    let reply = queue
        .admin(command.encode(0, Sgl::EMPTY), data)
        .with_context(|| format!("Get Log Page ({lid})"))?;
    Ok(reply.data)
}

impl SmartLog {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = self.connect.admin_queue()?;
        let lid = LogPageId::HEALTH;
        let nsid = self.namespace_id;
        let page = log_page(&mut queue, lid, nsid, HEALTH_BYTES);
        let page = page.map_err(|error| {
            let is_active = match nsid {
                0 | NSID_BROADCAST => true,
                _ => active_nsids_of(&mut queue, 0).map_or(true, |all| all.contains(&nsid)),
            };
            match is_active {
                true => error,
                false => error.context(not_active(&mut queue, nsid)),
            }
        });
        queue.close();
        let data = page?;
        let Some(log) = HealthLog::from_data(&data) else {
            bail!("the log page has {} bytes, expected 512", data.len());
        };
        health_fields(log).print(self.output.is_json())
    }
}

fn health_fields(log: &HealthLog) -> Fields {
    let mut f = Fields::default();
    let warning = CriticalWarning::from_bits_retain(log.critical_warning);
    f.value(
        "critical_warning",
        log.critical_warning.into(),
        match warning.is_empty() {
            true => "0x0".to_owned(),
            false => format!("{warning:#x}: {}", warning_words(warning)),
        },
    );
    let kelvins = log.composite_temperature_kelvins.get();
    let celsius = i32::from(kelvins) - ZERO_CELSIUS_KELVINS;
    f.value(
        "temperature",
        kelvins.into(),
        match kelvins {
            0 => "not reported".to_owned(),
            _ => format!("{celsius} °C ({kelvins} K)"),
        },
    );
    f.number("avail_spare", log.available_spare_percent);
    f.number("spare_thresh", log.available_spare_threshold_percent);
    f.number("percent_used", log.percentage_used);
    f.flags(
        "endurance_grp_critical_warning_summary",
        log.endurance_group_critical_warning,
    );
    units(&mut f, "data_units_read", log.data_units_read.get());
    units(&mut f, "data_units_written", log.data_units_written.get());
    f.big("host_read_commands", log.host_read_commands.get());
    f.big("host_write_commands", log.host_write_commands.get());
    f.big("controller_busy_time", log.controller_busy_minutes.get());
    f.big("power_cycles", log.power_cycles.get());
    f.big("power_on_hours", log.power_on_hours.get());
    f.big("unsafe_shutdowns", log.unsafe_shutdowns.get());
    f.big("media_errors", log.media_errors.get());
    f.big("num_err_log_entries", log.error_log_entries.get());
    f.number("warning_temp_time", log.warning_temperature_minutes.get());
    f.number("critical_comp_time", log.critical_temperature_minutes.get());
    f
}

/// Units of 1000 times 512 bytes, and what that is.
fn units(f: &mut Fields, name: &'static str, units: u128) {
    let gigabytes = units.saturating_mul(512_000) / 1_000_000_000;
    f.value(
        name,
        u64::try_from(units).map_or_else(|_| units.to_string().into(), Value::from),
        format!("{units} ({gigabytes} GB)"),
    );
}

impl ErrorLog {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = self.connect.admin_queue()?;
        let entry_bytes = u32::try_from(ErrorInformationEntry::SIZE_BYTES)?;
        let lid = LogPageId::ERROR_INFORMATION;
        let len_bytes = self.log_entries * entry_bytes;
        let data = log_page(&mut queue, lid, NSID_BROADCAST, len_bytes)?;
        queue.close();
        let entries: Vec<_> = ErrorInformationEntry::parse_all(&data).collect();
        if self.output.is_json() {
            let errors: Vec<Value> = entries.into_iter().map(entry_json).collect();
            return output::json(&json!({ "errors": errors }));
        }
        if entries.is_empty() {
            return output::line("no errors");
        }
        for entry in entries {
            output::line(&entry_line(entry))?;
        }
        Ok(())
    }
}

fn entry_json(entry: &ErrorInformationEntry) -> Value {
    json!({
        "error_count": entry.error_count.get(),
        "sqid": entry.sqid.get(),
        "cmdid": entry.cid.get(),
        "status_field": entry.status().to_bits(),
        "status": entry.status().to_string(),
        "parm_error_location": entry.parameter_error_location.get(),
        "lba": entry.lba.get(),
        "nsid": entry.nsid.get(),
        "opcode": entry.opcode,
    })
}

fn entry_line(entry: &ErrorInformationEntry) -> String {
    let location = match entry.parameter_error_location.get().to_le_bytes() {
        [0xFF, 0xFF] => ErrorLocation::Unspecified,
        [byte, bit] => ErrorLocation::Sqe { byte, bit },
    };
    let opcode = match entry.version {
        // Which names an opcode has depends on the queue.
        1 if entry.sqid.get() == 0 => format!(", {}", AdminOpcode(entry.opcode)),
        1 => format!(", {}", IoOpcode(entry.opcode)),
        _ => String::new(),
    };
    format!(
        "#{}: queue {} CID {:#06x}{opcode}, namespace {:#x}, LBA {}: {} at {location}",
        entry.error_count,
        entry.sqid,
        entry.cid,
        entry.nsid,
        entry.lba,
        entry.status(),
    )
}

impl EffectsLog {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = self.connect.admin_queue()?;
        let len_bytes = u32::try_from(size_of::<CommandEffectsLog>())?;
        let lid = LogPageId::COMMAND_EFFECTS;
        let data = log_page(&mut queue, lid, 0, len_bytes)?;
        queue.close();
        let Some(log) = CommandEffectsLog::from_data(&data) else {
            bail!(
                "the log page has {} bytes, expected {len_bytes}",
                data.len()
            );
        };
        let admin = (0..=u8::MAX).map(|opcode| {
            let opcode = AdminOpcode(opcode);
            ("admin", opcode.0, opcode.to_string(), log.admin(opcode))
        });
        let io = (0..=u8::MAX).map(|opcode| {
            let opcode = IoOpcode(opcode);
            ("io", opcode.0, opcode.to_string(), log.io(opcode))
        });
        let commands = admin.chain(io);
        let supported =
            commands.filter(|(.., effects)| effects.contains(CommandEffects::SUPPORTED));
        if self.output.is_json() {
            let commands: Vec<Value> = supported
                .map(|(set, opcode, name, effects)| {
                    json!({ "set": set, "opcode": opcode, "command": name, "effects": effects.bits() })
                })
                .collect();
            return output::json(&json!({ "commands": commands }));
        }
        output::table(
            &["set", "opcode", "command", "effects", "what it changes"],
            supported.map(|(set, opcode, name, effects)| {
                let changes = effects - CommandEffects::SUPPORTED;
                let names: Vec<_> = changes.iter_names().map(|(name, _)| name).collect();
                vec![
                    set.to_owned(),
                    format!("{opcode:#04x}"),
                    name,
                    format!("{:08x}", effects.bits()),
                    names.join(", "),
                ]
            }),
        )
    }
}
