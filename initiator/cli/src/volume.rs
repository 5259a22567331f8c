//! Which volume to attach, and the process that serves it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capstan_initiator::internals::disk::record::{Record, VolumeDir, run_dir, volumes};
use capstan_initiator::internals::disk::serving::{COMMAND, FOLDER_OPTION};
use capstan_initiator::internals::words::Word;
use capstan_initiator::{Options, TakenTransport};
use clap::builder::PossibleValue;
use clap::{Args, FromArgMatches as _, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::args::{ConnectArgs, ReplayArgs};
use super::claim::ShareArgs;
use super::interrupt::{Interrupts, PATIENCE, wait_for, within};
use super::left_over::{clean_up_dead, clean_up_ended, remove};
use super::output;
use super::taken::say_taken;
use super::values::parse_nsid;

/// What the serving process is called. systemd leaves processes alone at shutdown whose name begins
/// with `@`, so that file systems on the disk are unmounted before it ends.
pub(super) const PROCESS_NAME: &str = "@capstan";
/// The option of the serving process that says where the disk is going to be mounted.
const MOUNT_POINT_OPTION: &str = "--mount-point";
/// The one that says what the volume is called on this machine.
pub(super) const NAME_OPTION: &str = "--volume-name";
/// The one that says that systemd has started it, and is told how it goes.
pub(super) const SERVICE_OPTION: &str = "--service";
/// How long a process that is killed may take to go, after it had [`PATIENCE`].
const END_PATIENCE: Duration = Duration::from_millis(600);
/// Beyond the time that one I/O may take: a tool's own work, and a reconnect that goes well.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Lines of the log that are told when the serving process dies.
const LOG_LINES: usize = 10;

/// A namespace to attach.
#[derive(Args, Clone, Debug)]
pub(super) struct VolumeArgs {
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    #[command(flatten)]
    replay: ReplayArgs,
    #[command(flatten)]
    pub(super) share: ShareArgs,
    /// Namespace.
    #[arg(
        short = 'N',
        long,
        visible_alias = "nsid",
        value_name = "NSID",
        default_value_t = 1,
        value_parser = parse_nsid()
    )]
    pub(super) namespace_id: u32,
    /// Refuse writes.
    #[arg(short = 'r', long)]
    pub(super) read_only: bool,
}

/// What the serving process says on its stdout, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// The disk can be used.
    Ready(Box<Record>),
    /// There will be none.
    Failed(String),
}

impl VolumeArgs {
    /// Options to connect to the subsystem.
    pub(super) fn options(&self) -> Result<Options> {
        let (options, taken) = self.options_and_taken()?;
        if let Some(taken) = &taken {
            say_taken(&options, taken);
        }
        Ok(options)
    }

    /// The same, with the transport that the discovery service was reached over where it was to be
    /// found.
    pub(super) fn options_and_taken(&self) -> Result<(Options, Option<TakenTransport>)> {
        let (options, taken) = self.connect.options_and_taken()?;
        Ok((self.replay.apply(options), taken))
    }

    /// A volume of options of the command line, checked as there.
    ///
    /// # Errors
    /// What contradicts what, in words.
    pub(super) fn of_words(words: &[String]) -> Result<Self, String> {
        let words = ["capstan", "attach"]
            .map(str::to_owned)
            .into_iter()
            .chain(words.iter().cloned());
        let words: Vec<_> = words.map(OsString::from).collect();
        let matches = super::checked(&words);
        let volume = matches.and_then(|matches| match matches.subcommand() {
            Some((_, matches)) => Self::from_arg_matches(matches),
            None => Self::from_arg_matches(&matches),
        });
        volume.map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        })
    }

    /// Those of its arguments that are not as they are without being given.
    pub(super) fn given_args(&self) -> Vec<String> {
        let plain = Self::of_words(&[format!("--traddr={}", self.connect.traddr)]);
        let plain = plain.map_or_else(|_| Vec::new(), |plain| plain.to_args());
        let address = format!("--traddr={}", self.connect.traddr);
        let mut given = self.to_args();
        given.retain(|word| *word == address || !plain.contains(word));
        given
    }

    /// The same as arguments, for another process.
    pub(super) fn to_args(&self) -> Vec<String> {
        let value = |value: &dyn std::fmt::Display| value.to_string();
        let name = |value: Option<PossibleValue>| {
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        };
        // TakenTransport apart without a rest: what is not passed on here does not compile.
        let Self {
            connect,
            replay: ReplayArgs { replay_writes },
            share: ShareArgs { shared },
            namespace_id,
            read_only,
        } = self;
        let ConnectArgs {
            transport,
            traddr,
            trsvcid,
            nqn,
            hostnqn,
            hostid,
            host_traddr,
            provider,
            hdr_digest,
            data_digest,
            disable_sqflow,
            nr_io_queues,
            queue_size,
            keep_alive_tmo,
            reconnect_delay,
            ctrl_loss_tmo,
            connect_timeout,
            io_timeout,
        } = connect;
        let args = [
            ("--transport", Some(name(transport.to_possible_value()))),
            ("--traddr", Some(traddr.clone())),
            ("--trsvcid", Some(value(trsvcid))),
            ("--nqn", nqn.clone()),
            ("--hostnqn", hostnqn.clone()),
            ("--hostid", hostid.clone()),
            ("--host-traddr", host_traddr.as_ref().map(|v| value(v))),
            ("--provider", Some(name(provider.to_possible_value()))),
            ("--nr-io-queues", Some(value(nr_io_queues))),
            ("--queue-size", queue_size.as_ref().map(|v| value(v))),
            ("--keep-alive-tmo", Some(value(keep_alive_tmo))),
            ("--reconnect-delay", Some(value(reconnect_delay))),
            ("--ctrl-loss-tmo", Some(value(ctrl_loss_tmo))),
            (
                "--connect-timeout",
                connect_timeout.as_ref().map(|v| value(v)),
            ),
            ("--io-timeout", Some(value(io_timeout))),
            (
                "--replay-writes",
                replay_writes.map(|when| name(when.to_possible_value())),
            ),
            ("--namespace-id", Some(value(namespace_id))),
        ];
        // One word each, so that no value is taken for an option.
        let given = args
            .into_iter()
            .filter_map(|(option, value)| Some(format!("{option}={}", value?)));
        given
            .chain(hdr_digest.then(|| "--hdr-digest".to_owned()))
            .chain(data_digest.then(|| "--data-digest".to_owned()))
            .chain(disable_sqflow.then(|| "--disable-sqflow".to_owned()))
            .chain(shared.then(|| "--shared".to_owned()))
            .chain(read_only.then(|| "--read-only".to_owned()))
            .collect()
    }

    /// Starts a process that serves the volume, and waits until the disk can be used. It is going
    /// to be mounted at `mount_point`, and called `name` on this machine.
    ///
    /// # Errors
    /// [`Interrupted`](super::interrupt::Interrupted), or why there is no disk; nothing is left of
    /// it.
    pub(super) fn attach(
        &self,
        mount_point: Option<&Path>,
        name: Option<&str>,
        interrupts: &Interrupts,
    ) -> Result<(VolumeDir, Record)> {
        require_root("attaching a volume needs root (mount(2), loop devices)")?;
        // What is left of others may wait for the kernel.
        interrupts.unless_one_comes(|| {
            clean_up_dead();
            Ok(())
        })?;
        let dir = VolumeDir::create(&run_dir())?;
        let attached = self
            .spawn(&dir, mount_point, name)
            .and_then(|child| wait_until_ready(child, &dir, interrupts));
        match attached {
            Ok(record) => {
                if let Some(why) = &record.transport_why {
                    output::note_for_people(why);
                }
                if let Some(wire) = record.wire.wire() {
                    let (traddr, trsvcid) = (&record.traddr, record.trsvcid);
                    tracing::info!(
                        traddr,
                        trsvcid,
                        subnqn = record.subnqn,
                        "connected over {wire}"
                    );
                }
                Ok((dir, record))
            }
            Err(error) => {
                // Whatever the process left of it when it died.
                let _ = remove(&dir);
                Err(error)
            }
        }
    }

    /// How long what looks at the disk may take: one I/O, and what goes with it.
    pub(super) fn patience(&self) -> Duration {
        let io_timeout = Duration::from_secs(self.connect.io_timeout.into());
        io_timeout.saturating_add(LOOK_PATIENCE)
    }

    fn spawn(
        &self,
        dir: &VolumeDir,
        mount_point: Option<&Path>,
        name: Option<&str>,
    ) -> Result<Child> {
        let log = dir.log();
        let log = File::options()
            .append(true)
            .create_new(true)
            .open(&log)
            .with_context(|| log.display().to_string())?;
        // Shared with the process as its stderr: locked as long as it lives.
        log.try_lock()
            .with_context(|| format!("locking {}", dir.log().display()))?;
        let program = std::env::current_exe().context("finding the capstan program")?;
        let child = Command::new(&program)
            .arg0(PROCESS_NAME)
            .args(["--verbose", COMMAND, FOLDER_OPTION])
            .arg(dir.path())
            .args(
                mount_point
                    .iter()
                    .flat_map(|point| [MOUNT_POINT_OPTION.as_ref(), point.as_os_str()]),
            )
            .args(name.iter().flat_map(|name| [NAME_OPTION, name]))
            .args(self.to_args())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn();
        output::started(child, || format!("starting {}", program.display()))
    }
}

/// Fails with the command that works when this user is not root.
pub(super) fn require_root(what: &str) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let words = std::env::args_os();
    let words: Vec<_> = words
        .map(|word| Word::new(&word.to_string_lossy()).to_string())
        .collect();
    bail!("{what}: sudo {}", words.join(" "))
}

fn wait_until_ready(mut child: Child, dir: &VolumeDir, interrupts: &Interrupts) -> Result<Record> {
    let stdout = child.stdout.take().context("the process has no stdout")?;
    wait_for(&[interrupts.as_fd(), stdout.as_fd()], None)?;
    if let Some(interrupted) = interrupts.next() {
        end(child, &stdout, dir, interrupts)?;
        return Err(interrupted.into());
    }
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context("waiting for the serving process")?;
    match serde_json::from_str(&line) {
        // It lives on without this one.
        Ok(Report::Ready(record)) => return Ok(*record),
        Ok(Report::Failed(text)) => {
            child.wait().context("waiting for the serving process")?;
            bail!("{text}")
        }
        Err(_) => {}
    }
    let status = child.wait().context("waiting for the serving process")?;
    let log = std::fs::read_to_string(dir.log()).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LOG_LINES)..);
    for line in last.unwrap_or_default() {
        output::note(line);
    }
    bail!(
        "the serving process ended ({status}) before the disk was ready; its last words are above"
    )
}

/// Ends a process that has no disk yet: in order when it is soon, and at a second signal at once.
fn end(
    mut child: Child,
    stdout: &ChildStdout,
    dir: &VolumeDir,
    interrupts: &Interrupts,
) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id()).context("a pid")?);
    kill(pid, Signal::SIGTERM).context("ending the serving process")?;
    // Closed when it has put everything in order.
    let insisted = interrupts.insist(&[stdout.as_fd()], PATIENCE)?;
    if !insisted && wait_for(&[stdout.as_fd()], Some(Duration::ZERO))? {
        child.wait().context("waiting for the serving process")?;
        return Ok(());
    }
    child.kill().context("ending the serving process")?;
    let record = volumes(&run_dir())?.into_iter().find(|(of, _)| of == dir);
    let left = within(END_PATIENCE, move || {
        child.wait().context("waiting for the serving process")?;
        match record {
            Some((dir, Ok(Some(record)))) => clean_up_ended(&dir, &record),
            _ => Ok(()),
        }
    });
    match left? {
        Some(()) => Ok(()),
        None => bail!(
            "the serving process, {pid}, has not ended yet; `capstan list` takes away what it leaves"
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::VolumeArgs;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        volume: VolumeArgs,
    }

    /// Every option with a value that is not its default.
    const ALL: &str = "x -t tcp -a 10.0.0.1 -s 4421 -n nqn.x -q nqn.h \
        -I 00112233-4455-6677-8899-aabbccddeeff -w 10.0.0.2 --provider iwarp \
        --hdr-digest --data-digest -D -i 4 -Q 64 -k 0 -c 3 \
        -l -1 --connect-timeout 7 --io-timeout 9 --replay-writes immediate --nsid 5 --shared --read-only";

    #[test]
    fn arguments_survive_the_way_to_the_serving_process() {
        for line in ["x -a ::1", "x -a ::1 --provider iwarp", ALL] {
            let parsed = Only::parse_from(line.split_whitespace());
            let again = std::iter::once("x".to_owned()).chain(parsed.volume.to_args());
            let again = Only::parse_from(again);
            assert_eq!(format!("{again:?}"), format!("{parsed:?}"));
        }
    }

    #[test]
    fn every_option_is_passed_on() {
        let given = Only::parse_from(ALL.split_whitespace()).volume.to_args();
        let command = Only::command();
        let mut options = 0;
        for option in command.get_arguments().filter_map(|arg| arg.get_long()) {
            options += 1;
            let passed_on = given.iter().any(|word| {
                let name = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
                name.strip_prefix("--") == Some(option)
            });
            assert!(passed_on, "--{option} is not in {given:?}");
        }
        // One of each, so none is there that another test has to know.
        assert_eq!(options, given.len());
        let plain = Only::parse_from(["x", "-a", "::1"]).volume.to_args();
        let same: Vec<_> = plain.iter().filter(|word| given.contains(word)).collect();
        assert_eq!(same, Vec::<&String>::new());
    }
}
