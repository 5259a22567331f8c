//! NFS version 4: COMPOUND.

pub(super) mod attributes;
pub(super) mod compound;
mod context;
mod filehandles;
mod operations;
mod sessions;
mod settings;
