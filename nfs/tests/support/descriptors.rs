//! A process that has no descriptor left. A test with one is to be alone in its process.

use std::fs::File;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are free, and then none.
const MOST: u64 = 256;

/// Lets this process have few of them.
pub(crate) fn allow_few() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, MOST, hard).unwrap();
}

/// Takes all that this process may still have.
pub(crate) fn take_all() -> Vec<File> {
    let mut taken = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) if error.raw_os_error() == Some(Errno::EMFILE as i32) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}
