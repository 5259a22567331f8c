//! Extended attributes of users (RFC 8276).

use nix::errno::Errno;

use super::{Case, Kind, case_that_needs, file_of_owner, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::feature::Feature;
use crate::place::Place;
use crate::random::Random;
use crate::sys::{self, XATTR_BYTES_MAX, XATTR_CREATE, XATTR_REPLACE};
use crate::user::{OTHER, OWNER};

const NEEDS: &[Feature] = &[Feature::Xattrs];

pub(super) const CASES: &[Case] = &[
    case_that_needs("xattrs/set-and-list", NEEDS, set_and_list),
    case_that_needs("xattrs/create-and-replace", NEEDS, create_and_replace),
    case_that_needs("xattrs/values", NEEDS, values),
    case_that_needs("xattrs/many", NEEDS, many),
    case_that_needs("xattrs/permissions", NEEDS, permissions),
    case_that_needs("xattrs/stay-with-the-file", NEEDS, stay_with_the_file),
    case_that_needs("xattrs/other-namespaces", NEEDS, other_namespaces),
];

fn set_and_list(place: &Place) -> Outcome {
    for kind in [Kind::File, Kind::Folder] {
        let name = format!("{kind:?}");
        let (path, there) = (place.at(&name), place.there(&name));
        make(kind, &path)?;
        equal(
            "names",
            sys::xattr_names(&there).succeeds("listxattr")?.len(),
            0,
        )?;
        sys::xattr(&path, c"user.a", 100).refused("getxattr of none", &[Errno::ENODATA])?;
        let before = sys::stat(&path).succeeds("stat")?;
        let_the_clock_tick();
        sys::set_xattr(&path, c"user.a", b"first", 0).succeeds("setxattr")?;
        let after = sys::stat(&path).succeeds("stat")?;
        holds(
            "setxattr changes the change time",
            (after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec),
        )?;
        sys::set_xattr(&path, c"user.b", b"second", 0).succeeds("setxattr")?;
        equal(
            "value",
            sys::xattr(&there, c"user.a", 100).succeeds("getxattr")?,
            b"first".to_vec(),
        )?;
        let names = sys::xattr_names(&there).succeeds("listxattr")?;
        equal("names", names, vec![b"user.a".to_vec(), b"user.b".to_vec()])?;
        sys::remove_xattr(&path, c"user.a").succeeds("removexattr")?;
        sys::remove_xattr(&path, c"user.a").refused("removexattr again", &[Errno::ENODATA])?;
        equal(
            "names",
            sys::xattr_names(&path).succeeds("listxattr")?,
            vec![b"user.b".to_vec()],
        )?;
    }
    Ok(())
}

fn create_and_replace(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    sys::set_xattr(&path, c"user.a", b"1", XATTR_REPLACE)
        .refused("replacing what is not there", &[Errno::ENODATA])?;
    sys::set_xattr(&path, c"user.a", b"1", XATTR_CREATE).succeeds("creating")?;
    sys::set_xattr(&path, c"user.a", b"2", XATTR_CREATE)
        .refused("creating what is there", &[Errno::EEXIST])?;
    sys::set_xattr(&path, c"user.a", b"3", XATTR_REPLACE).succeeds("replacing")?;
    equal(
        "value",
        sys::xattr(&path, c"user.a", 100).succeeds("getxattr")?,
        b"3".to_vec(),
    )
}

/// Lengths around a word of XDR, and as much as ext4 has room for beside an inode.
fn values(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    for bytes in [0, 1, 3, 4, 5, 255, 256, 1000, 3000] {
        let value = Random::new(9).bytes(bytes);
        sys::set_xattr(&path, c"user.value", &value, 0).succeeds(format!("setxattr of {bytes}"))?;
        let read = sys::xattr(&place.there("file"), c"user.value", 4000).succeeds("getxattr")?;
        equal("value", read, value)?;
    }
    equal(
        "length by a room of 0",
        sys::xattr(&path, c"user.value", 0)
            .succeeds("getxattr")?
            .len(),
        0,
    )?;
    sys::xattr(&path, c"user.value", 10).refused("getxattr into too little", &[Errno::ERANGE])?;
    sys::set_xattr(&path, c"user.value", &vec![0; XATTR_BYTES_MAX + 1], 0)
        .refused("a value of more than 64 KiB", &[Errno::E2BIG])
}

fn many(place: &Place) -> Outcome {
    const COUNT: u32 = 40;
    let path = place.at("file");
    make(Kind::File, &path)?;
    let mut expected = Vec::new();
    for number in 0..COUNT {
        let name = std::ffi::CString::new(format!("user.name{number:02}")).unwrap_or_default();
        sys::set_xattr(&path, &name, b"v", 0).succeeds("setxattr")?;
        expected.push(name.as_bytes().to_vec());
    }
    equal(
        "names",
        sys::xattr_names(&place.there("file")).succeeds("listxattr")?,
        expected,
    )
}

fn permissions(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o600, b"")?;
    OWNER.does(|| sys::set_xattr(&path, c"user.a", b"v", 0).succeeds("setxattr by the owner"))?;
    OTHER.does(|| {
        sys::set_xattr(&path, c"user.a", b"w", 0)
            .refused("setxattr by another", &[Errno::EACCES])?;
        sys::remove_xattr(&path, c"user.a").refused("removexattr by another", &[Errno::EACCES])?;
        sys::xattr(&path, c"user.a", 10).refused("getxattr by another", &[Errno::EACCES])
    })?;
    equal(
        "value",
        sys::xattr(&path, c"user.a", 10).succeeds("getxattr")?,
        b"v".to_vec(),
    )
}

fn stay_with_the_file(place: &Place) -> Outcome {
    make(Kind::File, &place.at("old"))?;
    sys::set_xattr(&place.at("old"), c"user.a", b"v", 0).succeeds("setxattr")?;
    sys::link(&place.at("old"), &place.at("link")).succeeds("link")?;
    sys::rename(&place.at("old"), &place.at("new")).succeeds("rename")?;
    for name in ["new", "link"] {
        let value = sys::xattr(&place.there(name), c"user.a", 10).succeeds("getxattr")?;
        equal(format!("value by {name}"), value, b"v".to_vec())?;
    }
    make(Kind::File, &place.at("old"))?;
    equal(
        "names of a new file",
        sys::xattr_names(&place.at("old"))
            .succeeds("listxattr")?
            .len(),
        0,
    )
}

/// RFC 8276, section 4: only attributes of users go over NFS.
fn other_namespaces(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    sys::set_xattr(&path, c"trusted.a", b"v", 0).refused("trusted.a", &[Errno::EOPNOTSUPP])?;
    sys::set_xattr(&path, c"nonsense.a", b"v", 0).refused("nonsense.a", &[Errno::EOPNOTSUPP])?;
    sys::set_xattr(&path, c"user.", b"v", 0).refused("no name", &[Errno::EINVAL])
}
