//! The LBA size of block devices: what is on one was perhaps used with another, as a file or
//! through another device, and that is not changed without a word. All of it needs root.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use capstan_tests::disks::run;
use capstan_tests::place::{Place, has, reload};
use capstan_tests::program::utf8;

/// A loop device with logical blocks of so many bytes, detached with this.
struct Device(String);

impl Device {
    fn new(file: &Path, block_bytes: u32) -> Self {
        let bytes = block_bytes.to_string();
        let made = ["--sector-size", &bytes, "--find", "--show", utf8(file)];
        Self(run("losetup", &made).unwrap_or_else(|reason| {
            panic!(
                "no loop device: {reason}; this test needs root and loop devices, leave it out with: cargo nextest run -E \
                 'not test(/^root_/)'"
            )
        }))
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(reason) = run("losetup", &["--detach", &self.0]) {
            eprintln!("{reason}");
        }
    }
}

/// The LBA size that hosts see of the only namespace, and the log.
fn start(place: &Place, path: &Path, keys: &str) -> (u32, Vec<String>) {
    place.configure(&[(path, keys)]);
    let daemon = place.serve();
    let host = place.connect();
    let lba_bytes = host.snapshot_blocking().namespaces[0].lba_bytes;
    host.close();
    let log = daemon.log();
    assert!(daemon.stop().success());
    (lba_bytes, log)
}

fn write_gpt(image: &Path, lba_bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(b"EFI PART", lba_bytes).unwrap();
}

#[test]
fn root_an_image_keeps_its_lba_size_on_a_device_of_smaller_blocks_and_is_not_served_on_one_of_larger()
 {
    let place = Place::new();
    let image = place.image("image");
    write_gpt(&image, 4096);
    assert_eq!(start(&place, &image, "").0, 4096);
    {
        let device = Device::new(&image, 512);
        assert_eq!(start(&place, device.path(), "").0, 4096, "as it was");
        assert!(!place.check().contains("partition table"));
        // Said by the configuration, and remembered when it does not say it any more.
        let (size, log) = start(&place, device.path(), "lba = 512");
        assert_eq!(size, 512);
        let words = ["WARN", "was used with LBAs of 4096 bytes and has 512 now"];
        assert!(has(&log, &words), "{log:#?}");
        assert_eq!(start(&place, device.path(), "lba = 4096").0, 4096);
    }
    assert_eq!(start(&place, &image, "").0, 4096, "the file again");

    // One that was used with 512 finds nothing on a device that has no such.
    let image = place.image("other");
    fs::write(&image, vec![1; 1 << 20]).unwrap();
    {
        let device = Device::new(&image, 512);
        assert_eq!(start(&place, device.path(), "").0, 512);
    }
    assert_eq!(start(&place, &image, "").0, 512, "as a file");
    let device = Device::new(&image, 4096);
    place.configure(&[(device.path(), "")]);
    let refusal = place.refusal();
    for words in [
        "has blocks of 4096 bytes, and what is on it was used with LBAs of 512",
        "`losetup --sector-size 512`",
        "`lba = 4096`",
        utf8(device.path()),
    ] {
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    // Beside others it is left out, and comes back as the message says.
    let beside = place.image("beside");
    place.configure(&[(&beside, ""), (device.path(), "")]);
    let daemon = place.serve();
    let log = daemon.log();
    let words = ["ERROR", "is not served", "was used with LBAs of 512"];
    assert!(has(&log, &words), "{log:#?}");
    assert_eq!(place.shown().len(), 1);
    place.configure(&[(&beside, ""), (device.path(), "lba = 4096")]);
    let log = reload(&daemon);
    assert!(has(&log, &["namespaces added: 1"]), "{log:#?}");
    let words = ["WARN", "was used with LBAs of 512 bytes and has 4096 now"];
    assert!(has(&log, &words), "{log:#?}");
    assert!(daemon.stop().success());
}

/// A device of which the record says other than what is plainly on it.
#[test]
fn root_what_is_on_a_device_goes_before_what_is_remembered_with_a_warning() {
    let place = Place::new();
    let image = place.image("image");
    assert_eq!(start(&place, &image, "").0, 4096);
    write_gpt(&image, 512);
    let device = Device::new(&image, 512);
    place.configure(&[(device.path(), "")]);
    let warned = "has LBAs of 512 bytes, because what is on it is for such; it was used with 4096";
    assert!(place.check().contains(warned), "{}", place.check());
    let (size, log) = start(&place, device.path(), "");
    assert_eq!(size, 512);
    assert!(has(&log, &["WARN", warned]), "{log:#?}");
    let (size, log) = start(&place, device.path(), "");
    assert_eq!(size, 512);
    assert!(!has(&log, &["it was used with"]), "said once: {log:#?}");
}
