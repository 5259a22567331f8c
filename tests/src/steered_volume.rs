//! A target that serves one volume and is steered over its control socket.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use capstan_control::answer::Changed;
use capstan_control::{CallError, Client, Failure, Request};
use capstan_initiator::Controller;
use tempfile::TempDir;

use crate::host::options;
use crate::program::{Daemon, own_address, program, utf8};
use crate::target::SUBNQN;

/// A target with one namespace on a file, in a folder of its own.
pub struct SteeredVolume {
    /// Of its configuration, its control socket and its files.
    pub folder: TempDir,
    /// Where it listens.
    pub at: SocketAddr,
    /// The target.
    pub daemon: Daemon,
}

impl SteeredVolume {
    /// Starts it.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = own_address();
        let image = folder.path().join("1.img");
        fs::write(&image, vec![0; 1 << 20]).expect("an image");
        let toml = format!(
            "# Kept as it is.\n[target]\nreactors = 2\nmemory_budget = \"64MiB\"\n\n[[listener]]\naddress = \"{}\"   # here\n\
             port = {}\nprovider = \"iwarp\"\n\n[[subsystem]]\nnqn = \"{SUBNQN}\"\n\
             allowed_hosts = [\"nqn.2026-11.org.example:host-1\"]\n\n[[subsystem.namespace]]\npath = \"{}\"\n",
            at.ip(),
            at.port(),
            image.display()
        );
        fs::write(folder.path().join("target.toml"), toml).expect("a configuration");
        let daemon = serve(folder.path());
        Self { folder, at, daemon }
    }

    /// A path in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The text of its configuration.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn config(&self) -> String {
        fs::read_to_string(self.path("target.toml")).expect("the configuration")
    }

    /// A connection to its control socket.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn client(&self) -> Client {
        let mut client = Client::connect(&self.path("control.sock")).expect("connects");
        let patience = Some(Duration::from_secs(20));
        client.set_timeout(patience).expect("a timeout");
        client
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

    /// `capstan-target ARGS`, asking this target.
    ///
    /// # Panics
    /// When it cannot be run.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("capstan-target"));
        let socket = self.path("control.sock");
        command.args(args).env("CAPSTAN_CONTROL_SOCKET", socket);
        command.output().expect("it runs")
    }
}

/// A target with the configuration and the control socket of that folder.
#[must_use]
pub fn serve(folder: &Path) -> Daemon {
    let (config, socket) = (folder.join("target.toml"), folder.join("control.sock"));
    Daemon::serve(&["--config", utf8(&config), "--control-socket", utf8(&socket)])
}

/// What a command has printed.
///
/// # Panics
/// When that is no text.
#[must_use]
pub fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(text).expect("text")
}

/// Has a change made.
///
/// # Panics
/// When it is refused.
pub fn change(client: &mut Client, request: &Request) -> Changed {
    client.ask(request).expect("it is done")
}

/// Why a request is refused.
///
/// # Panics
/// When it is not.
pub fn refused(client: &mut Client, request: &Request) -> Failure {
    match client.call(request).expect_err("it is refused") {
        CallError::Failed(failure) => failure,
        other => panic!("{other}"),
    }
}
