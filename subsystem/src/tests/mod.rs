//! Whole commands against a whole target, seen from the host.

mod abort;
mod ana;
mod connect;
mod cross_reset;
mod degraded;
mod discovery;
mod features;
mod fence;
mod identify;
mod io;
mod lba_status;
mod life;
mod log_pages;
mod namespaces;
mod operations;
mod persistence;
mod replaced;
mod reservations;
mod shares;
mod tcp;
