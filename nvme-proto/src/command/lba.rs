//! The commands that name a range of logical blocks.
//!
//! Source: NVM Command Set 1.1, section 3.3.

use crate::bits;
use crate::error::{CommandError, ErrorLocation};
use crate::sqe::Sqe;
use crate::status::Status;
use crate::zeroes_based;

/// Logical blocks `slba` to `slba + nlb - 1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LbaRange {
    /// SLBA, Starting LBA.
    pub slba: u64,
    /// NLB, Number of Logical Blocks: 1 to 65536 in a command (there 0's based).
    pub nlb: u32,
}

impl LbaRange {
    /// The LBA after the last one; `None` when it is over 2^64 - 1.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.slba.checked_add(self.nlb as u64)
    }

    /// Refuses a range that is not inside a namespace of `nsze_lbas` logical blocks.
    ///
    /// # Errors
    /// LBA Out of Range, Do Not Retry, located at SLBA.
    pub const fn require_within(self, nsze_lbas: u64) -> Result<(), CommandError> {
        match self.end() {
            Some(end) if end <= nsze_lbas => Ok(()),
            Some(_) | None => Err(CommandError {
                status: Status::LBA_OUT_OF_RANGE.dnr(),
                location: ErrorLocation::sqe(40),
                field: "SLBA",
                value: self.slba,
                expected: "a range that ends inside the namespace",
            }),
        }
    }

    /// Bytes of the range with logical blocks of `lba_bytes`.
    #[must_use]
    pub const fn bytes(self, lba_bytes: u32) -> u64 {
        (self.nlb as u64).saturating_mul(lba_bytes as u64)
    }

    pub(super) fn parse(sqe: &Sqe) -> Self {
        Self {
            slba: bits::dwords(sqe.cdw10.get(), sqe.cdw11.get()),
            nlb: zeroes_based::from_u16(bits::low16(sqe.cdw12.get())),
        }
    }

    /// Writes SLBA and NLB. An NLB outside 1 to 65536 becomes the nearer end.
    fn encode(self, sqe: &mut Sqe) {
        let nlb = self.nlb.clamp(1, 1 << 16);
        let nlb_z = zeroes_based::to_u16(nlb).unwrap_or(u16::MAX);
        sqe.cdw10 = bits::low32(self.slba).into();
        sqe.cdw11 = bits::high32(self.slba).into();
        sqe.cdw12 = bits::words(nlb_z, bits::high16(sqe.cdw12.get())).into();
    }
}

/// End-to-end data protection fields: PRINFO, STC, and the tags. All zero on a namespace without
/// protection information.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Protection {
    /// PRINFO.PRACT: insert or strip protection information.
    pub pract: bool,
    /// PRINFO.PRCHK: bit 0 reference tag, bit 1 application tag, bit 2 guard (3 bits).
    pub prchk: u8,
    /// STC, Storage Tag Check.
    pub stc: bool,
    /// Command dwords 2 and 3: upper part of the storage and reference tags.
    pub tag_high: u64,
    /// Command dword 14: lower part of the storage and reference tags.
    pub tag_low: u32,
    /// (Expected) Logical Block Application Tag.
    pub application_tag: u16,
    /// (Expected) Logical Block Application Tag Mask.
    pub application_tag_mask: u16,
}

impl Protection {
    /// No protection information.
    pub const NONE: Self = Self {
        pract: false,
        prchk: 0,
        stc: false,
        tag_high: 0,
        tag_low: 0,
        application_tag: 0,
        application_tag_mask: 0,
    };

    fn parse(sqe: &Sqe) -> Self {
        let (cdw12, cdw15) = (sqe.cdw12.get(), sqe.cdw15.get());
        Self {
            pract: bits::bit(cdw12, 29),
            prchk: bits::byte(bits::field(cdw12, 26, 3), 0),
            stc: bits::bit(cdw12, 24),
            tag_high: bits::dwords(sqe.cdw2.get(), sqe.cdw3.get()),
            tag_low: sqe.cdw14.get(),
            application_tag: bits::low16(cdw15),
            application_tag_mask: bits::high16(cdw15),
        }
    }

    fn encode(self, sqe: &mut Sqe) {
        or_cdw12(
            sqe,
            bits::flag(self.pract, 29)
                | bits::place(u32::from(self.prchk), 26, 3)
                | bits::flag(self.stc, 24),
        );
        sqe.cdw2 = bits::low32(self.tag_high).into();
        sqe.cdw3 = bits::high32(self.tag_high).into();
        sqe.cdw14 = self.tag_low.into();
        sqe.cdw15 = bits::words(self.application_tag, self.application_tag_mask).into();
    }
}

fn or_cdw12(sqe: &mut Sqe, value: u32) {
    sqe.cdw12 = (sqe.cdw12.get() | value).into();
}

const LR_BIT: u32 = 31;
const FUA_BIT: u32 = 30;
const DEAC_BIT: u32 = 25;
const NSZ_BIT: u32 = 23;

/// FUA and LR of command dword 12.
fn fua_and_lr(sqe: &Sqe) -> (bool, bool) {
    let cdw12 = sqe.cdw12.get();
    (bits::bit(cdw12, FUA_BIT), bits::bit(cdw12, LR_BIT))
}

fn encode_fua_and_lr(sqe: &mut Sqe, fua: bool, limited_retry: bool) {
    or_cdw12(
        sqe,
        bits::flag(fua, FUA_BIT) | bits::flag(limited_retry, LR_BIT),
    );
}

/// Directive Type and Directive Specific of a Write or Copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Directive {
    /// DTYPE: 4 bits, 0 for none.
    pub dtype: u8,
    /// DSPEC.
    pub dspec: u16,
}

impl Directive {
    /// No directive.
    pub const NONE: Self = Self { dtype: 0, dspec: 0 };

    pub(super) fn parse(sqe: &Sqe) -> Self {
        Self {
            dtype: bits::byte(bits::field(sqe.cdw12.get(), 20, 4), 0),
            dspec: bits::high16(sqe.cdw13.get()),
        }
    }

    pub(super) fn encode(self, sqe: &mut Sqe) {
        or_cdw12(sqe, bits::place(u32::from(self.dtype), 20, 4));
        sqe.cdw13 = (sqe.cdw13.get() | bits::words(0, self.dspec)).into();
    }
}

/// Read. NVM Command Set 1.1, section 3.3.4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Read {
    /// Namespace.
    pub nsid: u32,
    /// Logical blocks to read.
    pub range: LbaRange,
    /// FUA, Force Unit Access: from non-volatile media.
    pub fua: bool,
    /// LR, Limited Retry.
    pub limited_retry: bool,
    /// End-to-end data protection.
    pub protection: Protection,
    /// DSM: hints about the access (byte 0 of command dword 13).
    pub dsm: u8,
}

/// Write. NVM Command Set 1.1, section 3.3.6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    /// Namespace.
    pub nsid: u32,
    /// Logical blocks to write.
    pub range: LbaRange,
    /// FUA, Force Unit Access: complete only when the data is on non-volatile media.
    pub fua: bool,
    /// LR, Limited Retry.
    pub limited_retry: bool,
    /// End-to-end data protection.
    pub protection: Protection,
    /// Directive.
    pub directive: Directive,
    /// DSM: hints about the access (byte 0 of command dword 13).
    pub dsm: u8,
}

/// Write Uncorrectable. NVM Command Set 1.1, section 3.3.7.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriteUncorrectable {
    /// Namespace.
    pub nsid: u32,
    /// Logical blocks to mark.
    pub range: LbaRange,
    /// Directive.
    pub directive: Directive,
}

/// Write Zeroes. NVM Command Set 1.1, section 3.3.8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriteZeroes {
    /// Namespace.
    pub nsid: u32,
    /// Logical blocks to clear.
    pub range: LbaRange,
    /// FUA, Force Unit Access.
    pub fua: bool,
    /// LR, Limited Retry.
    pub limited_retry: bool,
    /// DEAC: the controller should deallocate the blocks, if they then read as zeros.
    pub deallocate: bool,
    /// NSZ: clear the whole namespace, whatever the range says.
    pub namespace_zeroes: bool,
    /// End-to-end data protection.
    pub protection: Protection,
}

/// Compare. NVM Command Set 1.1, section 3.3.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compare {
    /// Namespace.
    pub nsid: u32,
    /// Logical blocks to compare.
    pub range: LbaRange,
    /// FUA, Force Unit Access.
    pub fua: bool,
    /// LR, Limited Retry.
    pub limited_retry: bool,
    /// End-to-end data protection.
    pub protection: Protection,
}

/// Verify. NVM Command Set 1.1, section 3.3.5: like a Read that moves no data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Verify {
    /// Namespace.
    pub nsid: u32,
    /// Logical blocks to verify.
    pub range: LbaRange,
    /// FUA, Force Unit Access.
    pub fua: bool,
    /// LR, Limited Retry.
    pub limited_retry: bool,
    /// End-to-end data protection.
    pub protection: Protection,
}

impl Read {
    /// A Read without FUA, protection information or hints.
    #[must_use]
    pub const fn new(nsid: u32, range: LbaRange) -> Self {
        Self {
            nsid,
            range,
            fua: false,
            limited_retry: false,
            protection: Protection::NONE,
            dsm: 0,
        }
    }

    pub(super) fn parse(sqe: &Sqe) -> Self {
        let (fua, limited_retry) = fua_and_lr(sqe);
        Self {
            nsid: sqe.nsid.get(),
            range: LbaRange::parse(sqe),
            fua,
            limited_retry,
            protection: Protection::parse(sqe),
            dsm: bits::byte(sqe.cdw13.get(), 0),
        }
    }

    pub(super) fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        self.range.encode(sqe);
        encode_fua_and_lr(sqe, self.fua, self.limited_retry);
        self.protection.encode(sqe);
        sqe.cdw13 = u32::from(self.dsm).into();
    }
}

impl Write {
    /// A Write without FUA, protection information, directive or hints.
    #[must_use]
    pub const fn new(nsid: u32, range: LbaRange) -> Self {
        Self {
            nsid,
            range,
            fua: false,
            limited_retry: false,
            protection: Protection::NONE,
            directive: Directive::NONE,
            dsm: 0,
        }
    }

    pub(super) fn parse(sqe: &Sqe) -> Self {
        let (fua, limited_retry) = fua_and_lr(sqe);
        Self {
            nsid: sqe.nsid.get(),
            range: LbaRange::parse(sqe),
            fua,
            limited_retry,
            protection: Protection::parse(sqe),
            directive: Directive::parse(sqe),
            dsm: bits::byte(sqe.cdw13.get(), 0),
        }
    }

    pub(super) fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        self.range.encode(sqe);
        encode_fua_and_lr(sqe, self.fua, self.limited_retry);
        self.protection.encode(sqe);
        sqe.cdw13 = u32::from(self.dsm).into();
        self.directive.encode(sqe);
    }
}

impl WriteUncorrectable {
    pub(super) fn parse(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid.get(),
            range: LbaRange::parse(sqe),
            directive: Directive::parse(sqe),
        }
    }

    pub(super) fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        self.range.encode(sqe);
        self.directive.encode(sqe);
    }
}

impl WriteZeroes {
    /// A Write Zeroes without FUA, protection information or deallocation.
    #[must_use]
    pub const fn new(nsid: u32, range: LbaRange) -> Self {
        Self {
            nsid,
            range,
            fua: false,
            limited_retry: false,
            deallocate: false,
            namespace_zeroes: false,
            protection: Protection::NONE,
        }
    }

    pub(super) fn parse(sqe: &Sqe) -> Self {
        let (fua, limited_retry) = fua_and_lr(sqe);
        Self {
            nsid: sqe.nsid.get(),
            range: LbaRange::parse(sqe),
            fua,
            limited_retry,
            deallocate: bits::bit(sqe.cdw12.get(), DEAC_BIT),
            namespace_zeroes: bits::bit(sqe.cdw12.get(), NSZ_BIT),
            protection: Protection::parse(sqe),
        }
    }

    pub(super) fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        self.range.encode(sqe);
        encode_fua_and_lr(sqe, self.fua, self.limited_retry);
        or_cdw12(
            sqe,
            bits::flag(self.deallocate, DEAC_BIT) | bits::flag(self.namespace_zeroes, NSZ_BIT),
        );
        self.protection.encode(sqe);
    }
}

/// Compare and Verify have the same fields.
macro_rules! checked_read {
    ($type:ident) => {
        impl $type {
            /// One without FUA or protection information.
            #[must_use]
            pub const fn new(nsid: u32, range: LbaRange) -> Self {
                Self {
                    nsid,
                    range,
                    fua: false,
                    limited_retry: false,
                    protection: Protection::NONE,
                }
            }

            pub(super) fn parse(sqe: &Sqe) -> Self {
                let (fua, limited_retry) = fua_and_lr(sqe);
                Self {
                    nsid: sqe.nsid.get(),
                    range: LbaRange::parse(sqe),
                    fua,
                    limited_retry,
                    protection: Protection::parse(sqe),
                }
            }

            pub(super) fn encode(&self, sqe: &mut Sqe) {
                sqe.nsid = self.nsid.into();
                self.range.encode(sqe);
                encode_fua_and_lr(sqe, self.fua, self.limited_retry);
                self.protection.encode(sqe);
            }
        }
    };
}
checked_read!(Compare);
checked_read!(Verify);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_wrapping() {
        let range = |slba, nlb| LbaRange { slba, nlb };
        assert_eq!(range(0, 1).require_within(1), Ok(()));
        assert_eq!(range(10, 65_536).require_within(65_546), Ok(()));
        for (slba, nlb, nsze) in [
            (0, 1, 0),
            (1, 1, 1),
            (0, 2, 1),
            (u64::MAX, 1, u64::MAX),
            (u64::MAX, 2, 1),
        ] {
            let error = range(slba, nlb).require_within(nsze).unwrap_err();
            assert_eq!(error.status, Status::LBA_OUT_OF_RANGE.dnr());
            assert_eq!(error.location, ErrorLocation::sqe(40));
        }
        assert_eq!(range(u64::MAX, 1).end(), None);
        assert_eq!(range(0, 65_536).bytes(4096), 1 << 28);
    }

    #[test]
    fn the_largest_nlb_is_65536() {
        // Regression for the classic: adding one to NLB in 16 bits.
        let mut sqe = Sqe::new(2, 0, 1);
        sqe.cdw12 = 0xFFFF.into();
        assert_eq!(LbaRange::parse(&sqe).nlb, 65_536);
        LbaRange { slba: 0, nlb: 0 }.encode(&mut sqe);
        assert_eq!(sqe.cdw12.get(), 0);
        LbaRange {
            slba: 0,
            nlb: 65_537,
        }
        .encode(&mut sqe);
        assert_eq!(sqe.cdw12.get(), 0xFFFF);
    }
}
