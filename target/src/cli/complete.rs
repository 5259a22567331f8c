//! What a shell offers for words that name something of a target that runs: its subsystems, hosts,
//! namespaces and listeners. A shell asks this program at each press of the key; where no target
//! answers, nothing is offered.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use capstan_control::answer::{Connection, Export, Host, Listener, Subsystem};
use capstan_control::{Client, Request};
use clap::CommandFactory;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use serde::de::DeserializeOwned;

use super::Cli;
use crate::steering::socket;

const PROGRAM: &str = "capstan-target";
/// Set by the functions of a shell when they ask.
const ASKS: &str = "CAPSTAN_TARGET_COMPLETE";
/// How long the target may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Behind the function of `clap_complete`: names have colons, at which bash takes words apart, and
/// it puts what is offered in the place of the last part.
const BASH: &str = r#"
_capstan_target() {
    local line=${COMP_LINE:0:COMP_POINT} COMP_WORDS=() COMP_CWORD
    read -ra COMP_WORDS <<<"$line"
    [[ $line != *[[:space:]] ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    local word=${COMP_WORDS[COMP_CWORD]}
    _clap_complete_capstan_target "$1" "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
    local before=${word%"${word##*[:=]}"}
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -o bashdefault -o nosort -F _capstan_target capstan-target 2>/dev/null ||
    complete -o bashdefault -F _capstan_target capstan-target
"#;

/// Answers a shell that asks what may come next, and ends the program then. To be called before
/// there is another thread.
pub fn answer_shell() {
    CompleteEnv::with_factory(Cli::command)
        .var(ASKS)
        .bin(PROGRAM)
        .complete();
}

/// What makes a shell ask.
///
/// # Errors
/// There is no function for that shell.
pub fn registration(shell: clap_complete::Shell) -> io::Result<String> {
    let name = shell.to_string();
    let unknown = || io::Error::other(format!("there are no completions for {name}"));
    let shells = Shells::builtins();
    let completer = shells.completer(&name).ok_or_else(unknown)?;
    let mut text = Vec::new();
    completer.write_registration(ASKS, PROGRAM, PROGRAM, PROGRAM, &mut text)?;
    if shell == clap_complete::Shell::Bash {
        text.write_all(BASH.as_bytes())?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Asks the target of the command line that is typed.
fn ask<T: DeserializeOwned>(request: &Request) -> Option<T> {
    let mut client = Client::connect(&control_socket(&typed())).ok()?;
    client.set_timeout(Some(PATIENCE)).ok()?;
    client.ask(request).ok()
}

/// The words of the command line that is typed: behind the `--` of those of this process.
fn typed() -> Vec<OsString> {
    let words = std::env::args_os();
    words.skip_while(|word| word != "--").skip(1).collect()
}

/// The control socket that the words name, or the one of the service.
fn control_socket(words: &[OsString]) -> PathBuf {
    const OPTION: &str = "--control-socket";
    let mut words = words.iter();
    let named = words.find_map(|word| match word.to_str()?.strip_prefix(OPTION)? {
        "" => Some(None),
        rest => Some(Some(PathBuf::from(rest.strip_prefix('=')?))),
    });
    let named = named.and_then(|inline| inline.or_else(|| words.next().map(PathBuf::from)));
    named.unwrap_or_else(socket::of_service)
}

/// Those of the names that begin with what is typed, each with a word of what it is.
fn beginning(
    with: &OsStr,
    names: impl IntoIterator<Item = (String, String)>,
) -> Vec<CompletionCandidate> {
    let Some(with) = with.to_str() else {
        return Vec::new();
    };
    let fitting = names.into_iter().filter(|(name, _)| name.starts_with(with));
    let offered = fitting.map(|(name, help)| {
        let help = (!help.is_empty()).then(|| help.into());
        CompletionCandidate::new(name).help(help)
    });
    offered.collect()
}

fn subsystems_there() -> Vec<Subsystem> {
    ask(&Request::SubsystemShow { nqn: None }).unwrap_or_default()
}

/// NQNs of subsystems.
#[must_use]
pub fn subsystems() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let all = subsystems_there().into_iter();
        let named = all.map(|of| (of.nqn, format!("namespaces: {}", of.namespaces.len())));
        beginning(typed, named)
    })
}

/// NSIDs of the subsystem that is typed before.
#[must_use]
pub fn nsids() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let words = typed();
        let is_typed = |of: &Subsystem| words.iter().any(|word| *word == *of.nqn);
        let of = subsystems_there().into_iter().find(is_typed);
        let namespaces = of.into_iter().flat_map(|of| of.namespaces);
        beginning(
            current,
            namespaces.map(|of| (of.nsid.to_string(), of.backing)),
        )
    })
}

/// NQNs of hosts: those that may connect, and those that do.
#[must_use]
pub fn hosts() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let listed: Vec<Host> = ask(&Request::HostList { subsystem: None }).unwrap_or_default();
        let mut names: Vec<_> = listed.into_iter().map(|of| of.host).collect();
        names.sort();
        names.dedup();
        beginning(typed, names.into_iter().map(|name| (name, String::new())))
    })
}

/// CNTLIDs of associations.
#[must_use]
pub fn controllers() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let all: Vec<Connection> = ask(&Request::ConnectionList {}).unwrap_or_default();
        beginning(
            typed,
            all.into_iter().map(|of| (of.cntlid.to_string(), of.host)),
        )
    })
}

/// Addresses of listeners, with their ports.
#[must_use]
pub fn listeners() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let all: Vec<Listener> = ask(&Request::ListenerList {}).unwrap_or_default();
        beginning(
            typed,
            all.into_iter()
                .map(|of| (of.address, of.transports.join(","))),
        )
    })
}

/// Exports by their paths for clients.
#[must_use]
pub fn exports() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let all: Vec<Export> = ask(&Request::ExportList {}).unwrap_or_default();
        beginning(typed, all.into_iter().map(|of| (of.pseudo, of.path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_socket_that_is_typed_is_asked() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for text in [
            "t ns --control-socket /a/b remove",
            "t --control-socket=/a/b",
        ] {
            assert_eq!(
                control_socket(&words(text)),
                PathBuf::from("/a/b"),
                "{text}"
            );
        }
        for text in ["t ns remove", "t --control-socket", "t --control-sockets x"] {
            assert_eq!(control_socket(&words(text)), socket::of_service(), "{text}");
        }
    }

    #[test]
    fn names_that_begin_so_are_offered() {
        let names = ["nqn.a:b", "nqn.a:c", "uuid"].map(|name| (name.to_owned(), String::new()));
        let offered = beginning(OsStr::new("nqn.a:"), names);
        let offered: Vec<_> = offered.iter().map(|of| of.get_value().to_owned()).collect();
        assert_eq!(offered, ["nqn.a:b", "nqn.a:c"]);
    }
}
