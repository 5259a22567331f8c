//! libibverbs and librdmacm behind safe types: the only `unsafe` of this provider besides the list
//! of devices.
//!
//! Each type owns one object of the libraries and holds what must outlive it, so that dropping in
//! any order destroys in the right one. All of them stay on their thread, except [`cm::ParkedId`].

pub(super) mod cm;
pub(super) mod completion;
pub(super) mod context;
pub(super) mod errno;
pub(super) mod events;
pub(super) mod memory;
pub(super) mod pair;
pub(super) mod receive;
pub(super) mod send;

/// Logs a destroy call that failed; what it should have destroyed is left behind.
fn left_behind(what: &str, result: std::io::Result<()>) {
    if let Err(error) = result {
        tracing::error!("{what} could not be destroyed and is left behind: {error}");
    }
}
