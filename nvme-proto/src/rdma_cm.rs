//! Private data of the RDMA connection manager: what the two sides tell each other while a queue
//! pair is being set up, before any capsule.
//!
//! Source: NVMe over RDMA Transport 1.1 (RDMA_CM Request, Accept and Reject Private
//! Data). The transport below may pad private data at the end, so a longer buffer is accepted and
//! only the length the specification gives is read.

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::open_enum;
use crate::zeroes_based;

/// The only Record Format (RECFMT) there is.
pub const RECFMT: u16 = 0;

open_enum! {
    /// Status (STS) of a rejected connection.
    pub struct RejectStatus(u16) {
        INVALID_PRIVATE_DATA_LENGTH = 0x01 => "Invalid Private Data Length",
        INVALID_RECFMT = 0x02 => "Invalid RECFMT",
        INVALID_QID = 0x03 => "Invalid QID",
        INVALID_HSQSIZE = 0x04 => "Invalid HSQSIZE",
        INVALID_HRQSIZE = 0x05 => "Invalid HRQSIZE",
        NO_RESOURCES = 0x06 => "No Resources",
        INVALID_IRD = 0x07 => "Invalid IRD",
        INVALID_ORD = 0x08 => "Invalid ORD",
    }
}

/// RDMA_CM Request private data on the wire, 32 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct RequestPrivateData {
    /// Record Format.
    pub recfmt: U16,
    /// Queue Identifier: 0 for the Admin Queue.
    pub qid: U16,
    /// Host Receive Queue Size: receives the host posts, so responses it can take at once.
    pub hrqsize: U16,
    /// Host Send Queue Size, 0's based: the SQSIZE the Connect command will say.
    pub hsqsize_z: U16,
    /// Controller Identifier of the association an I/O queue belongs to.
    pub cntlid: U16,
    reserved: [u8; 22],
}

const _: () = {
    assert!(size_of::<RequestPrivateData>() == 32 && align_of::<RequestPrivateData>() == 1);
    assert!(offset_of!(RequestPrivateData, qid) == 2);
    assert!(offset_of!(RequestPrivateData, hrqsize) == 4);
    assert!(offset_of!(RequestPrivateData, hsqsize_z) == 6);
    assert!(offset_of!(RequestPrivateData, cntlid) == 8);
};

/// RDMA_CM Accept private data on the wire, 32 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct AcceptPrivateData {
    /// Record Format.
    pub recfmt: U16,
    /// Controller Receive Queue Size: receives the controller posts.
    pub crqsize: U16,
    reserved: [u8; 28],
}

const _: () = {
    assert!(size_of::<AcceptPrivateData>() == 32 && align_of::<AcceptPrivateData>() == 1);
    assert!(offset_of!(AcceptPrivateData, crqsize) == 2);
};

/// RDMA_CM Reject private data on the wire, 4 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct RejectPrivateData {
    /// Record Format.
    pub recfmt: U16,
    /// Status: see [`RejectStatus`].
    pub sts: U16,
}

const _: () = {
    assert!(size_of::<RejectPrivateData>() == 4 && align_of::<RejectPrivateData>() == 1);
    assert!(offset_of!(RejectPrivateData, sts) == 2);
};

/// What a host asks for with the connection request of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CmRequest {
    /// Queue Identifier: 0 for the Admin Queue.
    pub qid: u16,
    /// Receives the host posts: at least 1.
    pub hrqsize: u16,
    /// Entries of the submission queue, 2 to 65536 (on the wire 0's based).
    pub hsqsize: u32,
    /// Controller Identifier; 0 from hosts older than transport revision 1.1 and for the Admin
    /// Queue.
    pub cntlid: u16,
}

/// Why private data cannot be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum PrivateDataError {
    /// Fewer bytes than the structure has.
    #[error(
        "private data is {actual_bytes} bytes, expected at least {expected_bytes}: \
         the peer does not speak NVMe over RDMA"
    )]
    Length {
        /// Bytes that arrived.
        actual_bytes: usize,
        /// Bytes the structure has.
        expected_bytes: usize,
    },
    /// A record format other than 0.
    #[error("RECFMT is {recfmt}, expected 0: the peer uses a newer private data layout")]
    RecordFormat {
        /// The RECFMT that arrived.
        recfmt: u16,
    },
    /// A host that posts no receive could not be answered.
    #[error("HRQSIZE is 0, expected at least 1: the host could not take a response")]
    HostReceiveQueueSize,
    /// A submission queue of one entry can hold no command.
    #[error("HSQSIZE is 0 (a queue of one entry), expected at least 1 (0's based)")]
    HostSendQueueSize,
}

impl PrivateDataError {
    /// The status to reject the connection with.
    #[must_use]
    pub const fn reject_status(&self) -> RejectStatus {
        match self {
            Self::Length { .. } => RejectStatus::INVALID_PRIVATE_DATA_LENGTH,
            Self::RecordFormat { .. } => RejectStatus::INVALID_RECFMT,
            Self::HostReceiveQueueSize => RejectStatus::INVALID_HRQSIZE,
            Self::HostSendQueueSize => RejectStatus::INVALID_HSQSIZE,
        }
    }
}

impl CmRequest {
    /// Reads the private data of a connection request.
    ///
    /// # Errors
    /// [`PrivateDataError`], whose [`PrivateDataError::reject_status`] is what to answer.
    pub fn parse(private_data: &[u8]) -> Result<Self, PrivateDataError> {
        let wire: &RequestPrivateData = prefix(private_data)?;
        check_recfmt(wire.recfmt)?;
        if wire.hrqsize.get() == 0 {
            return Err(PrivateDataError::HostReceiveQueueSize);
        }
        if wire.hsqsize_z.get() == 0 {
            return Err(PrivateDataError::HostSendQueueSize);
        }
        Ok(Self {
            qid: wire.qid.get(),
            hrqsize: wire.hrqsize.get(),
            hsqsize: zeroes_based::from_u16(wire.hsqsize_z.get()),
            cntlid: wire.cntlid.get(),
        })
    }

    /// The private data of a connection request; `None` when `hsqsize` is not 1 to 65536.
    #[must_use]
    pub fn encode(&self) -> Option<RequestPrivateData> {
        Some(RequestPrivateData {
            recfmt: RECFMT.into(),
            qid: self.qid.into(),
            hrqsize: self.hrqsize.into(),
            hsqsize_z: zeroes_based::to_u16(self.hsqsize)?.into(),
            cntlid: self.cntlid.into(),
            ..RequestPrivateData::new_zeroed()
        })
    }
}

/// What a controller says when it accepts the connection of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CmAccept {
    /// Receives the controller posts. Hosts do not queue more commands than this.
    pub crqsize: u16,
}

impl CmAccept {
    /// Reads the private data of an accept.
    ///
    /// # Errors
    /// [`PrivateDataError`] when it is too short or has another record format.
    pub fn parse(private_data: &[u8]) -> Result<Self, PrivateDataError> {
        let wire: &AcceptPrivateData = prefix(private_data)?;
        check_recfmt(wire.recfmt)?;
        Ok(Self {
            crqsize: wire.crqsize.get(),
        })
    }

    /// The private data of an accept.
    #[must_use]
    pub fn encode(&self) -> AcceptPrivateData {
        AcceptPrivateData {
            recfmt: RECFMT.into(),
            crqsize: self.crqsize.into(),
            ..AcceptPrivateData::new_zeroed()
        }
    }
}

/// Why a controller refused the connection of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CmReject {
    /// Status.
    pub status: RejectStatus,
}

impl CmReject {
    /// Reads the private data of a reject.
    ///
    /// # Errors
    /// [`PrivateDataError`] when it is too short or has another record format, as from a peer
    /// whose transport, not whose controller, refused.
    pub fn parse(private_data: &[u8]) -> Result<Self, PrivateDataError> {
        let wire: &RejectPrivateData = prefix(private_data)?;
        check_recfmt(wire.recfmt)?;
        Ok(Self {
            status: RejectStatus(wire.sts.get()),
        })
    }

    /// The private data of a reject.
    #[must_use]
    pub fn encode(&self) -> RejectPrivateData {
        RejectPrivateData {
            recfmt: RECFMT.into(),
            sts: self.status.0.into(),
        }
    }
}

fn prefix<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    private_data: &[u8],
) -> Result<&T, PrivateDataError> {
    match T::ref_from_prefix(private_data) {
        Ok((wire, _padding)) => Ok(wire),
        Err(_) => Err(PrivateDataError::Length {
            actual_bytes: private_data.len(),
            expected_bytes: size_of::<T>(),
        }),
    }
}

fn check_recfmt(recfmt: U16) -> Result<(), PrivateDataError> {
    if recfmt.get() == RECFMT {
        Ok(())
    } else {
        Err(PrivateDataError::RecordFormat {
            recfmt: recfmt.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    const REQUEST: CmRequest = CmRequest {
        qid: 3,
        hrqsize: 128,
        hsqsize: 128,
        cntlid: 7,
    };

    fn bytes(value: &(impl IntoBytes + Immutable)) -> Vec<u8> {
        value.as_bytes().to_vec()
    }

    #[test]
    fn requests_survive_the_wire_and_padding() {
        let mut wire = bytes(&REQUEST.encode().unwrap());
        assert_eq!(wire[..10], [0, 0, 3, 0, 128, 0, 127, 0, 7, 0]);
        assert_eq!(CmRequest::parse(&wire), Ok(REQUEST));
        wire.resize(56, 0xEE);
        assert_eq!(CmRequest::parse(&wire), Ok(REQUEST));
    }

    #[test]
    fn the_largest_queue_is_widened() {
        let request = CmRequest {
            hsqsize: 65_536,
            ..REQUEST
        };
        assert_eq!(
            CmRequest::parse(&bytes(&request.encode().unwrap())),
            Ok(request)
        );
        assert!(
            CmRequest {
                hsqsize: 65_537,
                ..REQUEST
            }
            .encode()
            .is_none()
        );
        assert!(
            CmRequest {
                hsqsize: 0,
                ..REQUEST
            }
            .encode()
            .is_none()
        );
    }

    #[test]
    fn each_fault_has_its_reject_status() {
        let status = |change: fn(&mut RequestPrivateData), length: usize| {
            let mut wire = REQUEST.encode().unwrap();
            change(&mut wire);
            CmRequest::parse(&bytes(&wire)[..length])
                .unwrap_err()
                .reject_status()
        };
        assert_eq!(
            status(|_| {}, 31),
            RejectStatus::INVALID_PRIVATE_DATA_LENGTH
        );
        assert_eq!(status(|_| {}, 0), RejectStatus::INVALID_PRIVATE_DATA_LENGTH);
        assert_eq!(
            status(|w| w.recfmt = 1.into(), 32),
            RejectStatus::INVALID_RECFMT
        );
        assert_eq!(
            status(|w| w.hrqsize = 0.into(), 32),
            RejectStatus::INVALID_HRQSIZE
        );
        assert_eq!(
            status(|w| w.hsqsize_z = 0.into(), 32),
            RejectStatus::INVALID_HSQSIZE
        );
    }

    #[test]
    fn accepts_and_rejects_survive_the_wire() {
        let accept = CmAccept { crqsize: 129 };
        assert_eq!(CmAccept::parse(&bytes(&accept.encode())), Ok(accept));
        let reject = CmReject {
            status: RejectStatus::NO_RESOURCES,
        };
        assert_eq!(bytes(&reject.encode()), [0, 0, 6, 0]);
        assert_eq!(CmReject::parse(&bytes(&reject.encode())), Ok(reject));
        assert!(CmReject::parse(&[0, 0, 6]).is_err());
        assert!(CmAccept::parse(&[1; 32]).is_err());
        assert_eq!(
            CmReject::parse(&[]).unwrap_err().to_string(),
            "private data is 0 bytes, expected at least 4: the peer does not speak NVMe over RDMA"
        );
    }
}
