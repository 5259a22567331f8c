//! A target with its configuration and control socket in a folder of its own, to be asked and
//! steered.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use capstan_control::answer::{Namespace, Status};
use capstan_control::{Client, Request};
use tempfile::TempDir;

use crate::program::{Daemon, program, utf8};
use crate::target::SUBNQN;

const IMAGE_BYTES: u64 = 1 << 20;

/// A folder with a configuration, and the target that has it.
pub struct Steered {
    folder: TempDir,
}

impl Steered {
    /// With a namespace on each of these files of its folder.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn new(at: SocketAddr, files: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Self { folder };
        let mut toml = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
             provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n",
            at.ip(),
            at.port()
        );
        for file in files {
            let path = place.path(file);
            toml += &format!("[[subsystem.namespace]]\npath = \"{}\"\n", path.display());
        }
        fs::write(place.path("target.toml"), toml).expect("a configuration");
        place
    }

    /// A path in its folder.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of a mebibyte comes, as a whole.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn make(&self, name: &str) {
        let beside = self.path("beside");
        let made = File::create(&beside).and_then(|file| file.set_len(IMAGE_BYTES));
        made.expect("an image");
        fs::rename(&beside, self.path(name)).expect("it is renamed");
    }

    /// Starts it, run by `tool` ([`Daemon::serve_under`]), and waits for nothing.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn begin_under(&self, tool: &[&str]) -> Daemon {
        let (config, socket) = (self.path("target.toml"), self.path("control.sock"));
        let args = ["--config", utf8(&config), "--control-socket", utf8(&socket)];
        Daemon::begin_under(tool, &args)
    }

    /// A connection to its control socket.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn client(&self) -> Client {
        let mut client = Client::connect(&self.path("control.sock")).expect("connects");
        let patience = Some(Duration::from_secs(20));
        client.set_timeout(patience).expect("a timeout");
        client
    }

    /// What it says of itself.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn status(&self) -> Status {
        self.client().ask(&Request::Status {}).expect("a status")
    }

    /// What it says of the namespaces of its first subsystem.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.status().subsystems.remove(0).namespaces
    }

    /// `capstan-target ARGS`, asking this target.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("capstan-target"));
        let socket = self.path("control.sock");
        command.args(args).env("CAPSTAN_CONTROL_SOCKET", socket);
        command.output().expect("it runs")
    }
}
