//! States of a controller. NVMe Base 2.1, section 3.5 (initialization), 3.6 (shutdown) and 3.7
//! (resets).

use capstan_nvme_proto::property::{Csts, ShutdownStatus};

use crate::transitions::transitions;

transitions! {
    /// Where a controller is in its life.
    states ControllerState {
        /// CC.EN = 0, CSTS.RDY = 0: only the Admin queue and the properties work.
        Disabled,
        /// CC.EN = 1, CSTS.RDY = 0: commands of earlier associations of the host are not over.
        Enabling,
        /// CC.EN = 1, CSTS.RDY = 1.
        Ready,
        /// CC.SHN was set: I/O stopped, volatile caches are being written back.
        ShuttingDown,
        /// Shutdown processing is complete.
        Shutdown,
        /// CC.EN was cleared: CSTS.RDY stays until the last I/O queue is gone.
        Resetting,
        /// CSTS.CFS = 1: the association is being torn down.
        Fatal,
    }
    /// What happens to a controller.
    events ControllerEvent {
        /// The host set CC.EN.
        Enabled,
        /// Commands of earlier associations of the host are over.
        FenceOpened,
        /// The host set CC.SHN.
        ShutdownRequested,
        /// Everything written is on the medium.
        ShutdownDone,
        /// The host cleared CC.EN.
        ResetRequested,
        /// The last I/O queue is gone.
        IoQueuesDeleted,
        /// The Keep Alive timer expired, or the target ended the association.
        Failed,
    }
    table {
        Disabled, Enabled => Enabling;
        Disabled, ShutdownRequested => ShuttingDown;
        Disabled, Failed => Fatal;
        Enabling, FenceOpened => Ready;
        Enabling, ShutdownRequested => ShuttingDown;
        Enabling, ResetRequested => Resetting;
        Enabling, Failed => Fatal;
        Ready, ShutdownRequested => ShuttingDown;
        Ready, ResetRequested => Resetting;
        Ready, Failed => Fatal;
        ShuttingDown, ShutdownDone => Shutdown;
        ShuttingDown, ResetRequested => Resetting;
        ShuttingDown, Failed => Fatal;
        Shutdown, Enabled => Enabling;
        Shutdown, ResetRequested => Resetting;
        Shutdown, Failed => Fatal;
        Resetting, IoQueuesDeleted => Disabled;
        Resetting, Failed => Fatal;
        Fatal, ResetRequested => Resetting;
        Fatal, Failed => Fatal;
    }
}

impl ControllerState {
    /// CSTS in this state. RDY stays set during and after a shutdown, until the host disables the
    /// controller.
    #[must_use]
    pub(crate) fn csts(self, was_ready: bool) -> Csts {
        let (rdy, cfs, shst) = match self {
            Self::Disabled | Self::Enabling => (false, false, ShutdownStatus::NORMAL),
            Self::Ready | Self::Resetting => (true, false, ShutdownStatus::NORMAL),
            Self::ShuttingDown => (was_ready, false, ShutdownStatus::OCCURRING),
            Self::Shutdown => (was_ready, false, ShutdownStatus::COMPLETE),
            Self::Fatal => (was_ready, true, ShutdownStatus::NORMAL),
        };
        Csts {
            rdy,
            cfs,
            shst,
            ..Csts::NOT_READY
        }
    }
}
