//! A stdout that takes nothing: closed as by `head`, and full. No program panics; what stays is
//! named on stderr.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, program, told, utf8,
};
use nix::unistd::pipe;

const CONFIG: &str = "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"127.0.0.1\"\n\
                      provider = \"iwarp\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:outputs\"\n\
                      allow_any_host = true\n[[subsystem.namespace]]\nram = \"1MiB\"\n";

/// What `command` says on stderr where its stdout is `stdout`.
fn into(stdout: Stdio, command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    child.wait_with_output().expect("a child")
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (_, writer) = pipe().expect("a pipe");
    writer.into()
}

fn full() -> Stdio {
    let full = File::options().write(true).open("/dev/full");
    full.expect("/dev/full").into()
}

/// Every kind of line of both programs that needs no target.
fn lines(config: &Path) -> Vec<Command> {
    let config = utf8(config);
    let words: [(&str, &[&str]); 5] = [
        ("capstan-target", &["check", "--config", config]),
        ("capstan-target", &["doctor", "--config", config]),
        ("capstan-target", &["doctor", "--output", "json"]),
        ("capstan", &["doctor"]),
        ("capstan", &["list", "--output", "json"]),
    ];
    let command = |(name, args): (&str, &[&str])| {
        let mut command = Command::new(program(name));
        command.args(args);
        command
    };
    words.map(command).into()
}

#[test]
fn no_program_panics_where_its_stdout_takes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("target.toml");
    fs::write(&config, CONFIG).expect("a file");
    for mut command in lines(&config) {
        command.env("CAPSTAN_RUN_DIR", folder.path().join("run"));
        let plain = into(Stdio::piped(), &mut command);
        let output = into(closed(), &mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // As it would end: that its reader goes away is that one's right.
        assert_eq!(output.status, plain.status, "{command:?}: {said}");
        assert!(!said.contains("Broken pipe"), "{command:?}: {said}");
        let output = into(full(), &mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(
            said.contains("writing to stdout: No space left on device"),
            "{command:?}: {said}"
        );
    }
}

/// Errors and the log go to stderr.
#[test]
fn no_program_ends_otherwise_where_its_stderr_takes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("target.toml");
    fs::write(&config, CONFIG).expect("a file");
    let missing = folder.path().join("missing.toml");
    let fails: [(&str, &[&str]); 4] = [
        ("capstan-target", &["check", "--config", utf8(&missing)]),
        ("capstan-target", &["serve", "--config", utf8(&missing)]),
        ("capstan", &["detach", "/dev/loop-none"]),
        (
            "capstan",
            &[
                "id-ctrl",
                "-t",
                "tcp",
                "-a",
                "127.0.0.1",
                "-s",
                "1",
                "-n",
                "x",
            ],
        ),
    ];
    let mut all = lines(&config);
    all.extend(fails.map(|(name, args)| {
        let mut command = Command::new(program(name));
        command.args(args);
        command
    }));
    for command in &mut all {
        command.env("CAPSTAN_RUN_DIR", folder.path().join("run"));
        let plain = into(Stdio::piped(), command);
        for stderr in [closed(), full()] {
            command.stderr(stderr).stdout(Stdio::piped());
            let child = command.spawn().expect("the program starts");
            let output = child.wait_with_output().expect("a child");
            assert_eq!(output.status, plain.status, "{command:?}");
        }
    }
}

#[test]
fn a_disk_that_stdout_does_not_take_is_named_on_stderr() {
    let test = "a_disk_that_stdout_does_not_take_is_named_on_stderr";
    if !has_disks(test, &[]) {
        return;
    }
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    for (stdout, fails) in [(full(), true), (closed(), false)] {
        let machine = Machine::new(at);
        let mut attach = machine.command("attach", &[]);
        attach.args(machine.target());
        let output = into(stdout, &mut attach);
        let said = match fails {
            true => complaint(&output),
            false => {
                assert!(output.status.success(), "{output:?}");
                String::from_utf8_lossy(&output.stderr).into_owned()
            }
        };
        let device = machine.list()[0]["device"].as_str().unwrap().to_owned();
        let advice = format!("capstan detach {device}");
        assert!(said.contains(&advice), "{said}");
        told(&machine.run("detach", &[&device]));
        machine.assert_clean(Path::new(&device));
    }
    assert!(target.stop().success());
}
