//! What the system allows a process: control groups, and limits of its own. Each is found at the
//! start, by `check` and by `doctor`, and named with what raises it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use capstan_tests::program::{Daemon, own_address, program, signal, utf8};
use capstan_tests::running::Running;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::Value;

const SUBNQN: &str = "nqn.2026-11.org.example:limited";

/// A control group of the test's own, gone when it is dropped.
struct Group(PathBuf);

impl Group {
    /// With the first of `limits` whose file the group has; `None`, and why, where groups cannot be
    /// made.
    fn with(controller: &str, limits: &[(&str, &str)]) -> Option<Self> {
        let name = format!("capstan-test-{}-{controller}", std::process::id());
        let roots = [
            format!("/sys/fs/cgroup/{controller}"),
            "/sys/fs/cgroup".to_owned(),
        ];
        for root in roots {
            let folder = Path::new(&root).join(&name);
            if !Path::new(&root).is_dir() || fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self(folder);
            let set = limits
                .iter()
                .any(|(file, value)| fs::write(group.0.join(file), value).is_ok());
            if set {
                return Some(group);
            }
        }
        eprintln!("SKIPPED: no control group of {controller} can be made here");
        None
    }

    /// The words before a command that run it in the group.
    fn tool(&self) -> [String; 4] {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", utf8(&self.0));
        ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
    }

    /// Runs a program of ours in it.
    fn run(&self, name: &str, args: &[&str]) -> Output {
        under(&self.tool().each_ref().map(String::as_str))(name, args)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The processes of it have ended; the kernel may take a moment to notice.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn config(dir: &Path, target: &str, namespaces: &str) -> PathBuf {
    let path = dir.join("target.toml");
    let text = format!(
        "[target]\n{target}\n[[listener]]\naddress = \"{}\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\n\
         allow_any_host = true\n{namespaces}",
        own_address().ip()
    );
    fs::write(&path, text).unwrap();
    path
}

fn ram(size: &str) -> String {
    format!("[[subsystem.namespace]]\nram = \"{size}\"\n")
}

/// The same of `serve`, `check` and `doctor`: they end with an error that has all the words.
fn assert_refused(run: impl Fn(&str, &[&str]) -> Output, config: &Path, words: &[&str]) {
    for command in ["serve", "check", "doctor"] {
        let output = run("capstan-target", &[command, "--config", utf8(config)]);
        assert!(!output.status.success(), "{command}: {output:?}");
        let told = [&output.stdout[..], &output.stderr[..]].concat();
        let told = String::from_utf8_lossy(&told);
        for word in words {
            assert!(told.contains(word), "{command}, {word}: {told}");
        }
    }
}

/// The check of `capstan doctor` called `name`.
fn of_host(run: impl Fn(&str, &[&str]) -> Output, name: &str) -> Value {
    let output = run("capstan", &["doctor", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap()
        .clone()
}

/// Run by `tool`, which puts itself before a program.
fn under(tool: &[&str]) -> impl Fn(&str, &[&str]) -> Output {
    move |name, args| {
        let [first, rest @ ..] = tool else {
            panic!("a tool")
        };
        Command::new(first)
            .args(rest)
            .arg(program(name))
            .args(args)
            .output()
            .unwrap()
    }
}

#[test]
fn memory_of_a_control_group_counts_as_the_machines_does() {
    let limits = [
        ("memory.max", "134217728"),
        ("memory.limit_in_bytes", "134217728"),
    ];
    let Some(group) = Group::with("memory", &limits) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, args: &[&str]| group.run(name, args);
    let words = [
        "memory: the namespaces in RAM and the memory budget need 320 MiB; expected at most 128 MiB",
        utf8(&group.0),
        "MemoryMax=",
    ];
    let words = words.map(|word| word.to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let file = config(dir.path(), "memory_budget = \"64MiB\"", &ram("256MiB"));
    // `doctor` has what is expected in a line of its own.
    for command in ["serve", "check"] {
        let output = run("capstan-target", &[command, "--config", utf8(&file)]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{told}");
        for word in &words {
            assert!(told.contains(word), "{command}, {word}: {told}");
        }
    }
    assert_refused(
        run,
        &file,
        &["need 320 MiB", "at most 128 MiB", utf8(&group.0)],
    );
    // What fits is taken.
    let file = config(dir.path(), "memory_budget = \"64MiB\"", &ram("16MiB"));
    let output = run("capstan-target", &["check", "--config", utf8(&file)]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(of_host(run, "memory")["verdict"], "ok");
    // A target that runs takes up no more either.
    let tool = group.tool();
    let tool = tool.each_ref().map(String::as_str);
    let daemon = Daemon::serve_under(&tool, &["--config", utf8(&file)]);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("16MiB", "256MiB")).unwrap();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log(&["was not reloaded", "at most 128 MiB", "nothing was changed"]);
    assert!(daemon.stop().success());
}

#[test]
fn threads_of_a_control_group_are_counted() {
    let Some(group) = Group::with("pids", &[("pids.max", "4")]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "reactors = 1", &ram("1MiB"));
    let run = |name: &str, args: &[&str]| group.run(name, args);
    assert_refused(run, &file, &[" of 4 left (", "pids.max", "TasksMax="]);
    assert_eq!(of_host(run, "threads")["verdict"], "warning");
    // With as many as it asks for it starts, and needs no more.
    let output = run("capstan-target", &["check", "--config", utf8(&file)]);
    let told = String::from_utf8_lossy(&output.stderr);
    let (_, needed) = told.split_once("; expected ").expect("a number");
    let (needed, _) = needed.split_once(':').expect("a number");
    fs::write(group.0.join("pids.max"), needed).unwrap();
    let tool = group.tool();
    let tool = tool.each_ref().map(String::as_str);
    let daemon = Daemon::serve_under(&tool, &["--config", utf8(&file)]);
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    assert!(threads.count() <= needed.parse().unwrap());
    assert!(daemon.stop().success());
}

/// Also where there are fewer than what counts them takes itself.
#[test]
fn every_command_without_a_thread_says_which_limit_that_is() {
    let Some(group) = Group::with("pids", &[("pids.max", "1")]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "reactors = 1", &ram("1MiB"));
    let at = own_address();
    let target = Daemon::start("ram:1MiB", 4096, at);
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let host = ["-a", &ip, "-s", &port, "--provider", "iwarp"];
    let run = |name: &str, args: &[&str]| group.run(name, args);
    for max in ["1", "2", "3"] {
        fs::write(group.0.join("pids.max"), max).unwrap();
        let words = ["pids.max", "TasksMax=", "expected"];
        assert_refused(run, &file, &words);
        let bench = [
            &["bench"][..],
            &host[..],
            &["--numjobs", "8", "--size", "4k"],
        ]
        .concat();
        let write = [&["write"][..], &host[..], &["-z", "4k", "-d", "/dev/zero"]].concat();
        // The second one needs three.
        let commands = [Some(bench), (max != "3").then_some(write)];
        for args in commands.into_iter().flatten() {
            let output = run("capstan", &args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{args:?}, {max}");
            let of_max = format!("{max} of {max} threads are in use (");
            for words in [&words[..], &["starting the thread", &of_max]].concat() {
                assert!(said.contains(words), "{args:?}, {max}, {words}: {said}");
            }
        }
    }
    assert!(target.stop().success());
}

#[test]
fn the_soft_limit_of_open_files_is_no_obstacle_and_the_hard_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let images: String = (0..40)
        .map(|at| {
            let path = dir.path().join(format!("{at}.img"));
            fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
            format!("[[subsystem.namespace]]\npath = \"{}\"\n", utf8(&path))
        })
        .collect();
    // 16 of the process, 16 of the reactor and two of each file.
    let file = config(dir.path(), "reactors = 1", &images);
    let daemon = Daemon::serve_under(&["prlimit", "--nofile=64:4096"], &["--config", utf8(&file)]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let row = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let row: Vec<_> = row.unwrap().split_whitespace().collect();
    assert_eq!(row[3..5], ["4096", "4096"]);
    assert!(daemon.stop().success());
    assert_refused(
        under(&["prlimit", "--nofile=64:96"]),
        &file,
        &[
            "open files",
            "96",
            "112 for the files and devices",
            "LimitNOFILE=",
        ],
    );
    let few = of_host(under(&["prlimit", "--nofile=48:48"]), "open files");
    assert_eq!(
        (&few["verdict"], &few["seen"]),
        (&"warning".into(), &"48".into())
    );
}

#[test]
fn a_host_out_of_descriptors_says_how_to_have_more() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let bench = [
        "bench",
        "-a",
        &at.ip().to_string(),
        "--rw",
        "read",
        "-i",
        "64",
    ];
    let output = under(&["prlimit", "--nofile=32:32"])("capstan", &bench);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    for word in [
        "Too many open files",
        "`ulimit -Hn`",
        "LimitNOFILE=",
        "for 1 job with 64 I/O queues each, some 79 descriptors are needed, and the limit is 32",
    ] {
        assert_eq!(told.matches(word).count(), 1, "{told}");
    }
    assert!(target.stop().success());
}

#[test]
fn a_host_out_of_address_space_says_how_to_have_more() {
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let target = Running::target(at);
    let target = target.iter().map(String::as_str);
    let words: Vec<&str> = ["read", "-d", "/dev/null"]
        .into_iter()
        .chain(target)
        .collect();
    let output = under(&["prlimit", "--as=40960000"])("capstan", &words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        "WARN the address space is limited to 40960000 bytes (ulimit -v",
        "cannot map a slab of ",
        "limited to 40960000 bytes: raise that (ulimit -v, LimitAS=",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(daemon.stop().success());
}

/// `ulimit -l 64`: what it costs is told, and everything works.
#[test]
fn little_locked_memory_is_a_warning_and_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let namespace = format!("[[subsystem.namespace]]\npath = \"{}\"\n", utf8(&image));
    let file = config(dir.path(), "reactors = 1", &namespace);
    let mut tool = vec!["prlimit", "--memlock=65536:65536"];
    if geteuid().is_root() {
        tool.extend(["setpriv", "--bounding-set", "-ipc_lock"]);
    }
    let output = under(&tool)("capstan-target", &["check", "--config", utf8(&file)]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for word in [
        "RLIMIT_MEMLOCK: 64 KiB; expected 256 MiB",
        "LimitMEMLOCK=infinity",
    ] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let text = fs::read_to_string(&file).unwrap();
    let ip = text.split('"').nth(1).unwrap().to_owned();
    let daemon = Daemon::serve_under(&tool, &["--config", utf8(&file)]);
    daemon.wait_for_log(&[
        "WARN disk I/O goes without fixed buffers",
        "RLIMIT_MEMLOCK is 64 KiB, buffers may have half of it",
    ]);
    assert_eq!(daemon.count_log("without fixed buffers"), 1);
    let bench = [
        "bench",
        "-a",
        &ip,
        "-n",
        SUBNQN,
        "--rw",
        "randwrite",
        "--verify",
    ];
    let output = under(&tool)(
        "capstan",
        &[&bench[..], &["--size", "4m", "--bs", "4k"]].concat(),
    );
    assert!(output.status.success(), "{output:?}");
    assert!(daemon.stop().success());
}

/// `ulimit -l` below what the rings need, on a kernel that counts them: named before the start, and
/// no panic. With as much as is named it starts each time, though rings of the one before may count
/// for a moment.
#[test]
fn locked_memory_for_the_rings_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "reactors = 1", &ram("1MiB"));
    let tool = |limit| {
        let mut tool = vec!["prlimit", limit];
        if geteuid().is_root() {
            tool.extend(["setpriv", "--bounding-set", "-ipc_lock"]);
        }
        tool
    };
    let none = tool("--memlock=0:0");
    let output = under(&none)("capstan-target", &["check", "--config", utf8(&file)]);
    if output.status.success() {
        eprintln!("SKIPPED: this kernel does not count rings as locked memory");
        return;
    }
    let few = tool("--memlock=32768:32768");
    let words = [
        "RLIMIT_MEMLOCK is 32 KiB",
        "36 KiB for those of 1 reactor(s) and the control thread",
        "ulimit -l unlimited",
    ];
    assert_refused(under(&few), &file, &words);
    for _ in 0..5 {
        let enough = tool("--memlock=36864:36864");
        let daemon = Daemon::serve_under(&enough, &["--config", utf8(&file)]);
        assert_eq!(daemon.count_log("panicked"), 0);
        assert!(daemon.stop().success());
    }
}

#[test]
fn reactors_are_told_which_cores_they_may_have() {
    let dir = tempfile::tempdir().unwrap();
    let one_core = under(&["taskset", "--cpu-list", "0"]);
    let file = config(dir.path(), "reactors = [7]", &ram("1MiB"));
    assert_refused(
        &one_core,
        &file,
        &["core 7 is not one this process may run on", "allowed: 0"],
    );
    let file = config(dir.path(), "reactors = 3", &ram("1MiB"));
    let output = one_core("capstan-target", &["check", "--config", utf8(&file)]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(told.contains("3 reactor(s) on 1 core(s)"), "{told}");
    assert!(told.contains("AllowedCPUs="), "{told}");
}

#[test]
fn address_space_that_is_limited_counts_as_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), "reactors = 1", &ram("1GiB"));
    let run = under(&["prlimit", "--as=1073741824"]);
    assert_refused(
        run,
        &file,
        &["need 1280 MiB", "at most 1 GiB", "`ulimit -v`"],
    );
}

#[test]
fn a_write_beyond_the_limit_of_file_sizes_fails_and_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let namespace = format!("[[subsystem.namespace]]\npath = \"{}\"\n", utf8(&image));
    let file = config(dir.path(), "reactors = 1", &namespace);
    let words = ["file size", "RLIMIT_FSIZE", "4 MiB for ", "LimitFSIZE="];
    assert_refused(under(&["prlimit", "--fsize=1048576"]), &file, &words);
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let text = fs::read_to_string(&file).unwrap();
    let ip = text
        .split("address = \"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let limit = |value: &str| {
        let args = ["--pid", &daemon.pid().to_string(), value].map(str::to_owned);
        let output = Command::new("prlimit").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let write = |start: &str| {
        let args = ["-a", ip, "-n", SUBNQN, "--start-block", start];
        let data = ["-z", "4096", "-d", "/dev/zero"];
        under(&["env"])("capstan", &[&["write"][..], &args, &data].concat())
    };
    limit("--fsize=1048576:");
    let beyond = write("512");
    let said = String::from_utf8_lossy(&beyond.stderr);
    assert!(
        !beyond.status.success() && said.contains("Capacity Exceeded"),
        "{said}"
    );
    daemon.wait_for_log(&[
        "RLIMIT_FSIZE",
        "1048576 bytes",
        "prlimit --pid",
        "LimitFSIZE=",
    ]);
    assert!(write("0").status.success(), "the others go on");
    limit("--fsize=unlimited");
    assert!(write("512").status.success());
    assert!(daemon.stop().success());
}
