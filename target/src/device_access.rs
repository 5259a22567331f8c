//! Which devices the service may open: the drop-in for its unit that lets it open those of a
//! configuration and no others, and what a unit with one lacks for a configuration.

mod drop_in;
mod unit;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use capstan_config::Config;
use capstan_doctor::Check;

use crate::cli::DeviceAccess;
use drop_in::{HEAD, drop_in};
use unit::Unit;

const NAME: &str = "device access";
/// Where systemd looks for it.
const USUAL: &str = "/etc/systemd/system/capstan-target.service.d/devices.conf";

/// What there is to print.
#[derive(Debug)]
pub struct Done {
    /// The drop-in, where it is in no file.
    pub text: Option<String>,
    /// What it does not let in yet.
    pub notes: Vec<String>,
}

/// Makes the drop-in of a configuration, and writes it where a file is named for it.
///
/// # Errors
/// The configuration is none, or the file is another one's, or cannot be written.
pub fn run(options: &DeviceAccess) -> anyhow::Result<Done> {
    let config = Config::from_file(&options.config)?;
    let made = drop_in(&config, &options.config);
    let Some(to) = &options.to else {
        return Ok(Done {
            text: Some(made.text),
            notes: made.absent,
        });
    };
    write(to, &made.text)?;
    Ok(Done {
        text: None,
        notes: made.absent,
    })
}

/// Writes it as a whole, over one of before: a unit with half of it would let in other devices.
fn write(to: &Path, text: &str) -> anyhow::Result<()> {
    match fs::read_to_string(to) {
        Ok(before) if before.starts_with(HEAD) => {}
        Ok(_) => bail!(
            "{}: it is there already and not written by `capstan-target device-access`, expected one of that or none; \
             give --to another name, such as {USUAL}",
            to.display()
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("{}: cannot be read", to.display()));
        }
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| {
        let new = to.with_extension("conf.new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, to)
    });
    written.with_context(|| {
        format!(
            "{}: cannot be written; expected a folder that this user can write to: run it as root",
            to.display()
        )
    })
}

/// Of the devices of a configuration that the unit which serves it does not let it open, a check
/// each; nothing where no unit serves it, or systemd does not run.
#[must_use]
pub fn checks(config: &Config, file: &Path) -> Vec<Check> {
    Unit::serving(file).map_or_else(Vec::new, |unit| of_unit(config, file, &unit))
}

fn of_unit(config: &Config, file: &Path, unit: &Unit) -> Vec<Check> {
    let devices = drop_in::devices(config);
    let found = devices.iter().filter_map(|device| {
        let number = device.number?;
        if unit.allows(number, device.access) {
            return None;
        }
        let seen = format!(
            "the unit does not let the service open {} ({})",
            device.path.display(),
            device.access.word()
        );
        let mend = format!(
            "`capstan-target device-access --config {} --to {USUAL}`, `systemctl daemon-reload` and \
             `systemctl restart capstan-target`",
            file.display()
        );
        let expected = format!("DeviceAllow= for it; it has {}", unit.allowed());
        Some(Check::warning(NAME, seen, expected, mend))
    });
    found.collect()
}

/// What `check` says of that, a line each.
#[must_use]
pub fn warnings(config: &Config, file: &Path) -> Vec<String> {
    checks(config, file).iter().map(Check::line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_replaces_only_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("target.toml");
        fs::write(&config, "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n[[subsystem.namespace]]\nram = \"1MiB\"\n").unwrap();
        let to = folder.path().join("unit.d/devices.conf");
        let options = DeviceAccess {
            config,
            to: Some(to.clone()),
        };
        for _ in 0..2 {
            assert_eq!(run(&options).unwrap().text, None);
            assert!(fs::read_to_string(&to).unwrap().starts_with(HEAD));
        }
        fs::write(&to, "[Service]\n").unwrap();
        let error = run(&options).unwrap_err().to_string();
        assert!(
            error.contains("devices.conf: it is there already"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&to).unwrap(), "[Service]\n");
    }
}
