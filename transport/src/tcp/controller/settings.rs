//! What the two sides of a queue agree on: by ICReq and ICResp, and by Connect.

use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests};

use super::super::limits::MAXH2CDATA_BYTES;

/// What a controller answers to ICReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcSettings {
    /// The digests it enables where the host asks for them.
    pub digests: Digests,
    /// CPDA: alignment of the data the host sends.
    pub cpda: DataAlignment,
    /// MAXH2CDATA: bytes of data of one H2CData PDU, at least 4096 and a multiple of 4.
    pub maxh2cdata_bytes: u32,
    /// Bytes that one R2T asks for at most, at least 1.
    pub r2t_max_bytes: u32,
}

impl Default for IcSettings {
    fn default() -> Self {
        Self {
            digests: Digests::all(),
            cpda: DataAlignment::DWORD,
            maxh2cdata_bytes: MAXH2CDATA_BYTES,
            r2t_max_bytes: u32::MAX,
        }
    }
}

/// What Connect has settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Entries of the submission queue: commands that may be outstanding, with those whose
    /// response, or data that stands for it, has not left.
    pub entries: u16,
    /// In-capsule data of one command, by IOCCSZ (8192 on the Admin Queue).
    pub in_capsule_max_bytes: u32,
    /// Whether SQ flow control is in use. Where it is not, SUCCESS stands for a response.
    pub flow_control: bool,
}
