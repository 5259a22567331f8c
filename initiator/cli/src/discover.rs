//! `capstan discover`.

use anyhow::{Context, Result};
use capstan_nvme_proto::log::{
    AddressFamily, DiscoveryEntryFlags, DiscoveryLogEntry, DiscoverySubsystemType, RdmaCms,
    RdmaProviderType, RdmaQpType, TcpSecurityType, TransportRequirements, TransportType,
};
use capstan_nvme_proto::nqn::Nqn;
use clap::Args;
use serde_json::{Value, json};

use super::args::{ConnectArgs, OutputArgs};
use super::output::{self, Fields};
use super::taken::reach;

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
        let mut queue = reach(&options).with_context(|| {
            let (at, port) = (&self.connect.traddr, self.connect.trsvcid);
            let service = format!("connecting to the discovery service at {at} port {port}");
            match &self.connect.nqn {
                Some(nqn) if nqn != Nqn::discovery().as_str() => format!(
                    "{service}, which is called {nqn} by --nqn: leave that out to see every subsystem there"
                ),
                _ => service,
            }
        })?;
        let found = queue.discover();
        queue.close();
        let (genctr, entries) = found.with_context(|| match &self.connect.nqn {
            Some(nqn) if nqn != Nqn::discovery().as_str() => format!(
                "--nqn is {nqn}, which has no discovery log page, expected a discovery subsystem: leave that out to see \
                 every subsystem there"
            ),
            _ => "reading the discovery log page".to_owned(),
        })?;
        if self.output.is_json() {
            let records: Vec<Value> = entries.iter().map(|e| fields(e).into_json()).collect();
            return output::json(&json!({ "genctr": genctr, "records": records }));
        }
        output::line(&format!(
            "Discovery Log Number of Records {}, Generation counter {genctr}",
            entries.len()
        ))?;
        for (at, entry) in entries.iter().enumerate() {
            output::line(&format!("=====Discovery Log Entry {at}======"))?;
            for (name, value) in fields(entry).texts() {
                output::line(&format!("{:<8} {value}", format!("{name}:")))?;
            }
        }
        Ok(())
    }
}

/// The fields that `nvme discover` shows, with its names and words.
fn fields(entry: &DiscoveryLogEntry) -> Fields {
    let nqn = entry
        .subsystem_nqn()
        .map_or_else(|error| format!("invalid ({error})"), |nqn| nqn.to_string());
    let mut f = Fields::default();
    f.text("trtype", transport_type(entry.trtype));
    f.text("adrfam", address_family(entry.adrfam));
    f.text("subtype", subtype(entry.subtype));
    f.text("treq", requirements(entry.treq));
    f.number("portid", entry.portid.get());
    f.text("trsvcid", entry.transport_service_id().to_string());
    f.text("subnqn", nqn);
    f.text("traddr", entry.transport_address().to_string());
    f.text("eflags", eflags(entry));
    if let Some(tsas) = entry.rdma_tsas() {
        f.text("rdma_prtype", provider_type(tsas.prtype));
        f.text("rdma_qptype", qp_type(tsas.qptype));
        f.text("rdma_cms", connection_manager(tsas.cms));
        let pkey = tsas.pkey.get();
        f.value("rdma_pkey", pkey.into(), format!("{pkey:#06x}"));
    }
    if let Some(tsas) = entry.tcp_tsas() {
        f.text("sectype", security_type(tsas.sectype));
    }
    f
}

/// What libnvme says where it has no word.
const UNRECOGNIZED: &str = "unrecognized";

/// Options of `capstan` that lead to where a discovery log has subsystems, of the first of them.
pub(super) fn places(entries: &[&DiscoveryLogEntry]) -> String {
    const TOLD_MAX: usize = 8;
    let mut places: Vec<_> = entries
        .iter()
        .map(|e| {
            let (traddr, trsvcid) = (e.transport_address(), e.transport_service_id());
            format!("-t {} -a {traddr} -s {trsvcid}", transport_type(e.trtype))
        })
        .collect();
    places.sort();
    places.dedup();
    places.truncate(TOLD_MAX);
    places.join(", ")
}

pub(super) fn transport_type(trtype: TransportType) -> &'static str {
    match trtype {
        TransportType::RDMA => "rdma",
        TransportType::FIBRE_CHANNEL => "fc",
        TransportType::TCP => "tcp",
        TransportType::INTRA_HOST => "loop",
        _ => UNRECOGNIZED,
    }
}

fn security_type(sectype: TcpSecurityType) -> &'static str {
    match sectype {
        TcpSecurityType::NONE => "none",
        TcpSecurityType::TLS_1_2 => "tls",
        TcpSecurityType::TLS_1_3 => "tls13",
        _ => UNRECOGNIZED,
    }
}

fn address_family(adrfam: AddressFamily) -> &'static str {
    match adrfam {
        AddressFamily::IPV4 => "ipv4",
        AddressFamily::IPV6 => "ipv6",
        AddressFamily::INFINIBAND => "infiniband",
        AddressFamily::FIBRE_CHANNEL => "fibre-channel",
        AddressFamily::INTRA_HOST => "loop",
        _ => UNRECOGNIZED,
    }
}

fn subtype(subtype: DiscoverySubsystemType) -> &'static str {
    match subtype {
        DiscoverySubsystemType::REFERRAL => "discovery subsystem referral",
        DiscoverySubsystemType::NVM => "nvme subsystem",
        DiscoverySubsystemType::CURRENT => "current discovery subsystem",
        _ => UNRECOGNIZED,
    }
}

fn requirements(treq: TransportRequirements) -> String {
    let channel = match treq.secure_channel() {
        0 => "not specified",
        1 => "required",
        2 => "not required",
        _ => UNRECOGNIZED,
    };
    match treq.disable_sq_flow_control_supported() {
        true => format!("{channel}, sq flow control disable supported"),
        false => channel.to_owned(),
    }
}

fn provider_type(prtype: RdmaProviderType) -> &'static str {
    match prtype {
        RdmaProviderType::NOT_SPECIFIED => "not specified",
        RdmaProviderType::INFINIBAND => "infiniband",
        RdmaProviderType::ROCE => "roce",
        RdmaProviderType::ROCE_V2 => "roce-v2",
        RdmaProviderType::IWARP => "iwarp",
        _ => UNRECOGNIZED,
    }
}

fn qp_type(qptype: RdmaQpType) -> &'static str {
    match qptype {
        RdmaQpType::CONNECTED => "connected",
        RdmaQpType::DATAGRAM => "datagram",
        _ => UNRECOGNIZED,
    }
}

fn connection_manager(cms: RdmaCms) -> &'static str {
    match cms {
        RdmaCms::RDMA_CM => "rdma-cm",
        _ => UNRECOGNIZED,
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
