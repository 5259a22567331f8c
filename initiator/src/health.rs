//! What controllers report of their media, in words.

use capstan_nvme_proto::log::CriticalWarning;

/// Each bit of the Critical Warning field (NVMe Base 2.1, section 5.1.12.1.3) in words.
#[must_use]
pub fn warning_words(warning: CriticalWarning) -> String {
    const WORDS: [(CriticalWarning, &str); 6] = [
        (CriticalWarning::AVAILABLE_SPARE, "little spare is left"),
        (
            CriticalWarning::TEMPERATURE,
            "a temperature is beyond its threshold",
        ),
        (CriticalWarning::RELIABILITY, "reliability is degraded"),
        (CriticalWarning::READ_ONLY, "the medium refuses writes"),
        (
            CriticalWarning::VOLATILE_MEMORY_BACKUP,
            "the backup of volatile memory has failed",
        ),
        (
            CriticalWarning::PERSISTENT_MEMORY,
            "persistent memory is read-only or unreliable",
        ),
    ];
    let set = WORDS.into_iter().filter(|(bit, _)| warning.contains(*bit));
    let mut words: Vec<&str> = set.map(|(_, words)| words).collect();
    if !CriticalWarning::all().contains(warning) {
        words.push("bits that are reserved");
    }
    words.join(", ")
}
