//! Options of a volume by their names, for what is no command line: the options of mount(8), and
//! keys of a file.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args as _, Command, Error};

use super::volume::VolumeArgs;

/// Longer words are no slip of a name, and the distance costs their square.
const NAME_BYTES_MAX: usize = 64;

/// The options that say which volume, and how it is connected to.
pub(super) struct VolumeOptions(Command);

impl VolumeOptions {
    pub(super) fn new() -> Self {
        let command = Command::new("volume").no_binary_name(true);
        Self(VolumeArgs::augment_args(command))
    }

    /// The option with this long name, whether it has `_` or `-` in it.
    pub(super) fn find(&self, name: &str) -> Option<&Arg> {
        let name = name.replace('_', "-");
        self.0.get_arguments().find(|arg| {
            let others = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(&name) || others.contains(&&*name)
        })
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arg> {
        self.0.get_arguments()
    }

    /// Their long names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.all().filter_map(Arg::get_long)
    }

    /// The option with this value as a word of a command line.
    ///
    /// # Errors
    /// What is expected instead, in words.
    pub(super) fn word(&self, arg: &Arg, value: &str) -> Result<String, String> {
        let long = arg.get_long().unwrap_or_default();
        let word = format!("--{long}={value}");
        // The one option that has to be there comes first, unless it is this one.
        let address = (long != "traddr").then(|| "--traddr=::1".to_owned());
        let words = address.into_iter().chain([word.clone()]);
        let parsed = self.0.clone().try_get_matches_from(words);
        parsed.map(|_| word).map_err(|error| expected(&error))
    }
}

/// Whether an option is there or not, without a value.
pub(super) fn is_flag(arg: &Arg) -> bool {
    !arg.get_action().takes_values()
}

/// What `error` says that a value has to be.
fn expected(error: &Error) -> String {
    if error.kind() == ErrorKind::InvalidValue
        && let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue)
    {
        return format!("expected {}", one_of(values));
    }
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// Words as a choice.
pub(super) fn one_of(words: &[impl AsRef<str>]) -> String {
    match words {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", first.join(", "), last.as_ref())
        }
    }
}

/// The name that `word` is most likely a slip of: at most a third of its characters apart, whatever
/// the case and whether `_` or `-` is in it.
pub(super) fn nearest<'c>(word: &str, names: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if word.len() > NAME_BYTES_MAX {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    let distances = names.into_iter().map(|name| {
        let distance = strsim::damerau_levenshtein(&word, &plain(name));
        (distance, name)
    });
    distances
        .filter(|(distance, name)| *distance <= name.chars().count() / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_checked_as_on_the_command_line() {
        let options = VolumeOptions::new();
        let word = |name: &str, value: &str| options.word(options.find(name).unwrap(), value);
        assert_eq!(word("nsid", "3").unwrap(), "--namespace-id=3");
        assert_eq!(word("io_timeout", "3").unwrap(), "--io-timeout=3");
        assert_eq!(word("nsid", "x").unwrap_err(), "expected 1 to 4294967294");
        assert_eq!(
            word("transport", "udp").unwrap_err(),
            "expected auto, rdma or tcp"
        );
        assert_eq!(
            word("hostid", "7").unwrap_err(),
            "expected a UUID other than zero (`uuidgen` makes one)"
        );
        assert!(word("traddr", "").is_err());
        assert!(options.find("options").is_none());
    }

    #[test]
    fn slips_are_recognized() {
        let names = ["transport", "nsid", "hostnqn"];
        assert_eq!(nearest("Transprt", names), Some("transport"));
        assert_eq!(nearest("nsdi", names), Some("nsid"));
        assert_eq!(nearest("commit", names), None);
        assert_eq!(nearest(&"n".repeat(1 << 20), names), None);
    }
}
