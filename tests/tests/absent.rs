//! Files and addresses that are configured and not there when the target starts: it starts without
//! them, says so, and serves each as soon as it is there.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use capstan_control::answer::Listener;
use capstan_control::{CallError, NamespacePlace, Request};
use capstan_initiator::Controller;
use capstan_tests::host::options;
use capstan_tests::program::{own_address, program, tool, utf8};
use capstan_tests::steered::Steered;
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::unistd::geteuid;

fn sees(controller: &Controller, nsids: &[u32]) {
    wait_until("the host sees what is served", || {
        let namespaces = controller.snapshot_blocking().namespaces;
        namespaces.iter().map(|n| n.nsid).collect::<Vec<_>>() == nsids
    });
}

#[test]
fn a_file_that_comes_later_is_served_then() {
    let at = own_address();
    let place = Steered::new(at, &["never.img", "there.img", "later.img"]);
    place.make("there.img");
    let daemon = place.begin_under(&[]);
    let later = place.path("later.img");
    daemon.wait_for_log(&["namespace 3", "is not served yet", utf8(&later)]);
    daemon.wait_for_log(&["listening at"]);
    let controller = Controller::connect(options(at, 1)).expect("connects");
    sees(&controller, &[2]);
    let waits = |nsid: u32| {
        let mut namespaces = place.namespaces().into_iter();
        namespaces
            .find(|of| of.nsid == nsid)
            .and_then(|of| of.waits)
    };
    assert!(waits(2).is_none());
    let why = waits(3).expect("it is waited for").why;
    assert!(why.contains("No such file or directory"), "{why}");
    let shown = String::from_utf8(place.run(&["status"]).stdout).expect("text");
    assert!(shown.contains("waits since 0s: "), "{shown}");

    // A reload waits on, and waits for nothing that comes with it.
    let reload = place.run(&["reload"]);
    assert!(reload.status.success(), "{reload:?}");
    assert!(waits(3).is_some());
    let config = fs::read_to_string(place.path("target.toml")).expect("it is there");
    let typed = format!("{config}[[subsystem.namespace]]\npath = \"/absent/typed-wrong\"\n");
    fs::write(place.path("target.toml"), typed).expect("it is written");
    let reload = place.run(&["reload"]);
    let said = String::from_utf8(reload.stderr).expect("text");
    assert!(said.contains("/absent/typed-wrong"), "{said}");
    fs::write(place.path("target.toml"), config).expect("it is written");

    place.make("later.img");
    sees(&controller, &[2, 3]);
    wait_until("it is not waited for any more", || waits(3).is_none());

    // What is never to come is taken out.
    let never = NamespacePlace {
        subsystem: SUBNQN.to_owned(),
        nsid: 1,
    };
    let remove = Request::NamespaceRemove(never);
    place.client().call(&remove).expect("it is taken out");
    let nsids: Vec<_> = place.namespaces().iter().map(|of| of.nsid).collect();
    assert_eq!(nsids, [2, 3]);
    let again = place.client().call(&remove).expect_err("it is not there");
    assert!(matches!(again, CallError::Failed(_)), "{again}");
    assert!(daemon.stop().success());
}

#[test]
fn a_target_with_nothing_but_what_is_not_there_serves_it_when_it_is() {
    let at = own_address();
    let place = Steered::new(at, &["later.img"]);
    let daemon = place.begin_under(&[]);
    daemon.wait_for_log(&["listening at"]);
    let controller = Controller::connect(options(at, 1)).expect("connects");
    sees(&controller, &[]);
    place.make("later.img");
    sees(&controller, &[1]);
    assert!(daemon.stop().success());
}

#[test]
fn root_an_address_that_comes_later_is_listened_at_then() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: a network namespace of its own takes root");
        return;
    }
    let at: SocketAddr = "192.0.2.7:4420".parse().expect("an address");
    let place = Steered::new(at, &["there.img"]);
    place.make("there.img");
    let up = "ip link set lo up && exec \"$@\"";
    let daemon = place.begin_under(&["unshare", "--net", "sh", "-c", up, "sh"]);
    daemon.wait_for_log(&["no listener at 192.0.2.7:4420 yet"]);
    daemon.wait_for_log(&["listening nowhere yet"]);
    let listener = || -> Listener { place.status().listeners.remove(0) };
    let Listener {
        address,
        transports,
        waits,
        ..
    } = listener();
    assert_eq!(
        (address.as_str(), &transports[..]),
        ("192.0.2.7:4420", &["rdma".to_owned(), "tcp".to_owned()][..])
    );
    let why = waits.expect("it is waited for").why;
    assert_eq!(why, "192.0.2.7 is not an address of this machine now");

    let pid = daemon.pid().to_string();
    let within = ["--target", &pid, "--net"];
    let add = ["ip", "address", "add", "192.0.2.7/32", "dev", "lo"];
    tool("nsenter", &[&within[..], &add].concat());
    daemon.wait_for_log(&["listening at 192.0.2.7:4420, which is there now"]);
    wait_until("it is not waited for any more", || {
        listener().waits.is_none()
    });
    let capstan = program("capstan");
    let discover = [utf8(&capstan), "discover", "-a", "192.0.2.7", "-s", "4420"];
    let found = tool("nsenter", &[&within[..], &discover].concat());
    assert!(found.contains(SUBNQN), "{found}");
    assert!(daemon.stop().success());
}

/// What comes and cannot be served is named, and keeps nothing else from being changed.
#[test]
fn what_comes_in_the_place_of_a_file_is_named_and_waited_out() {
    let at = own_address();
    let place = Steered::new(at, &["there.img", "later.img", "twin.img"]);
    place.make("there.img");
    let daemon = place.begin_under(&[]);
    daemon.wait_for_log(&["listening at"]);
    let why = |nsid: u32| {
        let mut namespaces = place.namespaces().into_iter();
        let namespace = namespaces
            .find(|of| of.nsid == nsid)
            .expect("it is configured");
        namespace.waits.map(|waits| waits.why)
    };
    let says = |nsid: u32, words: &str| {
        wait_until(words, || why(nsid).is_some_and(|why| why.contains(words)));
    };
    let later = place.path("later.img");
    tool("mkfifo", &[utf8(&later)]);
    fs::hard_link(place.path("there.img"), place.path("twin.img")).expect("a link");
    says(2, "is a named pipe");
    says(3, "is served as namespace 1");
    for words in [&["reload"][..], &["log", "level", "debug"]] {
        let done = place.run(words);
        assert!(done.status.success(), "{done:?}");
    }
    says(2, "is a named pipe");

    fs::remove_file(&later).expect("it goes");
    says(2, "No such file or directory");
    place.make("later.img");
    fs::remove_file(place.path("twin.img")).expect("it goes");
    place.make("twin.img");
    // A reload does not wait for its time.
    let reload = place.run(&["reload", "--discard"]);
    assert!(reload.status.success(), "{reload:?}");
    assert_eq!((why(2), why(3)), (None, None));
    daemon.wait_for_log(&["namespace 2 of", "added"]);
    assert_eq!(daemon.count_log("namespace 2 of"), 3, "{:#?}", daemon.log());
    assert!(daemon.stop().success());
}

/// A path that is typed by hand is answered at once.
#[test]
fn options_name_what_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent: &Path = &folder.path().join("absent");
    let mut command = Command::new(program("capstan-target"));
    command.args(["serve", "--export", utf8(absent), "--listen", "127.0.0.1:0"]);
    let output = command.output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        !output.status.success() && said.contains("No such file"),
        "{said}"
    );
}
