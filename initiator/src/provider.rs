//! The RDMA provider of a connect.

use std::net::SocketAddr;

use capstan_rdma::contract::ConnectionManager;
use capstan_rdma::{Preference, choose};

use crate::error::ConnectError;

/// A connection manager for the calling thread that reaches `destination`. What was chosen and why
/// is one line of the log.
///
/// # Errors
/// The provider asked for cannot be used, or the system has no resources for it.
pub(crate) fn open(
    preference: Preference,
    destination: SocketAddr,
) -> Result<Box<dyn ConnectionManager>, ConnectError> {
    let resources = |message| ConnectError::Resources {
        what: "RDMA provider",
        message,
    };
    let (kind, why) =
        choose(preference, destination.ip()).map_err(|error| resources(error.to_string()))?;
    tracing::info!(%destination, "using the {} provider: {why}", kind.name());
    kind.connection_manager()
        .map_err(|error| resources(error.to_string()))
}
