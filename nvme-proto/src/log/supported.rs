//! Supported Log Pages (LID 00h).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogPageId;

/// Supported Log Pages, 1024 bytes: for every LID a dword whose bit 0 (LSUPP) says that the page
/// is supported and whose bit 1 (IOS) that its offset may be an index. NVMe Base 2.1, section
/// 5.1.12.
#[repr(transparent)]
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SupportedLogPages([U32; 256]);

const _: () = {
    assert!(size_of::<SupportedLogPages>() == 1024 && align_of::<SupportedLogPages>() == 1);
};

impl SupportedLogPages {
    /// A page that says `pages` are supported, and no other.
    #[must_use]
    pub fn new(pages: impl IntoIterator<Item = LogPageId>) -> Self {
        let mut log = Self::new_zeroed();
        for page in pages {
            if let Some(entry) = log.0.get_mut(usize::from(page.0)) {
                *entry = U32::new(1);
            }
        }
        log
    }

    /// From the data of the command; `None` when there are fewer than 1024 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(data).ok().map(|(log, _rest)| log)
    }

    /// The dword of `page`.
    #[must_use]
    pub fn entry(&self, page: LogPageId) -> u32 {
        self.0
            .get(usize::from(page.0))
            .map_or(0, |entry| entry.get())
    }

    /// Whether `page` is supported.
    #[must_use]
    pub fn supports(&self, page: LogPageId) -> bool {
        self.entry(page) & 1 != 0
    }
}

impl core::fmt::Debug for SupportedLogPages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let pages = (0..=u8::MAX)
            .map(LogPageId)
            .filter(|page| self.supports(*page));
        f.debug_set().entries(pages).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_by_their_identifier() {
        let log = SupportedLogPages::new([LogPageId::SUPPORTED_LOG_PAGES, LogPageId(0xFF)]);
        assert_eq!(log.as_bytes()[..5], [1, 0, 0, 0, 0]);
        assert_eq!(log.as_bytes()[1020..], [1, 0, 0, 0]);
        assert!(log.supports(LogPageId(0xFF)) && !log.supports(LogPageId::ANA));
        assert_eq!(SupportedLogPages::from_data(log.as_bytes()), Some(&log));
        assert_eq!(SupportedLogPages::from_data(&[0; 1023]), None);
    }
}
