//! What `capstan` connects by where nobody names a transport, what it says of that, and what
//! `capstan-target` says of what its listeners serve.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::AssociationStatus;
use capstan_initiator::{Controller, Transport};
use capstan_nvme_proto::command::{AdminCommand, Identify};
use capstan_nvme_proto::identify::{Cns, IdentifyController, SglSupport};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::tcp::pdu::IcResp;
use capstan_tests::host::options;
use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, own_address, program, signal, told, utf8,
};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use zerocopy::IntoBytes as _;

const HOST: [&str; 4] = [
    "-q",
    "nqn.2026-11.org.example:chooser",
    "-I",
    "d9eb9ee5-4a3e-4a3e-9a0f-0123456789ab",
];

fn serve(at: SocketAddr, transports: &str) -> Daemon {
    let at = at.to_string();
    Daemon::serve(&[
        "--export",
        "ram:16MiB",
        "--nqn",
        SUBNQN,
        "--listen",
        &at,
        "--transports",
        transports,
    ])
}

/// `capstan WORDS` on the target at `at`, without a name of a transport.
fn capstan(at: SocketAddr, words: &[&str]) -> Output {
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let mut capstan = Command::new(program("capstan"));
    let (&command, more) = words.split_first().expect("a command");
    capstan.args([command, "-a", &*ip, "-s", &*port]);
    capstan.args(HOST).args(more).output().expect("it starts")
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Commands with a subsystem, and without one, which ask the discovery service first.
#[test]
fn what_was_taken_is_told_in_one_line_with_what_was_tried_before() {
    let at = own_address();
    let target = serve(at, "tcp");
    let begin = format!(
        "connected to {} port {} over NVMe/TCP, which `-t tcp` takes at once; tried before: RDMA (iwarp): ",
        at.ip(),
        at.port()
    );
    let bench = [
        "bench",
        "--rw",
        "randread",
        "--runtime",
        "1",
        "--numjobs",
        "3",
    ];
    let with_nqn = [&bench[..], &["-n", SUBNQN]].concat();
    let commands: [&[&str]; 7] = [
        &["discover"],
        &["id-ctrl"],
        &["id-ctrl", "-n", SUBNQN],
        &["list-ns"],
        &["read", "-z", "4096", "-d", "/dev/null"],
        &bench,
        &with_nqn,
    ];
    for words in commands {
        let began = Instant::now();
        let output = capstan(at, words);
        let stderr = said(&output);
        assert!(output.status.success(), "{words:?}: {stderr}");
        assert_eq!(stderr.matches("connected to").count(), 1, "{stderr}");
        let line = stderr.lines().find(|line| line.starts_with(&begin));
        assert!(line.is_some(), "{words:?}: {stderr}");
        // What does not speak RDMA refuses it at once.
        assert!(began.elapsed() < Duration::from_secs(5), "{words:?}");
    }
    // With -v it is a line of the log, and that only.
    let output = capstan(at, &["id-ctrl", "-v"]);
    assert_eq!(said(&output).matches("takes at once").count(), 1);
    // What is asked for is taken, and nothing else.
    let output = capstan(at, &["id-ctrl", "-t", "tcp"]);
    told(&output);
    assert_eq!(said(&output), "");
    for words in [["-t", "rdma"], ["--provider", "iwarp"]] {
        let error = complaint(&capstan(at, &[&["id-ctrl"][..], &words].concat()));
        assert!(
            !error.contains("no transport reaches"),
            "{words:?}: {error}"
        );
    }
    assert!(target.stop().success());
}

/// By which transport a host is there, and one wording for its end in order.
#[test]
fn the_log_says_by_which_transport_a_host_has_come() {
    let at = own_address();
    let target = serve(at, "rdma,tcp");
    let both: &[&str] = &["-t", "tcp", "--hdr-digest", "--data-digest"];
    for (words, told) in [
        (
            &["-t", "rdma", "--provider", "iwarp"][..],
            "NVMe/RDMA (iwarp, shared memory)",
        ),
        (&["-t", "tcp"], "NVMe/TCP"),
        (&["-t", "tcp", "--data-digest"], "NVMe/TCP, data digests"),
        (both, "NVMe/TCP, header and data digests"),
    ] {
        let known = target.log().len();
        let read = ["read", "-n", SUBNQN, "-z", "4096", "-d", "/dev/null"];
        assert!(capstan(at, &[&read[..], words].concat()).status.success());
        let field = format!("transport=\"{told}\"");
        for line in ["host connected", "queue connected"] {
            target.wait_for_log_after(known, &[line, &field]);
        }
        target.wait_for_log_after(known, &["disconnected: closed by the peer", "qid=0"]);
    }
    assert!(target.stop().success());
}

/// Neither of limits nor of the other side's log, but of the transport.
#[test]
fn a_listener_of_the_other_transport_says_so_on_both_sides() {
    for (serves, asked, words, in_log) in [
        (
            "tcp",
            "rdma",
            "NVMe/TCP only: try `-t tcp`",
            "speaks NVMe/TCP only",
        ),
        (
            "rdma",
            "tcp",
            "NVMe/RDMA only: try `-t rdma`",
            "by NVMe/TCP, which the listener at ",
        ),
    ] {
        let at = own_address();
        let target = serve(at, serves);
        let error = complaint(&capstan(at, &["id-ctrl", "-n", SUBNQN, "-t", asked]));
        let words = format!("this listener may speak {words}");
        assert_eq!(error.matches(&words).count(), 1, "{error}");
        for wrong in ["limit", "single parameter"] {
            assert!(!error.contains(wrong), "{error}");
        }
        target.wait_for_log(&[
            "WARN",
            in_log,
            &format!("listener at {at}"),
            "look at its transports",
        ]);
        // What is said, done.
        told(&capstan(at, &["id-ctrl", "-n", SUBNQN, "-t", serves]));
        if serves == "tcp" {
            for command in ["id-ctrl", "doctor"] {
                let output = capstan(at, &[command, "-n", SUBNQN]);
                let all = [&output.stdout[..], &output.stderr[..]].concat();
                let all = String::from_utf8(all).expect("text");
                assert!(all.contains("tried before: RDMA (iwarp)"), "{all}");
                // It has been taken.
                assert!(!all.contains(&words), "{command}: {all}");
            }
        }
        assert!(target.stop().success());
    }
}

#[test]
fn the_first_is_told_with_why_and_a_digest_asks_for_tcp() {
    let at = own_address();
    let target = serve(at, "rdma,tcp");
    let begin = format!(
        "connected to {} port {} over RDMA (iwarp), the first that can be tried: ",
        at.ip(),
        at.port()
    );
    let commands: [&[&str]; 4] = [
        &["discover"],
        &["id-ctrl"],
        &["id-ctrl", "-n", SUBNQN],
        &["read", "-z", "4096", "-d", "/dev/null"],
    ];
    for words in commands {
        let output = capstan(at, words);
        told(&output);
        let said = said(&output);
        // With why no RDMA device is used.
        let why = said.trim_end().strip_prefix(&begin);
        assert!(why.is_some_and(|why| !why.is_empty()), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
    }
    // A program has no use for it.
    let output = capstan(at, &["id-ctrl", "-o", "json"]);
    told(&output);
    assert_eq!(said(&output), "");
    let log = said(&capstan(at, &["id-ctrl", "-v"]));
    assert_eq!(log.matches(&begin).count(), 1, "{log}");
    let log = said(&capstan(at, &["id-ctrl", "-v", "--hdr-digest"]));
    let line = "connected over NVMe/TCP, header digests destination=";
    // To the discovery service, and to the subsystem.
    assert_eq!(log.matches(line).count(), 2, "{log}");
    let log = said(&capstan(at, &["id-ctrl", "-v", "-n", SUBNQN]));
    assert_eq!(
        log.matches("connected over RDMA (iwarp, shared memory)")
            .count(),
        1,
        "{log}"
    );
    assert!(target.stop().success());
}

/// With what is in use, not what was asked for.
#[test]
fn bench_tells_what_it_has_measured() {
    let at = own_address();
    let target = serve(at, "rdma,tcp");
    let bench = ["bench", "--size", "1M", "-n", SUBNQN];
    for (words, line, fields) in [
        (
            &["-t", "tcp", "--data-digest"][..],
            format!("{SUBNQN} namespace 1 over NVMe/TCP, data digests\n"),
            json!(["tcp", null, null, null, false, true]),
        ),
        (
            &["--provider", "iwarp"],
            format!("{SUBNQN} namespace 1 over RDMA (iwarp, shared memory)\n"),
            json!(["rdma", "iwarp", "iwarp0", true, null, null]),
        ),
    ] {
        let text = told(&capstan(at, &[&bench[..], words].concat()));
        assert!(text.contains(&line), "{text}");
        let output = capstan(at, &[&bench[..], words, &["-o", "json"]].concat());
        let told: Value = serde_json::from_str(&told(&output)).expect("JSON");
        let keys = [
            "transport",
            "provider",
            "rdma_device",
            "shared_memory",
            "header_digest",
            "data_digest",
        ];
        let seen: Vec<_> = keys.iter().map(|key| told[*key].clone()).collect();
        assert_eq!(json!(seen), fields, "{told}");
    }
    assert!(target.stop().success());
}

/// The target comes back and speaks the other transport only: what is tried, why that fails, and
/// what would do, each once.
#[test]
fn a_volume_that_cannot_come_back_says_why_and_what_would_do() {
    for (had, has, over, hint) in [
        ("tcp", "rdma", "NVMe/TCP", "NVMe/RDMA only: try `-t rdma`"),
        (
            "rdma",
            "tcp",
            "RDMA (iwarp, shared memory)",
            "NVMe/TCP only: try `-t tcp`",
        ),
    ] {
        let at = own_address();
        let target = serve(at, had);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ip, port) = (at.ip().to_string(), at.port().to_string());
        let socket = folder.path().join("socket");
        let log = folder.path().join("log");
        let mut serving = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(program("capstan"))
            .env(CLAIMS, folder.path())
            .args(["serve-nbd", "-a", &ip, "-s", &port, "-n", SUBNQN])
            .args(["-t", had, "--socket", utf8(&socket)])
            .args(if had == "rdma" {
                &["--provider", "iwarp"][..]
            } else {
                &[]
            })
            .args(HOST)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("it starts");
        // It says where, once it is connected.
        let mut uri = String::new();
        let stdout = serving.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut uri).expect("a line");
        assert!(uri.starts_with("nbd+unix:"), "{uri}");
        assert!(target.stop().success());
        let target = serve(at, has);
        let said = || fs::read_to_string(&log).expect("a file");
        wait_until("it says so", || said().contains(hint));
        let said = said();
        let lines: Vec<_> = said.lines().filter(|line| line.contains(hint)).collect();
        let [line] = &lines[..] else {
            panic!("{said}");
        };
        assert!(line.contains(" to connect again to "), "{line}");
        assert!(
            line.contains(&format!("{at} over {over} has failed: ")),
            "{line}"
        );
        signal(serving.id(), Signal::SIGTERM);
        serving.wait().expect("it ends");
        assert!(target.stop().success());
    }
}

/// It takes the connection, agrees on NVMe/TCP, and says nothing more.
#[test]
fn a_target_that_stalls_behind_icresp_has_the_time_of_connect_timeout() {
    let listener = TcpListener::bind((own_address().ip(), 0)).expect("a port");
    let at = listener.local_addr().expect("an address");
    // Ends with the test's process.
    thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 128];
            if stream.read_exact(&mut request).is_ok() {
                let response = IcResp::new(0, 0, 128 << 10);
                let _ = stream.write_all(response.as_bytes());
            }
            held.push(stream);
        }
    });
    let began = Instant::now();
    let words = [
        "id-ctrl",
        "-n",
        SUBNQN,
        "-t",
        "tcp",
        "--connect-timeout",
        "1",
    ];
    let error = complaint(&capstan(at, &words));
    assert!(began.elapsed() < Duration::from_secs(10), "{error}");
    assert!(
        error.contains("Connect of the Admin Queue did not finish within 1000 ms"),
        "{error}"
    );
    assert!(
        error.contains("give it longer (--connect-timeout)"),
        "{error}"
    );
}

#[test]
fn each_transport_that_was_tried_is_named() {
    let at = own_address();
    let error = complaint(&capstan(at, &["id-ctrl", "-n", SUBNQN]));
    for transport in ["RDMA (iwarp): queue 0: ", "NVMe/TCP: queue 0: "] {
        assert_eq!(error.matches(transport).count(), 1, "{error}");
    }
    // A port that takes connections and says nothing.
    let mute = TcpListener::bind(at).expect("the port is free");
    let began = Instant::now();
    let error = complaint(&capstan(at, &["id-ctrl", "-n", SUBNQN]));
    assert!(began.elapsed() < Duration::from_secs(12), "{error}");
    for transport in ["RDMA (iwarp): queue 0: ", "NVMe/TCP: queue 0: "] {
        assert_eq!(error.matches(transport).count(), 1, "{error}");
    }
    drop(mute);
}

#[test]
fn doctor_tells_what_was_taken_and_goes_on_with_it() {
    let at = own_address();
    let target = serve(at, "tcp");
    let output = capstan(at, &["doctor", "-n", SUBNQN]);
    let report = String::from_utf8(output.stdout.clone()).expect("text");
    assert!(output.status.success(), "{report}{}", said(&output));
    for words in [
        "over NVMe/TCP, which `-t tcp` takes at once",
        "TCP connect",
        "C2HData",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    // A check is a line, and what was expected of it another one.
    let is_told = |name: &str| {
        report
            .lines()
            .any(|line| line.starts_with(&format!("ok       {name}  ")))
    };
    assert!(is_told("C2HData") && is_told("latency"), "{report}");
    assert!(target.stop().success());
    let output = capstan(at, &["doctor", "-n", SUBNQN]);
    assert_eq!(output.status.code(), Some(1));
    let report = String::from_utf8(output.stdout).expect("text");
    for words in ["connect, RDMA (iwarp)", "connect, NVMe/TCP"] {
        assert!(report.contains(words), "{words}: {report}");
    }
}

fn library_target(at: SocketAddr, transports: &str) -> TestTarget {
    TestTarget::start(&format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
         [[listener]]\naddress = \"{}\"\nport = {}\ntransports = {transports}\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"16MiB\"\nlba = 4096\n",
        at.ip(),
        at.port()
    ))
}

/// Whether a controller says that its data goes as it does over NVMe/TCP.
fn is_over_tcp(controller: &Controller) -> bool {
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let sqe = identify.encode(0, Sgl::EMPTY);
    let data = capstan_initiator::CommandData::FromController(4096);
    let reply = controller.admin_blocking(sqe, data).expect("Identify");
    let data = IdentifyController::from_data(&reply.data).expect("4096 bytes");
    SglSupport::from_bits_retain(data.sgls.get()).contains(SglSupport::TRANSPORT)
}

/// A target that speaks RDMA as well when it comes back is reached over what was taken before.
#[test]
fn a_reconnect_stays_with_the_transport_that_was_taken() {
    let at = own_address();
    let target = library_target(at, "[\"tcp\"]");
    let mut options = options(at, 1);
    options.transport = Transport::Auto;
    options.reconnect_delay = Duration::from_millis(200);
    let controller = Controller::connect(options).expect("connects");
    let taken = controller
        .snapshot_blocking()
        .taken
        .expect("it was to be found");
    assert_eq!(taken.transport(), Transport::Tcp);
    assert!(is_over_tcp(&controller));
    target.stop();
    let target = library_target(at, "[\"rdma\", \"tcp\"]");
    wait_until("it has reconnected", || {
        let snapshot = controller.snapshot_blocking();
        snapshot.counters.losses > 0 && matches!(snapshot.status, AssociationStatus::Live)
    });
    assert!(is_over_tcp(&controller), "it has turned to RDMA");
    controller.close().into_result().expect("nothing is lost");
    target.stop();
}

/// The process behind a disk takes it once, for ever; the command that attaches it says so.
#[test]
fn a_disk_is_on_record_with_its_transport() {
    if !has_disks("a_disk_is_on_record_with_its_transport", &[]) {
        return;
    }
    let at = own_address();
    let target = serve(at, "tcp");
    let machine = Machine::new(at);
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    for more in [&["-n", SUBNQN][..], &[]] {
        let args = [&["-a", &ip, "-s", &port][..], more].concat();
        let output = machine.run("attach", &args);
        let device = told(&output);
        let stderr = said(&output);
        assert_eq!(
            stderr.matches("over NVMe/TCP, which").count(),
            1,
            "{stderr}"
        );
        let list = machine.list();
        assert_eq!(list[0]["transport"], "tcp");
        assert_eq!(list[0]["header_digest"], false);
        assert_eq!(list[0]["provider"], Value::Null);
        let table = told(&machine.run("list", &[]));
        assert!(table.contains(" TRANSPORT "), "{table}");
        assert!(table.contains(" NVMe/TCP "), "{table}");
        told(&machine.run("detach", &[device.trim()]));
    }
    assert!(target.stop().success());
}

/// `check` of a configuration with these lines in its listener.
fn checked(listener: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("target.toml");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\n{listener}\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n"
    );
    fs::write(&file, text).expect("a file");
    let mut check = Command::new(program("capstan-target"));
    let output = check.args(["check", "--config", utf8(&file)]).output();
    told(&output.expect("it starts"))
}

#[test]
fn check_says_what_each_listener_serves() {
    let at = own_address();
    let place = format!("address = \"{}\"\n", at.ip());
    for (transports, words) in [
        (
            "provider = \"iwarp\"",
            "NVMe/RDMA by iwarp, asked for; NVMe/TCP at the same port",
        ),
        (
            "transports = [\"tcp\"]",
            "NVMe/TCP; no NVMe/RDMA, transports names NVMe/TCP only",
        ),
        (
            "provider = \"iwarp\"\ntransports = [\"rdma\"]",
            "NVMe/RDMA by iwarp, asked for; no NVMe/TCP, transports names NVMe/RDMA only",
        ),
    ] {
        let said = checked(&format!("{place}{transports}"));
        let line = format!("listen {}:4420: {words}\n", at.ip());
        assert!(said.contains(&line), "{transports}: {said}");
    }
}
