//! NVMe and NVMe over Fabrics wire structures: bytes to typed values and back.
//!
//! Written against NVMe Base 2.1, NVM Command Set 1.1, NVMe over RDMA Transport 1.1 and NVMe over
//! TCP Transport 1.1, with Rapid Path Failure Recovery of NVMe Base 2.3.
//!
//! # Where things are
//! * On the wire: [`sqe::Sqe`] and [`cqe::Cqe`], [`sgl::SglDescriptor`], the data structures in
//!   [`identify`], [`log`], [`fabrics`], [`reservation`], [`dataset`], [`copy`], [`features`], and
//!   the private data in [`rdma_cm`]. They are plain bytes with little-endian integers of
//!   alignment 1, may lie at any address, and hold whatever a peer sent. A size and the offsets of
//!   its fields are asserted beside each.
//! * [`tcp`]: NVMe over TCP, from a stream of bytes to capsules and data and back.
//! * Where the data of a command is, by the rules of its transport: [`rdma_sgl::CommandData`] and
//!   [`tcp::command::CommandData`].
//! * Understood: [`command`] and [`fabrics::FabricsCommand`] (parsed once, with every count
//!   widened), [`sgl::Sgl`], [`property`], [`features`], [`nqn::Nqn`], [`status::Status`],
//!   [`async_event::AsyncEvent`]. Parsing fails with a [`error::CommandError`]: the status to
//!   answer, and where the fault is.
//!
//! # Conventions
//! * Names are the specifications'. A 0's based field ends in `_z` and gains its one only through
//!   [`zeroes_based`].
//! * A value the specification does not define stays itself: the types of one byte with named
//!   constants (opcodes, log pages, features …) hold any byte.
//! * Reserved bytes are private: zero in what is built here, ignored in what arrives.
//!
//! # What it does not do
//! It reads no clock, allocates nothing and does no I/O, and keeps no state but that of the streams
//! and transfers of [`tcp`]. Of what a controller supports it knows only where the data of commands
//! may be ([`transfer::DataSupport`]): other limits, namespaces and permissions are the caller's.
//! It has no PRPs, no memory mapped registers or doorbells, no zoned, key-value or computational
//! command sets, and no Fibre Channel transport.
#![no_std]
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm
)]

pub mod async_event;
mod bits;
pub mod command;
pub mod copy;
pub mod cqe;
pub mod dataset;
pub mod error;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod lba_status;
pub mod log;
mod macros;
pub mod nqn;
pub mod opcode;
pub mod property;
pub mod rdma_cm;
pub mod rdma_sgl;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod tcp;
pub mod text;
pub mod transfer;
pub mod zeroes_based;
