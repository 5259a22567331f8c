//! A server as its clients see it.

mod harness;
mod program;
mod tcp;
