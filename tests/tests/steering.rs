//! The control socket of the real binary: what is asked and told of a target, while a host is
//! connected and works.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use capstan_control::answer::{
    ConfigDiff, Connection, Host, Listener, LogLevel, Refused, Status, Subsystem,
};
use capstan_control::{
    AddListener, AddNamespace, AddSubsystem, Client, Kind, Levels, NamespacePlace, Request,
    ResizeNamespace,
};
use capstan_initiator::Controller;
use capstan_storage::Lifetime;
use capstan_tests::host::options;
use capstan_tests::place::volume;
use capstan_tests::program::{own_address, program, signal, utf8};
use capstan_tests::steered_volume::{SteeredVolume, change, refused, said, serve};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;

fn add(path: &Path) -> Request {
    Request::NamespaceAdd(AddNamespace {
        subsystem: SUBNQN.to_owned(),
        path: Some(path.display().to_string()),
        ..AddNamespace::default()
    })
}

fn place(nsid: u32) -> NamespacePlace {
    NamespacePlace {
        subsystem: SUBNQN.to_owned(),
        nsid,
    }
}

fn sees(controller: &Controller, wanted: &[(u32, u64)]) {
    wait_until("the host sees what is served", || {
        let namespaces = controller.snapshot_blocking().namespaces;
        let seen: Vec<_> = namespaces
            .iter()
            .map(|n| (n.nsid, n.nsze_lbas * u64::from(n.lba_bytes)))
            .collect();
        seen == wanted
    });
}

const MIB: u64 = 1 << 20;

#[test]
fn namespaces_come_grow_and_go_while_a_host_writes() {
    let target = SteeredVolume::start();
    let before = target.config();
    let controller = target.connect();
    sees(&controller, &[(1, MIB)]);
    let writes = Arc::new(AtomicBool::new(true));
    let writer = {
        let (first, writes) = (volume(&controller, 1), Arc::clone(&writes));
        thread::spawn(move || {
            let mut written = 0_u64;
            while writes.load(Ordering::Relaxed) {
                first
                    .write(written % 16 * 4096, &[7; 4096])
                    .expect("writes go on");
                written += 1;
            }
            written
        })
    };
    let mut client = target.client();
    let second = target.path("2.img");
    fs::write(&second, vec![0; 1 << 20]).expect("an image");
    let added = change(&mut client, &add(&second));
    assert!(added.changes.contains("namespace 2 of"), "{added:?}");
    assert_eq!(added.unsaved, 1);
    sees(&controller, &[(1, MIB), (2, MIB)]);
    let resize = |size: &str| {
        Request::NamespaceResize(ResizeNamespace {
            subsystem: SUBNQN.to_owned(),
            nsid: 2,
            size: size.to_owned(),
        })
    };
    change(&mut client, &resize("3MiB"));
    sees(&controller, &[(1, MIB), (2, 3 * MIB)]);
    let smaller = refused(&mut client, &resize("1MiB"));
    assert_eq!(smaller.data.kind, Some(Kind::Refused));
    assert_eq!(
        smaller.data.allowed.as_deref(),
        Some("from 3145728 bytes on")
    );
    // Another file has taken its place: it is not touched.
    fs::rename(&second, target.path("moved.img")).expect("moved");
    fs::write(&second, b"other").expect("another file");
    let other = refused(&mut client, &resize("8MiB"));
    assert!(other.message.contains("is another file"), "{other}");
    assert_eq!(fs::read(&second).expect("the other file"), b"other");
    change(&mut client, &Request::NamespaceRemove(place(2)));
    sees(&controller, &[(1, MIB)]);
    writes.store(false, Ordering::Relaxed);
    assert!(writer.join().expect("no panic") > 0);
    // It was added and taken out: the file says what is served.
    let status: Status = client.ask(&Request::Status {}).expect("a status");
    assert_eq!(
        (&status.config.unsaved[..], target.config()),
        (&[][..], before)
    );
    assert_eq!(status.connections, 1);
    let shown: Vec<Subsystem> = client
        .ask(&Request::SubsystemShow { nqn: None })
        .expect("subsystems");
    assert!(shown[0].namespaces[0].io.writes > 0, "{shown:?}");
    assert_eq!(shown[0].namespaces[0].size_bytes, MIB);
}

#[test]
fn a_host_is_let_in_thrown_out_and_told_why() {
    let target = SteeredVolume::start();
    let controller = target.connect();
    let mut client = target.client();
    let connections = |client: &mut Client| -> Vec<Connection> {
        client
            .ask(&Request::ConnectionList {})
            .expect("connections")
    };
    let one = connections(&mut client);
    assert_eq!(one.len(), 1, "{one:?}");
    assert_eq!(
        (one[0].host.as_str(), one[0].io_queues),
        ("nqn.2026-11.org.example:host-1", 1)
    );
    // It comes back.
    let cntlid = Some(one[0].cntlid);
    let which = capstan_control::DisconnectWhich {
        cntlid,
        ..Default::default()
    };
    client
        .call(&Request::ConnectionDisconnect(which))
        .expect("it ends");
    wait_until("the host has connected again", || {
        let now = connections(&mut client);
        now.len() == 1 && now[0].cntlid != one[0].cntlid
    });
    let host = "nqn.2026-11.org.example:host-1".to_owned();
    let subsystem = SUBNQN.to_owned();
    change(
        &mut client,
        &Request::HostDeny {
            subsystem: subsystem.clone(),
            host: host.clone(),
        },
    );
    wait_until("it is refused", || {
        let refused: Vec<Refused> = client
            .ask(&Request::Explain {
                host: Some(host.clone()),
            })
            .expect("reasons");
        let mend = format!("capstan-target host allow {SUBNQN} {host}");
        refused.iter().any(|one| one.mend.as_deref() == Some(&mend))
    });
    let text = said(&target.run(&["explain", &host]));
    assert!(
        text.contains("is not allowed to use") && text.contains("host allow"),
        "{text}"
    );
    let none = said(&target.run(&["explain", "nqn.2026-11.org.example:other"]));
    let expected = "no connect of nqn.2026-11.org.example:other was refused since";
    assert!(none.starts_with(expected), "{none}");
    change(
        &mut client,
        &Request::HostAllow {
            subsystem: subsystem.clone(),
            host: host.clone(),
        },
    );
    wait_until("it is in again", || connections(&mut client).len() == 1);
    let hosts: Vec<Host> = client
        .ask(&Request::HostList { subsystem: None })
        .expect("hosts");
    assert_eq!((hosts.len(), hosts[0].is_listed), (1, true));
    let again = refused(&mut client, &Request::HostAllow { subsystem, host });
    assert_eq!(again.data.kind, Some(Kind::Exists));
    drop(controller);
}

#[test]
fn what_was_changed_is_shown_saved_and_served_after_a_restart() {
    let target = SteeredVolume::start();
    let mut client = target.client();
    change(
        &mut client,
        &Request::SubsystemAdd(AddSubsystem {
            nqn: "nqn.2026-11.org.example:more".to_owned(),
            allow_any_host: true,
            ..AddSubsystem::default()
        }),
    );
    let level: LogLevel = client
        .ask(&Request::LogLevel(Levels {
            level: Some("debug".to_owned()),
        }))
        .expect("a level");
    assert_eq!(
        (level.level.as_str(), level.was.as_str()),
        ("debug", "info")
    );
    let diff: ConfigDiff = client.ask(&Request::ConfigDiff {}).expect("a difference");
    assert_eq!(
        diff.unsaved,
        [
            "subsystem add nqn.2026-11.org.example:more --allow-any-host",
            "log level debug"
        ]
    );
    assert!(
        diff.diff
            .contains("+nqn = \"nqn.2026-11.org.example:more\"\n"),
        "{}",
        diff.diff
    );
    // Neither a reload nor a stop undoes it unless that is said.
    for request in [
        Request::Reload { discard: false },
        Request::Stop { discard: false },
    ] {
        let failure = refused(&mut client, &request);
        assert_eq!(failure.data.kind, Some(Kind::Unsaved), "{failure}");
        assert!(failure.message.contains("config save"), "{failure}");
    }
    signal(target.daemon.pid(), Signal::SIGHUP);
    target
        .daemon
        .wait_for_log(&["not reloaded", "subsystem add", "--discard"]);
    let saved = target.run(&["config", "save"]);
    assert!(
        saved.status.success() && said(&saved).contains("changes saved: 2"),
        "{}",
        said(&saved)
    );
    let file = target.config();
    assert!(
        file.starts_with("# Kept as it is.\n[target]\n") && file.contains("\"   # here\n"),
        "{file}"
    );
    let shown = said(&target.run(&["config", "show"]));
    assert_eq!(shown.trim_end(), file.trim_end());
    let none = said(&target.run(&["config", "diff"]));
    assert_eq!(none.trim_end(), "the file says what is served");
    client
        .call(&Request::Reload { discard: false })
        .expect("there is nothing to undo");
    let complete = said(&target.run(&["config", "show", "--complete"]));
    let shown: Vec<Subsystem> = client
        .ask(&Request::SubsystemShow { nqn: None })
        .expect("subsystems");
    let namespace = &shown[0].namespaces[0];
    assert!(complete.contains("lba = 4096\n"), "{complete}");
    // Of a file that lasts, what hosts know it by is written as well.
    let lasts = Lifetime::at(target.folder.path()).expect("a file system") == Lifetime::Lasting;
    for (key, value) in [("uuid", &namespace.uuid), ("nguid", &namespace.nguid)] {
        let line = format!("{key} = \"{}\"\n", value.as_deref().expect(key));
        assert_eq!(complete.contains(&line), lasts, "{line}{complete}");
    }
    let stopped = target.run(&["stop"]);
    assert!(stopped.status.success(), "{}", said(&stopped));
    let SteeredVolume { folder, daemon, .. } = target;
    assert!(daemon.ended().success());
    assert!(!folder.path().join("control.sock").exists());
    // Either text makes the same target.
    let first = serve(folder.path());
    let status = |folder: &Path| {
        let mut client = Client::connect(&folder.join("control.sock")).expect("connects");
        client
            .ask::<Status>(&Request::Status {})
            .expect("a status")
            .subsystems
    };
    let of_file = status(folder.path());
    assert!(first.stop().success());
    fs::write(folder.path().join("target.toml"), complete).expect("a configuration");
    let second = serve(folder.path());
    assert_eq!(of_file, status(folder.path()));
    assert!(second.stop().success());
}

#[test]
fn a_size_is_written_and_told_as_it_was_given() {
    let target = SteeredVolume::start();
    let run = |args: &[&str]| {
        let output = target.run(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        said(&output)
    };
    run(&["namespace", "add", SUBNQN, "ram:1MiB"]);
    run(&["namespace", "add", SUBNQN, "null:1024M"]);
    run(&["config", "save"]);
    let file = target.config();
    for line in ["ram = \"1MiB\"\n", "null = \"1GiB\"\n"] {
        assert!(file.contains(line), "{file}");
    }
    let complete = run(&["config", "show", "--complete"]);
    for line in [
        "memory_budget = \"64MiB\"\n",
        "ram = \"1MiB\"\n",
        "null = \"1GiB\"\n",
    ] {
        assert!(complete.contains(line), "{complete}");
    }
    // One word for one namespace, wherever it is told.
    let json = run(&["namespace", "list", "-o", "json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let on: Vec<_> = json.as_array().expect("a list").iter().collect();
    assert_eq!(on[1]["backing"], "ram:1MiB");
    assert_eq!(on[2]["backing"], "null:1GiB");
    assert_eq!(on[2]["subsystem"], SUBNQN);
    assert_eq!(on[2]["nsid"], 3);
    for args in [
        &["status"][..],
        &["subsystem", "list"],
        &["namespace", "show", SUBNQN],
    ] {
        let text = run(args);
        assert!(text.contains("null:1GiB"), "{args:?}: {text}");
    }
}

#[test]
fn what_is_discarded_is_warned_of() {
    let target = SteeredVolume::start();
    let mut client = target.client();
    let ram = AddNamespace {
        subsystem: SUBNQN.to_owned(),
        ram: Some("1MiB".to_owned()),
        ..AddNamespace::default()
    };
    change(&mut client, &Request::NamespaceAdd(ram.clone()));
    change(&mut client, &Request::Reload { discard: true });
    target
        .daemon
        .wait_for_log(&["undone by this reload", "namespace add"]);
    let shown: Vec<Subsystem> = client
        .ask(&Request::SubsystemShow { nqn: None })
        .expect("subsystems");
    assert_eq!(shown[0].namespaces.len(), 1);
    change(&mut client, &Request::NamespaceAdd(ram));
    signal(target.daemon.pid(), Signal::SIGTERM);
    target
        .daemon
        .wait_for_log(&["in no file and goes with this process", "namespace add"]);
    let SteeredVolume { daemon, .. } = target;
    assert!(daemon.ended().success());
}

#[test]
fn a_refused_change_changes_nothing_and_says_what_is_allowed() {
    let target = SteeredVolume::start();
    let mut client = target.client();
    let missing = refused(&mut client, &add(&target.path("3.img")));
    assert_eq!(missing.data.kind, Some(Kind::Refused));
    assert!(missing.message.contains("3.img"), "{missing}");
    let twice = refused(&mut client, &add(&target.path("1.img")));
    assert_eq!(twice.data.kind, Some(Kind::Invalid), "{twice}");
    assert_eq!(
        twice.data.field.as_deref(),
        Some("subsystem[0].namespace[1].path")
    );
    let slip = SUBNQN.replace("under", "undre");
    let nowhere = refused(&mut client, &Request::SubsystemRemove { nqn: slip });
    assert_eq!(nowhere.data.nearest.as_deref(), Some(SUBNQN));
    let nowhere = refused(&mut client, &Request::NamespaceRemove(place(9)));
    assert_eq!(
        (nowhere.data.field.as_deref(), nowhere.data.value.as_deref()),
        (Some("nsid"), Some("9"))
    );
    let all = refused(
        &mut client,
        &Request::ConnectionDisconnect(Default::default()),
    );
    assert_eq!(all.data.kind, Some(Kind::WrongParameters));
    let level = Levels {
        level: Some("loud".to_owned()),
    };
    let level = refused(&mut client, &Request::LogLevel(level));
    assert_eq!(level.data.field.as_deref(), Some("target.log"), "{level}");
    let diff: ConfigDiff = client.ask(&Request::ConfigDiff {}).expect("a difference");
    assert_eq!((diff.unsaved.len(), diff.diff.as_str()), (0, ""));
    let cli = target.run(&["namespace", "remove", SUBNQN, "9"]);
    assert_eq!(cli.status.code(), Some(1));
    assert!(
        said(&cli).contains("did you mean `1`") || said(&cli).contains("expected one of 1"),
        "{}",
        said(&cli)
    );
}

#[test]
fn listeners_come_and_go_and_leave_the_others_alone() {
    let target = SteeredVolume::start();
    let first = target.connect();
    let mut client = target.client();
    let second = own_address();
    let add = |address: String| {
        Request::ListenerAdd(AddListener {
            address,
            port: Some(second.port()),
            provider: Some("iwarp".to_owned()),
            ..AddListener::default()
        })
    };
    change(&mut client, &add(second.ip().to_string()));
    let listeners = |client: &mut Client| -> Vec<String> {
        let listeners: Vec<Listener> = client.ask(&Request::ListenerList {}).expect("listeners");
        listeners
            .into_iter()
            .map(|listener| listener.address)
            .collect()
    };
    let both = [target.at.to_string(), second.to_string()];
    assert_eq!(listeners(&mut client), both);
    let mut by_second = options(second, 1);
    by_second.reconnect_delay = Duration::from_millis(200);
    let other = Controller::connect(by_second).expect("connects there");
    sees(&other, &[(1, MIB)]);
    // One that this machine does not have: nothing of it stays.
    let elsewhere = refused(&mut client, &add("192.0.2.77".to_owned()));
    assert!(elsewhere.message.contains("192.0.2.77"), "{elsewhere}");
    assert_eq!(listeners(&mut client), both);
    let twice = refused(&mut client, &add(second.ip().to_string()));
    assert_eq!(twice.data.kind, Some(Kind::Invalid), "{twice}");
    let gone = Request::ListenerRemove {
        address: second.to_string(),
    };
    change(&mut client, &gone);
    assert_eq!(listeners(&mut client), both[..1]);
    wait_until("what came by it has ended, and nothing else", || {
        let connections: Vec<Connection> = client
            .ask(&Request::ConnectionList {})
            .expect("connections");
        connections.len() == 1 && connections[0].to == both[0]
    });
    volume(&first, 1)
        .write(0, &[1; 4096])
        .expect("the first one goes on");
    assert!(
        Controller::connect(options(second, 2)).is_err(),
        "nothing listens there"
    );
    // And once more, at the same address.
    change(&mut client, &add(second.ip().to_string()));
    wait_until("it comes back", || {
        let connections: Vec<Connection> = client
            .ask(&Request::ConnectionList {})
            .expect("connections");
        connections.len() == 2
    });
    let last = refused(
        &mut client,
        &Request::ListenerRemove {
            address: "127.0.0.1:1".to_owned(),
        },
    );
    assert_eq!(last.data.kind, Some(Kind::NotFound), "{last}");
    drop((first, other));
}

#[test]
fn whatever_is_sent_others_are_answered() {
    let target = SteeredVolume::start();
    let socket = target.path("control.sock");
    let mut raw = UnixStream::connect(&socket).expect("connects");
    raw.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    let mut lines = BufReader::new(raw.try_clone().expect("a socket")).lines();
    let mut say = |bytes: &[u8]| -> Value {
        raw.write_all(bytes).expect("it is taken");
        let line = lines.next().expect("an answer").expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(say(b"nonsense\n")["error"]["code"], -32700);
    assert_eq!(say(b"\n\xff\xfe\n")["error"]["code"], -32700);
    let answer = say(b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"version\"}\n");
    assert_eq!(
        (&answer["id"], &answer["result"]["protocol"]),
        (&Value::from("x"), &Value::from(1))
    );
    let deep = [b"[".repeat(60_000), b"\n".to_vec()].concat();
    assert_eq!(say(&deep)["error"]["code"], -32700);
    // Longer than a request may be: it is told so, and that is the end of it.
    let long = vec![b'x'; capstan_control::REQUEST_BYTES_MAX];
    let told = say(&long);
    assert!(
        told["error"]["message"]
            .as_str()
            .expect("words")
            .contains("65536"),
        "{told}"
    );
    // Connections that say nothing keep no other out: the one that has waited longest ends, told
    // so.
    let mut silent: Vec<_> = (0..34)
        .map(|_| BufReader::new(UnixStream::connect(&socket).expect("connects")))
        .collect();
    let mut client = target.client();
    client.call(&Request::Version {}).expect("an answer");
    let mut line = String::new();
    silent[0].read_line(&mut line).expect("an answer");
    let words = ["\"kind\":\"busy\"", "connect again"];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    line.clear();
    assert_eq!(silent[0].read_line(&mut line).expect("its end"), 0);
    client
        .call(&Request::Version {})
        .expect("it still has its place");
    assert_eq!(target.daemon.count_log("panicked"), 0);
}

#[test]
fn who_is_neither_root_nor_a_member_may_not_connect() {
    let target = SteeredVolume::start();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    // Where others can get to it.
    let open = Command::new("chmod")
        .args(["755", utf8(target.folder.path())])
        .status();
    assert!(open.expect("chmod runs").success());
    let socket = target.path("control.sock");
    let refused = nobody
        .arg(program("capstan-target"))
        .args(["status", "--control-socket", utf8(&socket)])
        .output()
        .expect("it runs");
    let said = said(&refused);
    if said.contains("exec") || said.contains("setpriv") {
        eprintln!("SKIPPED: nobody cannot run the program where it was built: {said}");
        return;
    }
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("usermod -aG capstan"), "{said}");
}

/// Media are looked at each second as well, by another thread.
#[test]
fn a_new_size_is_served_when_it_is_answered() {
    let target = SteeredVolume::start();
    let mut client = target.client();
    for mib in 2..42 {
        change(
            &mut client,
            &Request::NamespaceResize(ResizeNamespace {
                subsystem: SUBNQN.to_owned(),
                nsid: 1,
                size: format!("{mib}MiB"),
            }),
        );
        let status: Status = client.ask(&Request::Status {}).expect("a status");
        let size = status.subsystems[0].namespaces[0].size_bytes;
        assert_eq!(size, mib * MIB);
        thread::sleep(Duration::from_millis(60));
    }
    assert!(target.daemon.stop().success());
}
