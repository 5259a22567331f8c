//! What keeps a target from listening or from opening an export: the thing at fault, what was
//! expected and the next step, once.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use capstan_tests::program::{Daemon, complaint, own_address, program, utf8};
use nix::unistd::geteuid;

/// What `serve` says last when it fails.
fn refused(tool: &[&str], args: &[&str]) -> String {
    let words: Vec<&str> = [tool, &["serve"], args].concat();
    let [first, rest @ ..] = &words[..] else {
        panic!("a program")
    };
    let mut serve = Command::new(first);
    let output = serve.args(rest).stdin(Stdio::null()).output().unwrap();
    complaint(&output).lines().last().unwrap().to_owned()
}

fn target() -> PathBuf {
    program("capstan-target")
}

#[test]
fn a_port_in_use_names_the_process_that_has_it() {
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let listen = at.to_string();
    let export = [
        "--export",
        "ram:16MiB",
        "--provider",
        "iwarp",
        "--listen",
        &listen,
    ];
    let error = refused(&[utf8(&target())], &export);
    let expected = format!(
        "capstan-target: cannot listen at {at}: port 4420 is in use by process {} (capstan-target); \
         expected a free port: end that, or listen at another port; `ss -ltnp 'sport = :4420'` shows \
         more",
        daemon.pid()
    );
    assert_eq!(error, expected);
    assert!(daemon.stop().success());
}

#[test]
fn an_address_of_another_machine_names_those_of_this_one() {
    let export = [
        "--export",
        "ram:16MiB",
        "--allow-any-host",
        "--provider",
        "iwarp",
    ];
    let error = refused(
        &[utf8(&target())],
        &[&export[..], &["--listen", "192.0.2.1"]].concat(),
    );
    for words in [
        "cannot listen at 192.0.2.1:4420: 192.0.2.1 is not an address of this machine now; expected \
         one of its addresses: ",
        "127.0.0.1 (lo)",
        "`ip address add 192.0.2.1/PREFIX dev INTERFACE`",
    ] {
        assert_eq!(error.matches(words).count(), 1, "{words}: {error}");
    }
    for (address, words) in [
        ("[fe80::1]:4420", "is link-local and cannot be listened on"),
        ("fe80::1%eth0", "has a zone"),
    ] {
        let output = Command::new(target())
            .args(["serve", "--listen", address])
            .args(export)
            .output();
        let error = complaint(&output.unwrap());
        assert!(error.contains(words) && error.contains("`::`"), "{error}");
    }
}

#[test]
fn a_low_port_names_the_privilege_that_it_takes() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if !geteuid().is_root() || first.trim().parse::<u16>().unwrap() <= 441 {
        eprintln!("SKIPPED: needs root, to be another user, and privileged ports up to 441");
        return;
    }
    // Where that user can reach it.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("capstan-target");
    fs::copy(target(), &copy).unwrap();
    let user = ["setpriv", "--reuid", "65534", "--clear-groups", utf8(&copy)];
    let export = [
        "--export",
        "ram:1MiB",
        "--provider",
        "iwarp",
        "--listen",
        "127.0.0.1:441",
    ];
    let error = refused(&user, &export);
    for words in ["port 441 is below ", "CAP_NET_BIND_SERVICE in the unit"] {
        assert_eq!(error.matches(words).count(), 1, "{words}: {error}");
    }
}

/// Takes the attribute away again, whatever ends the test.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Option<Self> {
        let made = Command::new("chattr").args(["+i", utf8(&path)]).output();
        if made.is_ok_and(|output| output.status.success()) {
            return Some(Self(path));
        }
        eprintln!("SKIPPED: no file can be made immutable here");
        None
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = Command::new("chattr").args(["-i", utf8(&self.0)]).output();
    }
}

#[test]
fn an_immutable_file_is_called_that() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let Some(image) = Immutable::new(image) else {
        return;
    };
    let path = utf8(&image.0);
    let export = [
        "--export",
        path,
        "--listen",
        "127.0.0.1:0",
        "--provider",
        "iwarp",
    ];
    let error = refused(&[utf8(&target())], &export);
    for words in [
        "Operation not permitted",
        "it is immutable (`lsattr ",
        "`chattr -i ",
    ] {
        assert_eq!(error.matches(words).count(), 1, "{words}: {error}");
    }
    // Reading needs no more.
    let daemon = Daemon::serve(&[&export[..], &["--read-only"]].concat());
    assert!(daemon.stop().success());
}
