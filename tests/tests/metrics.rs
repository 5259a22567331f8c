//! Each metric of a target is what was done, by HTTP and by the control socket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_control::answer::{Metric, MetricValue};
use capstan_control::{Client as ControlClient, Request};
use capstan_initiator::{DirectQueue, Op};
use capstan_nfs_client::client::Client as NfsClient;
use capstan_nfs_client::tcp;
use capstan_nfs_proto::v4::args::Read as NfsRead;
use capstan_nfs_proto::v4::op::Op as NfsOp;
use capstan_nfs_proto::v4::types::{Component, Stateid};
use capstan_nvme_proto::command::{Flush, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_target::metrics::names::METRICS;
use capstan_tests::host::{options, run};
use capstan_tests::open_metrics::{Told, ask, scrape};
use capstan_tests::program::{Daemon, own_address, signal, utf8};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wait::wait_until;
use capstan_tests::wire_host::{Data, Queue, WireHost};
use nix::sys::signal::Signal;

const GET: &str = "GET /metrics HTTP/1.1\r\n\r\n";

fn target(sample: u32) -> TestTarget {
    TestTarget::start(&format!(
        "[target]\nreactors = 2\n[metrics]\nlisten = \"127.0.0.1:0\"\nsample = {sample}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\n\
         allowed_hosts = [\"nqn.2026-11.org.example:host-1\", \"nqn.2026-11.org.example:host-2\"]\n\
         [[subsystem.namespace]]\nram = \"16MiB\"\nlba = 4096\n"
    ))
}

fn host(number: u8) -> String {
    format!("nqn.2026-11.org.example:host-{number}")
}

fn range(slba: u64, nlb: u32) -> LbaRange {
    LbaRange { slba, nlb }
}

fn read(slba: u64, nlb: u32) -> Sqe {
    IoCommand::Read(Read::new(1, range(slba, nlb))).encode(0, Sgl::EMPTY)
}

fn write(nlb: u32) -> Sqe {
    IoCommand::Write(Write::new(1, range(0, nlb))).encode(0, Sgl::EMPTY)
}

fn does(host: &mut WireHost, sqe: Sqe, data: Data<'_>) -> Status {
    host.run(Queue::Io, sqe, data).0.status().code()
}

/// Three reads, three writes in both ways, a flush, and a read behind the end.
fn work_of_one(host: &mut WireHost) {
    for _ in 0..3 {
        assert_eq!(does(host, read(0, 1), Data::Pushed(4096)), Status::SUCCESS);
    }
    for _ in 0..2 {
        let data = Data::InCapsule(&[1; 4096]);
        assert_eq!(does(host, write(1), data), Status::SUCCESS);
    }
    let data = Data::Pulled(&[2; 32 << 10]);
    assert_eq!(does(host, write(8), data), Status::SUCCESS);
    let flush = IoCommand::Flush(Flush { nsid: 1 }).encode(0, Sgl::EMPTY);
    assert_eq!(does(host, flush, Data::None), Status::SUCCESS);
    let behind = does(host, read(4096, 1), Data::Pushed(4096));
    assert_eq!(behind, Status::LBA_OUT_OF_RANGE);
}

/// What hosts have done, by host: commands (read, write, other), bytes (read, written), and errors
/// with the status that `work_of_one` has.
fn of_host(told: &Told, number: u8) -> ([f64; 3], [f64; 2], f64) {
    let host = host(number);
    let labels = [("host", &*host), ("subsystem", SUBNQN), ("nsid", "1")];
    let value = |name: &str, with: (&str, &str)| {
        let labels = [&labels[..], &[with]].concat();
        told.value(name, &labels)
            .unwrap_or_else(|| panic!("{name} {labels:?}"))
    };
    let commands = ["read", "write", "other"];
    let commands = commands.map(|word| value("capstan_host_commands_total", ("command", word)));
    let data = ["read", "written"];
    let data = data.map(|word| value("capstan_host_data_bytes_total", ("direction", word)));
    let status = [("code", "0h/80h"), ("status", "LBA Out of Range")];
    let labels = [&labels[..], &status].concat();
    let errors = told.value("capstan_host_errors_total", &labels);
    (commands, data, errors.unwrap_or_default())
}

#[test]
fn each_number_is_what_hosts_have_done() {
    let target = target(1);
    let at = target.metrics.expect("it tells");
    let address = target.addresses[0];
    let mut one = WireHost::connect(address, 1);
    let mut two = WireHost::connect(address, 2);
    let (refused, status) = WireHost::refused(address, 3);
    assert_eq!(status.code(), Status::CONNECT_INVALID_HOST);
    work_of_one(&mut one);
    let two_blocks = does(&mut two, read(0, 2), Data::Pushed(8192));
    assert_eq!(two_blocks, Status::SUCCESS);

    let told = scrape(at);
    let ones = ([3.0, 3.0, 1.0], [12_288.0, 40_960.0], 1.0);
    assert_eq!(of_host(&told, 1), ones);
    assert_eq!(of_host(&told, 2), ([1.0, 0.0, 0.0], [8192.0, 0.0], 0.0));
    let sum = |name: &str, labels: &[(&str, &str)]| told.sum(name, labels);
    assert_eq!(sum("capstan_host_errors_total", &[]), 1.0);
    assert_eq!(sum("capstan_host_commands_not_kept_total", &[]), 0.0);

    assert_eq!(sum("capstan_associations", &[("subsystem", SUBNQN)]), 2.0);
    for number in [1, 2] {
        let host = host(number);
        let labels = [("host", &*host), ("qid", "1"), ("transport", "NVMe/RDMA")];
        assert_eq!(sum("capstan_queue_entries", &labels), 32.0);
        assert_eq!(sum("capstan_queue_commands_in_flight", &labels), 0.0);
    }
    let reason = [("reason", "host-not-allowed")];
    assert_eq!(
        told.value("capstan_connects_refused_total", &reason),
        Some(1.0)
    );
    assert_eq!(sum("capstan_connects_refused_total", &[]), 1.0);
    assert_eq!(sum("capstan_connections_refused_total", &[]), 0.0);

    let operations = |word| sum("capstan_backend_operations_total", &[("operation", word)]);
    assert_eq!(operations("read"), 4.0);
    assert_eq!(operations("write"), 3.0);
    assert_eq!(operations("flush"), 1.0);
    assert_eq!(operations("other"), 0.0);
    let bytes = |word| sum("capstan_backend_data_bytes_total", &[("direction", word)]);
    assert_eq!((bytes("read"), bytes("written")), (20_480.0, 40_960.0));
    assert_eq!(sum("capstan_backend_errors_total", &[]), 0.0);

    // Every command that is carried out is timed; the one behind the end is not.
    let times = |command, stage| {
        let labels = [("command", command), ("stage", stage)];
        told.value("capstan_command_stage_seconds_count", &labels)
    };
    assert_eq!(times("read", "receive"), Some(4.0));
    assert_eq!(times("write", "receive"), Some(3.0));
    assert_eq!(times("other", "receive"), Some(1.0));
    for command in ["read", "write", "other"] {
        assert_eq!(times(command, "medium"), times(command, "receive"));
        assert_eq!(times(command, "respond"), times(command, "receive"));
    }
    assert_eq!(times("write", "pull"), Some(1.0));
    assert_eq!(times("read", "pull"), Some(0.0));

    for reactor in ["0", "1"] {
        let labels = [("reactor", reactor)];
        assert!(sum("capstan_reactor_time_seconds_total", &labels) > 0.0);
        assert!(sum("capstan_reactor_turns_total", &labels) > 0.0);
        let data = [("reactor", reactor), ("pool", "data")];
        let pool = sum("capstan_memory_pool_bytes", &data);
        let free = sum("capstan_memory_free_bytes", &data);
        assert!(0.0 < free && free <= pool, "{free} of {pool}");
    }
    assert_eq!(
        sum("capstan_memory_budget_bytes", &[]),
        f64::from(256 << 20)
    );
    assert_eq!(sum("capstan_command_sample", &[]), 1.0);
    assert_eq!(sum("capstan_scrapes_total", &[]), 1.0);

    // What a host has done stays when it has gone, and goes on when it comes again.
    drop((one, refused));
    let ended = [("reason", "host")];
    wait_until("its association is over", || {
        scrape(at).value("capstan_associations_ended_total", &ended) == Some(1.0)
    });
    assert_eq!(of_host(&scrape(at), 1), ones);
    let mut one = WireHost::connect(address, 1);
    assert_eq!(
        does(&mut one, read(0, 1), Data::Pushed(4096)),
        Status::SUCCESS
    );
    // An answer that is some milliseconds old is given once more.
    wait_until("it goes on", || {
        of_host(&scrape(at), 1).0 == [4.0, 3.0, 1.0]
    });
    drop((one, two));
    target.stop();
}

#[test]
fn every_metric_is_told_and_no_other() {
    let target = target(64);
    let told = scrape(target.metrics.expect("it tells"));
    let names: Vec<_> = METRICS.iter().map(|metric| metric.family()).collect();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(told.kinds.keys().cloned().collect::<Vec<_>>(), expected);
    for metric in METRICS {
        assert_eq!(
            told.kinds[&metric.family()],
            metric.kind.word(),
            "{metric:?}"
        );
    }
    for (name, labels) in told.samples.keys() {
        let metric = METRICS
            .iter()
            .find(|metric| metric.samples().contains(name));
        let metric = metric.unwrap_or_else(|| panic!("{name} is of no metric"));
        let mut expected: Vec<_> = metric.labels.to_vec();
        expected.extend(labels.contains_key("le").then_some("le"));
        expected.sort_unstable();
        assert_eq!(labels.keys().collect::<Vec<_>>(), expected, "{name}");
    }
    target.stop();
}

#[test]
fn no_command_is_timed_where_none_is_to_be() {
    let target = target(0);
    let mut host = WireHost::connect(target.addresses[0], 1);
    work_of_one(&mut host);
    let told = scrape(target.metrics.expect("it tells"));
    assert_eq!(told.sum("capstan_command_stage_seconds_count", &[]), 0.0);
    assert_eq!(of_host(&told, 1).0, [3.0, 3.0, 1.0]);
    drop(host);
    target.stop();
}

#[test]
fn hosts_go_on_while_they_are_counted() {
    let target = target(1);
    let at = target.metrics.expect("it tells");
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let scrapes = thread::scope(|scope| {
        for number in [1, 2] {
            let (over, done, address) = (&over, &done, target.addresses[0]);
            scope.spawn(move || {
                let mut queue = DirectQueue::connect(&options(address, number)).expect("connects");
                let mut data = [0; 4096];
                while !over.load(Ordering::Relaxed) {
                    let slba = u64::from(number);
                    run(&mut queue, write_op(slba), &mut data);
                    run(&mut queue, Op::Read { slba, nlb: 1 }, &mut data);
                    done.fetch_add(2, Ordering::Relaxed);
                }
                queue.close();
            });
        }
        let mut told = Vec::new();
        while told.len() < 100 {
            let before = done.load(Ordering::Relaxed);
            told.push(scrape(at));
            wait_until("both have gone on", || {
                done.load(Ordering::Relaxed) > before + 4
            });
        }
        over.store(true, Ordering::Relaxed);
        told
    });
    let commands = |told: &Told| told.sum("capstan_host_commands_total", &[]);
    for pair in scrapes.windows(2) {
        assert!(
            commands(&pair[0]) <= commands(&pair[1]),
            "a counter went back"
        );
    }
    wait_until("all of it is counted", || {
        let all = commands(&scrape(at));
        all >= as_float(done.load(Ordering::Relaxed))
    });
    target.stop();
}

#[expect(clippy::cast_precision_loss, reason = "some thousand commands")]
fn as_float(count: u64) -> f64 {
    count as f64
}

fn write_op(slba: u64) -> Op {
    Op::Write {
        slba,
        nlb: 1,
        fua: false,
    }
}

#[test]
fn a_slow_or_hostile_scraper_ends_only_itself() {
    let target = target(64);
    let at = target.metrics.expect("it tells");
    let mut host = DirectQueue::connect(&options(target.addresses[0], 1)).expect("connects");
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(at).expect("connects");
        stream.write_all(b"GET /metrics HT").expect("sent");
        slow.push(stream);
    }
    // They do not take the answer either.
    for _ in 0..8 {
        let mut stream = TcpStream::connect(at).expect("connects");
        stream.write_all(GET.as_bytes()).expect("sent");
        slow.push(stream);
    }
    let began = Instant::now();
    let told = scrape(at);
    assert_eq!(told.sum("capstan_associations", &[]), 1.0);
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "it waited for the slow ones"
    );
    // The first of them made room.
    let mut rest = Vec::new();
    slow[0]
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a limit");
    let read = slow[0].read_to_end(&mut rest);
    assert!(read.is_err() || rest.is_empty(), "{rest:?}");
    for (request, status) in [
        ("\r\n\r\n".to_owned(), "400 Bad Request"),
        ("GET /metrics\r\n\r\n".to_owned(), "400 Bad Request"),
        (
            "GET /metrics SPDY/3\r\n\r\n".to_owned(),
            "505 HTTP Version Not Supported",
        ),
        (
            "POST /metrics HTTP/1.1\r\n\r\n".to_owned(),
            "405 Method Not Allowed",
        ),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404 Not Found"),
        (
            format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(9 << 10)),
            "431 Request Header Fields Too Large",
        ),
    ] {
        let (head, body) = ask(at, &request);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{head}"
        );
        assert!(body.ends_with('\n'), "{body}");
    }
    let (head, body) = ask(at, "HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && body.is_empty(),
        "{head}"
    );
    let mut data = [0; 4096];
    run(&mut host, Op::Read { slba: 0, nlb: 1 }, &mut data);
    host.close();
    target.stop();
}

/// The program with NFS, a control socket and metrics, in a folder of its own.
struct Place {
    folder: tempfile::TempDir,
    at: SocketAddr,
}

impl Place {
    fn new() -> Self {
        // A tmpfs has handles, whatever the machine is on.
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        for name in ["state", "a"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let at = own_address();
        Self { folder, at }
    }

    fn write(&self, metrics: &str) -> String {
        let file = self.folder.path().join("target.toml");
        let text = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
             [[listener]]\naddress = \"{}\"\nport = {}\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\n\
             [nfs]\naddresses = [\"127.0.0.1\"]\ntransports = [\"tcp\"]\nport = 0\n\
             [[export]]\npath = {:?}\npseudo = \"/a\"\nclients = [\"127.0.0.1\"]\n\
             file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n{metrics}",
            self.at.ip(),
            self.at.port(),
            self.folder.path().join("a")
        );
        fs::write(&file, text).expect("written");
        utf8(&file).to_owned()
    }

    fn serve(&self, metrics: &str) -> Daemon {
        let state = format!(
            "STATE_DIRECTORY={}",
            utf8(&self.folder.path().join("state"))
        );
        let socket = self.folder.path().join("control.sock");
        let config = self.write(metrics);
        let args = ["--config", &config, "--control-socket", utf8(&socket)];
        Daemon::serve_under(&["env", &state], &args)
    }

    fn control(&self) -> ControlClient {
        let socket = self.folder.path().join("control.sock");
        let mut client = ControlClient::connect(&socket).expect("connects");
        let patience = Some(Duration::from_secs(20));
        client.set_timeout(patience).expect("a limit");
        client
    }
}

/// What the last line with these words says behind them.
fn behind(daemon: &Daemon, words: &str) -> String {
    daemon.wait_for_log(&[words]);
    let log = daemon.log();
    let line = log.iter().rev().find_map(|line| line.split_once(words));
    let rest = line.expect("a line").1;
    let end = rest.find([';', ',', ' ', '/']).unwrap_or(rest.len());
    rest[..end].trim().to_owned()
}

#[test]
fn root_nfs_is_counted_and_the_control_socket_tells_the_same() {
    let place = Place::new();
    let name = place.folder.path().join("a/file");
    fs::write(&name, [7; 5000]).expect("a file");
    let daemon = place.serve("[metrics]\nlisten = \"127.0.0.1:0\"\n");
    let nfs: SocketAddr = behind(&daemon, "for NFS at ").parse().expect("an address");
    let at: SocketAddr = behind(&daemon, "metrics at http://")
        .parse()
        .expect("an address");
    let mut client = NfsClient::mount(tcp::connect(nfs), b"a client of tests", 1, 1);
    let path = [
        NfsOp::PutRootFh,
        NfsOp::Lookup(Component(b"a")),
        NfsOp::Lookup(Component(b"file")),
    ];
    for count in [4096, 5000] {
        let read = NfsOp::Read(NfsRead {
            stateid: Stateid::ANONYMOUS,
            offset: 0,
            count,
        });
        client.run(0, &[&path[..], &[read]].concat(), |_results| ());
    }
    let told = scrape(at);
    let operations = |export, operation| {
        let labels = [
            ("export", export),
            ("version", "4"),
            ("operation", operation),
        ];
        told.value("capstan_nfs_operations_total", &labels)
    };
    assert_eq!(operations("/a", "READ"), Some(2.0));
    // To the export, and in it.
    assert_eq!(operations("/a", "LOOKUP"), Some(4.0));
    assert_eq!(operations("", "PUTROOTFH"), Some(2.0));
    assert_eq!(operations("", "SEQUENCE"), Some(3.0));
    assert_eq!(operations("", "EXCHANGE_ID"), Some(1.0));
    let data = |direction| {
        let labels = [("export", "/a"), ("direction", direction)];
        told.value("capstan_nfs_data_bytes_total", &labels)
    };
    assert_eq!((data("read"), data("written")), (Some(9096.0), Some(0.0)));
    assert_eq!(told.sum("capstan_nfs_errors_total", &[]), 0.0);
    assert_eq!(told.sum("capstan_nfs_connections", &[]), 1.0);
    assert_eq!(told.sum("capstan_nfs_clients", &[]), 1.0);
    assert_eq!(told.sum("capstan_nfs_opens", &[]), 0.0);

    // The same by the control socket.
    let all: Vec<Metric> = place
        .control()
        .ask(&Request::Metrics {})
        .expect("an answer");
    assert_eq!(all.len(), METRICS.len());
    for metric in &all {
        let of_reactors = metric.name.starts_with("capstan_reactor");
        for sample in metric.samples.iter().filter(|_| !of_reactors) {
            let MetricValue::Number(value) = &sample.value else {
                continue;
            };
            let suffix = match metric.kind.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let key = (format!("{}{suffix}", metric.name), sample.labels.clone());
            assert_eq!(told.samples.get(&key), Some(value), "{key:?}");
        }
    }
    drop(client);
    wait_until("its connection is over", || {
        scrape(at).sum("capstan_nfs_connections", &[]) == 0.0
    });
    assert!(daemon.stop().success());
}

#[test]
fn root_a_reload_moves_starts_and_ends_what_tells_metrics() {
    let place = Place::new();
    let daemon = place.serve("");
    assert_eq!(daemon.count_log("metrics at"), 0, "{:#?}", daemon.log());
    let [first, second] = [own_address(), own_address()];
    let reload = |metrics: &str, words: &[&str]| {
        place.write(metrics);
        let known = daemon.log().len();
        signal(daemon.pid(), Signal::SIGHUP);
        daemon.wait_for_log_after(known, words);
    };
    let listen =
        |at: SocketAddr, sample: u32| format!("[metrics]\nlisten = \"{at}\"\nsample = {sample}\n");
    let done = "configuration reloaded: metrics told at ";
    reload(&listen(first, 64), &[done]);
    assert_eq!(scrape(first).sum("capstan_command_sample", &[]), 64.0);
    reload(&listen(first, 5), &[done]);
    assert_eq!(scrape(first).sum("capstan_command_sample", &[]), 5.0);
    reload(&listen(second, 5), &[done]);
    assert_eq!(scrape(second).sum("capstan_scrapes_total", &[]), 3.0);
    assert!(TcpStream::connect(first).is_err(), "it is told there still");
    // Where something else listens, nothing is changed.
    let taken = std::net::TcpListener::bind(first).expect("listens");
    let refused = "was not reloaded: nothing was changed: metrics.listen: ";
    reload(
        &listen(first, 6),
        &[refused, "cannot be listened at; `ss -ltn`"],
    );
    assert_eq!(scrape(second).sum("capstan_command_sample", &[]), 5.0);
    drop(taken);
    let alone = "configuration reloaded: metrics told by the control socket alone";
    reload("", &[alone]);
    assert!(
        TcpStream::connect(second).is_err(),
        "it is told there still"
    );
    assert!(daemon.stop().success());
}

#[test]
fn an_address_that_something_else_has_keeps_a_target_from_starting_with_the_next_step() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    let at = taken.local_addr().expect("an address");
    let toml = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n[metrics]\nlisten = \"{at}\"\n\
         [[subsystem]]\nnqn = \"a\"\nallow_any_host = true\n[[subsystem.namespace]]\nnull = 4096\n"
    );
    let config = capstan_config::Config::from_toml(&toml).expect("valid");
    let Err(error) = capstan_target::serve::Running::start(&config) else {
        panic!("it started")
    };
    let error = format!("{error:#}");
    let begins =
        format!("metrics.listen: {at} cannot be listened at; `ss -ltn` says what has the port");
    assert!(error.starts_with(&begins), "{error}");
}
