//! `capstan serve-nbd` and the tools that others wrote for NBD: libnbd's, QEMU's and nbd-client.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use capstan_tests::program::{
    CLAIMS, Daemon, complaint, has_tools, own_address, program, signal, told, tool, utf8,
};
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;

const SIZE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;
/// A name and a folder with everything that a URI cannot have as it is.
const NAME: &str = "50% of a&b=c#d?";
const FOLDER: &str = "a b%&#";
/// A folder for QEMU, which decodes what a query says once before it looks for the `&` and once
/// behind that (seen with 10.0.2): a `%` or `&` in the path of a socket is no valid URL to it.
const FOLDER_FOR_QEMU: &str = "a b#";

/// A volume of zeroes but for two pieces of data, served under [`NAME`].
struct Served {
    _daemon: Daemon,
    at: SocketAddr,
    child: Child,
    uri: String,
    dir: tempfile::TempDir,
    socket: PathBuf,
    image: PathBuf,
}

impl Served {
    /// With its socket in a folder of that name.
    fn new(folder: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let file = File::create(&image).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(&vec![7; 2 << 20], MIB).unwrap();
        file.write_all_at(b"last", SIZE - 4).unwrap();
        let at = own_address();
        let daemon = Daemon::start(utf8(&image), 4096, at);
        let folder = dir.path().join(folder);
        fs::create_dir(&folder).unwrap();
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(program("capstan"))
            .env(CLAIMS, dir.path())
            .args(["serve-nbd", "-a", &at.ip().to_string(), "-n", SUBNQN])
            .args(["--provider", "iwarp", "--export-name", NAME])
            // From its working folder, and told so that others find it from theirs.
            .args(["--socket", "s?"])
            .current_dir(&folder)
            .env(CLAIMS, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut uri = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut uri).unwrap();
        Self {
            _daemon: daemon,
            at,
            child,
            uri: uri.trim().to_owned(),
            dir,
            socket: folder.join("s?"),
            image,
        }
    }

    /// Bytes that hosts have read of the namespace, to half a MiB.
    fn bytes_read(&self) -> u64 {
        let mut capstan = Command::new(program("capstan"));
        capstan
            .args(["smart-log", "-a", &self.at.ip().to_string(), "-n", SUBNQN])
            .args(["-N", "1", "--provider", "iwarp", "--output", "json"]);
        let log = told(&capstan.output().unwrap());
        let log: serde_json::Value = serde_json::from_str(&log).unwrap();
        log["data_units_read"].as_u64().unwrap() * 512_000
    }

    /// The file at `name` holds what the image does, and takes less room than it is long.
    fn assert_sparse_copy(&self, path: &Path) {
        assert!(fs::read(path).unwrap() == fs::read(&self.image).unwrap());
        let stored = fs::metadata(path).unwrap().blocks() * 512;
        assert!(stored < SIZE / 8, "{stored} bytes are stored");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        signal(self.child.id(), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

#[test]
fn libnbd_finds_the_export_and_its_holes() {
    let test = "libnbd_finds_the_export_and_its_holes";
    if !has_tools(test, &["nbdinfo", "nbdcopy"]) {
        return;
    }
    let served = Served::new(FOLDER);
    assert!(
        served.uri.starts_with("nbd+unix:///50%25%20of"),
        "{}",
        served.uri
    );
    assert_eq!(
        tool("nbdinfo", &["--size", &served.uri]).trim(),
        SIZE.to_string()
    );
    let list = tool("nbdinfo", &["--list", "--json", &served.uri]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let export = &list["exports"][0];
    assert_eq!(export["export-name"], NAME);
    assert_eq!(export["contexts"][0], "base:allocation");
    let before = served.bytes_read();
    let map = tool("nbdinfo", &["--map", &served.uri]);
    // The heads of what is data, of 64 MiB.
    let read = served.bytes_read() - before;
    assert!(
        read < MIB,
        "{read} bytes were read to learn where holes are"
    );
    let map: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        ["0", "1048576", "3", "hole,zero"],
        ["1048576", "2097152", "0", "data"],
        ["3145728", "63959040", "3", "hole,zero"],
        ["67104768", "4096", "0", "data"],
    ];
    assert_eq!(map, expected);
    let copy = served.dir.path().join("copy");
    let before = served.bytes_read();
    tool("nbdcopy", &[&served.uri, utf8(&copy)]);
    let read = served.bytes_read() - before;
    assert!(read < 4 * MIB, "{read} bytes were read to copy two MiB");
    served.assert_sparse_copy(&copy);
    // The other way: what it was, with a change, and zeroes over data.
    let file = File::options().write(true).open(&copy).unwrap();
    file.write_all_at(&vec![0; 1 << 20], MIB).unwrap();
    file.write_all_at(b"new", 9 * MIB).unwrap();
    tool("nbdcopy", &["--flush", utf8(&copy), &served.uri]);
    assert!(fs::read(&copy).unwrap() == fs::read(&served.image).unwrap());
}

#[test]
fn qemu_copies_holes_as_holes() {
    let test = "qemu_copies_holes_as_holes";
    if !has_tools(test, &["qemu-img"]) {
        return;
    }
    let served = Served::new(FOLDER_FOR_QEMU);
    let map = tool("qemu-img", &["map", "--output=json", &served.uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let data = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["zero"] == false);
    let bytes: u64 = data.map(|e| e["length"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 2 * MIB + 4096, "{map}");
    let copy = served.dir.path().join("copy");
    let arguments = [
        "convert",
        "-f",
        "raw",
        "-O",
        "raw",
        &served.uri,
        utf8(&copy),
    ];
    tool("qemu-img", &arguments);
    served.assert_sparse_copy(&copy);
    tool(
        "qemu-img",
        &[
            "compare",
            "-f",
            "raw",
            "-F",
            "raw",
            &served.uri,
            utf8(&copy),
        ],
    );
}

#[test]
fn nbdsh_and_nbd_client_see_what_others_see() {
    let test = "nbdsh_and_nbd_client_see_what_others_see";
    let served = Served::new(FOLDER);
    if has_tools(test, &["nbdsh"]) {
        let script = "print(h.get_size(), h.can_meta_context('base:allocation'))\n\
            def extent(context, offset, entries, error): print(context, offset, entries)\n\
            h.block_status(8 << 20, 0, extent)\n\
            h.block_status(8 << 20, 1 << 20, extent, nbd.CMD_FLAG_REQ_ONE)\n";
        let mut nbdsh = Command::new("nbdsh");
        nbdsh.args(["--base-allocation", "-u", &served.uri, "-c", script]);
        // The system's Python has the module.
        let lines = told(&nbdsh.env("PATH", "/usr/bin:/bin").output().unwrap());
        let expected = "67108864 True\n\
            base:allocation 0 [1048576, 3, 2097152, 0, 5242880, 3]\n\
            base:allocation 1048576 [2097152, 0]\n";
        assert_eq!(lines, expected);
    }
    if has_tools(test, &["nbd-client"]) {
        let listed = tool("nbd-client", &["-l", "-u", utf8(&served.socket)]);
        assert!(listed.contains(NAME), "{listed}");
    }
}

#[test]
fn a_name_that_the_protocol_cannot_carry_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let name = "n".repeat(4097);
    let mut capstan = Command::new(program("capstan"));
    capstan
        .args(["serve-nbd", "-a", "127.0.0.1", "--socket", utf8(&socket)])
        .args(["--export-name", &name])
        .stdin(Stdio::null());
    let error = complaint(&capstan.output().unwrap());
    assert!(
        error.contains("it has 4097 bytes, expected at most 4096"),
        "{error}"
    );
    assert!(!socket.exists());
    // The longest there may be is one.
    let at = own_address();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "TERM"])
        .arg(program("capstan"))
        .args(["serve-nbd", "-a", &at.ip().to_string(), "-n", SUBNQN])
        .args(["--provider", "iwarp", "--socket", utf8(&socket)])
        .args(["--export-name", &name[1..], "--output", "json"])
        .env(CLAIMS, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(&name[1..])));
    signal(child.id(), Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists());
}
