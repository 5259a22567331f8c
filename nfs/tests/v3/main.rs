//! NFS version 3 and MOUNT, from the bytes of calls to those of replies.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod data;
mod descriptors;
mod directories;
mod duplicates;
mod files;
mod mount;
mod names;
