//! How volumes are mounted, as `capstan list` and `umount` must know it: file systems with device
//! numbers of their own, mounts made by hand, several of them, and what lies on others.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use capstan_tests::container::Container;
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, told, tool, utf8,
};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use tempfile::TempDir;

/// A file with an empty file system of `kind`.
fn image(dir: &Path, kind: &str) -> PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(320 << 20).unwrap();
    let options: &[&str] = if kind == "btrfs" {
        &["-q", "-s", "4096"]
    } else {
        &["-q", "-b", "4096"]
    };
    tool(&format!("mkfs.{kind}"), &[options, &[utf8(&path)]].concat());
    path
}

/// The mount points that `list` shows, the last one first.
fn listed(machine: &Machine) -> Vec<PathBuf> {
    let list = machine.list();
    assert_eq!(list.len(), 1, "{list:?}");
    let points = list[0]["mount_points"].as_array().expect("a list").iter();
    points.map(|p| PathBuf::from(p.as_str().unwrap())).collect()
}

fn folder(machine: &Machine, name: &str) -> PathBuf {
    let path = machine.path(name);
    fs::create_dir(&path).unwrap();
    path
}

/// Whether this kernel has the file system. Says so when not.
fn has_file_system(test: &str, kind: &str) -> bool {
    let has = fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains(kind));
    if !has {
        eprintln!("SKIPPED {test}: this kernel has no {kind}");
    }
    has
}

/// A volume of a target with an empty file system.
struct Scene {
    _dir: TempDir,
    _daemon: Daemon,
    at: SocketAddr,
}

impl Scene {
    /// Of this kind of file system. `None` where this machine lacks `tools` beside its mkfs, which
    /// is said.
    fn new(test: &str, kind: &str, tools: &[&str]) -> Option<Self> {
        let mkfs = format!("mkfs.{kind}");
        let is_able = has_disks(test, &[&[mkfs.as_str()], tools].concat());
        // That of ext4 may be a module, which its mount loads.
        let is_able = is_able && (kind == "ext4" || has_file_system(test, kind));
        is_able.then(|| {
            let dir = tempfile::tempdir().unwrap();
            let image = image(dir.path(), kind);
            let at = own_address();
            Self {
                _daemon: Daemon::start(utf8(&image), 4096, at),
                _dir: dir,
                at,
            }
        })
    }

    /// A machine that may mount it.
    fn machine(&self) -> Machine {
        Machine::new(self.at)
    }

    /// The same, which has mounted it: with its mount point and its disk.
    fn mounted(&self) -> (Machine, PathBuf, PathBuf) {
        let machine = self.machine();
        machine.mount(&[]);
        let (point, device) = (machine.mount_point(), device(&machine));
        (machine, point, device)
    }
}

/// The disk of the only volume.
fn device(machine: &Machine) -> PathBuf {
    PathBuf::from(machine.list()[0]["device"].as_str().unwrap())
}

/// Runs a line of a program and its arguments.
fn follow(advice: &str) {
    let words: Vec<&str> = advice.split(' ').collect();
    tool(words[0], &words[1..]);
}

#[test]
fn btrfs_is_mounted_listed_and_unmounted() {
    let test = "btrfs_is_mounted_listed_and_unmounted";
    let Some(scene) = Scene::new(test, "btrfs", &["btrfs"]) else {
        return;
    };
    let (machine, mount_point, device) = scene.mounted();
    assert_eq!(listed(&machine), std::slice::from_ref(&mount_point));
    fs::write(mount_point.join("file"), "x").unwrap();
    let error = complaint(&machine.run("detach", &[utf8(&device)]));
    assert!(
        error.contains(&format!("mounted at {}", utf8(&mount_point))),
        "{error}"
    );

    // A subvolume and a bind mount, both made by hand.
    tool(
        "btrfs",
        &["-q", "subvolume", "create", utf8(&mount_point.join("sub"))],
    );
    let [sub, bound] = ["sub", "bound"].map(|name| folder(&machine, name));
    tool("mount", &["-o", "subvol=sub", utf8(&device), utf8(&sub)]);
    tool("mount", &["--bind", utf8(&mount_point), utf8(&bound)]);
    assert_eq!(
        listed(&machine),
        [bound.clone(), sub.clone(), mount_point.clone()]
    );
    let text = told(&machine.run("umount", &[utf8(&mount_point)]));
    assert!(
        text.contains(&format!("still mounted at {}", utf8(&bound))),
        "{text}"
    );
    told(&machine.run("umount", &[utf8(&sub)]));
    assert_eq!(listed(&machine), std::slice::from_ref(&bound));
    told(&machine.run("umount", &[utf8(&bound)]));
    machine.assert_clean(&device);

    machine.mount(&["-o", "subvol=sub"]);
    assert!(!mount_point.join("file").exists());
    machine.umount();
    machine.assert_clean(&device);
}

/// The kernel names one of its devices as what is mounted, and no process has the others open.
#[test]
fn each_device_of_a_file_system_of_several_is_known_to_be_in_use() {
    let test = "each_device_of_a_file_system_of_several_is_known_to_be_in_use";
    if !has_disks(test, &["mkfs.btrfs"]) || !has_file_system(test, "btrfs") {
        return;
    }
    let at = own_address();
    let dir = tempfile::tempdir().unwrap();
    let mut text = format!(
        "[[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n",
        at.ip()
    );
    for name in ["one", "two"] {
        let image = dir.path().join(name);
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let path = utf8(&image);
        text.push_str(&format!("[[subsystem.namespace]]\npath = \"{path}\"\n"));
    }
    let config = dir.path().join("target.toml");
    fs::write(&config, text).unwrap();
    let _daemon = Daemon::serve(&["--config", utf8(&config)]);
    let machine = Machine::new(at);
    let devices = ["1", "2"].map(|nsid| machine.attach(&["-N", nsid]));
    let [one, two] = devices.each_ref().map(|device| utf8(device));
    let both = folder(&machine, "both");
    // It takes loop devices for the same whose files have the same path: with the one mounted it
    // would not touch the other.
    tool("mkfs.btrfs", &["-q", "-s", "4096", one]);
    tool("mount", &[one, utf8(&both)]);
    tool("mkfs.btrfs", &["-q", "-s", "4096", two]);
    tool("umount", &[utf8(&both)]);
    tool("mkfs.btrfs", &["-q", "-f", "-s", "4096", one, two]);
    tool("mount", &[one, utf8(&both)]);
    for device in [one, two] {
        let error = complaint(&machine.run("detach", &[device]));
        let said = format!("{device} is mounted at {}", utf8(&both));
        assert!(error.contains(&said), "{error}");
    }
    tool("umount", &[utf8(&both)]);
    // What is said where one of them is not here.
    tool("btrfs", &["device", "scan"]);
    tool("btrfs", &["filesystem", "show", one]);
    tool("mount", &[two, utf8(&both)]);
    tool("umount", &[utf8(&both)]);
    for device in &devices {
        told(&machine.run("detach", &[utf8(device)]));
    }
    devices
        .iter()
        .for_each(|device| machine.assert_clean(device));
}

#[test]
fn what_lies_on_a_volume_is_unmounted_before_it() {
    let test = "what_lies_on_a_volume_is_unmounted_before_it";
    let Some(scene) = Scene::new(test, "ext4", &[]).filter(|_| has_file_system(test, "overlay"))
    else {
        return;
    };
    let machine = scene.machine();
    let mount_point = machine.mount_point();
    let [merged, bound] = ["merged", "bound"].map(|name| folder(&machine, name));
    let overlay = || {
        let layer = |name: &str| {
            let path = mount_point.join(name);
            fs::create_dir_all(&path).unwrap();
            utf8(&path).to_owned()
        };
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            layer("l"),
            layer("u"),
            layer("w")
        );
        tool(
            "mount",
            &["-t", "overlay", "overlay", "-o", &options, utf8(&merged)],
        );
    };
    machine.mount(&[]);
    overlay();
    fs::write(merged.join("file"), "kept").unwrap();
    assert_eq!(listed(&machine), [merged.clone(), mount_point.clone()]);
    // Not before it, and what the message names works.
    let error = complaint(&machine.run("umount", &[utf8(&mount_point)]));
    let advice = format!("capstan umount {}", utf8(&merged));
    assert!(error.contains(&advice), "{error}");
    let text = told(&machine.run("umount", &[utf8(&merged)]));
    assert!(text.contains("still mounted at"), "{text}");
    let attached = device(&machine);
    machine.umount();
    machine.assert_clean(&attached);

    // By its device everything goes: here mounted by hand, with a bind mount of a folder on it.
    let device = machine.attach(&[]);
    tool("mount", &[utf8(&device), utf8(&mount_point)]);
    overlay();
    assert_eq!(fs::read_to_string(merged.join("file")).unwrap(), "kept");
    tool(
        "mount",
        &["--bind", utf8(&mount_point.join("u")), utf8(&bound)],
    );
    assert_eq!(
        listed(&machine),
        [bound, merged.clone(), mount_point.clone()]
    );
    let text = told(&machine.run("umount", &[utf8(&device)]));
    assert!(text.contains("stays attached"), "{text}");
    assert!(listed(&machine).is_empty());
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);

    // By force the folder takes with it what lies on it.
    machine.mount(&[]);
    overlay();
    let output = machine.run("umount", &["--force", utf8(&mount_point)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let taken = format!(
        "the overlay at {} lies on {}, and is unmounted with it",
        utf8(&merged),
        utf8(&mount_point)
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), [taken.as_str()]);
    told(&output);
    machine.assert_clean(&device);
}

#[test]
fn a_mount_that_only_another_namespace_sees_is_named() {
    let test = "a_mount_that_only_another_namespace_sees_is_named";
    let Some(scene) = Scene::new(test, "ext4", &["unshare", "nsenter"]) else {
        return;
    };
    let machine = scene.machine();
    let device = machine.attach(&[]);
    let script = "mount \"$0\" \"$1\" && echo && read -r _";
    let point = machine.mount_point();
    let container = Container::run(&point, script, &[utf8(&device), utf8(&point)]);
    assert!(listed(&machine).is_empty());
    let error = complaint(&machine.run("detach", &[utf8(&device)]));
    let advice = container.advice(&point);
    assert!(error.contains(&advice), "{error}");
    follow(&advice);
    told(&machine.run("detach", &[utf8(&device)]));
    container.end();
    machine.assert_clean(&device);
}

#[test]
fn an_unmount_names_the_mount_that_another_namespace_keeps() {
    let test = "an_unmount_names_the_mount_that_another_namespace_keeps";
    let Some(scene) = Scene::new(test, "ext4", &["unshare", "nsenter"]) else {
        return;
    };
    for output in ["normal", "json"] {
        let (machine, point, device) = scene.mounted();
        let container = Container::run(&point, "echo && read -r _", &[]);
        let text = told(&machine.run("umount", &["--output", output, utf8(&point)]));
        let advice = container.advice(&point);
        let user = format!("of sh (pid {})", container.pid());
        assert!(text.contains(&advice) && text.contains(&user), "{text}");
        let list = machine.list();
        let attention = list[0]["attention"].as_str().expect("it is still in use");
        assert!(
            attention.contains(&advice) && !attention.contains("--force"),
            "{attention}"
        );
        follow(&advice);
        // Nothing else is to be done: the disk goes with its last user.
        wait_until("it has gone", || machine.list().is_empty());
        container.end();
        machine.assert_clean(&device);
    }
}

/// What still writes to it is named at once, and what that has written is there afterwards.
#[test]
fn an_unmount_by_force_writes_what_still_uses_the_file_system_has_not_written() {
    let test = "an_unmount_by_force_writes_what_still_uses_the_file_system_has_not_written";
    let Some(scene) = Scene::new(test, "ext4", &["unshare"]) else {
        return;
    };
    for in_one_step in [false, true] {
        let (machine, point, device) = scene.mounted();
        let write = format!(
            "echo && read -r _ && echo precious >{}/file && echo && read -r _",
            utf8(&point)
        );
        let mut container = Container::run(&point, &write, &[]);
        if !in_one_step {
            machine.umount();
        }
        container.stdin.write_all(b"\n").unwrap();
        container.wait_for_line();
        let since = Instant::now();
        let forced = machine.run("umount", &["--force", utf8(&point)]);
        let said = String::from_utf8_lossy(&forced.stderr).into_owned();
        assert!(forced.status.success(), "{said}");
        assert!(since.elapsed().as_secs() < 5, "it has waited for it");
        let user = format!("in the mount namespace of sh (pid {})", container.pid());
        assert!(said.contains(&user) && said.contains("is lost"), "{said}");
        container.end();
        machine.assert_clean(&device);
        machine.mount(&[]);
        let kept = fs::read_to_string(point.join("file")).unwrap();
        assert_eq!(kept, "precious\n");
        fs::remove_file(point.join("file")).unwrap();
        machine.umount();
        machine.assert_clean(&device);
    }
}

/// Its folders are relative: only its name says that it lies on the volume.
#[test]
fn an_overlay_of_relative_folders_is_named_and_loses_nothing() {
    let test = "an_overlay_of_relative_folders_is_named_and_loses_nothing";
    if !has_file_system(test, "overlay") {
        return;
    }
    for kind in ["ext4", "btrfs"] {
        if let Some(scene) = Scene::new(test, kind, &[]) {
            overlay_of_relative_folders(&scene);
        }
    }
}

fn overlay_of_relative_folders(scene: &Scene) {
    let (machine, point, device) = scene.mounted();
    let relative = utf8(point.file_name().unwrap().as_ref());
    let (upper, work) = (format!("{relative}/u"), format!("{relative}/w"));
    for name in ["low", "over", &upper, &work] {
        folder(&machine, name);
    }
    let over = machine.path("over");
    let options = format!("lowerdir=low,upperdir={upper},workdir={work}");
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options, "over"])
        .current_dir(machine.path(""))
        .output();
    told(&mounted.unwrap());
    let text = told(&machine.run("umount", &[utf8(&point)]));
    let advice = format!("umount {}", utf8(&over));
    assert!(
        text.contains(&advice) && text.contains("nothing was ended"),
        "{text}"
    );
    let again = complaint(&machine.run("umount", &[utf8(&point)]));
    assert!(
        again.contains(&advice) && !again.contains("--force"),
        "{again}"
    );
    let list = machine.list();
    let attention = list[0]["attention"].as_str().expect("it is in use");
    assert!(
        attention.contains(&advice) && !attention.contains("--force"),
        "{attention}"
    );
    fs::write(over.join("file"), "precious").unwrap();
    let forced = machine.run("umount", &["--force", utf8(&point)]);
    let said = String::from_utf8_lossy(&forced.stderr).into_owned();
    assert!(forced.status.success(), "{said}");
    assert!(
        said.contains(utf8(&over)) && said.contains("is lost"),
        "{said}"
    );
    tool("umount", &[utf8(&over)]);
    machine.assert_clean(&device);
    // The kernel takes a moment to end the device with its last user.
    let target = machine.target();
    let target: Vec<&str> = target.iter().map(String::as_str).collect();
    let mount = [&target[..], &[utf8(&point)]].concat();
    wait_until("it can be mounted anew", || {
        machine.run("mount", &mount).status.success()
    });
    assert_eq!(
        fs::read_to_string(point.join("u/file")).unwrap(),
        "precious"
    );
    machine.umount();
    machine.assert_clean(&device);
}

/// Not even its name says what it lies on.
#[test]
fn an_overlay_that_may_lie_anywhere_is_named_before_force_is() {
    let test = "an_overlay_that_may_lie_anywhere_is_named_before_force_is";
    let Some(scene) = Scene::new(test, "ext4", &[]).filter(|_| has_file_system(test, "overlay"))
    else {
        return;
    };
    let (machine, point, device) = scene.mounted();
    folder(&machine, "over");
    for name in ["anyhow-u", "anyhow-w"] {
        fs::create_dir(point.join(name)).unwrap();
    }
    let over = machine.path("over");
    let options = "lowerdir=/etc,upperdir=anyhow-u,workdir=anyhow-w";
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", options, utf8(&over)])
        .current_dir(&point)
        .output();
    told(&mounted.unwrap());
    let text = told(&machine.run("umount", &[utf8(&point)]));
    let again = complaint(&machine.run("umount", &[utf8(&point)]));
    let list = machine.list();
    let attention = list[0]["attention"].as_str().expect("it is in use");
    let advice = format!("umount {}", utf8(&over));
    for said in [text.as_str(), &again, attention] {
        let named = said.find(&advice).expect(said);
        assert!(said.find("--force").is_none_or(|at| named < at), "{said}");
    }
    tool("umount", &[utf8(&over)]);
    wait_until("the disk goes with it", || machine.list().is_empty());
    machine.assert_clean(&device);
}

#[test]
fn what_mount_cannot_do_is_said_before_anything_is_attached() {
    let test = "what_mount_cannot_do_is_said_before_anything_is_attached";
    if !has_disks(test, &[]) {
        return;
    }
    let machine = Machine::new(own_address());
    let point = machine.mount_point();
    for (args, words) in [
        (
            vec!["-o", "noatime,loop", utf8(&point)],
            "leave \"loop\" out",
        ),
        (vec!["/"], "is the root of this system"),
    ] {
        let said = complaint(&machine.run_on_target("mount", &args));
        assert!(said.contains(words), "{said}");
    }
    for (command, args) in [("list", vec![]), ("mount", vec![utf8(&point)])] {
        let mut relative = machine.command(command, &args);
        if command == "mount" {
            relative.args(machine.target());
        }
        relative
            .current_dir(machine.path(""))
            .env("CAPSTAN_RUN_DIR", "run");
        let said = complaint(&relative.output().unwrap());
        let absolute = machine.path("run");
        assert!(
            said.contains("CAPSTAN_RUN_DIR is run, expected an absolute path")
                && said.contains(utf8(&absolute)),
            "{said}"
        );
    }
    assert!(!machine.path("run").exists());
}

#[test]
fn a_bad_record_hides_no_other_volume() {
    if !has_disks("a_bad_record_hides_no_other_volume", &[]) {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let folders = ["7", "8"].map(|number| machine.path("run").join(number));
    for folder in &folders {
        fs::create_dir(folder).unwrap();
    }
    let bad = folders[0].join("volume.json");
    fs::write(&bad, "{ \"process\": ").unwrap();
    std::os::unix::fs::chown(&folders[1], Some(65534), None).unwrap();
    assert_eq!(machine.list().len(), 1);
    let output = machine.run("list", &[]);
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(told(&output).contains(utf8(&device)));
    assert!(
        said.contains(&format!("{}: EOF while parsing", utf8(&bad))),
        "{said}"
    );
    assert!(
        said.contains(&format!("{}: owned by user 65534", utf8(&folders[1]))),
        "{said}"
    );
    told(&machine.run("detach", &[utf8(&device)]));
    let json = told(&machine.run("list", &["-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["unreadable"][0]["folder"], utf8(&folders[0]));
    // What is looked for might be in them.
    let error = complaint(&machine.run("detach", &[utf8(&device)]));
    assert!(
        error.contains(utf8(&bad)) && error.contains("no volume of capstan"),
        "{error}"
    );
    fs::remove_file(&bad).unwrap();
    for folder in &folders {
        fs::remove_dir(folder).unwrap();
    }
    machine.assert_clean(&device);
}

#[test]
fn what_is_no_volume_and_no_mount_point_is_named_for_what_it_is() {
    if !has_disks(
        "what_is_no_volume_and_no_mount_point_is_named_for_what_it_is",
        &[],
    ) {
        return;
    }
    let machine = Machine::new(own_address());
    let [pipe, link, file] = ["pipe", "link", "file"].map(|name| machine.path(name));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    std::os::unix::fs::symlink("absent", &link).unwrap();
    fs::write(&file, "").unwrap();
    for (path, is) in [
        (&machine.mount_point(), "it is a folder"),
        (&pipe, "it is a named pipe"),
        (&link, "it is a link to absent, and nothing is there"),
        (&file, "it is a file"),
        (&machine.path("absent"), "it is not there"),
        (&PathBuf::from("/dev/null"), "it is a character device"),
    ] {
        for command in ["detach", "umount", "reset", "ns-rescan"] {
            let error = complaint(&machine.run(command, &[utf8(path)]));
            for words in [utf8(path), is, "expected", "`capstan list`"] {
                assert!(error.contains(words), "{command}: no {words} in {error}");
            }
        }
        let error = complaint(&machine.run_on_target("mount", &[utf8(path)]));
        let no_folder = !is.contains("folder") && !is.contains("not there");
        assert_eq!(error.contains(is), no_folder, "{error}");
    }
}
