//! What systemd is told of a target (sd_notify(3)): where it listens, what it serves, and what is
//! wrong with that, as long as it is.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use capstan_tests::place::Place;
use capstan_tests::program::{Daemon, signal, utf8};
use nix::sys::signal::Signal;

/// Media are looked at once a second, and the status is told as often.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits for a status that `is_it`.
fn wait_for_status(socket: &UnixDatagram, is_it: impl Fn(&str) -> bool) {
    let mut last = String::new();
    loop {
        let mut message = [0; 4096];
        let length = socket.recv(&mut message);
        let length = length.unwrap_or_else(|error| panic!("{error}, after {last:?}"));
        let message = String::from_utf8_lossy(&message[..length]);
        let mut lines = message.lines();
        if let Some(status) = lines.find_map(|line| line.strip_prefix("STATUS=")) {
            if is_it(status) {
                return;
            }
            last = status.to_owned();
        }
    }
}

#[test]
fn the_status_says_what_is_served_and_what_is_wrong_with_it() {
    let place = Place::new();
    let [cut, moved] = ["cut", "moved"].map(|name| place.image(name));
    let elsewhere = place.folder.path().join("elsewhere");
    place.configure(&[(&cut, ""), (&moved, "")]);
    let path = place.folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    let of = |variable: &str, path: &Path| format!("{variable}={}", utf8(path));
    let variables = [
        place.environment(),
        of("NOTIFY_SOCKET", &path),
        of("RUNTIME_DIRECTORY", &place.folder.path().join("run")),
    ];
    let tool: Vec<_> = ["env"]
        .into_iter()
        .chain(variables.iter().map(String::as_str))
        .collect();
    let daemon = Daemon::serve_under(&tool, &["--config", utf8(&place.config())]);
    let sound =
        |status: &str| status.starts_with("listening at ") && status.ends_with("; 2 namespaces");
    wait_for_status(&socket, sound);
    let of_cut = format!("; 2 namespaces; {}: cut short", utf8(&cut));
    let of_moved = format!("{}: not at its path", utf8(&moved));
    fs::rename(&moved, &elsewhere).expect("renames");
    wait_for_status(&socket, |status| status.ends_with(&of_moved));
    let image = File::options().write(true).open(&cut);
    image.expect("opens").set_len(512 << 10).expect("is cut");
    wait_for_status(&socket, |status| {
        status.ends_with(&format!("{of_cut}; {of_moved}"))
    });
    fs::rename(&elsewhere, &moved).expect("renames");
    wait_for_status(&socket, |status| status.ends_with(&of_cut));
    // What is served is another number then, and what was lost with it is the operator's.
    place.configure(&[(&moved, "")]);
    signal(daemon.pid(), Signal::SIGHUP);
    wait_for_status(&socket, |status| status.ends_with("; 1 namespace"));
    assert!(daemon.stop().success());
}
