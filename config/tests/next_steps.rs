//! Every next step that a message of the configuration names is taken, and then the configuration
//! is accepted: advice that is refused when it is followed is worse than none.

use std::fs;
use std::path::Path;
use std::process::Command;

use capstan_config::{Config, ProviderChoice, QuickExport, Transports};

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1\"\n";
const SUBSYSTEM: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\n";
const ANY: &str = "allow_any_host = true\n";
const RAM: &str = "[[subsystem.namespace]]\nram = \"1MiB\"\n";

fn file(parts: &[&str]) -> String {
    parts.concat()
}

fn problem(text: &str) -> String {
    match Config::from_toml(text).map_err(|error| error.to_string()) {
        Err(error) => error,
        Ok(config) => match config.check_machine() {
            Err(problems) => problems.to_string(),
            Ok(warnings) => panic!("accepted, with {warnings:?}: {text}"),
        },
    }
}

fn is_accepted(text: &str) {
    let config = Config::from_toml(text).unwrap_or_else(|error| panic!("{error}\nin {text}"));
    if let Err(problems) = config.check_machine() {
        panic!("{problems}\nin {text}");
    }
}

/// A mistake, the words that say what to do, and the file after that was done.
#[test]
fn what_a_message_says_to_write_is_accepted() {
    let any = |rest: &str| file(&[LISTENER, SUBSYSTEM, ANY, rest]);
    let head = |head: &str| file(&[head, LISTENER, SUBSYSTEM, ANY, RAM]);
    let listen = |address: &str| {
        file(&[
            "[[listener]]\naddress = \"",
            address,
            "\"\n",
            SUBSYSTEM,
            ANY,
            RAM,
        ])
    };
    let hosts = |hosts: &str| file(&[LISTENER, SUBSYSTEM, hosts, RAM]);
    let namespace = |keys: &str| any(&format!("[[subsystem.namespace]]\n{keys}\n"));
    let budget = |bytes: &str, reactors: u32, depth: u32| {
        head(&format!(
            "[target]\nmemory_budget = \"{bytes}\"\nreactors = {reactors}\n[queues]\ndepth_max = {depth}\n"
        ))
    };
    let cases = [
        (
            file(&[LISTENER]),
            "write a [[subsystem]] with an nqn and a [[subsystem.namespace]]",
            any(RAM),
        ),
        (
            hosts(""),
            "list host NQNs in allowed_hosts",
            hosts("allowed_hosts = [\"nqn.2014-08.org.example:h\"]\n"),
        ),
        (hosts(""), "write `allow_any_host = true`", hosts(ANY)),
        (
            hosts("allow_any_host = true\nallowed_hosts = [\"nqn.2014-08.org.example:h\"]\n"),
            "remove one of them",
            hosts(ANY),
        ),
        (
            head("[target]\nreactor = 1\n"),
            "did you mean `reactors`?",
            head("[target]\nreactors = 1\n"),
        ),
        (
            namespace("ram = \"1GB\""),
            "write `1GiB`",
            namespace("ram = \"1GiB\""),
        ),
        (
            namespace(""),
            "needs exactly one of path, ram and null",
            namespace("null = \"1MiB\""),
        ),
        (
            namespace("ram = \"1MiB\"\ndirect = true"),
            "has no meaning for a ram namespace; remove it",
            namespace("ram = \"1MiB\""),
        ),
        (
            namespace("ram = \"1MiB\"\nuuid = \"2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\""),
            "remove it",
            namespace("ram = \"1MiB\""),
        ),
        (
            namespace("ram = \"1MiB\"\nlba = 520"),
            "allowed: 512",
            namespace("ram = \"1MiB\"\nlba = 512"),
        ),
        (
            listen("224.0.0.1"),
            "use an address of this machine, 0.0.0.0 or ::",
            listen("0.0.0.0"),
        ),
        (listen("224.0.0.1"), "0.0.0.0 or ::", listen("::")),
        (listen("fe80::1"), "or `::`", listen("::")),
        (format!("{}{LISTENER}", any(RAM)), "already used", any(RAM)),
        (
            format!("{}[[listener]]\naddress = \"0.0.0.0\"\n", any(RAM)),
            "remove the one or the other",
            any(RAM),
        ),
        (
            budget("4MiB", 64, 128),
            "raise target.memory_budget",
            budget("1GiB", 64, 128),
        ),
        (
            budget("4MiB", 64, 128),
            "or lower queues.depth_max or target.reactors",
            budget("4MiB", 1, 16),
        ),
    ];
    for (wrong, step, right) in cases {
        let message = problem(&wrong);
        assert!(message.contains(step), "no {step:?} in: {message}");
        is_accepted(&right);
    }
}

/// The command in backticks that a message proposes.
fn command(message: &str) -> &str {
    let (_, rest) = message.split_once('`').unwrap();
    rest.split_once('`').unwrap().0
}

fn image(folder: &Path, bytes: u64) -> String {
    let path = folder.join("volume.img");
    fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path.display().to_string()
}

#[test]
fn what_a_message_says_to_run_mends_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), 0);
    let text = file(&[
        LISTENER,
        SUBSYSTEM,
        ANY,
        "[[subsystem.namespace]]\npath = \"",
        &path,
        "\"\n",
    ]);
    let message = problem(&text);
    assert!(message.contains("needs at least one LBA"), "{message}");
    let status = Command::new("sh")
        .args(["-c", &command(&message).replace("SIZE", "1M")])
        .status()
        .unwrap();
    assert!(status.success(), "{message}");
    is_accepted(&text);
    fs::remove_file(&path).unwrap();
    let message = problem(&text);
    assert!(message.contains("makes a file of 1 GiB"), "{message}");
    let status = Command::new("sh").args(["-c", command(&message)]).status();
    assert!(status.unwrap().success(), "{message}");
    is_accepted(&text);
    // A name with a mistake, and the one that is meant.
    let wrong = text.replace("volume.img", "volum.img");
    let message = problem(&wrong);
    let (_, meant) = message.split_once("did you mean ").unwrap();
    is_accepted(&wrong.replace(
        &path.replace("volume.img", "volum.img"),
        meant.trim_end_matches('?'),
    ));
}

#[test]
fn what_a_quick_export_is_told_to_do_is_accepted() {
    let export = |listen: &str, allow_any_host| QuickExport {
        backing: "ram:1MiB".parse().unwrap(),
        lba: None,
        listen: listen.parse().unwrap(),
        nqn: None,
        provider: ProviderChoice::Auto,
        transports: Transports::default(),
        read_only: false,
        allow_any_host,
    };
    let message = Config::quick(&export("0.0.0.0:4420", false), "m")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("listen on 127.0.0.1 or [::1], add --allow-any-host"),
        "{message}"
    );
    for taken in [
        export("127.0.0.1:4420", false),
        export("[::1]:4420", false),
        export("0.0.0.0:4420", true),
    ] {
        Config::quick(&taken, "m").unwrap_or_else(|error| panic!("{error}"));
    }
}
