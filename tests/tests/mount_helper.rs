//! `capstan` as mount(8) and umount(8) call it. `tests/systemd` has both call it, from fstab(5) and
//! from units.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use capstan_tests::program::{
    CLAIMS, Machine, complaint, has_disks, own_address, program, told, tool, utf8,
};
use capstan_tests::scene::Scene;
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;

/// What the helpers say besides is of no matter here.
const OPTIONS: &str = "rw,_netdev,nofail,transport=rdma,provider=iwarp,noatime";

/// Runs `HELPER ARGS` as libmount does.
fn helper(machine: &Machine, name: &str, args: &[&str]) -> Output {
    let path = machine.path(name);
    if !path.exists() {
        std::os::unix::fs::symlink(program("capstan"), &path).unwrap();
    }
    let mut helper = Command::new(path);
    helper.args(args).stdin(Stdio::null());
    helper.env("CAPSTAN_RUN_DIR", machine.path("run"));
    helper.env(CLAIMS, machine.path("claims"));
    helper.output().expect("it runs")
}

fn source(machine: &Machine) -> String {
    let target = machine.target();
    let after = |option: &str| {
        let at = target.iter().position(|word| word == option).unwrap();
        target[at + 1].clone()
    };
    format!("{SUBNQN}@{}:{}", after("-a"), after("-s"))
}

/// What the mount at `point` has in mountinfo and in utab(5) of libmount.
fn options_at(point: &Path) -> String {
    let of = |path: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines().filter(|line| line.contains(utf8(point)));
        lines.next_back().unwrap_or_default().to_owned()
    };
    format!("{} {}", of("/proc/self/mountinfo"), of("/run/mount/utab"))
}

#[test]
fn a_source_of_fstab_is_mounted_once_and_plain_umount_takes_everything_away() {
    let test = "a_source_of_fstab_is_mounted_once_and_plain_umount_takes_everything_away";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let (machine, point) = (&scene.machine, scene.machine.mount_point());
    let args = [&*source(machine), utf8(&point), "-o", OPTIONS];
    let said = helper(machine, "mount.capstan", &args);
    // As other helpers: what is as it should be needs no words.
    assert_eq!(told(&said), "");
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    let list = machine.list();
    assert_eq!(list[0]["mount_points"][0], utf8(&point), "{list:?}");
    let device = list[0]["device"].as_str().unwrap().to_owned();
    let options = options_at(&point);
    assert!(options.contains("noatime"), "{options}");
    // systemd takes it for one that goes before the network.
    assert!(options.contains("_netdev"), "{options}");
    fs::write(point.join("file"), "x").unwrap();
    // `mount -a` cannot see that it is there.
    told(&helper(machine, "mount.capstan", &args));
    assert_eq!(machine.list().len(), 1);
    tool("umount", &[utf8(&point)]);
    wait_until("the volume has ended", || machine.list().is_empty());
    machine.assert_clean(Path::new(&device));
    let args = [&args[..3], &["ro,transport=rdma,provider=iwarp"]].concat();
    told(&helper(machine, "mount.capstan", &args));
    assert_eq!(machine.list()[0]["read_only"], true);
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "x");
    // It ends with the volume.
    told(&helper(machine, "umount.capstan", &[utf8(&point)]));
    machine.assert_clean(Path::new(&device));
}

#[test]
fn what_cannot_be_mounted_is_told_in_the_words_and_exit_statuses_of_mount() {
    let test = "what_cannot_be_mounted_is_told_in_the_words_and_exit_statuses_of_mount";
    if !has_disks(test, &[]) {
        return;
    }
    // Nothing listens there.
    let machine = Machine::new(own_address());
    let (source, point) = (source(&machine), machine.mount_point());
    let mount = |source: &str, options: &str| {
        let args = [source, utf8(&point), "-o", options];
        let output = helper(&machine, "mount.capstan", &args);
        (output.status.code().unwrap(), complaint(&output))
    };
    for (options, words) in [
        (
            "nsid=none",
            "mount.capstan: -o nsid is \"none\", expected 1 to 4294967294",
        ),
        (
            "transport=udp",
            "-o transport is \"udp\", expected auto, rdma or tcp",
        ),
        ("loop", "-o has \"loop\""),
    ] {
        let (status, said) = mount(&source, options);
        assert_eq!(status, 1, "{said}");
        assert!(said.contains(words), "{said}");
    }
    let (status, said) = mount("127.0.0.1:/volume", "rw");
    assert!(
        status == 1 && said.contains("NQN@ADDRESS[:PORT]"),
        "{status} {said}"
    );
    let (status, said) = mount(&source, "transport=tcp");
    assert!(
        status == 32 && said.contains("connecting to"),
        "{status} {said}"
    );
    // With -f nothing is connected to.
    let fake = helper(
        &machine,
        "mount.capstan",
        &[&source, utf8(&point), "-f", "-o", OPTIONS],
    );
    assert_eq!(told(&fake), "");
    assert!(machine.list().is_empty());
}

/// umount(8) asks the helper for what another `CAPSTAN_RUN_DIR` knows, too.
#[test]
fn what_is_no_volume_is_unmounted_by_the_kernel() {
    let test = "what_is_no_volume_is_unmounted_by_the_kernel";
    if !has_disks(test, &[]) {
        return;
    }
    let machine = Machine::new(own_address());
    let point = machine.mount_point();
    for lazily in [&[][..], &["-l"]] {
        tool("mount", &["-t", "tmpfs", "none", utf8(&point)]);
        told(&helper(
            &machine,
            "umount.capstan",
            &[&[utf8(&point)], lazily].concat(),
        ));
        assert!(!options_at(&point).contains("tmpfs"));
    }
    let output = helper(&machine, "umount.capstan", &[utf8(&point)]);
    assert_eq!(output.status.code(), Some(32));
}
