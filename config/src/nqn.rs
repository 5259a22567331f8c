//! NVMe Qualified Names (NVMe Base 2.1, "NVMe Qualified Names").

use std::fmt;

use uuid::Uuid;

/// Longest NQN in bytes, without the terminating NUL.
pub const NQN_BYTES_MAX: usize = 223;
/// The well-known discovery subsystem NQN; no subsystem may take it.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// What precedes the UUID in a UUID-based NQN.
pub(crate) const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A well-formed NQN: `nqn.yyyy-mm.reverse.domain:name` or
/// `nqn.2014-08.org.nvmexpress:uuid:<uuid>`, at most 223 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

/// Why a text is no [`Nqn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// Longer than [`NQN_BYTES_MAX`].
    #[error("is {0} bytes long; an NQN has at most 223")]
    TooLong(usize),
    /// No `nqn.` at the start.
    #[error("does not start with `nqn.`; the form is `nqn.yyyy-mm.reverse.domain:name`")]
    Prefix,
    /// No year and month after `nqn.`.
    #[error("has no date after `nqn.`; the form is `nqn.yyyy-mm.reverse.domain:name`")]
    Date,
    /// No domain name before the colon.
    #[error("has no reverse domain name; the form is `nqn.yyyy-mm.reverse.domain:name`")]
    Domain,
    /// No colon and name.
    #[error("has no `:name` at the end; the form is `nqn.yyyy-mm.reverse.domain:name`")]
    Name,
    /// `nqn.2014-08.org.nvmexpress:uuid:` without a UUID.
    #[error("ends in no UUID; the form is `nqn.2014-08.org.nvmexpress:uuid:<uuid>`")]
    Uuid,
    /// Control character or white space.
    #[error("contains white space or a control character")]
    Character,
}

impl Nqn {
    /// Checks the form of `text`.
    ///
    /// # Errors
    /// The first rule of the specification that it breaks.
    pub fn new(text: impl Into<String>) -> Result<Self, NqnError> {
        let text = text.into();
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(NqnError::Character);
        }
        let rest = text.strip_prefix("nqn.").ok_or(NqnError::Prefix)?;
        let (date, rest) = rest.split_once('.').ok_or(NqnError::Date)?;
        if !is_year_month(date) {
            return Err(NqnError::Date);
        }
        let (domain, name) = rest.split_once(':').ok_or(NqnError::Name)?;
        if !is_domain(domain) {
            return Err(NqnError::Domain);
        }
        if name.is_empty() {
            return Err(NqnError::Name);
        }
        if let Some(uuid) = text.strip_prefix(UUID_NQN_PREFIX)
            && (uuid.len() != 36 || Uuid::try_parse(uuid).is_err())
        {
            return Err(NqnError::Uuid);
        }
        Ok(Self(text))
    }

    /// The UUID-based NQN of `uuid`.
    pub(crate) fn from_uuid(uuid: Uuid) -> Self {
        Self(format!("{UUID_NQN_PREFIX}{uuid}"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_year_month(text: &str) -> bool {
    let Some((year, month)) = text.split_once('-') else {
        return false;
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    year.len() == 4
        && digits(year)
        && month.len() == 2
        && digits(month)
        && ("01"..="12").contains(&month)
}

fn is_domain(text: &str) -> bool {
    text.split('.').all(|label| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_accepted() {
        for text in [
            "nqn.2026-11.com.example:disk1",
            "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ] {
            assert_eq!(Nqn::new(text).unwrap().as_str(), text);
        }
        let longest = format!("nqn.2026-11.com.example:{}", "x".repeat(NQN_BYTES_MAX - 24));
        assert_eq!(longest.len(), NQN_BYTES_MAX);
        assert!(Nqn::new(longest).is_ok());
    }

    #[test]
    fn each_rule_has_its_error() {
        for (text, error) in [
            ("", NqnError::Prefix),
            ("disk1", NqnError::Prefix),
            ("NQN.2026-11.com.example:x", NqnError::Prefix),
            ("nqn.com.example:x", NqnError::Date),
            ("nqn.2026-13.com.example:x", NqnError::Date),
            ("nqn.2026-1.com.example:x", NqnError::Date),
            ("nqn.2026-11", NqnError::Date),
            ("nqn.2026-11.com.example", NqnError::Name),
            ("nqn.2026-11.com.example:", NqnError::Name),
            ("nqn.2026-11.:x", NqnError::Domain),
            ("nqn.2026-11.com..example:x", NqnError::Domain),
            ("nqn.2014-08.org.nvmexpress:uuid:1", NqnError::Uuid),
            ("nqn.2026-11.com.example:a b", NqnError::Character),
            ("nqn.2026-11.com.example:a\0", NqnError::Character),
        ] {
            assert_eq!(Nqn::new(text), Err(error), "{text}");
        }
        assert_eq!(Nqn::new("x".repeat(224)), Err(NqnError::TooLong(224)));
        assert_eq!(
            Nqn::new(DISCOVERY_NQN),
            Err(NqnError::Name),
            "cannot be a subsystem's"
        );
    }
}
