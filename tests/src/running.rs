//! A program that is at work until a signal asks it to end.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::program::{program, signal};
use crate::target::SUBNQN;
use crate::wait::wait_until;

/// How long every command may take to end when a signal asks for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A program; killed when it is dropped.
pub struct Running {
    /// Its arguments.
    pub line: String,
    /// The process.
    pub child: Child,
}

impl Running {
    /// `PROGRAM WORDS`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn new(name: &str, words: &[&str]) -> Self {
        // It must not outlive a test that is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program(name))
            .args(words);
        Self::start(command)
    }

    /// What `command` starts.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect();
        Self {
            line: words.join(" "),
            child: command.spawn().expect("the program starts"),
        }
    }

    /// The arguments that name the target at `at`; the last two are its subsystem.
    #[must_use]
    pub fn target(at: SocketAddr) -> Vec<String> {
        let (addr, port) = (at.ip().to_string(), at.port().to_string());
        [
            "-a",
            &addr,
            "-s",
            &port,
            "--provider",
            "iwarp",
            "-n",
            SUBNQN,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// `capstan LINE` on the target at `at`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn capstan(line: &str, at: SocketAddr) -> Self {
        let target = Self::target(at);
        let words = line.split(' ').chain(target.iter().map(String::as_str));
        Self::new("capstan", &words.collect::<Vec<_>>())
    }

    /// Sends a signal, and waits for the end: the status, and what was said.
    ///
    /// # Panics
    /// When it has not ended after two seconds.
    #[must_use]
    pub fn interrupted(self, sent: Signal) -> Output {
        signal(self.child.id(), sent);
        self.ends(&format!("after {sent}"))
    }

    /// Sends a signal until it counts as a second one, and waits for the end: the status, and what
    /// was said.
    ///
    /// # Panics
    /// When it does not end.
    #[must_use]
    pub fn insisted(mut self, sent: Signal) -> Output {
        wait_until("a second signal ends it", || {
            let has_ended = self.child.try_wait().expect("it is a child").is_some();
            if !has_ended {
                signal(self.child.id(), sent);
            }
            has_ended
        });
        self.ends(&format!("after a second {sent}"))
    }

    /// Waits for the end: the status, and what was said.
    ///
    /// # Panics
    /// When it has not ended after two seconds, `when` that is.
    #[must_use]
    pub fn ends(mut self, when: &str) -> Output {
        let since = Instant::now();
        while self.child.try_wait().expect("it is a child").is_none() {
            let waited = since.elapsed();
            assert!(waited < PATIENCE, "`{}` runs {waited:?} {when}", self.line);
            thread::sleep(Duration::from_millis(5));
        }
        let mut output = Output {
            status: self.child.wait().expect("it has ended"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_end(&mut output.stdout).expect("stdout");
        }
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_end(&mut output.stderr).expect("stderr");
        }
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already where all is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
