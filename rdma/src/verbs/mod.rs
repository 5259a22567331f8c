//! RDMA devices through libibverbs and librdmacm: InfiniBand, RoCE, iWARP, and the kernel's
//! software devices (`rdma_rxe`, `siw`).
//!
//! One [`Provider`] belongs to one thread. Devices do the work: completions are polled from their
//! queues, a doorbell hands over everything posted since the last one, unsignaled requests that
//! succeed have no completion, and a completion channel is armed only before the thread sleeps.
//! What a device can do is queried ([`DeviceAttributes`]), never assumed.
//!
//! Where the contract promises more than verbs, this module adds it:
//! * A queue pair that fails is disconnected at once, so that the peer learns of it (InfiniBand
//!   tells it nothing); the program gets one `Disconnected` with the cause in words.
//! * Requests posted to a failed queue pair, or not rung yet, are flushed behind those the device
//!   has. What a device does not flush within a fifth of a second is flushed here, after the queue
//!   pair has been destroyed.
//! * Completions keep the order of posting on devices that report RDMA READs late (`siw`).
//! * A device that is unplugged (`rdma link delete`, a driver unbound) is noticed by its node,
//!   which goes first, or by the connection manager, whichever is sooner. Its connections end with
//!   `DeviceRemoved`, its listeners wait for it and listen again, and when the program has dropped
//!   what it made of it nothing of this process keeps it.
//! * Short payloads are copied into the work request where the device takes them (inline data),
//!   after key and bounds have been checked against the registered regions.
//!
//! # What it does not do
//! On InfiniBand the flush that follows the peer's disconnect begins when the connection manager is
//! polled, so a thread has to sleep on its descriptor, too. `siw` connects its TCP socket inside
//! `rdma_connect`, which blocks the caller for as long as TCP does.
//!
//! A device that [`device_for`] looked at stays open (librdmacm closes none). In a process without
//! a [`Provider`] its removal goes unnoticed, and then waits for the end of the process where its
//! driver cannot disassociate users.
//!
//! `siw` (as of Linux 6.12) gives TCP the pages of transfers from 4 KiB up and completes them while
//! TCP may still read them. A target that uses the memory again at once sends wrong data; this
//! module cannot prevent it, [`device_for`] reports it, and [`choose`](crate::choose) avoids it.
//!
//! [`DeviceAttributes`]: crate::contract::DeviceAttributes

mod address;
mod cm_words;
mod cq;
mod device;
mod devices;
mod error;
mod hub;
mod limits;
mod manager;
mod memory;
mod nodes;
mod notice;
mod outstanding;
mod pair;
mod provider;
mod raw;
mod srq;
mod sys;
mod wc;
mod wr_id;

pub use address::{AddressDevice, device_for};
pub use devices::device_names;
pub(crate) use limits::device_limits;
pub(crate) use manager::Manager;
pub(crate) use pair::Handle;
pub use provider::Provider;
