use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use capstan_storage::{IoError, IoErrorKind, Op};
use capstan_subsystem::BackendId;

use super::{Failures, MEDIA_SAID_AGAIN, failing, is_of_the_medium};

#[test]
fn failures_are_told_at_once_and_then_counted() {
    let error = |errno| {
        let volume: Arc<str> = Arc::from("/srv/a.img");
        IoError::from_errno(errno, &Op::Flush, &volume)
    };
    let start = Instant::now();
    let mut failures = Failures::default();
    assert!(failures.add(&error(libc_enospc()), start));
    for _ in 0..1000 {
        assert!(!failures.add(&error(libc_enospc()), start));
    }
    assert_eq!(failures.take_if_due(start), None);
    let (count, last) = failures.take_if_due(start + MEDIA_SAID_AGAIN).unwrap();
    assert_eq!(count, 1000);
    assert!(last.contains("/srv/a.img: no space left"), "{last}");
    let quiet = failures.take_if_due(start + 2 * MEDIA_SAID_AGAIN).unwrap();
    assert_eq!(quiet, (0, String::new()));
    // What `doctor` and hosts are told.
    let (full, other) = (BackendId(1), BackendId(2));
    let failures = HashMap::from([((full, IoErrorKind::NoSpace), failures)]);
    let (said, is_read_only) = failing(&failures, full);
    let said = said.unwrap();
    assert!(said.path == "/srv/a.img" && said.what.contains("no space left") && !is_read_only);
    assert_eq!(failing(&failures, other), (None, false));
    let read_only = HashMap::from([((full, IoErrorKind::ReadOnly), Failures::default())]);
    assert!(failing(&read_only, full).1);
    // What is a host's own mistake, or passes, is no state of the medium.
    let volume: Arc<str> = Arc::from("/srv/a.img");
    for kind in [
        IoErrorKind::OutOfRange,
        IoErrorKind::ReadOnly,
        IoErrorKind::Retry,
    ] {
        assert!(!is_of_the_medium(&IoError::new(kind, &Op::Flush, &volume)));
    }
}

fn libc_enospc() -> i32 {
    nix::errno::Errno::ENOSPC as i32
}
