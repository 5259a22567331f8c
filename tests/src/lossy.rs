//! A target whose volume has lost writes, and what its hosts and its operator see of that.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use capstan_initiator::{BlockingVolume, Controller, IoError};
use capstan_nvme_proto::status::Status;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::disks::{Thin, own_mounts};
use crate::host::options;
use crate::program::{CLAIMS, Daemon, own_address, program, signal, utf8};
use crate::target::SUBNQN;

const MIB: usize = 1 << 20;

/// A target whose only volume, through the page cache, has lost writes: its device is full.
pub struct Lossy {
    /// Where it is.
    pub thin: Thin,
    /// Of the volume.
    pub path: PathBuf,
    /// Its configuration, and the folders of its targets.
    pub folder: TempDir,
    /// Where it listens.
    pub at: SocketAddr,
    /// Its configuration.
    pub file: PathBuf,
    /// It.
    pub daemon: Daemon,
    /// The host that was told.
    pub controller: Controller,
    /// Its namespace 1.
    pub volume: BlockingVolume,
}

/// Under a test's folder: the state folder of its targets.
pub const STATE: &str = "state";

impl Lossy {
    /// One that has lost writes and told a host.
    #[must_use]
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// `before` prepares the test's folder.
    ///
    /// # Panics
    /// When the device cannot be made, or loses nothing.
    #[must_use]
    pub fn with(before: impl FnOnce(&Path)) -> Self {
        own_mounts();
        let thin = Thin::new(12);
        let path = thin.file("volume", 32 << 20);
        let folder = tempfile::tempdir().expect("a folder");
        let at = own_address();
        fs::create_dir(folder.path().join(STATE)).expect("a state folder");
        before(folder.path());
        let only = namespace(1, &path) + "direct = false\n";
        let file = write_configuration(folder.path(), at, &only);
        let daemon = serve_in(folder.path());
        let (controller, volume) = connect(at, 1);
        loses(&volume);
        Self {
            thin,
            path,
            folder,
            at,
            file,
            daemon,
            controller,
            volume,
        }
    }
}

/// A namespace of a configuration, on `path`.
#[must_use]
pub fn namespace(nsid: u32, path: &Path) -> String {
    let path = path.display();
    format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{path}\"\n")
}

/// Writes the configuration of a target at `at` with these namespaces: its file.
///
/// # Panics
/// When it cannot be written.
pub fn write_configuration(folder: &Path, at: SocketAddr, namespaces: &str) -> PathBuf {
    let ip = at.ip();
    let toml = format!(
        "[target]\nreactors = 2\n[[listener]]\naddress = \"{ip}\"\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n{namespaces}"
    );
    let file = folder.join("target.toml");
    fs::write(&file, toml).expect("a configuration");
    file
}

/// The variables of a target, and of commands, that have their folders in `folder`.
#[must_use]
pub fn variables(folder: &Path) -> [String; 2] {
    let of = |variable: &str, name: &str| format!("{variable}={}", folder.join(name).display());
    [of("STATE_DIRECTORY", STATE), of("RUNTIME_DIRECTORY", "run")]
}

/// Serves the configuration in `folder`.
///
/// # Panics
/// When it does not listen.
#[must_use]
pub fn serve_in(folder: &Path) -> Daemon {
    let [state, run] = variables(folder);
    let file = folder.join("target.toml");
    Daemon::serve_under(&["env", &state, &run], &["--config", utf8(&file)])
}

/// What `capstan-target ARGS` says there, on stdout and stderr.
///
/// # Panics
/// When it cannot be run.
pub fn target_command(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new("env");
    command
        .args(variables(folder))
        .arg(program("capstan-target"));
    let output = command.args(args).output().expect("it runs");
    [output.stdout, output.stderr]
        .map(|text| String::from_utf8(text).expect("it is text"))
        .concat()
}

/// A host, and its namespace 1.
///
/// # Panics
/// When it cannot connect.
#[must_use]
pub fn connect(at: SocketAddr, number: u8) -> (Controller, BlockingVolume) {
    let controller = Controller::connect(options(at, number)).expect("connects");
    let volume = controller.volume_blocking(1).expect("namespace 1");
    (controller, volume.blocking())
}

/// More than there is room for is answered well, and cannot be stored.
///
/// # Panics
/// When a write fails, or the Flush succeeds.
pub fn loses(volume: &BlockingVolume) {
    for offset in (0..30 * MIB).step_by(MIB) {
        volume
            .write(offset as u64, &vec![1; MIB])
            .expect("answered well");
    }
    is_write_fault(&volume.flush());
}

/// Nothing that promises anything succeeds, and what promises nothing goes on.
///
/// # Panics
/// When it does.
pub fn is_lost(at: SocketAddr) {
    let (controller, volume) = connect(at, 3);
    is_write_fault(&volume.flush());
    is_write_fault(&volume.write_fua(0, &[2; 4096]));
    volume.read(0, &mut [0; 4096]).expect("reads go on");
    assert_eq!(critical_warning(at), "0x4");
    drop(volume);
    controller.close();
}

/// What was lost is the operator's: a Flush succeeds.
///
/// # Panics
/// When it does not.
pub fn is_cleared(at: SocketAddr) {
    let (controller, volume) = connect(at, 4);
    volume.flush().expect("a volume that has lost nothing");
    assert_eq!(critical_warning(at), "0x0");
    drop(volume);
    controller.close();
}

/// The one status that says so, and that hosts do not retry.
///
/// # Panics
/// When it does not.
pub fn is_write_fault(result: &Result<(), IoError>) {
    let Err(IoError::Status { status, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(*status, Status::WRITE_FAULT.dnr().more());
}

/// What the SMART / Health log page says.
///
/// # Panics
/// When it says none.
#[must_use]
pub fn critical_warning(at: SocketAddr) -> String {
    let log = capstan("smart-log", at, &[]);
    let line = log
        .lines()
        .find(|line| line.starts_with("critical_warning"));
    let value = line.and_then(|line| line.split(' ').find(|word| word.starts_with("0x")));
    let value = value.expect("a critical warning");
    value.trim_end_matches(':').to_owned()
}

/// Has a target read its configuration again, and waits for these words.
///
/// # Panics
/// When they do not come.
pub fn reload(daemon: &Daemon, words: &str) {
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &[words]);
}

/// What `capstan COMMAND` says of the target there.
///
/// # Panics
/// When it cannot be run.
#[must_use]
pub fn capstan(command: &str, at: SocketAddr, args: &[&str]) -> String {
    let (address, port) = (at.ip().to_string(), at.port().to_string());
    let claims = tempfile::tempdir().expect("a folder");
    let output = Command::new(program("capstan"))
        .env(CLAIMS, claims.path())
        .args([
            command, "-t", "rdma", "-a", &address, "-s", &port, "-n", SUBNQN,
        ])
        .args(args)
        .output()
        .expect("it runs");
    String::from_utf8(output.stdout).expect("it is text")
}
