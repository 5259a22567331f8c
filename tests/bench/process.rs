//! What a process of the system uses.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// CPU time of all threads so far. The kernel counts it in nanoseconds.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path().join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let nanos = text.split(' ').next().context("schedstat has a number")?;
        total += Duration::from_nanos(nanos.parse()?);
    }
    Ok(total)
}

/// Resident memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    /// Everything, reserved huge pages included.
    pub(crate) all: f64,
    /// Of that, slabs: buffers and queues of the memory budget.
    pub(crate) slabs: f64,
    /// Of that, reserved huge pages.
    pub(crate) reserved: f64,
}

/// Resident memory by mapping. Slabs are the only mappings that ask for huge pages: `ht` is one of
/// reserved huge pages, `hg` one that asked for transparent ones.
pub(crate) fn resident(pid: u32) -> Result<Resident> {
    let path = format!("/proc/{pid}/smaps");
    let smaps = fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut resident = Resident::default();
    let (mut pages, mut huge) = (0.0, 0.0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (Some(key), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        let bytes = || value.parse::<f64>().map(|kib| kib * 1024.0);
        match key {
            "Rss:" => pages = bytes()?,
            "Shared_Hugetlb:" => huge = bytes()?,
            "Private_Hugetlb:" => huge += bytes()?,
            // The last line of a mapping.
            "VmFlags:" => {
                resident.all += pages + huge;
                resident.reserved += huge;
                if line
                    .split_whitespace()
                    .any(|flag| ["ht", "hg"].contains(&flag))
                {
                    resident.slabs += pages + huge;
                }
            }
            _ => {}
        }
    }
    Ok(resident)
}
