//! Names of files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

use super::{Case, case, case_that_needs};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::feature::Feature;
use crate::place::Place;
use crate::sys;

pub(super) const CASES: &[Case] = &[
    case("names/of-every-length", of_every_length),
    case("names/too-long", too_long),
    case("names/utf-8", utf_8),
    case("names/odd-bytes", odd_bytes),
    case_that_needs("names/no-utf-8", &[Feature::RawNames], no_utf_8),
    case("names/case-and-form-matter", case_and_form_matter),
    case("names/deep-path", deep_path),
];

/// Makes, finds, lists at the other client, renames and removes.
fn use_name(place: &Place, name: &[u8]) -> Outcome {
    let shown = String::from_utf8_lossy(name).into_owned();
    let name_os = OsStr::from_bytes(name);
    sys::create(&place.at(name_os), 0o644).succeeds(format!("creating {shown:?}"))?;
    sys::stat(&place.there(name_os)).succeeds(format!("stat of {shown:?} there"))?;
    let listed = sys::names(&place.there("")).succeeds("listing")?;
    holds(
        format!("{shown:?} is listed as it was made"),
        listed == [name.to_vec()],
    )?;
    sys::rename(&place.at(name_os), &place.at("plain")).succeeds(format!("rename of {shown:?}"))?;
    sys::rename(&place.at("plain"), &place.at(name_os)).succeeds(format!("rename to {shown:?}"))?;
    sys::unlink(&place.at(name_os)).succeeds(format!("unlink of {shown:?}"))?;
    sys::mkdir(&place.at(name_os), 0o755).succeeds(format!("mkdir of {shown:?}"))?;
    sys::rmdir(&place.at(name_os)).succeeds(format!("rmdir of {shown:?}"))
}

fn of_every_length(place: &Place) -> Outcome {
    // Around the multiples of four that XDR pads to, and the longest there is.
    for length in [
        1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 127, 128, 251, 252, 253, 254, 255,
    ] {
        use_name(place, "n".repeat(length).as_bytes())?;
    }
    Ok(())
}

fn too_long(place: &Place) -> Outcome {
    let path = place.at("x".repeat(256));
    let with = &[Errno::ENAMETOOLONG];
    sys::stat(&path).refused("stat", with)?;
    sys::create(&path, 0o644).refused("open with O_CREAT", with)?;
    sys::mkdir(&path, 0o755).refused("mkdir", with)?;
    sys::symlink(&path, &path).refused("symlink", with)?;
    sys::unlink(&path).refused("unlink", with)
}

fn utf_8(place: &Place) -> Outcome {
    // Of two, three and four bytes a character; and 255 bytes that are 85 characters.
    for name in [
        "Grüße",
        "日本語",
        "𝄞🙂",
        "a\u{301}",
        "\u{feff}x",
        &"語".repeat(85),
    ] {
        use_name(place, name.as_bytes())?;
    }
    Ok(())
}

fn odd_bytes(place: &Place) -> Outcome {
    for name in [
        "a b",
        "a\nb",
        "\u{1}\u{7f}",
        "-rf",
        "*",
        "a\\b",
        "a:b",
        "...",
        ".x",
        "con",
        "x.",
        "x ",
        "%2f",
        "~",
    ] {
        use_name(place, name.as_bytes())?;
    }
    Ok(())
}

fn no_utf_8(place: &Place) -> Outcome {
    for name in [
        &b"\xff"[..],
        b"a\xc3",
        b"\xe9t\xe9",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
    ] {
        use_name(place, name)?;
    }
    Ok(())
}

fn case_and_form_matter(place: &Place) -> Outcome {
    for (first, second) in [("name", "Name"), ("\u{e9}", "e\u{301}"), ("x", "x ")] {
        std::fs::write(place.at(first), first).succeeds("write")?;
        sys::stat(&place.at(second)).refused(format!("stat of {second:?}"), &[Errno::ENOENT])?;
        std::fs::write(place.at(second), second).succeeds("write")?;
        let held = std::fs::read(place.at(first)).succeeds("read")?;
        equal("what the first holds", held, first.as_bytes().to_vec())?;
        let held = std::fs::read(place.there(second)).succeeds("read")?;
        equal("what the second holds", held, second.as_bytes().to_vec())?;
    }
    Ok(())
}

/// Folders in each other, as deep as a path of a system call reaches.
fn deep_path(place: &Place) -> Outcome {
    const LEVELS: usize = 40;
    let name = "d".repeat(60);
    let mut path = place.at(&name);
    for _ in 0..LEVELS {
        sys::mkdir(&path, 0o755).succeeds("mkdir")?;
        path.push(&name);
    }
    std::fs::write(&path, b"deep").succeeds("writing at the bottom")?;
    equal(
        "what it holds",
        std::fs::read(&path).succeeds("read")?,
        b"deep".to_vec(),
    )
}
