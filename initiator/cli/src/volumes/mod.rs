//! Volumes that outlive a boot: `attach --persist`, `detach --persist`, `connect-all`, and the
//! process of the unit `capstan@NAME`.

pub(super) mod file;
pub(super) mod unit;

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::internals::disk::record::{Record, VolumeDir, run_dir, volumes};
use capstan_initiator::internals::disk::serving::{COMMAND, FOLDER_OPTION};
use clap::Args;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::by_name::nearest;
use super::disk::find;
use super::interrupt::Interrupts;
use super::left_over::{clean_up_dead, mounts};
use super::output;
use super::values::wrong;
use super::volume::{NAME_OPTION, PROCESS_NAME, SERVICE_OPTION, VolumeArgs, require_root};
use file::Entry;

/// Longest name of a volume, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The name of a volume, which is part of the names of a unit and of a device.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    // A number is that of a process for other commands.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    if begins && !is_number && text.len() <= NAME_BYTES_MAX && text.chars().all(is_name) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "expected a letter or digit, and up to {} of letters, digits, '.', '_' and '-' behind it, not digits alone",
        NAME_BYTES_MAX - 1
    ))
}

/// A name for a volume that was given none: what its subsystem calls itself.
pub(super) fn default_name(subnqn: &str, nsid: u32) -> Result<String> {
    let own = subnqn.rsplit(':').next().unwrap_or(subnqn);
    let name = match nsid {
        1 => own.to_owned(),
        nsid => format!("{own}-{nsid}"),
    };
    parse_name(&name).map_err(|_| {
        anyhow!("--persist needs a name, and {name:?}, of the subsystem {subnqn}, cannot be one; give another by --name")
    })
}

/// The volume of this name that is attached.
pub(super) fn attached(name: &str) -> Result<Option<(VolumeDir, Record)>> {
    let is_it = |record: &Record| record.volume_name.as_deref() == Some(name);
    let found = find(|_, record| is_it(record))?;
    Ok(found.filter(|(_, record)| record.process.is_alive()))
}

/// Refuses a name that another attached volume has.
pub(super) fn check_free(name: &str) -> Result<()> {
    let Some((_, record)) = attached(name)? else {
        return Ok(());
    };
    bail!(
        "--name is {name:?}, which volume {} has, served by process {} ({}/{}); expected another name, or: capstan detach {name}",
        record.name(),
        record.process.pid,
        record.subnqn,
        record.nsid
    )
}

/// The volumes of the file; a mistake in there is one of words.
fn entries() -> Result<Vec<Entry>> {
    file::read().map_err(|error| wrong(output::chain(&error)))
}

fn entry(name: &str) -> Result<Entry> {
    let entries = entries()?;
    let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let found = entries.into_iter().find(|entry| entry.name == name);
    found.ok_or_else(|| {
        let path = file::path();
        let meant = match nearest(name, names.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean {meant}?"),
            None if names.is_empty() => {
                "it has none; `capstan attach --persist` adds one".to_owned()
            }
            None => format!("it has {}", names.join(", ")),
        };
        wrong(format!(
            "{}: there is no volume {name:?} in it; {meant}",
            path.display()
        ))
    })
}

/// Attaches a volume, so that it outlives a boot: its record.
///
/// # Errors
/// Why there is no disk; the file is as it was then.
pub(super) fn persist(
    volume: &VolumeArgs,
    name: Option<&str>,
    interrupts: &Interrupts,
) -> Result<(VolumeDir, Record)> {
    // Before anything is changed: a mistake in it keeps all others out as well.
    let known = entries()?;
    let mut volume = volume.clone();
    if volume.connect.nqn.is_none() {
        let (options, _) = volume.options_and_taken()?;
        volume.connect.nqn = Some(options.subnqn.as_str().to_owned());
    }
    let nqn = volume.connect.nqn.clone().unwrap_or_default();
    let name = match name {
        Some(name) => name.to_owned(),
        None => default_name(&nqn, volume.namespace_id)?,
    };
    let words = volume.given_args();
    if let Some(other) = known.iter().find(|entry| entry.name == name)
        && other.volume.given_args() != words
    {
        bail!(
            "{} has another volume {name:?}; expected another name (--name), or: capstan detach --persist {name}",
            file::path().display()
        );
    }
    let is_new = known.iter().all(|entry| entry.name != name);
    if !unit::is_there() {
        check_free(&name)?;
        let attached = volume.attach(None, Some(&name), interrupts)?;
        if let Err(error) = file::add(&name, &words) {
            return Err(error.context(format!(
                "{} is attached, and not for the next boot",
                attached.1.name()
            )));
        }
        return Ok(attached);
    }
    if let Some(found) = attached(&name)? {
        check_is(&volume, &found.1)?;
        file::add(&name, &words)?;
        return Ok(found);
    }
    if is_new {
        file::add(&name, &words)?;
    }
    let started = unit::start(&[&name]).and_then(|()| {
        attached(&name)?
            .with_context(|| format!("{} has no record of its volume", unit::name(&name)))
    });
    started.inspect_err(|_| {
        // It would go on trying.
        let _ = unit::stop(&name);
        if is_new && let Err(stays) = file::remove(&name) {
            tracing::warn!("{name} stays in {}: {stays:#}", file::path().display());
        }
    })
}

/// Makes sure that a volume that is attached under a name is the one that is asked for.
fn check_is(volume: &VolumeArgs, record: &Record) -> Result<()> {
    if volume.connect.nqn.as_ref() == Some(&record.subnqn) && volume.namespace_id == record.nsid {
        return Ok(());
    }
    let name = record.volume_name.clone().unwrap_or_default();
    check_free(&name)
}

/// Takes the volume that `given` names, and that `record` is where it is attached, out of the file.
pub(super) fn forget(given: &Path, record: Option<&Record>) -> Result<()> {
    let of_record = record.and_then(|record| record.volume_name.clone());
    let name = of_record.unwrap_or_else(|| given.to_string_lossy().into_owned());
    let path = file::path();
    if !file::remove(&name)? {
        match record {
            Some(record) => tracing::warn!("{} is not in {}", record.name(), path.display()),
            None => return entry(&name).map(drop),
        }
    }
    if unit::is_there() {
        // One that tries again to attach it.
        unit::stop(&name)?;
    }
    Ok(())
}

/// Arguments of `connect-all`.
#[derive(Args, Debug)]
pub(crate) struct ConnectAll {
    /// Volumes of the file, by name [default: all of them].
    names: Vec<String>,
}

impl ConnectAll {
    pub(crate) fn run(&self) -> Result<()> {
        require_root("attaching volumes needs root (mount(2), loop devices)")?;
        // Taken before a thread starts, which must not get them.
        let interrupts = Interrupts::take()?;
        let wanted = match &self.names[..] {
            [] => entries()?,
            names => names
                .iter()
                .map(|name| entry(name))
                .collect::<Result<_>>()?,
        };
        let mut missing = Vec::new();
        for entry in wanted {
            if attached(&entry.name)?.is_none() {
                missing.push(entry);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let failures = match unit::is_there() {
            true => by_units(&missing),
            false => by_hand(&missing, &interrupts)?,
        };
        for (name, error) in &failures {
            output::note(&format!("{name}: {}", output::chain(error)));
        }
        match &failures[..] {
            [] => Ok(()),
            failures => {
                let names: Vec<_> = failures.iter().map(|(name, _)| name.as_str()).collect();
                bail!(
                    "{} of {} volumes are not attached ({}), for the reasons above",
                    failures.len(),
                    missing.len(),
                    names.join(", ")
                )
            }
        }
    }
}

/// Has systemd start the units of all of them: the volumes that are not there after that, and why.
fn by_units(missing: &[Entry]) -> Vec<(String, Error)> {
    let names: Vec<&str> = missing.iter().map(|entry| &*entry.name).collect();
    // What has failed is told of each.
    let started = unit::start(&names);
    let failed = names.into_iter().filter_map(|name| {
        let why = match attached(name) {
            Ok(Some(_)) => return None,
            Ok(None) => unit::why_not(name),
            Err(error) => error,
        };
        Some((name.to_owned(), why))
    });
    let failed: Vec<_> = failed.collect();
    if let (Err(error), true) = (started, failed.is_empty()) {
        tracing::warn!("{error:#}");
    }
    failed
}

fn by_hand(missing: &[Entry], interrupts: &Interrupts) -> Result<Vec<(String, Error)>> {
    let mut failures = Vec::new();
    for Entry { name, volume } in missing {
        match volume.attach(None, Some(name), interrupts) {
            Ok((_, record)) => output::line(&format!("{name} is {}", record.device.display()))?,
            Err(error) if error.is::<super::interrupt::Interrupted>() => return Err(error),
            Err(error) => failures.push((name.clone(), error)),
        }
    }
    Ok(failures)
}

/// Arguments of `serve-volume`.
#[derive(Args, Debug)]
pub(crate) struct ServeVolume {
    /// Volume of the file, by name.
    name: String,
}

impl ServeVolume {
    /// Becomes the process that serves the volume; it keeps its number, which systemd knows.
    pub(crate) fn run(&self) -> Result<()> {
        require_root("attaching a volume needs root (mount(2), loop devices)")?;
        let failed = match self.become_the_process() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        unit::tell(&format!("failed: {}", output::chain(&failed)));
        Err(failed)
    }

    fn become_the_process(&self) -> Result<std::convert::Infallible> {
        let name = &self.name;
        let volume = entry(name)?.volume;
        clean_up_dead();
        if let Some((_, record)) = attached(name)? {
            bail!(
                "volume {name} is still {}, served by process {}; it is attached anew when that has ended: `capstan list` \
                 shows what uses it",
                record.name(),
                record.process.pid
            );
        }
        let dir = VolumeDir::create(&run_dir())?;
        let become_it = || -> Result<std::convert::Infallible> {
            let log = kept_log(&dir, name)?;
            let program = std::env::current_exe().context("finding the capstan program")?;
            let error = Command::new(&program)
                .arg0(PROCESS_NAME)
                .args(["--verbose", COMMAND, FOLDER_OPTION])
                .arg(dir.path())
                .args([SERVICE_OPTION, NAME_OPTION, name])
                .args(volume.to_args())
                .current_dir("/")
                .exec();
            drop(log);
            Err(Error::new(error).context(format!("becoming {}", program.display())))
        };
        let failed = become_it();
        let _ = super::left_over::remove(&dir);
        failed
    }
}

/// The log of a volume that writes its lines elsewhere, locked as long as its process lives.
fn kept_log(dir: &VolumeDir, name: &str) -> Result<OwnedFd> {
    let path = dir.log();
    let says = format!(
        "its log is in the journal: journalctl -u {}\n",
        unit::name(name)
    );
    let log = File::options().append(true).create_new(true).open(&path);
    let write = |mut log: File| -> Result<OwnedFd> {
        std::io::Write::write_all(&mut log, says.as_bytes())?;
        log.try_lock()?;
        // It is to outlive the program.
        fcntl(log.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(log.into())
    };
    log.map_err(Error::from)
        .and_then(write)
        .with_context(|| path.display().to_string())
}

/// How long what uses a file system may take to end at a shutdown.
const BUSY_PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// Arguments of `unmount-at-shutdown`.
#[derive(Args, Debug)]
pub(crate) struct UnmountAtShutdown {}

impl UnmountAtShutdown {
    /// Unmounts what is still mounted of volumes while the system shuts down: what was mounted by
    /// hand without `_netdev` systemd takes for local, and would unmount it behind the network. At
    /// another time it does nothing.
    pub(crate) fn run(&self) -> Result<()> {
        if !unit::is_shutting_down() {
            return Ok(());
        }
        let start = Instant::now();
        let mut failed = unmounted()?;
        while !failed.is_empty() && start.elapsed() < BUSY_PATIENCE {
            thread::sleep(TRY_EVERY);
            failed = unmounted()?;
        }
        match &failed[..] {
            [] => Ok(()),
            failed => bail!("{}", failed.join("; ")),
        }
    }
}

/// Unmounts all volumes beside each other: why those are still mounted that are.
fn unmounted() -> Result<Vec<String>> {
    let records = volumes(&run_dir())?.into_iter();
    let records = records.filter_map(|(_, record)| record.ok().flatten());
    let mounted = records.filter(|record| {
        record.process.is_alive() && mounts(record).is_ok_and(|mounts| !mounts.is_empty())
    });
    let program = std::env::current_exe().context("finding the capstan program")?;
    let unmounting: Vec<_> = mounted
        .map(|record| {
            let mut umount = Command::new(&program);
            umount.arg("umount").arg(&record.device);
            umount
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            umount.spawn()
        })
        .collect();
    let mut failed = Vec::new();
    for umount in unmounting {
        let output = umount.and_then(std::process::Child::wait_with_output);
        let output = output.context("running capstan umount")?;
        if !output.status.success() {
            failed.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
    }
    Ok(failed)
}

/// Arguments of `udev-names`.
#[derive(Args, Debug)]
pub(crate) struct UdevNames {
    /// The disk.
    device: PathBuf,
}

impl UdevNames {
    /// Tells udev what a disk is called. One that is none of capstan has no names.
    pub(crate) fn run(&self) -> Result<()> {
        let found = volumes(&run_dir()).unwrap_or_default().into_iter();
        let records = found.filter_map(|(_, record)| record.ok().flatten());
        let mut of_device =
            records.filter(|record| record.device == self.device && record.process.is_alive());
        if let Some(record) = of_device.next() {
            for (key, value) in [
                ("CAPSTAN_NAME", &record.volume_name),
                ("CAPSTAN_ID", &record.identifier),
            ] {
                if let Some(value) = value {
                    output::line(&format!("{key}={value}"))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{default_name, parse_name};

    #[test]
    fn a_name_is_one_of_a_unit_and_of_a_file() {
        for name in ["data", "a", "9p", "disk-1_b.c"] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        let long = "x".repeat(65);
        for name in ["", ".", "..", "-a", "a b", "a/b", "a@b", "ä", "42", &long] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_subsystem_gives_a_name() {
        let of = |nqn, nsid| default_name(nqn, nsid);
        assert_eq!(of("nqn.2026-11.org.example:disk", 1).unwrap(), "disk");
        assert_eq!(of("nqn.2026-11.org.example:disk", 3).unwrap(), "disk-3");
        let error = of("nqn.2026-11.org.example:the disk", 1).unwrap_err();
        assert!(error.to_string().contains("--name"), "{error}");
    }
}
