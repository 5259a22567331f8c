//! What the two command lines promise, with the real programs: access, addresses, identity, limits,
//! the log, and JSON from every command.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use capstan_tests::program::{CLAIMS, Daemon, complaint, own_address, program, told, utf8};
use capstan_tests::target;
use serde_json::Value;

const SUBNQN: &str = "nqn.2026-11.org.example:volume";
const FRIEND: &str = "nqn.2014-08.org.nvmexpress:uuid:0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1";
const STRANGER: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";

fn target(args: &[&str]) -> Output {
    let mut target = Command::new(program("capstan-target"));
    target.args(args).stdin(Stdio::null());
    target.output().unwrap()
}

/// `capstan COMMAND ARGS` on the target at `at`.
fn capstan(command: &str, at: SocketAddr, args: &[&str]) -> Output {
    let claims = tempfile::tempdir().unwrap();
    let mut capstan = Command::new(program("capstan"));
    capstan
        .env(CLAIMS, claims.path())
        .args([command, "-t", "rdma", "-a", &at.ip().to_string()])
        .args(["-s", &at.port().to_string(), "--provider", "iwarp"])
        .args(args)
        .stdin(Stdio::null());
    capstan.output().unwrap()
}

fn capstan_json(command: &str, at: SocketAddr, args: &[&str]) -> Value {
    let args = [args, &["--output", "json"]].concat();
    let text = told(&capstan(command, at, &args));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command}: {error}: {text}"))
}

/// A folder with a configuration file.
fn config(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.toml");
    fs::write(&path, text).unwrap();
    (dir, path)
}

fn has_ipv6() -> bool {
    let found = std::net::TcpListener::bind("[::1]:0").is_ok();
    if !found {
        eprintln!("SKIPPED the half of the test about IPv6: there is no ::1");
    }
    found
}

/// Words that a terminal would obey, or that would begin a line of their own.
#[test]
fn what_cannot_be_shown_of_a_wrong_word_is_told_escaped() {
    let word = "--\u{1b}[31mred\nline";
    let value = &word[2..];
    let cases: [(&str, &[&str]); 9] = [
        ("capstan", &[value]),
        ("capstan", &["id-ctrl", word]),
        ("capstan", &["id-ctrl", "-a", "::1", value]),
        ("capstan", &["id-ctrl", "-a", "::1", "-t", value]),
        ("capstan", &["read", "-a", "::1", "-z", value]),
        ("capstan-target", &[value]),
        ("capstan-target", &["check", word]),
        ("capstan-target", &["doctor", "--output", value]),
        (
            "capstan-target",
            &["serve", "--export", "ram:1MiB", "--listen", value],
        ),
    ];
    for (name, args) in cases {
        let mut command = Command::new(program(name));
        let error = complaint(&command.args(args).output().unwrap());
        assert!(!error.contains('\u{1b}'), "{name} {args:?}: {error}");
        let shown = error.contains("\\u{1b}[31mred\\nline");
        assert!(shown, "{name} {args:?}: {error}");
    }
}

#[test]
fn an_export_to_any_host_must_be_asked_for() {
    let serve = ["serve", "--export", "ram:16MiB", "--listen"];
    let with = |more: &[&str]| target(&[&serve, more].concat());
    for address in ["192.0.2.1", "0.0.0.0:0", "[::]:0"] {
        let error = complaint(&with(&[address]));
        assert!(error.contains("--allow-any-host"), "{error}");
    }
    // With it, the address is what is wrong.
    let error = complaint(&with(&["192.0.2.1", "--allow-any-host"]));
    assert!(error.contains("cannot listen at 192.0.2.1:4420"), "{error}");
    // Parts that did not start need not be told to end.
    assert!(!error.contains("ERROR"), "{error}");
    let (_dir, path) = config(
        "[[listener]]\naddress = \"127.0.0.1\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.example:volume\"\n\
         [[subsystem.namespace]]\nram = \"16MiB\"\n",
    );
    let error = complaint(&target(&["check", "--config", utf8(&path)]));
    assert!(error.contains("allow_any_host = true"), "{error}");
}

#[test]
fn an_error_is_told_once() {
    let error = complaint(&target(&["check", "--config", "/no/such/file"]));
    assert_eq!(error.matches("No such file").count(), 1, "{error}");
    let at = own_address();
    let args = ["-n", SUBNQN, "--rw", "read"];
    let error = complaint(&capstan("bench", at, &args));
    assert_eq!(
        error
            .matches("refused the connection: nothing listens")
            .count(),
        1,
        "{error}"
    );
}

/// The addresses and ports of the discovery log, which are the same for each transport.
fn discovered(at: SocketAddr) -> Vec<(String, String)> {
    let log = capstan_json("discover", at, &[]);
    let records = log["records"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let [rdma, tcp] = ["rdma", "tcp"].map(|transport| {
        let of_volume = records.iter().filter(|r| r["subnqn"] == SUBNQN);
        of_volume
            .filter(|r| r["trtype"] == transport)
            .map(|r| (text(&r["traddr"]), text(&r["trsvcid"])))
            .collect::<Vec<_>>()
    });
    assert_eq!(rdma, tcp, "{log:#}");
    rdma
}

#[test]
fn discovery_tells_addresses_that_lead_to_the_target() {
    let fixed = own_address();
    let ipv6 = has_ipv6();
    let second = if ipv6 { "::" } else { "0.0.0.0" };
    let (_dir, path) = config(&format!(
        "[[listener]]\naddress = \"0.0.0.0\"\nport = 0\n\
         [[listener]]\naddress = \"{second}\"\nport = 0\n\
         [[listener]]\naddress = \"{}\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"16MiB\"\n",
        fixed.ip()
    ));
    let daemon = Daemon::serve(&["--config", utf8(&path)]);
    let log = daemon.log();
    let (_, listening) = log.last().unwrap().split_once("listening at ").unwrap();
    let bound: Vec<SocketAddr> = listening
        .split(", ")
        .map(|at| at.parse().unwrap())
        .collect();
    let reached = |ip: &str| SocketAddr::new(ip.parse().unwrap(), bound[0].port());
    // The address the host came by, with the ports the system chose; 0.0.0.0 leads nowhere.
    let here = reached("127.3.2.1");
    for (traddr, trsvcid) in discovered(here) {
        let found = SocketAddr::new(traddr.parse().unwrap(), trsvcid.parse().unwrap());
        let expected = found == fixed || found.ip() == here.ip();
        assert!(expected, "{found} from {here}");
        told(&capstan("id-ctrl", found, &["-n", SUBNQN]));
    }
    assert_eq!(discovered(here).len(), if ipv6 { 2 } else { 3 });
    if ipv6 {
        let here = SocketAddr::new("::1".parse().unwrap(), bound[1].port());
        let mut found = discovered(here);
        found.sort();
        let own = |at: SocketAddr| (at.ip().to_string(), at.port().to_string());
        let mut expected = vec![own(here), own(fixed)];
        expected.sort();
        assert_eq!(found, expected);
    }
    assert!(daemon.stop().success());
}

/// As libnvme prints them (`nvme discover -o json`).
#[test]
fn discovery_has_the_words_of_nvme_cli() {
    let at = own_address();
    let daemon = Daemon::start("ram:1MiB", 4096, at);
    let log = capstan_json("discover", at, &[]);
    let records = |subtype: &str, subnqn: &str, eflags: &str| {
        let record = |trtype: &str, tsas: &[(&str, Value)]| {
            let mut record = serde_json::json!({
                "trtype": trtype,
                "adrfam": "ipv4",
                "subtype": subtype,
                "treq": "not required, sq flow control disable supported",
                "portid": 1,
                "trsvcid": at.port().to_string(),
                "subnqn": subnqn,
                "traddr": at.ip().to_string(),
                "eflags": eflags,
            });
            for (name, value) in tsas {
                record[name] = value.clone();
            }
            record
        };
        let rdma = [
            ("rdma_prtype", "iwarp".into()),
            ("rdma_qptype", "connected".into()),
            ("rdma_cms", "rdma-cm".into()),
            ("rdma_pkey", 0.into()),
        ];
        [
            record("rdma", &rdma),
            record("tcp", &[("sectype", "none".into())]),
        ]
    };
    let own = "nqn.2014-08.org.nvmexpress.discovery";
    let expected = [
        records(
            "current discovery subsystem",
            own,
            "explicit discovery connections",
        ),
        records("nvme subsystem", target::SUBNQN, "none"),
    ];
    let found = log["records"].as_array().unwrap();
    assert_eq!(found, &expected.concat(), "{log:#}");
    assert!(daemon.stop().success());
}

/// As long as the data does: what a host finds anew under an old identity it takes for the same
/// volume.
#[test]
fn identity_survives_a_restart_where_the_data_does() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let at = own_address();
    let identity = |export: &str| {
        let listen = at.to_string();
        let daemon = Daemon::serve(&["--export", export, "--listen", &listen]);
        let controller = capstan_json("id-ctrl", at, &[]);
        let namespace = capstan_json("id-ns", at, &[]);
        assert!(daemon.stop().success());
        let fields = ["subnqn", "sn", "mn"].map(|name| controller[name].clone());
        [
            &fields[..],
            &["uuid", "nguid"].map(|name| namespace[name].clone()),
        ]
        .concat()
    };
    let mut seen = Vec::new();
    for (export, lasts) in [
        (utf8(&image), true),
        ("ram:16MiB", false),
        ("null:16MiB", false),
    ] {
        let [first, second] = [(), ()].map(|()| identity(export));
        assert!(first.iter().all(Value::is_string), "{first:?}");
        let [controller, namespace] = [0..3, 3..5];
        assert_eq!(first[controller.clone()], second[controller]);
        assert_eq!(
            first[namespace.clone()] == second[namespace],
            lasts,
            "{export}"
        );
        assert!(!seen.contains(&first[0]), "two exports have one NQN");
        seen.push(first[0].clone());
    }
}

#[test]
fn over_the_budget_a_connect_is_refused_aloud_on_both_sides() {
    let at = own_address();
    let (_dir, path) = config(&format!(
        "[target]\nmemory_budget = \"4MiB\"\nreactors = 1\n\
         [[listener]]\naddress = \"{}\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnull = \"16MiB\"\n",
        at.ip()
    ));
    let daemon = Daemon::serve(&["--config", utf8(&path)]);
    let bench = ["-n", SUBNQN, "--rw", "randread", "--runtime", "1"];
    let many = [&bench[..], &["--nr-io-queues", "8"]].concat();
    let error = complaint(&capstan("bench", at, &many));
    assert!(error.contains("No Resources"), "{error}");
    assert!(error.contains("--nr-io-queues"), "{error}");
    daemon.wait_for_log(&["WARN refused a connection", "memory_budget", "peer="]);
    // Who fits is served, now that the others are gone.
    told(&capstan("bench", at, &bench));
    assert!(daemon.stop().success());
}

/// Also one that is started by hand, where nobody makes the folder.
#[test]
fn a_target_without_a_state_folder_warns_of_what_it_does_not_remember() {
    if Path::new("/var/lib/capstan").exists() {
        eprintln!("SKIPPED: this machine has /var/lib/capstan");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let at = own_address().to_string();
    let args = [
        "--provider",
        "iwarp",
        "--export",
        utf8(&image),
        "--listen",
        &at,
    ];
    let daemon = Daemon::serve_under(&["env", "-u", "STATE_DIRECTORY"], &args);
    daemon.wait_for_log(&[
        "WARN",
        "/var/lib/capstan does not exist",
        "the LBA size of each file",
        "install -d",
    ]);
    let log = daemon.log();
    let of_folder = log.iter().filter(|line| line.contains("/var/lib/capstan"));
    assert_eq!(of_folder.count(), 1, "{log:#?}");
    assert!(daemon.stop().success());
}

#[test]
fn the_log_follows_a_host_from_connect_to_disconnect() {
    let at = own_address();
    let (_dir, path) = config(&format!(
        "[[listener]]\naddress = \"{}\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [\"{FRIEND}\"]\n\
         [[subsystem.namespace]]\nram = \"16MiB\"\n",
        at.ip()
    ));
    let daemon = Daemon::serve(&["--config", utf8(&path)]);
    told(&capstan("id-ctrl", at, &["-n", SUBNQN, "-q", FRIEND]));
    daemon.wait_for_log(&["host connected", FRIEND, SUBNQN, "peer=", "cntlid="]);
    daemon.wait_for_log(&["disconnected: closed by the peer", FRIEND, SUBNQN, "qid=0"]);
    let error = complaint(&capstan("id-ctrl", at, &["-n", SUBNQN, "-q", STRANGER]));
    assert!(error.contains("Connect Invalid Host"), "{error}");
    daemon.wait_for_log(&["refused a Connect", STRANGER, "allowed_hosts", "peer="]);
    let log = capstan_json("discover", at, &["-q", STRANGER]);
    assert!(!log.to_string().contains(SUBNQN), "{log}");
    assert!(daemon.stop().success());
}

/// Tutorials and test suites name hosts freely.
#[test]
fn a_host_whose_name_is_not_of_the_form_is_taken_with_a_warning_that_says_it() {
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    told(&capstan(
        "id-ctrl",
        at,
        &["-n", target::SUBNQN, "-q", "testhost"],
    ));
    daemon.wait_for_log(&["WARN", "`testhost`", "nqn.yyyy-mm.reverse.domain:string"]);
    told(&capstan(
        "id-ctrl",
        at,
        &["-n", target::SUBNQN, "-q", FRIEND],
    ));
    daemon.wait_for_log(&["host connected", FRIEND]);
    let log = daemon.log();
    let of_names = log.iter().filter(|line| line.contains("calls itself"));
    assert_eq!(of_names.count(), 1, "{log:#?}");
    assert!(daemon.stop().success());
}

#[test]
fn every_command_that_talks_to_a_target_speaks_json() {
    let at = own_address();
    let listen = at.to_string();
    let daemon = Daemon::serve(&["--export", "ram:16MiB", "--listen", &listen]);
    assert_eq!(capstan_json("id-ctrl", at, &[])["cntrltype"], 1);
    assert_eq!(capstan_json("id-ns", at, &[])["nsze"], 4096);
    assert!(capstan_json("list-ns", at, &[]).to_string().contains('1'));
    assert_eq!(
        capstan_json("error-log", at, &[])["errors"],
        Value::from([(); 0])
    );
    let dir = tempfile::tempdir().unwrap();
    let (out, back) = (dir.path().join("out"), dir.path().join("back"));
    fs::write(&out, [7; 8192]).unwrap();
    let written = capstan_json("write", at, &["--start-block", "3", "-d", utf8(&out)]);
    assert_eq!(
        (&written["blocks"], &written["bytes"]),
        (&2.into(), &8192.into())
    );
    assert_eq!(capstan_json("flush", at, &[])["flushed"], true);
    let range = ["--start-block", "3", "-z", "8k", "-d", utf8(&back)];
    assert_eq!(capstan_json("read", at, &range)["bytes"], 8192);
    assert_eq!(fs::read(&back).unwrap(), [7; 8192]);
    let smart = capstan_json("smart-log", at, &[]);
    assert_eq!(smart["host_write_commands"], 1);
    let effects = capstan_json("effects-log", at, &[]);
    let write = |command: &&Value| command["set"] == "io" && command["command"] == "Write";
    let write = effects["commands"].as_array().unwrap().iter().find(write);
    assert_eq!(write.unwrap()["effects"], 3, "{effects}");
    let ana = capstan_json("ana-log", at, &[]);
    let group = serde_json::json!({ "group": 1, "nsids": [1], "state": 1 });
    let shown = &ana["groups"][0];
    for key in ["group", "nsids", "state"] {
        assert_eq!(shown[key], group[key], "{ana}");
    }
    let groups = capstan_json("ana-log", at, &["--groups"]);
    assert_eq!(groups["groups"][0]["nsids"], serde_json::json!([]));
    let kato = capstan_json("get-feature", at, &["-f", "0x0f", "-k", "9"]);
    assert_eq!(kato["kato"], 9000);
    let identify = ["--opcode", "6", "--cdw10", "1", "--data-len", "4096"];
    let reply = capstan_json("admin-passthru", at, &identify);
    assert_eq!(reply["data"].as_array().unwrap().len(), 4096);
    let error = complaint(&capstan("admin-passthru", at, &["--opcode", "0xc5"]));
    assert!(error.contains("Invalid Command Opcode"), "{error}");
    io_passthru(at, &out);
    let words = [
        "--rw",
        "randrw",
        "--bs",
        "4k",
        "--iodepth",
        "4",
        "--numjobs",
        "2",
    ];
    let report = capstan_json("bench", at, &[&words[..], &["--runtime", "1"]].concat());
    assert!(report["read"]["iops"].as_f64().unwrap() > 0.0, "{report}");
    let verify = [
        "--rw",
        "randwrite",
        "--bs",
        "4k",
        "--size",
        "1m",
        "--verify",
    ];
    let report = capstan_json("bench", at, &verify);
    assert_eq!(report["verify"]["blocks"], 256);
    assert_eq!(report["verify"]["wrong"], 0);
    let absent = ["-n", "nqn.2026-11.org.example:absent"];
    let known = daemon.log().len();
    assert!(!capstan("id-ctrl", at, &absent).status.success());
    daemon.wait_for_log_after(known, &["disconnected: closed by the peer"]);
    // Every one of these has ended in order, also where its Connect was refused.
    let log = daemon.log();
    let resets = log.iter().filter(|line| line.contains("reset by the peer"));
    assert_eq!(resets.count(), 0, "{log:#?}");
    assert!(daemon.stop().success());
}

/// I/O commands sent as they are, to a namespace of 4096 LBAs whose LBAs 3 and 4 hold the bytes of
/// `out`.
fn io_passthru(at: SocketAddr, out: &Path) {
    let ask = |args: &str| capstan_json("io-passthru", at, &args.split(' ').collect::<Vec<_>>());
    let fail = |args: &str| {
        complaint(&capstan(
            "io-passthru",
            at,
            &args.split(' ').collect::<Vec<_>>(),
        ))
    };
    let read = ask("--opcode 2 --cdw10 3 --cdw12 1 --data-len 8192");
    assert_eq!(read["result"], 0);
    assert_eq!(
        read["data"].as_array().unwrap(),
        &vec![Value::from(7); 8192]
    );
    let compare = format!("--opcode 5 --cdw12 1 --input-file {}", utf8(out));
    assert_eq!(
        ask(&format!("{compare} --cdw10 3"))["data"],
        Value::from([(); 0])
    );
    for (args, expected) in [
        (
            &*format!("{compare} --cdw10 2"),
            "opcode 0x05: Compare: Compare Failure (SCT 2h, SC 85h",
        ),
        (
            &*format!("{compare} --cdw10 4095"),
            "Compare: LBA Out of Range (SCT 0h, SC 80h",
        ),
        (
            "--opcode 2 --cdw10 4096 --data-len 4096",
            "Read: LBA Out of Range (SCT 0h, SC 80h",
        ),
        (
            "--opcode 2 --cdw12 1 --data-len 4096",
            "Read: Data SGL Length Invalid (SCT 0h, SC 0Fh",
        ),
        (
            "--opcode 2 -N 9 --data-len 4096",
            "Read: Invalid Namespace or Format (SCT 0h, SC 0Bh",
        ),
        (
            "--opcode 0x7c",
            "I/O command: Invalid Command Opcode (SCT 0h, SC 01h",
        ),
        (
            "--opcode 1 --data-len 4096",
            "opcode 0x01 has data to the controller",
        ),
        (
            "--opcode 2 --data-len 1048577",
            "'1048577' for '--data-len <BYTES>': expected 0 to 1048576",
        ),
    ] {
        let error = fail(args);
        assert!(error.contains(expected), "{args}: {error}");
    }
}

/// groff finds nothing wrong with a page.
fn formats(page: &Path) {
    let args = ["-k", "-man", "-Tutf8", "-ww", "-z"];
    match Command::new("groff").args(args).arg(page).output() {
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && told.is_empty(), "{told}");
        }
        Err(error) => eprintln!("SKIPPED: there is no groff: {error}"),
    }
}

#[test]
fn each_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    for (name, commands) in [
        ("capstan", &["attach", "bench", "write"][..]),
        ("capstan-target", &["serve", "check", "doctor", "import"]),
    ] {
        let man = |to: &Path| {
            let mut command = Command::new(program(name));
            command.args(["man", "--to", utf8(to)]).output().unwrap()
        };
        told(&man(folder.path()));
        let error = complaint(&man(&folder.path().join("absent")));
        assert!(
            error.contains("absent: expected a folder") && error.contains("`mkdir --parents "),
            "{error}"
        );
        let page = |of: &str| fs::read_to_string(folder.path().join(of)).unwrap();
        let of_program = page(&format!("{name}.1"));
        for section in [".TH", ".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH FILES"] {
            let found = of_program.matches(section).count();
            assert_eq!(found, 1, "{name} {section}: {of_program}");
        }
        formats(&folder.path().join(format!("{name}.1")));
        for command in commands {
            let page = page(&format!("{name}-{command}.1"));
            assert!(page.contains(".SH OPTIONS"), "{command}: {page}");
        }
    }
    for page in [
        "mount.capstan.8",
        "capstan-volumes.toml.5",
        "capstan-target.toml.5",
    ] {
        assert!(folder.path().join(page).exists(), "{page}");
    }
    // Beside a folder for section 1 they are in those of theirs.
    let sections = tempfile::tempdir().unwrap();
    let first = sections.path().join("man1");
    fs::create_dir(&first).unwrap();
    let mut man = Command::new(program("capstan"));
    told(&man.args(["man", "--to", utf8(&first)]).output().unwrap());
    assert!(sections.path().join("man8/mount.capstan.8").exists());
    assert!(!first.join("mount.capstan.8").exists());
    told(&target(&["man", "--to", utf8(&first)]));
    assert!(sections.path().join("man5/capstan-target.toml.5").exists());
    assert!(!first.join("capstan-target.toml.5").exists());
    // What the programs start themselves is not typed by people.
    for hidden in [
        "capstan-serve-fuse.1",
        "capstan-serve-volume.1",
        "capstan-target-open.1",
    ] {
        assert!(!folder.path().join(hidden).exists(), "{hidden}");
    }
}
