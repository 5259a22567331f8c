//! The RDMA provider of each listener. `check`, `doctor` and `serve` ask here, so that what the one
//! refuses is refused by the others.

use capstan_config::{Config, Listener, ProviderChoice};
use capstan_rdma::{ChoiceError, ProviderKind, ProviderPreference};

/// The provider of a listener.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) kind: ProviderKind,
    pub(crate) why: String,
}

/// The provider of `listener`'s NVMe/RDMA; without that, the one that has the sockets.
///
/// # Errors
/// The one that is asked for cannot be had.
pub(crate) fn choose(listener: &Listener) -> Result<Chosen, ChoiceError> {
    let (kind, why) = if listener.transports.rdma {
        capstan_rdma::choose(preference(listener.provider), listener.address.ip())?
    } else {
        (ProviderKind::Iwarp, "NVMe/TCP only".to_owned())
    };
    Ok(Chosen { kind, why })
}

/// What listeners ask for and cannot have, a line each.
pub(crate) fn refused(config: &Config) -> Vec<String> {
    let listeners = config.listeners.iter();
    let refused = listeners.filter_map(|listener| {
        let error = choose(listener).err()?;
        Some(in_words(listener, &error))
    });
    refused.collect()
}

pub(crate) fn in_words(listener: &Listener, error: &ChoiceError) -> String {
    format!("listen {}: {error}", listener.address)
}

pub(crate) fn preference(choice: ProviderChoice) -> ProviderPreference {
    match choice {
        ProviderChoice::Auto => ProviderPreference::Auto,
        ProviderChoice::Verbs => ProviderPreference::Verbs,
        ProviderChoice::Iwarp => ProviderPreference::Iwarp,
    }
}
