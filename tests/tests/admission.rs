//! Who gets in, who does not, and whether both sides know why.
use capstan_initiator::{DirectQueue, Options};
use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, own_address, utf8};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Queue, WireHost};
use zerocopy::FromZeros;

fn refusal(options: &Options) -> String {
    match DirectQueue::connect(options) {
        Ok(_) => panic!("connected, expected a refusal"),
        Err(error) => format!("{error}"),
    }
}

#[test]
fn a_host_that_is_not_listed_is_refused_with_the_reason() {
    let target = TestTarget::start(&format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [\"nqn.2026-11.org.example:host-1\"]\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n"
    ));
    DirectQueue::connect(&options(target.addresses[0], 1))
        .expect("host-1 is listed")
        .close();
    let error = refusal(&options(target.addresses[0], 2));
    assert!(error.contains("Invalid Host"), "{error}");
    target.stop();
}

#[test]
fn a_refused_host_is_left_the_connection_to_read_the_response() {
    let at = own_address();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("target.toml");
    let toml = format!(
        "[[listener]]\naddress = \"{}\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [\"nqn.2026-11.org.example:host-1\"]\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n",
        at.ip()
    );
    std::fs::write(&path, toml).expect("written");
    let daemon = Daemon::serve(&["--config", utf8(&path)]);
    let (mut host, status) = WireHost::refused(at, 2);
    assert_eq!(status, Status::CONNECT_INVALID_HOST.dnr());
    // The connection is there to take a command, which a refused host may not send.
    host.send(Queue::Admin, Sqe::new_zeroed(), Data::None);
    host.wait_for_the_end();
    daemon.wait_for_log(&[
        "disconnected",
        "sent a command though its Connect was refused",
    ]);
    assert!(daemon.stop().success());
}

#[test]
fn a_connect_for_another_queue_than_the_connection_request_announced_is_refused() {
    let target = TestTarget::ram("");
    let (mut host, answer) = WireHost::connect_as_announced(target.addresses[0], 1, 1);
    assert_eq!(answer.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
    let location = ErrorLocation::from_connect_dw0(answer.dw0.get());
    assert_eq!(location, ErrorLocation::sqe(42), "QID");
    // The connection is there to take a command, which a refused host may not send.
    host.send(Queue::Admin, Sqe::new_zeroed(), Data::None);
    host.wait_for_the_end();
    let (_host, answer) = WireHost::connect_as_announced(target.addresses[0], 1, 0);
    assert!(answer.status().is_success(), "{:?}", answer.status());
    target.stop();
}

#[test]
fn an_unknown_subsystem_is_named() {
    let target = TestTarget::ram("");
    let mut options = options(target.addresses[0], 1);
    options.subnqn = Nqn::new("nqn.2026-11.org.example:elsewhere").expect("valid");
    let error = refusal(&options);
    assert!(
        error.contains("elsewhere") || error.contains("SUBNQN"),
        "{error}"
    );
    target.stop();
}

#[test]
fn over_the_memory_budget_a_connect_is_refused_aloud() {
    let target = TestTarget::ram("memory_budget = \"5MiB\"\nreactors = 1");
    let connect = |n| {
        let mut options = options(target.addresses[0], n);
        options.queue_size = 128;
        DirectQueue::connect(&options)
    };
    // All at once: what one host gives back must not serve the next.
    let connects: Vec<_> = (0..6).map(connect).collect();
    assert!(connects[0].is_ok(), "one host fits");
    let refusal = connects.into_iter().find_map(Result::err);
    let refusal = refusal
        .expect("six queues of 128 entries do not fit into 5 MiB")
        .to_string();
    assert!(refusal.contains("No Resources"), "{refusal}");
    target.stop();
}

#[test]
fn a_wildcard_listener_tells_each_host_the_address_it_reached() {
    let target = TestTarget::start(&format!(
        "[[listener]]\naddress = \"0.0.0.0\"\nport = 0\n[[listener]]\naddress = \"::1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnull = \"1MiB\"\n"
    ));
    let port = target.addresses[0].port();
    for address in ["127.0.0.1", "127.0.0.2"] {
        let known = options(target.addresses[0], 1);
        let mut discovery = Options::discovery(address, known.hostnqn, known.hostid);
        discovery.trsvcid = port;
        let mut queue = DirectQueue::connect(&discovery).expect("connects");
        let (_, entries) = queue.discover().expect("a discovery log");
        let found = entries.iter().any(|entry| {
            let field = |bytes: &[u8]| {
                String::from_utf8_lossy(bytes)
                    .trim_end_matches('\0')
                    .to_owned()
            };
            field(&entry.traddr).trim_end() == address && field(&entry.subnqn) == SUBNQN
        });
        assert!(found, "{SUBNQN} is offered at {address}");
        queue.close();
    }
    DirectQueue::connect(&options(target.addresses[1], 2))
        .expect("IPv6 works")
        .close();
    target.stop();
}
