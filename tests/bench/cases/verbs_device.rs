//! A verbs device in software, with which the verbs provider is counted where there is no device.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The device: a library that is loaded in place of libibverbs and librdmacm.
pub(crate) struct VerbsDevice {
    library: PathBuf,
}

impl VerbsDevice {
    /// Compiles it into `folder`.
    pub(crate) fn build(folder: &Path) -> Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/verbs_device");
        let library = folder.join("verbs_device.so");
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"])
            // Its copies stay its own instructions, and do not become calls of memcpy(3).
            .arg("-fno-tree-loop-distribute-patterns")
            .arg("-o")
            .arg(&library)
            .args(["verbs.c", "cm.c"].map(|source| sources.join(source)))
            .status()
            .context("cc does not start")?;
        if !status.success() {
            bail!(
                "cc ended with {status} for {}; expected gcc and the headers of libibverbs and \
                 librdmacm",
                sources.display()
            );
        }
        Ok(Self { library })
    }

    /// What puts it before these libraries in a program, as env(1) takes it.
    pub(crate) fn preload(&self) -> String {
        format!("LD_PRELOAD={}", self.library.display())
    }

    /// The instructions of the device itself, in callgrind's report of a program.
    pub(crate) fn instructions(&self, report: &str) -> Result<u64> {
        own_instructions(report, &self.library.display().to_string())
    }
}

/// The instructions of one object, without those it calls. The lines of a report name an object by
/// a number, which stands beside its path the first time (Valgrind manual, "Callgrind Format
/// Specification"). The line behind `calls=` has what the called function cost in all.
fn own_instructions(report: &str, path: &str) -> Result<u64> {
    let (mut number, mut is_inside, mut is_call) = (None, false, false);
    let mut sum = 0;
    for line in report.lines() {
        let object = line
            .strip_prefix("ob=")
            .or_else(|| line.strip_prefix("cob="));
        if let Some(object) = object {
            let (name, of) = object.split_once(' ').unwrap_or((object, ""));
            if of == path {
                number = Some(name);
            }
            if line.starts_with("ob=") {
                is_inside = number == Some(name);
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            && !std::mem::take(&mut is_call)
            && is_inside
        {
            let cost = line.split(' ').nth(1).context("a line without a cost")?;
            sum += cost.parse::<u64>().with_context(|| line.to_owned())?;
        }
    }
    number.with_context(|| format!("callgrind has seen nothing of {path}"))?;
    Ok(sum)
}
