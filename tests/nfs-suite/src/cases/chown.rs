//! chown(2): which users may give a file to which others.

use nix::errno::Errno;

use super::{Case, KINDS, Kind, case, file_of_owner, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::place::Place;
use crate::sys;
use crate::user::{MEMBER, OTHER, OWNER, OWNER_IN_TWO};

pub(super) const CASES: &[Case] = &[
    case("chown/every-kind", every_kind),
    case("chown/of-a-link-itself", of_a_link_itself),
    case("chown/only-root-gives-away", only_root_gives_away),
    case("chown/to-a-group-of-ones-own", to_a_group_of_ones_own),
    case("chown/clears-set-id", clears_set_id),
    case("chown/errors", errors),
    case("chown/large-ids", large_ids),
    case("chown/many-groups", many_groups),
];

fn owner(path: &std::path::Path) -> Outcome<(u32, u32)> {
    let found = sys::lstat(path).succeeds("lstat")?;
    Ok((found.st_uid, found.st_gid))
}

fn every_kind(place: &Place) -> Outcome {
    for kind in KINDS {
        let path = place.at(format!("{kind:?}"));
        make(kind, &path)?;
        let before = sys::lstat(&path).succeeds("stat")?;
        let_the_clock_tick();
        sys::lchown(&path, Some(61_010), Some(61_011)).succeeds(format!("lchown of a {kind:?}"))?;
        equal(
            format!("owner of a {kind:?}"),
            owner(&path)?,
            (61_010, 61_011),
        )?;
        let after = sys::lstat(&path).succeeds("stat")?;
        holds(
            format!("chown of a {kind:?} changes the change time"),
            (after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec),
        )?;
        // One at a time leaves the other.
        sys::lchown(&path, None, Some(61_012)).succeeds("lchown")?;
        equal("owner", owner(&path)?, (61_010, 61_012))?;
        sys::lchown(&path, Some(61_013), None).succeeds("lchown")?;
        equal("owner", owner(&path)?, (61_013, 61_012))?;
    }
    Ok(())
}

fn of_a_link_itself(place: &Place) -> Outcome {
    make(Kind::File, &place.at("target-of-a-link"))?;
    make(Kind::Symlink, &place.at("link"))?;
    sys::lchown(&place.at("link"), Some(61_010), Some(61_010)).succeeds("lchown")?;
    equal(
        "owner of what it points at",
        owner(&place.at("target-of-a-link"))?,
        (0, 0),
    )?;
    sys::chown(&place.at("link"), Some(61_011), Some(61_011)).succeeds("chown")?;
    equal(
        "owner of the link",
        owner(&place.at("link"))?,
        (61_010, 61_010),
    )?;
    equal(
        "owner of what it points at",
        owner(&place.at("target-of-a-link"))?,
        (61_011, 61_011),
    )
}

fn only_root_gives_away(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o666, b"")?;
    for user in [OWNER, MEMBER, OTHER] {
        user.does(|| {
            sys::chown(&path, Some(OTHER.uid), None).refused(
                format!("chown to another by user {}", user.uid),
                &[Errno::EPERM],
            )
        })?;
    }
    // Giving it to its owner changes nothing.
    OWNER.does(|| {
        sys::chown(&path, Some(OWNER.uid), Some(OWNER.gid)).succeeds("chown to oneself")
    })?;
    equal("owner", owner(&path)?, (OWNER.uid, OWNER.gid))
}

fn to_a_group_of_ones_own(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o644, b"")?;
    OWNER.does(|| {
        sys::chown(&path, None, Some(61_003)).refused("chgrp to a foreign group", &[Errno::EPERM])
    })?;
    OWNER_IN_TWO
        .does(|| sys::chown(&path, None, Some(61_003)).succeeds("chgrp to a second group"))?;
    equal("owner", owner(&path)?, (OWNER.uid, 61_003))?;
    MEMBER.does(|| {
        sys::chown(&path, None, Some(61_001))
            .refused("chgrp by a member who is not the owner", &[Errno::EPERM])
    })
}

fn clears_set_id(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o6755, b"")?;
    OWNER_IN_TWO.does(|| sys::chown(&path, None, Some(61_003)).succeeds("chgrp"))?;
    equal(
        "mode after chgrp by the owner",
        sys::permissions(&path).succeeds("stat")?,
        0o755,
    )?;
    // Of a folder they stay.
    let folder = place.at("folder");
    super::folder_of(OWNER, &folder, 0o2755)?;
    OWNER_IN_TWO.does(|| sys::chown(&folder, None, Some(61_003)).succeeds("chgrp of a folder"))?;
    equal(
        "mode of a folder",
        sys::permissions(&folder).succeeds("stat")?,
        0o2755,
    )
}

fn errors(place: &Place) -> Outcome {
    sys::chown(&place.at("none"), Some(1), Some(1))
        .refused("chown of no file", &[Errno::ENOENT])?;
    make(Kind::File, &place.at("file"))?;
    sys::chown(&place.at("file/x"), Some(1), Some(1))
        .refused("chown below a file", &[Errno::ENOTDIR])
}

/// Numbers that no 16 bits and no signed 32 bits hold.
fn large_ids(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    for id in [65_534, 65_536, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFD] {
        sys::chown(&path, Some(id), Some(id)).succeeds(format!("chown to {id}"))?;
        equal("owner", owner(&place.there("file"))?, (id, id))?;
    }
    Ok(())
}

/// AUTH_SYS carries 16 additional groups (RFC 5531, appendix A); the last of them counts.
fn many_groups(place: &Place) -> Outcome {
    const GROUPS: [u32; 16] = [
        62_000, 62_001, 62_002, 62_003, 62_004, 62_005, 62_006, 62_007, 62_008, 62_009, 62_010,
        62_011, 62_012, 62_013, 62_014, 62_015,
    ];
    let user = crate::user::User {
        uid: 61_020,
        gid: 61_020,
        groups: &GROUPS,
    };
    for group in GROUPS {
        let path = place.at(format!("of{group}"));
        file_of_owner(&path, 0o060, b"group")?;
        sys::chown(&path, None, Some(group)).succeeds("chgrp")?;
        user.does(|| {
            let read = std::fs::read(&path).succeeds(format!("reading a file of group {group}"))?;
            equal("what was read", read.as_slice(), b"group")
        })?;
    }
    Ok(())
}
