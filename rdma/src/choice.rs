//! Which provider a listener or a connect uses, and why.

use std::net::IpAddr;
use std::rc::Rc;

use crate::contract::{ConnectionManager, RdmaError};
use crate::iwarp;
use crate::iwarp::{OtherProtocol, OtherStreams};
#[cfg(feature = "verbs")]
use crate::verbs;

/// Which RDMA provider is asked for, of a listener or a connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProviderPreference {
    /// Verbs where an RDMA device has or reaches the address, iwarp otherwise.
    #[default]
    Auto,
    /// RDMA devices only.
    Verbs,
    /// User-space iWARP only.
    Iwarp,
}

/// The provider to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProviderKind {
    /// RDMA devices through libibverbs and librdmacm.
    Verbs,
    /// User-space iWARP over TCP.
    Iwarp,
}

impl ProviderKind {
    /// Its name, as `--provider` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Iwarp => "iwarp",
        }
    }

    /// A connection manager of this kind for the calling thread, with its default settings.
    ///
    /// # Errors
    /// The system has no resources, or lacks what the provider needs.
    pub fn connection_manager(self) -> Result<Box<dyn ConnectionManager>, RdmaError> {
        match self {
            #[cfg(feature = "verbs")]
            Self::Verbs => verbs::Provider::new()?.connection_manager(),
            #[cfg(not(feature = "verbs"))]
            Self::Verbs => Err(RdmaError::Invalid("built without verbs")),
            Self::Iwarp => iwarp::Provider::new(iwarp::Config::default())?.connection_manager(),
        }
    }
}

/// A connection manager, and the connections of another protocol that come to its listeners.
pub type Beside = (Box<dyn ConnectionManager>, Option<Rc<OtherStreams>>);

impl ProviderKind {
    /// As [`ProviderKind::connection_manager`], and its listeners take connections of another TCP
    /// protocol as well, where the provider has TCP sockets of its own: those of
    /// `protocol`.
    ///
    /// # Errors
    /// As there.
    pub fn connection_manager_beside(self, protocol: OtherProtocol) -> Result<Beside, RdmaError> {
        match self {
            Self::Verbs => Ok((self.connection_manager()?, None)),
            Self::Iwarp => {
                let provider = iwarp::Provider::new(iwarp::Config::default())?;
                let (manager, others) = provider.connection_manager_beside(protocol)?;
                Ok((manager, Some(others)))
            }
        }
    }
}

/// The provider asked for cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider verbs cannot be used for {addr}: {why}; use provider iwarp or auto")]
pub struct ChoiceError {
    addr: IpAddr,
    why: String,
}

/// Chooses a provider for `addr`: to listen at, or to connect to. The string says why, for one log
/// line.
///
/// # Errors
/// [`ChoiceError`] when `verbs` was asked for and cannot be had.
pub fn choose(
    preference: ProviderPreference,
    addr: IpAddr,
) -> Result<(ProviderKind, String), ChoiceError> {
    if preference == ProviderPreference::Iwarp {
        return Ok((ProviderKind::Iwarp, "asked for".to_owned()));
    }
    match (device_for(addr), preference) {
        // Named, so that the log has it; asking for it is the user's own risk.
        (
            Ok(Found {
                name,
                unsafe_data: true,
            }),
            ProviderPreference::Verbs,
        ) => Ok((
            ProviderKind::Verbs,
            format!("asked for; WARNING: {name} is siw, {SIW}"),
        )),
        (
            Ok(Found {
                name,
                unsafe_data: true,
            }),
            _,
        ) => Ok((
            ProviderKind::Iwarp,
            format!("RDMA device {name} is siw, {SIW}, and iwarp speaks the same protocol"),
        )),
        (Ok(Found { name, .. }), _) => Ok((
            ProviderKind::Verbs,
            format!("RDMA device {name} has or reaches {addr}"),
        )),
        (Err(why), ProviderPreference::Verbs) => Err(ChoiceError { addr, why }),
        (Err(why), _) => Ok((ProviderKind::Iwarp, why)),
    }
}

/// What is wrong with siw.
const SIW: &str = "which can send data that was overwritten since (its zcopy_tx)";

/// The device that has an address.
struct Found {
    name: String,
    unsafe_data: bool,
}

#[cfg(feature = "verbs")]
fn device_for(addr: IpAddr) -> Result<Found, String> {
    let device = verbs::device_for(addr)?;
    Ok(Found {
        name: device.name,
        unsafe_data: device.completes_early,
    })
}

#[cfg(not(feature = "verbs"))]
fn device_for(_addr: IpAddr) -> Result<Found, String> {
    Err("built without verbs".to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{ProviderKind, ProviderPreference, choose};

    /// No RDMA device has this address, on any machine.
    const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn auto_says_why_and_verbs_says_what_to_do() {
        let (kind, why) = choose(ProviderPreference::Auto, ADDR).unwrap();
        assert_eq!((kind, why.is_empty()), (ProviderKind::Iwarp, false));
        let error = choose(ProviderPreference::Verbs, ADDR)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("127.0.0.1") && error.contains("provider iwarp or auto"),
            "{error}"
        );
    }
}
