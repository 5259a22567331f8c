//! A damaged file of what NFS clients reclaim: hosts are served as ever.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use capstan_tests::program::{Daemon, program, utf8};

/// A target with a namespace, an export and a file of stable storage that no server has written.
struct Place {
    folder: tempfile::TempDir,
    nfs_port: u16,
}

impl Place {
    /// A tmpfs has handles, whatever the machine is on.
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["state", "a"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nfs_port = free.local_addr().unwrap().port();
        Self { folder, nfs_port }
    }

    fn stable(&self) -> PathBuf {
        self.folder.path().join("state/nfs-clients")
    }

    /// With `hosts` in front of what is for clients.
    fn write(&self, hosts: &str) -> PathBuf {
        let file = self.folder.path().join("target.toml");
        let text = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n{hosts}\
             [nfs]\naddresses = [\"127.0.0.1\"]\ntransports = [\"tcp\"]\nport = {}\n\
             [[export]]\npath = {:?}\npseudo = \"/a\"\nclients = [\"127.0.0.1\"]\n\
             file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n",
            self.nfs_port,
            self.folder.path().join("a")
        );
        fs::write(&file, text).unwrap();
        file
    }

    fn state(&self) -> String {
        format!(
            "STATE_DIRECTORY={}",
            utf8(&self.folder.path().join("state"))
        )
    }

    fn says(&self, subcommand: &str, file: &Path) -> (bool, String) {
        let target = program("capstan-target");
        let mut command = Command::new("timeout");
        let args = ["60", utf8(&target), subcommand, "--config", utf8(file)];
        let state = self.folder.path().join("state");
        let output = command.args(args).env("STATE_DIRECTORY", state).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    fn nfs(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.nfs_port).into()
    }
}

const HOSTS: &str = "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\nprovider = \"iwarp\"\n\
     [[subsystem]]\nnqn = \"nqn.2026-01.org.example:one\"\nallow_any_host = true\n\
     [[subsystem.namespace]]\nnull = \"1MiB\"\n";

#[test]
fn root_what_clients_reclaim_is_damaged_and_hosts_are_served() {
    let place = Place::new();
    let file = place.write(HOSTS);
    fs::write(place.stable(), b"something else").unwrap();
    let stable = place.stable();
    let words = [
        utf8(&stable),
        "it is no file of this server's state",
        "move this one away",
        "NFS is not served until then",
        "systemctl restart capstan-target",
    ];
    let (is_fine, said) = place.says("check", &file);
    assert!(
        is_fine && words.iter().all(|word| said.contains(word)),
        "a start goes on: {said}"
    );

    let start = || Daemon::serve_under(&["env", &place.state()], &["--config", utf8(&file)]);
    let daemon = start();
    daemon.wait_for_log(&[&["ERROR"], &words[..]].concat());
    let log = daemon.log();
    let line = log.iter().find_map(|line| line.split_once("listening at "));
    let (at, told) = line.unwrap().1.split_once("; ").unwrap();
    assert_eq!(told, "NFS is not served, see the log");
    TcpStream::connect(at.parse::<SocketAddr>().unwrap()).unwrap();
    let refused = TcpStream::connect(place.nfs()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(fs::read(&stable).unwrap(), b"something else", "it is kept");
    assert!(daemon.stop().success());

    // As the line says.
    fs::rename(&stable, stable.with_extension("damaged")).unwrap();
    let daemon = start();
    daemon.wait_for_log(&["listening at ", "for NFS at "]);
    TcpStream::connect(place.nfs()).unwrap();
    assert!(daemon.stop().success());
}

#[test]
fn root_a_target_without_hosts_does_not_start_when_it_is_damaged() {
    let place = Place::new();
    let file = place.write("");
    fs::write(place.stable(), b"something else").unwrap();
    let (is_fine, said) = place.says("serve", &file);
    let words = "it is no file of this server's state";
    assert!(!is_fine && said.contains(words), "{said}");
}
