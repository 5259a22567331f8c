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

/// The medium of a namespace, and where it is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Medium<'a> {
    /// The options that mean its connection ([`Way`](crate::way::Way)).
    pub way: &'a str,
    /// The namespace.
    pub nsid: u32,
}

impl Medium<'_> {
    /// What the controller warns of, with what to do; `None` when that is nothing.
    #[must_use]
    pub fn warned_of(&self, warning: CriticalWarning) -> Option<String> {
        if warning.is_empty() {
            return None;
        }
        let Self { way, nsid } = self;
        let words = warning_words(warning);
        let after_a_loss = match warning.contains(CriticalWarning::RELIABILITY) {
            true => {
                " (of a capstan-target: once its operator has mended the medium and checked what is on it, \
                 `capstan-target clear-lost-writes PATH`)"
            }
            false => "",
        };
        Some(format!(
            "the controller warns of the medium of namespace {nsid}: {words} (critical warning {warning:#x}); the target's log \
             and `capstan-target doctor` there say why and what to do{after_a_loss}, and \
             `capstan smart-log {way} -N {nsid}` whether it is over"
        ))
    }
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::log::CriticalWarning;

    use super::Medium;

    #[test]
    fn a_warning_names_what_asks_again_and_what_the_operator_does() {
        let medium = Medium {
            way: "-a fe80::1%eth0 -s 4420 -n 'a disk' -t tcp",
            nsid: 3,
        };
        assert_eq!(medium.warned_of(CriticalWarning::empty()), None);
        let told = medium.warned_of(CriticalWarning::RELIABILITY).unwrap();
        for words in [
            "`capstan smart-log -a fe80::1%eth0 -s 4420 -n 'a disk' -t tcp -N 3`",
            "critical warning 0x4",
            "`capstan-target doctor`",
            "`capstan-target clear-lost-writes PATH`",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        let told = medium.warned_of(CriticalWarning::READ_ONLY).unwrap();
        assert!(!told.contains("clear-lost-writes"), "{told}");
    }
}
