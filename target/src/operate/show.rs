//! Answers as a person reads them.

use std::time::Duration;

use capstan_config::Size;
use capstan_control::answer::{
    AnaGroup, Changed, ConfigDiff, ConfigText, Connection, Disconnected, Drained, Ending, Export,
    Host, Listener, LogLevel, Namespace, NfsClient, Refused, Reservations, Status, Subsystem,
    Waits,
};
use capstan_nvme_proto::text::Shown;
use comfy_table::{Table, presets};

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    // Columns begin where lines do.
    let lines = table.lines().map(|line| {
        line.strip_prefix(' ')
            .unwrap_or(&line)
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn ago(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

fn waits(waits: Option<&Waits>) -> Option<String> {
    waits.map(|waits| format!("waits since {}: {}", ago(waits.since_s), waits.why))
}

/// Unless there is nothing to be said of it.
fn list<T>(all: &[T], nothing: &str, shown: impl FnOnce(&[T]) -> String) -> String {
    match all {
        [] => nothing.to_owned(),
        all => shown(all),
    }
}

pub(super) fn status(status: &Status) -> String {
    let mut parts = vec![format!(
        "capstan-target {}, process {}, up {}, {} reactor(s), log level {}",
        status.version,
        status.pid,
        ago(status.up_s),
        status.reactors,
        status.log
    )];
    let files = match &status.config.files[..] {
        [] => "no file".to_owned(),
        files => files.join(", "),
    };
    parts.push(match status.config.unsaved.len() {
        0 => format!("configuration: {files}"),
        changes => format!(
            "configuration: {files}; {} (`capstan-target config diff` shows them)",
            unsaved(changes, !status.config.files.is_empty())
        ),
    });
    if let Some(drained_s) = status.drained_s {
        parts.push(format!(
            "drained {} ago: takes no connections (`capstan-target drain --off` takes them again); connected: {}",
            ago(drained_s),
            status.connections
        ));
    }
    for trouble in &status.trouble {
        parts.push(format!("trouble: {trouble}"));
    }
    if !status.listeners.is_empty() {
        parts.push(format!("\n{}", listeners(&status.listeners)));
    }
    if !status.subsystems.is_empty() {
        parts.push(format!("\n{}", subsystems(&status.subsystems)));
    }
    if let Some(nfs) = &status.nfs {
        parts.push(format!(
            "\nNFS at {}\n{}",
            nfs.addresses.join(", "),
            exports(&nfs.exports)
        ));
    }
    parts.join("\n")
}

pub(super) fn subsystems(all: &[Subsystem]) -> String {
    list(all, "there is no subsystem", |all| {
        let each = all.iter().map(subsystem);
        each.collect::<Vec<_>>().join("\n\n")
    })
}

fn subsystem(of: &Subsystem) -> String {
    let hosts = match (of.allow_any_host, &of.allowed_hosts[..]) {
        (true, _) => "any host".to_owned(),
        (false, []) => "no host yet (`capstan-target host allow`)".to_owned(),
        (false, hosts) => hosts.join(", "),
    };
    let head = format!(
        "{}\n  hosts: {hosts}; connected: {}; serial {}, model {}",
        of.nqn, of.connections, of.serial, of.model
    );
    let namespaces = list(&of.namespaces, NO_NAMESPACE, namespaces);
    format!("{head}\n{}", indented(&namespaces))
}

/// Of each subsystem.
pub(super) fn namespaces_of(all: &[Subsystem]) -> String {
    list(all, "there is no subsystem", |all| {
        let each = all.iter().map(|of| {
            let namespaces = list(&of.namespaces, NO_NAMESPACE, namespaces);
            format!("{}\n{}", of.nqn, indented(&namespaces))
        });
        each.collect::<Vec<_>>().join("\n\n")
    })
}

const NO_NAMESPACE: &str = "no namespace yet (`capstan-target namespace add`)";

fn indented(lines: &str) -> String {
    let lines: Vec<_> = lines.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

fn namespaces(all: &[Namespace]) -> String {
    let rows = all.iter().map(|of| {
        let read_only = of.read_only.then(|| "read-only".to_owned());
        let state: Vec<_> = read_only
            .into_iter()
            .chain(of.reservations.as_ref().map(reservations))
            .chain(waits(of.waits.as_ref()))
            .collect();
        [
            of.nsid.to_string(),
            of.backing.clone(),
            Size(of.size_bytes).to_string(),
            of.lba_bytes.to_string(),
            of.uuid.clone().unwrap_or_default(),
            Size(of.io.read_bytes).to_string(),
            Size(of.io.written_bytes).to_string(),
            state.join("; "),
        ]
    });
    table(
        ["NSID", "ON", "SIZE", "LBA", "UUID", "READ", "WRITTEN", ""],
        rows,
    )
}

/// Reservations in a few words; `-o json` has all of them.
fn reservations(of: &Reservations) -> String {
    if of.unknown {
        return "reservations unknown: no host reads or writes".to_owned();
    }
    let holder = of.registrants.iter().find(|one| one.holds);
    let by = holder.map(|one| one.host.as_deref().unwrap_or(&one.host_id));
    let persists = if of.persists { ", persists" } else { "" };
    match (&of.rtype, by) {
        (Some(rtype), Some(by)) => format!("{rtype} by {by}{persists}"),
        _ => format!("hosts registered: {}{persists}", of.registrants.len()),
    }
}

pub(super) fn ana(all: &[AnaGroup]) -> String {
    list(
        all,
        "there is no namespace, and no ANA state is set",
        |all| {
            let rows = all.iter().flat_map(|of| {
                let nsids: Vec<_> = of.namespaces.iter().map(ToString::to_string).collect();
                of.paths.iter().map(move |path| {
                    [
                        of.subsystem.clone(),
                        of.group.to_string(),
                        nsids.join(", "),
                        path.listener.clone(),
                        path.state.clone(),
                    ]
                })
            });
            let head = ["SUBSYSTEM", "GROUP", "NAMESPACES", "LISTENER", "STATE"];
            table(head, rows)
        },
    )
}

pub(super) fn hosts(all: &[Host]) -> String {
    let nothing = "no host is listed, and none is connected; `capstan-target status` says where any host may connect";
    list(all, nothing, |all| {
        let rows = all.iter().map(|host| {
            let how = if host.is_listed {
                "listed"
            } else {
                "any host may"
            };
            [
                host.host.clone(),
                host.subsystem.clone(),
                how.to_owned(),
                host.connections.to_string(),
            ]
        });
        table(["HOST", "SUBSYSTEM", "ALLOWED", "CONNECTIONS"], rows)
    })
}

pub(super) fn listeners(all: &[Listener]) -> String {
    list(all, "there is no listener", |all| {
        let rows = all.iter().map(|of| {
            [
                of.address.clone(),
                of.transports.join(", "),
                of.provider.clone(),
                waits(of.waits.as_ref()).unwrap_or_default(),
            ]
        });
        table(["LISTENER", "TRANSPORTS", "PROVIDER", ""], rows)
    })
}

pub(super) fn exports(all: &[Export]) -> String {
    list(all, "there is no export", |all| {
        let rows = all.iter().map(|of| {
            [
                of.pseudo.clone(),
                of.path.clone(),
                of.clients.join(", "),
                waits(of.waits.as_ref()).unwrap_or_default(),
            ]
        });
        table(["EXPORT", "DIRECTORY", "CLIENTS", ""], rows)
    })
}

pub(super) fn connections(all: &[Connection]) -> String {
    list(all, "no host is connected", |all| {
        let rows = all.iter().map(|of| {
            [
                of.host.clone(),
                of.subsystem.clone(),
                of.cntlid.to_string(),
                of.transport.clone(),
                of.from.clone(),
                of.to.clone(),
                of.io_queues.to_string(),
                Size(of.io.read_bytes).to_string(),
                Size(of.io.written_bytes).to_string(),
            ]
        });
        let head = [
            "HOST",
            "SUBSYSTEM",
            "CNTLID",
            "TRANSPORT",
            "FROM",
            "TO",
            "I/O QUEUES",
            "READ",
            "WRITTEN",
        ];
        table(head, rows)
    })
}

pub(super) fn disconnected(of: &Disconnected) -> String {
    let each = of.ended.iter().map(|one| {
        format!(
            "disconnected: {} from {} (controller {} of {})",
            one.host, one.from, one.cntlid, one.subsystem
        )
    });
    each.collect::<Vec<_>>().join("\n")
}

/// Of all hosts, or of one.
pub(super) fn refused(all: &[Refused], of_host: Option<&str>) -> String {
    let of_host = of_host.map(|host| format!(" of {}", Shown(host)));
    list(
        all,
        &format!(
            "no connect{} was refused since the target has started, of those that are kept (64)",
            of_host.unwrap_or_default()
        ),
        |all| {
            let each = all.iter().map(|of| {
                let host = of
                    .host
                    .as_deref()
                    .unwrap_or("a host that had not said its name");
                let mend = of.mend.as_ref().map(|mend| format!("\n  {mend}"));
                format!(
                    "{} ago, {host} from {}: {}{}",
                    ago(of.ago_s),
                    of.from,
                    of.why,
                    mend.unwrap_or_default()
                )
            });
            each.collect::<Vec<_>>().join("\n")
        },
    )
}

pub(super) fn nfs_clients(all: &[NfsClient]) -> String {
    list(all, "no NFS client of version 4 is there", |all| {
        let rows = all.iter().map(|of| {
            [
                of.client.clone(),
                of.from.clone(),
                ago(of.seen_s),
                of.sessions.to_string(),
                of.states.to_string(),
            ]
        });
        table(
            ["CLIENT", "FROM", "SEEN", "SESSIONS", "OPENS AND LOCKS"],
            rows,
        )
    })
}

pub(super) fn changed(of: &Changed) -> String {
    let warnings = of.warnings.iter().map(|words| format!("warning: {words}"));
    let unsaved = (of.unsaved > 0).then(|| unsaved(of.unsaved, of.savable));
    let lines = [of.changes.clone()].into_iter().chain(warnings);
    lines.chain(unsaved).collect::<Vec<_>>().join("\n")
}

/// Changes that go with the target, and how they are kept.
fn unsaved(changes: usize, savable: bool) -> String {
    match savable {
        true => format!(
            "changes that are in no file: {changes} (`capstan-target config save` keeps them)"
        ),
        false => format!(
            "changes that go with this target, which was started without a file: {changes} (`capstan-target config show` writes \
             what one has to say)"
        ),
    }
}

pub(super) fn ending(of: &Ending) -> String {
    let each = of
        .discarded
        .iter()
        .map(|change| format!("discarded: {change}"));
    each.chain(["the target ends".to_owned()])
        .collect::<Vec<_>>()
        .join("\n")
}

pub(super) fn drained(of: &Drained) -> String {
    match (of.drained, of.connections) {
        (true, 0) => "drained: no host is connected, and none is taken until `capstan-target drain --off` or a restart".to_owned(),
        (true, connections) => format!(
            "drained: no host is taken, but {connections} connection(s) have not ended: storage still has commands of them; \
             `capstan-target status` says how many are left"
        ),
        (false, _) => "connections are taken".to_owned(),
    }
}

pub(super) fn log_level(of: &LogLevel) -> String {
    match of.level == of.was {
        true => of.level.clone(),
        false => format!("{} (was {})", of.level, of.was),
    }
}

pub(super) fn config(of: &ConfigText) -> String {
    let several = of.files.len() > 1;
    let each = of.files.iter().map(|file| match &file.path {
        Some(path) if several => format!("# {path}\n{}", file.text),
        _ => file.text.clone(),
    });
    each.collect::<Vec<_>>().join("\n")
}

pub(super) fn diff(of: &ConfigDiff) -> String {
    let changes = of.unsaved.iter().map(|change| format!("# {change}"));
    let changes: Vec<_> = changes.collect();
    match (changes.is_empty(), of.diff.is_empty()) {
        (_, true) => "the file says what is served".to_owned(),
        (true, false) => of.diff.clone(),
        (false, false) => format!("{}\n{}", changes.join("\n"), of.diff),
    }
}
