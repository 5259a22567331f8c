//! Files that are served and have exchanged their names, where one reload cannot put them back:
//! nothing is changed, and what the refusal says to do works as it is written.

use std::fs::{self, OpenOptions};
use std::path::Path;

use capstan_tests::place::{Place, has, reload, volume};
use capstan_tests::program::{tool, utf8};

fn exchange(a: &Path, b: &Path) {
    let t = a.with_extension("t");
    for (from, to) in [(a, t.as_path()), (b, a), (&t, b)] {
        fs::rename(from, to).expect("renames");
    }
}

/// What stands between two pieces of the line that has both.
fn between<'l>(log: &'l [String], start: &str, end: &str) -> &'l str {
    let mut found = log.iter().filter_map(|line| {
        let (_, rest) = line.split_once(start)?;
        Some(rest.split_once(end)?.0)
    });
    found
        .next()
        .unwrap_or_else(|| panic!("{start} … {end}: {log:#?}"))
}

/// The UUID of one goes with its medium to the other path, where it is not written.
#[test]
fn a_reload_that_could_not_put_exchanged_files_back_takes_none_of_them_out() {
    for step in ["move", "another, here", "another, there"] {
        let place = Place::new();
        let [a, b] = ["a", "b"].map(|name| place.image(name));
        let written = "uuid = \"26da56f0-8220-5934-a0a4-f27431372052\"";
        place.configure(&[(&a, ""), (&b, written)]);
        let daemon = place.serve();
        let host = place.connect();
        let before = place.shown();
        for nsid in [1, 2] {
            let byte = u8::try_from(nsid).expect("a byte");
            volume(&host, nsid).write(0, &[byte; 4096]).expect("writes");
        }
        exchange(&a, &b);
        let log = reload(&daemon);
        let refused = ["ERROR", "was not reloaded", "nothing was changed"];
        assert!(has(&log, &refused), "{log:#?}");
        for words in ["removed", "there is none", "taken out and put back"] {
            assert!(!has(&log, &[words]), "{words}: {log:#?}");
        }
        assert_eq!(place.shown(), before);
        for nsid in [1, 2] {
            volume(&host, nsid).write(4096, &[7; 4096]).expect("writes");
        }
        // Each of its next steps, taken as it is written.
        let line = between(&log, "move `", "`").to_owned();
        let to = between(
            &log,
            "to the [[subsystem.namespace]] of ",
            ", or write another",
        );
        assert_eq!((line.as_str(), to), (written, utf8(&a)), "{log:#?}");
        let says = ["write another `uuid` (`uuidgen` makes one) at one of them"];
        assert!(has(&log, &says), "{log:#?}");
        let other = format!("uuid = \"{}\"", tool("uuidgen", &[]).trim());
        match step {
            "move" => place.configure(&[(&a, &line), (&b, "")]),
            "another, here" => place.configure(&[(&a, &other), (&b, written)]),
            _ => place.configure(&[(&a, ""), (&b, &other)]),
        }
        let log = reload(&daemon);
        let said = ["configuration reloaded: namespaces removed: 2, and then namespaces added: 2"];
        assert!(has(&log, &said), "{step}: {log:#?}");
        let now = place.shown();
        assert_eq!(now.len(), 2, "{step}: {now:?}");
        // Where nothing else was written, what hosts know goes with what is stored.
        assert_eq!(now == before, step == "move", "{step}: {now:?}");
        let another = place.connect();
        for nsid in [1, 2] {
            let mut read = [0; 4096];
            volume(&another, nsid).read(0, &mut read).expect("reads");
            assert_eq!(read, [u8::try_from(nsid).unwrap(); 4096], "{step}");
        }
        another.close();
        host.close();
        assert!(daemon.stop().success());
    }
}

#[test]
fn what_cannot_be_opened_any_more_is_found_before_exchanged_files_are_taken_out() {
    let place = Place::new();
    let [a, b] = ["a", "b"].map(|name| place.image(name));
    place.configure(&[(&a, ""), (&b, "")]);
    let daemon = place.serve();
    let before = place.shown();
    exchange(&a, &b);
    let cut = OpenOptions::new().write(true).open(&a).expect("opens");
    cut.set_len(0).expect("cuts");
    let log = reload(&daemon);
    let refused = [
        "was not reloaded",
        "nothing was changed",
        utf8(&a),
        "is 0 bytes",
    ];
    assert!(has(&log, &refused), "{log:#?}");
    assert!(!has(&log, &["removed"]), "{log:#?}");
    assert_eq!(place.shown(), before);
    cut.set_len(1 << 20).expect("as it was");
    let log = reload(&daemon);
    let said = ["configuration reloaded: namespaces removed: 2, and then namespaces added: 2"];
    assert!(has(&log, &said), "{log:#?}");
    assert_eq!(place.shown(), before);
    // What was cut is lost.
    drop(daemon);
}

/// The numbers of those that are out for a moment are not free.
#[test]
fn a_namespace_that_comes_with_the_exchange_of_others_takes_no_number_of_theirs() {
    let place = Place::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| place.image(name));
    place.configure(&[(&a, ""), (&b, "")]);
    let daemon = place.serve();
    let before = place.shown();
    exchange(&a, &b);
    place.configure(&[(&c, ""), (&a, ""), (&b, "")]);
    let log = reload(&daemon);
    assert!(has(&log, &["configuration reloaded"]), "{log:#?}");
    let now = place.shown();
    assert_eq!(now[..2], before[..], "{now:?}");
    assert_eq!(now.len(), 3, "{now:?}");
    assert!(daemon.stop().success());
}
