//! Checks of `[nfs]`, `[[export]]` and the clients of an export.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use capstan_exports::clients::{Access, Anonymous, ClientRule, ClientRules, Network, Squash};
use capstan_exports::name::NameRule;
use capstan_exports::pseudo::path_names;
use capstan_exports::{ExportId, ExportSettings, FileSystemId};
use toml::Spanned;
use uuid::Uuid;

use super::{Checker, unique};
use crate::listen::parse_address;
use crate::schema::{
    RawAccess, RawClient, RawConfig, RawExport, RawListener, RawNames, RawNfs, RawSquash,
};
use crate::{
    At, DEFAULT_NFS_PORT, DEFAULT_NFS_RDMA_PORT, ListenError, Listener, Nfs, Problem, ProblemKind,
    ProviderChoice, limits,
};

/// What an export says for all of its clients.
#[derive(Clone, Copy)]
struct Defaults {
    access: RawAccess,
    squash: RawSquash,
    anonymous: Anonymous,
    secure_ports: bool,
}

impl Checker<'_> {
    pub(super) fn nfs(&mut self, raw: &RawConfig, listeners: &[Listener]) -> Option<Nfs> {
        if raw.export.is_empty() && raw.nfs.is_none() {
            return None;
        }
        let none = RawNfs::default();
        let nfs = raw.nfs.as_ref().map_or(&none, |nfs| nfs.get_ref());
        let addresses = self.nfs_addresses(raw, nfs, listeners);
        let transports = self.transports("nfs.transports", nfs.transports.as_ref());
        let provider = nfs.provider.as_ref();
        if let Some(of) = provider
            && *of.get_ref() != ProviderChoice::Auto
            && !transports.rdma
        {
            let kind = ProblemKind::NoEffect("without NFS over RDMA");
            self.report("nfs.provider", Some(of.span()), kind);
        }
        if let Some(memory) = nfs.memory.as_ref().filter(|_| !transports.rdma) {
            let kind = ProblemKind::NoEffect("without NFS over RDMA");
            self.report("nfs.memory", Some(memory.span()), kind);
        }
        let [tcp, rdma] = self.nfs_ports(nfs, [transports.tcp, transports.rdma]);
        let at = |port| move |ip: &IpAddr| Some(SocketAddr::new(*ip, port?));
        let tcp: Vec<_> = addresses.iter().filter_map(at(tcp)).collect();
        let rdma: Vec<_> = addresses.iter().filter_map(at(rdma)).collect();
        self.nfs_beside(&raw.listener, listeners, tcp.iter().chain(&rdma));
        let [lease_time, grace_time] = self.nfs_times(nfs);
        let threads_written = nfs.threads.as_ref().map(|threads| {
            let least = *limits::DEFAULT_NFS_THREADS.start();
            self.number("nfs.threads", Some(threads), least, limits::NFS_THREADS)
        });
        Some(Nfs {
            tcp,
            rdma,
            provider: provider.map_or(ProviderChoice::Auto, |of| *of.get_ref()),
            lease_time,
            grace_time,
            threads_written,
            memory_bytes: self.size(
                "nfs.memory",
                nfs.memory.as_ref(),
                limits::DEFAULT_NFS_MEMORY_BYTES,
                limits::NFS_MEMORY_BYTES,
            ),
            exports: self.exports(&raw.export),
            absent: Vec::new(),
        })
    }

    fn nfs_addresses(
        &mut self,
        raw: &RawConfig,
        nfs: &RawNfs,
        listeners: &[Listener],
    ) -> Vec<IpAddr> {
        let field = "nfs.addresses";
        let Some(written) = &nfs.addresses else {
            if raw.listener.is_empty() {
                let span = raw.nfs.as_ref().map(Spanned::span);
                let kind = ProblemKind::Missing(
                    "`addresses = [\"0.0.0.0\"]` below [nfs], or the addresses of this machine that \
                     clients are to reach",
                );
                self.report(field, span, kind);
            }
            return addresses_of(listeners);
        };
        if written.get_ref().is_empty() {
            let allowed = "one address at least; left out: those of the [[listener]] tables";
            self.not_allowed(field, written.span(), "[]", allowed);
        }
        self.count(field, written.get_ref().len(), limits::NFS_ADDRESSES_MAX);
        let mut accepted: Vec<(IpAddr, At)> = Vec::new();
        for text in written.get_ref().iter().take(limits::NFS_ADDRESSES_MAX) {
            let ip = match parse_address(text.get_ref()) {
                Ok(ip) => ip,
                Err(ListenError::NotAnAddress(value)) if value.parse::<SocketAddr>().is_ok() => {
                    let allowed =
                        "an address alone; the ports go to `port = …` and `rdma_port = …`";
                    self.not_allowed(field, text.span(), format!("\"{value}\""), allowed);
                    continue;
                }
                Err(error) => {
                    self.report(field, Some(text.span()), error);
                    continue;
                }
            };
            let at = self.at(field, Some(text.span()));
            if let Some((other, first)) = accepted.iter().find(|(other, _)| meet(*other, ip)) {
                let (value, other, first) = (ip.to_string(), other.to_string(), first.clone());
                let kind = match value == other {
                    true => ProblemKind::Duplicate { value, first },
                    false => ProblemKind::Overlap {
                        value,
                        other,
                        first,
                    },
                };
                let at = at.clone();
                self.problems.push(Problem { at, kind });
            }
            accepted.push((ip, at));
        }
        accepted.into_iter().map(|(ip, _)| ip).collect()
    }

    /// The ports of the transports that there are: of TCP, and of RDMA.
    fn nfs_ports(&mut self, nfs: &RawNfs, has: [bool; 2]) -> [Option<u16>; 2] {
        let range = 0..=u16::MAX.into();
        let ports = [
            ("nfs.port", &nfs.port, DEFAULT_NFS_PORT),
            ("nfs.rdma_port", &nfs.rdma_port, DEFAULT_NFS_RDMA_PORT),
        ];
        let [tcp, rdma] = ports.map(|(name, written, default)| {
            self.number(name, written.as_ref(), default, range.clone())
        });
        let without = [
            "without NFS over TCP, which transports leaves out",
            "without NFS over RDMA, which transports leaves out",
        ];
        for (((name, written, _), has), without) in ports.iter().zip(has).zip(without) {
            if let Some(port) = written.as_ref().filter(|_| !has) {
                self.report(*name, Some(port.span()), ProblemKind::NoEffect(without));
            }
        }
        // Whether there is an RDMA device whose ports are those of TCP is not known here.
        if has == [true, true] && tcp == rdma && tcp != 0 {
            let written = [&nfs.rdma_port, &nfs.port].into_iter().flatten().next();
            let allowed = "another port than that of the other transport";
            if let Some(written) = written {
                let field = match nfs.rdma_port.is_some() {
                    true => "nfs.rdma_port",
                    false => "nfs.port",
                };
                self.not_allowed(field, written.span(), tcp, allowed);
            }
        }
        [has[0].then_some(tcp), has[1].then_some(rdma)]
    }

    /// Hosts and clients cannot come to one port.
    fn nfs_beside<'a>(
        &mut self,
        raw: &[Spanned<RawListener>],
        listeners: &[Listener],
        addresses: impl Iterator<Item = &'a SocketAddr>,
    ) {
        for address in addresses {
            let mut others = listeners.iter().enumerate();
            let Some((index, other)) = others.find(|(_, other)| other.meets(*address)) else {
                continue;
            };
            // Those that are not accepted are missing among the listeners.
            let span = (raw.len() == listeners.len())
                .then(|| raw.get(index))
                .flatten();
            let kind = ProblemKind::Overlap {
                value: address.to_string(),
                other: other.address.to_string(),
                first: self.at(format!("listener[{index}]"), span.map(Spanned::span)),
            };
            self.report("nfs", None, kind);
        }
    }

    fn nfs_times(&mut self, nfs: &RawNfs) -> [Duration; 2] {
        let lease_time = self.time(
            "nfs.lease_time",
            nfs.lease_time.as_ref(),
            (limits::DEFAULT_LEASE_TIME, "90s"),
            limits::LEASE_TIME,
        );
        // A client finds out within a lease that the target has started anew (RFC 8881, section
        // 8.4.2.1).
        let default = lease_time.max(limits::DEFAULT_LEASE_TIME);
        let range = lease_time..=*limits::LEASE_TIME.end();
        let written = nfs.grace_time.as_ref();
        [
            lease_time,
            self.time("nfs.grace_time", written, (default, "90s"), range),
        ]
    }

    fn exports(&mut self, raw: &[Spanned<RawExport>]) -> Vec<ExportSettings> {
        self.count("export", raw.len(), limits::EXPORTS_MAX);
        let entries = raw.iter().enumerate().take(limits::EXPORTS_MAX);
        let exports: Vec<_> = entries
            .filter_map(|(index, entry)| self.export(&format!("export[{index}]"), entry))
            .collect();
        self.nested(&exports);
        exports
    }

    /// Clients come to what is below another export through that one, as on this machine. Whether
    /// it is mounted there is the machine's.
    fn nested(&mut self, exports: &[ExportSettings]) {
        for inner in exports {
            let path = Path::new(&inner.client_path);
            let above = exports.iter().filter(|outer| {
                outer.client_path != inner.client_path && path.starts_with(&outer.client_path)
            });
            let Some(outer) = above.max_by_key(|outer| outer.client_path.len()) else {
                continue;
            };
            let here = inner.path.strip_prefix(&outer.path).ok();
            if here.is_some() && here == path.strip_prefix(&outer.client_path).ok() {
                continue;
            }
            let of = |export: &ExportSettings| self.used.client_paths.get(&export.client_path);
            let (Some(at), Some(outer_at)) = (of(inner).cloned(), of(outer).cloned()) else {
                continue;
            };
            let kind = ProblemKind::NotBelow {
                inner: inner.client_path.clone(),
                outer: outer.client_path.clone(),
                outer_at: Box::new(outer_at),
                path: inner.path.clone(),
            };
            self.problems.push(Problem { at, kind });
        }
    }

    fn export(&mut self, field: &str, entry: &Spanned<RawExport>) -> Option<ExportSettings> {
        let raw = entry.get_ref();
        let path = self.export_path(field, entry);
        let client_path = self.client_path(field, raw, path.as_deref());
        let id = raw.id.as_ref().and_then(|id| {
            let field = format!("{field}.id");
            let at = self.at(&field, Some(id.span()));
            let number = u32::try_from(*id.get_ref());
            let Ok(number) = number else {
                self.number(&field, Some(id), 0_u32, limits::EXPORT_ID);
                return None;
            };
            let (used, problems) = (&mut self.used.export_ids, &mut self.problems);
            unique(used, number, number, at, problems);
            Some(ExportId(number))
        });
        let file_system = raw.file_system.as_ref().and_then(|text| {
            let uuid = Uuid::try_parse(text.get_ref()).ok();
            let uuid = uuid.filter(|uuid| !uuid.is_nil());
            if uuid.is_none() {
                let allowed = "a UUID that is not all zeroes (`uuidgen` makes one), which has to stay \
                               the same; without this key it is the file system's own";
                let (field, value) = (format!("{field}.file_system"), text.get_ref());
                self.not_allowed(field, text.span(), format!("{value:?}"), allowed);
            }
            Some(FileSystemId(uuid?.into_bytes()))
        });
        let clients = self.clients(field, entry)?;
        Some(ExportSettings {
            path: path?,
            client_path: client_path?,
            id,
            file_system,
            clients,
            names: match raw.names {
                Some(RawNames::Utf8) | None => NameRule::Utf8,
                Some(RawNames::Raw) => NameRule::Raw,
            },
            crossmnt: raw.crossmnt.unwrap_or(false),
            direct: raw.direct.unwrap_or(false),
            mount_point: raw.mount_point.unwrap_or(false),
        })
    }

    fn export_path(&mut self, field: &str, entry: &Spanned<RawExport>) -> Option<PathBuf> {
        let field = format!("{field}.path");
        let Some(text) = &entry.get_ref().path else {
            let kind = ProblemKind::Missing("`path = \"/…\"`, a directory of this machine");
            self.report(field, Some(entry.span()), kind);
            return None;
        };
        let path = Path::new(text.get_ref());
        let allowed = if text.get_ref().contains('\0') {
            "a path without NUL, with which the kernel ends it"
        } else if !path.is_absolute() {
            "an absolute path; the daemon has no folder to start from"
        } else if path.components().any(|part| part == Component::ParentDir) {
            "a path without .., as clients see it unless `pseudo` says another one"
        } else {
            return Some(path.components().collect());
        };
        self.not_allowed(field, text.span(), format!("{:?}", text.get_ref()), allowed);
        None
    }

    /// What is mounted there is another matter, and the machine's.
    fn client_path(&mut self, field: &str, raw: &RawExport, path: Option<&Path>) -> Option<String> {
        let (field, span, client_path) = match &raw.pseudo {
            Some(text) => {
                let written = text.get_ref();
                let trimmed = written.trim_end_matches('/');
                // `/` itself stays, and `/projects/` is `/projects`.
                let path = if trimmed.is_empty() { written } else { trimmed };
                (format!("{field}.pseudo"), text.span(), path.to_owned())
            }
            None => {
                let span = raw.path.as_ref()?.span();
                let path = path?.to_str()?.to_owned();
                (format!("{field}.path"), span, path)
            }
        };
        let mut names = client_path.split('/');
        if names.any(|name| name == "." || name == "..") {
            let allowed = "a path without . and .., such as /projects";
            self.not_allowed(field, span, format!("{client_path:?}"), allowed);
            return None;
        }
        if let Err(error) = path_names(&client_path) {
            self.report(field, Some(span), error);
            return None;
        }
        let at = self.at(field, Some(span));
        if raw.pseudo.is_none()
            && let Some(first) = self.used.client_paths.get(&client_path).cloned()
        {
            let kind = ProblemKind::ExportedTwice {
                path: client_path.clone(),
                first,
            };
            self.problems.push(Problem { at, kind });
            return Some(client_path);
        }
        let (used, problems) = (&mut self.used.client_paths, &mut self.problems);
        unique(used, client_path.clone(), &client_path, at, problems);
        Some(client_path)
    }

    fn clients(&mut self, field: &str, entry: &Spanned<RawExport>) -> Option<ClientRules> {
        let raw = entry.get_ref();
        let defaults = Defaults {
            access: raw.access.unwrap_or(RawAccess::ReadOnly),
            squash: raw.squash.unwrap_or(RawSquash::Root),
            anonymous: self.anonymous(field, [&raw.anonuid, &raw.anongid], Anonymous::default()),
            secure_ports: raw.secure_ports.unwrap_or(false),
        };
        let field = format!("{field}.clients");
        if raw.clients.is_empty() {
            self.report(field, Some(entry.span()), ProblemKind::NoClients);
            return None;
        }
        self.count(&field, raw.clients.len(), limits::CLIENTS_MAX);
        let mut used = HashMap::new();
        let mut rules = Vec::new();
        let clients = raw.clients.iter().enumerate().take(limits::CLIENTS_MAX);
        for (index, client) in clients {
            let field = format!("{field}[{index}]");
            let rule = self.client(&field, client, defaults);
            let Some(rule) = rule else { continue };
            let at = self.at(field, Some(client.span()));
            let network = rule.network;
            unique(&mut used, network, network, at, &mut self.problems);
            rules.push(rule);
        }
        // What it would refuse has been reported.
        ClientRules::new(rules).ok()
    }

    fn client(
        &mut self,
        field: &str,
        entry: &Spanned<RawClient>,
        defaults: Defaults,
    ) -> Option<ClientRule> {
        let raw = entry.get_ref();
        let anonymous = self.anonymous(field, [&raw.anonuid, &raw.anongid], defaults.anonymous);
        let field = format!("{field}.network");
        let Some(text) = &raw.network else {
            let kind = ProblemKind::Missing("`network = \"…\"`, such as \"192.0.2.0/24\"");
            self.report(field, Some(entry.span()), kind);
            return None;
        };
        let network = match text.get_ref().parse::<Network>() {
            Ok(network) => network,
            Err(_) if text.get_ref() == "*" => {
                let allowed = "addresses and networks; \"0.0.0.0/0\" and \"::/0\" are all of them";
                self.not_allowed(field, text.span(), "\"*\"", allowed);
                return None;
            }
            Err(_) if let Some(table) = of_exports_5(text.get_ref()) => {
                let allowed = format!(
                    "a network alone; with what its clients may, write {table} in its place"
                );
                self.not_allowed(field, text.span(), format!("{:?}", text.get_ref()), allowed);
                return None;
            }
            // An address of IPv6 has such letters, and a colon.
            Err(_)
                if text.get_ref().contains(char::is_alphabetic)
                    && !text.get_ref().contains(':') =>
            {
                let allowed = "addresses and networks, such as 192.0.2.0/24; names of machines are not resolved";
                self.not_allowed(field, text.span(), format!("{:?}", text.get_ref()), allowed);
                return None;
            }
            Err(error) => {
                self.report(field, Some(text.span()), error);
                return None;
            }
        };
        Some(ClientRule {
            network,
            access: match raw.access.unwrap_or(defaults.access) {
                RawAccess::ReadOnly => Access::ReadOnly,
                RawAccess::ReadWrite => Access::ReadWrite,
            },
            squash: match raw.squash.unwrap_or(defaults.squash) {
                RawSquash::Root => Squash::Root,
                RawSquash::All => Squash::All,
                RawSquash::None => Squash::None,
            },
            anonymous,
            secure_ports: raw.secure_ports.unwrap_or(defaults.secure_ports),
        })
    }

    fn anonymous(
        &mut self,
        field: &str,
        [uid, gid]: [&Option<Spanned<u64>>; 2],
        default: Anonymous,
    ) -> Anonymous {
        let mut id = |key: &str, written: &Option<Spanned<u64>>, default: u32| {
            let field = format!("{field}.{key}");
            self.number(&field, written.as_ref(), default, limits::ANONYMOUS_ID)
        };
        Anonymous {
            uid: id("anonuid", uid, default.uid),
            gid: id("anongid", gid, default.gid),
        }
    }
}

/// What the clients of a line of exports(5) are here: `192.0.2.0/24(rw,no_root_squash)`.
fn of_exports_5(text: &str) -> Option<String> {
    let (network, options) = text.strip_suffix(')')?.split_once('(')?;
    let network = match network {
        "*" | "" => "0.0.0.0/0",
        network => network,
    };
    network.parse::<Network>().ok()?;
    let has = |word: &str| options.split(',').any(|option| option.trim() == word);
    let access = if has("rw") { "read-write" } else { "read-only" };
    let squash = match (has("no_root_squash"), has("all_squash")) {
        (true, _) => ", squash = \"none\"",
        (false, true) => ", squash = \"all\"",
        (false, false) => "",
    };
    Some(format!(
        "{{ network = \"{network}\", access = \"{access}\"{squash} }}"
    ))
}

/// Whether sockets at the two addresses, with one port, would be in each other's way.
fn meet(one: IpAddr, other: IpAddr) -> bool {
    let families = one.is_ipv4() == other.is_ipv4();
    families && (one == other || one.is_unspecified() || other.is_unspecified())
}

/// Those of the listeners, each once; of a family where one is every address, that one.
fn addresses_of(listeners: &[Listener]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in listeners.iter().map(|listener| listener.address.ip()) {
        if ip.is_unspecified() {
            addresses.retain(|other| !meet(*other, ip));
        }
        if !addresses.iter().any(|other| meet(*other, ip)) {
            addresses.push(ip);
        }
    }
    addresses
}
