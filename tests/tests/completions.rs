//! What shells complete of the two command lines: commands, options and their words, and what a
//! target that runs has.

use std::fs;
use std::path::Path;
use std::process::Command;

use capstan_tests::program::{complaint, program, told, utf8};
use capstan_tests::steered_volume::SteeredVolume;
use capstan_tests::target::SUBNQN;

#[test]
fn each_shell_has_its_own() {
    for name in ["capstan", "capstan-target"] {
        for shell in ["bash", "zsh", "fish"] {
            let mut of = Command::new(program(name));
            let text = told(&of.args(["completions", shell]).output().unwrap());
            assert!(text.contains(name), "{name} {shell}: {text}");
            for hidden in ["serve-fuse", "udev-names"] {
                assert!(!text.contains(hidden), "{name} {shell}: {hidden}");
            }
        }
    }
    let mut of = Command::new(program("capstan"));
    let error = complaint(&of.args(["completions", "csh"]).output().unwrap());
    assert!(error.contains("bash") && error.contains("zsh"), "{error}");
}

/// What bash offers for the last of `words` of the program `name`, which is as much as is typed of
/// it. `socket`: of the target that is asked.
fn completed(name: &str, words: &[&str], socket: &Path) -> Vec<String> {
    let script = told(
        &Command::new(program(name))
            .args(["completions", "bash"])
            .output()
            .unwrap(),
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("completions");
    fs::write(&file, script).unwrap();
    // As bash calls it: with the command, the word, and the word in front of it, each of which
    // begins behind a colon. A line that ends with a space has an empty word there.
    let ask = r#"
        source "$1" && shift || exit
        COMP_LINE="$*"
        COMP_POINT=${#COMP_LINE}
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        COMP_TYPE=9
        function=$(complete -p "$1") && function=${function#*-F } || exit
        word=${@: -1}
        "${function%% *}" "$1" "${word##*:}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let of_it = program(name);
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ask, "bash", utf8(&file), name])
        .env("PATH", format!("{}:{path}", utf8(of_it.parent().unwrap())))
        .env("CAPSTAN_CONTROL_SOCKET", socket)
        .args(words);
    let offered = told(&bash.output().unwrap());
    offered.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_what_is_behind_a_command() {
    for (name, words, expected) in [
        ("capstan-target", &["name"][..], &["namespace"][..]),
        (
            "capstan-target",
            &["namespace", ""],
            &["add", "list", "remove", "resize", "set"],
        ),
        // Beside its alias it is found by its own letters.
        ("capstan-target", &["namespace", "sh"], &["show"]),
        ("capstan-target", &["clear-lost-writes", "--"], &["--help"]),
        ("capstan-target", &["status", "-o", ""], &["normal", "json"]),
        ("capstan-target", &["status", "--output", "j"], &["json"]),
        ("capstan", &["att"], &["attach"]),
        ("capstan", &["id-ctrl", "-o", ""], &["normal", "json"]),
    ] {
        let offered = completed(name, words, Path::new("/none"));
        let missing: Vec<_> = expected
            .iter()
            .filter(|word| !offered.iter().any(|of| of == *word))
            .collect();
        assert!(
            missing.is_empty(),
            "{name} {words:?}: {missing:?} are not in {offered:?}"
        );
        let strange: Vec<_> = offered
            .iter()
            .filter(|of| !words.last().is_some_and(|word| of.starts_with(word)))
            .collect();
        assert!(strange.is_empty(), "{name} {words:?}: {strange:?}");
    }
}

#[test]
fn bash_completes_what_a_target_has() {
    let target = SteeredVolume::start();
    let _host = target.connect();
    let socket = target.path("control.sock");
    let offered = |words: &[&str]| {
        let mut offered = completed("capstan-target", words, &socket);
        offered.retain(|word| !word.starts_with("--"));
        offered
    };
    // What bash has of the name is behind its colon.
    let (before, behind) = SUBNQN.rsplit_once(':').unwrap();
    assert_eq!(offered(&["subsystem", "show", "nqn."]), [SUBNQN]);
    assert_eq!(
        offered(&["namespace", "remove", &format!("{before}:")]),
        [behind]
    );
    assert_eq!(offered(&["namespace", "remove", SUBNQN, ""]), ["1"]);
    assert_eq!(offered(&["host", "list", "x"]), [""; 0]);
    assert_eq!(
        offered(&["connection", "disconnect", "--subsystem", "nqn"]),
        [SUBNQN]
    );
    assert_eq!(
        offered(&["connection", "disconnect", "--cntlid", ""]).len(),
        1
    );
    assert_eq!(offered(&["listener", "remove", "127."]).len(), 1);
    assert_eq!(
        offered(&["host", "deny", SUBNQN, "nqn"]),
        ["nqn.2026-11.org.example:host-1"]
    );
    // Nothing answers: nothing is offered, and nothing is said.
    let none = completed(
        "capstan-target",
        &["subsystem", "show", "n"],
        Path::new("/none"),
    );
    assert_eq!(none, [""; 0]);
}
