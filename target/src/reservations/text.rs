//! The file of a namespace, in TOML.

use std::io;
use std::path::PathBuf;

use capstan_nvme_proto::reservation::ReservationType;
use capstan_subsystem::KeptReservations;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Named;
use crate::state;

/// Behind it, in hexadecimal digits, on the last line: CRC-32C of all before the line.
const CHECKSUM: &str = "# checksum ";

const HEAD: &str = "\
# Reservations of a namespace that persist through power loss; written by capstan-target before a host is told.\n\
# Without this file the namespace has none when the target starts. [namespace] is for operators; the UUID alone counts.\n\n";

/// Types by RTYPE, from 1.
const TYPES: [&str; 6] = [
    "write-exclusive",
    "exclusive-access",
    "write-exclusive-registrants-only",
    "exclusive-access-registrants-only",
    "write-exclusive-all-registrants",
    "exclusive-access-all-registrants",
];

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Text {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Place>,
    uuid: Uuid,
    generation: u32,
    /// What was here once is not known, and no host has cleared it.
    #[serde(default)]
    unknown: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservation: Option<Held>,
    #[serde(default)]
    registrant: Vec<Registrant>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Place {
    nqn: String,
    nsid: u32,
    path: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Held {
    #[serde(rename = "type")]
    rtype: String,
    /// Host Identifier, in hexadecimal digits.
    host: String,
}

/// Keys have 64 bits, which numbers of TOML have not.
#[derive(Debug, Serialize, Deserialize)]
struct Registrant {
    host: String,
    key: String,
}

impl Text {
    pub(super) fn new(uuid: Uuid, named: Option<&Named>, state: &KeptReservations) -> Self {
        let name = |rtype: ReservationType| {
            let at = usize::from(rtype.0).checked_sub(1);
            at.and_then(|at| TYPES.get(at)).copied().unwrap_or_default()
        };
        Self {
            namespace: named.map(|named| Place {
                nqn: named.subnqn.as_str().to_owned(),
                nsid: named.nsid,
                path: named.path.clone(),
            }),
            uuid,
            generation: state.generation,
            unknown: state.is_unknown,
            reservation: state.held.map(|(rtype, host)| Held {
                rtype: name(rtype).to_owned(),
                host: host_digits(host),
            }),
            registrant: state
                .registrants
                .iter()
                .map(|(host, key)| Registrant {
                    host: host_digits(*host),
                    key: format!("{key:016x}"),
                })
                .collect(),
        }
    }

    pub(super) fn to_file(&self) -> io::Result<String> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let text = format!("{HEAD}{text}");
        let checksum = checksum(&text);
        Ok(format!("{text}{CHECKSUM}{checksum:08x}\n"))
    }

    /// # Errors
    /// It is not what this writes, or of another namespace.
    pub(super) fn from_file(text: &str, uuid: Uuid) -> io::Result<KeptReservations> {
        let read: Self = toml::from_str(text).map_err(|error| state::not_toml(text, &error))?;
        // Without its end, it may have a reservation less.
        let Some((whole, digits)) = text.rsplit_once(CHECKSUM) else {
            return Err(io::Error::other(
                "its last line, with its checksum, is missing",
            ));
        };
        if digits.trim_end() != format!("{:08x}", checksum(whole)) {
            let error = "its checksum (on its last line) is that of another text";
            return Err(io::Error::other(error));
        }
        if read.uuid != uuid {
            return Err(io::Error::other(format!(
                "it is of a namespace with the UUID {}",
                read.uuid
            )));
        }
        let mut kept = KeptReservations {
            generation: read.generation,
            is_unknown: read.unknown,
            ..KeptReservations::default()
        };
        if let Some(Held { rtype, host }) = read.reservation {
            let at = (1..).zip(TYPES).find(|(_, name)| *name == rtype);
            let Some((rtype, _)) = at else {
                let error = format!("{rtype:?} is no type of a reservation");
                return Err(io::Error::other(error));
            };
            kept.held = Some((ReservationType(rtype), host_of(&host)?));
        }
        for Registrant { host, key } in read.registrant {
            let number = u64::from_str_radix(&key, 16);
            let number = number.map_err(|_| not_digits(&key, 16))?;
            if kept.registrants.insert(host_of(&host)?, number).is_some() {
                let error = format!("the host {host} is registered twice");
                return Err(io::Error::other(error));
            }
        }
        kept.check().map_err(io::Error::other)?;
        Ok(kept)
    }
}

fn checksum(text: &str) -> u32 {
    crc_fast::crc32_iscsi(text.as_bytes())
}

fn host_digits(host: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(host))
}

fn host_of(digits: &str) -> io::Result<[u8; 16]> {
    let number = u128::from_str_radix(digits, 16).ok();
    let number = number.filter(|_| digits.len() == 32);
    let number = number.ok_or_else(|| not_digits(digits, 32))?;
    Ok(number.to_be_bytes())
}

fn not_digits(found: &str, digits: usize) -> io::Error {
    io::Error::other(format!("{found:?} is not {digits} hexadecimal digits"))
}
