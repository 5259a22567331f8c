//! Doing things as another user.

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::expect::{Expect, Failure, Outcome};
use crate::sys;

/// The user that a system call is made as.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: &'static [u32],
}

/// The owner of files, in cases of permissions.
pub(crate) const OWNER: User = User {
    uid: 61_001,
    gid: 61_001,
    groups: &[],
};
/// Of the owner's group, by its additional groups.
pub(crate) const MEMBER: User = User {
    uid: 61_002,
    gid: 61_002,
    groups: &[61_001, 61_003],
};
/// Neither the owner nor of the group.
pub(crate) const OTHER: User = User {
    uid: 61_004,
    gid: 61_004,
    groups: &[],
};
/// The owner, which is in another group as well.
pub(crate) const OWNER_IN_TWO: User = User {
    uid: 61_001,
    gid: 61_001,
    groups: &[61_003],
};

impl User {
    /// Does something as this user, on a thread that is theirs: identities of files are a
    /// thread's.
    pub(crate) fn does<T: Send>(self, what: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
        let run = move || {
            sys::set_groups_of_thread(self.groups).succeeds("setgroups, which takes root")?;
            setfsgid(Gid::from_raw(self.gid));
            setfsuid(Uid::from_raw(self.uid));
            // The call says what was before, and nothing else says that it did something.
            if setfsuid(Uid::from_raw(self.uid)) != Uid::from_raw(self.uid) {
                return Err(Failure::new(
                    "setfsuid: nothing changed, run the suite as root",
                ));
            }
            what()
        };
        std::thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|_panic| Err(Failure::new("the thread of another user panicked")))
    }
}
