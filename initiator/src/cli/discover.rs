//! `capstan discover`.

use anyhow::{Context, Result};
use capstan_initiator::DirectQueue;
use capstan_nvme_proto::log::{DiscoveryEntryFlags, DiscoveryLogEntry};
use capstan_nvme_proto::nqn::Nqn;
use clap::Args;
use serde_json::{Value, json};

use super::args::{ConnectArgs, OutputArgs};
use super::output;

/// Arguments of `discover`.
#[derive(Args, Debug)]
pub(crate) struct Discover {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Discover {
    pub(crate) fn run(&self) -> Result<()> {
        let identity = self.connect.identity()?;
        let mut options = self.connect.discovery_options(&identity);
        if let Some(nqn) = &self.connect.nqn {
            options.subnqn =
                Nqn::new(nqn).with_context(|| format!("--nqn is {nqn:?}, expected an NQN"))?;
        }
        let mut queue = DirectQueue::connect(&options).with_context(|| {
            format!(
                "connecting to the discovery service at {} port {}",
                self.connect.traddr, self.connect.trsvcid
            )
        })?;
        let (genctr, entries) = queue.discover()?;
        queue.close();
        if self.output.is_json() {
            let records: Vec<Value> = entries.iter().map(record).collect();
            return output::json(&json!({ "genctr": genctr, "records": records }));
        }
        output::line(&format!(
            "Discovery Log Number of Records {}, Generation counter {genctr}",
            entries.len()
        ))?;
        for (at, entry) in entries.iter().enumerate() {
            output::line(&format!("=====Discovery Log Entry {at}======"))?;
            for (name, value) in fields(entry) {
                output::line(&format!("{name:<9} {value}"))?;
            }
        }
        Ok(())
    }
}

/// The fields nvme-cli shows, with its names and words.
fn fields(entry: &DiscoveryLogEntry) -> Vec<(&'static str, String)> {
    let nqn = |entry: &DiscoveryLogEntry| {
        entry
            .subsystem_nqn()
            .map_or_else(|error| format!("invalid ({error})"), |nqn| nqn.to_string())
    };
    let mut fields = vec![
        ("trtype:", entry.trtype.to_string().to_lowercase()),
        ("adrfam:", entry.adrfam.to_string().to_lowercase()),
        ("subtype:", entry.subtype.to_string().to_lowercase()),
        ("treq:", secure_channel(entry).to_owned()),
        ("portid:", entry.portid.to_string()),
        ("trsvcid:", entry.transport_service_id().to_string()),
        ("subnqn:", nqn(entry)),
        ("traddr:", entry.transport_address().to_string()),
        ("eflags:", eflags(entry)),
    ];
    if let Some(tsas) = entry.rdma_tsas() {
        fields.push(("prtype:", tsas.prtype.to_string().to_lowercase()));
        fields.push(("qptype:", tsas.qptype.to_string().to_lowercase()));
        fields.push(("cms:", tsas.cms.to_string().to_lowercase()));
    }
    fields
}

fn record(entry: &DiscoveryLogEntry) -> Value {
    fields(entry)
        .into_iter()
        .map(|(name, value)| (name.trim_end_matches(':').to_owned(), Value::from(value)))
        .collect()
}

fn secure_channel(entry: &DiscoveryLogEntry) -> &'static str {
    match entry.treq.secure_channel() {
        1 => "required",
        2 => "not required",
        _ => "not specified",
    }
}

fn eflags(entry: &DiscoveryLogEntry) -> String {
    let flags = DiscoveryEntryFlags::from_bits_retain(entry.eflags.get());
    let names: Vec<_> = [
        (
            DiscoveryEntryFlags::PERSISTENT_CONNECTIONS,
            "explicit discovery connections",
        ),
        (
            DiscoveryEntryFlags::DUPLICATE_RETURNED_INFORMATION,
            "duplicate discovery information",
        ),
        (
            DiscoveryEntryFlags::NO_CDC_CONNECTIVITY,
            "no cdc connectivity",
        ),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .map(|(_, name)| name)
    .collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
