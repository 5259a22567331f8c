//! Changes that are made at run time: of the text, and then of what is served.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use capstan_config::{
    Config, ConfigError, EditError, Entry, EntryValue, Namespace, Nqn, Subsystem, Written,
};
use capstan_control::answer::Changed;
use capstan_control::{
    AddExport, AddListener, AddNamespace, AddSubsystem, Failure, Kind, NamespacePlace, SetNamespace,
};

use super::words::{ToldBy, Words};
use super::{Steering, locked};

pub(super) type Edited = Result<(), Failure>;

fn nsids(of: &Subsystem) -> BTreeSet<u32> {
    of.configured().map(|namespace| namespace.nsid).collect()
}

impl Steering {
    /// Changes the text by `edit` and carries out what is different then: all of it or nothing.
    /// `words` say the change in `config diff` and warnings.
    pub(super) fn change(
        &self,
        words: Words,
        edit: impl FnOnce(&mut Written, &Config) -> Edited,
    ) -> Result<Changed, Failure> {
        let mut served = locked(&self.served);
        let mut next = self.texts().running().clone();
        edit(&mut next, served.config())?;
        let config = next.config().map_err(|error| invalid(&error))?;
        let reloaded = served.reload(config, &self.control, self.reactors);
        let reloaded =
            reloaded.map_err(|error| Failure::new(Kind::Refused, format!("{error:#}")))?;
        let (words, told_by) = words.into_parts();
        let done = format!("{words}: done");
        let changes = match (&reloaded.namespaces[..], told_by) {
            ([], _) => done,
            (namespaces, ToldBy::Namespaces) => namespaces.join("\n"),
            (namespaces, ToldBy::Words) => format!("{done}\n{}", namespaces.join("\n")),
        };
        let answer = {
            let mut texts = self.texts();
            texts.changed(next, words);
            texts.answer()
        };
        self.publish(&served);
        Ok(Changed {
            changes,
            warnings: reloaded.warnings,
            ..answer
        })
    }

    pub(super) fn set_log_level(&self, level: &str) -> Result<Changed, Failure> {
        self.change(Words::new("log level").argument(level), |text, _| {
            edited(text.set_target("log", &EntryValue::Text(level.to_owned())))
        })
    }

    pub(super) fn add_subsystem(&self, add: &AddSubsystem) -> Result<Changed, Failure> {
        let mut words = Words::new("subsystem add").argument(&add.nqn);
        for host in &add.allowed_hosts {
            words = words.option("--host", Some(host));
        }
        let words = words
            .flag("--allow-any-host", add.allow_any_host)
            .option("--serial", add.serial.as_ref())
            .option("--model", add.model.as_ref());
        self.change(words, |text, config| {
            let nqn = read_nqn("nqn", &add.nqn)?;
            if config.subsystems.iter().any(|of| of.nqn.is_same(&nqn)) {
                return Err(exists("subsystem", "nqn", &add.nqn));
            }
            let mut entry: Entry = vec![("nqn", text_of(&add.nqn))];
            put(&mut entry, "serial", add.serial.as_deref().map(text_of));
            put(&mut entry, "model", add.model.as_deref().map(text_of));
            let hosts = EntryValue::Texts(add.allowed_hosts.clone());
            match add.allow_any_host {
                true => entry.push(("allow_any_host", EntryValue::Bool(true))),
                false => entry.push(("allowed_hosts", hosts.clone())),
            }
            if add.allow_any_host && !add.allowed_hosts.is_empty() {
                // Its check says that they contradict each other.
                entry.push(("allowed_hosts", hosts));
            }
            edited(text.add_subsystem(&entry))
        })
    }

    pub(super) fn remove_subsystem(&self, nqn: &str) -> Result<Changed, Failure> {
        self.change(
            Words::new("subsystem remove").argument(nqn),
            |text, config| edited(text.remove_subsystem(&subsystem("nqn", nqn, config)?.nqn)),
        )
    }

    pub(super) fn add_namespace(&self, add: &AddNamespace) -> Result<Changed, Failure> {
        let backings = [("path", &add.path), ("ram", &add.ram), ("null", &add.null)];
        let mut words = Words::new("namespace add").argument(&add.subsystem);
        for (kind, on) in backings {
            // As the command has it.
            words = match on {
                Some(path) if kind == "path" => words.argument(path),
                Some(size) => words.argument(format!("{kind}:{size}")),
                None => words,
            };
        }
        let words = words
            .option("--nsid", add.nsid)
            .option("--lba", add.lba)
            .option("--uuid", add.uuid.as_ref())
            .option("--nguid", add.nguid.as_ref())
            .flag("--read-only", add.read_only)
            .told_by_namespaces();
        let mut before = BTreeSet::new();
        let changed = self.change(words, |text, config| {
            let of = subsystem("subsystem", &add.subsystem, config)?;
            before = nsids(of);
            if let Some(nsid) = add.nsid
                && of.configured().any(|namespace| namespace.nsid == nsid)
            {
                return Err(exists("namespace", "nsid", &nsid.to_string()));
            }
            let mut entry = Entry::new();
            put(&mut entry, "nsid", add.nsid.map(EntryValue::Number));
            for (kind, on) in backings {
                put(&mut entry, kind, on.as_deref().map(text_of));
            }
            put(&mut entry, "lba", add.lba.map(EntryValue::Number));
            put(&mut entry, "uuid", add.uuid.as_deref().map(text_of));
            put(&mut entry, "nguid", add.nguid.as_deref().map(text_of));
            put(
                &mut entry,
                "read_only",
                add.read_only.then_some(EntryValue::Bool(true)),
            );
            put(&mut entry, "direct", add.direct.map(EntryValue::Bool));
            edited(text.add_namespace(&of.nqn, &entry))
        })?;
        let served = locked(&self.served);
        let of = subsystem("subsystem", &add.subsystem, served.config()).ok();
        let nsid = of.and_then(|of| nsids(of).difference(&before).next().copied());
        Ok(Changed { nsid, ..changed })
    }

    pub(super) fn remove_namespace(&self, place: &NamespacePlace) -> Result<Changed, Failure> {
        let NamespacePlace { subsystem, nsid } = place;
        let words = Words::new("namespace remove")
            .argument(subsystem)
            .argument(nsid);
        self.change(words.told_by_namespaces(), |text, config| {
            let (of, namespace) = namespace(place, config)?;
            edited(text.remove_namespace(of, namespace.nsid))
        })
    }

    pub(super) fn set_namespace(&self, set: &SetNamespace) -> Result<Changed, Failure> {
        let SetNamespace {
            subsystem,
            nsid,
            read_only,
            ana_group,
        } = set;
        let change = Words::new("namespace set")
            .argument(subsystem)
            .argument(nsid)
            .option("--read-only", *read_only)
            .option("--ana-group", *ana_group)
            .told_by_namespaces();
        if read_only.is_none() && ana_group.is_none() {
            let words = "namespace.set needs read_only, ana_group or both: what is to be changed of the namespace";
            return Err(Failure::new(Kind::WrongParameters, words));
        }
        let place = NamespacePlace {
            subsystem: subsystem.clone(),
            nsid: *nsid,
        };
        self.change(change, |text, config| {
            let (of, namespace) = namespace(&place, config)?;
            let read_only = read_only.filter(|new| *new != namespace.read_only);
            let group = ana_group.filter(|new| *new != namespace.ana_group);
            if read_only.is_none() && group.is_none() {
                let words = format!(
                    "namespace {nsid} of {} is so already; nothing is to be changed",
                    of.nqn
                );
                return Err(Failure::new(Kind::Exists, words));
            }
            let values = [
                ("read_only", read_only.map(EntryValue::Bool)),
                ("ana_group", group.map(EntryValue::Number)),
            ];
            values
                .iter()
                .filter(|(_, value)| value.is_some())
                .try_for_each(|(key, value)| {
                    edited(text.set_namespace(of, namespace.nsid, key, value.as_ref()))
                })
        })
    }

    pub(super) fn allow_host(&self, of: &str, host: &str) -> Result<Changed, Failure> {
        let words = Words::new("host allow").argument(of).argument(host);
        self.change(words, |text, config| {
            let of = subsystem("subsystem", of, config)?;
            edited(text.allow_host(&of.nqn, &read_nqn("host", host)?))
        })
    }

    pub(super) fn allow_any_host(&self, of: &str, allowed: bool) -> Result<Changed, Failure> {
        let word = match allowed {
            true => "allow",
            false => "deny",
        };
        let words = Words::new(format!("host {word}"))
            .argument(of)
            .flag("--any", true);
        self.change(words, |text, config| {
            let of = subsystem("subsystem", of, config)?;
            edited(text.allow_any_host(&of.nqn, allowed))
        })
    }

    pub(super) fn deny_host(&self, of: &str, host: &str) -> Result<Changed, Failure> {
        let words = Words::new("host deny").argument(of).argument(host);
        self.change(words, |text, config| {
            let of = subsystem("subsystem", of, config)?;
            edited(text.deny_host(&of.nqn, &read_nqn("host", host)?))
        })
    }

    pub(super) fn add_listener(&self, add: &AddListener) -> Result<Changed, Failure> {
        let transports = (!add.transports.is_empty()).then(|| add.transports.join(","));
        let words = Words::new("listener add")
            .argument(&add.address)
            .option("--port", add.port)
            .option("--provider", add.provider.as_ref())
            .option("--transports", transports);
        self.change(words, |text, _| {
            let mut entry: Entry = vec![("address", text_of(&add.address))];
            put(
                &mut entry,
                "port",
                add.port.map(|port| EntryValue::Number(port.into())),
            );
            put(&mut entry, "provider", add.provider.as_deref().map(text_of));
            let transports = EntryValue::Texts(add.transports.clone());
            put(
                &mut entry,
                "transports",
                (!add.transports.is_empty()).then_some(transports),
            );
            edited(text.add_listener(&entry))
        })
    }

    pub(super) fn remove_listener(&self, address: &str) -> Result<Changed, Failure> {
        let words = Words::new("listener remove").argument(address);
        self.change(words, |text, config| {
            let listeners = config.listeners.iter().map(|of| of.address.to_string());
            let listeners: Vec<_> = listeners.collect();
            let there = address.parse::<SocketAddr>().ok();
            let there = there.filter(|at| config.listeners.iter().any(|of| of.address == *at));
            let names = listeners.iter().map(String::as_str);
            let there =
                there.ok_or_else(|| Failure::not_found("listener", "address", address, names))?;
            edited(text.remove_listener(there))
        })
    }

    pub(super) fn add_export(&self, add: &AddExport) -> Result<Changed, Failure> {
        let words = Words::new("export add")
            .argument(&add.path)
            .option("--clients", Some(add.clients.join(",")))
            .option("--pseudo", add.pseudo.as_ref())
            .flag("--read-write", add.access.as_deref() == Some("read-write"))
            .option("--squash", add.squash.as_ref())
            .option("--file-system", add.file_system.as_ref());
        self.change(words, |text, _| {
            let mut entry: Entry = vec![("path", text_of(&add.path))];
            put(&mut entry, "pseudo", add.pseudo.as_deref().map(text_of));
            put(&mut entry, "access", add.access.as_deref().map(text_of));
            put(&mut entry, "squash", add.squash.as_deref().map(text_of));
            put(
                &mut entry,
                "file_system",
                add.file_system.as_deref().map(text_of),
            );
            entry.push(("clients", EntryValue::Texts(add.clients.clone())));
            edited(text.add_export(&entry))
        })
    }

    pub(super) fn remove_export(&self, pseudo: &str) -> Result<Changed, Failure> {
        let words = Words::new("export remove").argument(pseudo);
        self.change(words, |text, config| {
            let nfs = config.nfs.iter();
            let exports = nfs.flat_map(|nfs| nfs.exports.iter().chain(&nfs.absent));
            let names: Vec<_> = exports.map(|export| export.client_path.as_str()).collect();
            if !names.contains(&pseudo) {
                return Err(Failure::not_found("export", "pseudo", pseudo, names));
            }
            edited(text.remove_export(pseudo))
        })
    }
}

fn text_of(text: &str) -> EntryValue {
    EntryValue::Text(text.to_owned())
}

fn put(entry: &mut Entry, key: &'static str, value: Option<EntryValue>) {
    entry.extend(value.map(|value| (key, value)));
}

pub(super) fn edited(result: Result<(), EditError>) -> Edited {
    result.map_err(|error| {
        let kind = match &error {
            EditError::NotThere(_) => Kind::NotFound,
            EditError::AlreadySo(_) => Kind::Exists,
            EditError::CannotBeSaid(_) => Kind::Refused,
        };
        Failure::new(kind, error.to_string())
    })
}

fn exists(what: &str, field: &str, name: &str) -> Failure {
    let words = format!(
        "{what} {name} exists already; expected another one, or `capstan-target {what} remove` first"
    );
    Failure::new(Kind::Exists, words)
        .of_field(field)
        .of_value(name)
}

pub(super) fn read_nqn(field: &str, text: &str) -> Result<Nqn, Failure> {
    Nqn::new(text).map_err(|error| {
        let words = format!("{field} is `{}`: {error}", text.escape_debug());
        Failure::new(Kind::Invalid, words)
            .of_field(field)
            .of_value(text)
            .allowed(
                "1 to 223 bytes without control characters, such as nqn.2026-11.org.example:disk",
            )
    })
}

/// The subsystem of that name.
pub(super) fn subsystem<'c>(
    field: &str,
    name: &str,
    config: &'c Config,
) -> Result<&'c Subsystem, Failure> {
    let nqn = read_nqn(field, name)?;
    let found = config.subsystems.iter().find(|of| of.nqn.is_same(&nqn));
    let names = config.subsystems.iter().map(|of| of.nqn.as_str());
    found.ok_or_else(|| Failure::not_found("subsystem", field, name, names))
}

/// The namespace at a place, and its subsystem.
pub(super) fn namespace<'c>(
    place: &NamespacePlace,
    config: &'c Config,
) -> Result<(&'c Subsystem, &'c Namespace), Failure> {
    let of = subsystem("subsystem", &place.subsystem, config)?;
    let found = of
        .configured()
        .find(|namespace| namespace.nsid == place.nsid);
    let namespace = found.ok_or_else(|| {
        let nsids: Vec<_> = of.configured().map(|of| of.nsid.to_string()).collect();
        let names = nsids.iter().map(String::as_str);
        let what = format!("namespace of {}", of.nqn);
        Failure::not_found(&what, "nsid", &place.nsid.to_string(), names)
    })?;
    Ok((of, namespace))
}

/// What the check of a configuration found, of which the first is told in parts.
fn invalid(error: &ConfigError) -> Failure {
    let error = match error {
        ConfigError::In { error, .. } => error,
        other => other,
    };
    let ConfigError::Invalid(problems) = error else {
        return Failure::new(Kind::Invalid, error.to_string());
    };
    // Lines would be those of a file that is not written.
    let words: Vec<_> = problems
        .iter()
        .map(|problem| format!("{}: {}", problem.at.field, problem.kind))
        .collect();
    let failure = Failure::new(Kind::Invalid, words.join("\n"));
    let Some(first) = problems.iter().next() else {
        return failure;
    };
    let details = first.kind.details();
    let mut failure = failure.of_field(&first.at.field).meant(details.nearest);
    if let Some(value) = details.value {
        failure = failure.of_value(value);
    }
    match details.allowed {
        Some(allowed) => failure.allowed(allowed),
        None => failure,
    }
}
