use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{NoFileSystem, Signature, Verdict, file_system, nothing_to_mount};
use crate::tool::Tools;

/// An image of 16 MiB with these bytes in it.
fn image(dir: &tempfile::TempDir, bytes: &[(u64, &[u8])]) -> PathBuf {
    let path = dir.path().join("image");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(16 << 20).unwrap();
    for (at, bytes) in bytes {
        file.write_all_at(bytes, *at).unwrap();
    }
    path
}

fn told(path: &Path) -> String {
    let tools = Tools::patient();
    let found = file_system(path, &tools).unwrap().unwrap_err();
    nothing_to_mount("the volume", None, path, &found, &tools).to_string()
}

#[test]
fn mkfs_is_named_for_a_blank_volume_only() {
    let dir = tempfile::tempdir().unwrap();
    let blank = told(&image(&dir, &[]));
    assert!(blank.contains("mkfs.ext4"), "{blank}");
    assert!(blank.contains("first 4.0 MiB"), "{blank}");
    assert!(
        !blank.contains("blank"),
        "not all of it was looked at: {blank}"
    );
    // As small as what is looked at.
    let small = dir.path().join("small");
    let file = std::fs::File::create(&small).unwrap();
    file.set_len(2 << 20).unwrap();
    let blank = told(&small);
    assert!(
        blank.contains("it is blank, as all of its 2.0 MiB are zeroes"),
        "{blank}"
    );
    // Data without a signature: at the start, at the end, and where the head ends.
    for at in [0, (4 << 20) - 1, (16 << 20) - 1, 15 << 20] {
        let text = told(&image(&dir, &[(at, b"x")]));
        assert!(!text.contains("mkfs"), "{text}");
        assert!(text.contains(&format!("byte {at} ")), "{text}");
    }
    // Between them no signature lives.
    assert!(told(&image(&dir, &[(8 << 20, b"x")])).contains("mkfs"));
}

/// `mkfs` on the disk would take its partition table and the other partitions.
#[test]
fn advice_about_a_partition_leaves_its_disk_alone() {
    let tools = Tools::patient();
    let of = |content: &NoFileSystem| {
        let null = Path::new("/dev/null");
        nothing_to_mount("it", Some(3), null, content, &tools).to_string()
    };
    let signatures = ["swap", "crypto_LUKS", "zfs_member"].map(|kind| {
        let main = Some(kind.to_owned());
        let all = Vec::new();
        of(&NoFileSystem::Signatures { main, all })
    });
    for text in [of(&NoFileSystem::Blank {
        size_bytes: 1 << 30,
    })]
    .iter()
    .chain(&signatures)
    {
        let named = text.matches("DEVICE").count();
        assert!(named > 0, "{text}");
        assert_eq!(text.matches("DEVICEp3").count(), named, "{text}");
    }
}

#[test]
fn what_is_there_is_named_with_what_fits() {
    let dir = tempfile::tempdir().unwrap();
    let mut suspended = [0; 4096];
    suspended[4086..].copy_from_slice(b"S1SUSPEND\0");
    let luks: &[u8] = b"LUKS\xba\xbe\0\x01";
    for (bytes, expected) in [
        ((0, luks), ["(crypto_LUKS)", "cryptsetup open"]),
        ((0, &suspended), ["(swsuspend)", "swapon"]),
        ((510, &[0x55, 0xaa]), ["(dos)", "it names no partition"]),
    ] {
        let text = told(&image(&dir, &[bytes]));
        for word in expected {
            assert!(text.contains(word), "{text}");
        }
        assert!(!text.contains("mkfs"), "{text}");
    }
}

/// The label of an LVM physical volume, whose checksum is a CRC-32 with a start of its own.
fn lvm_label() -> Vec<u8> {
    let mut label = vec![0; 512];
    label[..8].copy_from_slice(b"LABELONE");
    label[8] = 1;
    label[20] = 32;
    label[24..32].copy_from_slice(b"LVM2 001");
    let crc = label[20..].iter().fold(0xf597_a6cf_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    });
    label[16..20].copy_from_slice(&crc.to_le_bytes());
    label
}

#[test]
fn members_of_something_larger_are_not_blank() {
    let dir = tempfile::tempdir().unwrap();
    // Version 1.2 of Linux's RAID: magic number, version, and where it is itself.
    let mut raid = [0; 256];
    raid[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    raid[4] = 1;
    raid[144] = 8;
    for (at, bytes, expected) in [
        (512, &lvm_label()[..], ["(LVM2_member)", "vgchange"]),
        (4096, &raid, ["(linux_raid_member)", "mdadm --assemble"]),
    ] {
        let text = told(&image(&dir, &[(at, bytes)]));
        for word in expected {
            assert!(text.contains(word), "{text}");
        }
        assert!(!text.contains("mkfs"), "{text}");
    }
}

/// What blkid calls ambivalent, and exits with 8: two file systems, of which the older one was
/// not wiped.
#[test]
fn two_file_systems_are_not_guessed_between() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, &[]);
    let made = Command::new("mkfs.ext4").arg("-q").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED two_file_systems_are_not_guessed_between: there is no mkfs.ext4");
        return;
    }
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"-rom1fs-", 0).unwrap();
    let text = told(&path);
    for word in ["ext4 at 0x438", "romfs at 0x0", "--type"] {
        assert!(text.contains(word), "{text}");
    }
    assert!(!text.contains("mkfs"), "{text}");
}

#[test]
fn several_signatures_are_all_named() {
    let tools = Tools::patient();
    let one = |kind: &str, offset: &str| Signature {
        kind: kind.to_owned(),
        offset: offset.to_owned(),
    };
    let all = vec![one("ext4", "0x438"), one("dos", "0x1fe")];
    let both = NoFileSystem::Signatures { main: None, all };
    let text = nothing_to_mount("it", None, Path::new("/dev/null"), &both, &tools).to_string();
    assert!(text.contains("ext4 at 0x438, dos at 0x1fe"), "{text}");
    let all = vec![one("ext4", "0x438"), one("crypto_LUKS", "0x0")];
    let main = Some("crypto_LUKS".to_owned());
    let old = NoFileSystem::Signatures { main, all };
    let text = nothing_to_mount("it", None, Path::new("/dev/null"), &old, &tools).to_string();
    assert!(text.contains("signatures of ext4 besides"), "{text}");
    assert!(text.contains("cryptsetup"), "{text}");
    // The three places of a GPT are one thing.
    let all = vec![
        one("gpt", "0x200"),
        one("gpt", "0xfe00"),
        one("PMBR", "0x1fe"),
    ];
    assert_eq!(super::kinds(&all), ["gpt"]);
}

#[test]
fn a_file_system_counts_when_nothing_contradicts_it() {
    let verdict = |text| Verdict::parse(text);
    let ext4 = verdict("DEVNAME=/dev/loop0\nTYPE=ext4\nUSAGE=filesystem\n");
    assert_eq!(ext4.file_system(), Some("ext4"));
    let old = verdict("TYPE=ext4\nUSAGE=filesystem\nPTTYPE=dos\n");
    assert_eq!((old.file_system(), old.main()), (None, None));
    let hybrid = verdict("TYPE=iso9660\nUSAGE=filesystem\nPTTYPE=dos\n");
    assert_eq!(hybrid.file_system(), Some("iso9660"));
    let swap = verdict("TYPE=swap\nUSAGE=other\n");
    assert_eq!((swap.file_system(), swap.main()), (None, Some("swap")));
}
