//! Which provider a listener or a connect uses, and why.

use std::net::IpAddr;

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Preference {
    /// Verbs where an RDMA device has or reaches the address, iwarp otherwise.
    #[default]
    Auto,
    /// RDMA devices only.
    Verbs,
    /// User-space iWARP only.
    Iwarp,
}

/// The provider to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// User-space iWARP over TCP.
    Iwarp,
}

impl ProviderKind {
    /// Its name, as `--provider` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
        }
    }
}

/// The provider asked for cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider verbs cannot be used for {addr}: {why}; use --provider iwarp or auto")]
pub struct ChoiceError {
    addr: IpAddr,
    why: String,
}

/// Chooses a provider for `addr`. The string says why, for one log line.
///
/// # Errors
/// [`ChoiceError`] when `verbs` was asked for and cannot be had.
pub fn choose(preference: Preference, addr: IpAddr) -> Result<(ProviderKind, String), ChoiceError> {
    match preference {
        Preference::Iwarp => Ok((ProviderKind::Iwarp, "asked for".to_owned())),
        Preference::Auto => Ok((ProviderKind::Iwarp, without_verbs())),
        Preference::Verbs => Err(ChoiceError {
            addr,
            why: without_verbs(),
        }),
    }
}

/// Why verbs is not used.
#[cfg(feature = "verbs")]
fn without_verbs() -> String {
    match crate::verbs::device_names() {
        Ok(names) if !names.is_empty() => {
            format!(
                "connections over verbs devices ({}) are not in this version",
                names.join(", ")
            )
        }
        Ok(_) => "no RDMA device on this machine".to_owned(),
        Err(error) => format!("no RDMA device can be listed ({error})"),
    }
}

/// Why verbs is not used.
#[cfg(not(feature = "verbs"))]
fn without_verbs() -> String {
    "built without verbs".to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{Preference, ProviderKind, choose};

    const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn auto_says_why_and_verbs_says_what_to_do() {
        let (kind, why) = choose(Preference::Auto, ADDR).unwrap();
        assert_eq!((kind, why.is_empty()), (ProviderKind::Iwarp, false));
        let error = choose(Preference::Verbs, ADDR).unwrap_err().to_string();
        assert!(
            error.contains("127.0.0.1") && error.contains("--provider iwarp"),
            "{error}"
        );
    }
}
