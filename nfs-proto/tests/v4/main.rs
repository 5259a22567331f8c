//! NFS version 4 from outside: what a peer sees.

mod attributes;
mod compound;
mod properties;
mod reply;
mod words;
