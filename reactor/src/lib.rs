//! The loop of one core: poll while there is work, spin a little, then arm every source and sleep.
//!
//! It knows neither NVMe nor RDMA. A [`Turn`] does the work; the loop decides when to sleep. The
//! price of sleeping is one wake-up on the first command; the gain is 0 % CPU with hosts connected
//! and no I/O. `log` (feature `log`) keeps log lines from making it wait.

mod clock;
mod descriptors;
mod insistence;
#[cfg(feature = "log")]
pub mod log;
mod mailbox;
mod run;
mod spin;

pub use clock::Clock;
pub use descriptors::raise_descriptor_limit;
pub use insistence::Asked;
pub use mailbox::{Mailbox, MailboxError, Sender, mailbox};
pub use run::{Armed, Flow, RunError, Runner, Turn, pause, pin_to_core, run};
pub use spin::SpinBudget;
