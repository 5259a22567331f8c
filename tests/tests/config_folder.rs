//! A configuration in several files: `target.toml`, and those of `target.d` beside it.

use std::fs;
use std::process::Output;

use capstan_control::Request;
use capstan_control::answer::ConfigDiff;
use capstan_tests::program::own_address;
use capstan_tests::steered::Steered;

const MORE: &str = "# Of another team.\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:more\"\nallowed_hosts = []\n";

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn a_change_is_saved_in_the_file_that_has_what_is_changed() {
    let target = Steered::new(own_address(), &["1.img"]);
    target.make("1.img");
    fs::create_dir(target.path("target.d")).expect("a folder");
    let more = target.path("target.d/more.toml");
    fs::write(&more, MORE).expect("it is written");
    let main = fs::read_to_string(target.path("target.toml")).expect("it is there");
    let daemon = target.begin_under(&[]);
    daemon.wait_for_log(&["listening at"]);
    let status = target.status();
    assert_eq!(status.subsystems.len(), 2);
    let files: Vec<_> = ["target.toml", "target.d/more.toml"]
        .map(|name| target.path(name).display().to_string())
        .into();
    assert_eq!(status.config.files, files);

    let host = "nqn.2014-08.org.example:host";
    let allow = ["host", "allow", "nqn.2026-11.org.example:more", host];
    said(&target.run(&allow));
    let diff: ConfigDiff = target
        .client()
        .ask(&Request::ConfigDiff {})
        .expect("a diff");
    assert!(
        diff.diff.starts_with(&format!("--- {}\n", more.display())),
        "{}",
        diff.diff
    );
    let saved = said(&target.run(&["config", "save"]));
    assert!(
        saved.contains("more.toml: written") && !saved.contains("target.toml"),
        "{saved}"
    );
    let now = fs::read_to_string(&more).expect("it is there");
    assert!(
        now.starts_with("# Of another team.\n") && now.contains(host),
        "{now}"
    );
    let untouched = fs::read_to_string(target.path("target.toml")).expect("it is there");
    assert_eq!(untouched, main);

    // A file that comes is taken in, and one with a mistake is named.
    let third = MORE.replace(":more", ":third");
    fs::write(target.path("target.d/third.toml"), &third).expect("it is written");
    said(&target.run(&["reload"]));
    assert_eq!(target.status().subsystems.len(), 3);
    fs::write(target.path("target.d/twice.toml"), &third).expect("it is written");
    let reload = target.run(&["reload"]);
    let words = String::from_utf8(reload.stderr).expect("text");
    assert!(!reload.status.success(), "{words}");
    for name in ["twice.toml line 3", "third.toml line 3"] {
        assert!(words.contains(name), "{words}");
    }
    assert_eq!(target.status().subsystems.len(), 3);
    assert!(daemon.stop().success());
}
