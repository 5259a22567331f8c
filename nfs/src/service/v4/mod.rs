//! NFS version 4: COMPOUND.

pub(super) mod attributes;
pub(super) mod compound;
mod context;
mod copies;
mod creation;
mod filehandles;
mod io;
mod locks;
mod open;
mod operations;
mod sessions;
mod settings;

pub(super) use context::key_of;
