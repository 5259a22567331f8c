//! What `capstan umount` says of a file system that something uses: what the kernel uses its files
//! for, and processes that wait for a target which is away.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use capstan_tests::disks::{Loop, run};
use capstan_tests::program::{complaint, has_disks, shell, signal, told, tool, utf8};
use capstan_tests::scene::Mounted;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

fn umount(mounted: &Mounted, options: &[&str]) -> std::process::Output {
    let point = mounted.scene.machine.mount_point();
    let args = [options, &[utf8(&point)]].concat();
    mounted.scene.machine.run("umount", &args)
}

/// Has `umount` and `umount --force` refuse for `words`, and does what they say first.
fn refuses_and_says_what_ends_it(mounted: &Mounted, words: &[&str]) {
    let point = mounted.scene.machine.mount_point();
    let error = complaint(&umount(mounted, &[]));
    let then = format!("; then: capstan umount {}", utf8(&point));
    let first = "end that first: ";
    let (said, steps) = error.split_once(first).expect(&error);
    let (steps, _) = steps.split_once(&then).expect(&error);
    let forced = complaint(&umount(mounted, &["--force"]));
    assert!(forced.contains("nothing was changed"), "{forced}");
    assert!(forced.contains(&format!("{first}{steps}")), "{forced}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
        assert!(forced.contains(word), "{word}: {forced}");
    }
    assert!(!error.contains("--force"), "{error}");
    assert!(!error.contains(": umount: "), "{error}");
    told(&shell(steps));
}

#[test]
fn swap_files_and_loop_devices_are_named_and_end_as_said() {
    let test = "swap_files_and_loop_devices_are_named_and_end_as_said";
    if !has_disks(test, &["mkfs.ext4", "mkswap", "swapon", "losetup"]) {
        return;
    }
    let mounted = Mounted::ext4();
    let point = mounted.scene.machine.mount_point();
    // A name with a space, as in /proc/swaps and in commands.
    let swap = point.join("a swap");
    fs::write(&swap, vec![0; 4 << 20]).unwrap();
    tool("mkswap", &[utf8(&swap)]);
    match run("swapon", &[utf8(&swap)]) {
        Ok(_) => refuses_and_says_what_ends_it(&mounted, &["the kernel, as swap", "a swap"]),
        Err(refused) => eprintln!("SKIPPED {test}: no swap here: {refused}"),
    }
    // One that is mounted, with one on a file of that; one that goes with its mount; and one that
    // nothing uses.
    let file = |name: &str, folder: &Path, mib: u64| {
        let path = folder.join(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path
    };
    let folder = |name: &str| {
        let path = mounted.scene.folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let [outer, inner, by_itself] = ["outer", "inner", "by itself"].map(folder);
    let image = file("outer.img", &point, 16);
    tool("mkfs.ext4", &["-q", utf8(&image)]);
    let device = |image: &Path| run("losetup", &["--find", "--show", utf8(image)]).unwrap();
    let on_outer = device(&image);
    tool("mount", &[&on_outer, utf8(&outer)]);
    let image = file("inner.img", &outer, 8);
    tool("mkfs.ext4", &["-q", utf8(&image)]);
    let on_inner = device(&image);
    tool("mount", &[&on_inner, utf8(&inner)]);
    fs::write(inner.join("data"), "precious").unwrap();
    let image = file("second.img", &point, 8);
    tool("mkfs.ext4", &["-q", utf8(&image)]);
    tool("mount", &["-o", "loop", utf8(&image), utf8(&by_itself)]);
    let unused = device(&file("unused.img", &point, 1));
    refuses_and_says_what_ends_it(
        &mounted,
        &[
            &format!("as the loop device {on_outer} ("),
            &format!("{on_inner} ("),
            &format!("as the loop device {unused} ("),
            "outer.img",
            "inner.img",
            &format!("mounted at {}", utf8(&inner)),
            &format!("mounted at {}", utf8(&by_itself)),
        ],
    );
    // What was said has ended all of it, and nothing is lost.
    mounted.scene.machine.umount();
    mounted.scene.machine.assert_clean(&mounted.device);
    mounted.scene.machine.mount(&[]);
    let on_outer = Loop::new(&point.join("outer.img"));
    tool("mount", &["-o", "ro", utf8(on_outer.path()), utf8(&outer)]);
    let image = outer.join("inner.img");
    tool(
        "mount",
        &["-o", "loop,ro,noload", utf8(&image), utf8(&inner)],
    );
    assert_eq!(fs::read_to_string(inner.join("data")).unwrap(), "precious");
    tool("umount", &[utf8(&inner)]);
    tool("umount", &[utf8(&outer)]);
    drop(on_outer);
    mounted.scene.machine.umount();
    mounted.scene.machine.assert_clean(&mounted.device);
}

#[test]
fn a_process_that_waits_for_the_target_inside_of_a_call_is_named() {
    let test = "a_process_that_waits_for_the_target_inside_of_a_call_is_named";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let mounted = Mounted::ext4();
    let (machine, point) = (&mounted.scene.machine, mounted.scene.machine.mount_point());
    let file = point.join("a/b/file");
    fs::create_dir_all(point.join("a/b")).unwrap();
    fs::write(&file, "x").unwrap();
    machine.umount();
    machine.mount(&[]);
    let pid = mounted.scene.daemon.pid();
    signal(pid, Signal::SIGSTOP);
    let mut user = Command::new("stat");
    let user = user.arg(&file).stdout(Stdio::null()).spawn();
    let mut user = user.unwrap();
    let stat = format!("/proc/{}/stat", user.id());
    wait_until("it waits for the disk", || {
        fs::read_to_string(&stat).is_ok_and(|stat| stat.contains("(stat) D "))
    });
    let mut error = String::new();
    wait_until("its silence is noticed", || {
        error = complaint(&umount(&mounted, &[]));
        error.contains("has not answered for")
    });
    signal(pid, Signal::SIGCONT);
    assert!(user.wait().unwrap().success());
    let named = format!("stat (pid {}), which waits inside of a call for", user.id());
    let then = format!("then: capstan umount {}", utf8(&point));
    for words in [
        "has not answered for",
        &named,
        utf8(&file),
        &then,
        "--force",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(!error.contains("swap"), "{error}");
    machine.umount();
    machine.assert_clean(&mounted.device);
}
