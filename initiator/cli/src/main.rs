//! `capstan`: the host side of NVMe over RDMA and over TCP, on the command line: what is asked,
//! and where it goes.

mod ana;
mod args;
mod bench;
mod busy;
mod by_name;
mod claim;
mod control;
mod detaching;
mod discover;
mod disk;
mod doctor;
mod feature;
mod force;
mod found;
mod fs_size;
mod gpt;
mod identify;
mod idle;
mod interrupt;
mod io;
mod left_over;
mod list;
mod log;
mod logs;
mod mount;
mod mount_helper;
mod mount_options;
mod named;
mod offers;
mod other_words;
mod others;
mod output;
mod passthru;
mod read_only;
mod serve;
mod signatures;
mod taken;
mod tool;
mod umount;
mod unnamed;
mod values;
mod volume;
mod volumes;
mod warned;
mod wire;
mod written;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use args::OutputFormat;
use capstan_initiator::internals::variables;
use capstan_initiator::names;
use capstan_nvme_proto::text::{Shown, Word};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use interrupt::Interrupted;
use nix::sys::resource::{Resource, getrlimit};
use values::WrongWords;

/// Exit status of what has failed.
const FAILED: u8 = 1;

/// Exit status of words that make no command: unknown, missing, without effect, or contradicting
/// each other, also where clap has taken them one by one.
const WRONG_WORDS: u8 = 2;

/// What the address space of a command has room for: data memory of an attached volume (64 MiB),
/// its queues and the shared memory with a target on this machine, stacks, and the program.
const ADDRESS_SPACE_BYTES_MIN: u64 = 512 << 20;

/// Discovers, inspects, reads, writes and measures NVMe namespaces over RDMA and over TCP, without
/// a kernel module and without root.
#[derive(Debug, Parser)]
#[command(name = "capstan", version, arg_required_else_help = true)]
struct Cli {
    /// Say more on stderr: -v what happens, -vv every detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The output is JSON.
    #[arg(skip)]
    is_for_programs: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the subsystems a discovery service offers this host.
    Discover(discover::Discover),
    /// Show Identify Controller data.
    IdCtrl(identify::IdCtrl),
    /// Show Identify Namespace data.
    IdNs(identify::IdNs),
    /// List the active namespaces.
    ListNs(identify::ListNs),
    /// Show the SMART / Health Information log page.
    SmartLog(logs::SmartLog),
    /// Show the Error Information log page.
    ErrorLog(logs::ErrorLog),
    /// Show which commands the controller has, and what they change.
    EffectsLog(logs::EffectsLog),
    /// Show by which path which namespaces are to be used.
    AnaLog(ana::AnaLog),
    /// Show the value of a feature.
    GetFeature(feature::GetFeature),
    /// Send any admin command, and show its answer.
    AdminPassthru(Box<passthru::Passthru>),
    /// Send any I/O command, and show its answer.
    IoPassthru(Box<passthru::Passthru>),
    /// Read from a namespace into a file or to stdout.
    Read(io::Read),
    /// Write a file or stdin to a namespace.
    Write(io::Write),
    /// Make every write that has completed durable.
    Flush(io::Flush),
    /// Measure a namespace, with the words of fio.
    Bench(bench::Bench),
    /// Make a volume a disk of this machine, and print its device.
    Attach(disk::Attach),
    /// End a disk that `attach` made.
    Detach(disk::Detach),
    /// Attach the volumes of /etc/capstan/volumes.toml that are not attached yet.
    ConnectAll(volumes::ConnectAll),
    /// Reset the controller of an attached volume: disconnect, and connect again; its I/O waits.
    Reset(control::Reset),
    /// Look for namespaces again on the controller of an attached volume.
    NsRescan(control::NsRescan),
    /// Attach a volume and mount the file system on it.
    Mount(mount::Mount),
    /// Unmount a file system on a volume, and end the disk that `mount` made.
    Umount(umount::Umount),
    /// List the volumes attached to this machine.
    List(list::List),
    /// Serve a volume to NBD clients on a unix socket, until SIGINT, SIGTERM or SIGHUP.
    ServeNbd(serve::ServeNbd),
    /// Say what this machine lacks, and with an address what keeps it from that target, each with
    /// what mends it.
    Doctor(Box<doctor::Doctor>),
    /// Write the man pages of this program and of each command.
    #[command(hide = true)]
    Man(Man),
    /// Write the completions of a shell to stdout: `capstan completions bash >
    /// /etc/bash_completion.d/capstan`. The packages have them.
    #[command(hide = true)]
    Completions(Completions),
    /// The process behind `attach` and `mount`.
    #[command(hide = true)]
    ServeFuse(serve::ServeFuse),
    /// The process of the unit capstan@NAME.
    #[command(hide = true)]
    ServeVolume(volumes::ServeVolume),
    /// The end of what is mounted of volumes while the network is there.
    #[command(hide = true)]
    UnmountAtShutdown(volumes::UnmountAtShutdown),
    /// What udev is told of a disk.
    #[command(hide = true)]
    UdevNames(volumes::UdevNames),
    /// What a loop device is asked, by a process that may have to wait for it.
    #[command(hide = true)]
    LoopDevice(serve::LoopDevice),
}

/// Pages of what is no command.
const PAGES: [(&str, &str); 2] = [
    ("mount.capstan.8", include_str!("../man/mount.capstan.8")),
    (
        "capstan-volumes.toml.5",
        include_str!("../man/capstan-volumes.toml.5"),
    ),
];

/// What the page of the program has behind its commands.
const SECTIONS: &str = include_str!("../man/sections.man");

/// Arguments of `man`.
#[derive(Debug, Args)]
struct Man {
    /// Folder to write to, as /usr/local/share/man/man1.
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

impl Man {
    /// Where a page goes: beside a folder for section 1 there are those of other sections.
    fn folder_of(&self, page: &str) -> PathBuf {
        let section = page.rsplit('.').next().unwrap_or_default();
        match self.to.file_name() {
            Some(name) if name == "man1" => self.to.with_file_name(format!("man{section}")),
            _ => self.to.clone(),
        }
    }

    fn run(&self) -> anyhow::Result<()> {
        let written = clap_mangen::generate_to(command(), &self.to).and_then(|()| {
            let page = self.to.join("capstan.1");
            OpenOptions::new()
                .append(true)
                .open(page)?
                .write_all(SECTIONS.as_bytes())?;
            PAGES.iter().try_for_each(|(name, text)| {
                let folder = self.folder_of(name);
                fs::create_dir_all(&folder)?;
                fs::write(folder.join(name), text)
            })
        });
        written.with_context(|| {
            format!(
                "{}: expected a folder that this user can write to; `mkdir --parents {}` makes one",
                self.to.display(),
                Word::path(self.to.as_os_str().as_bytes())
            )
        })
    }
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,
}

impl Completions {
    /// Writes what makes the shell complete the words of this program.
    fn run(&self) -> anyhow::Result<()> {
        let mut text = Vec::new();
        let all = command();
        // Without the hidden ones, which only programs run.
        let shown = all.get_subcommands().filter(|of| !of.is_hide_set());
        let mut shown = clap::Command::new("capstan")
            .args(all.get_arguments())
            .subcommands(shown.cloned());
        clap_complete::generate(self.shell, &mut shown, "capstan", &mut text);
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&text).context("writing to stdout")
    }
}

/// Runs what the command line asks. Failure is told on stderr and in the exit status.
fn main() -> ExitCode {
    names::call(named::named);
    let words: Vec<_> = std::env::args_os().collect();
    ExitCode::from(match mount_helper::Helper::called(&words) {
        Some(helper) => helper.run(&words),
        None => run(&words),
    })
}

/// Runs the command line `words`: the exit status.
fn run(words: &[OsString]) -> u8 {
    if let Err(error) = interrupt::outlive_file_size_limit() {
        output::error(&error);
        return FAILED;
    }
    let cli = match parse(words.iter().cloned()) {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    if let Err(text) = variables::check() {
        output::error(&anyhow::Error::msg(text));
        return FAILED;
    }
    let is_of_mount = matches!(&cli.command, Command::Mount(mount) if mount.is_helper());
    if cli.is_for_programs || is_of_mount && cli.verbose == 0 {
        output::is_for_programs();
    }
    let is_of_disk = matches!(cli.command, Command::ServeFuse(_));
    let last_lines = log::start(cli.verbose, is_of_disk);
    if let Err(error) = capstan_reactor::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is (`ulimit -n`)");
    }
    warn_of_little_memory();
    let done = match &cli.command {
        Command::Discover(command) => command.run(),
        Command::IdCtrl(command) => command.run(),
        Command::IdNs(command) => command.run(),
        Command::ListNs(command) => command.run(),
        Command::SmartLog(command) => command.run(),
        Command::ErrorLog(command) => command.run(),
        Command::EffectsLog(command) => command.run(),
        Command::AnaLog(command) => command.run(),
        Command::GetFeature(command) => command.run(),
        Command::AdminPassthru(command) => command.run_admin(),
        Command::IoPassthru(command) => command.run_io(),
        Command::Read(command) => command.run(),
        Command::Write(command) => command.run(),
        Command::Flush(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Attach(command) => command.run(),
        Command::Detach(command) => command.run(),
        Command::ConnectAll(command) => command.run(),
        Command::Reset(command) => command.run(),
        Command::NsRescan(command) => command.run(),
        Command::Mount(command) => command.run(),
        Command::Umount(command) => command.run(),
        Command::List(command) => command.run(),
        Command::ServeNbd(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Man(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::ServeFuse(command) => command.run(),
        Command::ServeVolume(command) => command.run(),
        Command::UnmountAtShutdown(command) => command.run(),
        Command::UdevNames(command) => command.run(),
        Command::LoopDevice(command) => command.run(),
    };
    // Before the error, which may be what they led to.
    drop(last_lines);
    match done {
        Ok(()) => 0,
        Err(error) if output::is_closed_pipe(&error) => 0,
        Err(error) => {
            output::error(&error);
            failed(&error)
        }
    }
}

/// The exit status of a command that ends with an error: what a signal has ended has that of a
/// shell, words that make no command that of clap, and everything else has failed.
fn failed(error: &anyhow::Error) -> u8 {
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        return interrupted.exit_status();
    }
    match error.is::<WrongWords>() {
        true => WRONG_WORDS,
        false => FAILED,
    }
}

/// Says why a command line is not taken (or shows the help that was asked for). A wrong value ends
/// with the same exit status wherever it is found out.
fn refused(error: &clap::Error) -> u8 {
    // There is nowhere left to tell that stderr is gone.
    let _ = error.print();
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => FAILED,
        _ if error.use_stderr() => WRONG_WORDS,
        _ => 0,
    }
}

/// The command line as it is parsed and shown.
fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        command.mut_args(|arg| {
            let is_idle = idle::is_idle(&name, arg.get_id().as_str());
            // A negative number is a value, which its option refuses in words of its own.
            let is_value = arg.get_long().is_some() && arg.get_action().takes_values();
            let arg = if is_idle { arg.hide(true) } else { arg };
            let names_service = name == "discover" && arg.get_id() == "nqn";
            let arg = match names_service {
                true => arg.help("Discovery subsystem [default: the one that every target has]"),
                false => arg,
            };
            arg.allow_negative_numbers(is_value)
        })
    })
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<_> = words.collect();
    parse_words(&words).map_err(|error| {
        // What is wrong is told of words that a terminal can show.
        let again = parse_words(&words.iter().map(shown).collect::<Vec<_>>()).err();
        again
            .filter(|again| again.kind() == error.kind())
            .unwrap_or(error)
    })
}

/// A word with what a terminal does not show escaped.
fn shown(word: &OsString) -> OsString {
    Shown(&word.to_string_lossy()).to_string().into()
}

fn parse_words(words: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = checked(words)?;
    if let Some((name, matches)) = matches.subcommand()
        && matches.try_contains_id("traddr").is_ok_and(|has| has)
        && let Ok(connect) = args::ConnectArgs::from_arg_matches(matches)
    {
        let nsid = idle::value(matches, "namespace_id");
        named::connection(name, &connect.way(), nsid);
    }
    let format = matches
        .subcommand()
        .and_then(|(_, matches)| idle::value(matches, "output_format"));
    Cli::from_arg_matches(&matches).map(|cli| Cli {
        is_for_programs: format == Some(OutputFormat::Json),
        ..cli
    })
}

/// The words of a command line that makes sense.
fn checked(words: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let mut command = command();
    let matches = command
        .try_get_matches_from_mut(words)
        .map_err(|error| other_words::with_ours(idle::with_owners(error, &command)))?;
    idle::check(&mut command, &matches)?;
    Ok(matches)
}

/// A small piece of memory that is refused ends the process with words of the standard library,
/// which do not say by what.
fn warn_of_little_memory() {
    if let Ok((bytes, _)) = getrlimit(Resource::RLIMIT_AS)
        && bytes < ADDRESS_SPACE_BYTES_MIN
    {
        tracing::warn!(
            "the address space is limited to {bytes} bytes (ulimit -v, LimitAS= of the unit), and a command may need {}: \
             one that is refused memory ends where it is",
            output::size(ADDRESS_SPACE_BYTES_MIN)
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
