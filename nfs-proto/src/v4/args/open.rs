//! Arguments of OPEN, CLOSE, OPEN_DOWNGRADE and WANT_DELEGATION.

use crate::codec::{Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::macros::{xdr_enum, xdr_struct, xdr_union};
use crate::v4::attr::Fattr;
use crate::v4::types::{Component, StateOwner, Stateid, Verifier};

/// What an open is for, and which delegation the client wants (share_access of OPEN4args; RFC
/// 8881, section 18.16.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ShareAccess(pub u32);

impl ShareAccess {
    /// To read and to write.
    pub const BOTH: Self = Self(3);
    /// To read.
    pub const READ: Self = Self(1);
    /// Bits that say what delegation is wanted, or none.
    const WANT_MASK: u32 = 0xFF00;
    /// The client wants no delegation.
    pub const WANT_NO_DELEG: u32 = 0x0400;
    /// The client wants to be told when a delegation can be had.
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// The client wants a delegation to be sent when there is no contention.
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// To write.
    pub const WRITE: Self = Self(2);

    /// What the open is for: 1 to read, 2 to write, 3 for both. Any other value is NFS4ERR_INVAL
    /// (RFC 8881, section 18.16.3).
    #[must_use]
    pub const fn access(self) -> u32 {
        self.0
            & !(Self::WANT_MASK
                | Self::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
                | Self::WANT_PUSH_DELEG_WHEN_UNCONTENDED)
    }

    /// The delegation that is wanted: 0 for no preference, else as the RFC numbers them.
    #[must_use]
    pub const fn want(self) -> u32 {
        self.0 & Self::WANT_MASK
    }
}

/// What others may not open for (share_deny of OPEN4args; RFC 8881, section 18.16.1): 0 nothing, 1
/// reading, 2 writing, 3 either. Any other value is NFS4ERR_INVAL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ShareDeny(pub u32);

macro_rules! word {
    ($type:ident) => {
        impl Encode for $type {
            fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
                to.u32(self.0)
            }
        }

        impl Decode<'_> for $type {
            fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
                from.u32(field).map(Self)
            }
        }
    };
}
word!(ShareAccess);
word!(ShareDeny);

xdr_enum! {
    /// The type of a delegation (open_delegation_type4; RFC 8881, section 18.16.1).
    pub enum DelegationType {
        /// None.
        None = 0,
        /// To read.
        Read = 1,
        /// To write.
        Write = 2,
        /// None, and why.
        NoneExt = 3,
    }
}

xdr_struct! {
    /// Exclusive creation with attributes (creatverfattr; RFC 8881, section 18.16.1).
    pub struct ExclusiveCreate<'a> {
        /// Tells a repeated OPEN from another one.
        pub verifier: Verifier,
        /// The attributes, of suppattr_exclcreat.
        pub attrs: Fattr<'a>,
    }
}

xdr_union! {
    /// How a file is made (createhow4; RFC 8881, section 18.16.1).
    pub enum CreateHow<'a> {
        /// An existing file is opened.
        Unchecked(Fattr<'a>) = 0,
        /// An existing file is an error.
        Guarded(Fattr<'a>) = 1,
        /// An existing file is an error unless this verifier made it.
        Exclusive(Verifier) = 2,
        /// As before, with attributes.
        Exclusive41(ExclusiveCreate<'a>) = 3,
    }
}

xdr_union! {
    /// Whether OPEN may make the file (openflag4; RFC 8881, section 18.16.1).
    pub enum OpenHow<'a> {
        /// It exists.
        NoCreate = 0,
        /// It is made.
        Create(CreateHow<'a>) = 1,
    }
}

xdr_struct! {
    /// A delegation, and the name of its file (open_claim_delegate_cur4; RFC 8881, section
    /// 18.16.1).
    pub struct DelegateCurrent<'a> {
        /// The delegation.
        pub delegate_stateid: Stateid,
        /// The name.
        pub file: Component<'a>,
    }
}

xdr_union! {
    /// Which file is opened, and by what right (open_claim4; RFC 8881, section 18.16.1).
    pub enum OpenClaim<'a> {
        /// The file of this name in the current directory (CLAIM_NULL).
        Null(Component<'a>) = 0,
        /// The current file, which was open before the server restarted (CLAIM_PREVIOUS).
        Previous(DelegationType) = 1,
        /// By a delegation, with the name (CLAIM_DELEGATE_CUR).
        DelegateCurrent(DelegateCurrent<'a>) = 2,
        /// By a delegation of the client before it restarted, with the name
        /// (CLAIM_DELEGATE_PREV).
        DelegatePrevious(Component<'a>) = 3,
        /// The current file (CLAIM_FH).
        Fh = 4,
        /// The current file, by a delegation (CLAIM_DELEG_CUR_FH).
        DelegateCurrentFh(Stateid) = 5,
        /// The current file, by a delegation of the client before it restarted
        /// (CLAIM_DELEG_PREV_FH).
        DelegatePreviousFh = 6,
    }
}

xdr_struct! {
    /// OPEN (RFC 8881, section 18.16).
    pub struct Open<'a> {
        /// Not looked at.
        pub seqid: u32,
        /// What for.
        pub share_access: ShareAccess,
        /// What others may not open for.
        pub share_deny: ShareDeny,
        /// The open owner.
        pub owner: StateOwner<'a>,
        /// Whether it may be made.
        pub openhow: OpenHow<'a>,
        /// Which file.
        pub claim: OpenClaim<'a>,
    }
}

xdr_struct! {
    /// CLOSE (RFC 8881, section 18.2).
    pub struct Close {
        /// Not looked at.
        pub seqid: u32,
        /// The open.
        pub open_stateid: Stateid,
    }
}

xdr_struct! {
    /// OPEN_DOWNGRADE (RFC 8881, section 18.18).
    pub struct OpenDowngrade {
        /// The open.
        pub open_stateid: Stateid,
        /// Not looked at.
        pub seqid: u32,
        /// What it stays for.
        pub share_access: ShareAccess,
        /// What others still may not open for.
        pub share_deny: ShareDeny,
    }
}

xdr_union! {
    /// By what right a delegation is wanted (deleg_claim4; RFC 8881, section 18.49.1).
    pub enum DelegationClaim {
        /// It was held before the server restarted.
        Previous(DelegationType) = 1,
        /// None.
        Fh = 4,
        /// It was held by the client before it restarted.
        DelegatePreviousFh = 6,
    }
}

xdr_struct! {
    /// WANT_DELEGATION (RFC 8881, section 18.49).
    pub struct WantDelegation {
        /// Which one, as in the upper bits of [`ShareAccess`].
        pub want: u32,
        /// By what right.
        pub claim: DelegationClaim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_and_want_share_a_word() {
        // What Linux sends to open for both without a delegation.
        let word = ShareAccess(0x0403);
        assert_eq!(
            (word.access(), word.want()),
            (3, ShareAccess::WANT_NO_DELEG)
        );
        assert_eq!(ShareAccess(0x3_0001).access(), 1);
        // An unknown bit is not hidden.
        assert_eq!(ShareAccess(0x10_0001).access(), 0x10_0001);
    }
}
