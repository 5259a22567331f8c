//! `check` and `serve` decide alike: what the one calls ok is served by the other, and what the one
//! refuses is refused by the other, but for what is not there yet; and what both say of a file that
//! has lost its name.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use capstan_tests::place::Place;
use capstan_tests::program::{has_tools, program, tool, utf8};

/// `timeout SECONDS capstan-target WORDS --config …`: 124 where it has not ended by itself.
fn run(place: &Place, seconds: &str, words: &str) -> Output {
    let mut run = Command::new("env");
    run.arg(place.environment());
    run.args(["timeout", "--signal=KILL", seconds]);
    run.arg(program("capstan-target"));
    run.args([words, "--config", utf8(&place.config())]);
    run.output().expect("it runs")
}

/// Whether the two decide alike of these namespaces, and how.
fn is_served(place: &Place, what: &str, entries: &[(&Path, &str)]) -> bool {
    place.configure(entries);
    let check = run(place, "60", "check");
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let is_ok = check.status.success();
    if is_ok {
        assert!(place.serve().stop().success(), "{what}");
    } else {
        let serve = run(place, "20", "serve");
        let (check, why) = (said(&check), said(&serve));
        assert_eq!(
            serve.status.code(),
            Some(1),
            "{what}: check refuses it ({check}), and it is served: {why}"
        );
    }
    is_ok
}

#[test]
fn what_check_calls_ok_is_served_and_nothing_else() {
    let place = Place::new();
    let folder = place.folder.path();
    let sized = |bytes: u64| {
        let path = folder.join(format!("{bytes}.img"));
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    };
    let (one, odd, small, tiny) = (sized(1 << 20), sized(5000), sized(1000), sized(400));
    let empty = sized(0);
    let (absent, link) = (folder.join("absent"), folder.join("link"));
    std::os::unix::fs::symlink(&one, &link).unwrap();
    let circle = folder.join("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    tool("mkfifo", &[utf8(&folder.join("fifo"))]);
    let fifo = folder.join("fifo");
    let shm = Path::new("/dev/shm").join(format!("capstan-{}.img", std::process::id()));
    File::create(&shm).unwrap().set_len(1 << 20).unwrap();

    let served = |what, entries: &[(&Path, &str)]| is_served(&place, what, entries);
    assert!(served("a file", &[(&one, "")]));
    assert!(served("no whole number of LBAs", &[(&odd, "")]));
    assert!(!served("less than an LBA of 4096", &[(&small, "")]));
    assert!(!served(
        "the same, read-only",
        &[(&small, "read_only = true")]
    ));
    assert!(!served("the same, as written", &[(&small, "lba = 4096")]));
    assert!(served("an LBA of 512", &[(&small, "lba = 512")]));
    assert!(!served("less than any", &[(&tiny, "lba = 512")]));
    assert!(!served("nothing", &[(&empty, "")]));
    // Not all of it would be served at once, and it is as soon as the file is there.
    place.configure(&[(&absent, "")]);
    assert!(!run(&place, "60", "check").status.success());
    let serve = place.serve();
    serve.wait_for_log(&[utf8(&absent), "is not served yet"]);
    assert!(serve.stop().success());
    assert!(!served("a folder", &[(folder, "")]));
    assert!(!served("a link to itself", &[(&circle, "")]));
    assert!(!served("a pipe", &[(&fifo, "")]));
    assert!(!served(
        "a character device",
        &[(Path::new("/dev/null"), "")]
    ));
    assert!(!served("a file twice", &[(&one, ""), (&link, "")]));
    // The other one is used with LBAs of 512 bytes by now.
    let another = sized(1001);
    assert!(!served("one of two", &[(&one, ""), (&another, "")]));
    // Whether these can be depends on the file system: it is the same for both.
    served("direct I/O", &[(&one, "direct = true")]);
    served(
        "direct I/O of 512 bytes",
        &[(&one, "direct = true\nlba = 512")],
    );
    served("direct I/O in memory", &[(&shm, "direct = true")]);
    served(
        "the same, of 512 bytes",
        &[(&shm, "direct = true\nlba = 512")],
    );
    fs::remove_file(&shm).unwrap();
}

/// Without the device of an RDMA listener, whatever else it has; and what is said of the rest.
#[test]
fn a_provider_that_cannot_be_had_is_refused_by_both_and_hides_no_warning() {
    let place = Place::new();
    place.configure(&[(&place.image("volume.img"), "")]);
    let written = fs::read_to_string(place.config()).unwrap();
    for transports in ["", "[\"rdma\"]", "[\"rdma\", \"tcp\"]"] {
        let keys = match transports {
            "" => "provider = \"verbs\"".to_owned(),
            named => format!("provider = \"verbs\"\ntransports = {named}"),
        };
        let other = "[[listener]]\naddress = \"192.0.2.77\"\n[[subsystem]]";
        let text = written.replace("provider = \"iwarp\"", &keys);
        fs::write(place.config(), text.replace("[[subsystem]]", other)).unwrap();
        let (check, serve) = (run(&place, "60", "check"), run(&place, "20", "serve"));
        let words = format!(
            "listen {}: provider verbs cannot be used for {}: ",
            place.at,
            place.at.ip()
        );
        for output in [&check, &serve] {
            assert_eq!(output.status.code(), Some(1), "{keys}: {output:?}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(stderr.matches(&words).count(), 1, "{keys}: {stderr}");
            assert!(stderr.contains("; use provider iwarp or auto"), "{stderr}");
        }
        let stdout = String::from_utf8_lossy(&check.stdout);
        assert!(
            !stdout.contains(&format!("listen {}", place.at)),
            "{stdout}"
        );
        for warning in [
            "192.0.2.77 is not an address of this machine now",
            "allow_any_host",
        ] {
            assert!(stdout.contains(warning), "{keys}: {stdout}");
        }
    }
}

/// The message is one line, and names the size as the file has it.
#[test]
fn check_says_of_a_file_that_is_too_small_what_serve_does() {
    let place = Place::new();
    let path = place.folder.path().join("small.img");
    File::create(&path).unwrap().set_len(1000).unwrap();
    place.configure(&[(&path, "")]);
    let check = place.refusal();
    let serve = run(&place, "20", "serve");
    let serve = String::from_utf8_lossy(&serve.stderr);
    let expected = "a size of 1000 bytes is less than one LBA of 4096; make it larger, or choose LBAs of 512 bytes (`lba = 512`)";
    assert_eq!(check.matches(expected).count(), 1, "{check}");
    assert!(serve.contains(expected), "{serve}");
    place.configure(&[(&path, "lba = 512")]);
    assert!(place.check().contains(": ok, "));
}

/// It is not gone with the process: it has a name, and gets this one back as the log says.
#[test]
fn a_file_that_has_lost_one_of_two_names_is_found_by_the_other() {
    if !has_tools(
        "a_file_that_has_lost_one_of_two_names_…",
        &["find", "findmnt"],
    ) {
        return;
    }
    let place = Place::new();
    // A shell takes what is told.
    let folder = place.folder.path().join("it's of $HOME");
    fs::create_dir(&folder).unwrap();
    let (path, other) = (folder.join("volume 1.img"), folder.join("other"));
    fs::rename(place.image("volume.img"), &path).unwrap();
    place.configure(&[(&path, "")]);
    let daemon = place.serve();
    fs::hard_link(&path, &other).unwrap();
    fs::remove_file(&path).unwrap();
    let line = daemon.wait_for_log_after(0, &["ERROR", utf8(&path), "its name there was removed"]);
    assert!(line.contains("the file has 1 other name (find "), "{line}");
    for wrong in ["gone", "cannot be found any more", "(deleted)"] {
        assert!(!line.contains(wrong), "{wrong}: {line}");
    }
    let refusal = place.refusal();
    assert!(refusal.contains("has 1 other name (find "), "{refusal}");
    assert!(!refusal.contains("gone"), "{refusal}");
    let (_, commands) = line.split_once("other name (").unwrap();
    let (find, give) = commands.split_once("): give it this one back (").unwrap();
    // It fails where another test removes a file while it looks.
    let name = tool("sh", &["-c", &format!("{find} || true")]);
    assert_eq!(name.trim(), utf8(&other), "{find}");
    let (give, _) = give.split_once(')').unwrap();
    let name = format!("\"{}\"", name.trim().replace('$', "\\$"));
    tool("sh", &["-c", &give.replace("NAME", &name)]);
    daemon.wait_for_log(&["is at its path again"]);
    assert!(daemon.stop().success());
}
