//! The host side of Capstan: NVMe over RDMA and over TCP as a library, without kernel module and
//! without root.
//!
//! * [`Controller`]: an association on a thread of its own; [`Volume`]s of it read and write from
//!   any thread, async without a runtime or blocking.
//! * [`DirectQueue`]: an association on the caller's thread, for callers that poll: no hop, no
//!   allocation per I/O.
//! * [`FrontEnd`]: turns requests of other software (FUSE, NBD, ublk) into I/O on the driver's
//!   thread.
//! * [`host`]: the state machine of an association, without I/O.
//! * `driver`: runs it over the queues of a wire.
//!
//! # Example
//! Connects to a target, opens the volume of namespace 1, writes, flushes and reads.
//!
//! ```
//! use capstan_initiator::{Controller, HostId, Nqn, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = capstan_config::Config::from_toml(
//! #     r#"
//! # [target]
//! # reactors = 1
//! # memory_budget = "64MiB"
//! # [[listener]]
//! # address = "127.0.0.1"
//! # port = 0
//! # provider = "iwarp"
//! # [[subsystem]]
//! # nqn = "nqn.2026-11.org.example:disks"
//! # allow_any_host = true
//! # [[subsystem.namespace]]
//! # ram = "16MiB"
//! # lba = 4096
//! # "#,
//! # )?;
//! # let target = capstan_target::serve::Running::start(&config)?;
//! # let trsvcid = target.addresses[0].port();
//! let mut options = Options::new(
//!     "127.0.0.1",
//!     Nqn::new("nqn.2026-11.org.example:disks")?,
//!     Nqn::new("nqn.2026-11.org.example:host")?,
//!     HostId([0x11; 16]),
//! );
//! // The port where the target listens: 4420 unless this is set.
//! options.trsvcid = trsvcid;
//! let controller = Controller::connect(options)?;
//!
//! let volume = controller.volume_blocking(1)?.blocking();
//! // Offsets and lengths are multiples of the LBA, here of 4096 bytes.
//! volume.write(8192, &[0xa5; 4096])?;
//! volume.flush()?;
//! let mut bytes = [0; 4096];
//! volume.read(8192, &mut bytes)?;
//! assert_eq!(bytes, [0xa5; 4096]);
//!
//! // Ends the association; an error when something written may not be on the medium.
//! controller.close().into_result()?;
//! # target.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//! Authentication and multipath. One association has one path; when it is lost, I/O waits for its
//! return.

pub mod address;
pub mod allocation;
pub mod claim;
mod controller;
mod direct;
mod driver;
mod driver_thread;
pub mod error;
mod front_end;
pub mod front_ends;
pub mod health;
pub mod host;
pub mod identity;
mod ladder;
mod limits;
mod oneshot;
pub mod options;
mod provider;
mod race;
#[cfg(test)]
mod scripted;
pub mod shortage;
pub mod variables;
mod volume;
pub mod words;

pub use capstan_nvme_proto::nqn::{HostId, Nqn};
pub use capstan_rdma::Preference;
pub use capstan_reactor::Armed;
pub use capstan_transport::host::WindowsClosed;
pub use controller::{Controller, Snapshot};
pub use direct::DirectQueue;
pub use driver::{Completion, Io, Op, Refused, SubmitError};
pub use error::{CommandError, ConnectError, IoError, Losses, OptionsError};
pub use front_end::{FrontEnd, QueueHandle};
pub use ladder::Taken;
pub use options::{Options, ReplayWrites, Transport};
pub use volume::{BlockingVolume, Volume};
