//! `upgrade --check`: what a binary says of a target that runs before it takes its place.

use std::fs;
use std::process::Output;

use capstan_tests::program::{own_address, utf8};
use capstan_tests::steered::Steered;
use capstan_tests::target::SUBNQN;

/// A target with a namespace on a file and its state folder, which runs.
struct Upgraded {
    place: Steered,
    _daemon: capstan_tests::program::Daemon,
}

impl Upgraded {
    fn start() -> Self {
        let place = Steered::new(own_address(), &["1.img"]);
        place.make("1.img");
        fs::create_dir(place.path("state")).unwrap();
        let state = format!("STATE_DIRECTORY={}", place.path("state").display());
        let daemon = place.begin_under(&["env", &state]);
        daemon.wait_for_log(&["listening"]);
        Self {
            place,
            _daemon: daemon,
        }
    }

    /// From a process that has not the target's environment.
    fn check(&self) -> (bool, String) {
        let Output { status, stdout, .. } = self.place.run(&["upgrade", "--check"]);
        (status.success(), String::from_utf8(stdout).unwrap())
    }
}

#[test]
fn the_same_version_takes_over_all_and_says_what_a_restart_loses() {
    let target = Upgraded::start();
    let (takes_over, said) = target.check();
    assert!(takes_over, "{said}");
    let state = target.place.path("state");
    for words in [
        env!("CARGO_PKG_VERSION"),
        &format!("{} is read whole", state.display()),
        utf8(&target.place.path("target.toml")),
    ] {
        assert!(said.contains(words), "`{words}` is not in:\n{said}");
    }
    assert!(said.contains("0 warning(s), 0 error(s)"), "{said}");

    let added = target.place.run(&["namespace", "add", SUBNQN, "ram:1MiB"]);
    assert!(added.status.success(), "{added:?}");
    let (takes_over, said) = target.check();
    assert!(takes_over, "{said}");
    for words in [
        "in no file: ",
        "`capstan-target config save`",
        &format!("2 of {SUBNQN}"),
    ] {
        assert!(said.contains(words), "`{words}` is not in:\n{said}");
    }
}

#[test]
fn what_is_not_taken_over_is_named() {
    let target = Upgraded::start();
    let file = target.place.path("target.toml");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, before.replace("reactors", "of_another_version")).unwrap();
    let (takes_over, said) = target.check();
    assert!(!takes_over && said.contains("of_another_version"), "{said}");
    fs::write(&file, before).unwrap();

    let uuid = "0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1";
    let damaged = target
        .place
        .path(&format!("state/reservations-{uuid}.toml"));
    fs::write(&damaged, "version = 99\n").unwrap();
    let (takes_over, said) = target.check();
    assert!(!takes_over && said.contains(utf8(&damaged)), "{said}");
    fs::remove_file(&damaged).unwrap();

    fs::write(target.place.path("state/nfs-clients"), "of another version").unwrap();
    let (takes_over, said) = target.check();
    assert!(!takes_over && said.contains("nfs-clients"), "{said}");
    fs::remove_file(target.place.path("state/nfs-clients")).unwrap();
    assert!(target.check().0);
}
