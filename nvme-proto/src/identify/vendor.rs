//! What a Capstan target says of itself in the vendor specific bytes of Identify Controller.
//!
//! NVMe Base 2.1, section 5.1.13, leaves bytes 3072 to 4095 to the vendor. Other hosts ignore them,
//! and a host finds nothing there that it must know to be correct: without this block it assumes
//! the least.

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IdentifyController;

bitflags! {
    /// What a Capstan target promises beyond the specifications.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CapstanCapabilities: u32 {
        /// An I/O controller becomes ready (CSTS.RDY) only when every command that earlier
        /// associations of its host (Host Identifier) with its NVM subsystem had received by its
        /// Connect is answered, or dropped and off the medium. A host that has seen it ready may
        /// issue again what those associations left unanswered, unless such a command can still be
        /// in the network.
        const FENCES_EARLIER_ASSOCIATIONS = 1 << 0;
    }
}

/// The block: the first 64 of the vendor specific bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CapstanBlock {
    magic: [u8; 8],
    /// Layout of this block, from 1. A later version only adds to it.
    pub version: U16,
    reserved10: [u8; 2],
    capabilities: U32,
    boot_id: [u8; 16],
    reserved32: [u8; 32],
}

const _: () = {
    assert!(size_of::<CapstanBlock>() == 64 && align_of::<CapstanBlock>() == 1);
    assert!(offset_of!(CapstanBlock, version) == 8);
    assert!(offset_of!(CapstanBlock, capabilities) == 12);
    assert!(offset_of!(CapstanBlock, boot_id) == 16);
};

impl CapstanBlock {
    /// What the block begins with.
    pub const MAGIC: [u8; 8] = *b"CAPSTAN\0";
    /// Layout written here.
    pub const VERSION: u16 = 1;

    /// A block, its reserved bytes zero.
    #[must_use]
    pub fn new(capabilities: CapstanCapabilities, boot_id: [u8; 16]) -> Self {
        Self {
            magic: Self::MAGIC,
            version: Self::VERSION.into(),
            capabilities: capabilities.bits().into(),
            boot_id,
            ..Self::new_zeroed()
        }
    }

    /// What the target promises; bits that are not known here are kept.
    #[must_use]
    pub fn capabilities(&self) -> CapstanCapabilities {
        CapstanCapabilities::from_bits_retain(self.capabilities.get())
    }

    /// Instance of the machine, when the target tells it: another one after every boot, the same in
    /// every process of one boot. What a target had acknowledged and not written back does not
    /// outlive a change of it. On the wire zeroes tell none.
    #[must_use]
    pub fn boot_id(&self) -> Option<[u8; 16]> {
        (self.boot_id != [0; 16]).then_some(self.boot_id)
    }
}

impl IdentifyController {
    /// The block of a Capstan target; `None` for any other.
    #[must_use]
    pub fn capstan(&self) -> Option<&CapstanBlock> {
        let (block, _) = CapstanBlock::ref_from_prefix(&self.vs).ok()?;
        (block.magic == CapstanBlock::MAGIC && block.version.get() >= 1).then_some(block)
    }

    /// Puts `block` into the vendor specific bytes.
    pub fn set_capstan(&mut self, block: &CapstanBlock) {
        if let Some((place, _)) = self.vs.split_first_chunk_mut::<64>() {
            *place = zerocopy::transmute!(*block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_capstan_target_has_the_block() {
        let mut identify = IdentifyController::new_zeroed();
        assert_eq!(identify.capstan(), None);
        let block = CapstanBlock::new(CapstanCapabilities::FENCES_EARLIER_ASSOCIATIONS, [7; 16]);
        identify.set_capstan(&block);
        assert_eq!(identify.capstan(), Some(&block));
        assert_eq!(
            identify.as_bytes()[3072..3092],
            *b"CAPSTAN\0\x01\0\0\0\x01\0\0\0\x07\x07\x07\x07"
        );
        assert!(identify.as_bytes()[3104..].iter().all(|byte| *byte == 0));
        identify.vs[0] ^= 1;
        assert_eq!(identify.capstan(), None);
    }

    #[test]
    fn zeroes_tell_no_instance() {
        let block = CapstanBlock::new(CapstanCapabilities::empty(), [0; 16]);
        assert_eq!((block.boot_id(), block.capabilities().bits()), (None, 0));
        let block = CapstanBlock::new(CapstanCapabilities::empty(), [1; 16]);
        assert_eq!(block.boot_id(), Some([1; 16]));
    }
}
