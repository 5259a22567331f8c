//! How a connect reaches its target: the transport, and the RDMA provider.

use std::net::SocketAddr;

use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::{ProviderKind, ProviderPreference, choose};
use capstan_transport::host::HostTransport;

use crate::error::ConnectError;
use crate::options::{Options, Transport};

/// The way to `destination`, for the calling thread, with the provider of RDMA. Which of those was
/// chosen and why is one line of the log, unless it `is_tried` among others.
///
/// # Errors
/// The provider asked for cannot be used, or the system has no resources for it.
pub(crate) fn open(
    options: &Options,
    destination: SocketAddr,
    is_tried: bool,
) -> Result<(HostTransport, Option<ProviderKind>), ConnectError> {
    if options.transport == Transport::Tcp {
        let mut digests = Digests::empty();
        digests.set(Digests::HEADER, options.header_digest);
        digests.set(Digests::DATA, options.data_digest);
        return Ok((HostTransport::Tcp(digests), None));
    }
    let resources = |message| ConnectError::Resources {
        what: "RDMA provider",
        message,
    };
    let (kind, why) =
        choose(options.provider, destination.ip()).map_err(|error| resources(error.to_string()))?;
    let name = kind.name();
    match options.provider {
        _ if is_tried => {}
        // It may be that of the transport that was taken.
        ProviderPreference::Iwarp => tracing::info!(%destination, "using the {name} provider"),
        _ => tracing::info!(%destination, "using the {name} provider: {why}"),
    }
    let manager = kind.connection_manager();
    let manager = manager.map_err(|error| resources(error.to_string()))?;
    Ok((HostTransport::Rdma(manager), Some(kind)))
}
