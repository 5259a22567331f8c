//! NFS version 4: COMPOUND.

pub(super) mod compound;
mod context;
mod filehandles;
mod operations;
mod sessions;
