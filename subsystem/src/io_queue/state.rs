//! States of an I/O queue.

use crate::transitions::transitions;

transitions! {
    /// What an I/O queue does with commands.
    states IoQueueState {
        /// Executes them.
        Live,
        /// Answers them with Command Sequence Error: the controller left the ready state (reset
        /// or shutdown), which deletes its I/O queues.
        Quiesced,
        /// Answers them with Command Sequence Error: the host deleted the queue with Disconnect.
        Draining,
        /// The connection is going or gone.
        Closed,
    }
    /// What happens to an I/O queue.
    events IoQueueEvent {
        /// CSTS.RDY was cleared or a shutdown began.
        ControllerNotReady,
        /// The host sent Disconnect.
        DisconnectCommand,
        /// The connection ends.
        Closed,
    }
    table {
        Live, ControllerNotReady => Quiesced;
        Live, DisconnectCommand => Draining;
        Live, Closed => Closed;
        Quiesced, ControllerNotReady => Quiesced;
        Quiesced, DisconnectCommand => Draining;
        Quiesced, Closed => Closed;
        Draining, ControllerNotReady => Draining;
        Draining, Closed => Closed;
        Closed, ControllerNotReady => Closed;
        Closed, Closed => Closed;
    }
}
