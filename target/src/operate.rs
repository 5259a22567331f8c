//! The commands that ask or tell a target that runs, over its control socket.

mod save;
mod show;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use capstan_control::answer::{
    AnaGroup, Changed, ConfigDiff, ConfigText, Connection, Disconnected, Drained, Ending, Export,
    Host, Listener, LogLevel, NfsClient, Refused, Status, Subsystem,
};
use capstan_control::{
    AddExport, AddListener, AddNamespace, AddSubsystem, AnaPlace, Client, ConfigForm,
    DisconnectWhich, Drain, Levels, NamespacePlace, Request, ResizeNamespace, SetAna, SetNamespace,
};
use capstan_doctor::Summary;
use serde::de::DeserializeOwned;

use crate::cli::Output;
use crate::cli::steer::{
    self, AnaCommand, ClientCommand, ConfigCommand, ConnectionCommand, ExportCommand, For,
    HostCommand, HostMeant, ListenerCommand, LogCommand, NamespaceAdd, NamespaceCommand, Operation,
    SubsystemCommand, To,
};
use crate::steering::socket;
use crate::upgrade;

/// How often a target that is drained is looked at.
const DRAIN_LOOKS: Duration = Duration::from_millis(100);
/// How long hosts may be there behind the time that they were given: what storage has is waited
/// for.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// Prints lines on stdout.
pub type Print = fn(&str) -> anyhow::Result<()>;

/// Carries it out and prints the answer.
///
/// # Errors
/// There is no target, or it does not do it; stdout cannot be written to.
pub fn run(operation: Operation, print: Print) -> anyhow::Result<()> {
    match operation {
        Operation::Status(of) => ask::<Status>(&of.to, &Request::Status {}, print, show::status),
        Operation::Reload(of) => {
            let discard = of.what.discard;
            change(&of.to, &Request::Reload { discard }, print)
        }
        Operation::Stop(of) => {
            let discard = of.what.discard;
            ask::<Ending>(&of.to, &Request::Stop { discard }, print, show::ending)
        }
        Operation::Drain(of) => drain(&of.what, &of.to, print),
        Operation::Subsystem(command) => subsystem(command, print),
        Operation::Namespace(command) => namespace(command, print),
        Operation::Ana(command) => ana(command, print),
        Operation::Host(command) => host(command, print),
        Operation::Listener(command) => listener(command, print),
        Operation::Export(command) => export(command, print),
        Operation::Client(ClientCommand::List(For { to, .. })) => {
            ask::<Vec<NfsClient>>(&to, &Request::ClientList {}, print, |all| {
                show::nfs_clients(all)
            })
        }
        Operation::Connection(command) => connection(command, print),
        Operation::Config(command) => config(command, print),
        Operation::Log(LogCommand::Level(of)) => {
            let levels = Levels {
                level: of.what.level,
            };
            ask::<LogLevel>(&of.to, &Request::LogLevel(levels), print, show::log_level)
        }
        Operation::Explain(of) => {
            let host = of.what.host;
            let request = Request::Explain { host: host.clone() };
            ask::<Vec<Refused>>(&of.to, &request, print, |refused| {
                show::refused(refused, host.as_deref())
            })
        }
        Operation::Upgrade(of) => look_for_upgrade(&of.to, print),
    }
}

fn path(to: &To) -> PathBuf {
    to.control_socket.clone().unwrap_or_else(socket::of_service)
}

fn connect(to: &To) -> anyhow::Result<Client> {
    Ok(Client::connect(&path(to))?)
}

/// Asks, and prints the answer: as JSON, or as `shown`.
fn ask<T: DeserializeOwned>(
    to: &To,
    request: &Request,
    print: Print,
    shown: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let mut client = connect(to)?;
    match to.output {
        Output::Json => print(&format!("{:#}", client.call(request)?)),
        Output::Normal => {
            let text = shown(&client.ask(request)?);
            match text.trim_end() {
                "" => Ok(()),
                text => print(text),
            }
        }
    }
}

fn change(to: &To, request: &Request, print: Print) -> anyhow::Result<()> {
    ask::<Changed>(to, request, print, show::changed)
}

/// Waits until the hosts are gone: it is for what comes behind it.
fn drain(what: &steer::Drain, to: &To, print: Print) -> anyhow::Result<()> {
    let mut client = connect(to)?;
    let request = Request::Drain(Drain {
        within_s: what.within,
        off: what.off,
    });
    let mut drained: Drained = client.ask(&request)?;
    if let Some(within_s) = drained.within_s {
        let deadline = Instant::now() + Duration::from_secs(within_s) + DRAIN_PATIENCE;
        while drained.drained && drained.connections > 0 && Instant::now() < deadline {
            thread::sleep(DRAIN_LOOKS);
            let status: Status = client.ask(&Request::Status {})?;
            drained.connections = status.connections;
            // Another command may have taken them in again.
            drained.drained = status.drained_s.is_some();
        }
    }
    match to.output {
        Output::Json => print(&serde_json::to_string_pretty(&drained)?),
        Output::Normal => print(&show::drained(&drained)),
    }
}

fn look_for_upgrade(to: &To, print: Print) -> anyhow::Result<()> {
    let checks = upgrade::checks(&mut connect(to)?)?;
    match to.output {
        Output::Json => print(&format!("{:#}", capstan_doctor::json(&checks)))?,
        Output::Normal => print(&capstan_doctor::text(&checks))?,
    }
    match Summary::of(&checks).errors {
        0 => Ok(()),
        errors => bail!(
            "this binary does not take over all that the target has: {errors} of {} checks failed; mend what they name \
             before a restart with it",
            checks.len()
        ),
    }
}

fn subsystem(command: SubsystemCommand, print: Print) -> anyhow::Result<()> {
    match command {
        SubsystemCommand::Add(For { what, to }) => {
            let add = AddSubsystem {
                nqn: what.nqn,
                serial: what.serial,
                model: what.model,
                allowed_hosts: what.hosts,
                allow_any_host: what.allow_any_host,
            };
            change(&to, &Request::SubsystemAdd(add), print)
        }
        SubsystemCommand::Remove(For { what, to }) => {
            change(&to, &Request::SubsystemRemove { nqn: what.nqn }, print)
        }
        SubsystemCommand::Show(For { what, to }) => {
            let request = Request::SubsystemShow { nqn: what.nqn };
            ask::<Vec<Subsystem>>(&to, &request, print, |all| show::subsystems(all))
        }
    }
}

fn namespace(command: NamespaceCommand, print: Print) -> anyhow::Result<()> {
    match command {
        NamespaceCommand::Add(For { what, to }) => {
            change(&to, &Request::NamespaceAdd(added(what)?), print)
        }
        NamespaceCommand::Remove(For { what, to }) => {
            let place = NamespacePlace {
                subsystem: what.subsystem,
                nsid: what.nsid,
            };
            change(&to, &Request::NamespaceRemove(place), print)
        }
        NamespaceCommand::Resize(For { what, to }) => {
            let resize = ResizeNamespace {
                subsystem: what.subsystem,
                nsid: what.nsid,
                size: what.size,
            };
            change(&to, &Request::NamespaceResize(resize), print)
        }
        NamespaceCommand::Set(For { what, to }) => {
            let set = SetNamespace {
                subsystem: what.subsystem,
                nsid: what.nsid,
                read_only: what.read_only,
                ana_group: what.ana_group,
            };
            change(&to, &Request::NamespaceSet(set), print)
        }
        NamespaceCommand::Show(For { what, to }) => namespaces(what.nqn, &to, print),
    }
}

/// Those of each subsystem, which says them.
fn namespaces(nqn: Option<String>, to: &To, print: Print) -> anyhow::Result<()> {
    let request = Request::SubsystemShow { nqn };
    let all: Vec<Subsystem> = connect(to)?.ask(&request)?;
    match to.output {
        Output::Normal => print(&show::namespaces_of(&all)),
        Output::Json => {
            let mut each = Vec::new();
            for subsystem in &all {
                for namespace in &subsystem.namespaces {
                    let mut value = serde_json::to_value(namespace)?;
                    value["subsystem"] = subsystem.nqn.as_str().into();
                    each.push(value);
                }
            }
            print(&serde_json::to_string_pretty(&each)?)
        }
    }
}

fn added(what: NamespaceAdd) -> anyhow::Result<AddNamespace> {
    use capstan_config::{Backing, ExactSize};
    let mut add = AddNamespace {
        subsystem: what.subsystem,
        nsid: what.nsid,
        lba: what.lba,
        uuid: what.uuid,
        nguid: what.nguid,
        read_only: what.read_only,
        ..AddNamespace::default()
    };
    match what.on.parse::<Backing>()? {
        // The target has another folder than this process.
        Backing::Path(path) => {
            let whole = std::path::absolute(path)?;
            add.path = Some(whole.to_string_lossy().into_owned());
        }
        Backing::Ram { size_bytes } => add.ram = Some(ExactSize(size_bytes).to_string()),
        Backing::Null { size_bytes } => add.null = Some(ExactSize(size_bytes).to_string()),
    }
    Ok(add)
}

fn ana(command: AnaCommand, print: Print) -> anyhow::Result<()> {
    match command {
        AnaCommand::Set(For { what, to }) => {
            let set = SetAna {
                subsystem: what.subsystem,
                group: what.group,
                state: what.state,
                listeners: what.listeners,
            };
            change(&to, &Request::AnaSet(set), print)
        }
        AnaCommand::Remove(For { what, to }) => {
            let place = AnaPlace {
                subsystem: what.subsystem,
                group: what.group,
                listeners: what.listeners,
            };
            change(&to, &Request::AnaRemove(place), print)
        }
        AnaCommand::Show(For { what, to }) => {
            let request = Request::AnaShow {
                subsystem: what.nqn,
            };
            ask::<Vec<AnaGroup>>(&to, &request, print, |all| show::ana(all))
        }
    }
}

fn host(command: HostCommand, print: Print) -> anyhow::Result<()> {
    match command {
        HostCommand::Allow(For { what, to }) => {
            let request = match what.meant() {
                (subsystem, HostMeant::Named(host)) => Request::HostAllow { subsystem, host },
                (subsystem, HostMeant::Any) => Request::HostAny {
                    subsystem,
                    allowed: true,
                },
            };
            change(&to, &request, print)
        }
        HostCommand::Deny(For { what, to }) => {
            let request = match what.meant() {
                (subsystem, HostMeant::Named(host)) => Request::HostDeny { subsystem, host },
                (subsystem, HostMeant::Any) => Request::HostAny {
                    subsystem,
                    allowed: false,
                },
            };
            change(&to, &request, print)
        }
        HostCommand::List(For { what, to }) => {
            let request = Request::HostList {
                subsystem: what.nqn,
            };
            ask::<Vec<Host>>(&to, &request, print, |all| show::hosts(all))
        }
    }
}

fn listener(command: ListenerCommand, print: Print) -> anyhow::Result<()> {
    match command {
        ListenerCommand::Add(For { what, to }) => {
            // As `listener remove` and `listener list` have it.
            let whole = what.address.parse::<SocketAddr>().ok();
            let whole = whole.filter(|_| what.port.is_none());
            let add = AddListener {
                address: whole.map_or(what.address, |whole| whole.ip().to_string()),
                port: what.port.or_else(|| whole.map(|whole| whole.port())),
                provider: what.provider,
                transports: what.transports,
            };
            change(&to, &Request::ListenerAdd(add), print)
        }
        ListenerCommand::Remove(For { what, to }) => {
            let address = what.address;
            change(&to, &Request::ListenerRemove { address }, print)
        }
        ListenerCommand::List(For { to, .. }) => {
            ask::<Vec<Listener>>(&to, &Request::ListenerList {}, print, |all| {
                show::listeners(all)
            })
        }
    }
}

fn export(command: ExportCommand, print: Print) -> anyhow::Result<()> {
    match command {
        ExportCommand::Add(For { what, to }) => {
            let add = AddExport {
                path: what.path,
                pseudo: what.pseudo,
                access: what.read_write.then(|| "read-write".to_owned()),
                squash: what.squash,
                file_system: what.file_system,
                clients: what.clients,
            };
            change(&to, &Request::ExportAdd(add), print)
        }
        ExportCommand::Remove(For { what, to }) => {
            let pseudo = what.pseudo;
            change(&to, &Request::ExportRemove { pseudo }, print)
        }
        ExportCommand::List(For { to, .. }) => {
            ask::<Vec<Export>>(&to, &Request::ExportList {}, print, |all| {
                show::exports(all)
            })
        }
    }
}

fn connection(command: ConnectionCommand, print: Print) -> anyhow::Result<()> {
    match command {
        ConnectionCommand::List(For { to, .. }) => {
            ask::<Vec<Connection>>(&to, &Request::ConnectionList {}, print, |all| {
                show::connections(all)
            })
        }
        ConnectionCommand::Disconnect(For { what, to }) => {
            let which = DisconnectWhich {
                host: what.host,
                subsystem: what.subsystem,
                cntlid: what.cntlid,
            };
            let request = Request::ConnectionDisconnect(which);
            ask::<Disconnected>(&to, &request, print, show::disconnected)
        }
    }
}

fn config(command: ConfigCommand, print: Print) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Show(For { what, to }) => {
            let form = match what.complete {
                true => ConfigForm::Complete,
                false => ConfigForm::Written,
            };
            ask::<ConfigText>(&to, &Request::ConfigShow { form }, print, show::config)
        }
        ConfigCommand::Diff(For { to, .. }) => {
            ask::<ConfigDiff>(&to, &Request::ConfigDiff {}, print, show::diff)
        }
        ConfigCommand::Save(For { what, to }) => {
            let mut client = connect(&to)?;
            let words = save::save(&mut client, what.overwrite)?;
            match to.output {
                Output::Json => print(&serde_json::json!({ "saved": words }).to_string()),
                Output::Normal => words.iter().try_for_each(|line| print(line)),
            }
        }
    }
}
