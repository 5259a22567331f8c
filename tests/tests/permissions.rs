//! Commands of an unprivileged user: each refusal names the thing at fault, and gives only advice
//! that this user can take.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use capstan_tests::program::{has_tools, program, utf8};
use nix::unistd::geteuid;

const NOBODY: &str = "65534";

/// A folder of root with the target's program, where another user may run that.
struct Place(tempfile::TempDir);

impl Place {
    /// `None`, and why, where this process cannot be another user.
    fn new(test: &str) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED {test}: it needs root, to be another user");
            return None;
        }
        if !has_tools(test, &["setpriv"]) {
            return None;
        }
        let place = Self(tempfile::tempdir().unwrap());
        place.set_mode(Path::new(""), 0o755);
        fs::copy(program("capstan-target"), place.path("capstan-target")).unwrap();
        for folder in ["state", "closed"] {
            fs::create_dir(place.path(folder)).unwrap();
        }
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set_mode(&self, name: &Path, mode: u32) {
        let path = self.0.path().join(name);
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// What `capstan-target ARGS` says to user nobody.
    fn said(&self, args: &[&str]) -> String {
        let output = Command::new("setpriv")
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
            .arg(self.path("capstan-target"))
            .args(args)
            .env("STATE_DIRECTORY", self.path("state"))
            .env("RUNTIME_DIRECTORY", self.path("run"))
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    }

    fn check(&self, image: &Path) -> String {
        let toml = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"{}\"\n",
            image.display()
        );
        fs::write(self.path("target.toml"), toml).unwrap();
        self.said(&["check", "--config", utf8(&self.path("target.toml"))])
    }
}

#[test]
fn what_a_user_may_not_open_comes_with_what_would_do_and_no_more() {
    let test = "what_a_user_may_not_open_comes_with_what_would_do_and_no_more";
    let Some(place) = Place::new(test) else {
        return;
    };
    let image = place.path("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let as_user = "run the target as that user";
    let in_group = "put its user into that group";
    let read_only = "export it with `read_only = true`";
    for (mode, helps) in [
        (0o600, [true, false, false]),
        (0o660, [true, true, false]),
        (0o644, [true, false, true]),
        (0o664, [true, true, true]),
    ] {
        place.set_mode(Path::new("image"), mode);
        let said = place.check(&image);
        let said = said
            .lines()
            .find(|line| line.contains("cannot open"))
            .unwrap_or_else(|| panic!("{said}"));
        assert!(said.contains(&format!("mode {mode:04o}: ")), "{said}");
        for (way, helps) in [as_user, in_group, read_only].into_iter().zip(helps) {
            assert_eq!(said.contains(way), helps, "{mode:o}, {way}: {said}");
        }
    }
}

#[test]
fn a_folder_that_a_user_may_not_look_into_is_named() {
    let test = "a_folder_that_a_user_may_not_look_into_is_named";
    let Some(place) = Place::new(test) else {
        return;
    };
    let folder = place.path("closed/below");
    fs::create_dir(&folder).unwrap();
    let image = folder.join("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    place.set_mode(Path::new("closed"), 0o700);
    let said = place.check(&image);
    let words = format!(
        "this user may not look into {}, which belongs to UID 0 and GID 0 with mode 0700",
        place.path("closed").display()
    );
    assert!(said.contains(&words), "{said}");
}

#[test]
fn a_state_folder_of_another_user_is_named_with_what_to_run_as() {
    let test = "a_state_folder_of_another_user_is_named_with_what_to_run_as";
    let Some(place) = Place::new(test) else {
        return;
    };
    let image = place.path("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    place.set_mode(Path::new("state"), 0o700);
    let said = place.said(&["clear-lost-writes", utf8(&image)]);
    for words in [
        utf8(&place.path("state")),
        "as root",
        "the user of the target",
    ] {
        assert!(said.contains(words), "no {words} in {said}");
    }
}
