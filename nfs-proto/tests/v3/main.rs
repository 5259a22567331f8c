//! NFS version 3 and MOUNT from outside: what a peer sees.

mod calls;
mod properties;
mod replies;
#[path = "../v4/words.rs"]
mod words;
