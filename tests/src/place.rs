//! A target with a state folder and images, for tests of what hosts know namespaces by.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use capstan_initiator::{BlockingVolume, Controller};
use nix::sys::signal::Signal;

use crate::host::options;
use crate::program::{Daemon, own_address, program, signal, told, utf8};
use crate::target::SUBNQN;

const PATIENCE: Duration = Duration::from_secs(15);
const BYTES: usize = 1 << 20;

/// A configuration with its state folder and its images.
pub struct Place {
    /// Of everything.
    pub folder: tempfile::TempDir,
    /// The state folder.
    pub state: PathBuf,
    /// Where its target listens.
    pub at: SocketAddr,
}

impl Place {
    /// With an empty state folder.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        Self {
            folder,
            state,
            at: own_address(),
        }
    }

    /// An image of 1 MiB of zeroes.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn image(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, vec![0; BYTES]).unwrap();
        path
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("target.toml")
    }

    /// Namespaces on these paths, with these keys.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn configure(&self, entries: &[(&Path, &str)]) {
        let mut toml = format!(
            "[target]\nreactors = 2\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
             provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n",
            self.at.ip(),
            self.at.port(),
        );
        for (path, keys) in entries {
            toml += &format!("[[subsystem.namespace]]\npath = {path:?}\n{keys}\n");
        }
        fs::write(self.config(), toml).unwrap();
    }

    /// The variable that names the state folder.
    #[must_use]
    pub fn environment(&self) -> String {
        format!("STATE_DIRECTORY={}", self.state.display())
    }

    /// A target with this configuration.
    #[must_use]
    pub fn serve(&self) -> Daemon {
        let environment = self.environment();
        Daemon::serve_under(&["env", &environment], &["--config", utf8(&self.config())])
    }

    /// What `check` says.
    ///
    /// # Panics
    /// When it finds a mistake.
    #[must_use]
    pub fn check(&self) -> String {
        told(&self.checked())
    }

    /// Why `check` finds that a target would not start.
    ///
    /// # Panics
    /// When it would.
    #[must_use]
    pub fn refusal(&self) -> String {
        let refused = self.checked();
        assert!(!refused.status.success(), "{refused:?}");
        String::from_utf8_lossy(&refused.stderr).into_owned()
    }

    fn checked(&self) -> Output {
        let mut check = Command::new("env");
        check.arg(self.environment()).arg(program("capstan-target"));
        check.args(["check", "--config", utf8(&self.config())]);
        check.output().expect("it runs")
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

    /// NSID and UUID of each namespace that a host sees which connects now.
    ///
    /// # Panics
    /// When it cannot connect, or a namespace has no UUID.
    #[must_use]
    pub fn shown(&self) -> Vec<(u32, String)> {
        let controller = self.connect();
        let namespaces = controller.snapshot_blocking().namespaces;
        controller.close();
        let shown = namespaces.iter();
        shown
            .map(|n| (n.nsid, n.uuid.unwrap().to_string()))
            .collect()
    }
}

/// Reloads the configuration: the log of that.
///
/// # Panics
/// When it does not end.
pub fn reload(daemon: &Daemon) -> Vec<String> {
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &["configuration", "reloaded"]);
    daemon.log().split_off(known)
}

/// Whether a line has all of these words.
#[must_use]
pub fn has(log: &[String], words: &[&str]) -> bool {
    log.iter()
        .any(|line| words.iter().all(|word| line.contains(word)))
}

/// A namespace.
///
/// # Panics
/// When there is none with this NSID.
#[must_use]
pub fn volume(controller: &Controller, nsid: u32) -> BlockingVolume {
    controller
        .volume_blocking(nsid)
        .expect("the namespace")
        .blocking()
}

/// Whether an image has nothing but zeroes.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn is_blank(image: &Path) -> bool {
    fs::read(image).unwrap().iter().all(|&byte| byte == 0)
}

/// Writes until that fails: why.
///
/// # Panics
/// When it does not.
pub fn writes_until_it_fails(volume: &BlockingVolume) -> String {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Err(error) = volume.write(0, &[7; 4096]) {
            return error.to_string();
        }
    }
    panic!("the host goes on writing")
}
