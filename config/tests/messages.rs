//! What is told of a configuration can be read, whatever is in it and however much is wrong.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use capstan_config::Config;

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1\"\n";
const SUBSYSTEM: &str =
    "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n";

/// What is said of a file with `text`, or of the machine it is for.
fn message(text: &str) -> String {
    match Config::from_toml(text).map_err(|error| error.to_string()) {
        Err(error) => error,
        Ok(config) => config.check_machine().expect_err("it is wrong").to_string(),
    }
}

fn namespaces(keys: &str) -> String {
    format!("{LISTENER}{SUBSYSTEM}{keys}")
}

/// What `--config` says of `path`; `None` when it does not come back.
fn of_file(path: &Path) -> Option<String> {
    let (sender, receiver) = channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let error = Config::from_file(&path).expect_err("no configuration");
        sender.send(error.to_string())
    });
    receiver.recv_timeout(Duration::from_secs(20)).ok()
}

#[test]
fn what_a_terminal_would_obey_is_escaped() {
    let odd = "\\u001b[31m\\u202e\\u0007";
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("{}/{name}", folder.path().display());
    std::fs::create_dir(folder.path().join("\u{1b}[31m\u{202e}\u{7}")).unwrap();
    for text in [
        // Nothing is there, a folder is, and something like it.
        namespaces(&format!(
            "[[subsystem.namespace]]\npath = \"{}\"\n",
            path(&format!("no{odd}"))
        )),
        namespaces(&format!(
            "[[subsystem.namespace]]\npath = \"{}\"\n",
            path(odd)
        )),
        namespaces(&format!(
            "[[subsystem.namespace]]\npath = \"{}\"\n",
            path(&odd.replace("31m", "3m"))
        )),
        namespaces("").replace("127.0.0.1", odd),
        namespaces("").replace("127.0.0.1", &format!("fe80::1%{odd}")),
        namespaces("").replace("address =", &format!("provider = \"{odd}\"\naddress =")),
        namespaces("[[subsystem.namespace]]\n").replace(":a\"", &format!("{odd}\"")),
        namespaces(&format!("[[subsystem.namespace]]\nram = \"{odd}\"\n")),
        // Not TOML.
        "[target]\nlog = \u{1b}[31m\n".to_owned(),
        "[target]\nlog = \"\" \u{202e}\n".to_owned(),
    ] {
        let said = message(&text);
        let raw = said
            .chars()
            .find(|char| (char.is_control() && *char != '\n') || *char == '\u{202e}');
        assert_eq!(raw, None, "{said}");
        assert!(
            said.contains("\\u{1b}") || said.contains("\\u{202e}"),
            "{said}"
        );
        assert!(!said.contains("\\\\u"), "escaped twice: {said}");
    }
}

#[test]
fn a_line_in_a_value_begins_no_line_of_the_message() {
    let text = namespaces("[[subsystem.namespace]]\npath = \"/no/such\\nwarning: file\"\n");
    let said = message(&text);
    assert!(said.contains("/no/such\\nwarning: file"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_name_that_udev_escaped_is_told_as_it_is() {
    let text = namespaces("[[subsystem.namespace]]\npath = \"/no/such\\\\x20disk\"\n");
    let said = message(&text);
    assert!(said.contains("cannot open /no/such\\x20disk: "), "{said}");
}

#[test]
fn very_many_problems_are_counted_and_the_first_told() {
    let many = |count: usize, what: &str| what.repeat(count);
    for (text, more) in [
        (
            format!("[target]\nreactors = [{}]\n{LISTENER}", many(100_000, "0,")),
            None,
        ),
        (
            namespaces("").replace(
                "allow_any_host = true",
                &format!("allowed_hosts = [{}]", many(4096, "\"nqn.h\",")),
            ),
            Some("and 4063 more"),
        ),
        (
            format!(
                "{LISTENER}{}",
                many(
                    20_000,
                    "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n"
                )
            ),
            Some(" more, which are told once these are mended"),
        ),
        (
            namespaces(&many(
                1000,
                "[[subsystem.namespace]]\npath = \"/no/such\"\n",
            )),
            Some("and "),
        ),
    ] {
        let said = message(&text);
        assert!(said.len() < 8192, "{} bytes: {said}", said.len());
        assert!(said.lines().count() <= 33, "{said}");
        if let Some(more) = more {
            let last = said.lines().last().unwrap();
            assert!(last.contains(more), "{last}");
        }
    }
}

#[test]
fn a_long_value_is_told_by_its_beginning_and_with_the_cause() {
    let path = format!("/{}", "a/".repeat(50_000));
    let said = message(&namespaces(&format!(
        "[[subsystem.namespace]]\npath = \"{path}\"\n"
    )));
    assert!(said.len() < 2048, "{} bytes", said.len());
    assert!(
        said.starts_with("subsystem[0] nsid 1 path: cannot open /a/a/"),
        "{said}"
    );
    assert!(said.contains("File name too long (os error 36)"), "{said}");
    let line = message(&format!("x = {}\n", "a".repeat(1 << 19)));
    assert!(line.len() < 8192, "{} bytes", line.len());
    assert!(line.contains("line 1"), "{line}");
}

#[test]
fn a_configuration_that_is_no_file_is_named_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success(), "mkfifo: {made}");
    let socket = folder.path().join("socket");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for (path, found) in [
        (pipe.as_path(), "named pipe"),
        (&link, "named pipe"),
        (&socket, "socket"),
        (Path::new("/dev/zero"), "character device"),
    ] {
        let said = of_file(path).expect("an answer without a writer");
        assert_eq!(
            said,
            format!(
                "cannot read the configuration {}: it is a {found}; expected a TOML file, or `-` for \
                 stdin",
                path.display()
            )
        );
    }
    // What the process was started with is not a named pipe of a file system.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
    std::io::Write::write_all(&mut writer, b"[target]\nlog = 3\n").unwrap();
    drop(writer);
    let said = of_file(Path::new(&format!("/dev/fd/{number}"))).expect("it was written");
    assert!(said.contains("line 2: target.log"), "{said}");
}
