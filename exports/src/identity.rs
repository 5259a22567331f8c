//! The identity that an operation runs with: the kernel checks what the caller may do, not this
//! program.
//!
//! A thread takes the caller's uid, gid and groups for its accesses to files (setfsuid(2)), and its
//! own again behind them. With a file system uid other than 0 the kernel takes from the thread the
//! capabilities that override permissions (capabilities(7), "Effect of user ID changes on
//! capabilities"). `CAP_SYS_RESOURCE` and `CAP_SYS_ADMIN` are not among them, though with one a
//! caller would have what quotas and the blocks kept for root deny it: a thread that acts for
//! callers gives up, for good, all that opening by handle and changing identity do not need.

use std::cell::Cell;
use std::marker::PhantomData;

use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::clients::{Access, ClientRule, Squash};
use crate::error::{FileError, IdentityProblem};
use crate::handle::ExportId;
use crate::sys;

/// Most groups of a caller besides its gid (RFC 5531, appendix A, AUTH_SYS: `gids<16>`).
pub const GROUPS: usize = 16;

/// Id that the kernel takes for none: setfsuid(2) of it changes nothing, and root would stay root.
const NO_ID: u32 = u32::MAX;

const fn bit(capability: u32) -> u64 {
    1 << capability
}

/// Those that a file system uid other than 0 takes away: `CAP_FS_SET` (include/linux/capability.h).
/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
const FILE_CAPABILITIES: u64 =
    bit(0) | bit(1) | bit(2) | bit(3) | bit(4) | bit(9) | bit(27) | bit(32);

/// SETGID and SETUID, for the way back.
const IDENTITY_CAPABILITIES: u64 = bit(6) | bit(7);

/// What the caller says about itself (RFC 5531, appendix A, `authsys_parms`).
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// uid on the client.
    pub uid: u32,
    /// gid on the client.
    pub gid: u32,
    /// Its other groups; those behind the first [`GROUPS`] do not count.
    pub groups: &'a [u32],
}

/// Whom operations on one export run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    export: ExportId,
    writes: bool,
    uid: u32,
    gid: u32,
    groups: [u32; GROUPS],
    group_count: u8,
}

impl Caller {
    /// The caller as `rule` of `export` has it. Ids that are none are squashed like root's.
    pub fn new(export: ExportId, rule: &ClientRule, credentials: &Credentials<'_>) -> Self {
        let anonymous = rule.anonymous;
        let squashed = |id, to| match (rule.squash, id) {
            (Squash::All, _) | (_, NO_ID) | (Squash::Root, 0) => to,
            (Squash::Root | Squash::None, id) => id,
        };
        let mut caller = Self {
            export,
            writes: rule.access == Access::ReadWrite,
            uid: squashed(credentials.uid, anonymous.uid),
            gid: squashed(credentials.gid, anonymous.gid),
            groups: [0; GROUPS],
            group_count: 0,
        };
        if rule.squash != Squash::All {
            for (to, &group) in caller.groups.iter_mut().zip(credentials.groups) {
                *to = squashed(group, anonymous.gid);
                caller.group_count += 1;
            }
        }
        caller
    }

    /// Uid of the operations.
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Gid of the operations.
    pub const fn gid(&self) -> u32 {
        self.gid
    }

    /// Other groups of the operations.
    pub fn groups(&self) -> &[u32] {
        self.groups
            .get(..usize::from(self.group_count))
            .unwrap_or(&self.groups)
    }

    /// Export whose files it may be used for.
    pub const fn export(&self) -> ExportId {
        self.export
    }

    /// Whether the client has the export for writing.
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// Refuses what changes something where the client may only read.
    pub(crate) const fn check_writes(&self) -> Result<(), FileError> {
        if self.writes {
            Ok(())
        } else {
            Err(FileError::ReadOnly)
        }
    }

    /// Does `work` with this identity. The thread has its own again when this returns, and when
    /// `work` panics.
    ///
    /// # Errors
    /// Where the kernel refuses the identity, or would let it override permissions.
    pub(crate) fn act<T>(
        &self,
        work: impl FnOnce() -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let _acting = Acting::start(self).map_err(|reason| FileError::Identity {
            uid: self.uid,
            reason,
        })?;
        work()
    }
}

/// The groups of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Groups {
    gid: u32,
    others: [u32; GROUPS],
    count: u8,
}

thread_local! {
    static OWN_UID: Cell<Option<Uid>> = const { Cell::new(None) };
    static ACTING: Cell<bool> = const { Cell::new(false) };
    /// Groups that the thread has kept of the caller before.
    static WORN: Cell<Option<Groups>> = const { Cell::new(None) };
}

/// Makes the calling thread one that acts for callers, for good: its umask, its capabilities and
/// its groups are its own. Acting does so as well where it was not done. Answers with the thread's
/// own uid.
fn prepare_thread() -> Result<Uid, IdentityProblem> {
    if let Some(own) = OWN_UID.get() {
        return Ok(own);
    }
    let failed = |call| move |errno| IdentityProblem::Call { call, errno };
    // The umask is the client's, and was applied there (RFC 8881, 18.16.3: the mode is as asked).
    unshare(CloneFlags::CLONE_FS).map_err(failed("unshare"))?;
    umask(Mode::empty());
    sys::keep_effective_capabilities(FILE_CAPABILITIES | IDENTITY_CAPABILITIES)
        .map_err(failed("capset"))?;
    let own = setfsuid_of_none();
    OWN_UID.set(Some(own));
    Ok(own)
}

/// The thread has a caller's identity for as long as this lives. It stays on its thread.
///
/// Behind it the thread has its own uid again, and with it its capabilities. The groups stay until
/// a caller with others comes: to a thread that may override permissions they mean nothing, but for
/// the group of a file that it makes, and each change of them costs as much as a read of 4 KiB.
struct Acting {
    own_uid: Uid,
    _of_this_thread: PhantomData<*const ()>,
}

impl Acting {
    fn start(caller: &Caller) -> Result<Self, IdentityProblem> {
        let own_uid = prepare_thread()?;
        if ACTING.replace(true) {
            return Err(IdentityProblem::Nested);
        }
        // From here on dropping it undoes what was done.
        let acting = Self {
            own_uid,
            _of_this_thread: PhantomData,
        };
        wear_groups(caller)?;
        if Uid::from_raw(caller.uid) == own_uid {
            return Ok(acting);
        }
        // It answers with what was there before, whether it did something or not.
        setfsuid(Uid::from_raw(caller.uid));
        if setfsuid_of_none() != Uid::from_raw(caller.uid) {
            return Err(IdentityProblem::Refused("setfsuid"));
        }
        if caller.uid != 0 {
            let left = sys::effective_capabilities().map_err(|errno| IdentityProblem::Call {
                call: "capget",
                errno,
            })?;
            if left & !IDENTITY_CAPABILITIES != 0 {
                return Err(IdentityProblem::Capabilities(left & !IDENTITY_CAPABILITIES));
            }
        }
        Ok(acting)
    }

    /// Whether the thread is itself again.
    fn restore(&self) -> bool {
        // It answers with what was there before: a caller with that uid has changed nothing.
        setfsuid(self.own_uid) == self.own_uid || setfsuid_of_none() == self.own_uid
    }
}

/// Gives the thread the groups of a caller.
fn wear_groups(caller: &Caller) -> Result<(), IdentityProblem> {
    let groups = Groups {
        gid: caller.gid,
        others: caller.groups,
        count: caller.group_count,
    };
    if WORN.get() == Some(groups) {
        return Ok(());
    }
    WORN.set(None);
    setfsgid(Gid::from_raw(caller.gid));
    if setfsgid(Gid::from_raw(NO_ID)) != Gid::from_raw(caller.gid) {
        return Err(IdentityProblem::Refused("setfsgid"));
    }
    sys::set_thread_groups(caller.groups()).map_err(|errno| IdentityProblem::Call {
        call: "setgroups",
        errno,
    })?;
    WORN.set(Some(groups));
    Ok(())
}

/// The thread's file system uid: setting none changes nothing, and answers with it.
fn setfsuid_of_none() -> Uid {
    setfsuid(Uid::from_raw(NO_ID))
}

impl Drop for Acting {
    fn drop(&mut self) {
        ACTING.set(false);
        if !self.restore() {
            // The thread would serve later callers with the wrong identity.
            tracing::error!("a thread did not become itself again: ending the process");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Anonymous;

    fn rule(squash: Squash) -> ClientRule {
        ClientRule {
            network: "10.0.0.0/8".parse().unwrap(),
            access: Access::ReadOnly,
            squash,
            anonymous: Anonymous { uid: 77, gid: 78 },
            secure_ports: false,
        }
    }

    fn caller(squash: Squash, uid: u32, gid: u32, groups: &[u32]) -> (u32, u32, Vec<u32>) {
        let credentials = Credentials { uid, gid, groups };
        let caller = Caller::new(ExportId(1), &rule(squash), &credentials);
        (caller.uid(), caller.gid(), caller.groups().to_vec())
    }

    #[test]
    fn roots_ids_become_anonymous_and_no_others() {
        let of = |uid, gid, groups: &[u32]| caller(Squash::Root, uid, gid, groups);
        assert_eq!(of(0, 0, &[0, 5]), (77, 78, vec![78, 5]));
        assert_eq!(of(9, 0, &[]), (9, 78, vec![]));
        assert_eq!(of(9, 8, &[7, 0, 6]), (9, 8, vec![7, 78, 6]));
    }

    #[test]
    fn all_ids_become_anonymous_and_groups_are_none() {
        assert_eq!(caller(Squash::All, 9, 8, &[7, 6]), (77, 78, vec![]));
        assert_eq!(caller(Squash::All, 0, 0, &[0]), (77, 78, vec![]));
    }

    #[test]
    fn root_stays_root_where_nobody_is_squashed() {
        assert_eq!(caller(Squash::None, 0, 0, &[0, 5]), (0, 0, vec![0, 5]));
    }

    /// The kernel would leave the thread root for such a uid.
    #[test]
    fn an_id_that_is_none_is_anonymous_whatever_the_rule() {
        for squash in [Squash::Root, Squash::All, Squash::None] {
            let (uid, gid, groups) = caller(squash, u32::MAX, u32::MAX, &[u32::MAX]);
            assert_eq!((uid, gid), (77, 78));
            assert!(groups.iter().all(|&group| group == 78), "{groups:?}");
        }
    }

    #[test]
    fn groups_have_a_bound() {
        let many: Vec<u32> = (1..40).collect();
        let (.., groups) = caller(Squash::Root, 1, 1, &many);
        assert_eq!(groups, many[..16]);
    }

    #[test]
    fn a_client_that_only_reads_is_refused_what_changes_something() {
        let credentials = Credentials {
            uid: 1,
            gid: 1,
            groups: &[],
        };
        let reads = Caller::new(ExportId(1), &rule(Squash::Root), &credentials);
        assert_eq!(reads.check_writes(), Err(FileError::ReadOnly));
        let access = Access::ReadWrite;
        let writes = ClientRule {
            access,
            ..rule(Squash::Root)
        };
        assert_eq!(
            Caller::new(ExportId(1), &writes, &credentials).check_writes(),
            Ok(())
        );
    }

    /// Names of the thread's ids in /proc/thread-self/status (proc(5)).
    fn status(of: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(of))
            .unwrap();
        line.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn root_acting(squash: Squash, uid: u32, groups: &[u32]) -> Caller {
        let credentials = Credentials {
            uid,
            gid: uid,
            groups,
        };
        Caller::new(ExportId(1), &rule(squash), &credentials)
    }

    #[test]
    fn root_a_thread_is_somebody_else_for_a_while_and_nobody_notices() {
        let kept = format!("{:016x}", FILE_CAPABILITIES | IDENTITY_CAPABILITIES);
        let before = status("Uid:");
        root_acting(Squash::Root, 4711, &[12, 13])
            .act(|| {
                assert_eq!(status("Uid:"), "0 0 0 4711");
                assert_eq!(status("Gid:"), "0 0 0 4711");
                assert_eq!(status("Groups:"), "12 13");
                assert_eq!(status("CapEff:"), format!("{IDENTITY_CAPABILITIES:016x}"));
                // The other threads go on as they were.
                let other = std::thread::spawn(|| {
                    let ids = ["Uid:", "Groups:"].map(status);
                    root_acting(Squash::Root, 4712, &[14])
                        .act(|| {
                            assert_eq!(status("Uid:"), "0 0 0 4712");
                            Ok(())
                        })
                        .unwrap();
                    ids
                });
                // A thread begins with what the one has that made it.
                let started = other.join().unwrap();
                assert_eq!(started, ["0 0 0 4711", "12 13"].map(String::from));
                assert_eq!(status("Uid:"), "0 0 0 4711");
                Ok(())
            })
            .unwrap();
        assert_eq!(["Uid:", "CapEff:"].map(status), [before, kept]);
    }

    #[test]
    fn root_no_caller_has_the_groups_of_the_one_before() {
        let act = |caller: Caller| caller.act(|| Ok(["Gid:", "Groups:"].map(status)));
        let all = [(1, &[12, 13][..]), (1, &[12]), (1, &[]), (2, &[]), (0, &[])];
        // In any order, and the same twice.
        for (uid, groups) in all.into_iter().chain(all.into_iter().rev()) {
            let squash = Squash::None;
            let found = act(root_acting(squash, uid, groups)).unwrap();
            let groups: Vec<_> = groups.iter().map(ToString::to_string).collect();
            assert_eq!(found, [format!("0 0 0 {uid}"), groups.join(" ")]);
        }
    }

    #[test]
    fn root_a_panic_and_an_error_bring_the_thread_back() {
        let before = status("Uid:");
        let caller = root_acting(Squash::Root, 4711, &[12]);
        let panicked =
            std::panic::catch_unwind(|| caller.act(|| -> Result<(), _> { panic!("no") }));
        assert!(panicked.is_err());
        assert_eq!(status("Uid:"), before);
        assert_eq!(
            caller.act(|| Err::<(), _>(FileError::AtRoot)),
            Err(FileError::AtRoot)
        );
        assert_eq!(status("Uid:"), before);
    }

    #[test]
    fn root_an_identity_is_not_taken_inside_another() {
        let outer = root_acting(Squash::Root, 4711, &[]);
        let inner = root_acting(Squash::Root, 4712, &[]);
        let refused = outer.act(|| inner.act(|| Ok(())));
        assert_eq!(
            refused,
            Err(FileError::Identity {
                uid: 4712,
                reason: IdentityProblem::Nested
            })
        );
        assert_eq!(status("Uid:"), "0 0 0 0");
        inner
            .act(|| {
                assert_eq!(status("Uid:"), "0 0 0 4712");
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn root_threads_act_for_different_callers_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), all).unwrap();
        std::thread::scope(|scope| {
            for uid in 5000..5004 {
                let folder = folder.path();
                scope.spawn(move || {
                    let caller = root_acting(Squash::Root, uid, &[]);
                    for round in 0..200 {
                        let path = folder.join(format!("{uid}-{round}"));
                        caller
                            .act(|| {
                                std::fs::write(&path, b"mine").unwrap();
                                Ok(())
                            })
                            .unwrap();
                        let owner = std::os::unix::fs::MetadataExt::uid(&path.metadata().unwrap());
                        assert_eq!(owner, uid);
                    }
                });
            }
        });
    }

    #[test]
    fn root_a_threads_umask_and_capabilities_are_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, b"").unwrap();
            std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o777
        };
        let before = mode("before");
        let capabilities = status("CapEff:");
        let inside = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let path = folder.path().join("inside");
                root_acting(Squash::None, 0, &[])
                    .act(|| {
                        std::fs::write(&path, b"").unwrap();
                        Ok(())
                    })
                    .unwrap();
                let kept = FILE_CAPABILITIES | IDENTITY_CAPABILITIES;
                assert_eq!(status("CapEff:"), format!("{kept:016x}"));
                std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o777
            });
            worker.join().unwrap()
        });
        assert_eq!(inside, 0o666, "no umask");
        assert_eq!(mode("after"), before, "the other threads' umask stays");
        assert_eq!(status("CapEff:"), capabilities);
    }
}
