//! What an attached disk and `capstan list` show of what others do to the file under its target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use capstan_tests::lossy::reload;
use capstan_tests::one_image::OneImage;
use capstan_tests::program::{Daemon, Machine, has_disks, told, tool, utf8};
use capstan_tests::wait::wait_until;

const MIB: u64 = 1 << 20;

/// The size of a disk, in bytes.
fn disk_bytes(device: &Path) -> u64 {
    let size = tool("blockdev", &["--getsize64", utf8(device)]);
    size.trim().parse().unwrap()
}

/// A target with an image of 32 MiB, and a disk of it. `None` where this machine has no disks or
/// lacks `tools`, which is said.
fn attached(test: &str, tools: &[&str]) -> Option<(OneImage, Daemon, Machine, PathBuf)> {
    has_disks(test, tools).then(|| {
        let bench = OneImage::new(32 * MIB);
        let daemon = bench.serve();
        let machine = Machine::new(bench.at);
        let device = machine.attach(&[]);
        (bench, daemon, machine, device)
    })
}

/// Takes both down.
fn end(daemon: Daemon, machine: &Machine, device: &Path) {
    told(&machine.run("detach", &[utf8(device)]));
    machine.assert_clean(device);
    assert!(daemon.stop().success());
}

/// What `capstan list` says that the disk needs.
fn attention(machine: &Machine) -> Option<String> {
    machine.list()[0]["attention"].as_str().map(str::to_owned)
}

fn wait_for_attention(machine: &Machine, words: &str) {
    let says = || attention(machine).is_some_and(|text| text.contains(words));
    wait_until(words, says);
}

#[test]
fn root_a_disk_grows_with_its_volume_and_list_says_when_it_was_cut() {
    let test = "root_a_disk_grows_with_its_volume_and_list_says_when_it_was_cut";
    let Some((bench, daemon, machine, device)) =
        attached(test, &["blockdev", "mkfs.ext4", "resize2fs"])
    else {
        return;
    };
    tool("mkfs.ext4", &["-q", utf8(&device)]);
    bench.resize(64 * MIB);
    wait_until("the disk has 64 MiB", || disk_bytes(&device) == 64 * MIB);
    assert_eq!(machine.list()[0]["size_bytes"], 64 * MIB);
    assert_eq!(attention(&machine), None);
    // While the target is away.
    assert!(daemon.stop().success());
    bench.resize(128 * MIB);
    let daemon = bench.serve();
    wait_until("the disk has 128 MiB", || disk_bytes(&device) == 128 * MIB);
    tool("e2fsck", &["-f", "-p", utf8(&device)]);
    tool("resize2fs", &[utf8(&device)]);
    tool("e2fsck", &["-f", "-n", utf8(&device)]);
    assert_eq!(fs::metadata(&bench.image).unwrap().len(), 128 * MIB);

    bench.resize(64 * MIB);
    wait_until("list says that it was cut", || {
        attention(&machine).is_some()
    });
    let words = attention(&machine).unwrap();
    assert!(
        words.contains("was cut from 134217728 to 67108864 bytes"),
        "{words}"
    );
    let list = told(&machine.run("list", &[]));
    assert!(
        list.contains("live, but see below") && list.contains("was cut from"),
        "{list}"
    );
    bench.resize(128 * MIB);
    // What was cut off stays lost.
    wait_for_attention(&machine, "warns of the medium of namespace 1");
    told(&bench.asked_of("clear-lost-writes", &[utf8(&bench.image)]));
    reload(&daemon, "lost writes cleared of volumes: 1");
    wait_until("it is cleared", || attention(&machine).is_none());
    end(daemon, &machine, &device);
}

#[test]
fn root_list_says_what_has_become_of_a_namespace_and_what_it_says_to_do_helps() {
    let test = "root_list_says_what_has_become_of_a_namespace_and_what_it_says_to_do_helps";
    let Some((bench, daemon, machine, device)) = attached(test, &[]) else {
        return;
    };
    let says = |words: &str| {
        wait_for_attention(&machine, words);
        let list = told(&machine.run("list", &[]));
        assert!(
            list.contains("refused, see below") && list.contains(words),
            "{list}"
        );
        assert_eq!(machine.list()[0]["state"], "refused");
        // So does doctor, with what to do.
        let doctor = machine.run("doctor", &[]);
        let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(said.contains(words), "{said}");
    };
    bench.reload(&daemon, None);
    says("namespace 1 is gone from the controller; put it back on the target");
    bench.reload(&daemon, Some("lba = 512"));
    says("its LBAs have 512 bytes, had 4096");
    let to = format!("of={}", utf8(&device));
    let writes = || {
        let words = ["if=/dev/zero", &to, "bs=4096", "count=1", "conv=fsync"];
        let output = Command::new("dd").args(words).output().unwrap();
        output.status.success()
    };
    assert!(!writes(), "to another namespace");
    bench.reload(&daemon, None);
    bench.reload(&daemon, Some("lba = 4096"));
    // Nobody else says that it failed once the program has not looked.
    let missing = "4096 bytes that were written to this disk are not on namespace 1";
    wait_for_attention(&machine, missing);
    assert!(writes());
    wait_until("it is as it was", || attention(&machine).is_none());
    end(daemon, &machine, &device);
}

#[test]
fn root_list_says_that_the_medium_of_a_live_volume_is_not_at_its_path() {
    let test = "root_list_says_that_the_medium_of_a_live_volume_is_not_at_its_path";
    let Some((bench, daemon, machine, device)) = attached(test, &[]) else {
        return;
    };
    assert_eq!(attention(&machine), None);
    let aside = bench.image.with_extension("aside");
    fs::rename(&bench.image, &aside).unwrap();
    wait_until("list says that it was moved", || {
        attention(&machine).is_some()
    });
    let words = attention(&machine).unwrap();
    let warns = "reliability is degraded (critical warning 0x4)";
    assert!(words.contains(warns), "{words}");
    let row = &machine.list()[0];
    assert_eq!(row["state"], "live");
    assert!(row["detail"].as_str().unwrap().contains(&words), "{row}");
    let list = told(&machine.run("list", &[]));
    assert!(
        list.contains("live, but see below") && list.contains(&words),
        "{list}"
    );
    // The next steps that it names.
    let error = bench.error_of_media("is not at its path any more");
    assert!(error.contains("mv -n"), "{error}");
    let quoted = words
        .split('`')
        .find(|text| text.starts_with("capstan smart-log "));
    let args: Vec<_> = quoted.unwrap().split(' ').skip(2).collect();
    let smart = told(&machine.run("smart-log", &args));
    assert!(smart.contains("0x4: reliability is degraded"), "{smart}");
    fs::rename(&aside, &bench.image).unwrap();
    wait_until("it is back", || attention(&machine).is_none());
    fs::remove_file(&bench.image).unwrap();
    wait_until("list says that it was deleted", || {
        attention(&machine).is_some()
    });
    end(daemon, &machine, &device);
}
