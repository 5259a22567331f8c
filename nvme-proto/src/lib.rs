//! NVMe and NVMe over Fabrics wire structures: bytes to typed values and back.
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
pub mod log;
mod macros;
pub mod nqn;
pub mod opcode;
pub mod property;
pub mod rdma_cm;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod text;
pub mod transfer;
pub mod zeroes_based;
