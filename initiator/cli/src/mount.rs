//! `capstan mount`: file systems on volumes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use capstan_initiator::internals::claim;
use capstan_initiator::internals::disk::loop_device::device_numbers;
use capstan_initiator::internals::disk::loop_process::set_autoclear;
use capstan_initiator::internals::disk::mounts::{Mount as Mounted, mount_at, resolved};
use capstan_initiator::internals::disk::record::{Record, run_dir};
use capstan_initiator::internals::words::word_of;
use capstan_nvme_proto::text::Shown;
use clap::Args;
use serde_json::json;

use super::args::OutputFormat;
use super::disk::find;
use super::found::found_at;
use super::interrupt::{Interrupted, Interrupts};
use super::mount_helper::{UMOUNT_HELPER, has_umount_helper, slip_in};
use super::mount_options::{check_options, kind, without_journal};
use super::tool::Tools;
use super::values::within;
use super::volume::{VolumeArgs, require_root};
use super::{force, fs_size, left_over, output, read_only, signatures, warned};

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub(crate) struct Mount {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Options of the file system, as for mount(8).
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Kind of file system [default: auto, which is what is found on the volume].
    #[arg(long = "type", value_name = "TYPE", value_parser = kind)]
    fs_type: Option<String>,
    /// Mount this partition of the volume.
    #[arg(long, value_name = "N", value_parser = within::<u32>(1..=u32::MAX))]
    part: Option<u32>,
    /// Folder to mount at.
    mount_point: PathBuf,
    /// Output for people or for programs.
    #[arg(
        long,
        visible_alias = "output-format",
        value_enum,
        default_value_t = OutputFormat::Normal
    )]
    output: OutputFormat,
    /// As mount(8) wants it of a helper: silent, and content with what is mounted there already.
    #[arg(long, hide = true)]
    as_helper: bool,
}

impl Mount {
    /// Whether it is mount(8) that asks.
    pub(crate) fn is_helper(&self) -> bool {
        self.as_helper
    }

    pub(crate) fn run(&self) -> Result<()> {
        require_root("mounting a volume needs root")?;
        let meta = std::fs::metadata(&self.mount_point);
        if !meta.is_ok_and(|meta| meta.is_dir()) {
            let (at, point) = (self.mount_point.display(), word_of(&self.mount_point));
            if self.mount_point.symlink_metadata().is_ok() {
                bail!(
                    "mount point {at} is no folder ({}); expected one, and empty: give another path",
                    found_at(&self.mount_point)
                );
            }
            bail!("mount point {at} is not there; make it first: `mkdir -p {point}`");
        }
        if let Some(options) = &self.options {
            check_options(options, "--options")?;
            read_only::check(self.volume.read_only, options)?;
        }
        if self.as_helper && self.is_mounted()? {
            return Ok(());
        }
        check_empty(&self.mount_point)?;
        check_hides_no_records(&self.mount_point)?;
        // Taken before a thread starts, which must not get them.
        let interrupts = Interrupts::take()?;
        let point = resolved(&self.mount_point).context("the mount point")?;
        let (dir, record) = self.volume.attach(Some(&point), None, &interrupts)?;
        let tools = Tools::new(&interrupts, self.volume.patience()).in_this_group(self.as_helper);
        let mounted = self.mount(&record, &tools);
        if mounted.is_ok() {
            interrupts.leave_to_the_kernel()?;
            warned::tell(&dir, &record);
        }
        match mounted {
            Ok(fs_type) if self.output == OutputFormat::Json => {
                let mut told = serde_json::to_value(&record)?;
                told["mount_point"] = json!(self.mount_point);
                told["fs_type"] = json!(fs_type);
                output::json(&told)
            }
            Ok(_) if self.as_helper => Ok(()),
            Ok(fs_type) => output::line(&format!(
                "{} mounted at {} ({fs_type})",
                signatures::device_of(&record.device, self.part).display(),
                self.mount_point.display()
            )),
            Err(error) => {
                let mut error = tools.or_interrupted(error);
                if !error.is::<Interrupted>()
                    && let Some(warning) = warned::of_volume(&dir)
                {
                    error = error.context(warning);
                }
                Err(force::give_up(&dir, &record, error, &interrupts))
            }
        }
    }

    /// Mounts an attached volume; the disk goes when the file system is unmounted, however that is
    /// done.
    fn mount(&self, record: &Record, tools: &Tools<'_>) -> Result<String> {
        let device = match self.part {
            Some(number) => signatures::partition(&record.device, number, tools)?,
            None => record.device.clone(),
        };
        let fs_type = match &self.fs_type {
            Some(fs_type) if fs_type != "auto" => fs_type.clone(),
            _ => self.probe(record, &device, tools)?,
        };
        if !record.read_only && !read_only::has(self.options.as_deref(), "ro") {
            self.volume.share.warn(&fs_type, &self.named(record));
        }
        let read_only = (record.read_only || self.volume.read_only).then_some("ro");
        // Its disk is behind the network: systemd unmounts it before that goes (systemd.mount(5)).
        let options: Vec<&str> = std::iter::once("_netdev")
            .chain(has_umount_helper().then_some(UMOUNT_HELPER))
            .chain(read_only)
            .chain(self.options.as_deref())
            .collect();
        let mut command = Command::new("mount");
        command.args(["-t", &fs_type, "-o", &options.join(",")]);
        // A folder may have a name that looks like an option.
        command.arg("--").arg(&device).arg(&self.mount_point);
        if let Err(error) = tools.run(&mut command) {
            if !error.is::<Interrupted>() && signatures::is_unknown_to_kernel(&fs_type) {
                let said = match &self.fs_type {
                    Some(_) => format!("--type is {fs_type}"),
                    None => format!("{} holds {fs_type}", self.named(record)),
                };
                bail!(
                    "{said}, which cannot be mounted here: this kernel does not have it (`modprobe {fs_type}`), and there \
                     is no mount.{fs_type}; where the kernel has it by another name, say that with --type"
                );
            }
            if error.is::<Interrupted>() {
                return Err(error);
            }
            let named = self.named(record);
            let why = signatures::why_not_mounted(&named, self.part, &device, &fs_type, tools);
            if let Some(why) = why {
                return Err(error.context(why));
            }
            if let Some(why) = fs_size::why_not_mounted(&named, &device, &fs_type, tools) {
                return Err(error.context(why));
            }
            if let Some(why) = fs_size::one_of_several(&named, &device, &fs_type, tools) {
                return Err(error.context(why));
            }
            if let Some(why) = read_only.and_then(|_| without_journal(&fs_type, &options)) {
                return Err(error.context(format!("{named} {why}")));
            }
            if let Some(slip) = self.options.as_deref().and_then(slip_in) {
                return Err(error.context(slip));
            }
            return Err(error);
        }
        if let Err(error) = check(&self.mount_point, &record.device, &fs_type) {
            // Whatever is there is not what was asked for.
            let _ = tools.run(Command::new("umount").arg(&self.mount_point));
            return Err(error);
        }
        let of = record.device.clone();
        let what = record.device.display().to_string();
        tools.read(&what, move || Ok(set_autoclear(&of)?))?;
        Ok(fs_type)
    }

    /// The kind of file system on `device`, the disk or the partition of it that was named.
    fn probe(&self, record: &Record, device: &Path, tools: &Tools<'_>) -> Result<String> {
        let what = self.named(record);
        let found = signatures::file_system(device, tools)?;
        found.map_err(|content| match content {
            signatures::NoFileSystem::Blank { .. }
                if record.read_only && !self.volume.read_only =>
            {
                read_only::blank(&what)
            }
            content => signatures::nothing_to_mount(&what, self.part, device, &content, tools),
        })
    }

    /// Whether the volume is mounted at the mount point already, which is said: mount(8) sees a
    /// disk there, and not the volume of fstab(5).
    fn is_mounted(&self) -> Result<bool> {
        let point = resolved(&self.mount_point).context("the mount point")?;
        let Some(mount) = mount_at(&point).context("/proc/self/mountinfo")? else {
            return Ok(false);
        };
        let found = find(|_, record| {
            let is_it = self.volume.connect.nqn.as_ref() == Some(&record.subnqn)
                && record.nsid == self.volume.namespace_id;
            is_it && left_over::mounts(record).is_ok_and(|mounts| mounts.contains(&mount))
        })?;
        let Some((_, record)) = found.filter(|(_, record)| record.process.is_alive()) else {
            return Ok(false);
        };
        output::note_for_people(&format!(
            "{} is mounted at {} already",
            self.named(&record),
            self.mount_point.display()
        ));
        Ok(true)
    }

    /// What is to be mounted, in words.
    fn named(&self, record: &Record) -> String {
        let volume = format!("namespace {} of {}", record.nsid, record.subnqn);
        match self.part {
            Some(number) => format!("partition {number} of {volume}"),
            None => volume,
        }
    }
}

/// Says that what is in the folder is hidden by a mount there, and refuses to hide everything.
fn check_empty(point: &Path) -> Result<()> {
    let name = point.to_string_lossy();
    let at = Shown(&name);
    if std::fs::canonicalize(point).is_ok_and(|path| path == Path::new("/")) {
        bail!(
            "mount point {at} is the root of this system, expected an empty folder: give another path"
        );
    }
    let has_any = |mut entries: std::fs::ReadDir| entries.next().is_some();
    if std::fs::read_dir(point).is_ok_and(has_any) {
        tracing::warn!("{at} is not empty: what is in it is hidden until the volume is unmounted");
    }
    Ok(())
}

/// Refuses to hide what is known of volumes: nothing could be found, or unmounted, any more.
fn check_hides_no_records(point: &Path) -> Result<()> {
    let Ok(point_path) = std::fs::canonicalize(point) else {
        return Ok(());
    };
    for (folder, what, variable) in [
        (run_dir(), "records of volumes", "CAPSTAN_RUN_DIR"),
        (claim::folder(), "claims of volumes", "CAPSTAN_CLAIM_DIR"),
    ] {
        // It is made with the first volume.
        let mut there = folder
            .ancestors()
            .filter_map(|at| std::fs::canonicalize(at).ok());
        if there.next().is_some_and(|at| at.starts_with(&point_path)) {
            bail!(
                "mount point {} has {} in it, where capstan keeps its {what} ({variable}), and a mount there would hide that; \
                 expected another folder: give another path, as an empty folder in it",
                point.display(),
                folder.display()
            );
        }
    }
    Ok(())
}

/// Makes sure that the file system at `mount_point` is the one on `device`: a mount that failed
/// quietly would leave everything that follows on the local disk.
fn check(mount_point: &Path, device: &Path, fs_type: &str) -> Result<()> {
    let numbers = device_numbers(device);
    let mounted = mount_at(mount_point).context("/proc/self/mountinfo")?;
    match mounted {
        Some(m) if m.is_on(&numbers) && m.fs_type == fs_type => Ok(()),
        Some(Mounted {
            source,
            fs_type: other,
            ..
        }) => bail!(
            "at {} there is {other} of {}, expected {fs_type} on {}",
            mount_point.display(),
            source.display(),
            device.display()
        ),
        None => bail!(
            "nothing is mounted at {}, expected {fs_type} on {}",
            mount_point.display(),
            device.display()
        ),
    }
}
