//! Checks of `[[subsystem]]` and `[[subsystem.namespace]]`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use toml::Spanned;
use uuid::Uuid;

use super::ana::Listeners;
use super::{Checker, unique};
use crate::schema::{RawNamespace, RawSubsystem, RawTarget};
use crate::{
    Access, At, Backing, DirectIo, LbaSize, Namespace, Nqn, ProblemKind, Size, Subsystem, identity,
    limits,
};

impl Checker<'_> {
    pub(super) fn subsystems(
        &mut self,
        raw: &[Spanned<RawSubsystem>],
        target: &RawTarget,
        listeners: &Listeners<'_>,
    ) -> Vec<Subsystem> {
        self.count("subsystem", raw.len(), limits::SUBSYSTEMS_MAX);
        raw.iter()
            .take(limits::SUBSYSTEMS_MAX)
            .enumerate()
            .filter_map(|(index, entry)| {
                self.subsystem(&format!("subsystem[{index}]"), entry, target, listeners)
            })
            .collect()
    }

    fn subsystem(
        &mut self,
        field: &str,
        entry: &Spanned<RawSubsystem>,
        target: &RawTarget,
        listeners: &Listeners<'_>,
    ) -> Option<Subsystem> {
        let raw = entry.get_ref();
        let access = self.access(field, entry);
        let nqn = self.subsystem_nqn(&format!("{field}.nqn"), entry);
        let serial_field = format!("{field}.serial");
        let serial = match &raw.serial {
            Some(serial) => {
                let at = self.at(&serial_field, Some(serial.span()));
                let serial = self.ascii(&serial_field, serial, limits::SERIAL_BYTES_MAX);
                if let Some(serial) = &serial {
                    unique(
                        &mut self.used.serials,
                        serial.clone(),
                        serial,
                        at,
                        &mut self.problems,
                    );
                }
                serial
            }
            None => nqn.as_ref().map(|nqn| {
                let prefix = target.serial_prefix.as_ref().map(|p| p.get_ref().as_str());
                identity::serial(prefix.unwrap_or(limits::DEFAULT_SERIAL_PREFIX), nqn)
            }),
        };
        let model = match raw.model.as_ref() {
            Some(model) => self.ascii(&format!("{field}.model"), model, limits::MODEL_BYTES_MAX),
            None => Some(
                target
                    .model
                    .as_ref()
                    .map_or(limits::DEFAULT_MODEL, |m| m.get_ref())
                    .to_owned(),
            ),
        };
        let namespaces = self.namespaces(field, entry);
        let ana = self.ana(field, &raw.ana, listeners);
        Some(Subsystem {
            nqn: nqn?,
            serial: serial?,
            model: model?,
            access: access?,
            end_older_association: raw.end_older_association.unwrap_or(false),
            namespaces,
            absent: Vec::new(),
            ana,
        })
    }

    fn subsystem_nqn(&mut self, field: &str, entry: &Spanned<RawSubsystem>) -> Option<Nqn> {
        let Some(text) = &entry.get_ref().nqn else {
            self.report(
                field,
                Some(entry.span()),
                ProblemKind::Missing("`nqn = \"nqn.yyyy-mm.reverse.domain:name\"`"),
            );
            return None;
        };
        let nqn = self.nqn(field, text, subsystem_nqn)?;
        let at = self.at(field, Some(text.span()));
        unique(
            &mut self.used.nqns,
            in_one_case(&nqn),
            &nqn,
            at,
            &mut self.problems,
        );
        Some(nqn)
    }

    fn nqn(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        check: fn(&str) -> Result<Nqn, ProblemKind>,
    ) -> Option<Nqn> {
        check(text.get_ref())
            .map_err(|kind| self.report(field, Some(text.span()), kind))
            .ok()
    }

    fn access(&mut self, field: &str, entry: &Spanned<RawSubsystem>) -> Option<Access> {
        let raw = entry.get_ref();
        let none = Vec::new();
        let listed = raw
            .allowed_hosts
            .as_ref()
            .map_or(&none, |hosts| hosts.get_ref());
        let hosts_field = format!("{field}.allowed_hosts");
        self.count(&hosts_field, listed.len(), limits::ALLOWED_HOSTS_MAX);
        let mut hosts = Vec::new();
        let mut seen = HashMap::new();
        for host in listed.iter().take(limits::ALLOWED_HOSTS_MAX) {
            if let Some(nqn) = self.nqn(&hosts_field, host, any_nqn) {
                let at = self.at(&hosts_field, Some(host.span()));
                unique(&mut seen, in_one_case(&nqn), &nqn, at, &mut self.problems);
                hosts.push(nqn);
            }
        }
        match &raw.allow_any_host {
            Some(any) if *any.get_ref() && listed.is_empty() => Some(Access::AnyHost),
            Some(any) if *any.get_ref() => {
                let any_field = format!("{field}.allow_any_host");
                self.report(any_field, Some(any.span()), ProblemKind::AnyHostAndHosts);
                None
            }
            _ if raw.allowed_hosts.is_none() => {
                self.report(hosts_field, Some(entry.span()), ProblemKind::NoHosts);
                None
            }
            _ => Some(Access::Hosts(hosts)),
        }
    }

    fn namespaces(&mut self, field: &str, entry: &Spanned<RawSubsystem>) -> Vec<Namespace> {
        let raw = &entry.get_ref().namespace;
        let list = format!("{field}.namespace");
        self.count(&list, raw.len(), limits::NAMESPACES_MAX as usize);

        // Written NSIDs first: the others take the lowest that are left, in order.
        let mut nsids: HashMap<u32, At> = HashMap::new();
        let mut written = Vec::new();
        for (index, entry) in raw.iter().enumerate().take(limits::NAMESPACES_MAX as usize) {
            let field = format!("{list}[{index}].nsid");
            written.push(entry.get_ref().nsid.as_ref().and_then(|nsid| {
                let at = self.at(&field, Some(nsid.span()));
                let range = 1..=u64::from(limits::NAMESPACES_MAX);
                // What is not allowed is not used either.
                let nsid: u32 =
                    Some(self.number(&field, Some(nsid), 0, range)).filter(|&nsid| nsid != 0)?;
                unique(&mut nsids, nsid, nsid, at, &mut self.problems);
                Some(nsid)
            }));
        }
        let mut free = (1..=limits::NAMESPACES_MAX).filter(|nsid| !nsids.contains_key(nsid));
        let mut namespaces = Vec::new();
        for (index, (entry, nsid)) in raw.iter().zip(written).enumerate() {
            // As many NSIDs as namespaces are looked at: one is always left.
            let is_written = nsid.is_some();
            let Some(nsid) = nsid.or_else(|| free.next()) else {
                break;
            };
            let namespace = self.namespace(&format!("{list}[{index}]"), entry, nsid);
            namespaces.extend(namespace.map(|namespace| Namespace {
                nsid_is_written: is_written,
                ..namespace
            }));
        }
        namespaces.sort_by_key(|namespace| namespace.nsid);
        namespaces
    }

    fn namespace(
        &mut self,
        field: &str,
        entry: &Spanned<RawNamespace>,
        nsid: u32,
    ) -> Option<Namespace> {
        let raw = entry.get_ref();
        let lba = self.lba(&format!("{field}.lba"), raw.lba.as_ref());
        let backing = self.backing(field, entry, lba.unwrap_or(LbaSize::DEFAULT));
        let direct = match (&raw.direct, &backing) {
            (None, _) => DirectIo::WherePossible,
            (Some(direct), Some(backing @ (Backing::Ram { .. } | Backing::Null { .. }))) => {
                let kind = ProblemKind::NoMeaning {
                    backing: backing.kind(),
                };
                self.report(format!("{field}.direct"), Some(direct.span()), kind);
                DirectIo::WherePossible
            }
            (Some(direct), _) if *direct.get_ref() => DirectIo::Required,
            (Some(_), _) => DirectIo::Off,
        };
        if let Some(backing) = backing.as_ref().filter(|backing| !backing.lasts()) {
            for (key, value) in [("uuid", &raw.uuid), ("nguid", &raw.nguid)] {
                if let Some(value) = value {
                    let kind = ProblemKind::NotLasting {
                        backing: backing.kind(),
                    };
                    self.report(format!("{field}.{key}"), Some(value.span()), kind);
                }
            }
        }
        let uuid = raw.uuid.as_ref().map(|text| {
            let field = format!("{field}.uuid");
            let uuid = self.uuid(&field, text)?;
            let at = self.at(field, Some(text.span()));
            let (used, problems) = (&mut self.used.uuids, &mut self.problems);
            unique(used, uuid, uuid, at, problems);
            Some(uuid)
        });
        let nguid = raw.nguid.as_ref().map(|text| {
            let field = format!("{field}.nguid");
            let nguid = self.nguid(&field, text)?;
            let at = self.at(field, Some(text.span()));
            let (used, problems) = (&mut self.used.nguids, &mut self.problems);
            let name = Uuid::from_bytes(nguid).simple();
            unique(used, nguid, name, at, problems);
            Some(nguid)
        });
        Some(Namespace {
            nsid,
            nsid_is_written: true,
            backing: backing?,
            lba,
            uuid: uuid.flatten(),
            nguid: nguid.flatten(),
            read_only: raw.read_only.unwrap_or(false),
            direct,
            ana_group: self.number(
                &format!("{field}.ana_group"),
                raw.ana_group.as_ref(),
                1,
                limits::ANA_GROUP,
            ),
        })
    }

    fn lba(&mut self, field: &str, lba: Option<&Spanned<Size>>) -> Option<LbaSize> {
        let lba = lba?;
        let size = LbaSize::from_bytes(lba.get_ref().0);
        if size.is_none() {
            self.not_allowed(field, lba.span(), lba.get_ref().0, "512 or 4096");
        }
        size
    }

    fn backing(
        &mut self,
        field: &str,
        entry: &Spanned<RawNamespace>,
        lba: LbaSize,
    ) -> Option<Backing> {
        let raw = entry.get_ref();
        match (&raw.path, &raw.ram, &raw.null) {
            (Some(path), None, None) => self.path(&format!("{field}.path"), path),
            (None, Some(size), None) => {
                let size_bytes = self.volume_size(&format!("{field}.ram"), size, lba)?;
                Some(Backing::Ram { size_bytes })
            }
            (None, None, Some(size)) => {
                let size_bytes = self.volume_size(&format!("{field}.null"), size, lba)?;
                Some(Backing::Null { size_bytes })
            }
            (None, None, None) => {
                let kind = ProblemKind::OneBacking {
                    found: "there is none",
                };
                self.report(field, Some(entry.span()), kind);
                None
            }
            _ => {
                let kind = ProblemKind::OneBacking {
                    found: "there are several",
                };
                self.report(field, Some(entry.span()), kind);
                None
            }
        }
    }

    fn path(&mut self, field: &str, text: &Spanned<String>) -> Option<Backing> {
        let path = Path::new(text.get_ref());
        let refused = if text.get_ref().contains('\0') {
            Some("a path without NUL, with which the kernel ends it")
        } else if !path.is_absolute() {
            Some("an absolute path; the daemon has no folder to start from")
        } else {
            None
        };
        if let Some(allowed) = refused {
            self.not_allowed(field, text.span(), format!("{:?}", text.get_ref()), allowed);
            return None;
        }
        // `components` evens out doubled slashes and `/./`.
        let path: PathBuf = path.components().collect();
        let at = self.at(field, Some(text.span()));
        unique(
            &mut self.used.paths,
            path.clone(),
            path.display(),
            at,
            &mut self.problems,
        );
        Some(Backing::Path(path))
    }

    fn volume_size(&mut self, field: &str, size: &Spanned<Size>, lba: LbaSize) -> Option<u64> {
        let Size(size_bytes) = *size.get_ref();
        let lba_bytes = lba.bytes();
        if size_bytes == 0 {
            self.not_allowed(field, size.span(), "0", "at least one LBA");
            return None;
        }
        if !size_bytes.is_multiple_of(lba_bytes.into()) {
            let kind = ProblemKind::PartialLba {
                size_bytes,
                lba_bytes,
                smaller_lba: lba.smaller_for(size_bytes).then_some("`lba = 512`"),
            };
            self.report(field, Some(size.span()), kind);
            return None;
        }
        Some(size_bytes)
    }

    fn uuid(&mut self, field: &str, text: &Spanned<String>) -> Option<Uuid> {
        let uuid = Uuid::try_parse(text.get_ref())
            .ok()
            .filter(|uuid| !uuid.is_nil());
        if uuid.is_none() {
            let allowed = "a UUID that is not all zeroes (`uuidgen` makes one); without this key \
                           one is derived from the NQN and NSID";
            self.not_allowed(field, text.span(), format!("{:?}", text.get_ref()), allowed);
        }
        uuid
    }

    fn nguid(&mut self, field: &str, text: &Spanned<String>) -> Option<[u8; 16]> {
        // 32 hexadecimal digits, dashes as in a UUID allowed: what `nvme id-ns` and by-id print.
        let nguid = Uuid::try_parse(text.get_ref())
            .ok()
            .filter(|nguid| !nguid.is_nil());
        if nguid.is_none() {
            let allowed = "32 hexadecimal digits, not all zeroes; without this key it is the UUID";
            self.not_allowed(field, text.span(), format!("{:?}", text.get_ref()), allowed);
        }
        nguid.map(Uuid::into_bytes)
    }
}

/// Of names that [are the same](Nqn::is_same), one. A host could take two subsystems of such names
/// for one.
fn in_one_case(nqn: &Nqn) -> Nqn {
    nqn.uuid().map_or_else(|| nqn.clone(), Nqn::from_uuid)
}

/// The NQN of one of our subsystems: not the discovery subsystem's. What is not of the form that
/// the specification gives is told by [`Config::check_machine`](crate::Config::check_machine).
pub(crate) fn subsystem_nqn(text: &str) -> Result<Nqn, ProblemKind> {
    let nqn = any_nqn(text)?;
    if nqn.is_discovery() {
        let allowed = "any NQN but the discovery subsystem's".to_owned();
        return Err(ProblemKind::NotAllowed {
            value: text.to_owned(),
            allowed,
        });
    }
    Ok(nqn)
}

/// A name that can be told on the wire: tutorials and test suites call hosts and subsystems
/// `testhost` and `testnqn`.
fn any_nqn(text: &str) -> Result<Nqn, ProblemKind> {
    Nqn::new(text).map_err(|source| ProblemKind::Nqn {
        value: text.to_owned(),
        source,
    })
}
