//! Memory that the kernel and RDMA providers read and write behind Rust's back.
//!
//! A [`Slab`] is one page-aligned mapping; it is registered once with an RDMA provider (MR) and
//! once with io_uring (fixed buffer). A [`Pool`] leases pieces of it as [`Buffer`]s. The owner of a
//! `Buffer` is its only user; an operation in flight takes the `Buffer` and returns it with its
//! completion, so a buffer cannot be freed or reused under a device.
//!
//! # What it does not do
//! It hands out no `&[u8]` in safe code: a device may write at any time, so the contents are copied
//! in and out ([`Buffer::copy_to`], [`Buffer::copy_from`], [`RawBytes`]). So every parse of bytes
//! that came from a host works on a private copy.

mod account;
mod around;
mod buddy;
mod buffer;
mod raw;
mod slab;
mod span;

pub use account::Account;
pub use around::{copy_around, fence_around};
pub use buffer::{Buffer, Pool, Short};
pub use raw::RawBytes;
pub use slab::{PAGE_BYTES, Pages, Slab, SlabError, SlabId};
pub use span::Span;
