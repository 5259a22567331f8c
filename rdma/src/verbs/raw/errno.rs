//! The three ways in which verbs calls return errors. Nothing else looks at a return value.

use std::io;
use std::ptr::NonNull;

/// libibverbs: 0, or an error number. It is positive by convention, but some device libraries
/// return it negative, and some return -1 and set `errno`.
pub(in crate::verbs) fn number(answer: i32) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::Error::from_raw_os_error(answer.saturating_abs())),
    }
}

/// librdmacm: 0 (or more), or -1 and `errno`.
pub(in crate::verbs) fn minus_one(answer: i32) -> io::Result<()> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Calls that make something: NULL and `errno`.
pub(in crate::verbs) fn pointer<T>(answer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(answer).ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use nix::errno::Errno;

    use super::{minus_one, number, pointer};

    #[test]
    fn numbers_of_either_sign_are_errors() {
        Errno::EBUSY.set();
        assert!(number(0).is_ok());
        let code = |answer| number(answer).unwrap_err().raw_os_error();
        assert_eq!(code(libc::ENOMEM), Some(libc::ENOMEM));
        assert_eq!(code(-libc::EINVAL), Some(libc::EINVAL));
        assert_eq!(code(-1), Some(libc::EBUSY));
        assert_eq!(code(i32::MIN), Some(i32::MAX));
    }

    #[test]
    fn minus_one_means_errno() {
        Errno::ENODEV.set();
        assert!(minus_one(0).is_ok() && minus_one(7).is_ok());
        let code = minus_one(-1).unwrap_err().raw_os_error();
        assert_eq!(code, Some(libc::ENODEV));
    }

    #[test]
    fn null_means_errno() {
        Errno::EMFILE.set();
        let mut value = 5;
        assert!(pointer(&raw mut value).is_ok());
        let code = pointer(ptr::null_mut::<u8>()).unwrap_err().raw_os_error();
        assert_eq!(code, Some(libc::EMFILE));
    }
}
