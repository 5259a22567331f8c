//! SIGHUP on the real binary: what the configuration file says now is served, while a host is
//! connected.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::Controller;
use capstan_tests::host::options;
use capstan_tests::place::{Place, has, volume, writes_until_it_fails};
use capstan_tests::program::{Daemon, Machine, has_disks, own_address, signal, told, utf8};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

const PATIENCE: Duration = Duration::from_secs(10);

/// A configuration with these namespaces, of which each is a file of 1 MiB that is made.
fn configure(folder: &Path, at: SocketAddr, nsids: &[u32], allowed: &str) {
    let mut toml = format!(
        "[target]\nreactors = 2\nmemory_budget = \"64MiB\"\n\n[[listener]]\naddress = \"{}\"\n\
         port = {}\nprovider = \"iwarp\"\n\n[[subsystem]]\nnqn = \"{SUBNQN}\"\n{allowed}\n",
        at.ip(),
        at.port(),
    );
    for nsid in nsids {
        let path = folder.join(format!("{nsid}.img"));
        if !path.exists() {
            std::fs::write(&path, vec![0; 1 << 20]).expect("an image");
        }
        toml += &format!(
            "\n[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{}\"\n",
            path.display()
        );
    }
    std::fs::write(folder.join("target.toml"), toml).expect("a configuration");
}

/// Has the daemon read its configuration, and waits until it logs `words` about it: that line.
fn reload(daemon: &Daemon, words: &str) -> String {
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &[words])
}

/// Waits until the host sees exactly these namespaces.
fn sees(controller: &Controller, nsids: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let namespaces = controller.snapshot_blocking().namespaces;
        let seen: Vec<u32> = namespaces.iter().map(|n| n.nsid).collect();
        if seen == nsids {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "the host sees {seen:?}, expected {nsids:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn namespaces_come_and_go_under_a_connected_host() {
    let any = "allow_any_host = true";
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = folder.join("target.toml");
    let at = own_address();
    configure(folder, at, &[1, 2], any);
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let mut options = options(at, 1);
    let hostnqn = options.hostnqn.as_str().to_owned();
    options.reconnect_delay = Duration::from_millis(200);
    let controller = Controller::connect(options).expect("connects");
    sees(&controller, &[1, 2]);
    let first = controller.volume_blocking(1).expect("namespace 1");
    first.blocking().write(0, &[1; 4096]).expect("writes");

    configure(folder, at, &[1, 2, 7], any);
    reload(&daemon, "namespaces added: 1");
    sees(&controller, &[1, 2, 7]);
    let seventh = controller.volume_blocking(7).expect("namespace 7");
    seventh.blocking().write(0, &[7; 4096]).expect("writes");

    configure(folder, at, &[1, 7], any);
    reload(&daemon, "namespaces removed: 1");
    sees(&controller, &[1, 7]);
    // Closed, and so free for somebody else: it can be exported again.
    configure(folder, at, &[1, 2, 7], any);
    reload(&daemon, "namespaces added: 1");
    sees(&controller, &[1, 2, 7]);

    // What is not in order changes nothing, nor does what needs a restart.
    std::fs::write(&file, "[[subsystem]]").expect("written");
    reload(&daemon, "the configuration was not reloaded");
    configure(folder, at, &[1], any);
    let toml = std::fs::read_to_string(&file).expect("the configuration");
    let toml = toml.replace("reactors = 2", "reactors = 1");
    std::fs::write(&file, toml).expect("written");
    let why = reload(&daemon, "the configuration was not reloaded");
    assert!(
        why.contains("a change of target.reactors from 2 to 1"),
        "{why}"
    );
    sees(&controller, &[1, 2, 7]);
    let mut read = [0; 4096];
    seventh.blocking().read(0, &mut read).expect("reads");
    assert_eq!(read, [7; 4096]);

    // The host is not allowed any more: its association ends, and a new one is refused.
    let others = "allowed_hosts = [\"nqn.2026-11.org.example:other\"]";
    configure(folder, at, &[1, 2, 7], others);
    reload(&daemon, "subsystems with other hosts: 1");
    daemon.wait_for_log(&["refused a Connect", &hostnqn]);
}

/// A host that is not allowed any more tries on until its volume is lost.
#[test]
fn list_says_why_a_target_does_not_take_a_host_back() {
    if !has_disks("list_says_why_a_target_does_not_take_a_host_back", &[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let at = own_address();
    let any = "allow_any_host = true";
    configure(folder, at, &[1], any);
    let daemon = Daemon::serve(&["--config", utf8(&folder.join("target.toml"))]);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    configure(
        folder,
        at,
        &[1],
        "allowed_hosts = [\"nqn.2026-11.org.example:other\"]",
    );
    reload(&daemon, "subsystems with other hosts: 1");
    daemon.wait_for_log(&["refused a Connect", "is not allowed"]);
    wait_until("it is said", || {
        let attention = machine.list()[0]["attention"].clone();
        let said = attention.as_str().unwrap_or_default();
        said.contains("does not take it back") && said.contains("Connect Invalid Host")
    });
    daemon.wait_for_log(&["were like this: refused a Connect"]);
    let text = told(&machine.run("list", &[]));
    assert!(
        text.contains("see below")
            && text.contains("Connect Invalid Host")
            && text.contains(", I/O fails in "),
        "{text}"
    );
    // It tries each second, and is told of once.
    let refused = daemon.count_log("WARN refused a Connect");
    configure(folder, at, &[1], any);
    reload(&daemon, "subsystems with other hosts: 1");
    wait_until("it is back", || machine.list()[0]["state"] == "live");
    assert!(refused <= 1, "{:#?}", daemon.log());
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    assert!(daemon.stop().success());
}

/// Advice that is refused when it is taken is worse than none.
#[test]
fn what_a_refused_reload_says_is_accepted_when_it_is_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("1.img");
    std::fs::write(&image, vec![0; 1 << 20]).expect("an image");
    let file = folder.path().join("target.toml");
    let at = own_address();
    let write = |target: &str, subsystem: &str, namespace: Option<&str>| {
        let namespace = namespace.map(|keys| {
            format!(
                "[[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n{keys}",
                image.display()
            )
        });
        let toml = format!(
            "[target]\nmemory_budget = \"64MiB\"\n{target}\n[[listener]]\naddress = \"{}\"\nport = {}\n\
             provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n{subsystem}\n{}",
            at.ip(),
            at.port(),
            namespace.unwrap_or_default(),
        );
        std::fs::write(&file, toml).expect("a configuration");
    };
    let lba_bytes = || {
        let controller = Controller::connect(options(at, 1)).expect("connects");
        let namespaces = controller.snapshot_blocking().namespaces;
        controller.close();
        namespaces.first().map(|n| (n.lba_bytes, n.read_only))
    };
    write("reactors = 1", "", Some("lba = 4096\n"));
    let mut daemon = Daemon::serve(&["--config", utf8(&file)]);
    // The only namespace of its only subsystem: another LBA size, then the page cache.
    for (keys, seen) in [
        ("lba = 512\n", (512, false)),
        ("lba = 512\ndirect = false\n", (512, false)),
    ] {
        write("reactors = 1", "", Some(keys));
        let why = reload(&daemon, "the configuration was not reloaded");
        let step = "take it out of the file, reload, put it back in, and reload again";
        assert!(why.contains(step), "{why}");
        write("reactors = 1", "", None);
        reload(&daemon, "configuration reloaded");
        assert_eq!(lba_bytes(), None);
        write("reactors = 1", "", Some(keys));
        reload(&daemon, "configuration reloaded");
        assert_eq!(lba_bytes(), Some(seen));
    }
    for (target, subsystem) in [
        ("reactors = 2", ""),
        ("reactors = 2\n[queues]\ndepth_max = 64", ""),
        ("reactors = 2", "serial = \"OTHER\""),
        ("reactors = 2", "end_older_association = true"),
    ] {
        write(target, subsystem, Some("lba = 512\n"));
        let why = reload(&daemon, "the configuration was not reloaded");
        assert!(why.contains("needs a restart"), "{why}");
        assert!(daemon.stop().success());
        daemon = Daemon::serve(&["--config", utf8(&file)]);
        assert_eq!(lba_bytes(), Some((512, false)));
    }
    assert!(daemon.stop().success());
}

/// A file that is served under another name is open: neither "another program" has it, nor can it
/// be opened again before it is closed.
#[test]
fn a_file_that_moves_to_another_namespace_is_named_with_the_one_that_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("1.img");
    std::fs::write(&image, vec![0; 1 << 20]).expect("an image");
    let alias = folder.path().join("alias.img");
    std::os::unix::fs::symlink(&image, &alias).expect("a symbolic link");
    let file = folder.path().join("target.toml");
    let at = own_address();
    let write = |subsystems: &str| {
        let toml = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\n\
             provider = \"iwarp\"\n{subsystems}",
            at.ip(),
        );
        std::fs::write(&file, toml).expect("a configuration");
    };
    let subsystem = |nqn: &str| format!("[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n");
    let namespace = |nsid: u32, path: &Path| {
        format!(
            "[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{}\"\n",
            path.display()
        )
    };
    write(&(subsystem(SUBNQN) + &namespace(1, &image)));
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let mut has = format!("namespace 1 of {SUBNQN}");
    let other = "nqn.2026-11.org.example:renamed";
    for (nqn, nsid, path) in [
        (SUBNQN, 2, &image),
        (SUBNQN, 2, &alias),
        (other, 2, &alias),
        (other, 1, &image),
        (other, 1, &alias),
    ] {
        let wanted = subsystem(nqn) + &namespace(nsid, path);
        write(&wanted);
        let why = reload(&daemon, "the configuration was not reloaded");
        let step = if has == format!("namespace {nsid} of {nqn}") {
            " under another path: take it out of the file, reload, put it back in"
        } else {
            ": take both out of the file, reload, put this one back in"
        };
        let step = format!("which is served as {has}{step}, and reload again");
        assert!(why.contains(&step), "{why}");
        write(&subsystem(nqn));
        reload(&daemon, "configuration reloaded");
        write(&wanted);
        reload(&daemon, "namespaces added: 1");
        has = format!("namespace {nsid} of {nqn}");
    }
    let log = daemon.log();
    assert!(
        !log.iter().any(|line| line.contains("locked by")),
        "{log:#?}"
    );
    assert!(daemon.stop().success());
}

/// `mv a t; mv b a; mv t b`: both are still served, and neither is where it was.
#[test]
fn files_that_have_exchanged_their_names_are_served_as_they_are_called_after_one_reload() {
    for keys in [["", "", ""], ["nsid = 1", "nsid = 2", "nsid = 3"]] {
        let place = Place::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| place.image(name));
        place.configure(&[(&a, keys[0]), (&b, keys[1]), (&c, keys[2])]);
        let daemon = place.serve();
        let host = place.connect();
        for nsid in [1, 2, 3] {
            let byte = u8::try_from(nsid).expect("a byte");
            volume(&host, nsid).write(0, &[byte; 4096]).expect("writes");
        }
        let before = place.shown();
        let exchanged = place.folder.path().join("t");
        for (from, to) in [(&a, &exchanged), (&b, &a), (&exchanged, &b)] {
            std::fs::rename(from, to).expect("renames");
        }
        let log = capstan_tests::place::reload(&daemon);
        let said = ["configuration reloaded: namespaces removed: 2, and then namespaces added: 2"];
        assert!(has(&log, &said), "{log:#?}");
        assert!(
            has(&log, &["has exchanged its name with others"]),
            "{log:#?}"
        );
        assert!(!has(&log, &["goes on with what was opened"]), "{log:#?}");
        // Without `nsid` a namespace is where its medium is, with it where its path is.
        let written = keys[0].is_empty();
        let expected = if written { [1, 2, 3] } else { [2, 1, 3] };
        let now = place.shown();
        let another = place.connect();
        for (at, (nsid, uuid)) in now.iter().enumerate() {
            assert_eq!(
                uuid == &before[at].1,
                written || *nsid == 3,
                "{now:?}, {before:?}"
            );
            let mut read = [0; 4096];
            volume(&another, *nsid).read(0, &mut read).expect("reads");
            assert_eq!(read, [expected[at]; 4096], "namespace {nsid}");
        }
        another.close();
        host.close();
        let log = capstan_tests::place::reload(&daemon);
        assert!(has(&log, &["nothing has changed"]), "{log:#?}");
        assert!(daemon.stop().success());
    }
}

/// Makes an image that has this byte throughout its first block.
fn filled(path: &Path, byte: u8) {
    let mut bytes = vec![0; 1 << 20];
    bytes[..4096].fill(byte);
    std::fs::write(path, bytes).expect("an image");
}

fn first_block(place: &Place, nsid: u32) -> [u8; 4096] {
    let host = place.connect();
    let mut read = [0; 4096];
    volume(&host, nsid).read(0, &mut read).expect("reads");
    host.close();
    read
}

/// How another file takes the place of the one that is served.
type Replace = fn(served: &Path, other: &Path, kept: &Path);

/// One reload is enough where nothing that hosts wrote is lost with it.
#[test]
fn a_file_that_has_taken_the_place_of_another_is_served_after_one_reload() {
    let moved: Replace = |served, other, kept| {
        std::fs::rename(served, kept).expect("renames");
        std::fs::rename(other, served).expect("renames");
    };
    let linked: Replace = |served, other, kept| {
        std::fs::rename(served, kept).expect("renames");
        std::os::unix::fs::symlink(other, served).expect("links");
    };
    let deleted: Replace = |served, other, _| std::fs::rename(other, served).expect("renames");
    for (keys, replace, why) in [
        ("nsid = 1", moved, "what was opened there is "),
        (
            "nsid = 1\nread_only = true",
            deleted,
            "what was opened there was deleted, and hosts could not write it",
        ),
        ("nsid = 1", linked, "what was opened there is "),
    ] {
        let place = Place::new();
        let [a, b, other] = ["a", "b", "other"].map(|name| place.image(name));
        filled(&a, 1);
        filled(&other, 9);
        let kept = place.folder.path().join("kept");
        place.configure(&[(&a, keys), (&b, "nsid = 2")]);
        let daemon = place.serve();
        let before = place.shown();
        let host = place.connect();
        let [first, beside] = [1, 2].map(|nsid| volume(&host, nsid));
        if !keys.contains("read_only") {
            first.write(0, &[5; 4096]).expect("writes");
        }
        replace(&a, &other, &kept);
        let log = capstan_tests::place::reload(&daemon);
        let done = ["configuration reloaded: namespaces added: 1, namespaces removed: 1"];
        for words in [
            &done[..],
            &["namespace 1 of", "medium changed"],
            &["is served as another namespace", why],
        ] {
            assert!(has(&log, words), "{words:?}: {log:#?}");
        }
        assert!(!has(&log, &["goes on with what was opened"]), "{log:#?}");
        // Hosts see another namespace, and the one beside it as before.
        let now = place.shown();
        assert_ne!(now[0].1, before[0].1);
        assert_eq!((now[0].0, &now[1]), (1, &before[1]));
        assert_eq!(first_block(&place, 1), [9; 4096]);
        beside.write(0, &[7; 4096]).expect("goes on");
        if !keys.contains("read_only") {
            let old = std::fs::read(&kept).expect("it is there");
            assert_eq!(old[..4096], [5; 4096]);
            // It does not go on over the other one.
            writes_until_it_fails(&first);
            assert_eq!(first_block(&place, 1), [9; 4096]);
        }
        let log = capstan_tests::place::reload(&daemon);
        assert!(has(&log, &["nothing has changed"]), "{log:#?}");
        // And back.
        if kept.exists() {
            std::fs::rename(&a, place.folder.path().join("aside")).expect("renames");
            std::fs::rename(&kept, &a).expect("renames");
            let log = capstan_tests::place::reload(&daemon);
            assert!(has(&log, &done), "{log:#?}");
            assert_eq!(place.shown(), before, "the one that it had");
        }
        host.close();
        assert!(daemon.stop().success());
    }
}

/// Neither what has the only copy of what hosts wrote, nor in favour of what cannot be served.
#[test]
fn what_has_lost_its_path_is_served_on_where_a_reload_would_lose_it_or_nothing_can_take_its_place()
{
    let place = Place::new();
    let [a, b, c, other] = ["a", "b", "c", "other"].map(|name| place.image(name));
    let uuid = "nsid = 3\nuuid = \"6a2f6f2e-38d6-4d4c-9a6c-6f4f5f7d1f01\"";
    place.configure(&[(&a, "nsid = 1"), (&b, "nsid = 2"), (&c, uuid)]);
    let daemon = place.serve();
    let before = place.shown();
    let host = place.connect();
    let [first, second, third] = [1, 2, 3].map(|nsid| volume(&host, nsid));
    // The only copy.
    std::fs::rename(&other, &a).expect("renames");
    let log = capstan_tests::place::reload(&daemon);
    let words = [
        "goes on with what was opened at",
        "take namespace 1 of",
        "and reload, with which what hosts have is gone; then put it back in, and reload again",
        "copy it before, while no host writes (cp --sparse=always /proc/",
    ];
    assert!(has(&log, &words), "{log:#?}");
    first.write(0, &[5; 4096]).expect("goes on");
    // No file that can be exported: all of that reload is refused.
    std::fs::rename(&b, place.folder.path().join("kept")).expect("renames");
    std::fs::write(&b, [1; 100]).expect("a file");
    let log = capstan_tests::place::reload(&daemon);
    let refused = [
        "the configuration was not reloaded",
        "needs at least one LBA",
    ];
    assert!(has(&log, &refused), "{log:#?}");
    second.write(0, &[6; 4096]).expect("goes on");
    // Nor a folder, beside which other changes are carried out.
    std::fs::remove_file(&b).expect("removes");
    std::fs::create_dir(&b).expect("a folder");
    // Nor what hosts would take for the same.
    std::fs::rename(&c, place.folder.path().join("moved")).expect("renames");
    filled(&c, 0);
    let more = place.image("more");
    let (one, two) = ((&*a, "nsid = 1"), (&*b, "nsid = 2"));
    place.configure(&[one, two, (&c, uuid), (&more, "nsid = 4")]);
    let log = capstan_tests::place::reload(&daemon);
    let added = [
        "configuration reloaded: namespaces added: 1, namespaces that go on",
        "any more: 3",
    ];
    assert!(has(&log, &added), "{log:#?}");
    second.write(0, &[7; 4096]).expect("goes on");
    third.write(0, &[8; 4096]).expect("goes on");
    assert_eq!(place.shown()[..3], before[..]);
    host.close();
    assert!(daemon.stop().success());
}
