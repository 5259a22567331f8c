//! `capstan get-feature` and `admin-passthru`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use capstan_initiator::host::CommandData;
use capstan_nvme_proto::command::{AdminCommand, GetFeatures};
use capstan_nvme_proto::features::{
    AsyncEventConfiguration, FeatureId, FeatureSelect, NumberOfQueues,
};
use capstan_nvme_proto::opcode::{AdminOpcode, DataDirection};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use super::args::{ConnectArgs, OutputArgs, parse_number};
use super::identify::connect;
use super::output::{self, Fields};

/// Most bytes of data of one admin command.
const DATA_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `get-feature`.
#[derive(Args, Debug)]
pub(crate) struct GetFeature {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Feature identifier, like 0x0f.
    #[arg(short = 'f', long, value_name = "FID", value_parser = parse_number::<u8>)]
    feature_id: u8,
    /// Which value: 0 current, 1 default, 2 saved, 3 what can be done with it.
    #[arg(short = 'S', long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=3))]
    sel: u8,
    /// Namespace, for a feature of a namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 0)]
    namespace_id: u32,
    /// Command dword 11, for a feature of several values.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw11: u32,
    /// Bytes of data, for a feature that has more than a number.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = data_bytes())]
    data_len: u32,
    #[command(flatten)]
    output: OutputArgs,
}

fn data_bytes() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(0..=DATA_BYTES_MAX)
}

impl GetFeature {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = connect(&self.connect)?;
        let fid = FeatureId(self.feature_id);
        let command = AdminCommand::GetFeatures(GetFeatures {
            nsid: self.namespace_id,
            fid,
            select: FeatureSelect(self.sel),
            cdw11: self.cdw11,
            uuid_index: 0,
        });
        let data = match self.data_len {
            0 => CommandData::None,
            len_bytes => CommandData::FromController(len_bytes),
        };
        let reply = queue
            .admin(command.encode(0, Sgl::EMPTY), data)
            .with_context(|| format!("Get Features ({fid})"))?;
        queue.close();
        let value = reply.cqe.dw0.get();
        let mut f = Fields::default();
        f.flags("fid", self.feature_id);
        f.text("feature", fid.to_string());
        f.flags("value", value);
        if self.sel != 3 {
            explain(&mut f, fid, value);
        }
        if self.output.is_json() && !reply.data.is_empty() {
            f.value("data", reply.data.clone().into(), String::new());
        }
        f.print(self.output.is_json())?;
        match self.output.is_json() {
            true => Ok(()),
            false => dump(&reply.data),
        }
    }
}

/// Prints data in lines of 16 bytes.
fn dump(data: &[u8]) -> Result<()> {
    for (at, row) in data.chunks(16).enumerate() {
        let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        output::line(&format!("{:04x}: {}", at * 16, bytes.join(" ")))?;
    }
    Ok(())
}

/// What the value of a feature says, where there is more to say than the number.
fn explain(f: &mut Fields, fid: FeatureId, value: u32) {
    match fid {
        FeatureId::NUMBER_OF_QUEUES => {
            let queues = NumberOfQueues::decode(value);
            f.number("submission_queues", queues.submission);
            f.number("completion_queues", queues.completion);
        }
        FeatureId::KEEP_ALIVE_TIMER => f.value("kato", value.into(), format!("{value} ms")),
        FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION => {
            let events = AsyncEventConfiguration::from_bits_retain(value);
            let names: Vec<_> = events.iter_names().map(|(name, _)| name).collect();
            f.value("events", json!(names), names.join(", "));
        }
        _ => {}
    }
}

/// Arguments of `admin-passthru`.
#[derive(Args, Debug)]
pub(crate) struct AdminPassthru {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Opcode, like 0x06. Its lowest two bits say which way data goes.
    #[arg(long, value_name = "OPCODE", value_parser = parse_number::<u8>)]
    opcode: u8,
    /// Namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value = "0", value_parser = parse_number::<u32>)]
    namespace_id: u32,
    /// Command dword 2.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw2: u32,
    /// Command dword 3.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw3: u32,
    /// Command dword 10.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw10: u32,
    /// Command dword 11.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw11: u32,
    /// Command dword 12.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw12: u32,
    /// Command dword 13.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw13: u32,
    /// Command dword 14.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw14: u32,
    /// Command dword 15.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw15: u32,
    /// Bytes of data that the controller sends.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = data_bytes())]
    data_len: u32,
    /// File whose bytes the controller gets.
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,
    /// Write the data to stdout as it is, and nothing else.
    #[arg(short = 'b', long)]
    raw_binary: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl AdminPassthru {
    pub(crate) fn run(&self) -> Result<()> {
        let opcode = AdminOpcode(self.opcode);
        if opcode == AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST {
            bail!(
                "opcode 0x0c, an Asynchronous Event Request, has no answer until something happens; \
                 this host has sent its own, whose events `capstan -v` shows"
            );
        }
        let data = self.data()?;
        let mut queue = connect(&self.connect)?;
        let reply = queue
            .admin(self.sqe(), data)
            .with_context(|| format!("opcode {:#04x}", self.opcode))?;
        queue.close();
        if self.raw_binary {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&reply.data)?;
            return Ok(stdout.flush()?);
        }
        let (dw0, dw1) = (reply.cqe.dw0.get(), reply.cqe.dw1.get());
        let result = u64::from(dw1) << 32 | u64::from(dw0);
        if self.output.is_json() {
            return output::json(&json!({ "result": result, "data": reply.data }));
        }
        output::line(&format!("result : {result:#010x}"))?;
        dump(&reply.data)
    }

    fn sqe(&self) -> Sqe {
        Sqe {
            cdw2: self.cdw2.into(),
            cdw3: self.cdw3.into(),
            cdw10: self.cdw10.into(),
            cdw11: self.cdw11.into(),
            cdw12: self.cdw12.into(),
            cdw13: self.cdw13.into(),
            cdw14: self.cdw14.into(),
            cdw15: self.cdw15.into(),
            ..Sqe::new(self.opcode, 0, self.namespace_id)
        }
    }

    /// The data of the command, which goes the way its opcode says.
    fn data(&self) -> Result<CommandData> {
        let way = DataDirection::of(self.opcode);
        match (&self.input_file, self.data_len) {
            (None, 0) => Ok(CommandData::None),
            (None, len_bytes) if way == DataDirection::ControllerToHost => {
                Ok(CommandData::FromController(len_bytes))
            }
            (Some(path), 0) if way == DataDirection::HostToController => {
                let name = || path.display().to_string();
                let mut bytes = Vec::new();
                // One more than there may be tells a file that is longer, without reading all of it.
                File::open(path)
                    .and_then(|file| file.take(DATA_BYTES_MAX + 1).read_to_end(&mut bytes))
                    .with_context(name)?;
                if bytes.is_empty() || bytes.len() as u64 > DATA_BYTES_MAX {
                    bail!(
                        "{} is empty or longer than {DATA_BYTES_MAX} bytes, which a command can have at most",
                        name()
                    );
                }
                Ok(CommandData::ToController(bytes.into()))
            }
            _ => bail!(
                "opcode {:#04x} has data {}; --data-len is for data from the controller (bits 1:0 of the \
                 opcode are 10b), --input-file for data to it (01b)",
                self.opcode,
                match way {
                    DataDirection::None => "neither way",
                    DataDirection::HostToController => "to the controller",
                    DataDirection::ControllerToHost => "from the controller",
                    DataDirection::Bidirectional => "both ways, which NVMe over Fabrics has not",
                }
            ),
        }
    }
}
