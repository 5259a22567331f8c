//! Volumes that know LBAs and bytes: files and block devices through io_uring, RAM, null.
//!
//! A [`VolumeSpec`] says what to export. [`VolumeSpec::prepare`] opens it once per process, as a
//! [`Store`] that any thread may hold; [`Store::open`] makes one [`Volume`] per reactor. A reactor
//! owns one [`Engine`] (its io_uring) and every volume it opened; none of them is `Send`.
//!
//! One loop turn of a reactor:
//! 1. [`Volume::submit`] for every command that is ready: [`Submitted::Done`] ends at once (RAM,
//!    null, a refused range), [`Submitted::Pending`] later;
//! 2. [`Volume::poll`] for volumes whose [`Volume::next_deadline_us`] is not `None`;
//! 3. [`Engine::submit_batch`]: one system call for everything queued;
//! 4. [`Engine::poll`] appends completions of all its volumes.
//!
//! Before it blocks, a reactor calls [`Engine::arm`] and waits for [`Engine::fd`] to be readable.
//!
//! # Memory
//! An operation owns its [`Data`] while it is in flight and returns it with its [`Completion`], so
//! a buffer cannot be reused under the kernel; dropping an [`Engine`] drains it first. Slabs that
//! were given to [`Engine::register_slab`] save the kernel from mapping pages. `O_DIRECT` needs
//! aligned memory (512 bytes on most disks): data at another address is copied through the engine's
//! bounce buffers, which costs a copy of each page.
//!
//! # Durability
//! [`Geometry::volatile_write_cache`] is what is known, and `true` where nothing is. [`Op::Flush`]
//! is `fdatasync`, FUA is `RWF_DSYNC` for a write and `fdatasync` behind the zeroes; all three
//! reach the medium (`tests/power_cut.rs`).
//!
//! A sync that fails means that acknowledged writes may be lost. The kernel reports it once; here
//! every Flush and FUA operation of the store fails with [`IoErrorKind::Lost`] from then on, on
//! every reactor, until the store is opened anew. Through the page cache (without `O_DIRECT`) a
//! write ends before anything is stored, so a full file system shows there; with `O_DIRECT` the
//! write itself fails.
//!
//! # Sharing
//! Reactors share the bytes of a [`Store`], not volumes. As NVMe has it, operations that are in
//! flight at the same time have no order, on one reactor or on several. Of two that overlap, each
//! LBA of a RAM volume ends up as one or the other wrote it; a file or device does as its kernel
//! does. A path opened for writing is locked against a second export (`flock`, and on a block
//! device `O_EXCL`, which excludes mounts, too) until the last operation on it is over, also when
//! its process was killed before. A volume that is only read takes no lock and sees what others
//! write.
//!
//! # For tests
//! [`Delay`], [`Faulty`], [`Gate`] and [`WriteBack`] stand in front of or in place of a volume.
//! They decide before an operation reaches the volume behind, so they work in front of an engine as
//! well.
//!
//! # What it does not do
//! It knows no NVMe status, no namespace, no host. It orders nothing, and a Flush covers what had
//! completed when it was submitted.

mod allocation;
mod claim;
mod delay;
mod error;
mod fault;
mod file;
mod gate;
mod geometry;
mod io;
mod layers;
mod lifetime;
mod loop_device;
mod loss;
mod medium;
mod medium_id;
mod mounts;
mod non_temporal;
mod null;
mod ram;
mod spec;
mod sys;
#[cfg(test)]
mod testing;
mod uring;
mod volume;
mod write_back;

pub use delay::{Delay, Delays};
pub use error::{IoError, IoErrorKind, LockHolder, OpenError};
pub use fault::{Effect, Fault, Faulty};
pub use gate::Gate;
pub use geometry::{Extent, Geometry};
pub use io::{Completion, Data, Io, Op, OpKind, Submitted};
pub use layers::Layers;
pub use lifetime::Lifetime;
pub use medium::{Look, Place};
pub use medium_id::MediumId;
pub use ram::InMemory;
pub use spec::{DirectIo, SpecError, Store, VolumeSpec};
pub use sys::{Attributes, attributes};
pub use uring::{
    Capabilities, Engine, EngineConfig, EngineError, FixedBuffers, ring_bytes, try_rings,
};
pub use volume::{ReadAtOnce, Volume};
pub use write_back::{WriteBack, WriteBackVolume};
