//! Data from the host to the controller, which has asked for it.
//!
//! Source: NVMe over TCP Transport 1.1 (H2CData, section 3.6.2).

use super::r2t::R2t;
use super::setup::Agreed;

/// What an H2CData PDU says of its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct H2cData {
    /// CCCID: the command.
    pub cid: u16,
    /// TTAG of the R2T that this answers.
    pub ttag: u16,
    /// DATAO: bytes from the start of the command's data.
    pub offset_bytes: u32,
    /// DATAL: bytes, at least 1.
    pub length_bytes: u32,
    /// LAST_PDU: nothing of this R2T follows.
    pub last: bool,
}

/// The H2CData PDUs that answer one R2T, each of at most MAXH2CDATA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct H2cPlan {
    cid: u16,
    ttag: u16,
    next_bytes: u32,
    left_bytes: u32,
    pdu_max_bytes: u32,
}

impl H2cPlan {
    /// The answer to `r2t`; [`super::r2t::R2tWindow::receive`] makes one where it is due.
    pub(super) fn new(r2t: &R2t, agreed: &Agreed) -> Self {
        Self {
            cid: r2t.cid,
            ttag: r2t.ttag,
            next_bytes: r2t.offset_bytes,
            left_bytes: r2t.length_bytes,
            pdu_max_bytes: agreed.maxh2cdata_bytes.max(1),
        }
    }
}

impl Iterator for H2cPlan {
    type Item = H2cData;

    fn next(&mut self) -> Option<H2cData> {
        if self.left_bytes == 0 {
            return None;
        }
        let length_bytes = self.left_bytes.min(self.pdu_max_bytes);
        let data = H2cData {
            cid: self.cid,
            ttag: self.ttag,
            offset_bytes: self.next_bytes,
            length_bytes,
            last: length_bytes == self.left_bytes,
        };
        self.next_bytes = self.next_bytes.saturating_add(length_bytes);
        self.left_bytes = self.left_bytes.saturating_sub(length_bytes);
        Some(data)
    }
}
