//! `capstan ana-log`.

use anyhow::{Context as _, Result, bail};
use capstan_initiator::{CommandData, DirectQueue};
use capstan_nvme_proto::command::{AdminCommand, GetLogPage};
use capstan_nvme_proto::identify::{Cns, IdentifyController, MultiPath};
use capstan_nvme_proto::log::{AnaGroup, AnaGroupHeader, AnaLogHeader, LogPageId};
use capstan_nvme_proto::sgl::Sgl;
use clap::Args;
use serde_json::{Value, json};

use super::args::{ConnectArgs, OutputArgs};
use super::identify::identify;
use super::output;

/// Bytes that are read of the log page at most: 1,024 namespaces in as many groups are a
/// thirtieth of it. A controller may say any number.
const PAGE_BYTES_MAX: u32 = 1 << 20;
/// LSP bit 0, RGO: return groups only. NVMe Base 2.1, section 5.1.12.1.13.
const RETURN_GROUPS_ONLY: u8 = 1;

/// Arguments of `ana-log`.
#[derive(Args, Debug)]
pub(crate) struct AnaLog {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Show the groups without their namespaces.
    #[arg(short = 'g', long)]
    groups: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl AnaLog {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = self.connect.admin_queue()?;
        let page = self.page(&mut queue);
        queue.close();
        let data = page?;
        let Some((header, groups)) = AnaLogHeader::parse(&data) else {
            bail!("the log page has {} bytes, expected 16 or more", data.len());
        };
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        if self.output.is_json() {
            return output::json(&json!({
                "change_count": header.change_count.get(),
                "groups": groups.iter().map(group_json).collect::<Vec<Value>>(),
            }));
        }
        output::table(
            &["group", "state", "changes", "namespaces"],
            groups.iter().map(|group| {
                let nsids: Vec<_> = nsids(group).map(|nsid| nsid.to_string()).collect();
                vec![
                    group.header.group_id.get().to_string(),
                    group.header.state().to_string(),
                    group.header.change_count.get().to_string(),
                    nsids.join(", "),
                ]
            }),
        )
    }

    fn page(&self, queue: &mut DirectQueue) -> Result<Vec<u8>> {
        let data = identify(queue, Cns::CONTROLLER, 0)?;
        let Some(id) = IdentifyController::from_data(&data) else {
            bail!(
                "Identify Controller has {} bytes, expected 4096",
                data.len()
            );
        };
        if !MultiPath::from_bits_retain(id.cmic).contains(MultiPath::ANA) {
            bail!(
                "the controller has no Asymmetric Namespace Access (CMIC is {:#x}, expected bit 3 in it): its namespaces are \
                 reached by any path alike",
                id.cmic
            );
        }
        let of = |count: u32, each: usize| count.saturating_mul(u32::try_from(each).unwrap_or(0));
        let mut len_bytes = of(id.nanagrpid.get(), size_of::<AnaGroupHeader>());
        if !self.groups {
            // MNAN is 0 where there are as many as there are identifiers.
            let namespaces = match id.mnan.get() {
                0 => id.nn.get(),
                most => most,
            };
            len_bytes = len_bytes.saturating_add(of(namespaces, size_of::<u32>()));
        }
        let len_bytes = len_bytes
            .saturating_add(of(1, size_of::<AnaLogHeader>()))
            .min(PAGE_BYTES_MAX);
        let get = GetLogPage {
            lsp: if self.groups { RETURN_GROUPS_ONLY } else { 0 },
            rae: true,
            ..GetLogPage::new(LogPageId::ANA, len_bytes.into())
        };
        let command = AdminCommand::GetLogPage(get).encode(0, Sgl::EMPTY);
        let reply = queue
            .admin(command, CommandData::FromController(len_bytes))
            .context("Get Log Page (Asymmetric Namespace Access)")?;
        Ok(reply.data)
    }
}

fn nsids(group: &AnaGroup<'_>) -> impl Iterator<Item = u32> {
    group.nsids.iter().map(|nsid| nsid.get())
}

fn group_json(group: &AnaGroup<'_>) -> Value {
    let state = group.header.state();
    json!({
        "group": group.header.group_id.get(),
        "state": state.0,
        "state_name": state.to_string(),
        "change_count": group.header.change_count.get(),
        "nsids": nsids(group).collect::<Vec<_>>(),
    })
}
