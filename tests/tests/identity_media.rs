//! A namespace is known by its medium, whatever leads to it: copies of file systems, loop devices
//! on files without a name, memory devices that are reset. All of it needs root.

use std::fs;
use std::path::{Path, PathBuf};

use capstan_nvme_proto::command::{IoCommand, LbaRange, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_tests::disks::{Loop, own_mounts, run};
use capstan_tests::place::{Place, has, reload};
use capstan_tests::program::{has_tools, utf8};
use capstan_tests::wire_host::{Data, Queue, WireHost};

/// Starts and stops a target: what hosts see.
fn start(place: &Place, entries: &[(&Path, &str)]) -> Vec<(u32, String)> {
    place.configure(entries);
    let daemon = place.serve();
    let shown = place.shown();
    assert!(daemon.stop().success());
    shown
}

/// A memory device of this test's own, without its memory at first.
struct Zram(PathBuf);

impl Zram {
    /// `None` where the kernel has none; says so.
    fn new(test: &str) -> Option<Self> {
        match fs::read_to_string("/sys/class/zram-control/hot_add") {
            Ok(number) => Some(Self(format!("/dev/zram{}", number.trim()).into())),
            Err(error) => {
                eprintln!("SKIPPED {test}: this kernel has no zram: {error}");
                None
            }
        }
    }

    fn set(&self, attribute: &str, value: &str) {
        let name = utf8(&self.0).trim_start_matches("/dev/");
        fs::write(format!("/sys/block/{name}/{attribute}"), value).expect("it takes that");
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let number = utf8(&self.0).trim_start_matches("/dev/zram").to_owned();
        if let Err(reason) = fs::write("/sys/class/zram-control/hot_remove", number) {
            eprintln!("{} stays: {reason}", self.0.display());
        }
    }
}

#[test]
fn root_no_host_goes_on_over_the_zeroes_of_a_memory_device_that_was_reset() {
    let Some(zram) = Zram::new("root_no_host_goes_on_over_the_zeroes_of_a_memory_device") else {
        return;
    };
    zram.set("disksize", "8M");
    let place = Place::new();
    place.configure(&[(&zram.0, "")]);
    let daemon = place.serve();
    let before = place.shown();
    assert_eq!(place.shown(), before, "the same for every host");
    assert!(daemon.stop().success());
    zram.set("reset", "1");
    zram.set("disksize", "8M");
    let daemon = place.serve();
    let mut host = WireHost::connect(place.at, 1);
    let write = Write::new(1, LbaRange { slba: 0, nlb: 1 });
    let sqe = IoCommand::Write(write).encode(0, Sgl::EMPTY);
    let (cqe, _) = host.run(Queue::Io, sqe, Data::Pulled(&[7; 4096]));
    assert_eq!(cqe.status().code(), Status::NAMESPACE_NOT_READY, "{cqe:?}");
    drop(host);
    assert_ne!(place.shown(), before);
    assert!(daemon.stop().success());
    // The operator's word stands.
    let pinned = format!("uuid = \"{}\"", before[0].1);
    assert_eq!(start(&place, &[(&zram.0, &pinned)]), before);
}

#[test]
fn root_a_full_state_folder_remembers_what_a_reload_puts_in_the_place_of_others() {
    own_mounts();
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let options = ["-t", "tmpfs", "-o", "size=256k", "none", utf8(&place.state)];
    run("mount", &options).expect("a small file system");
    place.configure(&[(&a, "nsid = 1\nlba = 4096")]);
    let daemon = place.serve();
    let before = place.shown();
    let full = fs::write(place.state.join("full"), vec![1; 1 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    place.configure(&[(&b, "nsid = 1\nlba = 4096")]);
    let log = reload(&daemon);
    assert!(!has(&log, &["is not remembered"]), "{log:#?}");
    let after = place.shown();
    assert_ne!(after, before);
    daemon.kill();
    assert_eq!(start(&place, &[(&b, "nsid = 1\nlba = 4096")]), after);
    run("umount", &[utf8(&place.state)]).expect("nobody has it");
}

/// A file system on a loop device, mounted as long as this is there.
struct Mounted {
    at: PathBuf,
    _device: Loop,
}

impl Mounted {
    fn new(image: &Path, at: &Path) -> Self {
        let device = Loop::new(image);
        run("mount", &[utf8(device.path()), utf8(at)]).expect("it is mounted");
        Self {
            at: at.to_owned(),
            _device: device,
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(reason) = run("umount", &[utf8(&self.at)]) {
            eprintln!("{reason}");
        }
    }
}

#[test]
fn root_a_file_in_a_copy_of_its_file_system_is_another_one() {
    let test = "root_a_file_in_a_copy_of_its_file_system_is_another_one";
    if !has_tools(test, &["mkfs.ext4", "mkfs.btrfs", "mkfs.xfs"]) {
        return;
    }
    own_mounts();
    for kind in ["ext4", "btrfs", "xfs"] {
        let place = Place::new();
        let [original, copy, at] =
            ["original", "copy", "at"].map(|name| place.folder.path().join(name));
        fs::create_dir(&at).unwrap();
        fs::File::create(&original)
            .unwrap()
            .set_len(320 << 20)
            .unwrap();
        run(&format!("mkfs.{kind}"), &["-q", utf8(&original)]).expect("a file system");
        let file = at.join("volume");
        let mounted = Mounted::new(&original, &at);
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let before = start(&place, &[(&file, "")]);
        drop(mounted);
        run("cp", &["--sparse=always", utf8(&original), utf8(&copy)]).expect("a copy");
        // As a table of an earlier version has it.
        let table = place.state.join("namespaces.toml");
        let text = fs::read_to_string(&table).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("on_"));
        let older = lines.collect::<Vec<_>>().join("\n");
        assert!(older.len() < text.len(), "{kind}: {text}");
        fs::write(&table, older).unwrap();
        let mounted = Mounted::new(&original, &at);
        assert_eq!(start(&place, &[(&file, "")]), before, "{kind}");
        let now = fs::read_to_string(&table).unwrap();
        assert!(
            now.contains("on_"),
            "{kind}: what is known now is added: {now}"
        );
        drop(mounted);
        let mounted = Mounted::new(&copy, &at);
        let told = place.check();
        assert!(
            told.contains("another medium than it was"),
            "{kind}: {told}"
        );
        let of_copy = start(&place, &[(&file, "")]);
        assert_ne!(of_copy, before, "{kind}");
        drop(mounted);
        let mounted = Mounted::new(&original, &at);
        assert_eq!(start(&place, &[(&file, "")]), before, "{kind}: back");
        drop(mounted);
    }
}

#[test]
fn root_a_loop_device_is_known_by_its_file_whatever_becomes_of_the_name_of_that() {
    let place = Place::new();
    let (image, other) = (place.image("image"), place.image("other"));
    let device = Loop::new(&image);
    let entries = [(device.path(), "")];
    let first = start(&place, &entries);
    fs::rename(&other, &image).unwrap();
    assert_eq!(start(&place, &entries), first, "another one has the name");
    fs::remove_file(&image).unwrap();
    assert_eq!(start(&place, &entries), first, "nothing has it");
    // The same device on another file, and on another part of that.
    let name = utf8(device.path());
    let other = place.image("other");
    let attach = |arguments: &[&str]| {
        run("losetup", &["--detach", name]).expect("it is free");
        let arguments: Vec<_> = arguments
            .iter()
            .copied()
            .chain([name, utf8(&other)])
            .collect();
        run("losetup", &arguments).expect("it is attached");
    };
    attach(&[]);
    let second = start(&place, &entries);
    assert_ne!(second, first);
    attach(&["--offset", "4096"]);
    let third = start(&place, &entries);
    assert!(third != first && third != second);
    attach(&[]);
    assert_eq!(start(&place, &entries), second);
}
