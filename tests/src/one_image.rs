//! A target with one image, for tests of what others do to it.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use capstan_initiator::Controller;
use nix::sys::signal::Signal;

use crate::host::options;
use crate::program::{Daemon, Machine, own_address, program, signal, told, utf8};
use crate::target::SUBNQN;
use crate::wait::wait_until;

/// A target's configuration, its only image, and the folders of its state and of what it says.
pub struct OneImage {
    /// Of everything.
    pub folder: tempfile::TempDir,
    /// Where its target listens.
    pub at: SocketAddr,
    /// The image, of namespace 1.
    pub image: PathBuf,
}

impl OneImage {
    /// With an image of so many bytes.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("volume.img");
        File::create(&image).unwrap().set_len(bytes).unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let new = Self {
            at: own_address(),
            image,
            folder,
        };
        new.configure(Some(""));
        new
    }

    /// Writes the configuration, with these keys of the namespace, or without the namespace.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn configure(&self, keys: Option<&str>) {
        let namespace = keys.map(|keys| {
            let path = self.image.display();
            format!("[[subsystem.namespace]]\nnsid = 1\npath = \"{path}\"\n{keys}\n")
        });
        let toml = format!(
            "[target]\nreactors = 2\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
             provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n{}",
            self.at.ip(),
            self.at.port(),
            namespace.unwrap_or_default(),
        );
        fs::write(self.config(), toml).unwrap();
    }

    /// As [`OneImage::configure`], for a target that is running.
    ///
    /// # Panics
    /// When that does not take it.
    pub fn reload(&self, daemon: &Daemon, keys: Option<&str>) {
        self.configure(keys);
        let known = daemon.log().len();
        signal(daemon.pid(), Signal::SIGHUP);
        daemon.wait_for_log_after(known, &["configuration reloaded"]);
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("target.toml")
    }

    fn folders(&self) -> [String; 2] {
        let of = |variable, name| format!("{variable}={}", self.folder.path().join(name).display());
        [
            of("STATE_DIRECTORY", "state"),
            of("RUNTIME_DIRECTORY", "run"),
        ]
    }

    /// A target with this configuration.
    #[must_use]
    pub fn serve(&self) -> Daemon {
        let [state, run] = self.folders();
        Daemon::serve_under(&["env", &state, &run], &["--config", utf8(&self.config())])
    }

    /// What `capstan-target COMMAND` says of the configuration, on stdout and on stderr.
    #[must_use]
    pub fn asked(&self, command: &str) -> Output {
        self.asked_of(command, &["--config", utf8(&self.config())])
    }

    /// What `capstan-target COMMAND ARGS` says.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn asked_of(&self, command: &str, args: &[&str]) -> Output {
        let mut asked = Command::new("env");
        asked.args(self.folders()).arg(program("capstan-target"));
        asked.arg(command).args(args).output().unwrap()
    }

    /// What `check` says.
    ///
    /// # Panics
    /// When it finds a mistake.
    #[must_use]
    pub fn check(&self) -> String {
        told(&self.asked("check"))
    }

    /// The lines of `doctor` that are errors of a medium, with what mends them.
    ///
    /// # Panics
    /// When they are no text.
    #[must_use]
    pub fn errors_of_media(&self) -> Vec<String> {
        let text = String::from_utf8(self.asked("doctor").stdout).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let is_of_media = |line: &str| {
            ["error    media", "error    lost writes"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        let blocks = lines.windows(3).filter(|block| is_of_media(block[0]));
        blocks.map(|block| block.join("\n")).collect()
    }

    /// Waits for the only such line, with these words.
    ///
    /// # Panics
    /// When there are others.
    #[must_use]
    pub fn error_of_media(&self, words: &str) -> String {
        wait_until(words, || {
            self.errors_of_media()
                .iter()
                .any(|error| error.contains(words))
        });
        let mut errors = self.errors_of_media();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        errors.remove(0)
    }

    /// What the SMART / Health log of the namespace warns of, in words.
    ///
    /// # Panics
    /// When it cannot be had.
    #[must_use]
    pub fn warns(&self) -> String {
        let (ip, port) = (self.at.ip().to_string(), self.at.port().to_string());
        let target = ["-a", &ip, "-s", &port, "-n", SUBNQN, "-N", "1"];
        let smart = told(&Machine::new(self.at).run("smart-log", &target));
        smart.lines().next().expect("a line").to_owned()
    }

    /// A host.
    ///
    /// # Panics
    /// When it cannot connect.
    #[must_use]
    pub fn connect(&self) -> Controller {
        let mut options = options(self.at, 1);
        options.reconnect_delay = Duration::from_millis(200);
        Controller::connect(options).expect("connects")
    }

    /// Makes the image longer, or cuts it.
    ///
    /// # Panics
    /// When that fails.
    pub fn resize(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.image).unwrap();
        file.set_len(bytes).unwrap();
    }

    /// Whether a loss is noted in the state folder.
    #[must_use]
    pub fn has_note(&self) -> bool {
        self.notes() > 0
    }

    /// How many losses are.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn notes(&self) -> usize {
        let entries = fs::read_dir(self.folder.path().join("state")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("lost-writes-"))
            .count()
    }

    /// How long the image is, in bytes.
    ///
    /// # Panics
    /// When it is gone.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        fs::metadata(&self.image).unwrap().len()
    }
}
