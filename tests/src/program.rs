//! The two programs, as processes.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::internals::disk::loop_device::LoopDevice;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::process::wait_until_stopped;
use crate::target::SUBNQN;

/// A program of this workspace, beside the tests that were built with it.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let build = test.ancestors().nth(2).expect("build/PROFILE/deps/TEST");
    let path = build.join(name);
    assert!(
        path.exists(),
        "{} is missing; build it first: cargo build --workspace",
        path.display()
    );
    path
}

/// An address on the loopback interface that no other test uses, also while nothing listens there:
/// a port of 127.0.0.1 could be taken by another test between a target's death and its return.
///
/// # Panics
/// When this process has asked for more than 200.
#[must_use]
pub fn own_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    // 127/8 is all loopback. Processes that run at the same time differ in these bits.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number <= 200, "too many addresses for one process");
    SocketAddr::from((Ipv4Addr::new(127, number, high, low), 4420))
}

/// Sends a signal to a process this test started. One that is to stop has stopped then: its threads
/// go on for a moment, in which a target still answers what is sent.
///
/// # Panics
/// When it is not there, or does not stop.
pub fn signal(pid: u32, signal: Signal) {
    let to = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(to, signal).expect("the process is there");
    if signal == Signal::SIGSTOP {
        wait_until_stopped(pid);
    }
}

/// `capstan-target serve`; killed when it is dropped.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

/// The log of a target behind what was read of it.
pub struct Unread(Lines<BufReader<ChildStderr>>);

impl Unread {
    /// Reads it to its end.
    #[must_use]
    pub fn read(self) -> Vec<String> {
        self.0.map_while(Result::ok).collect()
    }
}

impl Daemon {
    /// Exports `export` (a path, or `ram:SIZE`) at `at`, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(export: &str, lba_bytes: u32, at: SocketAddr) -> Self {
        let (lba_bytes, at) = (lba_bytes.to_string(), at.to_string());
        Self::serve(&[
            "--provider",
            "iwarp",
            "--nqn",
            SUBNQN,
            "--export",
            export,
            "--lba",
            &lba_bytes,
            "--listen",
            &at,
        ])
    }

    /// Runs `capstan-target serve ARGS`, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn serve(args: &[&str]) -> Self {
        Self::serve_under(&[], args)
    }

    /// The same, run by `tool`: a command with arguments that puts itself before a program and
    /// keeps the process, as `valgrind` does.
    ///
    /// # Panics
    /// When it does not listen.
    #[must_use]
    pub fn serve_under(tool: &[&str], args: &[&str]) -> Self {
        let (daemon, Unread(lines)) = Self::spawn_listening(tool, args, None, "listening at");
        daemon.read_on(lines);
        daemon
    }

    /// As [`Daemon::serve_under`], of one that serves NFS.
    ///
    /// # Panics
    /// When it does not listen.
    #[must_use]
    pub fn serve_nfs_under(tool: &[&str], args: &[&str]) -> Self {
        let says = "listening for NFS at";
        let (daemon, Unread(lines)) = Self::spawn_listening(tool, args, None, says);
        daemon.read_on(lines);
        daemon
    }

    /// As [`Daemon::serve`]; what it logs behind that is not read, and soon does not
    /// fit into a pipe of `pipe_bytes`, of a page at least.
    ///
    /// # Panics
    /// When it does not listen.
    #[must_use]
    pub fn serve_unread(args: &[&str], pipe_bytes: i32) -> (Self, Unread) {
        Self::spawn_listening(&[], args, Some(pipe_bytes), "listening at")
    }

    /// `says` is what its log says when it listens.
    fn spawn_listening(
        tool: &[&str],
        args: &[&str],
        pipe_bytes: Option<i32>,
        says: &str,
    ) -> (Self, Unread) {
        let (daemon, mut lines) = Self::spawn(tool, args, pipe_bytes);
        let log = Arc::clone(&daemon.log);
        let listens = lines.by_ref().any(|line| {
            let line = line.expect("the log is text");
            let listens = line.contains(says);
            log.lock().expect("no panic").push(line);
            listens
        });
        assert!(listens, "it ended before it listened: {:#?}", daemon.log());
        (daemon, Unread(lines))
    }

    /// Runs `capstan-target serve ARGS` and waits for nothing.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn begin(args: &[&str]) -> Self {
        Self::begin_under(&[], args)
    }

    /// The same, run by `tool` ([`Daemon::serve_under`]).
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn begin_under(tool: &[&str], args: &[&str]) -> Self {
        let (daemon, lines) = Self::spawn(tool, args, None);
        daemon.read_on(lines);
        daemon
    }

    fn spawn(
        tool: &[&str],
        args: &[&str],
        pipe_bytes: Option<i32>,
    ) -> (Self, Lines<BufReader<ChildStderr>>) {
        // It must not outlive a test that is killed.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(tool)
            .arg(program("capstan-target"))
            .arg("serve")
            .args(args)
            // Only those that a test names one for.
            .env("CAPSTAN_CONTROL_SOCKET", "none")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the target starts");
        let stderr = child.stderr.take().expect("piped");
        if let Some(pipe_bytes) = pipe_bytes {
            fcntl(&stderr, FcntlArg::F_SETPIPE_SZ(pipe_bytes)).expect("the size of a pipe");
        }
        let lines = BufReader::new(stderr).lines();
        let log = Arc::default();
        (Self { child, log }, lines)
    }

    fn read_on(&self, lines: Lines<BufReader<ChildStderr>>) {
        let log = Arc::clone(&self.log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                log.lock().expect("no panic").push(line);
            }
        });
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    ///
    /// # Panics
    /// After another panic.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("no panic").clone()
    }

    /// Waits for a line of the log with all of `words`.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait_for_log(&self, words: &[&str]) {
        self.wait_for_log_after(0, words);
    }

    /// Waits for a line with all of `words` behind the first `known` lines of the log: that line.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait_for_log_after(&self, known: usize, words: &[&str]) -> String {
        let start = Instant::now();
        let has = |line: &String| words.iter().all(|word| line.contains(word));
        loop {
            let log = self.log();
            if let Some(line) = log.iter().skip(known).find(|line| has(line)) {
                return line.clone();
            }
            let waited = start.elapsed() < Duration::from_secs(10);
            assert!(waited, "no line with {words:?} in {log:#?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// How many lines of the log have `words`.
    #[must_use]
    pub fn count_log(&self, words: &str) -> usize {
        let log = self.log();
        log.iter().filter(|line| line.contains(words)).count()
    }

    /// Asks it to end, and waits for that: its exit status.
    ///
    /// # Panics
    /// When it has ended already.
    #[must_use]
    pub fn stop(self) -> ExitStatus {
        signal(self.child.id(), Signal::SIGTERM);
        self.ended()
    }

    /// Waits for its end: its exit status.
    ///
    /// # Panics
    /// When it cannot be waited for.
    #[must_use]
    pub fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Ends it as a power cut ends a machine.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn kill(mut self) {
        signal(self.child.id(), Signal::SIGKILL);
        self.child.wait().expect("it ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already in a test that killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes down what a test leaves attached, whatever ends the test, in a session of its own, where a
/// signal to the tests does not reach it. It waits for its stdin to be closed, or for SIGTERM when
/// its parent dies: a process that is killed while it waits for the disk does not close anything.
const TAKE_DOWN: &str = r#"
trap : TERM
read -r _
trap '' TERM
for record in "$CAPSTAN_RUN_DIR"/*/volume.json; do
    [ -e "$record" ] || continue
    device=$(sed -n 's/.*"device": "\(.*\)".*/\1/p' "$record" )
    end="umount --force $device"
    [ -n "$device" ] || end="detach --force ${record%/*}"
    for try in 1 2 3 4 5; do
        "$0" $end || sleep 1
        [ -e "$record" ] || break
    done
done
rm -rf --one-file-system "$1"
"#;

/// Names the folder of the claims on namespaces. The machines of different tests have different
/// ones: their targets give the same names to different volumes.
pub const CLAIMS: &str = "CAPSTAN_CLAIM_DIR";

fn mount_point(machine: &Path) -> PathBuf {
    let mut name = OsString::from("mnt");
    name.push(machine.file_name().unwrap_or_default());
    machine.join(name)
}

/// A machine that runs `capstan`, with a state folder of its own.
pub struct Machine {
    dir: PathBuf,
    target: SocketAddr,
    take_down: Child,
}

impl Machine {
    /// A machine for the target at `target`.
    ///
    /// # Panics
    /// When there is no temporary folder.
    #[must_use]
    pub fn new(target: SocketAddr) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder").keep();
        for folder in [mount_point(&dir), dir.join("claims")] {
            fs::create_dir(folder).expect("a folder");
        }
        let take_down = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "setsid", "sh", "-c", TAKE_DOWN])
            .arg(program("capstan"))
            .arg(&dir)
            .env("CAPSTAN_RUN_DIR", dir.join("run"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv, setsid and sh start");
        Self {
            dir,
            target,
            take_down,
        }
    }

    /// A path in this machine's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Where volumes are mounted, in a folder of a name of its own: an overlay of relative folders
    /// is taken for one on every disk whose mount point ends with their names.
    #[must_use]
    pub fn mount_point(&self) -> PathBuf {
        mount_point(&self.dir)
    }

    /// `capstan COMMAND ARGS`, to be run.
    #[must_use]
    pub fn command(&self, command: &str, args: &[&str]) -> Command {
        let mut capstan = Command::new(program("capstan"));
        capstan
            .arg(command)
            .args(args)
            .env("CAPSTAN_RUN_DIR", self.path("run"))
            .env(CLAIMS, self.path("claims"))
            .stdin(Stdio::null());
        capstan
    }

    /// The arguments that name the target.
    #[must_use]
    pub fn target(&self) -> Vec<String> {
        let (addr, port) = (self.target.ip().to_string(), self.target.port().to_string());
        ["-t", "rdma", "-a", &addr, "-s", &port, "-n", SUBNQN]
            .into_iter()
            .chain(["--provider", "iwarp", "--reconnect-delay", "1"])
            .map(str::to_owned)
            .collect()
    }

    /// Runs `capstan COMMAND TARGET ARGS`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn run_on_target(&self, command: &str, args: &[&str]) -> Output {
        let target = self.target();
        let target: Vec<&str> = target.iter().map(String::as_str).collect();
        let args = [&target[..], args].concat();
        self.command(command, &args).output().expect("capstan runs")
    }

    /// Runs `capstan COMMAND ARGS`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn run(&self, command: &str, args: &[&str]) -> Output {
        self.command(command, args).output().expect("capstan runs")
    }

    /// Attaches the volume, and gives its device.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn attach(&self, args: &[&str]) -> PathBuf {
        PathBuf::from(told(&self.run_on_target("attach", args)).trim())
    }

    /// Mounts the volume.
    ///
    /// # Panics
    /// When that fails.
    pub fn mount(&self, args: &[&str]) {
        let mount_point = self.mount_point();
        let args = [args, &[utf8(&mount_point)]].concat();
        told(&self.run_on_target("mount", &args));
    }

    /// Unmounts the volume.
    ///
    /// # Panics
    /// When that fails.
    pub fn umount(&self) {
        told(&self.run("umount", &[utf8(&self.mount_point())]));
    }

    /// What `capstan list` says.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn list(&self) -> Vec<Value> {
        let text = told(&self.run("list", &["--output", "json"]));
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list["volumes"].as_array().expect("a list").clone()
    }

    /// The process that serves the only volume.
    ///
    /// # Panics
    /// When there is not one volume.
    #[must_use]
    pub fn serving_pid(&self) -> u32 {
        let list = self.list();
        assert_eq!(list.len(), 1, "{list:?}");
        u32::try_from(list[0]["pid"].as_u64().expect("a pid")).expect("a pid")
    }

    /// Nothing is attached, and nothing is left of what was.
    ///
    /// # Panics
    /// When something is.
    pub fn assert_clean(&self, device: &Path) {
        assert_eq!(self.list(), Vec::<Value>::new());
        let left: Vec<_> = fs::read_dir(self.path("run"))
            .expect("the state folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "in the state folder");
        let start = Instant::now();
        while let Some(pid) = left_behind(device) {
            let waited = start.elapsed() < DEVICE_GOES;
            assert!(waited, "the device of process {pid} is still configured");
            thread::sleep(Duration::from_millis(10));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        assert!(!mounts.contains(utf8(&self.dir)), "still mounted");
    }
}

/// The kernel takes a loop device down when the last process that has it open is gone, which may be
/// one that was killed in the middle of making it.
const DEVICE_GOES: Duration = Duration::from_secs(5);

/// The process that a configured device was made for, where that is gone. Another test may have the
/// number by now: a volume's device is named after its process.
fn left_behind(device: &Path) -> Option<String> {
    let name = LoopDevice::open(device).ok()?.name().ok()??;
    let pid = name.strip_prefix("capstan-")?.split('-').next()?.to_owned();
    (!Path::new("/proc").join(&pid).exists()).then_some(pid)
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.take_down.stdin.take());
        // It does what it can; what stays after that is for a person to look at.
        let _ = self.take_down.wait();
    }
}

/// The path as text.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn utf8(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// What a program printed.
///
/// # Panics
/// When it failed.
pub fn told(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a program that must fail said on stderr.
///
/// # Panics
/// When it succeeded.
#[must_use]
pub fn complaint(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "succeeded: {stdout}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a tool of the system.
///
/// # Panics
/// When it fails.
pub fn tool(name: &str, args: &[&str]) -> String {
    let output = Command::new(name).args(args).output();
    told(&output.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Runs a line in a shell, without anything to read.
///
/// # Panics
/// When there is no bash.
#[must_use]
pub fn shell(line: &str) -> Output {
    let mut shell = Command::new("bash");
    let output = shell.args(["-c", line]).stdin(Stdio::null()).output();
    output.expect("bash")
}

/// Whether `test` can have disks here: root, FUSE, loop devices, and the tools it names. Says what
/// is missing.
#[must_use]
pub fn has_disks(test: &str, tools: &[&str]) -> bool {
    let mut missing = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        missing.push("root".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            missing.push(device.to_owned());
        }
    }
    missing.extend(missing_tools(tools));
    if !missing.is_empty() {
        eprintln!("SKIPPED {test}: there is no {}", missing.join(", "));
    }
    missing.is_empty()
}

/// Whether the tools are here. Says what is missing.
#[must_use]
pub fn has_tools(test: &str, tools: &[&str]) -> bool {
    let missing = missing_tools(tools);
    if !missing.is_empty() {
        eprintln!("SKIPPED {test}: there is no {}", missing.join(", "));
    }
    missing.is_empty()
}

fn missing_tools(tools: &[&str]) -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |tool: &str| {
        let folders = std::env::split_paths(&path);
        let mut folders = folders.chain(["/sbin", "/usr/sbin"].map(PathBuf::from));
        folders.any(|folder| folder.join(tool).exists())
    };
    let missing = tools.iter().filter(|tool| !found(tool));
    missing.map(|tool| (*tool).to_owned()).collect()
}
