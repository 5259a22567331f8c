//! Two users of one machine and one namespace: whichever comes second to write is told of the
//! first, and what a user leaves behind is in nobody's way.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, has_tools, own_address, program, signal, told,
    tool, utf8,
};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

const ROOT: u32 = 0;
const NOBODY: u32 = 65534;
const ANOTHER: u32 = 65533;

/// A machine with a target whose namespace 1 every user reaches, and a folder where their claims
/// meet.
struct Shared {
    machine: Machine,
    capstan: PathBuf,
    _daemon: Daemon,
}

impl Shared {
    /// `None`, and why, where this process cannot be several users.
    fn new(test: &str) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED {test}: it needs root, to be several users");
            return None;
        }
        if !has_tools(test, &["setpriv"]) {
            return None;
        }
        let at = own_address();
        let daemon = Daemon::start("ram:16MiB", 4096, at);
        let machine = Machine::new(at);
        // Where others can run it.
        let capstan = machine.path("capstan");
        fs::copy(program("capstan"), &capstan).unwrap();
        fs::write(machine.path("data"), [7; 4096]).unwrap();
        for (path, mode) in [("", 0o755), ("claims", 0o1777), ("data", 0o644)] {
            fs::set_permissions(machine.path(path), Permissions::from_mode(mode)).unwrap();
        }
        Some(Self {
            machine,
            capstan,
            _daemon: daemon,
        })
    }

    fn command(&self, user: u32, command: &str, args: &[&str]) -> Command {
        let user = user.to_string();
        let mut capstan = Command::new("setpriv");
        capstan
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .arg(&self.capstan)
            .arg(command)
            .args(self.machine.target())
            .args(args)
            .env(CLAIMS, self.machine.path("claims"))
            .env("CAPSTAN_RUN_DIR", self.machine.path("run"))
            .stdin(Stdio::null());
        capstan
    }

    fn write(&self, user: u32) -> Output {
        let data = self.machine.path("data");
        let mut write = self.command(user, "write", &["--data", utf8(&data)]);
        write.output().unwrap()
    }

    fn claim(&self) -> Option<PathBuf> {
        let found = fs::read_dir(self.machine.path("claims")).unwrap();
        let mut written = found
            .map(|entry| entry.unwrap().path())
            .filter(|path| fs::metadata(path).unwrap().len() > 0);
        written.next()
    }

    /// A user's command that goes on writing.
    fn bench(&self, user: u32) -> Command {
        let args = ["--rw", "write", "--bs", "4k", "--runtime", "600"];
        self.command(user, "bench", &args)
    }

    /// Starts a command, and returns when the namespace is claimed.
    fn begin(&self, mut command: Command) -> Child {
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        wait_until("it is claimed", || {
            assert!(child.try_wait().unwrap().is_none());
            self.claim().is_some()
        });
        child
    }
}

fn end_by(mut child: Child, with: Signal) {
    signal(child.id(), with);
    child.wait().unwrap();
}

#[test]
fn the_second_user_is_told_of_the_first_and_gets_by_what_that_left() {
    let test = "the_second_user_is_told_of_the_first_and_gets_by_what_that_left";
    let Some(shared) = Shared::new(test) else {
        return;
    };
    for (first, second) in [(ROOT, NOBODY), (NOBODY, ROOT), (NOBODY, ANOTHER)] {
        for with in [Signal::SIGKILL, Signal::SIGTERM] {
            let writing = shared.begin(shared.bench(first));
            let refusal = complaint(&shared.write(second));
            let by = format!(
                "`capstan bench` (process {} of user {first}, through ",
                writing.id()
            );
            assert!(refusal.contains(&by), "{first}, {second}: {refusal}");
            end_by(writing, with);
            // Of a process that was killed the file stays, and it is its user's.
            let left = shared.claim();
            let owner = left.as_ref().map(|left| fs::metadata(left).unwrap().uid());
            let expected = (with == Signal::SIGKILL).then_some(first);
            assert_eq!(owner, expected, "{left:?}");
            for user in [second, first] {
                told(&shared.write(user));
            }
            for left in fs::read_dir(shared.machine.path("claims")).unwrap() {
                fs::remove_file(left.unwrap().path()).unwrap();
            }
        }
    }
}

/// Which a user may not open, to look whether it still is the one of the claim.
#[test]
fn a_user_is_told_of_the_disk_that_root_has_and_of_one_that_outlives_its_process() {
    let test = "a_user_is_told_of_the_disk_that_root_has_and_of_one_that_outlives_its_process";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let Some(shared) = Shared::new(test) else {
        return;
    };
    let machine = &shared.machine;
    let device = machine.attach(&[]);
    let start = Instant::now();
    let refusal = complaint(&shared.write(NOBODY));
    for words in [utf8(&device), "of user 0, through ", "capstan detach "] {
        assert!(refusal.contains(words), "{refusal}");
    }
    // A claim that ends is waited for longer.
    assert!(start.elapsed() < Duration::from_secs(4), "{refusal}");
    tool("mkfs.ext4", &["-q", utf8(&device)]);
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);

    machine.mount(&[]);
    signal(machine.serving_pid(), Signal::SIGKILL);
    wait_until("it is dead", || machine.list()[0]["state"] == "dead");
    let refusal = complaint(&shared.write(NOBODY));
    let words = "of user 0, through ";
    assert!(refusal.contains(words), "{refusal}");
    let words = "has ended and left its disk behind";
    assert!(refusal.contains(words), "{refusal}");
    let folder = machine.mount_point();
    told(&machine.run("umount", &["--force", utf8(&folder)]));
    machine.assert_clean(&device);
    told(&shared.write(NOBODY));
}

/// Whatever the umask of the first is; and what is closed to others nevertheless is named with what
/// opens the way.
#[test]
fn a_claim_that_others_cannot_open_says_what_to_do() {
    let test = "a_claim_that_others_cannot_open_says_what_to_do";
    let Some(shared) = Shared::new(test) else {
        return;
    };
    let bench = shared.bench(NOBODY);
    let mut careful = Command::new("sh");
    careful
        .args(["-c", "umask 077 && exec \"$@\"", "sh"])
        .arg(bench.get_program())
        .args(bench.get_args());
    let variables = bench.get_envs();
    careful.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    let careful = shared.begin(careful);
    let refusal = complaint(&shared.write(ANOTHER));
    assert!(refusal.contains("of user 65534, through "), "{refusal}");
    end_by(careful, Signal::SIGKILL);

    let left = shared.claim().unwrap();
    fs::set_permissions(&left, Permissions::from_mode(0o600)).unwrap();
    let refusal = complaint(&shared.write(ANOTHER));
    for words in [
        utf8(&left),
        "of user 65534 has mode 600, expected 666",
        "remove it",
    ] {
        assert_eq!(refusal.matches(words).count(), 1, "{words}: {refusal}");
    }
    // Neither root nor its owner is kept out.
    told(&shared.write(ROOT));
    fs::remove_file(&left).ok();
    told(&shared.write(ANOTHER));
}
