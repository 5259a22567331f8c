//! Volumes that outlive a boot, by `/etc/capstan/volumes.toml`, without systemd: `tests/systemd`
//! has the units.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use capstan_tests::program::{Machine, complaint, signal, told, tool, utf8};
use capstan_tests::scene::Scene;
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

/// A machine with a file of volumes.
struct Volumes<'m> {
    machine: &'m Machine,
    file: PathBuf,
    /// Of one volume, and of no other test's.
    name: String,
}

impl<'m> Volumes<'m> {
    fn of(machine: &'m Machine) -> Self {
        Self {
            machine,
            file: machine.path("volumes.toml"),
            name: format!("test-{}", std::process::id()),
        }
    }

    fn command(&self, command: &str, args: &[&str]) -> Command {
        let mut capstan = self.machine.command(command, args);
        capstan.env("CAPSTAN_VOLUMES", &self.file);
        capstan
    }

    fn run(&self, command: &str, args: &[&str]) -> Output {
        self.command(command, args).output().expect("capstan runs")
    }

    /// `attach --persist` of the target's volume.
    fn persist(&self, args: &[&str]) -> Output {
        let target = self.machine.target();
        let target: Vec<&str> = target.iter().map(String::as_str).collect();
        let args = [&target, &["--persist", "--name", &*self.name][..], args].concat();
        self.run("attach", &args)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    fn link(&self) -> PathBuf {
        Path::new("/dev/capstan/by-name").join(&self.name)
    }
}

/// Where udev runs it makes the names, if it has the rules.
fn names_are_made_here() -> bool {
    !Path::new("/run/udev/control").exists()
}

#[test]
fn a_volume_is_written_down_attached_again_and_taken_out() {
    let test = "a_volume_is_written_down_attached_again_and_taken_out";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let volumes = Volumes::of(&scene.machine);
    let name = &*volumes.name;
    let device = PathBuf::from(told(&volumes.persist(&["--io-timeout", "9"])).trim());
    let text = volumes.text();
    assert!(text.starts_with("# Volumes of this machine"), "{text}");
    for line in [
        format!("name = {name:?}"),
        format!("nqn = {SUBNQN:?}"),
        "io_timeout = 9".to_owned(),
        "transport = \"rdma\"".to_owned(),
        "provider = \"iwarp\"".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    // What is as it is without being said is left out.
    assert!(!text.contains("keep_alive_tmo"), "{text}");
    let list = scene.machine.list();
    assert_eq!(list[0]["name"], name);
    if names_are_made_here() {
        assert_eq!(fs::read_link(volumes.link()).unwrap(), device);
    }
    // All commands know it by its name, which no other may have.
    told(&volumes.run("ns-rescan", &[name]));
    let said = complaint(&volumes.persist(&[]));
    assert!(said.contains("another volume"), "{said}");
    told(&volumes.run("connect-all", &[]));
    assert_eq!(scene.machine.list().len(), 1);
    told(&volumes.run("detach", &[name]));
    scene.machine.assert_clean(&device);
    assert!(!volumes.link().exists());
    let said = told(&volumes.run("connect-all", &[name]));
    assert!(said.starts_with(&format!("{name} is /dev/loop")), "{said}");
    let commented = format!("# First of all.\n{}", volumes.text());
    fs::write(&volumes.file, &commented).unwrap();
    told(&volumes.run("detach", &["--persist", name]));
    scene.machine.assert_clean(&device);
    let text = volumes.text();
    assert!(
        text.starts_with("# First of all.") && !text.contains(name),
        "{text}"
    );
}

#[test]
fn one_that_cannot_be_attached_keeps_no_other_back_and_a_mistake_keeps_all() {
    let test = "one_that_cannot_be_attached_keeps_no_other_back_and_a_mistake_keeps_all";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let volumes = Volumes::of(&scene.machine);
    let name = &*volumes.name;
    told(&volumes.persist(&[]));
    told(&volumes.run("detach", &[name]));
    let of_volume = volumes.text();
    let absent = of_volume
        .replace(name, "absent")
        .replace(SUBNQN, "nqn.2026-11.org.example:absent");
    fs::write(&volumes.file, format!("{absent}\n{of_volume}")).unwrap();
    let said = complaint(&volumes.run("connect-all", &[]));
    assert!(said.contains("absent: connecting to"), "{said}");
    assert!(
        said.contains("1 of 2 volumes are not attached (absent)"),
        "{said}"
    );
    assert_eq!(scene.machine.list()[0]["name"], name);
    // What is not attached is taken out all the same.
    told(&volumes.run("detach", &["--persist", "absent"]));
    assert!(!volumes.text().contains("absent"));
    told(&volumes.run("detach", &[name]));
    fs::write(&volumes.file, of_volume.replace("address", "adress")).unwrap();
    let output = volumes.run("connect-all", &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = complaint(&output);
    assert!(
        said.contains("adress: there is no such key; did you mean `address`?"),
        "{said}"
    );
    // What others could have written is not read.
    fs::write(&volumes.file, &of_volume).unwrap();
    tool("chmod", &["o+w", utf8(&volumes.file)]);
    let said = complaint(&volumes.run("connect-all", &[]));
    assert!(said.contains("this user or root alone can write"), "{said}");
    let said = complaint(&volumes.run("detach", &["--persist", "nothing"]));
    assert!(said.contains("can write"), "{said}");
}

/// The process of a unit; killed when it is dropped.
struct Unit {
    child: Child,
    notified: UnixDatagram,
}

impl Unit {
    /// Starts it as systemd does, and waits until it is ready.
    fn start(volumes: &Volumes<'_>) -> Self {
        let socket = volumes.machine.path("notify");
        let _ = fs::remove_file(&socket);
        let notified = UnixDatagram::bind(&socket).unwrap();
        notified
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut command = volumes.command("serve-volume", &[&volumes.name]);
        let command = command.env("NOTIFY_SOCKET", &socket).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let unit = Self { child, notified };
        unit.wait_for("READY=1");
        unit
    }

    /// Waits until it has told this.
    fn wait_for(&self, words: &str) -> String {
        let mut told = [0; 4096];
        loop {
            let count = self
                .notified
                .recv(&mut told)
                .expect("it tells systemd in time");
            let text = String::from_utf8_lossy(&told[..count]);
            if text.contains(words) {
                return text.into_owned();
            }
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // It has ended, but in a test that failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// systemd signals it when it stops, again when that takes long, and with each start that fails.
#[test]
fn a_unit_ends_with_the_last_user_of_its_disk_however_often_it_is_asked() {
    let test = "a_unit_ends_with_the_last_user_of_its_disk_however_often_it_is_asked";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let volumes = Volumes::of(&scene.machine);
    told(&volumes.persist(&[]));
    told(&volumes.run("detach", &[&volumes.name]));
    let mut unit = Unit::start(&volumes);
    let list = scene.machine.list();
    assert_eq!(list[0]["pid"], unit.child.id());
    let device = list[0]["device"].as_str().unwrap().to_owned();
    // A second one of the volume does not come to be.
    let said = complaint(&volumes.run("serve-volume", &[&volumes.name]));
    assert!(said.contains("is still"), "{said}");
    let point = scene.machine.mount_point();
    tool("mount", &[&device, utf8(&point)]);
    for _ in 0..3 {
        signal(unit.child.id(), Signal::SIGTERM);
        let told = unit.wait_for("asked to end, but");
        assert!(told.contains(utf8(&point)), "{told}");
    }
    fs::write(point.join("file"), "kept").unwrap();
    tool("sync", &["-f", utf8(&point.join("file"))]);
    assert_eq!(unit.child.try_wait().unwrap(), None);
    tool("umount", &[utf8(&point)]);
    assert!(unit.child.wait().unwrap().success());
    scene.machine.assert_clean(Path::new(&device));
    // Not in use, it ends at the first.
    let mut unit = Unit::start(&volumes);
    signal(unit.child.id(), Signal::SIGTERM);
    assert!(unit.child.wait().unwrap().success());
    wait_until("nothing is attached", || scene.machine.list().is_empty());
}
