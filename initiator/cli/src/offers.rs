//! The NVM subsystems that a discovery log offers, by what can be done with them.

use anyhow::{Result, anyhow, bail};
use capstan_initiator::internals::words::Count;
use capstan_initiator::names::Name;
use capstan_initiator::{Nqn, Transport};
use capstan_nvme_proto::log::{DiscoveryLogEntry, DiscoverySubsystemType, TransportType};
use capstan_nvme_proto::text::TextField;

use super::discover::{places, transport_type};

/// Names that are none, of which a message has as many at most.
const UNNAMED_TOLD_MAX: usize = 4;

/// Names of subsystems that a message lists: a target may offer thousands.
const NAMES_TOLD_MAX: usize = 16;

/// Names of subsystems, and how many more there are.
pub(crate) fn names_told(names: &[Nqn]) -> String {
    let told: Vec<_> = names.iter().take(NAMES_TOLD_MAX).map(Nqn::as_str).collect();
    let more = match names.len() - told.len() {
        0 => String::new(),
        more => format!(" and {more} more ({} shows all)", Name::Discover),
    };
    format!("{}{more}", told.join(", "))
}

/// What is offered over one transport, and besides.
#[derive(Debug)]
pub(crate) struct Offers {
    trtype: TransportType,
    /// Over the transport: their names, each once.
    pub(crate) here: Vec<Nqn>,
    /// Over the transport, and their names are none: why, in words.
    unnamed: Vec<String>,
    /// Options that lead to others, in words; empty where there are none.
    elsewhere: String,
}

impl Offers {
    /// Those that are offered over `transport`.
    pub(crate) fn over(transport: Transport, entries: &[DiscoveryLogEntry]) -> Self {
        let trtype = match transport {
            Transport::Tcp => TransportType::TCP,
            Transport::Rdma | Transport::Auto => TransportType::RDMA,
        };
        let is_nvm = |e: &&DiscoveryLogEntry| e.subtype == DiscoverySubsystemType::NVM;
        let (on_it, elsewhere): (Vec<_>, Vec<_>) = entries
            .iter()
            .filter(is_nvm)
            .partition(|e| e.trtype == trtype);
        let (mut here, mut unnamed) = (Vec::new(), Vec::new());
        for entry in on_it {
            match entry.subsystem_nqn() {
                Ok(name) => here.push(name),
                Err(error) => {
                    unnamed.push(format!(
                        "{:?}: {error}",
                        TextField::new(&entry.subnqn).to_string()
                    ));
                }
            }
        }
        here.sort();
        here.dedup();
        unnamed.sort();
        unnamed.dedup();
        Self {
            trtype,
            here,
            unnamed,
            elsewhere: places(&elsewhere),
        }
    }

    /// Why there is none over the transport, with what to do, for the host called `hostnqn`.
    pub(crate) fn why_none(&self, hostnqn: &Nqn) -> String {
        let Self {
            unnamed, elsewhere, ..
        } = self;
        if !unnamed.is_empty() {
            let told: Vec<_> = unnamed
                .iter()
                .take(UNNAMED_TOLD_MAX)
                .map(String::as_str)
                .collect();
            let count = u64::try_from(unnamed.len()).unwrap_or(u64::MAX);
            return format!(
                "offers {} whose name is no NQN ({}), which nothing can connect to: the target does not conform; \
                 name the subsystem there as the specification has it, or give the name of another one with --nqn",
                Count(count, "subsystem"),
                told.join("; ")
            );
        }
        if !elsewhere.is_empty() {
            return format!(
                "offers no subsystem over {}, and some elsewhere: connect with {elsewhere}",
                transport_type(self.trtype)
            );
        }
        format!(
            "offers no subsystem to host {hostnqn}: give one with --nqn, or add the host to the \
             target's allowed hosts"
        )
    }

    /// The only one, `at` an address.
    ///
    /// # Errors
    /// There are several, or none.
    pub(crate) fn only(&self, at: &str, hostnqn: &Nqn) -> Result<Nqn> {
        match self.here.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(anyhow!("{at} {}", self.why_none(hostnqn))),
            several => bail!(
                "{at} offers {} subsystems, give one with --nqn: {}",
                several.len(),
                names_told(several)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use capstan_initiator::{Nqn, Transport};
    use capstan_nvme_proto::log::{DiscoveryLogEntry, DiscoverySubsystemType, TransportType};
    use zerocopy::FromZeros;

    use super::Offers;

    fn entry(name: &[u8], trtype: TransportType) -> DiscoveryLogEntry {
        let mut entry = DiscoveryLogEntry::new_zeroed();
        entry.subtype = DiscoverySubsystemType::NVM;
        entry.trtype = trtype;
        entry.subnqn[..name.len()].copy_from_slice(name);
        entry.traddr[..9].copy_from_slice(b"192.0.2.1");
        entry.trsvcid[..4].copy_from_slice(b"4420");
        entry
    }

    fn only(entries: &[DiscoveryLogEntry]) -> Result<String, String> {
        let offers = Offers::over(Transport::Tcp, entries);
        let only = offers.only("here", &Nqn::new("nqn.h").unwrap());
        only.map(|name| name.as_str().to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_that_is_none_is_called_that() {
        let broken = entry(b"nqn.\xff\n", TransportType::TCP);
        let told = only(std::slice::from_ref(&broken)).unwrap_err();
        assert!(
            told.starts_with("here offers 1 subsystem whose name is no NQN (\"nqn.?\": "),
            "{told}"
        );
        assert!(!told.contains("allowed hosts"), "{told}");
        let good = entry(b"nqn.s", TransportType::TCP);
        assert_eq!(only(&[broken, good]).as_deref(), Ok("nqn.s"));
    }

    #[test]
    fn without_one_it_is_told_where_there_is_one() {
        let told = only(&[entry(b"nqn.s", TransportType::RDMA)]).unwrap_err();
        assert_eq!(
            told,
            "here offers no subsystem over tcp, and some elsewhere: connect with -t rdma -a 192.0.2.1 -s 4420"
        );
        assert!(only(&[]).unwrap_err().contains("allowed hosts"));
        let names = [b"nqn.a", b"nqn.b"].map(|name| entry(name, TransportType::TCP));
        let told = only(&names).unwrap_err();
        assert_eq!(
            told,
            "here offers 2 subsystems, give one with --nqn: nqn.a, nqn.b"
        );
    }

    #[test]
    fn of_thousands_few_are_named_and_the_rest_counted() {
        let names = (1000..5096).map(|number| format!("nqn.{number}"));
        let entries: Vec<_> = names
            .map(|name| entry(name.as_bytes(), TransportType::TCP))
            .collect();
        let told = only(&entries).unwrap_err();
        assert!(
            told.starts_with("here offers 4096 subsystems, give one with --nqn: nqn.1000, "),
            "{told}"
        );
        let end = ", nqn.1015 and 4080 more (DirectQueue::discover shows all)";
        assert!(told.ends_with(end), "{told}");
    }
}
