//! What the log of an NFS server says of clients that try the same again and again, and of
//! configurations that were refused or told too much.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use capstan_tests::program::{Daemon, signal, utf8};
use nix::sys::signal::Signal;

/// Connections that a client of Linux makes in less than a second.
const ATTEMPTS: usize = 40;
/// Longer than a line is counted that comes again, where it is not told once a minute.
const WATCHED: Duration = Duration::from_millis(2500);
const FILE_SYSTEM: &str = "file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"";

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// A tmpfs has handles, whatever the machine is on.
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["state", "a"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The export `a` under this path for clients.
    fn export(&self, keys: &str) -> String {
        let path = self.path("a");
        format!("[[export]]\npath = {path:?}\n{FILE_SYSTEM}\nclients = [\"127.0.0.1\"]\n{keys}\n")
    }

    fn write(&self, exports: &str) -> PathBuf {
        let file = self.path("target.toml");
        let text = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[nfs]\naddresses = [\"127.0.0.1\"]\nport = 0\n\
             rdma_port = 0\n{exports}"
        );
        fs::write(&file, text).unwrap();
        file
    }

    fn serve(&self, file: &Path) -> Daemon {
        Daemon::serve_nfs_under(&["env", &self.state()], &["--config", utf8(file)])
    }

    fn state(&self) -> String {
        format!("STATE_DIRECTORY={}", utf8(&self.path("state")))
    }
}

/// Where it listens over TCP, and over RDMA.
fn addresses(daemon: &Daemon) -> [SocketAddr; 2] {
    let log = daemon.log();
    let line = log.iter().find_map(|line| line.split_once("for NFS at "));
    let mut addresses = line.unwrap().1.split(", ").map(|at| at.parse().unwrap());
    [addresses.next().unwrap(), addresses.next().unwrap()]
}

/// Sends what a client begins with that has the wrong port, until the server ends it.
fn tries(at: SocketAddr, bytes: &[u8]) {
    for _ in 0..ATTEMPTS {
        let mut stream = TcpStream::connect(at).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(bytes).unwrap();
        // An end, or a reset.
        assert!(
            !matches!(stream.read(&mut [0; 64]), Ok(1..)),
            "it was answered"
        );
    }
}

#[test]
fn root_a_client_at_the_wrong_port_has_one_line_a_minute() {
    let place = Place::new();
    let daemon = place.serve(&place.write(&place.export("")));
    let [tcp, rdma] = addresses(&daemon);
    // The header of a call with a record mark, and an MPA Request.
    tries(rdma, &[0x80, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0]);
    tries(tcp, b"MPA ID Req Frame\0\x01\0\0");
    // Nothing is to come in this time.
    std::thread::sleep(WATCHED);
    for words in [
        "it speaks TCP, expected RDMA",
        "it speaks RDMA (iWARP), expected TCP",
    ] {
        let log = daemon.log();
        let told: Vec<_> = log.iter().filter(|line| line.contains(words)).collect();
        assert!(
            matches!(&told[..], [line] if line.ends_with("peer=127.0.0.1")),
            "{told:#?}"
        );
    }
    assert!(daemon.stop().success());
}

#[test]
fn root_what_the_log_advises_about_an_id_is_followed_and_not_undone() {
    let place = Place::new();
    let daemon = place.serve(&place.write(&place.export("pseudo = \"/a\"")));
    let reload = |exports: &str, words: &[&str]| {
        place.write(exports);
        let known = daemon.log().len();
        signal(daemon.pid(), Signal::SIGHUP);
        daemon.wait_for_log_after(known, &["configuration reloaded: "]);
        daemon.wait_for_log_after(known, words);
        let log = daemon.log();
        log.into_iter().skip(known).collect::<Vec<_>>()
    };
    let renamed = reload(
        &place.export("pseudo = \"/b\""),
        &["configuration reloaded: exports added: 1, exports removed: 1"],
    );
    let advice = renamed.iter().find_map(|line| line.split_once("`id = "));
    let id = advice.unwrap().1.split('`').next().unwrap();
    let mended = reload(
        &place.export(&format!("pseudo = \"/b\"\nid = {id}")),
        &["configuration reloaded: exports changed: 1"],
    );
    let of_exports: Vec<_> = mended
        .iter()
        .filter(|of| of.contains("export /b: "))
        .collect();
    assert!(
        matches!(&of_exports[..], [line] if line.contains(&format!("its id is {id} now"))),
        "{mended:#?}"
    );
    assert!(
        !mended
            .iter()
            .any(|line| line.contains("lets clients go on")),
        "{mended:#?}"
    );
    // The same id: it is the same export under another path.
    reload(
        &place.export(&format!("pseudo = \"/c\"\nid = {id}")),
        &["configuration reloaded: exports changed: 1"],
    );
    daemon.wait_for_log(&["export /c: changed, "]);
    assert!(daemon.stop().success());
}

#[test]
fn root_a_key_that_is_gone_is_told_and_hosts_need_no_subsystem() {
    let place = Place::new();
    let listener = "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\nprovider = \"iwarp\"\n";
    let file = place.write(&[listener, &place.export("")].concat());
    let daemon = Daemon::serve_under(&["env", &place.state()], &["--config", utf8(&file)]);
    daemon.wait_for_log(&["WARN", "listener: there is no [[subsystem]]"]);
    assert_eq!(
        daemon.count_log("key of file handles"),
        0,
        "{:#?}",
        daemon.log()
    );
    assert!(daemon.stop().success());
    fs::remove_file(place.path("state/export-handles.key")).unwrap();
    let daemon = Daemon::serve_under(&["env", &place.state()], &["--config", utf8(&file)]);
    daemon.wait_for_log(&[
        "WARN",
        "the key of file handles",
        "is gone",
        "stale then (ESTALE)",
    ]);
    assert!(daemon.stop().success());
}
