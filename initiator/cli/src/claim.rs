//! What commands that write have in common: one of them at a time on this machine.

use anyhow::{Context, Result};
use capstan_initiator::Options;
use capstan_initiator::claim::{Claim, Holder, Sharing};
use capstan_initiator::host::NamespaceInfo;
use clap::Args;

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

    /// Claims a namespace for this process, which is `what`, as in "namespace 1 is …".
    pub(super) fn claim(
        self,
        options: &Options,
        namespace: &NamespaceInfo,
        what: &str,
    ) -> Result<Claim> {
        let holder = Holder::this(what, &options.traddr, options.trsvcid).context("/proc/self")?;
        let subnqn = options.subnqn.as_str();
        Ok(Claim::new(subnqn, namespace, self.sharing(), holder)?)
    }
}
