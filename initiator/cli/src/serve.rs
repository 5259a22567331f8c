//! `capstan serve-nbd`, and the process behind `attach` and `mount`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capstan_initiator::AssociationStatus;
use capstan_initiator::front_ends::Geometry;
use capstan_initiator::front_ends::nbd::{self, NbdFrontEnd, NbdSocket, STRING_BYTES_MAX};
use capstan_initiator::internals::disk::loop_process::{self, LoopRequest};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use capstan_initiator::internals::disk::serve::{self, DiskOptions};
use capstan_initiator::names::Name;
use capstan_initiator::{Controller, allocation};
use clap::Args;
use nix::unistd::{dup2_stdout, setsid};
use serde_json::json;

use super::args::OutputArgs;
use super::interrupt::{Interrupted, Interrupts, PATIENCE, within};
use super::output;
use super::taken::say_taken;
use super::volume::{Report, VolumeArgs};
use super::volumes::unit;

/// Between two looks whether the association is still worth serving.
const STATUS_CHECK: Duration = Duration::from_secs(5);

/// Arguments of `serve-nbd`.
#[derive(Args, Debug)]
pub(crate) struct ServeNbd {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Unix socket to serve on; only this user can connect to it.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Name of the export; clients that ask for none get it, too.
    #[arg(long, value_name = "NAME", default_value = "vol", value_parser = parse_export_name)]
    export_name: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// A name that the protocol can carry.
fn parse_export_name(name: &str) -> Result<String, String> {
    if name.len() > STRING_BYTES_MAX as usize {
        return Err(format!(
            "it has {} bytes, expected at most {STRING_BYTES_MAX}",
            name.len()
        ));
    }
    Ok(name.to_owned())
}

impl ServeNbd {
    pub(crate) fn run(&self) -> Result<()> {
        // Taken before the driver's thread starts, which must not get them.
        let interrupts = Interrupts::take()?;
        let socket_path = std::path::absolute(&self.socket).context("--socket")?;
        let socket = NbdSocket::bind(&socket_path)?;
        let nsid = self.volume.namespace_id;
        let volume = self.volume.clone();
        let what = format!("served by `capstan serve-nbd` at {}", self.socket.display());
        let (controller, geometry, description, _claim) =
            interrupts.unless_one_comes(move || {
                let options = volume.options()?;
                let description = format!(
                    "{} namespace {nsid} at {} port {}",
                    options.subnqn, options.traddr, options.trsvcid
                );
                let controller = Controller::connect(options.clone())
                    .with_context(|| format!("connecting to {description}"))?;
                controller.volume_blocking(nsid)?;
                let snapshot = controller.snapshot_blocking();
                if let Some(taken) = &snapshot.taken {
                    say_taken(&options, taken);
                }
                let Some(namespace) = snapshot.namespaces.iter().find(|n| n.nsid == nsid) else {
                    bail!(
                        "namespace {nsid} is gone; {} shows those that are there",
                        Name::Namespaces
                    );
                };
                let geometry = Geometry {
                    holes: allocation::is_reported(&controller, nsid),
                    ..Geometry::new(&snapshot.controller, namespace, volume.read_only)
                };
                let claim = if geometry.read_only {
                    None
                } else {
                    Some(volume.share.claim(&options, namespace, &what)?)
                };
                Ok((controller, geometry, description, claim))
            })?;
        let serving = format!("serving {description}");
        let name = self.export_name.clone();
        controller
            .add_front_end(move |_| {
                let front_end = NbdFrontEnd::new(socket, geometry, &name, &description)?;
                Ok(Box::new(front_end))
            })
            .context("starting the NBD front end")?;
        let uri = nbd::uri(&self.export_name, &socket_path);
        let wire = controller.snapshot_blocking().wire;
        let is_json = self.output.is_json();
        // Its reader may stop reading: a signal ends this then.
        let told = interrupts.unless_one_comes(move || match is_json {
            true => {
                let mut told = json!({
                    "uri": uri,
                    "size_bytes": geometry.size_bytes,
                    "lba_bytes": geometry.lba_bytes,
                    "read_only": geometry.read_only,
                });
                super::wire::add(&mut told, wire.as_ref());
                output::json(&told)
            }
            false => output::line(&uri),
        });
        let result = match told {
            Ok(()) => wait_for_the_end(&controller, &interrupts),
            // It serves already: this is its end, as it would be later.
            Err(error) if error.is::<Interrupted>() => Ok(()),
            Err(error) => Err(error),
        };
        let result = result.context(serving.clone());
        let in_progress = controller.snapshot_blocking().in_progress;
        let Some(losses) = within(PATIENCE, move || Ok(controller.close()))? else {
            // Its owner does not come to it any more.
            let _ = std::fs::remove_file(&socket_path);
            result?;
            let given_up = match in_progress {
                0 => "no I/O was in progress".to_owned(),
                count => format!("{count} I/Os that were in progress are given up"),
            };
            bail!(
                "{serving}: the target did not answer the end of the association within {} ms, and is left; {given_up}; see \
                 the target's log",
                PATIENCE.as_millis()
            );
        };
        match losses.into_result() {
            Ok(()) => result,
            Err(losses) => Err(match result {
                Ok(()) => losses.into(),
                Err(error) => error.context(losses),
            }),
        }
    }
}

/// Waits for a signal, or for the association to fail for good.
fn wait_for_the_end(controller: &Controller, interrupts: &Interrupts) -> Result<()> {
    while interrupts.wait(STATUS_CHECK)?.is_none() {
        match controller.snapshot_blocking().status {
            AssociationStatus::Failed(cause) => return Err((*cause).clone().into()),
            AssociationStatus::Closed => bail!("the association was closed"),
            _ => {}
        }
    }
    Ok(())
}

/// Arguments of `serve-fuse`.
#[derive(Args, Debug)]
pub(crate) struct ServeFuse {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Folder of the volume.
    #[arg(long, value_name = "DIR")]
    volume_dir: PathBuf,
    /// Where it is going to be mounted.
    #[arg(long, value_name = "DIR")]
    mount_point: Option<PathBuf>,
    /// What it is called on this machine.
    #[arg(long, value_name = "NAME")]
    volume_name: Option<String>,
    /// systemd has started it, is told how it goes, and asks it to end.
    #[arg(long)]
    service: bool,
}

impl ServeFuse {
    /// The process outlives the one that started it; its stderr is the log, its stdout takes one
    /// report.
    pub(crate) fn run(&self) -> Result<()> {
        // Away from the terminal and its signals. A leader of a group has done so already.
        let _ = setsid();
        let disk = DiskOptions {
            nsid: self.volume.namespace_id,
            read_only: self.volume.read_only,
            sharing: self.volume.share.sharing(),
            mount_point: self.mount_point.clone(),
            volume_name: self.volume_name.clone(),
            told_to_wait: self.service.then_some(unit::tell),
        };
        // systemd ends it by a signal.
        let (asked_by_systemd, _open) = io::pipe().context("pipe")?;
        let stdout = io::stdout();
        let asked_by = match self.service {
            true => asked_by_systemd.as_fd(),
            false => stdout.as_fd(),
        };
        let dir = VolumeDir::at(self.volume_dir.clone());
        let mut told = false;
        let result = self
            .volume
            .options_and_taken()
            .and_then(|(options, taken)| {
                let by_discovery =
                    taken.map(|taken| taken.in_words(&options.traddr, options.trsvcid));
                serve::serve(options, &disk, &dir, asked_by, |record| {
                    told = true;
                    if self.service {
                        unit::tell_ready(&in_words(record));
                        return Ok(());
                    }
                    let mut record = record.clone();
                    record.transport_why = record.transport_why.or(by_discovery);
                    report(&Report::Ready(Box::new(record)))
                })
                .map_err(anyhow::Error::from)
            });
        if let Err(error) = &result
            && self.service
        {
            unit::tell(&format!("failed: {}", output::chain(error)));
        } else if let Err(error) = &result
            && !told
        {
            // The log has it, too, if nobody listens.
            let _ = report(&Report::Failed(output::chain(error)));
        }
        result
    }
}

/// What `systemctl status` shows of a volume.
fn in_words(record: &Record) -> String {
    format!(
        "{} is namespace {} of {} at {} port {}",
        record.name(),
        record.nsid,
        record.subnqn,
        record.traddr,
        record.trsvcid
    )
}

/// Arguments of `loop-device`.
#[derive(Args, Debug)]
pub(crate) struct LoopDevice {
    /// What to do, in JSON.
    request: String,
}

impl LoopDevice {
    pub(crate) fn run(&self) -> Result<()> {
        let request: LoopRequest = serde_json::from_str(&self.request)
            .context("this is for capstan itself, as `attach` and `list` do it")?;
        loop_process::run(&request, io::stdin().lock(), io::stdout().lock())?;
        Ok(())
    }
}

/// Tells the process that waits, and closes stdout, for which it waits as well.
fn report(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    dup2_stdout(&null)?;
    Ok(())
}
