//! What `nvmetcli save` writes, taken apart: hosts and subsystems. Its keys are the attributes of
//! the kernel's configfs (drivers/nvme/target/configfs.c), grouped by what is before the first
//! underscore of their names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use uuid::Uuid;

use super::found::{Found, Object};
use super::ports::{FIRST_GROUP, Ports, ana_group};
use super::{IMPORT_BYTES_MAX, ImportError, Imported, written};
use crate::check::subsystem_nqn;
use crate::{
    ALLOWED_HOSTS_MAX, Access, CONFIG_BYTES_MAX, Config, NAMESPACES_MAX, Nqn, SUBSYSTEMS_MAX,
    limits,
};

pub(super) const NO_PROTECTION: &str =
    "namespaces have no metadata here, and no protection information (T10 PI)";

/// A subsystem that hosts reach.
pub(super) struct Subsystem {
    pub(super) at: String,
    pub(super) nqn: Nqn,
    pub(super) serial: Option<String>,
    pub(super) model: Option<String>,
    pub(super) access: Access,
    pub(super) namespaces: BTreeMap<u32, Namespace>,
}

/// A namespace that is enabled.
pub(super) struct Namespace {
    pub(super) path: PathBuf,
    pub(super) uuid: Option<Uuid>,
    pub(super) nguid: Option<Uuid>,
    pub(super) group: u32,
    /// Whether the page cache is used.
    pub(super) is_buffered: bool,
}

/// What may be there once in a configuration, with the place of the first.
#[derive(Default)]
struct Used {
    nqns: HashMap<Nqn, String>,
    serials: HashMap<String, String>,
    paths: HashMap<PathBuf, String>,
    identities: HashMap<Uuid, String>,
}

/// Converts the JSON that `nvmetcli save` writes of the Linux kernel's target (nvmet).
///
/// # Errors
/// Every mistake in it, by its place; that nothing is left to serve; what is too large.
pub fn nvmet(json: &[u8]) -> Result<Imported, ImportError> {
    if u64::try_from(json.len()).is_ok_and(|length| length > IMPORT_BYTES_MAX) {
        return Err(ImportError::TooLarge);
    }
    let document: Value = serde_json::from_slice(json)
        .map_err(|error| ImportError::Syntax(crate::shown::line(&error.to_string())))?;
    let mut found = Found::default();
    let Some(mut root) = found.object(String::new(), document) else {
        let text = "a document without objects".to_owned();
        return Err(ImportError::Syntax(text));
    };
    for (at, value) in root.list("hosts", &mut found) {
        host(at, value, &mut found);
    }
    let mut used = Used::default();
    let mut subsystems = Vec::new();
    let written = root.list("subsystems", &mut found);
    if written.len() > SUBSYSTEMS_MAX {
        let text = format!(
            "{} entries, expected {SUBSYSTEMS_MAX} at most",
            written.len()
        );
        found.mistake("subsystems", text);
    }
    for (at, value) in written.into_iter().take(SUBSYSTEMS_MAX) {
        subsystems.extend(subsystem(at, value, &mut used, &mut found));
    }
    let mut ports = Ports::default();
    for (at, value) in root.list("ports", &mut found) {
        ports.add(at, value, &mut found);
    }
    root.end(&mut found);
    let mut lost: Vec<_> = ports.links.iter().collect();
    lost.retain(|(nqn, _)| !used.nqns.contains_key(nqn));
    lost.sort_by_key(|(_, at)| *at);
    for (nqn, at) in lost {
        let text = format!("{nqn}, expected the NQN of one of the subsystems");
        found.mistake(at, text);
    }
    reached(&mut subsystems, &ports, &mut found);
    if !found.mistakes.is_empty() {
        return Err(ImportError::Invalid(found.mistakes));
    }
    let notes = found.notes;
    let why = match (ports.all.is_empty(), subsystems.is_empty()) {
        (true, _) => "there is no port of NVMe/RDMA or NVMe/TCP with a subsystem",
        (_, true) => "there is no subsystem that a port has",
        _ => "",
    };
    if !why.is_empty() {
        return Err(ImportError::Nothing { why, notes });
    }
    let toml = written::toml(&ports.all, &subsystems);
    let is_too_long = u64::try_from(toml.len()).is_ok_and(|bytes| bytes > CONFIG_BYTES_MAX);
    if is_too_long {
        return Err(ImportError::TooMuch { bytes: toml.len() });
    }
    Config::from_toml(&toml).map_err(ImportError::NotAccepted)?;
    Ok(Imported { toml, notes })
}

/// Of names that [are the same](Nqn::is_same), one.
pub(super) fn in_one_case(nqn: &Nqn) -> Nqn {
    nqn.uuid().map_or_else(|| nqn.clone(), Nqn::from_uuid)
}

fn host(at: String, value: Value, found: &mut Found) {
    const NO_KEYS: &str =
        "hosts do not authenticate here (DH-HMAC-CHAP): a host that gives this NQN is believed";
    let Some(mut host) = found.object(at, value) else {
        return;
    };
    host_nqn(&mut host, found);
    // As a group, and as the kernel names them.
    let mut chap = host.object("dhchap", found);
    for key in ["key", "ctrl_key", "hash", "dhgroup"] {
        let flat = format!("dhchap_{key}");
        let places = [chap.place(key), host.place(&flat)];
        let values = [chap.text(key, found), host.text(&flat, found)];
        for (at, value) in places.iter().zip(values) {
            if key.ends_with("key") && value.is_some_and(|of| !of.is_empty()) {
                found.left_out(at, NO_KEYS);
            }
        }
    }
    chap.end(found);
    host.end(found);
}

/// The NQN in a list.
pub(super) fn nqn_of(at: &str, value: &Value, found: &mut Found) -> Option<Nqn> {
    let Some(text) = value.as_str() else {
        found.mistake(at, "expected an NQN");
        return None;
    };
    let nqn = Nqn::new(text);
    nqn.map_err(|error| found.mistake(at, format!("{text:?}: {error}")))
        .ok()
}

fn host_nqn(host: &mut Object, found: &mut Found) {
    let at = host.place("nqn");
    if let Some(nqn) = host.required("nqn", found)
        && let Err(error) = Nqn::new(&nqn)
    {
        found.mistake(&at, format!("{nqn:?}: {error}"));
    }
}

fn subsystem(at: String, value: Value, used: &mut Used, found: &mut Found) -> Option<Subsystem> {
    let mut all = found.object(at, value)?;
    let at = all.at.clone();
    let at_nqn = all.place("nqn");
    let nqn = all.required("nqn", found);
    let nqn = nqn.and_then(|text| {
        let checked = subsystem_nqn(&text);
        checked
            .map_err(|kind| found.mistake(&at_nqn, kind.to_string()))
            .ok()
    });
    if let Some(nqn) = &nqn
        && let Some(first) = used.nqns.insert(in_one_case(nqn), at_nqn.clone())
    {
        found.mistake(
            &at_nqn,
            format!("{nqn} is that of {first}, expected another one"),
        );
    }
    let mut attr = all.object("attr", found);
    let [serial, model] = [
        ("serial", limits::SERIAL_BYTES_MAX),
        ("model", limits::MODEL_BYTES_MAX),
    ]
    .map(|(key, most)| name(&mut attr, key, most, found));
    let serial = serial.filter(|serial| {
        let first = used.serials.get(serial);
        if let Some(first) = first {
            let text = format!(
                "{first} has the same, and serial numbers differ here; one is derived from the NQN"
            );
            found.left_out(&attr.place("serial"), text);
            return false;
        }
        used.serials.insert(serial.clone(), attr.place("serial"));
        true
    });
    let access = access(&mut all, &mut attr, found);
    attributes(&mut attr, found);
    attr.end(found);
    let mut namespaces = BTreeMap::new();
    for (at, value) in all.list("namespaces", found) {
        let Some((at_nsid, nsid, namespace)) = namespace(at, value, used, found) else {
            continue;
        };
        if namespaces.insert(nsid, namespace).is_some() {
            found.mistake(
                &at_nsid,
                format!("{nsid} is that of another namespace here, expected each once"),
            );
        }
    }
    let mut is_passthru = false;
    for (at, _) in all.list("passthru", found) {
        is_passthru = true;
        found.left_out(
            &at,
            "commands are not passed through to a controller; a namespace with the path of its block device exports \
             its data",
        );
    }
    all.end(found);
    if is_passthru && namespaces.is_empty() {
        found.left_out(&at, "it has no namespace but those of a controller");
        return None;
    }
    Some(Subsystem {
        at,
        nqn: nqn?,
        serial,
        model,
        access,
        namespaces,
    })
}

/// A serial or model number.
fn name(attr: &mut Object, key: &str, most: usize, found: &mut Found) -> Option<String> {
    let text = attr.text(key, found)?;
    let is_printable = text.bytes().all(|byte| matches!(byte, 0x20..=0x7E));
    if (1..=most).contains(&text.len()) && is_printable {
        return Some(text);
    }
    let text = format!("{text:?}, expected 1 to {most} printable ASCII characters");
    found.left_out(&attr.place(key), text);
    None
}

fn access(all: &mut Object, attr: &mut Object, found: &mut Found) -> Access {
    let is_open = attr.flag("allow_any_host", found).unwrap_or(false);
    let at = all.place("allowed_hosts");
    let mut hosts: Vec<Nqn> = Vec::new();
    let mut seen = HashSet::new();
    for (at, value) in all.list("allowed_hosts", found) {
        let nqn = nqn_of(&at, &value, found);
        hosts.extend(nqn.filter(|nqn| seen.insert(in_one_case(nqn))));
    }
    if hosts.len() > ALLOWED_HOSTS_MAX {
        let text = format!(
            "{} hosts, expected {ALLOWED_HOSTS_MAX} at most",
            hosts.len()
        );
        found.mistake(&at, text);
    }
    if !is_open {
        return Access::Hosts(hosts);
    }
    if !hosts.is_empty() {
        found.left_out(&at, "`allow_any_host` lets every host connect");
    }
    Access::AnyHost
}

/// What says nothing here where it has the kernel's default.
fn attributes(attr: &mut Object, found: &mut Found) {
    let mut left_out = |key: &str, usual: &[&str], text: &str| {
        let at = attr.place(key);
        let value = attr.text(key, found);
        if value.is_some_and(|value| !usual.contains(&value.as_str())) {
            found.left_out_everywhere(&at, text);
        }
    };
    let own = "hosts are told what holds for this target";
    left_out("version", &[], own);
    left_out("firmware", &[], own);
    left_out("ieee_oui", &["0", "0x0", "0x000000"], own);
    left_out("pi_enable", &["0"], NO_PROTECTION);
    let ids =
        "this target chooses controller IDs itself, 1 to `target.hosts_max` of all subsystems";
    left_out("cntlid_min", &["1"], ids);
    left_out("cntlid_max", &["65519"], ids);
    left_out(
        "qid_max",
        &["128"],
        "`queues.io_queues_max` says it for all subsystems",
    );
}

fn namespace(
    at: String,
    value: Value,
    used: &mut Used,
    found: &mut Found,
) -> Option<(String, u32, Namespace)> {
    let mut all = found.object(at, value)?;
    let at_nsid = all.place("nsid");
    if !all.has("nsid") {
        found.mistake(&at_nsid, "it is missing, expected a number");
    }
    let nsid = all.number("nsid", found);
    let is_enabled = all.flag("enable", found).unwrap_or(false);
    let mut is_buffered = all.flag("buffered_io", found).unwrap_or(false);
    let at_group = all.place("ana_grpid");
    let group = all.number("ana_grpid", found);
    let mut ana = all.object("ana", found);
    let group = group.or_else(|| ana.number("grpid", found));
    // What older versions write of a kernel without ANA.
    let group = group.filter(|group| *group != 0);
    let group = match group {
        Some(group) => ana_group(&at_group, group, found),
        None => Some(FIRST_GROUP),
    };
    ana.text("grpid", found);
    ana.end(found);
    reservations(&mut all, found);
    let mut device = all.object("device", found);
    let at_path = device.place("path");
    let path = device.text("path", found);
    is_buffered |= device.flag("buffered_io", found).unwrap_or(false);
    let [uuid, nguid] =
        ["uuid", "nguid"].map(|key| (device.place(key), identity(&mut device, key, found)));
    if device.flag("p2pmem", found).unwrap_or(false) {
        found.left_out(
            &device.place("p2pmem"),
            "data does not go through the memory of a device",
        );
    }
    device.end(found);
    let at = all.at.clone();
    all.end(found);
    let nsid = nsid?;
    if !is_enabled {
        found.left_out(
            &at,
            "it is not enabled, and so hosts have no such namespace",
        );
        return None;
    }
    let Some(nsid) = u32::try_from(nsid)
        .ok()
        .filter(|of| (1..=NAMESPACES_MAX).contains(of))
    else {
        found.left_out(
            &at,
            format!("its NSID is {nsid}, expected 1 to {NAMESPACES_MAX}"),
        );
        return None;
    };
    let path = absolute(&at_path, path.as_deref(), found)?;
    if let Some(first) = used.paths.get(&path) {
        let text = format!(
            "{first} has the same path, and a file or device is one namespace here: two would not know of each other's \
             writes"
        );
        found.left_out(&at, text);
        return None;
    }
    used.paths.insert(path.clone(), at_path);
    let [uuid, nguid] =
        [uuid, nguid].map(|(at, identity)| once(&at, identity, &at_nsid, used, found));
    let namespace = Namespace {
        path,
        uuid,
        nguid,
        group: group?,
        is_buffered,
    };
    Some((at_nsid, nsid, namespace))
}

/// As a group, and as the kernel names it.
fn reservations(namespace: &mut Object, found: &mut Found) {
    let mut group = namespace.object("resv", found);
    let places = [group.place("enable"), namespace.place("resv_enable")];
    let flags = [
        group.flag("enable", found),
        namespace.flag("resv_enable", found),
    ];
    for (at, flag) in places.iter().zip(flags) {
        if flag == Some(false) {
            found.left_out_everywhere(at, "hosts may have reservations of every namespace here");
        }
    }
    group.end(found);
}

fn absolute(at: &str, path: Option<&str>, found: &mut Found) -> Option<PathBuf> {
    let text = path.unwrap_or_default();
    let path = Path::new(text);
    if !path.is_absolute() || text.contains('\0') {
        found.mistake(at, format!("{text:?}, expected an absolute path"));
        return None;
    }
    // Evens out what makes no other path of it.
    Some(path.components().collect())
}

/// A UUID, or an NGUID, which is written as one. All zeroes are none.
fn identity(device: &mut Object, key: &str, found: &mut Found) -> Option<Uuid> {
    let at = device.place(key);
    let text = device.text(key, found).filter(|text| !text.is_empty())?;
    match Uuid::try_parse(&text) {
        Ok(uuid) => Some(uuid).filter(|uuid| !uuid.is_nil()),
        Err(_) => {
            found.mistake(&at, format!("{text:?}, expected a UUID"));
            None
        }
    }
}

/// An identity that no other namespace has.
fn once(
    at: &str,
    identity: Option<Uuid>,
    of: &str,
    used: &mut Used,
    found: &mut Found,
) -> Option<Uuid> {
    let identity = identity?;
    match used.identities.get(&identity) {
        // Its UUID and NGUID may be one.
        Some(first) if first != of => {
            let text = format!(
                "{first} is of a namespace with the same one, and each has its own here; hosts find this one anew"
            );
            found.left_out(at, text);
            None
        }
        _ => {
            used.identities.insert(identity, of.to_owned());
            Some(identity)
        }
    }
}

/// Leaves out what hosts reach by no port, and tells what they reach by more than they did.
fn reached(subsystems: &mut Vec<Subsystem>, ports: &Ports, found: &mut Found) {
    subsystems.retain(|subsystem| {
        let ports_all = ports.all.iter();
        let (by, not_by): (Vec<_>, Vec<_>) = ports_all.partition(|port| port.has(&subsystem.nqn));
        if by.is_empty() {
            let text = match ports.links.contains_key(&in_one_case(&subsystem.nqn)) {
                true => "of the ports that it is linked to none is left",
                false => "it is linked to no port, and so hosts do not reach it",
            };
            found.left_out(&subsystem.at, text);
            return false;
        }
        if !not_by.is_empty() {
            let not_by: Vec<_> = not_by.iter().map(|of| of.listener.address.to_string()).collect();
            let text = format!(
                "hosts reached it by some ports alone; here every listener has every subsystem, so that hosts reach it at {} \
                 as well: where that shall not be, serve it by another target with listeners of its own",
                not_by.join(", ")
            );
            found.otherwise(&subsystem.at, text);
        }
        true
    });
}
