//! What an error of the operating system says that is out of something, and what to do about it.

use std::fs;
use std::io;

use nix::libc;

/// What is to be had more of, as the end of a message; `None` when the error is of another kind.
#[must_use]
pub fn shortage(error: &io::Error) -> Option<String> {
    match error.raw_os_error()? {
        libc::EMFILE => {
            let limit = limit("Max open files").map_or_else(String::new, |max| format!(" of {max}"));
            Some(format!(
                "the limit{limit} open files is reached, expected a higher one: raise it (ulimit -Hn, LimitNOFILE= of the unit)"
            ))
        }
        libc::ENFILE => Some(
            "the machine has as many open files as it may, expected fewer or a higher limit (sysctl fs.file-max)".to_owned(),
        ),
        libc::ENOSPC | libc::EDQUOT => Some(
            "expected some KiB and an inode that are free there (df and df -i show them): free some".to_owned(),
        ),
        libc::ENOMEM => Some(match limit("Max address space") {
            Some(max) => format!(
                "the limit of {max} bytes of address space may be reached, expected a higher one: raise it (ulimit -v, LimitAS= \
                 of the unit)"
            ),
            None => "expected more memory that is free here (free shows it, and memory.max of the control group what this \
                     process may have)"
                .to_owned(),
        }),
        libc::EFBIG => {
            let limit = limit("Max file size").map_or_else(String::new, |max| format!(" of {max} bytes"));
            Some(format!(
                "the limit{limit} of a file's size is reached, expected a higher one: raise it (ulimit -f, LimitFSIZE= of the unit)"
            ))
        }
        _ => None,
    }
}

/// A soft limit of this process by its name in `/proc/self/limits` (proc_pid_limits(5)). `None`
/// when it is unlimited, or when no descriptor is left to read that file.
fn limit(name: &str) -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use nix::libc;

    use super::shortage;

    #[test]
    fn what_there_is_too_little_of_is_said_with_what_to_do() {
        for (errno, words) in [
            (libc::EMFILE, "LimitNOFILE="),
            (libc::ENFILE, "fs.file-max"),
            (libc::EFBIG, "LimitFSIZE="),
            (libc::ENOMEM, "memory"),
            (libc::ENOSPC, "df -i"),
            (libc::EDQUOT, "df -i"),
        ] {
            let said = shortage(&io::Error::from_raw_os_error(errno)).unwrap();
            assert!(said.contains(words) && said.contains("expected"), "{said}");
        }
        let said = shortage(&io::Error::from_raw_os_error(libc::EMFILE)).unwrap();
        let digits: String = said.chars().filter(char::is_ascii_digit).collect();
        assert!(!digits.is_empty(), "{said}");
        assert_eq!(shortage(&io::Error::from_raw_os_error(libc::EACCES)), None);
        assert_eq!(shortage(&io::Error::other("no number")), None);
    }
}
