//! What `capstan` says of a port where no target is, of a subsystem without namespaces, and of an
//! address of a link.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::thread::spawn;

use capstan_nvme_proto::nqn::DISCOVERY_NQN;
use capstan_tests::program::{Daemon, complaint, own_address, program, shell};

/// `capstan COMMAND -t tcp ARGS`.
fn capstan(command: &str, address: &str, port: u16, args: &[&str]) -> Output {
    let port = port.to_string();
    Command::new(program("capstan"))
        .args([command, "-t", "tcp", "-a", address, "-s", &port])
        .args(args)
        .env("CAPSTAN_RUN_DIR", "/nonexistent")
        .output()
        .expect("capstan runs")
}

/// A server that begins with `greeting`, whatever comes.
fn greets(greeting: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it has one").port();
    spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            spawn(move || {
                let _ = stream.write_all(greeting);
                let _ = stream.read(&mut [0; 256]);
            });
        }
    });
    port
}

#[test]
fn what_does_not_speak_nvme_over_tcp_is_shown_by_its_first_bytes() {
    for (greeting, shown) in [
        (&b"SSH-2.0-OpenSSH_9.2p1\r\n"[..], "\"SSH-2.0-\""),
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "\"HTTP/1.1\""),
        (
            &b"\x4a\x00\x00\x00\x0a8.0.36\x00"[..],
            "\"J\\x00\\x00\\x00\\n8.0\"",
        ),
    ] {
        let port = greets(greeting);
        for args in [&[][..], &["-n", "nqn.2026-11.org.example:a"]] {
            let command = if args.is_empty() {
                "discover"
            } else {
                "id-ctrl"
            };
            let said = complaint(&capstan(command, "127.0.0.1", port, args));
            for words in ["does not speak NVMe/TCP", shown, "`ss -ltn`"] {
                assert!(said.contains(words), "{words}: {said}");
            }
            assert!(
                !said.contains("FES") && !said.contains("PDU-Type"),
                "{said}"
            );
        }
    }
}

/// The other way round: what connects to a target and is no host of it.
#[test]
fn what_connects_to_a_target_and_is_no_host_is_named() {
    let at = own_address();
    let daemon = Daemon::start("ram:1MiB", 4096, at);
    let connect = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(at).expect("the target listens");
        let patience = std::time::Duration::from_secs(10);
        stream.set_read_timeout(Some(patience)).expect("a socket");
        stream.write_all(bytes).expect("it is read");
        stream
    };
    // A command capsule and H2CData before ICReq: C2HTermReq, 03h, with FES 02h (PDU Sequence
    // Error).
    for (pdu_type, hlen) in [(4, 72), (6, 24)] {
        let mut bytes = [0; 72];
        (bytes[0], bytes[2], bytes[4]) = (pdu_type, hlen, hlen);
        let mut term = [0; 24];
        let read = connect(&bytes).read_exact(&mut term);
        read.expect("a C2HTermReq of 24 bytes and more");
        assert_eq!((term[0], term[8], term[9]), (3, 2, 0), "{pdu_type:02X}h");
    }
    let mut hello = [0x11; 205];
    hello[..11].copy_from_slice(&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]);
    for (bytes, words) in [
        (&hello[..], "TLS ClientHello"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a request of HTTP"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "the version of an SSH client"),
    ] {
        let stream = connect(bytes);
        daemon.wait_for_log(&[words]);
        drop(stream);
    }
    assert!(daemon.stop().success());
}

#[test]
fn the_discovery_subsystem_is_no_place_for_io_and_what_has_namespaces_is_named() {
    let at = own_address();
    let ip = at.ip().to_string();
    let daemon = Daemon::start("ram:1MiB", 4096, at);
    for args in [&["read", "-z", "4096"][..], &["flush"], &["list-ns"]] {
        let (command, more) = args.split_first().expect("a command");
        let more = [more, &["-n", DISCOVERY_NQN]].concat();
        let said = complaint(&capstan(command, &ip, at.port(), &more));
        for words in [
            "is a discovery subsystem, which has no namespaces",
            "`capstan discover -a ",
        ] {
            assert!(said.contains(words), "{command}: {said}");
        }
        assert!(!said.contains("Invalid Field"), "{command}: {said}");
    }
    // What it has is shown as before.
    let shown = capstan("id-ctrl", &ip, at.port(), &["-n", DISCOVERY_NQN]);
    assert!(shown.status.success(), "{shown:?}");
    assert!(daemon.stop().success());
}

#[test]
fn a_route_to_a_link_local_address_is_looked_for_on_its_link() {
    let said = complaint(&capstan("discover", "fe80::1%lo", 4420, &[]));
    assert!(said.contains("ip route get fe80::1 oif lo"), "{said}");
    let (_, step) = said.split_once('`').expect("a next step");
    let (step, _) = step.split_once('`').expect("its end");
    // Whatever it finds: `ip` takes the words.
    let ran = shell(step);
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(
        !told.contains("Error: ") && !told.contains("Usage"),
        "{told}"
    );
}
