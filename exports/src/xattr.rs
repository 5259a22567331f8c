//! Extended attributes that users have (RFC 8276): those whose name begins with `user.` on Linux.
//! Others are not there for clients, ACLs among them.

use std::ffi::CString;

use nix::errno::Errno;
use nix::libc;

use crate::error::{FileError, Result};
use crate::identity::Caller;
use crate::limits::XATTR_BYTES;
use crate::name::{NAME_BYTES, NameProblem};
use crate::node::Node;
use crate::sys;

/// Clients do not see the name space, as there is one alone (RFC 8276, 5).
const PREFIX: &[u8] = b"user.";

/// Whether an attribute that is set may or has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Either.
    Any,
    /// It may not be there.
    Create,
    /// It has to be there.
    Replace,
}

fn full_name(name: &[u8]) -> Result<CString> {
    if name.is_empty() {
        return Err(NameProblem::Empty.into());
    }
    let full = [PREFIX, name].concat();
    if full.len() > NAME_BYTES {
        return Err(NameProblem::TooLong(name.len()).into());
    }
    CString::new(full).map_err(|error| {
        NameProblem::Byte {
            byte: 0,
            at: error.nul_position().saturating_sub(PREFIX.len()),
        }
        .into()
    })
}

/// Asks for the length, and then for as much; anew where it has grown meanwhile.
fn sized(mut ask: impl FnMut(&mut [u8]) -> nix::Result<usize>) -> nix::Result<Vec<u8>> {
    let mut attempts = 0;
    loop {
        let mut bytes = vec![0; ask(&mut [])?.min(XATTR_BYTES)];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match ask(&mut bytes) {
            Err(Errno::ERANGE) if attempts < 8 => attempts += 1,
            other => {
                bytes.truncate(other?);
                return Ok(bytes);
            }
        }
    }
}

impl Node {
    /// Whether its file system keeps attributes that users have.
    pub fn keeps_xattrs(&self) -> bool {
        let asked = sys::get_xattr(self.fd(), c"user.any", &mut []);
        !matches!(asked, Err(Errno::EOPNOTSUPP | Errno::ENOSYS))
    }

    /// Whether what is made in this directory gets its permissions from an ACL of the directory,
    /// and a umask does not count (acl(5)).
    pub fn has_default_acl(&self) -> bool {
        sys::get_xattr(self.fd(), c"system.posix_acl_default", &mut []).is_ok()
    }

    /// Value of an attribute, at most [`XATTR_BYTES`].
    ///
    /// # Errors
    /// `ENODATA` where there is none.
    pub fn xattr(&self, caller: &Caller, name: &[u8]) -> Result<Vec<u8>> {
        self.check_caller(caller)?;
        let name = full_name(name)?;
        caller.act(|| {
            sized(|value| sys::get_xattr(self.fd(), &name, value))
                .map_err(FileError::kernel("reading an extended attribute"))
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `EEXIST` and `ENODATA` as `how` says; `E2BIG` for more than [`XATTR_BYTES`].
    pub fn set_xattr(
        &self,
        caller: &Caller,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.check_writer(caller)?;
        let name = full_name(name)?;
        let flags = match how {
            SetXattr::Any => 0,
            SetXattr::Create => libc::XATTR_CREATE,
            SetXattr::Replace => libc::XATTR_REPLACE,
        };
        caller.act(|| {
            sys::set_xattr(self.fd(), &name, value, flags)
                .map_err(FileError::kernel("setting an extended attribute"))
        })?;
        self.sync()
    }

    /// Names of the attributes, without `user.`.
    ///
    /// # Errors
    /// `EACCES` where the caller may not read the file, which the kernel asks of a value alone.
    pub fn xattr_names(&self, caller: &Caller) -> Result<Vec<Box<[u8]>>> {
        self.check_caller(caller)?;
        let listing = FileError::kernel("listing extended attributes");
        let names = caller.act(|| {
            // As READ of the file's data: RFC 8276, 8.4.3, leaves it open.
            sys::access(self.fd(), libc::R_OK).map_err(listing)?;
            sized(|names| sys::list_xattrs(self.fd(), names)).map_err(listing)
        })?;
        let names = names.split(|&byte| byte == 0);
        Ok(names
            .filter_map(|name| name.strip_prefix(PREFIX))
            .map(Into::into)
            .collect())
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA` where there is none.
    pub fn remove_xattr(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        self.check_writer(caller)?;
        let name = full_name(name)?;
        caller.act(|| {
            sys::remove_xattr(self.fd(), &name)
                .map_err(FileError::kernel("removing an extended attribute"))
        })?;
        self.sync()
    }
}
