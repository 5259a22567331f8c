//! `upgrade --check`: whether this binary takes over what a target that runs has: the options that
//! it was started with, its configuration, and what it remembers in its state folder.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use capstan_config::{Backing, Config};
use capstan_control::answer::{ConfigText, Status};
use capstan_control::{Client, ConfigForm, Request};
use capstan_doctor::{Check, Verdict};
use clap::Parser as _;

use crate::cli::{Cli, Command as Subcommand};
use crate::nfs::stable_state;
use crate::state::{self, FOLDER_VARIABLE};
use crate::{identities, lba_size, reservations};

const STATE: &str = "state";

/// Looks at everything that a restart with this binary would take over.
///
/// # Errors
/// The target does not answer; this binary cannot be started again for its state folder.
pub(crate) fn checks(client: &mut Client) -> anyhow::Result<Vec<Check>> {
    let status: Status = client.ask(&Request::Status {})?;
    let process = Process(status.pid);
    let mut checks = vec![version(&status)];
    match process.state_folder() {
        Ok(folder) => as_if_in(folder.as_ref())?,
        Err(error) => checks.push(Check::warning(
            STATE,
            format!(
                "the environment of process {} cannot be read: {error}",
                status.pid
            ),
            format!(
                "{FOLDER_VARIABLE} of it; {} is looked at",
                state::wanted().display()
            ),
            "run this as root, or as the user of the target",
        )),
    }
    let form = ConfigForm::Complete;
    let complete: ConfigText = client.ask(&Request::ConfigShow { form })?;
    let (served, of_served) = served(&complete);
    checks.push(of_served);
    checks.push(started_with(&process));
    checks.extend(unsaved(&status));
    if let Some(served) = &served {
        checks.extend(memory(served));
    }
    checks.extend(remembered(served.as_ref()));
    Ok(checks)
}

fn version(status: &Status) -> Check {
    let (pid, runs) = (status.pid, &status.version);
    let this = env!("CARGO_PKG_VERSION");
    Check::ok(
        "version",
        format!("{runs} runs as process {pid}, this is {this}"),
    )
}

/// A target that runs.
#[derive(Debug)]
struct Process(u32);

impl Process {
    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    /// Words that end with a zero byte each (proc_pid_cmdline(5), proc_pid_environ(5)).
    fn words(&self, name: &str) -> io::Result<Vec<OsString>> {
        let bytes = fs::read(self.file(name))?;
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
        let words = bytes.split(|byte| *byte == 0);
        Ok(words
            .map(|word| OsString::from_vec(word.to_vec()))
            .collect())
    }

    /// What STATE_DIRECTORY says to it.
    fn state_folder(&self) -> io::Result<Option<OsString>> {
        let variables = self.words("environ")?.into_iter().map(OsString::into_vec);
        let name = [FOLDER_VARIABLE.as_bytes(), b"="].concat();
        let mut values =
            variables.filter_map(|variable| Some(variable.strip_prefix(&name[..])?.to_vec()));
        Ok(values.next().map(OsString::from_vec))
    }
}

/// Starts this binary anew where the target has another state folder than this process would have:
/// all that looks at the folder goes by the environment.
fn as_if_in(folder: Option<&OsString>) -> anyhow::Result<()> {
    if std::env::var_os(FOLDER_VARIABLE).as_ref() == folder {
        return Ok(());
    }
    let mut again = Command::new("/proc/self/exe");
    again.args(std::env::args_os().skip(1));
    match folder {
        Some(folder) => again.env(FOLDER_VARIABLE, folder),
        None => again.env_remove(FOLDER_VARIABLE),
    };
    // It returns only where it fails.
    Err(again.exec())
        .context("starting this binary again with the target's state folder: /proc/self/exe")
}

/// The configuration that is served, with every key, as far as this binary knows it.
fn served(complete: &ConfigText) -> (Option<Config>, Check) {
    const NAME: &str = "configuration that is served";
    let text: Vec<_> = complete
        .files
        .iter()
        .map(|file| file.text.as_str())
        .collect();
    match Config::from_toml(&text.join("\n")) {
        Ok(config) => {
            let (subsystems, listeners) = (config.subsystems.len(), config.listeners.len());
            let seen = format!("subsystems: {subsystems}, listeners: {listeners}");
            (Some(config), Check::ok(NAME, seen))
        }
        Err(error) => (None, refused(NAME, &error)),
    }
}

/// What a restart begins with: the words of the command line and the file that they name.
fn started_with(process: &Process) -> Check {
    const NAME: &str = "configuration of a restart";
    let words = match process.words("cmdline") {
        Ok(words) => words,
        Err(error) => {
            return Check::warning(
                NAME,
                format!("{}: {error}", process.file("cmdline").display()),
                "the words that the target was started with",
                "run this as root, or as the user of the target",
            );
        }
    };
    let source = match Cli::try_parse_from(&words).map(|cli| cli.command) {
        Ok(Subcommand::Serve(serve)) => serve.source,
        Ok(_) | Err(_) => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            return Check::error(
                NAME,
                format!("it was started as `{}`", words.join(" ")),
                "words of `capstan-target serve` that this version knows",
                "compare them with `capstan-target serve --help` of this version, and change ExecStart= of the unit",
            );
        }
    };
    match source.config {
        Some(file) if file.to_str() == Some("-") => Check::warning(
            NAME,
            "it came from stdin",
            "a file",
            "give the same to the next start, or write a file: `capstan-target config show`",
        ),
        Some(file) => {
            // A path may be relative to where the target was started.
            let path = process.file("cwd").join(&file);
            match Config::from_file(if file.is_absolute() { &file } else { &path }) {
                Ok(_) => Check::ok(NAME, file.display().to_string()),
                Err(error) => refused(NAME, &error),
            }
        }
        None => Check::ok(NAME, "options of the command line"),
    }
}

fn refused(name: &str, error: &dyn std::error::Error) -> Check {
    Check::error(
        name,
        error.to_string(),
        "a configuration that this version takes",
        "change what is named there before the upgrade (CHANGELOG)",
    )
}

fn unsaved(status: &Status) -> Option<Check> {
    let changes = &status.config.unsaved;
    (!changes.is_empty()).then(|| {
        Check::warning(
            "changes at run time",
            format!("in no file: {}", changes.join("; ")),
            "none: a restart loses them",
            "`capstan-target config save`",
        )
    })
}

/// Namespaces whose data no restart keeps.
fn memory(served: &Config) -> Option<Check> {
    let subsystems = served.subsystems.iter();
    let in_memory = subsystems.flat_map(|of| {
        let namespaces = of.namespaces.iter();
        let in_memory =
            namespaces.filter(|namespace| matches!(namespace.backing, Backing::Ram { .. }));
        in_memory.map(move |namespace| format!("{} of {}", namespace.nsid, of.nqn))
    });
    let in_memory: Vec<_> = in_memory.collect();
    (!in_memory.is_empty()).then(|| {
        Check::warning(
            "namespaces in RAM",
            in_memory.join(", "),
            "none: a restart makes them anew, and hosts see that they are others",
            "have hosts copy what is on them, or detach them",
        )
    })
}

/// What is in the state folder, as this binary reads it.
fn remembered(served: Option<&Config>) -> Vec<Check> {
    let Some(folder) = state::folder() else {
        let folder = state::wanted().display().to_string();
        return vec![Check::ok(
            STATE,
            format!("{folder} is not there: nothing is remembered"),
        )];
    };
    let mut warnings = Vec::new();
    let mut errors: Vec<String> = match served {
        Some(config) => [
            identities::check(config, &mut warnings).err(),
            lba_size::check(config).err(),
        ],
        None => [identities::look().err(), lba_size::look().err()],
    }
    .into_iter()
    .flatten()
    .map(|error| format!("{error:#}"))
    .collect();
    errors.extend(reservations::unreadable(&folder));
    errors.extend(stable_state(&folder));
    if errors.is_empty() && warnings.is_empty() {
        return vec![Check::ok(
            STATE,
            format!("{} is read whole", folder.display()),
        )];
    }
    // The words say what is expected, and what mends it.
    let told = |verdict| {
        move |line: String| Check {
            verdict,
            ..Check::ok(STATE, line)
        }
    };
    let errors = errors.into_iter().map(told(Verdict::Error));
    errors
        .chain(warnings.into_iter().map(told(Verdict::Warning)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_served_is_refused_with_the_key_that_is_not_known() {
        let text = |key: &str| ConfigText {
            files: vec![capstan_control::answer::ConfigFile {
                path: None,
                read: None,
                text: format!(
                    "[target]\n{key}\n[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n[[subsystem.namespace]]\nram = \"1MiB\"\n"
                ),
            }],
        };
        let (config, check) = served(&text("reactors = 1"));
        assert_eq!((config.is_some(), check.verdict), (true, Verdict::Ok));
        let (config, check) = served(&text("of_another_version = 1"));
        assert_eq!((config.is_none(), check.verdict), (true, Verdict::Error));
        assert!(check.seen.contains("of_another_version"), "{}", check.seen);
    }

    #[test]
    fn a_process_tells_the_words_it_was_started_with() {
        let process = Process(std::process::id());
        let words: Vec<_> = std::env::args_os().collect();
        assert_eq!(process.words("cmdline").unwrap(), words);
        assert_eq!(
            process.state_folder().unwrap(),
            std::env::var_os(FOLDER_VARIABLE)
        );
        // It is no `serve` of this program.
        assert_eq!(started_with(&process).verdict, Verdict::Error);
    }
}
