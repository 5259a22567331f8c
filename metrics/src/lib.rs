//! What is counted while a program works: each number has one thread that writes it, and any
//! number of others that read it.
//!
//! Writing is a plain load and a plain store, without an instruction that locks; reading takes a
//! snapshot that may be some commands old, and nothing waits for it. Numbers of two writers belong
//! on cache lines of their own: the types that have several of them say so.
//!
//! # What it does not do
//! It reads no clock, allocates nothing, has no labels and writes no text: what a number is about
//! is known to the owner of the number.

#![no_std]
#![forbid(unsafe_code)]

mod counter;
mod histogram;
mod sampler;
mod spent;
mod tally;

pub use counter::{Counter, Gauge};
pub use histogram::{BUCKETS, Histogram, HistogramSnapshot, bucket_bounds_ns};
pub use sampler::Sampler;
pub use spent::{Spent, State};
pub use tally::{COUNT_MAX, Tally};
