//! The host side of Capstan: NVMe over RDMA and over TCP as a library, without kernel module and
//! without root.
//!
//! * [`Controller`]: an association on a thread of its own; [`Volume`]s of it read and write from
//!   any thread, async without a runtime or blocking.
//! * [`DirectQueue`]: an association on the caller's thread, for callers that poll: no hop, no
//!   allocation per I/O.
//! * [`FrontEnd`]: turns requests of other software into I/O on the driver's thread. There are one
//!   for FUSE ([`front_ends::fuse`]) and one for NBD ([`front_ends::nbd`]).
//! * [`reexports`]: the types of other crates that the signatures here name.
//!
//! # Example
//! Connects to a target, opens the volume of namespace 1, writes, flushes and reads.
//!
//! ```
//! use capstan_initiator::{Controller, HostId, Nqn, Options};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//!     let mut options = Options::new(
//!         "127.0.0.1",
//!         Nqn::new("nqn.2026-11.org.example:disks")?,
//!         Nqn::new("nqn.2026-11.org.example:host")?,
//!         HostId([0x11; 16]),
//!     );
//!     // The port where the target listens: 4420 unless this is set.
//!     options.trsvcid = 4420;
//! #   options.trsvcid = trsvcid;
//!     let controller = Controller::connect(options)?;
//!
//!     let volume = controller.volume_blocking(1)?.blocking();
//!     // Offsets and lengths are multiples of the LBA, here of 4096 bytes.
//!     volume.write(8192, &[0xa5; 4096])?;
//!     volume.flush()?;
//!     let mut bytes = [0; 4096];
//!     volume.read(8192, &mut bytes)?;
//!     assert_eq!(bytes, [0xa5; 4096]);
//!
//!     // Ends the association; an error when something written may not be on the medium.
//!     controller.close().into_result()?;
//! #   target.stop()?;
//!     Ok(())
//! }
//! ```
//!
//! # What it does not do
//! Authentication and multipath. One association has one path; when it is lost, I/O waits for its
//! return.

pub mod address;
pub mod allocation;
mod attempts;
mod claim;
mod controller;
mod direct;
mod driver;
mod driver_thread;
pub mod error;
mod front_end;
pub mod front_ends;
mod health;
mod host;
pub mod identity;
mod limits;
pub mod names;
mod oneshot;
pub mod options;
mod provider;
mod race;
#[cfg(test)]
mod scripted;
mod shortage;
mod transports;
mod variables;
mod volume;
mod way;
mod wire;
mod words;

pub use capstan_nvme_proto::nqn::{HostId, Nqn};
pub use capstan_rdma::ProviderPreference;
pub use capstan_reactor::Armed;
pub use capstan_transport::host::WindowsClosed;
pub use controller::{Controller, Snapshot};
pub use direct::DirectQueue;
pub use driver::{Completion, Io, Op, Refused, SubmitError};
pub use error::{CommandError, ConnectError, IoError, Losses, OptionsError};
pub use front_end::{FrontEnd, QueueHandle};
pub use host::{
    AssociationStatus, CommandData, CommandReply, ControllerInfo, Counters, Discovery,
    DiscoveryError, Held, NamespaceInfo, QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MIN, Unidentified,
    Unusable,
};
pub use options::{Options, ReplayWrites, Transport};
pub use transports::TakenTransport;
pub use volume::{BlockingVolume, Volume};
pub use wire::Wire;

/// Types of other crates that the signatures of this one name, so that its callers need not depend
/// on those crates; and NVMe's own, to make commands of.
///
/// ```
/// use capstan_initiator::reexports::nvme_proto::command::{AdminCommand, Identify};
/// use capstan_initiator::reexports::nvme_proto::identify::{Cns, IDENTIFY_BYTES};
/// use capstan_initiator::reexports::{Sgl, Sqe};
/// use capstan_initiator::{CommandData, CommandError, DirectQueue};
///
/// fn identify_controller(queue: &mut DirectQueue) -> Result<Vec<u8>, CommandError> {
///     let command = Identify {
///         nsid: 0,
///         cns: Cns::CONTROLLER,
///         cntid: 0,
///         cnssid: 0,
///         csi: 0,
///         uuid_index: 0,
///     };
///     let sqe: Sqe = AdminCommand::Identify(command).encode(0, Sgl::EMPTY);
///     let data = CommandData::FromController(IDENTIFY_BYTES as u32);
///     let reply = queue.admin(sqe, data)?;
///     Ok(reply.data)
/// }
/// ```
pub mod reexports {
    pub use capstan_memory::{Buffer, Pool};
    pub use capstan_nvme_proto as nvme_proto;
    pub use capstan_nvme_proto::cqe::Cqe;
    pub use capstan_nvme_proto::error::ErrorLocation;
    pub use capstan_nvme_proto::identify::Csi;
    pub use capstan_nvme_proto::log::DiscoveryLogEntry;
    pub use capstan_nvme_proto::nqn::NqnError;
    pub use capstan_nvme_proto::opcode::IoOpcode;
    pub use capstan_nvme_proto::property::{Cap, Version};
    pub use capstan_nvme_proto::sgl::Sgl;
    pub use capstan_nvme_proto::sqe::Sqe;
    pub use capstan_nvme_proto::status::{Status, StatusContext};
    pub use capstan_rdma::ProviderKind;
    pub use capstan_rdma::contract::{CmError, ConnectionManager, DeviceAttributes};
    pub use capstan_reactor::{Clock, SpinBudget};
    pub use uuid::Uuid;
}

/// What `capstan`, the tests and the fuzz targets have of this crate beside its interface. It
/// changes without notice.
#[doc(hidden)]
pub mod internals {
    pub mod claim {
        pub use crate::claim::{Claim, Holder, Sharing, folder};
    }
    pub mod disk {
        pub mod clearing {
            pub use crate::front_ends::disk::clearing::{
                Cleared, clear_loop, clear_loop_later, is_its_disk,
            };
        }
        pub mod control {
            pub use crate::front_ends::disk::control::{
                Answer, PATIENCE, Request, State, ask, ask_within,
            };
        }
        pub mod file_users {
            pub use crate::front_ends::disk::file_users::{
                FileUse, by_the_kernel_in, by_the_kernel_on,
            };
        }
        pub mod kept {
            pub use crate::front_ends::disk::kept::{keep, losses, path};
        }
        pub mod links {
            pub use crate::front_ends::disk::links::{links, remove};
        }
        pub mod loop_device {
            pub use crate::front_ends::disk::loop_device::{
                LoopDevice, device_numbers, holders, is_configured,
            };
        }
        pub mod loop_process {
            pub use crate::front_ends::disk::loop_process::{
                LoopRequest, look, run, set_autoclear,
            };
        }
        pub mod mounts {
            pub use crate::front_ends::disk::mounts::{
                InTheWay, Mount, in_the_way, mount_at, mounts_elsewhere, mounts_of, resolved,
                seen_at,
            };
        }
        pub mod process {
            pub use crate::front_ends::disk::process::unblock_signals;
        }
        pub mod record {
            pub use crate::front_ends::disk::record::{
                Record, RecordError, VolumeDir, run_dir, volumes,
            };
        }
        pub mod serve {
            pub use crate::front_ends::disk::serve::{DiskOptions, serve};
        }
        pub mod serving {
            pub use crate::front_ends::disk::serving::{COMMAND, EndError, FOLDER_OPTION};
        }
        pub mod users {
            pub use crate::front_ends::disk::users::{
                open_in, processes_of, users_of, users_of_unmounted,
            };
        }
        pub mod uses {
            pub use crate::front_ends::disk::uses::{
                Use, claimed, claimed_behind_unmount, perhaps_by_overlays,
            };
        }
        pub mod waiting {
            pub use crate::front_ends::disk::waiting::waiting_in;
        }
    }
    pub mod health {
        pub use crate::health::{Medium, warning_words};
    }
    pub mod host {
        pub use crate::host::{
            Action, AssociationStatus, CommandData, Discovery, Host, HostConfig, SlotIndex,
        };
    }
    pub mod identity {
        pub use crate::identity::empty_files;
    }
    pub mod shortage {
        pub use crate::shortage::shortage;
    }
    pub mod variables {
        pub use crate::variables::check;
    }
    pub mod way {
        pub use crate::way::Way;
    }
    pub mod wire {
        pub use crate::wire::WireFields;
    }
    pub mod words {
        pub use crate::words::{Count, Word, word_of};
    }
}
