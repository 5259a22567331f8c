//! Commands by the names that `nvme` has for them, which are other ones here.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Names there, and what does it here.
const WORDS: [(&[&str], &str); 5] = [
    (
        &["connect"],
        "'attach' makes a namespace a disk of this machine, and 'mount' mounts it; the other commands connect by themselves",
    ),
    (
        &["disconnect", "disconnect-all"],
        "'detach' ends a disk that 'attach' made, and 'umount' one that 'mount' made",
    ),
    (
        &["list-subsys", "show-topology"],
        "'list' shows the volumes attached to this machine, and 'discover' the subsystems of a target",
    ),
    (
        &[
            "get-log",
            "set-feature",
            "format",
            "sanitize",
            "fw-log",
            "ns-descs",
            "list-ctrl",
        ],
        "'admin-passthru' sends any admin command",
    ),
    (
        &[
            "compare",
            "dsm",
            "resv-acquire",
            "resv-register",
            "resv-release",
            "resv-report",
            "verify",
            "write-uncor",
            "write-zeroes",
        ],
        "'io-passthru' sends any I/O command",
    ),
];

/// Options of umount(8) and of other lists: of which command here, and what does it.
const OPTIONS: [(&str, &[&str], &str); 4] = [
    (
        "umount",
        &["-f", "-l", "--lazy"],
        "'--force' unmounts what is busy or does not answer, with the loss of what is not written",
    ),
    (
        "detach",
        &["-f"],
        "'--force' ends a disk whose process does not answer, with the loss of what is not written",
    ),
    (
        "umount",
        &["-a", "--all"],
        "'list' shows what is mounted; each is unmounted by its folder or its disk",
    ),
    (
        "list",
        &["-a", "--all"],
        "'list' shows all volumes, and '--output json' all that is known of them",
    ),
];

/// What an address that is missing is.
const ADDRESS: &str = "'--traddr' is the address or the name of the target, as in '-a 192.0.2.1'; 'ip address' on the target \
                       lists its addresses";

/// Says of a command that is not there what does the same, and of an address what it is.
pub(super) fn with_ours(mut error: Error) -> Error {
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && missing
            .iter()
            .any(|argument| argument.starts_with("--traddr"))
    {
        let tip = ContextValue::StyledStrs(vec![ADDRESS.into()]);
        error.insert(ContextKind::Suggested, tip);
        return error;
    }
    if let Some(tip) = of_option(&error) {
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
        return error;
    }
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let found = WORDS
        .iter()
        .find(|(names, _)| names.contains(&name.as_str()));
    if let Some((_, tip)) = found {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = ContextValue::StyledStrs(vec![(*tip).into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// What an option stands for that its command does not have.
fn of_option(error: &Error) -> Option<&'static str> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // It begins with the command.
    let usage = error.get(ContextKind::Usage)?.to_string();
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    let mut known = OPTIONS.iter().filter(|_| is_unknown);
    let found = known.find(|(command, options, _)| {
        let is_of = usage.contains(&format!("capstan {command} "));
        is_of && options.contains(&option.as_str())
    });
    found.map(|(.., tip)| *tip)
}

#[cfg(test)]
mod tests {
    use super::super::{command, parse};
    use super::{OPTIONS, WORDS};

    #[test]
    fn options_of_other_programs_are_answered_with_what_does_it() {
        for (name, options, tip) in OPTIONS {
            for option in options {
                for line in [&[name, option, "x"][..], &[name, "x", option]] {
                    let words = std::iter::once("capstan").chain(line.iter().copied());
                    let error = parse(words.map(Into::into)).unwrap_err().to_string();
                    // A list has no operand, which is refused first.
                    if name != "list" || line.get(1) == Some(option) {
                        assert!(error.contains(&format!("tip: {tip}")), "{line:?}: {error}");
                    }
                }
            }
            let quoted = tip.split('\'').skip(1).step_by(2);
            for quote in quoted {
                let word = quote.split(' ').next().unwrap();
                let command = command();
                let mut all = command.get_subcommands();
                let has = |command: &clap::Command| {
                    let mut longs = command.get_arguments().filter_map(|arg| arg.get_long());
                    command.get_name() == word || longs.any(|long| word == format!("--{long}"))
                };
                assert!(all.any(has), "{quote}");
            }
        }
    }

    #[test]
    fn words_of_nvme_are_answered_with_commands_that_there_are() {
        let command = command();
        for (names, tip) in WORDS {
            for name in names {
                assert!(command.find_subcommand(name).is_none(), "{name}");
                let error = parse(["capstan", name].into_iter().map(Into::into)).unwrap_err();
                let told = error.to_string();
                assert!(told.contains(&format!("tip: {tip}")), "{told}");
                assert!(!told.contains("similar"), "{told}");
            }
            let quoted = tip.split('\'').skip(1).step_by(2);
            for name in quoted {
                assert!(command.find_subcommand(name).is_some(), "{name}");
            }
        }
        let error = parse(["capstan", "idctrl"].into_iter().map(Into::into)).unwrap_err();
        assert!(error.to_string().contains("similar"), "{error}");
    }
}
