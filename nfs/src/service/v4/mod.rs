//! NFS version 4: COMPOUND.

pub(super) mod attributes;
mod budget;
pub(super) mod compound;
mod context;
mod copies;
mod creation;
mod directories;
mod entries;
mod filehandles;
mod io;
mod locks;
mod open;
mod operations;
mod security;
mod sessions;
mod settings;

mod xattrs;
pub(super) use context::key_of;
