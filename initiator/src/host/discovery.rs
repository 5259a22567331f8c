//! Reading the discovery log page so that its entries belong together.

use capstan_nvme_proto::command::GetLogPage;
use capstan_nvme_proto::log::{
    DiscoveryLog, DiscoveryLogEntry, DiscoveryLogError, DiscoveryLogHeader, LogPageId,
};
use zerocopy::FromBytes;

use super::command::ADMIN_DATA_BYTES_MAX;

/// Entries of one log page this host takes: 4 MiB of them.
const RECORDS_MAX: u64 = 4096;
/// Times the page is read anew because it changed meanwhile.
const RETRIES_MAX: u32 = 10;

/// The discovery log page cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// It is not a discovery log page of a kind this host knows.
    #[error(transparent)]
    Log(#[from] DiscoveryLogError),
    /// More entries than this host takes.
    #[error("the discovery log page has {0} records, expected at most 4096")]
    TooMany(u64),
    /// It changed each time while it was read.
    #[error(
        "the discovery log page changed {0} times while it was read; try again when the target's \
         configuration is at rest"
    )]
    Changing(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Entries,
    /// The head once more: GENCTR must be what it was.
    Check,
    Done,
}

/// A reader of the discovery log page: ask [`Discovery::next_command`], send it, hand the answer to
/// [`Discovery::answer`], until there is no next command.
///
/// NVMe Base 2.1, section 5.1.12.3.1: the page is consistent when GENCTR after reading the entries
/// is the one before.
#[derive(Debug)]
pub struct Discovery {
    stage: Stage,
    genctr: u64,
    numrec: u64,
    entries: Vec<DiscoveryLogEntry>,
    retries: u32,
}

impl Discovery {
    /// A reader that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stage: Stage::Head,
            genctr: 0,
            numrec: 0,
            entries: Vec::new(),
            retries: 0,
        }
    }

    /// The next command; `None` when the page has been read.
    #[must_use]
    pub fn next_command(&self) -> Option<GetLogPage> {
        let (offset, length_bytes) = match self.stage {
            Stage::Head | Stage::Check => (0, DiscoveryLogHeader::SIZE_BYTES as u64),
            Stage::Entries => {
                let read = self.entries.len() as u64;
                let chunk = u64::from(ADMIN_DATA_BYTES_MAX) / ENTRY_BYTES;
                (
                    DiscoveryLogHeader::SIZE_BYTES as u64 + read * ENTRY_BYTES,
                    self.numrec.saturating_sub(read).min(chunk) * ENTRY_BYTES,
                )
            }
            Stage::Done => return None,
        };
        Some(GetLogPage {
            // The event about the page stays until it has been read whole.
            rae: self.stage != Stage::Check,
            offset,
            nsid: 0,
            ..GetLogPage::new(LogPageId::DISCOVERY, length_bytes)
        })
    }

    /// Takes the data of the last command.
    ///
    /// # Errors
    /// [`DiscoveryError`] when the page cannot be read.
    pub fn answer(&mut self, data: &[u8]) -> Result<(), DiscoveryError> {
        match self.stage {
            Stage::Head => {
                let header = DiscoveryLog::parse(data)?.header;
                self.genctr = header.genctr.get();
                self.numrec = header.numrec.get();
                if self.numrec > RECORDS_MAX {
                    return Err(DiscoveryError::TooMany(self.numrec));
                }
                self.entries.clear();
                self.stage = if self.numrec == 0 {
                    Stage::Check
                } else {
                    Stage::Entries
                };
            }
            Stage::Entries => {
                let count = data.len() / DiscoveryLogEntry::SIZE_BYTES;
                let (entries, _) = <[DiscoveryLogEntry]>::ref_from_prefix_with_elems(data, count)
                    .map_err(|_| DiscoveryLogError::TooShort {
                    actual_bytes: data.len(),
                })?;
                if entries.is_empty() {
                    return Err(DiscoveryLogError::TooShort {
                        actual_bytes: data.len(),
                    }
                    .into());
                }
                let missing = usize::try_from(self.numrec).unwrap_or(0) - self.entries.len();
                self.entries.extend(entries.iter().take(missing).cloned());
                if self.entries.len() as u64 == self.numrec {
                    self.stage = Stage::Check;
                }
            }
            Stage::Check => {
                let header = DiscoveryLog::parse(data)?.header;
                if header.genctr.get() == self.genctr {
                    self.stage = Stage::Done;
                } else {
                    self.retries += 1;
                    if self.retries > RETRIES_MAX {
                        return Err(DiscoveryError::Changing(self.retries));
                    }
                    self.stage = Stage::Head;
                }
            }
            Stage::Done => {}
        }
        Ok(())
    }

    /// The generation counter of the page.
    #[must_use]
    pub fn genctr(&self) -> u64 {
        self.genctr
    }

    /// The entries, once there is no next command.
    #[must_use]
    pub fn into_entries(self) -> Vec<DiscoveryLogEntry> {
        self.entries
    }
}

const ENTRY_BYTES: u64 = DiscoveryLogEntry::SIZE_BYTES as u64;

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::log::{AddressFamily, DiscoverySubsystemType, RdmaProviderType};
    use capstan_nvme_proto::nqn::Nqn;
    use zerocopy::IntoBytes;

    use super::*;

    fn page(genctr: u64, records: usize) -> Vec<u8> {
        let mut page = DiscoveryLogHeader::new(genctr, records as u64)
            .as_bytes()
            .to_vec();
        for n in 0..records {
            let entry = DiscoveryLogEntry::rdma(
                DiscoverySubsystemType::NVM,
                &Nqn::new(&format!("nqn.{n}")).unwrap(),
                1,
                AddressFamily::IPV4,
                "127.0.0.1",
                "4420",
                RdmaProviderType::IWARP,
            );
            page.extend_from_slice(entry.as_bytes());
        }
        page
    }

    fn slice(page: &[u8], command: &GetLogPage) -> Vec<u8> {
        let start = usize::try_from(command.offset).unwrap();
        let len = usize::try_from(command.length_bytes).unwrap();
        page[start..start + len].to_vec()
    }

    #[test]
    fn a_long_page_is_read_in_pieces() {
        let page = page(3, 200);
        let mut discovery = Discovery::new();
        let mut commands = 0;
        while let Some(command) = discovery.next_command() {
            discovery.answer(&slice(&page, &command)).unwrap();
            commands += 1;
        }
        assert_eq!(commands, 1 + 4 + 1);
        assert_eq!(discovery.genctr(), 3);
        let entries = discovery.into_entries();
        assert_eq!(entries.len(), 200);
        assert_eq!(entries[199].subsystem_nqn().unwrap().as_str(), "nqn.199");
    }

    #[test]
    fn a_page_that_changes_is_read_again_and_not_for_ever() {
        let mut discovery = Discovery::new();
        let mut genctr = 0;
        let error = loop {
            let command = discovery.next_command().unwrap();
            genctr += 1;
            if let Err(error) = discovery.answer(&slice(&page(genctr, 2), &command)) {
                break error;
            }
        };
        assert_eq!(error, DiscoveryError::Changing(RETRIES_MAX + 1));
        assert!(genctr < 50);
    }

    #[test]
    fn hostile_pages_are_refused() {
        let mut discovery = Discovery::new();
        let head = DiscoveryLogHeader::new(1, u64::MAX);
        assert_eq!(
            discovery.answer(head.as_bytes()),
            Err(DiscoveryError::TooMany(u64::MAX))
        );
        assert!(Discovery::new().answer(&[0; 100]).is_err());
        let mut discovery = Discovery::new();
        discovery.answer(&page(1, 2)[..1024]).unwrap();
        assert!(discovery.answer(&[0; 1000]).is_err());
    }
}
