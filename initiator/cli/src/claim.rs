//! What commands that write have in common: one of them at a time on this machine.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result};
use capstan_initiator::NamespaceInfo;
use capstan_initiator::Options;
use capstan_initiator::internals::claim::{Claim, Holder, Sharing};
use clap::Args;

/// What this process has claimed, while it has.
static CLAIMED: Mutex<Weak<Claim>> = Mutex::new(Weak::new());

/// Removes the file of this process's claim, if it has one: it ends now, wherever its threads are.
pub(super) fn leave_no_file() {
    let claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(claim) = claimed.upgrade() {
        claim.remove_file();
    }
}

/// Who else may write.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ShareArgs {
    /// Write though something else of this machine has the namespace, and let others that say
    /// --shared write, too: for what is made for that, as clustered file systems are.
    #[arg(long)]
    pub(super) shared: bool,
}

impl ShareArgs {
    pub(super) fn sharing(self) -> Sharing {
        if self.shared {
            Sharing::Shared
        } else {
            Sharing::Exclusive
        }
    }

    /// Warns where `what`, a volume that is shared for writing, holds a file system that is not
    /// made for that. Those that nothing ever writes are.
    pub(super) fn warn(self, fs_type: &str, what: &str) {
        let can_be_shared = matches!(
            fs_type,
            "gfs2" | "ocfs2" | "cramfs" | "erofs" | "iso9660" | "romfs" | "squashfs"
        );
        if self.shared && !can_be_shared {
            tracing::warn!(
                "{fs_type} is no clustered file system: where {what} is mounted for writing twice, on one machine or on two, \
                 both destroy it; mount it for writing once, and with --read-only elsewhere"
            );
        }
    }

    /// Claims a namespace for this process, which is `what`, as in "namespace 1 is …".
    pub(super) fn claim(
        self,
        options: &Options,
        namespace: &NamespaceInfo,
        what: &str,
    ) -> Result<Arc<Claim>> {
        let holder = Holder::this(what, &options.traddr, options.trsvcid).context("/proc/self")?;
        let subnqn = options.subnqn.as_str();
        let claim = Arc::new(Claim::new(subnqn, namespace, self.sharing(), holder)?);
        *CLAIMED.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&claim);
        Ok(claim)
    }
}
