//! `capstan doctor` and `capstan-target doctor`, against targets that are well, absent, closed to
//! this host, or no targets at all.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, program, told, utf8,
};
use capstan_tests::target::{SUBNQN, TestTarget};
use serde_json::Value;

const HOSTNQN: &str = "nqn.2026-11.org.example:patient";

/// `capstan doctor` on a target; its report, and its exit status with what it says on stderr.
fn doctor(target: SocketAddr, args: &[&str]) -> (Value, Output) {
    let (address, port) = (target.ip().to_string(), target.port().to_string());
    let output = Command::new(program("capstan"))
        .args(["doctor", "--output", "json", "--provider", "iwarp"])
        .args(["-a", &address, "-s", &port, "-q", HOSTNQN])
        .args(["-I", "d9eb9ee5-4a3e-4a3e-9a0f-0123456789ab"])
        .args(args)
        .output()
        .expect("capstan runs");
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (report, output)
}

/// The check called `name`.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("checks");
    let found = checks.iter().rfind(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name:?} in {report:#}"))
}

fn has(report: &Value, name: &str) -> bool {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().any(|check| check["name"] == name)
}

/// The report has an error called `name`, which says `words` in what was seen or what mends it, and
/// so does the exit status.
fn assert_error(report: &Value, output: &Output, name: &str, words: &str) {
    let check = check(report, name);
    assert_eq!(check["verdict"], "error", "{check:#}");
    assert!(check.to_string().contains(words), "{check:#}");
    assert!(!check["remedy"].as_str().expect("a remedy").is_empty());
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("checks failed"), "{stderr}");
}

#[test]
fn a_target_that_is_well_is_tried_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let contents: Vec<u8> = (0_u8..251).cycle().take(4 << 20).collect();
    fs::write(&image, &contents).unwrap();
    let address = own_address();
    let target = Daemon::start(utf8(&image), 4096, address);

    let (report, output) = doctor(address, &["-n", SUBNQN]);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!(report["errors"], 0);
    for (name, words) in [
        ("host NQN", HOSTNQN),
        ("provider", "iwarp"),
        ("CM connect", "accepted"),
        ("discovery", SUBNQN),
        ("subsystem", "Capstan"),
        ("namespace", "4.0 MiB"),
        ("SEND, RDMA WRITE", "Read of 4.0 KiB and of 128.0 KiB"),
        ("RDMA READ", "Compare of 128.0 KiB with what was read"),
        ("SEND with data", "Compare of 8.0 KiB with what was read"),
        ("SEND with Invalidate", "closed"),
        ("SEND without data", "Flush"),
        ("not tried", "Write"),
        ("latency", "p99.9"),
        ("bandwidth", "/s"),
    ] {
        let check = check(&report, name);
        assert_eq!(check["verdict"], "ok", "{check:#}");
        assert!(check["seen"].as_str().unwrap().contains(words), "{check:#}");
    }
    let figure = |name: &str, figure: &str| {
        let value = check(&report, name)["figures"][figure].as_f64();
        value.unwrap_or_else(|| panic!("no {figure} in {report:#}"))
    };
    let (p50, p999) = (figure("latency", "p50_us"), figure("latency", "p999_us"));
    assert!(0.0 < p50 && p50 <= p999, "{p50} {p999}");
    assert!(figure("CM connect", "ready_ms") > 0.0);
    assert!(figure("bandwidth", "bytes_per_s") > 1e6);

    drop(target);
    assert!(
        fs::read(&image).unwrap() == contents,
        "the volume has changed"
    );
}

/// The first that takes this host, with the first namespace that it has.
#[test]
fn without_a_subsystem_those_that_are_offered_are_tried() {
    let other = "nqn.2026-11.org.example:a-volume-before";
    let target = TestTarget::start(&format!(
        "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{other}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 5\nram = \"1MiB\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n"
    ));
    let seen =
        |report: &Value, name: &str| check(report, name)["seen"].as_str().unwrap().to_owned();
    let (report, output) = doctor(target.addresses[0], &[]);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert!(seen(&report, "discovery").contains(SUBNQN));
    assert!(seen(&report, "subsystem").starts_with(&format!("{other}: controller ")));
    assert!(seen(&report, "subsystem").contains(" over RDMA (iwarp, shared memory): "));
    assert!(seen(&report, "namespace").starts_with("5: "));
    assert!(has(&report, "latency"));
    target.stop();
}

/// One that takes this host may have nothing for it, and another one has.
#[test]
fn without_a_subsystem_one_with_nothing_to_read_is_passed_over() {
    let empty = "nqn.2026-11.org.example:a-volume-before";
    let start = |namespace: &str| {
        TestTarget::start(&format!(
            "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = \"{empty}\"\nallow_any_host = true\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n{namespace}"
        ))
    };
    let target = start("[[subsystem.namespace]]\nnsid = 7\nram = \"1MiB\"\n");
    for args in [&[][..], &["-N", "7"]] {
        let (report, output) = doctor(target.addresses[0], args);
        assert_eq!(output.status.code(), Some(0), "{report:#}");
        let namespace = check(&report, "namespace")["seen"].as_str().unwrap();
        assert!(namespace.starts_with("7: "), "{namespace}");
        let text = report.to_string();
        let passed_over = format!("subsystem {empty} has no namespace ");
        assert!(text.contains(&passed_over), "{text}");
        assert!(has(&report, "latency"));
    }
    for args in [&["-N", "8"][..], &["-n", empty]] {
        let (report, output) = doctor(target.addresses[0], args);
        assert_error(&report, &output, "namespace", "has no namespace ");
    }
    target.stop();
    let target = start("");
    let (report, output) = doctor(target.addresses[0], &[]);
    assert_error(&report, &output, "namespace", "has no namespace 1");
    assert_eq!(report["errors"], 2, "{report:#}");
    target.stop();
}

/// There is nothing to try, and what there is to do is said.
#[test]
fn without_a_subsystem_that_is_offered_nothing_is_tried() {
    let target = TestTarget::start(&format!(
        "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [\"nqn.2026-11.org.example:other\"]\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n"
    ));
    let (report, output) = doctor(target.addresses[0], &[]);
    let why = "not tried: the target offers no subsystem to host ";
    assert_error(&report, &output, "reads", why);
    assert_error(
        &report,
        &output,
        "reads",
        "`capstan discover -a 127.0.0.1 -s ",
    );
    assert!(!has(&report, "latency"));
    target.stop();
}

/// What matters to NVMe/TCP, and nothing of RDMA.
#[test]
fn over_nvme_tcp_the_machine_is_looked_at_for_that() {
    let mut doctor = Command::new(program("capstan"));
    let text = told(&doctor.args(["doctor", "-t", "tcp"]).output().unwrap());
    let is_told = |name: &str| text.lines().any(|line| line.contains(&format!("{name}  ")));
    assert!(text.contains("nvme_tcp"), "{text}");
    assert!(is_told("TCP congestion control"), "{text}");
    for name in ["RDMA devices", "RDMA modules", "software RDMA modules"] {
        assert!(!is_told(name), "{name} in {text}");
    }
}

#[test]
fn a_host_that_is_not_allowed_learns_what_to_allow() {
    let target = TestTarget::start(&format!(
        "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [\"nqn.2026-11.org.example:other\"]\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n"
    ));
    let (report, output) = doctor(target.addresses[0], &["-n", SUBNQN]);
    let discovery = check(&report, "discovery");
    assert_eq!(discovery["verdict"], "warning", "{discovery:#}");
    assert!(discovery["remedy"].as_str().unwrap().contains(HOSTNQN));
    assert_error(&report, &output, "subsystem", "allowed hosts");
    assert_eq!(check(&report, "CM connect")["verdict"], "ok");
    assert!(!has(&report, "latency"));
    target.stop();
}

#[test]
fn a_namespace_that_does_not_exist_is_named_with_those_that_do() {
    let target = TestTarget::ram("reactors = 1");
    let (report, output) = doctor(target.addresses[0], &["-n", SUBNQN, "-N", "7"]);
    assert_error(&report, &output, "namespace", "expected one of: 1");
    target.stop();
}

#[test]
fn nobody_listens() {
    let (report, output) = doctor(own_address(), &["-n", SUBNQN]);
    assert_error(&report, &output, "CM connect", "ss -ltn");
    assert!(!has(&report, "discovery"));
}

#[test]
fn what_listens_is_no_target() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Takes every connection and closes it; ends with the test's process.
    thread::spawn(move || listener.incoming().for_each(drop));
    let (report, output) = doctor(address, &["-n", SUBNQN]);
    assert_error(&report, &output, "CM connect", "queue 0");
    assert!(!has(&report, "discovery"));
}

#[test]
fn a_name_that_has_no_address_is_told() {
    let output = Command::new(program("capstan"))
        .args(["doctor", "-a", "no-such-target.invalid", "-q", HOSTNQN])
        .args(["-I", "d9eb9ee5-4a3e-4a3e-9a0f-0123456789ab"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let has = |words: &str| assert!(text.contains(words), "{text}");
    has("getent ahosts no-such-target.invalid");
    has("1 error(s)");
}

#[test]
fn options_of_a_target_need_its_address() {
    let output = Command::new(program("capstan"))
        .args(["doctor", "-n", SUBNQN])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("traddr"), "{stderr}");
}

#[test]
fn the_machine_alone_is_told_line_by_line() {
    let text = told(
        &Command::new(program("capstan"))
            .arg("doctor")
            .output()
            .unwrap(),
    );
    for name in [
        "kernel",
        "RDMA devices",
        "RLIMIT_MEMLOCK",
        "huge pages",
        "FUSE",
        "loop devices",
    ] {
        let has = |line: &str| {
            line.split_once("  ")
                .is_some_and(|(_, rest)| rest.contains(name))
        };
        assert!(text.lines().any(has), "no {name} in\n{text}");
    }
    assert!(text.contains(" 0 error(s)"), "{text}");
}

/// `capstan-target doctor`, through `wrapper` (a command that runs another).
fn target_doctor(wrapper: &[&str], args: &[&str]) -> (Value, Output) {
    let target = program("capstan-target");
    let words = [
        wrapper,
        &[utf8(&target), "doctor", "--output", "json"],
        args,
    ]
    .concat();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    (
        report.unwrap_or_else(|error| panic!("{error}: {output:?}")),
        output,
    )
}

#[test]
fn a_target_is_told_what_it_will_do_and_what_it_lacks() {
    let address = own_address();
    let listen = address.to_string();
    let export = [
        "--export",
        "ram:16MiB",
        "--provider",
        "iwarp",
        "--listen",
        &listen,
    ];
    let name = format!("listen {listen}");
    let (report, output) =
        target_doctor(&[], &["--export", "ram:16MiB", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    for (name, words) in [
        ("io_uring", "a ring has"),
        ("memory budget", "room for"),
        ("listen 127.0.0.1:0", "lo, no RDMA device"),
        ("configuration", "1 subsystem(s), 1 namespace(s)"),
    ] {
        let check = check(&report, name);
        assert!(check["seen"].as_str().unwrap().contains(words), "{check:#}");
        assert_ne!(check["verdict"], "error", "{check:#}");
    }

    // What pins memory is limited: slower, and no error.
    let limited = [
        "prlimit",
        "--memlock=65536",
        "setpriv",
        "--bounding-set",
        "-ipc_lock",
    ];
    // The rings of a user's other processes count against the limit of each, those of root do not.
    let (wrapper, seen) = if nix::unistd::geteuid().is_root() {
        (&limited[..], "64 KiB")
    } else {
        (&["prlimit", "--memlock=8388608"][..], "8 MiB")
    };
    let (report, output) = target_doctor(wrapper, &export);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let memlock = check(&report, "RLIMIT_MEMLOCK");
    assert_eq!(memlock["verdict"], "warning", "{memlock:#}");
    assert_eq!(memlock["seen"], seen);
    assert!(
        memlock["remedy"]
            .as_str()
            .unwrap()
            .contains("ulimit -l unlimited")
    );

    // While the target runs its port is in use, which may be as it should.
    let _target = Daemon::start("ram:16MiB", 4096, address);
    let (report, output) = target_doctor(&[], &export);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let listen = check(&report, &name);
    assert_eq!(listen["verdict"], "warning", "{listen:#}");
    let seen = listen["seen"].as_str().unwrap();
    assert!(seen.contains("port 4420 is in use by process "), "{seen}");
    assert!(seen.contains("(capstan-target)"), "{seen}");
    let remedy = listen["remedy"].as_str().unwrap();
    assert!(remedy.contains("`ss -ltnp 'sport = :4420'`"), "{remedy}");
}

#[test]
fn a_configuration_that_will_not_do_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("target.toml");
    fs::write(
        &file,
        format!(
            "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"/no/such/disk\"\n"
        ),
    )
    .unwrap();
    let (report, output) = target_doctor(&[], &["--config", utf8(&file)]);
    assert_error(&report, &output, "configuration", "/no/such/disk");
    // The rest of the machine is told all the same.
    assert_eq!(check(&report, "huge pages")["verdict"], "ok");
    let (report, output) = target_doctor(&[], &["--config", "/no/such/file.toml"]);
    assert_error(&report, &output, "configuration", "/no/such/file.toml");
    // Very many mistakes are counted.
    let disks = (0..99).map(|n| format!("[[subsystem.namespace]]\npath = \"/no/such/{n}\"\n"));
    let text = fs::read_to_string(&file).unwrap() + &disks.collect::<String>();
    fs::write(&file, text).unwrap();
    let (report, _) = target_doctor(&[], &["--config", utf8(&file)]);
    let checks = report["checks"].as_array().unwrap();
    let told: Vec<_> = checks
        .iter()
        .filter(|check| check["name"] == "configuration")
        .map(|check| check["seen"].as_str().unwrap())
        .collect();
    assert_eq!(told.len(), 33, "{told:?}");
    assert!(told[32].starts_with("and 68 more"), "{told:?}");
}

#[test]
fn tables_of_the_state_folder_that_cannot_be_read_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let path = utf8(&image);
    let file = folder.path().join("target.toml");
    let toml = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\npath = \"{path}\"\n"
    );
    fs::write(&file, toml).unwrap();
    let config = ["--config", utf8(&file)];
    let state = format!("STATE_DIRECTORY={}", folder.path().display());
    for table in ["namespaces.toml", "lba-sizes.toml"] {
        let table = folder.path().join(table);
        fs::write(&table, "[[namespace]]\n\u{0}").unwrap();
        for args in [&config[..], &[]] {
            let (report, output) = target_doctor(&["env", &state], args);
            let error = |check: &&Value| check["verdict"] == "error";
            let mut errors = report["checks"].as_array().unwrap().iter().filter(error);
            let seen = errors.next().unwrap()["seen"].as_str().unwrap();
            assert!(
                seen.contains(utf8(&table)) && seen.contains("cannot be read"),
                "{seen}"
            );
            assert!(seen.contains("restore it"), "the next step: {seen}");
            assert!(
                errors.next().is_none() && !output.status.success(),
                "{report:#}"
            );
        }
        let mut check = Command::new("env");
        check.arg(&state).arg(program("capstan-target"));
        let said = complaint(&check.arg("check").args(config).output().unwrap());
        assert!(said.contains(utf8(&table)), "{said}");
        fs::remove_file(&table).unwrap();
    }
}

#[test]
fn what_may_be_meant_so_is_not_to_be_mended() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk.img");
    File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let export = ["--export", utf8(&disk), "--listen", "127.0.0.1:0"];
    // As a target that runs with this very configuration has it.
    let has_it = File::open(&disk).unwrap();
    has_it.lock().unwrap();
    let (report, output) = target_doctor(&[], &export);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let check = check(&report, "configuration");
    assert_eq!(check["verdict"], "warning", "{check:#}");
    let seen = check["seen"].as_str().unwrap();
    assert!(seen.contains("is locked by another program"), "{seen}");
    let remedy = check["remedy"].as_str().unwrap();
    assert!(
        remedy.starts_with("nothing, where it is meant to be so; else change "),
        "{remedy}"
    );
}

/// `capstan doctor ARGS` with these files in `/etc/nvme`, which only it sees.
fn doctor_with(files: &[(&str, &str)]) -> (Value, Output) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let script = "mount --bind \"$1\" /etc/nvme && exec \"$2\" doctor --output json";
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(folder.path())
        .arg(program("capstan"))
        .output()
        .expect("unshare runs");
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (report, output)
}

#[test]
fn root_who_this_host_is_is_looked_at_without_a_target() {
    let test = "root_who_this_host_is_is_looked_at_without_a_target";
    if !nix::unistd::geteuid().is_root() || !std::path::Path::new("/etc/nvme").is_dir() {
        eprintln!("SKIPPED {test}: it needs root and the folder /etc/nvme");
        return;
    }
    let (report, output) = doctor_with(&[("hostid", "xx\n")]);
    assert_error(
        &report,
        &output,
        "host NQN",
        "/etc/nvme/hostid is \\\"xx\\\"",
    );
    let remedy = &check(&report, "host NQN")["remedy"];
    assert!(
        remedy.to_string().contains("uuidgen > /etc/nvme/hostid"),
        "{remedy}"
    );
    let (report, output) = doctor_with(&[("hostnqn", "a b\u{1}\n")]);
    assert_error(&report, &output, "host NQN", "/etc/nvme/hostnqn is");
    let (report, output) = doctor_with(&[("hostnqn", "\n")]);
    let empty = check(&report, "/etc/nvme/hostnqn");
    assert_eq!(empty["verdict"], "warning", "{empty:#}");
    let said = String::from_utf8_lossy(&output.stderr);
    let warned = "/etc/nvme/hostnqn is empty, and this host is known by what is made without it";
    assert!(said.contains(warned), "{said}");
    assert_eq!(check(&report, "host NQN")["verdict"], "ok");
}

/// Followed word for word, it meets what the disk meets: not another transport that would do.
#[test]
fn what_doctor_says_of_an_attached_disk_asks_for_its_connection() {
    let test = "what_doctor_says_of_an_attached_disk_asks_for_its_connection";
    if !has_disks(test, &[]) {
        return;
    }
    let at = own_address();
    let ip = at.ip().to_string();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let way = format!("-a {ip} -s 4420 -n {SUBNQN} -t tcp --hdr-digest");
    let words: Vec<_> = way.split(' ').collect();
    let device = told(&machine.run("attach", &words));
    let device = device.trim();
    daemon.kill();
    let step = format!("mend: capstan doctor {way}; where other options lead to the target: ");
    let until = Instant::now() + Duration::from_secs(20);
    let said = loop {
        let output = machine.run("doctor", &[]);
        let said = String::from_utf8(output.stdout).unwrap();
        if said.contains("mend: capstan doctor") {
            break said;
        }
        assert!(Instant::now() < until, "{said}");
    };
    assert!(said.contains(&step), "{said}");
    assert!(said.contains(&format!("capstan detach {device}")), "{said}");
    // The target is back, and speaks the other transport.
    let args = ["--export", "ram:16MiB", "--lba", "4096", "--listen"];
    let listen = at.to_string();
    let rest = [&*listen, "--nqn", SUBNQN, "--transports", "rdma"];
    let daemon = Daemon::serve(&[&args[..], &rest[..]].concat());
    let error = complaint(&machine.run("doctor", &words));
    assert!(error.contains("checks failed"), "{error}");
    told(&machine.run("detach", &["--force", device]));
    assert!(daemon.stop().success());
}
