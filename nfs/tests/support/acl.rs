//! ACLs of directories, which neither the standard library nor clients set.
#![expect(unsafe_code, reason = "setxattr(2) has no safe interface here")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// Gives a directory a default ACL that lets owner, group and others do everything
/// (include/uapi/linux/posix_acl_xattr.h).
pub(crate) fn set_default_acl(directory: &Path) {
    let entry = |tag: u16| {
        let permissions = 7_u16.to_le_bytes();
        [
            &tag.to_le_bytes()[..],
            &permissions,
            &u32::MAX.to_le_bytes(),
        ]
        .concat()
    };
    // Version 2; ACL_USER_OBJ, ACL_GROUP_OBJ and ACL_OTHER.
    let acl = [
        2_u32.to_le_bytes().to_vec(),
        entry(1),
        entry(4),
        entry(0x20),
    ]
    .concat();
    let path = CString::new(directory.as_os_str().as_bytes()).unwrap();
    let name = c"system.posix_acl_default";
    // SAFETY: both strings end, and the value has as many bytes as is said.
    let set = unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            acl.as_ptr().cast(),
            acl.len(),
            0,
        )
    };
    Errno::result(set).unwrap_or_else(|errno| panic!("the tmpfs has no ACLs: {errno}"));
}
