//! `capstan get-feature`.

use anyhow::{Context, Result};
use capstan_initiator::CommandData;
use capstan_nvme_proto::command::{AdminCommand, GetFeatures};
use capstan_nvme_proto::features::{
    AsyncEventConfiguration, FeatureId, FeatureSelect, NumberOfQueues,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use clap::Args;
use serde_json::json;

use super::args::{ConnectArgs, OutputArgs};
use super::output::{Fields, dump};
use super::values::{parse_data_len, parse_number, within};

/// Arguments of `get-feature`.
#[derive(Args, Debug)]
pub(crate) struct GetFeature {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Feature identifier, like 0x0f.
    #[arg(short = 'f', long, value_name = "FID", value_parser = parse_number::<u8>)]
    feature_id: u8,
    /// Which value: 0 current, 1 default, 2 saved, 3 what can be done with it.
    #[arg(short = 'S', long, value_name = "N", default_value_t = 0, value_parser = within::<u8>(0..=3))]
    sel: u8,
    /// Namespace, for a feature of a namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 0, value_parser = within(0..=NSID_BROADCAST))]
    namespace_id: u32,
    /// Command dword 11, for a feature of several values.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw11: u32,
    /// Bytes of data, for a feature that has more than a number.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = parse_data_len())]
    data_len: u32,
    #[command(flatten)]
    output: OutputArgs,
}

impl GetFeature {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = self.connect.admin_queue()?;
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
