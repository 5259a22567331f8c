//! Data from the controller to the host.
//!
//! Source: NVMe over TCP Transport 1.1 (C2HData, section 3.6.2).

use super::fault::Fault;
use super::pdu::PduType;

/// What a C2HData PDU says of its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct C2hData {
    /// CCCID: the command.
    pub cid: u16,
    /// DATAO: bytes from the start of the command's data.
    pub offset_bytes: u32,
    /// DATAL: bytes, at least 1.
    pub length_bytes: u32,
    /// LAST_PDU: no data of this command follows.
    pub last: bool,
    /// SUCCESS: the command has succeeded, and no response capsule follows. Only with LAST_PDU,
    /// and where Connect disabled SQ flow control, as it is the response that brings SQHD.
    pub success: bool,
}

/// The C2HData PDUs of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct C2hPlan {
    cid: u16,
    next_bytes: u32,
    left_bytes: u32,
    pdu_max_bytes: u32,
    success: bool,
}

impl C2hPlan {
    /// `total_bytes` for command `cid`, in PDUs of at most `pdu_max_bytes` (0 counts as 1).
    /// `success` puts SUCCESS on the last, in place of a response capsule: for a command that has
    /// succeeded with dword 0 and 1 of its completion zero, where SQ flow control is disabled.
    #[must_use]
    pub fn new(cid: u16, total_bytes: u32, pdu_max_bytes: u32, success: bool) -> Self {
        Self {
            cid,
            next_bytes: 0,
            left_bytes: total_bytes,
            pdu_max_bytes: pdu_max_bytes.max(1),
            success,
        }
    }
}

impl Iterator for C2hPlan {
    type Item = C2hData;

    fn next(&mut self) -> Option<C2hData> {
        if self.left_bytes == 0 {
            return None;
        }
        let length_bytes = self.left_bytes.min(self.pdu_max_bytes);
        let last = length_bytes == self.left_bytes;
        let data = C2hData {
            cid: self.cid,
            offset_bytes: self.next_bytes,
            length_bytes,
            last,
            success: last && self.success,
        };
        self.next_bytes = self.next_bytes.saturating_add(length_bytes);
        self.left_bytes = self.left_bytes.saturating_sub(length_bytes);
        Some(data)
    }
}

/// The host's side of one command's transfer from the controller: what is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct C2hWindow {
    total_bytes: u32,
    next_bytes: u32,
}

impl C2hWindow {
    /// Of a command that is to bring `total_bytes`; 0 for one that brings none.
    #[must_use]
    pub const fn new(total_bytes: u32) -> Self {
        Self {
            total_bytes,
            next_bytes: 0,
        }
    }

    /// Bytes of the whole transfer.
    #[must_use]
    pub const fn total_bytes(&self) -> u32 {
        self.total_bytes
    }

    /// Looks whether `data` is what is due: each byte once and in order, and LAST_PDU on the last.
    ///
    /// # Errors
    /// Data Transfer Out of Range beyond the command's data, PDU Sequence Error for data in
    /// another order and for a LAST_PDU too early or missing.
    pub fn receive(&mut self, data: &C2hData) -> Result<(), Fault> {
        let pdu = PduType::C2H_DATA;
        let end_bytes = data
            .offset_bytes
            .checked_add(data.length_bytes)
            .filter(|end| *end <= self.total_bytes);
        let Some(end_bytes) = end_bytes else {
            return Err(Fault::out_of_range(
                pdu,
                "DATAL",
                data.length_bytes,
                "data that the command asked for",
            ));
        };
        if data.offset_bytes != self.next_bytes {
            return Err(Fault::sequence(
                pdu,
                "DATAO",
                data.offset_bytes,
                "the byte behind the data that came before",
            ));
        }
        if (end_bytes == self.total_bytes) != data.last {
            return Err(Fault::sequence(
                pdu,
                "LAST_PDU",
                u32::from(data.last),
                "1 with the last byte that the command asked for, and 0 before",
            ));
        }
        self.next_bytes = end_bytes;
        Ok(())
    }

    /// Whether all data was announced. A command that succeeds before has kept some back: a host
    /// must not take its buffer for filled.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.next_bytes >= self.total_bytes
    }
}
