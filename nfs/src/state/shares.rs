//! Share reservations: access and deny bits, and which of them opens have asked for. RFC 8881,
//! section 9.7.

use capstan_nfs_proto::v4::args::{ShareAccess, ShareDeny};
use capstan_nfs_proto::v4::status::Status;

/// What opens share_access and share_deny have in common: reading, writing, both or nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Shares(u8);

impl Shares {
    /// Nothing: OPEN4_SHARE_DENY_NONE.
    pub const NONE: Self = Self(0);
    /// Reading: OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_DENY_READ.
    pub const READ: Self = Self(1);
    /// Writing: OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_WRITE.
    pub const WRITE: Self = Self(2);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// What share_access says, but for delegations (RFC 8881, section 18.16.3).
    ///
    /// # Errors
    /// NFS4ERR_INVAL: neither reading nor writing, or bits that do not exist.
    pub const fn access(share_access: ShareAccess) -> Result<Self, Status> {
        match share_access.access() {
            bits @ 1..=3 => Ok(Self(bits.to_le_bytes()[0])),
            _ => Err(Status::INVAL),
        }
    }

    /// What share_deny says.
    ///
    /// # Errors
    /// NFS4ERR_INVAL: bits that do not exist.
    pub const fn deny(share_deny: ShareDeny) -> Result<Self, Status> {
        match share_deny.0 {
            bits @ 0..=3 => Ok(Self(bits.to_le_bytes()[0])),
            _ => Err(Status::INVAL),
        }
    }

    /// Whether there is anything that both have.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What either has.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 3)
    }
}

/// The share bits of the OPENs that made up one open: which of the 16 pairs of access and deny
/// there were. OPEN_DOWNGRADE may go back to the union of some of them (RFC 8881, section 18.18.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked(u16);

impl Asked {
    pub(crate) const fn add(&mut self, access: Shares, deny: Shares) {
        self.0 |= 1 << (access.0 << 2 | deny.0);
    }

    fn pairs(self) -> impl Iterator<Item = (Shares, Shares)> {
        (0..16_u8)
            .filter(move |pair| self.0 >> pair & 1 == 1)
            .map(|pair| {
                (
                    Shares::from_low_bits(pair >> 2),
                    Shares::from_low_bits(pair),
                )
            })
    }

    /// How many kinds of access there are among them: each has an open file.
    pub(crate) fn files(self) -> u64 {
        let kinds = [Shares::READ, Shares::WRITE, Shares::BOTH];
        let asked = kinds.map(|kind| self.pairs().any(|(access, _)| access == kind));
        asked.map(u64::from).iter().sum()
    }

    /// Whether one of them had just this access.
    pub(crate) fn has_access(self, access: Shares) -> bool {
        self.pairs().any(|(asked, _)| asked == access)
    }

    /// Access and deny bits of all of them.
    pub(crate) fn union(self) -> (Shares, Shares) {
        self.pairs()
            .fold((Shares::NONE, Shares::NONE), |(access, deny), (a, d)| {
                (access.union(a), deny.union(d))
            })
    }

    /// Those that are left when no more than `access` and `deny` is to be.
    ///
    /// # Errors
    /// NFS4ERR_INVAL: they are not the union of any of the OPENs.
    pub(crate) fn downgrade(self, access: Shares, deny: Shares) -> Result<Self, Status> {
        let mut left = Self::default();
        for (a, d) in self
            .pairs()
            .filter(|(a, d)| access.contains(*a) && deny.contains(*d))
        {
            left.add(a, d);
        }
        if left == Self::default() || left.union() != (access, deny) {
            return Err(Status::INVAL);
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_taken_from_what_clients_send() {
        // RFC 8881, section 18.16.1: WANT_NO_DELEG is 0400h.
        assert_eq!(Shares::access(ShareAccess(0x0403)), Ok(Shares::BOTH));
        assert_eq!(Shares::access(ShareAccess(0x0001_0001)), Ok(Shares::READ));
        for wrong in [0, 4, 0x0400, 0x8000_0001] {
            assert_eq!(
                Shares::access(ShareAccess(wrong)),
                Err(Status::INVAL),
                "{wrong:#x}"
            );
        }
        assert_eq!(Shares::deny(ShareDeny(2)), Ok(Shares::WRITE));
        assert_eq!(Shares::deny(ShareDeny(4)), Err(Status::INVAL));
    }

    #[test]
    fn a_downgrade_goes_to_what_was_opened() {
        // RFC 8881, section 18.18.3: the union of the bits of some of the OPENs.
        let mut asked = Asked::default();
        asked.add(Shares::BOTH, Shares::NONE);
        assert_eq!(
            asked.downgrade(Shares::READ, Shares::NONE),
            Err(Status::INVAL)
        );
        asked.add(Shares::READ, Shares::WRITE);
        asked.add(Shares::WRITE, Shares::NONE);
        assert_eq!(asked.union(), (Shares::BOTH, Shares::WRITE));
        assert_eq!(
            asked.downgrade(Shares::READ, Shares::NONE),
            Err(Status::INVAL)
        );
        let left = asked.downgrade(Shares::READ, Shares::WRITE).unwrap();
        assert_eq!(left.union(), (Shares::READ, Shares::WRITE));
        assert_eq!(
            left.downgrade(Shares::WRITE, Shares::NONE),
            Err(Status::INVAL)
        );
        assert_eq!(asked.downgrade(Shares::BOTH, Shares::WRITE), Ok(asked));
    }
}
