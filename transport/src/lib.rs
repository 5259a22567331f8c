//! Queues of NVMe over Fabrics over their wires: a queue delivers capsules, moves data and takes
//! responses (`docs/decisions/0010-queue-transport.md`).
//!
//! * [`tcp`]: NVMe/TCP.

pub mod tcp;
