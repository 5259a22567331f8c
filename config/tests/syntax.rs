//! What is said of text that is not TOML, where the parser cannot know what was meant.

use capstan_config::Config;

/// The last line of what is said of `text`, below where it is.
fn last_line(text: &str) -> String {
    let error = Config::from_toml(text).unwrap_err().to_string();
    assert!(error.starts_with("TOML parse error at line "), "{error}");
    error.trim_end().lines().last().unwrap().to_owned()
}

#[test]
fn text_without_quotes_is_written_with_them() {
    for (line, meant) in [
        (
            "nqn = nqn.2026-11.org.example:a",
            "nqn = \"nqn.2026-11.org.example:a\"",
        ),
        (
            "path = /srv/disk.img # the first",
            "path = \"/srv/disk.img\"",
        ),
        ("ram = 64MiB", "ram = \"64MiB\""),
        ("nqn = nqn.2026-11.x:a\"", "nqn = \"nqn.2026-11.x:a\""),
        (
            "allowed_hosts = [nqn.2026-11.org.example:a]",
            "allowed_hosts = [\"nqn.2026-11.org.example:a\"]",
        ),
        ("address = 127.0.0.1", "address = \"127.0.0.1\""),
        ("address = ::1", "address = \"::1\""),
    ] {
        let expected = format!("text stands in quotes; write {meant}");
        assert_eq!(
            last_line(&format!("[[subsystem]]\n{line}\nserial = \"A\"\n")),
            expected
        );
    }
    let any = last_line("[[subsystem]]\nallow_any_host = yes\n");
    assert_eq!(any, "expected true or false; write allow_any_host = true");
    // What is no text is left to the parser.
    let other = last_line("[[subsystem]]\nnqn = \"a\n");
    assert!(!other.contains("in quotes"), "{other}");
}

#[test]
fn a_table_above_the_one_it_belongs_to_is_named() {
    assert_eq!(
        last_line("[[subsystem.namespace]]\nram = \"1MiB\"\n[[subsystem]]\nnqn = \"a\"\n"),
        "[[subsystem.namespace]] stands above it; write it below the [[subsystem]] that it belongs to"
    );
}

#[test]
fn the_second_of_what_may_be_several_is_written_as_such() {
    assert_eq!(
        last_line("[listener]\naddress = \"::1\"\n[listener]\naddress = \"127.0.0.1\"\n"),
        "there may be several; write [[listener]] for each of them"
    );
}
