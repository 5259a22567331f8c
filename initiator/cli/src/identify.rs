//! `capstan id-ctrl`, `id-ns` and `list-ns`.

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::CommandData;
use capstan_initiator::names::Name;
use capstan_initiator::{ConnectError, DirectQueue};
use capstan_nvme_proto::command::{AdminCommand, Identify};
use capstan_nvme_proto::identify::{
    CapstanBlock, CapstanCapabilities, Cns, IdentifyController, IdentifyNamespace,
    NAMESPACE_LIST_MAX, NamespaceId, NamespaceIdDescriptors, NamespaceList,
};
use capstan_nvme_proto::nqn::{DISCOVERY_NQN, Nqn};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use clap::Args;
use serde_json::{Value, json};

use super::args::{ConnectArgs, OutputArgs};
use super::output::{self, Fields};
use super::values::within;

/// Active namespaces that are listed, in 64 full lists: 256 KiB. No subsystem is known that has so
/// many.
const NSIDS_MAX: usize = 64 * NAMESPACE_LIST_MAX;

/// Bytes of every Identify data structure.
const IDENTIFY_DATA_BYTES: u32 = 4096;

/// Arguments of `id-ctrl`.
#[derive(Args, Debug)]
pub(crate) struct IdCtrl {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `id-ns`.
#[derive(Args, Debug)]
pub(crate) struct IdNs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1, value_parser = within(1..=NSID_BROADCAST))]
    namespace_id: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `list-ns`.
#[derive(Args, Debug)]
pub(crate) struct ListNs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// List the namespaces above this one.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 0, value_parser = within(0..=NSID_BROADCAST - 2))]
    namespace_id: u32,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn identify(queue: &mut DirectQueue, cns: Cns, nsid: u32) -> Result<Vec<u8>> {
    let sqe = AdminCommand::Identify(Identify::new(cns, nsid)).encode(0, Sgl::EMPTY);
    let data = CommandData::FromController(IDENTIFY_DATA_BYTES);
    let reply = queue
        .admin(sqe, data)
        .with_context(|| format!("Identify ({cns}) of namespace {nsid}"))?;
    Ok(reply.data)
}

impl IdCtrl {
    pub(crate) fn run(&self) -> Result<()> {
        let mut queue = self.connect.admin_queue()?;
        let data = identify(&mut queue, Cns::CONTROLLER, 0)?;
        queue.close();
        let Some(id) = IdentifyController::from_data(&data) else {
            bail!(
                "Identify Controller has {} bytes, expected 4096",
                data.len()
            );
        };
        controller_fields(id).print(self.output.is_json())
    }
}

/// The fields nvme-cli shows, in the order of the data structure.
fn controller_fields(id: &IdentifyController) -> Fields {
    let mut f = Fields::default();
    f.flags("vid", id.vid.get());
    f.flags("ssvid", id.ssvid.get());
    f.text("sn", id.serial_number().to_string());
    f.text("mn", id.model_number().to_string());
    f.text("fr", id.firmware_revision().to_string());
    f.number("rab", id.rab);
    let [a, b, c] = id.ieee;
    f.flags("ieee", u32::from_le_bytes([a, b, c, 0]));
    f.flags("cmic", id.cmic);
    f.number("mdts", id.mdts);
    f.flags("cntlid", id.cntlid.get());
    f.flags("ver", id.ver.get());
    f.number("rtd3r", id.rtd3r_us.get());
    f.number("rtd3e", id.rtd3e_us.get());
    f.flags("oaes", id.oaes.get());
    f.flags("ctratt", id.ctratt.get());
    f.flags("rrls", id.rrls.get());
    f.number("cntrltype", id.cntrltype.0);
    f.number("crdt1", id.crdt1_100ms.get());
    f.number("crdt2", id.crdt2_100ms.get());
    f.number("crdt3", id.crdt3_100ms.get());
    f.number("ciu", id.ciu);
    f.number("cirn", id.cirn.get());
    f.flags("oacs", id.oacs.get());
    f.number("acl", id.acl_z);
    f.number("aerl", id.aerl_z);
    f.flags("frmw", id.frmw);
    f.flags("lpa", id.lpa);
    f.number("elpe", id.elpe_z);
    f.number("npss", id.npss_z);
    f.number("wctemp", id.wctemp_kelvins.get());
    f.number("cctemp", id.cctemp_kelvins.get());
    f.big("tnvmcap", id.tnvmcap_bytes.get());
    f.big("unvmcap", id.unvmcap_bytes.get());
    f.number("kas", id.kas_100ms.get());
    f.number("anatt", id.anatt_seconds);
    f.flags("anacap", id.anacap);
    f.number("anagrpmax", id.anagrpmax.get());
    f.number("nanagrpid", id.nanagrpid.get());
    f.number("cqt", id.cqt_ms.get());
    f.flags("sqes", id.sqes);
    f.flags("cqes", id.cqes);
    f.number("maxcmd", id.maxcmd.get());
    f.number("nn", id.nn.get());
    f.flags("oncs", id.oncs.get());
    f.flags("fuses", id.fuses.get());
    f.flags("fna", id.fna);
    f.flags("vwc", id.vwc);
    f.number("awun", id.awun_z.get());
    f.number("awupf", id.awupf_z.get());
    f.flags("nwpc", id.nwpc);
    f.number("acwu", id.acwu_z.get());
    f.flags("ocfs", id.ocfs.get());
    f.flags("sgls", id.sgls.get());
    f.number("mnan", id.mnan.get());
    let subnqn = id.subsystem_nqn();
    f.text(
        "subnqn",
        subnqn.map_or_else(|error| format!("invalid ({error})"), |nqn| nqn.to_string()),
    );
    f.number("ioccsz", id.ioccsz_16bytes.get());
    f.number("iorcsz", id.iorcsz_16bytes.get());
    f.number("icdoff", id.icdoff_16bytes.get());
    f.flags("fcatt", id.fcatt);
    f.number("msdbd", id.msdbd);
    f.flags("ofcs", id.ofcs.get());
    f.number("ccrl", id.ccrl);
    if let Some(block) = id.capstan() {
        capstan_field(&mut f, block);
    }
    f
}

/// What a Capstan target says of itself in the vendor specific bytes.
fn capstan_field(f: &mut Fields, block: &CapstanBlock) {
    let fences = block
        .capabilities()
        .contains(CapstanCapabilities::FENCES_EARLIER_ASSOCIATIONS);
    let boot_id = block.boot_id().map(|id| hex(&id));
    let json = json!({
        "version": block.version.get(),
        "fences_earlier_associations": fences,
        "boot_id": boot_id,
    });
    let text = format!(
        "version {}, {} earlier associations, boot id {}",
        block.version,
        if fences { "fences" } else { "does not fence" },
        boot_id.as_deref().unwrap_or("not told"),
    );
    f.value("capstan", json, text);
}

impl IdNs {
    pub(crate) fn run(&self) -> Result<()> {
        let nsid = self.namespace_id;
        let mut queue = self.connect.admin_queue()?;
        let data = identify(&mut queue, Cns::NAMESPACE, nsid)?;
        // Older controllers do not have the list.
        let ids = identify(&mut queue, Cns::NAMESPACE_ID_DESCRIPTORS, nsid).unwrap_or_default();
        let Some(id) = IdentifyNamespace::from_data(&data) else {
            bail!("Identify Namespace has {} bytes, expected 4096", data.len());
        };
        if id.nsze_lbas.get() == 0 {
            let error = not_active(&mut queue, nsid);
            queue.close();
            return Err(error);
        }
        queue.close();
        let mut fields = namespace_fields(id);
        for id in NamespaceIdDescriptors::new(&ids) {
            if let NamespaceId::Uuid(uuid) = id {
                fields.text("uuid", uuid.to_string());
            }
        }
        fields.print(self.output.is_json())
    }
}

fn namespace_fields(id: &IdentifyNamespace) -> Fields {
    let mut f = Fields::default();
    f.number("nsze", id.nsze_lbas.get());
    f.number("ncap", id.ncap_lbas.get());
    f.number("nuse", id.nuse_lbas.get());
    f.flags("nsfeat", id.nsfeat);
    f.number("nlbaf", id.nlbaf_z);
    f.number("flbas", id.flbas);
    f.flags("mc", id.mc);
    f.flags("dpc", id.dpc);
    f.flags("dps", id.dps);
    f.flags("nmic", id.nmic);
    f.flags("rescap", id.rescap);
    f.flags("fpi", id.fpi);
    f.number("dlfeat", id.dlfeat);
    f.number("nawun", id.nawun_z.get());
    f.number("nawupf", id.nawupf_z.get());
    f.number("nacwu", id.nacwu_z.get());
    f.number("nabsn", id.nabsn_z.get());
    f.number("nabo", id.nabo_lbas.get());
    f.number("nabspf", id.nabspf_z.get());
    f.number("noiob", id.noiob_lbas.get());
    f.big("nvmcap", id.nvmcap_bytes.get());
    f.number("npwg", id.npwg_z.get());
    f.number("npwa", id.npwa_z.get());
    f.number("npdg", id.npdg_z.get());
    f.number("npda", id.npda_z.get());
    f.number("nows", id.nows_z.get());
    f.number("mssrl", id.mssrl_lbas.get());
    f.number("mcl", id.mcl_lbas.get());
    f.number("msrc", id.msrc_z);
    f.number("anagrpid", id.anagrpid.get());
    f.flags("nsattr", id.nsattr);
    f.number("nvmsetid", id.nvmsetid.get());
    f.number("endgid", id.endgid.get());
    f.text("nguid", hex(&id.nguid));
    f.text("eui64", hex(&id.eui64));
    let formats = usize::from(id.nlbaf_z) + 1;
    let in_use = id.formatted_lba_format();
    let formats: Vec<_> = id.lbaf.iter().take(formats).collect();
    let json: Vec<Value> = formats
        .iter()
        .map(|format| {
            json!({
                "ms": format.ms_bytes.get(),
                "ds": format.lbads,
                "rp": format.rp & 0b11,
                "in_use": in_use.is_some_and(|used| std::ptr::eq(used, *format)),
            })
        })
        .collect();
    let text: Vec<_> = formats
        .iter()
        .map(|format| {
            let mark = match in_use {
                Some(used) if std::ptr::eq(used, *format) => " (in use)",
                _ => "",
            };
            format!(
                "{} + {} bytes{mark}",
                1_u64 << format.lbads.min(63),
                format.ms_bytes
            )
        })
        .collect();
    f.value("lbafs", json.into(), text.join(", "));
    f
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ListNs {
    pub(crate) fn run(&self) -> Result<()> {
        // Its controller does not know the list, and takes the command for a mistake.
        if self.connect.nqn.as_deref() == Some(DISCOVERY_NQN) {
            let subnqn = Box::new(Nqn::discovery());
            return Err(ConnectError::Discovery { subnqn }.into());
        }
        let mut queue = self.connect.admin_queue()?;
        let nsids = active_nsids_of(&mut queue, self.namespace_id)?;
        queue.close();
        if self.output.is_json() {
            let list: Vec<Value> = nsids.iter().map(|nsid| json!({ "nsid": nsid })).collect();
            return output::json(&json!({ "nsid_list": list }));
        }
        for (at, nsid) in nsids.iter().enumerate() {
            output::line(&format!("[{at:>4}]:{nsid:#x}"))?;
        }
        Ok(())
    }
}

/// The NSIDs above `above`.
pub(super) fn active_nsids_of(queue: &mut DirectQueue, above: u32) -> Result<Vec<u32>> {
    active_nsids(above, |above| {
        identify(queue, Cns::ACTIVE_NAMESPACES, above)
    })
}

/// That a namespace is not active, with those that are as far as the controller tells.
pub(super) fn not_active(queue: &mut DirectQueue, nsid: u32) -> Error {
    const TOLD_MAX: usize = 16;
    let expected = match active_nsids_of(queue, 0) {
        Ok(nsids) if nsids.is_empty() => "this subsystem has none for this host".to_owned(),
        Ok(nsids) => {
            let told: Vec<_> = nsids.iter().take(TOLD_MAX).map(u32::to_string).collect();
            let more = if nsids.len() > TOLD_MAX { ", …" } else { "" };
            format!("expected one of {}{more}", told.join(", "))
        }
        Err(_) => format!("expected one that {} shows", Name::Namespaces),
    };
    anyhow!("namespace {nsid} is not active; {expected}")
}

/// The NSIDs above `above`, which `identify` asks for in lists.
fn active_nsids(
    mut above: u32,
    mut identify: impl FnMut(u32) -> Result<Vec<u8>>,
) -> Result<Vec<u32>> {
    let mut nsids = Vec::new();
    loop {
        let data = identify(above)?;
        let Some(list) = NamespaceList::from_data(&data) else {
            bail!("the namespace list has {} bytes, expected 4096", data.len());
        };
        let before = nsids.len();
        for nsid in list.iter() {
            if nsid <= above {
                bail!("the namespace list does not ascend ({nsid} after {above})");
            }
            above = nsid;
            nsids.push(nsid);
        }
        if nsids.len() - before < NAMESPACE_LIST_MAX {
            return Ok(nsids);
        }
        if nsids.len() >= NSIDS_MAX {
            bail!(
                "the list of active namespaces has no end: {} so far, up to NSID {above}, and the last list is full (at most {NSIDS_MAX} \
                 are taken); something is wrong with this target, or go on behind with --namespace-id={above}",
                nsids.len()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::identify::{CapstanBlock, CapstanCapabilities, IdentifyController};
    use serde_json::Value;
    use zerocopy::FromZeros;

    use super::controller_fields;

    /// A full list of the NSIDs above another one.
    fn full_list(above: u32) -> Vec<u8> {
        let nsids = (1..=1024).map(|n| above + n);
        nsids.flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_list_of_namespaces_that_never_ends_is_an_error() {
        let mut asked = 0;
        let error = super::active_nsids(0, |above| {
            asked += 1;
            assert!(asked <= 64, "it goes on");
            Ok(full_list(above))
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("has no end: 65536 so far"), "{error}");
        assert!(error.contains("--namespace-id=65536"), "{error}");
    }

    #[test]
    fn namespaces_are_listed_over_several_lists() {
        let nsids = super::active_nsids(3, |above| {
            let mut list = full_list(above);
            if above > 3 {
                list[8..].fill(0);
            }
            Ok(list)
        });
        let nsids = nsids.unwrap();
        assert_eq!((nsids.len(), nsids[0]), (1026, 4));
        assert_eq!(nsids.last(), Some(&1029));
    }

    #[test]
    fn rapid_path_failure_recovery_and_a_capstan_target_are_shown() {
        let mut id = IdentifyController::new_zeroed();
        let json = controller_fields(&id).into_json();
        assert_eq!(
            (&json["ciu"], &json["cirn"], &json["ccrl"], &json["capstan"]),
            (&0.into(), &0.into(), &0.into(), &Value::Null)
        );
        (id.ciu, id.ccrl) = (7, 4);
        id.cirn = 99.into();
        let fences = CapstanCapabilities::FENCES_EARLIER_ASSOCIATIONS;
        id.set_capstan(&CapstanBlock::new(fences, [0xAB; 16]));
        let json = controller_fields(&id).into_json();
        assert_eq!(
            (&json["ciu"], &json["cirn"], &json["ccrl"]),
            (&7.into(), &99.into(), &4.into())
        );
        assert_eq!(json["capstan"]["fences_earlier_associations"], true);
        assert_eq!(json["capstan"]["boot_id"], "ab".repeat(16));
    }
}
