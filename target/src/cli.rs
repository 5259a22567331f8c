//! The command line of `capstan-target`.

pub mod complete;
pub mod steer;

use std::path::PathBuf;

use capstan_config::{Backing, LbaSize, ListenAddresses};
use capstan_exports::clients::Network;
use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use steer::Operation;

/// Exports block devices, files and RAM as NVMe namespaces, and directories by NFS, over RDMA and
/// over TCP.
#[derive(Debug, Parser)]
#[command(name = "capstan-target", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve namespaces and directories until SIGTERM or SIGINT.
    Serve(Serve),
    /// Check a configuration: exit 0 when `serve` would take it. What is in use now is a warning:
    /// a target that runs has it, or `serve` cannot open it.
    Check {
        /// The TOML file; `-` is stdin.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Ask or tell a target that runs.
    #[command(flatten)]
    Operate(Operation),
    /// Say what this machine lacks to serve, with a configuration or an export for that one, each
    /// with what mends it: exit 1 when something will not work.
    Doctor(Doctor),
    /// Clear what files or devices have lost: writes that hosts were told of as done and that could
    /// not be stored, for which every Flush and FUA write fails, also after a crash of the target.
    /// First mend the file system or device, and check or restore what is on it. A target that runs
    /// looks at the next reload (SIGHUP); one that is stopped in order and started again has
    /// cleared it as well.
    ClearLostWrites {
        /// What was exported, as in the configuration, or as `doctor` names it.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
    },
    /// Convert the saved configuration of another target to a file for `serve --config`. What is
    /// left out is told on stderr, with its place and why.
    Import(Import),
    /// Write a drop-in for the unit of the service that lets it open the block devices of a
    /// configuration, and no others. To be written again when they change.
    DeviceAccess(DeviceAccess),
    /// Write the man pages of this program, of each command and of the configuration file.
    Man {
        /// Folder to write to, as /usr/local/share/man/man1: the page of the configuration file is
        /// of section 5, and written to man5 beside it.
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },
    /// Write the completions of a shell to stdout: `capstan-target completions bash >
    /// /etc/bash_completion.d/capstan-target`. The packages have them.
    Completions {
        /// The shell.
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Open files and devices that may not answer, for `check` and `doctor`.
    #[command(hide = true)]
    Open {
        /// What is to be opened.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
    },
}

/// `serve`: from a configuration file, or one export given here.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("served").args(["config", "export", "export_dir"]).required(true))]
pub struct Serve {
    /// What to serve.
    #[command(flatten)]
    pub source: Source,
    /// Where others steer this target (`capstan-target status` and other commands); `none` for
    /// nowhere [default: CAPSTAN_CONTROL_SOCKET, control.sock in RUNTIME_DIRECTORY, or for root
    /// /run/capstan-target/control.sock].
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
}

/// `import`.
#[derive(Args, Debug)]
pub struct Import {
    /// What `nvmetcli save` has written of the Linux kernel's target (JSON), such as
    /// /etc/nvmet/config.json; `-` is stdin.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File to write, which is not there yet [default: stdout].
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `device-access`.
#[derive(Args, Debug)]
pub struct DeviceAccess {
    /// The TOML configuration file; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// File to write, as /etc/systemd/system/capstan-target.service.d/devices.conf: over one that
    /// this command has written before, with its folder where that is not there [default: stdout].
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// `doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// What would be served.
    #[command(flatten)]
    pub source: Source,
    /// Output for people or for programs.
    #[arg(
        short = 'o',
        long,
        visible_alias = "output-format",
        value_enum,
        default_value_t = Output::Normal
    )]
    pub output: Output,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Normal,
    /// JSON.
    Json,
}

/// A configuration file, or one export.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("quick").args(["export", "export_dir"]))]
pub struct Source {
    /// The TOML configuration file; `-` is stdin.
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    pub config: Option<PathBuf>,
    /// Export one thing: a block device, a file, `ram:SIZE` or `null:SIZE`.
    #[arg(long, value_name = "PATH|ram:SIZE|null:SIZE", requires = "listen")]
    pub export: Option<Backing>,
    /// Export a directory to NFS clients, which mount it by its path; root of theirs is nobody
    /// here.
    #[arg(long, value_name = "PATH", requires = "listen")]
    pub export_dir: Option<PathBuf>,
    /// Networks whose machines may mount the directory; they are believed when they say which user
    /// asks [default: this machine alone].
    #[arg(
        long,
        value_name = "NETWORK,…",
        value_delimiter = ',',
        requires = "export_dir",
        conflicts_with_all = ["config", "export"]
    )]
    pub clients: Vec<Network>,
    /// Bytes per LBA: 512 or 4096 [default: what the device has; what the file was used with, 4096
    /// at first].
    #[arg(
        long,
        value_name = "BYTES",
        requires = "export",
        conflicts_with_all = ["config", "export_dir"]
    )]
    pub lba: Option<LbaSize>,
    /// Address to listen at, or a name: then all its addresses that this machine has. The port is
    /// 4420 when none is given; of a directory, 2049 over TCP, and always 20049 over RDMA (or 0
    /// when that is given, which lets the system choose). Required with --export and --export-dir.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        requires = "quick",
        conflicts_with = "config"
    )]
    pub listen: Option<ListenAddresses>,
    /// NQN of the subsystem [default: derived from the export].
    #[arg(
        long,
        value_name = "NQN",
        requires = "export",
        conflicts_with_all = ["config", "export_dir"]
    )]
    pub nqn: Option<String>,
    /// RDMA provider.
    #[arg(long, value_enum, default_value_t = Provider::Auto, requires = "quick", conflicts_with = "config")]
    pub provider: Provider,
    /// What hosts and clients connect by, `rdma`, `tcp` or `rdma,tcp` [default: both; hosts at one
    /// port, but that an iWARP device of the kernel has for itself, and TCP the next one].
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        requires = "quick",
        conflicts_with = "config"
    )]
    pub transports: Vec<Transport>,
    /// Let any host connect, also at an address that is not loopback.
    #[arg(long, requires = "export", conflicts_with_all = ["config", "export_dir"])]
    pub allow_any_host: bool,
    /// Refuse writes.
    #[arg(long, requires = "quick", conflicts_with = "config")]
    pub read_only: bool,
    /// Let queues share their receives where the device can. Hosts that may not connect can take
    /// receives of others then.
    #[arg(long, requires = "export", conflicts_with_all = ["config", "export_dir"])]
    pub shared_receive_queue: bool,
}

impl Cli {
    /// Refuses options that have no effect.
    ///
    /// # Errors
    /// The first of them, as a command line that is not taken.
    pub fn check_effects(&self) -> Result<(), clap::Error> {
        let (name, source) = match &self.command {
            Command::Serve(serve) => ("serve", &serve.source),
            Command::Doctor(doctor) => ("doctor", &doctor.source),
            _ => return Ok(()),
        };
        let Some(text) = source.without_effect() else {
            return Ok(());
        };
        let mut command = Self::command();
        // So that it shows its whole name.
        command.build();
        Err(match command.find_subcommand_mut(name) {
            Some(command) => command.error(ErrorKind::ArgumentConflict, text),
            None => clap::Error::raw(ErrorKind::ArgumentConflict, text),
        })
    }
}

impl Source {
    /// Whether what is served was said in options.
    #[must_use]
    pub const fn is_quick(&self) -> bool {
        self.export.is_some() || self.export_dir.is_some()
    }

    fn without_effect(&self) -> Option<String> {
        let named = &self.transports;
        let has_twice = |transport| named.iter().filter(|of| **of == transport).count() > 1;
        for (transport, word) in [(Transport::Rdma, "rdma"), (Transport::Tcp, "tcp")] {
            if has_twice(transport) {
                let text = format!("'--transports' names '{word}' more than once; name it once");
                return Some(text);
            }
        }
        if *named != [Transport::Tcp] {
            return None;
        }
        let option = match self.provider {
            Provider::Verbs | Provider::Iwarp => "--provider",
            Provider::Auto if self.shared_receive_queue => "--shared-receive-queue",
            Provider::Auto => return None,
        };
        Some(format!(
            "'{option}' has no effect with '--transports tcp', which takes no RDMA; leave one of them out"
        ))
    }
}

/// What hosts connect by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

/// Which RDMA provider a listener uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Verbs where an RDMA device has the address, iwarp otherwise.
    Auto,
    /// Hardware or kernel RDMA devices.
    Verbs,
    /// User-space iWARP over TCP.
    Iwarp,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use clap::Parser as _;

    use super::{Cli, Command, Transport};

    /// The commands of this program in the blocks of shell commands of a document.
    fn commands_of(document: &str) -> Vec<String> {
        let blocks = document.split("```sh\n").skip(1);
        let blocks = blocks.filter_map(|rest| Some(rest.split_once("```")?.0));
        let lines = blocks.flat_map(str::lines);
        let commands = lines.filter(|line| line.starts_with("capstan-target "));
        commands
            .map(|line| {
                let ends = [" #", " |", " >", " &"].into_iter();
                let end = ends.filter_map(|end| line.find(end)).min();
                line[..end.unwrap_or(line.len())].to_owned()
            })
            .collect()
    }

    #[test]
    fn commands_that_documents_show_are_commands() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (name, least) in [("README.md", 9), ("docs/operations.md", 15)] {
            let document = std::fs::read_to_string(root.join(name)).unwrap();
            let commands = commands_of(&document);
            assert!(commands.len() >= least, "{name}: {commands:?}");
            for command in commands {
                if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                    panic!("{name}: {command}: {error}");
                }
            }
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_without_effect_are_refused() {
        let parse = |more: &[&str]| {
            let words = [
                "capstan-target",
                "serve",
                "--export",
                "ram:1MiB",
                "--listen",
            ];
            let words = [&words[..], &["127.0.0.1"], more].concat();
            let cli = Cli::try_parse_from(words).unwrap();
            cli.check_effects().map_err(|error| error.to_string())
        };
        for (words, option) in [
            (
                &["--transports", "tcp", "--provider", "verbs"][..],
                "--provider",
            ),
            (
                &["--transports", "tcp", "--provider", "iwarp"],
                "--provider",
            ),
            (
                &["--transports", "tcp", "--shared-receive-queue"],
                "--shared-receive-queue",
            ),
            (&["--transports", "tcp,tcp"], "--transports"),
            (
                &["--transports", "rdma,tcp", "--transports", "rdma"],
                "--transports",
            ),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(&format!("'{option}'")), "{words:?}: {error}");
        }
        for words in [
            &["--transports", "tcp"][..],
            &["--transports", "tcp", "--provider", "auto"],
            &[
                "--transports",
                "rdma,tcp",
                "--provider",
                "iwarp",
                "--shared-receive-queue",
            ],
        ] {
            parse(words).unwrap();
        }
    }

    #[test]
    fn transports_are_both_by_default_and_those_that_are_named() {
        let parse = |more: &[&str]| {
            let words = [
                "capstan-target",
                "serve",
                "--export",
                "ram:1MiB",
                "--listen",
                "::1",
            ];
            let cli = Cli::try_parse_from([&words, more].concat()).unwrap();
            let Command::Serve(serve) = cli.command else {
                panic!("serve")
            };
            serve.source.transports
        };
        assert_eq!(parse(&[]), []);
        assert_eq!(parse(&["--transports", "tcp"]), [Transport::Tcp]);
        let both = ["--transports", "tcp,rdma"];
        assert_eq!(parse(&both), [Transport::Tcp, Transport::Rdma]);
    }

    #[test]
    fn serve_needs_something_to_serve_and_doctor_does_not() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["capstan-target"], args].concat());
        assert!(parse(&["serve"]).is_err());
        assert!(parse(&["serve", "--config", "x.toml"]).is_ok());
        assert!(parse(&["serve", "--export", "ram:1MiB", "--listen", "127.0.0.1:0"]).is_ok());
        assert!(parse(&["doctor"]).is_ok());
        assert!(parse(&["doctor", "--config", "x.toml", "--output", "json"]).is_ok());
        assert!(parse(&["doctor", "--export", "ram:1MiB"]).is_err());
        // Not that an export is missing, which a configuration excludes.
        for option in [
            &["--lba", "512"][..],
            &["--nqn", "a"],
            &["--listen", "127.0.0.1"],
            &["--provider", "iwarp"],
            &["--transports", "tcp"],
            &["--read-only"],
            &["--allow-any-host"],
            &["--shared-receive-queue"],
        ] {
            let error = parse(&[&["serve", "--config", "x.toml"], option].concat()).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ArgumentConflict,
                "{error}"
            );
        }
        let both = [
            "--config",
            "x.toml",
            "--export",
            "ram:1MiB",
            "--listen",
            "127.0.0.1:0",
        ];
        assert!(parse(&[&["doctor"], &both[..]].concat()).is_err());
    }
    #[test]
    fn a_directory_has_options_of_its_own() {
        let parse = |args: &[&str]| {
            let words = ["capstan-target", "serve", "--export-dir", "/srv"];
            Cli::try_parse_from([&words[..], args].concat()).map(drop)
        };
        let at = ["--listen", "192.0.2.1"];
        parse(&at).unwrap();
        let more = ["--clients", "192.0.2.0/24,::1", "--read-only"];
        parse(&[&at[..], &more, &["--transports", "tcp"]].concat()).unwrap();
        assert!(parse(&[]).is_err(), "it needs --listen");
        for option in [
            &["--export", "ram:1MiB"][..],
            &["--config", "x.toml"],
            &["--lba", "512"],
            &["--nqn", "a"],
            &["--allow-any-host"],
            &["--shared-receive-queue"],
        ] {
            let error = parse(&[&at[..], option].concat()).unwrap_err();
            let kind = error.kind();
            assert_eq!(kind, clap::error::ErrorKind::ArgumentConflict, "{error}");
        }
        let words = [
            "capstan-target",
            "serve",
            "--export",
            "ram:1MiB",
            "--listen",
            "::1",
        ];
        let clients = Cli::try_parse_from([&words[..], &["--clients", "::1"]].concat());
        assert!(clients.is_err(), "hosts are no clients");
    }
}
