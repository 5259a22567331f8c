//! A person who does everything wrong, and what the programs say: `wrong_inputs.txt`, read and
//! compared word for word.
//!
//! A case is a command line behind `$ `, with its stdin as a shell would have it (`<<END`), then
//! what is said on stdout and stderr, and the exit status in brackets. Lines between cases are for
//! people.
//! `TARGET` is the address of a target that runs, `FOLDER` a folder with an empty file
//! (`plain.toml`), a named pipe (`pipe`) and symbolic links that lead nowhere (`a`, `loop`,
//! `dangling`). With `RENEW=1` in the
//! environment the text is written anew: read the difference before it is committed.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use capstan_tests::program::{Daemon, own_address, program, utf8};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// How many mistakes there are at least.
const CASES_MIN: usize = 50;

/// A piece of the text.
enum Piece {
    /// For people.
    Prose(String),
    Case(Case),
}

struct Case {
    /// Behind `$ `.
    line: String,
    stdin: Option<String>,
}

/// The text without what the programs say.
fn parse(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(line) = line.strip_prefix("$ ") else {
            pieces.push(Piece::Prose(line.to_owned()));
            continue;
        };
        let stdin = line.ends_with(" <<END").then(|| {
            let stdin = lines.by_ref().take_while(|line| *line != "END");
            stdin.fold(String::new(), |text, line| text + line + "\n")
        });
        pieces.push(Piece::Case(Case {
            line: line.to_owned(),
            stdin,
        }));
        // What was said, up to the exit status.
        let is_status =
            |line: &str| line.starts_with('[') && line.ends_with(']') && line.len() <= 5;
        let _ = lines.by_ref().find(|line| is_status(line));
    }
    pieces
}

impl Case {
    /// Runs it: what is said, and the exit status.
    fn run(&self, replace: &[(&str, &str)]) -> String {
        let line = self.line.trim_end_matches(" <<END");
        let mut words = line.split(' ').map(|word| {
            let word = word.trim_matches('"').to_owned();
            let given = |word: String, (name, value): &(&str, &str)| word.replace(name, value);
            replace.iter().fold(word, given)
        });
        let mut command = Command::new(program(&words.next().expect("a program")));
        command
            .args(words)
            // Nothing is attached there.
            .env("CAPSTAN_RUN_DIR", "/nonexistent")
            // No target answers there.
            .env("CAPSTAN_CONTROL_SOCKET", "/nonexistent/control.sock")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        // A program that refuses its command line does not read it.
        let _ = stdin.write_all(self.stdin.as_deref().unwrap_or_default().as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said += &String::from_utf8_lossy(&output.stderr);
        let status = output.status.code().expect("it ends by itself");
        assert_ne!(status, 0, "{} is taken: {said}", self.line);
        for (name, value) in replace {
            said = said.replace(value, name);
        }
        format!("{}\n[{status}]\n", said.trim_end())
    }
}

#[test]
fn every_mistake_gets_the_words_that_were_agreed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong_inputs.txt");
    let agreed = fs::read_to_string(&path).expect("the text");
    let at = own_address();
    let target = Daemon::start("ram:1MiB", 4096, at);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ip = at.ip().to_string();
    for (to, link) in [
        ("loop", "loop"),
        ("b", "a"),
        ("a", "b"),
        ("absent", "dangling"),
    ] {
        symlink(to, folder.path().join(link)).expect("a symbolic link");
    }
    fs::write(folder.path().join("plain.toml"), "").expect("a file");
    mkfifo(&folder.path().join("pipe"), Mode::S_IRUSR).expect("a named pipe");
    let replace = [("TARGET", &*ip), ("FOLDER", utf8(folder.path()))];
    let (mut now, mut cases) = (String::new(), 0);
    for piece in parse(&agreed) {
        match piece {
            Piece::Prose(line) => writeln!(now, "{line}").expect("a string"),
            Piece::Case(case) => {
                cases += 1;
                writeln!(now, "$ {}", case.line).expect("a string");
                if let Some(stdin) = &case.stdin {
                    now += stdin;
                    now += "END\n";
                }
                now += &case.run(&replace);
            }
        }
    }
    assert!(target.stop().success());
    if std::env::var_os("RENEW").is_some() {
        fs::write(&path, &now).expect("the text can be written");
    } else if now != agreed {
        let differs = agreed
            .lines()
            .zip(now.lines())
            .position(|(agreed, now)| agreed != now);
        let at = differs.unwrap_or_else(|| agreed.lines().count().min(now.lines().count()));
        let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
        panic!(
            "line {} of {} differs; if the new words are better: RENEW=1 cargo nextest run --test wrong_inputs\n\
             agreed: {}\nnow:    {}",
            at + 1,
            path.display(),
            line(&agreed),
            line(&now)
        );
    }
    assert!(
        cases >= CASES_MIN,
        "{cases} mistakes, expected at least {CASES_MIN}"
    );
}
