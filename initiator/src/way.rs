//! The options of `capstan` that mean the same connection again, for every command that a text
//! names.

use std::fmt;
use std::net::IpAddr;

use capstan_rdma::ProviderPreference;

use crate::identity::Identity;
use crate::options::{Options, Transport};
use crate::transports::TakenTransport;
use crate::words::Word;

/// Where a connection leads to, and over what. `Display` is the options, each value as a word of a
/// shell.
#[derive(Clone, Debug)]
pub struct Way {
    /// Address of the target.
    pub traddr: String,
    /// Its port.
    pub trsvcid: u16,
    /// The subsystem; `None` where it is to be found out.
    pub subnqn: Option<String>,
    /// The transport.
    pub transport: Transport,
    /// The RDMA provider.
    pub provider: ProviderPreference,
    /// Whether headers of NVMe/TCP have a digest.
    pub header_digest: bool,
    /// Whether data of NVMe/TCP has one.
    pub data_digest: bool,
    /// Name of this host, where it is not that of the machine.
    pub hostnqn: Option<String>,
    /// Its identifier, likewise.
    pub hostid: Option<String>,
    /// Address to connect from.
    pub host_traddr: Option<IpAddr>,
}

impl Way {
    /// What `options` mean.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        let of_machine = Identity::find(None, None).ok();
        let is_of_machine = of_machine.is_some_and(|identity| {
            identity.hostnqn == options.hostnqn && identity.hostid == options.hostid
        });
        let unless_of_machine = |word: String| (!is_of_machine).then_some(word);
        Self {
            traddr: options.traddr.clone(),
            trsvcid: options.trsvcid,
            subnqn: Some(options.subnqn.as_str().to_owned()),
            transport: options.transport,
            provider: options.provider,
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            hostnqn: unless_of_machine(options.hostnqn.as_str().to_owned()),
            hostid: unless_of_machine(options.hostid.to_string()),
            host_traddr: options.host_traddr,
        }
    }

    /// The same over what was taken in place of [`Transport::Auto`].
    #[must_use]
    pub fn over(self, taken: &TakenTransport) -> Self {
        let (transport, provider) = taken.wire(self.provider);
        Self {
            transport,
            provider,
            ..self
        }
    }

    /// The same without a subsystem.
    #[must_use]
    pub fn to_the_address(&self) -> Self {
        Self {
            subnqn: None,
            ..self.clone()
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-a {} -s {}", Word::new(&self.traddr), self.trsvcid)?;
        if let Some(subnqn) = &self.subnqn {
            write!(f, " -n {}", Word::new(subnqn))?;
        }
        let provider = match self.provider {
            _ if self.transport == Transport::Tcp => None,
            ProviderPreference::Auto => None,
            ProviderPreference::Verbs => Some("verbs"),
            ProviderPreference::Iwarp => Some("iwarp"),
        };
        match (self.transport, provider) {
            (Transport::Auto, None) => {}
            // Which is what it means without a transport.
            (Transport::Rdma, Some(_)) => {}
            (transport, _) => write!(f, " -t {}", transport.name())?,
        }
        if let Some(provider) = provider {
            write!(f, " --provider {provider}")?;
        }
        let digests = [
            (self.header_digest, "--hdr-digest"),
            (self.data_digest, "--data-digest"),
        ];
        for (_, option) in digests.into_iter().filter(|(is_asked, _)| *is_asked) {
            write!(f, " {option}")?;
        }
        if let Some(hostnqn) = &self.hostnqn {
            write!(f, " -q {}", Word::new(hostnqn))?;
        }
        if let Some(hostid) = &self.hostid {
            write!(f, " -I {}", Word::new(hostid))?;
        }
        match self.host_traddr {
            Some(own) => write!(f, " -w {own}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::nqn::{HostId, Nqn};
    use capstan_rdma::ProviderPreference;

    use super::{Options, Transport, Way};

    #[test]
    fn everything_that_makes_a_connection_another_one_is_an_option() {
        let nqn = |name| Nqn::new(name).unwrap();
        let mut options = Options::new("::1", nqn("nqn.a b"), nqn("nqn.h"), HostId([1; 16]));
        options.transport = Transport::Tcp;
        options.header_digest = true;
        options.data_digest = true;
        options.host_traddr = Some([10, 0, 0, 2].into());
        let id = "01010101-0101-0101-0101-010101010101";
        let way = Way::of(&options);
        assert_eq!(
            way.to_string(),
            format!(
                "-a ::1 -s 4420 -n 'nqn.a b' -t tcp --hdr-digest --data-digest -q nqn.h -I {id} -w 10.0.0.2"
            )
        );
        assert!(
            way.to_the_address()
                .to_string()
                .starts_with("-a ::1 -s 4420 -t tcp ")
        );
        let over = |transport, provider| {
            let mut way = way.clone();
            (way.transport, way.provider) = (transport, provider);
            let told = way.to_string();
            let (_, rest) = told.split_once("'nqn.a b'").unwrap();
            rest.split_once(" --hdr").unwrap().0.to_owned()
        };
        let (any, verbs) = (ProviderPreference::Auto, ProviderPreference::Verbs);
        assert_eq!(over(Transport::Auto, any), "");
        assert_eq!(over(Transport::Rdma, any), " -t rdma");
        assert_eq!(over(Transport::Rdma, verbs), " --provider verbs");
        assert_eq!(over(Transport::Auto, verbs), " -t auto --provider verbs");
        assert_eq!(over(Transport::Tcp, verbs), " -t tcp");
    }
}
