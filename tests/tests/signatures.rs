//! What `capstan mount` and `attach` say of disks that hold something else than one file system,
//! and that no advice destroys it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, told, tool, utf8,
};
use serde_json::Value;

/// Partition tables count in blocks of this.
const LBA: u64 = 512;
const MIB: u64 = 1 << 20;

/// An image of 64 MiB with these bytes in it.
fn image(dir: &Path, bytes: &[(u64, &[u8])]) -> PathBuf {
    let path = dir.join("disk.img");
    let file = File::create(&path).unwrap();
    file.set_len(64 * MIB).unwrap();
    for (at, bytes) in bytes {
        file.write_all_at(bytes, *at).unwrap();
    }
    path
}

/// Types of partitions.
const LINUX: u8 = 0x83;
const EXTENDED: u8 = 0x05;

/// A DOS partition table with these partitions: first byte and bytes of each.
fn dos_table(partitions: &[(u64, u64)]) -> Vec<u8> {
    let partitions = partitions.iter().map(|&(start, size)| (LINUX, start, size));
    dos_table_of(LBA, &partitions.collect::<Vec<_>>())
}

/// The same for LBAs of so many bytes, with the type of each.
fn dos_table_of(lba_bytes: u64, partitions: &[(u8, u64, u64)]) -> Vec<u8> {
    let mut table = vec![0; 512];
    for (entry, (kind, start, size)) in table[446..].chunks_mut(16).zip(partitions) {
        entry[4] = *kind;
        let [start, size] = [start, size].map(|bytes| u32::try_from(bytes / lba_bytes).unwrap());
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&size.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    table
}

/// The first page of swap space of `size` bytes.
fn swap_header(size: u64) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let pages = u32::try_from(size / 4096).unwrap();
    page[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&(pages - 1).to_le_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// Serves `image`, and gives a machine that can attach it.
fn serve(image: &Path) -> (Daemon, Machine) {
    let at = own_address();
    let daemon = Daemon::start(utf8(image), 512, at);
    (daemon, Machine::new(at))
}

/// What `mount ARGS` complains of; nothing stays attached.
fn refused(machine: &Machine, args: &[&str]) -> String {
    let mount_point = machine.mount_point();
    let error = complaint(&machine.run_on_target("mount", &[args, &[utf8(&mount_point)]].concat()));
    machine.assert_clean(Path::new("/dev/loop-none"));
    error
}

#[test]
fn partitions_are_named_and_mounted_by_number() {
    let test = "partitions_are_named_and_mounted_by_number";
    if !has_disks(test, &["mkfs.ext4", "partx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let table = dos_table(&[(MIB, 32 * MIB), (40 * MIB, 8 * MIB)]);
    let swap = swap_header(8 * MIB);
    let image = image(dir.path(), &[(0, &table), (40 * MIB, &swap)]);
    let options = ["-q", "-E", "offset=1048576", utf8(&image), "32M"];
    tool("mkfs.ext4", &options);
    let (_daemon, machine) = serve(&image);
    let error = refused(&machine, &[]);
    assert!(error.contains("a partition table (dos)"), "{error}");
    assert!(
        error.contains("--part N: 1: ext4, 32.0 MiB; 2: swap, 8.0 MiB"),
        "{error}"
    );
    assert!(!error.contains("mkfs"), "{error}");
    let error = refused(&machine, &["--part", "2"]);
    assert!(error.contains("partition 2 of namespace 1"), "{error}");
    assert!(
        error.contains("swapon") && !error.contains("mkfs"),
        "{error}"
    );
    let error = refused(&machine, &["--part", "3"]);
    assert!(error.contains("expected one of: 1: ext4"), "{error}");
    let mounted = machine.run_on_target("mount", &["--part", "1", utf8(&machine.mount_point())]);
    let said = told(&mounted);
    let device = machine.list()[0]["device"].clone();
    let part = format!("{}p1 mounted at", device.as_str().unwrap());
    assert!(said.starts_with(&part), "{said}");
    let list = machine.list();
    assert_eq!(list[0]["mount_points"][0], utf8(&machine.mount_point()));
    fs::write(machine.mount_point().join("file"), "in the partition").unwrap();
    // Another one is not mounted by way of a second disk.
    let second = tempfile::tempdir().unwrap();
    let again = machine.run_on_target("mount", &["--part", "2", utf8(second.path())]);
    let error = complaint(&again);
    let device = list[0]["device"].as_str().unwrap();
    let step = format!("(`mount {device}pN FOLDER` mounts another partition");
    assert!(error.contains(&step), "{error}");
    tool("mount", &[&format!("{device}p1"), utf8(second.path())]);
    tool("umount", &[utf8(second.path())]);
    machine.umount();
    machine.assert_clean(Path::new(list[0]["device"].as_str().unwrap()));
    machine.mount(&["--part", "1", "--read-only"]);
    let text = fs::read_to_string(machine.mount_point().join("file")).unwrap();
    assert_eq!(text, "in the partition");
    machine.umount();
}

/// The kernel takes no partition of 1024 bytes from a disk with LBAs of 4096, which is what an
/// extended one has for it; that keeps nobody from the others.
#[test]
fn an_extended_partition_keeps_nobody_from_the_others() {
    let test = "an_extended_partition_keeps_nobody_from_the_others";
    if !has_disks(test, &["mkfs.ext4", "partx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let table = dos_table_of(
        4096,
        &[(LINUX, MIB, 24 * MIB), (EXTENDED, 32 * MIB, 16 * MIB)],
    );
    let logical = dos_table_of(4096, &[(LINUX, MIB, 8 * MIB)]);
    let image = image(dir.path(), &[(0, &table), (32 * MIB, &logical)]);
    for (first_byte, size) in [("1048576", "24M"), ("34603008", "8M")] {
        let offset = format!("offset={first_byte}");
        tool(
            "mkfs.ext4",
            &["-q", "-b", "4096", "-E", &offset, utf8(&image), size],
        );
    }
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    for number in ["1", "5"] {
        machine.mount(&["--part", number]);
        machine.umount();
    }
    let error = refused(&machine, &["--part", "2"]);
    assert!(
        error.contains("1: ext4, 24.0 MiB") && error.contains("5: ext4, 8.0 MiB"),
        "{error}"
    );
    let attached = machine.run_on_target("attach", &[]);
    let note = String::from_utf8_lossy(&attached.stderr).into_owned();
    let device = told(&attached);
    assert!(note.contains("p5 is partition 5: ext4"), "{note}");
    told(&machine.run("detach", &[device.trim()]));
}

/// `mkfs` on an image of less than 512 MiB: what a newcomer has.
#[test]
fn a_file_system_with_blocks_smaller_than_the_lba_is_named() {
    let test = "a_file_system_with_blocks_smaller_than_the_lba_is_named";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), &[]);
    tool("mkfs.ext4", &["-q", "-b", "1024", utf8(&image)]);
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let error = refused(&Machine::new(at), &[]);
    for words in [
        "holds ext4 with blocks of 1024 bytes",
        "a volume with LBAs of 4096",
        "`--lba 512`",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(daemon.stop().success());
    // The next step.
    let _daemon = Daemon::start(utf8(&image), 512, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    machine.umount();
    let error = refused(&machine, &["--type", "xfs"]);
    assert!(error.contains("holds ext4, and --type is xfs"), "{error}");
}

/// A journal is replayed by a mount, also by a read-only one: not from a disk that is read-only.
#[test]
fn a_journal_is_left_alone_by_a_read_only_mount_that_is_told_to() {
    let test = "a_journal_is_left_alone_by_a_read_only_mount_that_is_told_to";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), &[]);
    tool("mkfs.ext4", &["-q", "-b", "4096", utf8(&image)]);
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    fs::write(machine.mount_point().join("file"), "x").unwrap();
    let second = tempfile::tempdir().unwrap();
    let mount = |options: &[&str]| {
        let point = [utf8(second.path())];
        machine.run_on_target("mount", &[&["--read-only"], options, &point].concat())
    };
    let error = complaint(&mount(&[]));
    assert!(error.contains("`-o noload`"), "{error}");
    told(&mount(&["-o", "noload"]));
    told(&machine.run("umount", &[utf8(second.path())]));
    machine.umount();
}

#[test]
fn attach_shows_partitions_whatever_the_kernel_can_read() {
    let test = "attach_shows_partitions_whatever_the_kernel_can_read";
    if !has_disks(test, &["partx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let table = dos_table(&[(MIB, 32 * MIB)]);
    let (_daemon, machine) = serve(&image(dir.path(), &[(0, &table)]));
    let attached = machine.run_on_target("attach", &[]);
    let device = PathBuf::from(told(&attached).trim());
    let part = format!("{}p1", utf8(&device));
    assert!(Path::new(&part).exists());
    let note = String::from_utf8(attached.stderr).unwrap();
    let expected = format!("{part} is partition 1: no signature, 32.0 MiB");
    assert!(note.contains(&expected), "{note}");
    // The disk is meant, whichever of its devices is named.
    told(&machine.run("detach", &[&part]));
    machine.assert_clean(&device);
    let json = told(&machine.run_on_target("attach", &["--output", "json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    let part = &json["partitions"][0];
    assert_eq!(
        (&part["number"], &part["size_bytes"]),
        (&1.into(), &(32 * MIB).into())
    );
    told(&machine.run("detach", &[json["device"].as_str().unwrap()]));
    machine.assert_clean(&device);
}

#[test]
fn what_a_disk_holds_is_named_and_mkfs_is_not() {
    if !has_disks("what_a_disk_holds_is_named_and_mkfs_is_not", &["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let swap = swap_header(64 * MIB);
    let luks: &[u8] = b"LUKS\xba\xbe\0\x01";
    for (at, bytes, expected) in [
        (0, &swap[..], "swap space (swap)"),
        (0, luks, "an encrypted volume (crypto_LUKS)"),
        (
            MIB,
            b"a data base that has no signature",
            "byte 1048576 is not zero",
        ),
        (64 * MIB - 1, b"x", "byte 67108863 is not zero"),
    ] {
        let (_daemon, machine) = serve(&image(dir.path(), &[(at, bytes)]));
        let error = refused(&machine, &[]);
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("mkfs"), "{error}");
        let error = refused(&machine, &["--part", "1"]);
        assert!(error.contains("has no partitions"), "{error}");
    }
    // A file system of the whole disk that was partitioned later: both may be the right one.
    let image = image(dir.path(), &[]);
    tool("mkfs.ext4", &["-q", utf8(&image)]);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&dos_table(&[(MIB, 32 * MIB)]), 0)
        .unwrap();
    let (_daemon, machine) = serve(&image);
    let error = refused(&machine, &[]);
    for word in ["ext4 at 0x438", "dos at 0x1fe", "--part", "--type"] {
        assert!(error.contains(word), "{error}");
    }
    // It was asked for by name.
    machine.mount(&["--type", "ext4"]);
    machine.umount();
}

#[test]
fn a_file_system_this_kernel_does_not_have_is_named() {
    let test = "a_file_system_this_kernel_does_not_have_is_named";
    if !has_disks(test, &["mkfs.minix"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), &[]);
    tool("mkfs.minix", &[utf8(&image)]);
    let (_daemon, machine) = serve(&image);
    let mount_point = machine.mount_point();
    let output = machine.run_on_target("mount", &[utf8(&mount_point)]);
    if output.status.success() {
        eprintln!("SKIPPED {test}: this kernel has minix");
        return machine.umount();
    }
    let error = complaint(&output);
    assert!(
        error.contains("holds minix, which cannot be mounted here"),
        "{error}"
    );
    machine.assert_clean(Path::new("/dev/loop-none"));
}

/// An image with a GPT for LBAs of so many bytes, with one partition of 2 MiB (UEFI 2.10, 5.3).
fn with_gpt(folder: &Path, lba_bytes: u64) -> PathBuf {
    let last = 64 * MIB / lba_bytes - 1;
    let mut entries = vec![0; 128 * 128];
    // A Linux file system's type, in the order of a GUID's bytes.
    entries[..16].copy_from_slice(&0xe47d_47d8_693d_798e_4772_8483_0fc6_3daf_u128.to_le_bytes());
    entries[16..32].fill(7);
    for (at, lba) in [(32, MIB / lba_bytes), (40, 3 * MIB / lba_bytes - 1)] {
        entries[at..at + 8].copy_from_slice(&lba.to_le_bytes());
    }
    let entries_lbas = (128_u64 * 128).div_ceil(lba_bytes);
    let header = |at: u64, other: u64, entries_at: u64| {
        let mut header = [0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        for (at, value) in [
            (8, 0x1_0000),
            (12, 92),
            (80, 128),
            (84, 128),
            (88, crc(&entries)),
        ] {
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let usable = [2 + entries_lbas, last - entries_lbas - 1];
        for (place, value) in (24..).step_by(8).zip([at, other, usable[0], usable[1]]) {
            header[place..place + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        header[56..72].fill(9);
        header[72..80].copy_from_slice(&entries_at.to_le_bytes());
        let own: u32 = crc(&header);
        header[16..20].copy_from_slice(&own.to_le_bytes());
        header
    };
    let (first, second) = (header(1, last, 2), header(last, 1, last - entries_lbas));
    let protective = dos_table_of(lba_bytes, &[(0xee, lba_bytes, last * lba_bytes)]);
    let bytes: [(u64, &[u8]); 5] = [
        (0, &protective),
        (lba_bytes, &first),
        (2 * lba_bytes, &entries),
        ((last - entries_lbas) * lba_bytes, &entries),
        (last * lba_bytes, &second),
    ];
    image(folder, &bytes)
}

/// CRC-32, as UEFI has it, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

#[test]
fn a_gpt_whose_first_copy_is_damaged_is_restored_as_it_is_said() {
    let test = "a_gpt_whose_first_copy_is_damaged_is_restored_as_it_is_said";
    if !has_disks(test, &["partx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = with_gpt(dir.path(), LBA);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&vec![0; 64 << 10], 0).unwrap();
    let (_daemon, machine) = serve(&image);
    let damaged = "the first copy of its GPT is damaged, and the backup at its end is whole, with 1 partition:";
    let mut said = Vec::new();
    for args in [&[][..], &["--part", "1"]] {
        let error = refused(&machine, args);
        assert!(error.contains(damaged), "{error}");
        assert!(!error.contains("leave it out"), "{error}");
        said.push(error);
    }
    let (_, step) = said[0].split_once("by gdisk (`").expect("a step");
    let (step, _) = step.split_once('`').expect("a step");
    if !has_disks(test, &["gdisk"]) {
        return;
    }
    let device = machine.attach(&[]);
    told(&capstan_tests::program::shell(
        &step.replace("DEVICE", utf8(&device)),
    ));
    told(&machine.run("detach", &[utf8(&device)]));
    let error = refused(&machine, &[]);
    assert!(
        error.contains("--part N: 1: no signature, 2.0 MiB"),
        "{error}"
    );
}

#[test]
fn a_gpt_for_other_lbas_says_which() {
    let test = "a_gpt_for_other_lbas_says_which";
    if !has_disks(test, &["partx"]) {
        return;
    }
    for (made_for, has) in [(4096, 512), (512, 4096)] {
        let dir = tempfile::tempdir().unwrap();
        let image = with_gpt(dir.path(), made_for);
        let at = own_address();
        let daemon = Daemon::start(utf8(&image), has, at);
        let machine = Machine::new(at);
        let expected = format!(
            "that is a GPT for LBAs of {made_for} bytes, and the volume has LBAs of {has}: on the target, say `lba = \
             {made_for}`"
        );
        for args in [&[][..], &["--part", "1"]] {
            let error = refused(&machine, args);
            assert!(error.contains(&expected), "{error}");
        }
        drop(daemon);
    }
}
