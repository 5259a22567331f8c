//! Where the data of a command is, by its SGL.
//!
//! Source: NVMe over TCP Transport 1.1 (SGL Descriptors); NVMe Base 2.1, section 4.3.2.

use core::ops::Range;

use crate::error::{CommandError, ErrorLocation};
use crate::identify::SglSupport;
use crate::sgl::Sgl;
use crate::status::Status;
use crate::transfer::{DataSupport, DataTransfer};

/// In-capsule data that every controller takes on the Admin Queue. On I/O queues it is what
/// IOCCSZ says.
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// What a controller that takes commands by these rules says of them.
pub const SUPPORT: DataSupport = DataSupport {
    sgls: SglSupport::SUPPORTED
        .union(SglSupport::OVERSIZED)
        .union(SglSupport::OFFSET)
        .union(SglSupport::TRANSPORT),
    descriptors_max: 1,
    in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES,
    in_capsule_offset_16bytes: 0,
};

/// Where the data of a command is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CommandData {
    /// The command has none.
    None,
    /// In the command capsule, at this place of the data there.
    InCapsule(Range<usize>),
    /// Moved by H2CData or C2HData, so many bytes of it.
    Transport {
        /// Bytes, exactly as many as the command needs.
        length_bytes: u32,
    },
}

/// Byte 39 of the submission queue entry: the identifier of SGL descriptor 1.
const IDENTIFIER_BYTE: u8 = 39;

impl CommandData {
    /// Of a command that needs `transfer`, has the descriptor `sgl`, and whose capsule brought
    /// `in_capsule_bytes` of data. A longer SGL than needed is allowed.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for anything but a Transport SGL Data Block or, for data from
    /// the host, an SGL Data Block with an offset; SGL Offset Invalid and Data SGL Length Invalid
    /// where the SGL has fewer bytes than the command needs; Invalid Field in Command where the
    /// capsule brings data that its SGL does not name.
    pub fn of(
        transfer: DataTransfer,
        sgl: &Sgl,
        in_capsule_bytes: u32,
    ) -> Result<Self, CommandError> {
        let needed_bytes = transfer.bytes();
        if needed_bytes == 0 {
            return Ok(Self::None);
        }
        if needed_bytes > u64::from(sgl.length_bytes()) {
            return Err(CommandError {
                status: Status::DATA_SGL_LENGTH_INVALID.dnr(),
                location: ErrorLocation::sqe(32),
                field: "SGL length",
                value: u64::from(sgl.length_bytes()),
                expected: "at least the bytes the command transfers",
            });
        }
        let from_host = matches!(transfer, DataTransfer::HostToController { .. });
        match *sgl {
            Sgl::Transport { .. } if in_capsule_bytes == 0 => {
                // It is no longer than the SGL, whose length has 32 bits.
                let length_bytes = u32::try_from(needed_bytes).unwrap_or(u32::MAX);
                Ok(Self::Transport { length_bytes })
            }
            Sgl::Transport { .. } => Err(CommandError::invalid_field(
                "SGL Identifier",
                IDENTIFIER_BYTE,
                u64::from(sgl_identifier(sgl)),
                "01h (in-capsule data), as the capsule has data",
            )),
            Sgl::InCapsule { .. } if from_host => {
                let capsule_bytes = usize::try_from(in_capsule_bytes).unwrap_or(usize::MAX);
                let range = sgl.capsule_range(capsule_bytes)?;
                let needed_bytes = usize::try_from(needed_bytes).unwrap_or(usize::MAX);
                let end = range.start.saturating_add(needed_bytes);
                Ok(Self::InCapsule(range.start..end))
            }
            Sgl::InCapsule { .. }
            | Sgl::Keyed { .. }
            | Sgl::Segment { .. }
            | Sgl::DataBlock { .. }
            | Sgl::BitBucket { .. } => Err(CommandError {
                status: Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(),
                location: ErrorLocation::sqe(IDENTIFIER_BYTE),
                field: "SGL Identifier",
                value: u64::from(sgl_identifier(sgl)),
                expected: "5Ah (transport) or, for data from the host, 01h (in-capsule data)",
            }),
        }
    }
}

fn sgl_identifier(sgl: &Sgl) -> u8 {
    let descriptor = sgl.encode();
    let high = descriptor.descriptor_type().0.wrapping_shl(4);
    high | descriptor.subtype().0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sgl::SglBase;

    const WRITE: DataTransfer = DataTransfer::HostToController { bytes: 4096 };
    const READ: DataTransfer = DataTransfer::ControllerToHost { bytes: 4096 };
    const fn transport(length_bytes: u32) -> Sgl {
        Sgl::Transport { length_bytes }
    }
    const fn in_capsule(offset_bytes: u64, length_bytes: u32) -> Sgl {
        Sgl::InCapsule {
            offset_bytes,
            length_bytes,
        }
    }

    #[test]
    fn data_is_where_the_sgl_says() {
        let data = |transfer, sgl, capsule| CommandData::of(transfer, &sgl, capsule);
        let moved = Ok(CommandData::Transport { length_bytes: 4096 });
        assert_eq!(data(WRITE, transport(4096), 0), moved);
        assert_eq!(data(READ, transport(8192), 0), moved);
        assert_eq!(
            data(WRITE, in_capsule(0, 4096), 4096),
            Ok(CommandData::InCapsule(0..4096))
        );
        assert_eq!(
            data(WRITE, in_capsule(512, 5000), 8192),
            Ok(CommandData::InCapsule(512..4608))
        );
        // What the Linux host sends with a Flush.
        assert_eq!(
            data(DataTransfer::None, transport(0), 0),
            Ok(CommandData::None)
        );
        let none = DataTransfer::HostToController { bytes: 0 };
        assert_eq!(data(none, transport(0), 0), Ok(CommandData::None));
    }

    #[test]
    fn each_fault_has_its_status() {
        let status = |transfer, sgl: Sgl, capsule| {
            let error = CommandData::of(transfer, &sgl, capsule).unwrap_err();
            (error.status, error.location)
        };
        let kind = (
            Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(),
            ErrorLocation::sqe(39),
        );
        let length = (
            Status::DATA_SGL_LENGTH_INVALID.dnr(),
            ErrorLocation::sqe(32),
        );
        assert_eq!(status(READ, in_capsule(0, 4096), 4096), kind);
        let keyed = Sgl::Keyed {
            address: 0,
            length_bytes: 4096,
            rkey: 1,
            invalidate: false,
        };
        assert_eq!(status(WRITE, keyed, 0), kind);
        let list = Sgl::Segment {
            base: SglBase::CapsuleOffset(0),
            length_bytes: 4096,
            last: true,
        };
        assert_eq!(status(WRITE, list, 4096), kind);
        assert_eq!(status(WRITE, transport(4095), 0), length);
        assert_eq!(status(WRITE, in_capsule(0, 4096), 4095), length);
        assert_eq!(status(WRITE, in_capsule(1, 4096), 4096), length);
        assert_eq!(
            status(WRITE, in_capsule(4097, 4096), 4096),
            (Status::SGL_OFFSET_INVALID.dnr(), ErrorLocation::sqe(24))
        );
        assert_eq!(
            status(WRITE, transport(4096), 512),
            (Status::INVALID_FIELD.dnr(), ErrorLocation::sqe(39))
        );
    }
}
