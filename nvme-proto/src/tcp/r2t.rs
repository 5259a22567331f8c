//! Data that a controller asks the host for: Ready to Transfer.
//!
//! The controller cuts a transfer into R2Ts ([`R2tPlan`]) and keeps what it has asked for
//! ([`R2tLedger`]). The host looks whether an R2T asks for what is due ([`R2tWindow`]) and answers
//! it ([`super::h2c::H2cPlan`]).
//!
//! Source: NVMe over TCP Transport 1.1 (R2T and H2CData, section 3.6.2).

use super::fault::Fault;
use super::h2c::{H2cData, H2cPlan};
use super::pdu::PduType;
use super::setup::Agreed;

/// A Ready to Transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct R2t {
    /// CCCID: the command whose data is asked for.
    pub cid: u16,
    /// TTAG: what the H2CData that answers it says.
    pub ttag: u16,
    /// R2TO: bytes from the start of the command's data.
    pub offset_bytes: u32,
    /// R2TL: bytes, at least 1.
    pub length_bytes: u32,
}

/// The controller's side of one command's transfer: what is still to be asked for, and what is
/// still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct R2tPlan {
    cid: u16,
    total_bytes: u32,
    r2t_max_bytes: u32,
    asked_bytes: u32,
    landed_bytes: u32,
    outstanding: u32,
    outstanding_max: u32,
}

impl R2tPlan {
    /// Of `total_bytes` for command `cid`, in R2Ts of at most `r2t_max_bytes` (0 counts as 1), of
    /// which no more than MAXR2T are outstanding.
    #[must_use]
    pub fn new(cid: u16, total_bytes: u32, r2t_max_bytes: u32, agreed: &Agreed) -> Self {
        Self {
            cid,
            total_bytes,
            r2t_max_bytes: r2t_max_bytes.max(1),
            asked_bytes: 0,
            landed_bytes: 0,
            outstanding: 0,
            outstanding_max: agreed.maxr2t.max(1),
        }
    }

    /// The command.
    #[must_use]
    pub const fn cid(&self) -> u16 {
        self.cid
    }

    /// Bytes of the whole transfer.
    #[must_use]
    pub const fn total_bytes(&self) -> u32 {
        self.total_bytes
    }

    /// The data of `data`, which [`R2tLedger::receive`] has accepted, has arrived.
    pub const fn landed(&mut self, data: &H2cData) {
        self.landed_bytes = self.landed_bytes.saturating_add(data.length_bytes);
        if data.last {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
    }

    /// Whether there is an R2T to send: not everything was asked for, and fewer than MAXR2T are
    /// outstanding.
    #[must_use]
    pub const fn has_r2t(&self) -> bool {
        self.asked_bytes < self.total_bytes && self.outstanding < self.outstanding_max
    }

    /// Whether all data has arrived.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.landed_bytes >= self.total_bytes
    }
}

/// What one R2T has asked for and has not come yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Outstanding {
    cid: u16,
    start_bytes: u32,
    next_bytes: u32,
    end_bytes: u32,
}

/// The R2Ts that a controller has outstanding on one connection: `R2TS` at most, over all commands
/// (up to 65,536). The TTAG is the place in it.
#[derive(Clone, Debug)]
pub struct R2tLedger<const R2TS: usize> {
    outstanding: [Option<Outstanding>; R2TS],
    free: [u16; R2TS],
    free_count: usize,
}

impl<const R2TS: usize> Default for R2tLedger<R2TS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const R2TS: usize> R2tLedger<R2TS> {
    /// Nothing outstanding.
    #[must_use]
    pub fn new() -> Self {
        const { assert!(R2TS <= 0x1_0000, "a TTAG has 16 bits") };
        let mut free = [0; R2TS];
        for (tag, place) in (0..=u16::MAX).zip(free.iter_mut().rev()) {
            *place = tag;
        }
        Self {
            outstanding: [None; R2TS],
            free,
            free_count: R2TS,
        }
    }

    /// The next R2T of `plan` to send. `None` when it has asked for everything, has MAXR2T
    /// outstanding, or the ledger is full.
    pub fn ask(&mut self, plan: &mut R2tPlan) -> Option<R2t> {
        if !plan.has_r2t() {
            return None;
        }
        let left_bytes = plan.total_bytes.saturating_sub(plan.asked_bytes);
        let place = self.free_count.checked_sub(1)?;
        let ttag = *self.free.get(place)?;
        let entry = self.outstanding.get_mut(usize::from(ttag))?;
        let length_bytes = left_bytes.min(plan.r2t_max_bytes);
        let start_bytes = plan.asked_bytes;
        let end_bytes = start_bytes.saturating_add(length_bytes);
        *entry = Some(Outstanding {
            cid: plan.cid,
            start_bytes,
            next_bytes: start_bytes,
            end_bytes,
        });
        self.free_count = place;
        plan.asked_bytes = end_bytes;
        plan.outstanding = plan.outstanding.saturating_add(1);
        Some(R2t {
            cid: plan.cid,
            ttag,
            offset_bytes: start_bytes,
            length_bytes,
        })
    }

    /// R2Ts that are outstanding.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        R2TS.saturating_sub(self.free_count)
    }

    /// Looks whether `data` is what is due: of one R2T each byte once and in order, and LAST_PDU
    /// on the last. R2Ts may be answered in any order.
    ///
    /// # Errors
    /// Invalid PDU Header Field for a TTAG or CCCID that is not outstanding, Data Transfer Out of
    /// Range for bytes the R2T did not ask for, PDU Sequence Error for data in another order and
    /// for a LAST_PDU too early or missing.
    pub fn receive(&mut self, data: &H2cData) -> Result<(), Fault> {
        let pdu = PduType::H2C_DATA;
        let place = self.outstanding.get_mut(usize::from(data.ttag));
        let Some((place, outstanding)) = place.and_then(|place| {
            let outstanding = *place.as_ref()?;
            Some((place, outstanding))
        }) else {
            let ttag = u32::from(data.ttag);
            return Err(Fault::header_field(
                pdu,
                "TTAG",
                10,
                ttag,
                "that of an R2T that is not answered yet",
            ));
        };
        if data.cid != outstanding.cid {
            return Err(Fault::unknown_command(pdu, data.cid));
        }
        let start_bytes = data.offset_bytes;
        let end_bytes = start_bytes
            .checked_add(data.length_bytes)
            .filter(|end| start_bytes >= outstanding.start_bytes && *end <= outstanding.end_bytes);
        let Some(end_bytes) = end_bytes else {
            return Err(Fault::out_of_range(
                pdu,
                "DATAO",
                start_bytes,
                "data that the R2T asked for",
            ));
        };
        if start_bytes != outstanding.next_bytes {
            return Err(Fault::sequence(
                pdu,
                "DATAO",
                start_bytes,
                "the byte behind the data that came before",
            ));
        }
        let complete = end_bytes == outstanding.end_bytes;
        if complete != data.last {
            return Err(Fault::sequence(
                pdu,
                "LAST_PDU",
                u32::from(data.last),
                "1 with the last byte that the R2T asked for, and 0 before",
            ));
        }
        if complete {
            *place = None;
            if let Some(slot) = self.free.get_mut(self.free_count) {
                *slot = data.ttag;
                self.free_count = self.free_count.saturating_add(1);
            }
        } else {
            *place = Some(Outstanding {
                next_bytes: end_bytes,
                ..outstanding
            });
        }
        Ok(())
    }
}

/// The host's side of one command's transfer to the controller: what R2Ts may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct R2tWindow {
    total_bytes: u32,
    asked_bytes: u32,
    outstanding: u32,
    outstanding_max: u32,
}

impl R2tWindow {
    /// Of a command with `total_bytes` of data; 0 for one that has none to send.
    #[must_use]
    pub const fn new(total_bytes: u32, agreed: &Agreed) -> Self {
        Self {
            total_bytes,
            asked_bytes: 0,
            outstanding: 0,
            outstanding_max: agreed.maxr2t,
        }
    }

    /// Bytes of the command's data.
    #[must_use]
    pub const fn total_bytes(&self) -> u32 {
        self.total_bytes
    }

    /// Bytes that were asked for, from the first on.
    #[must_use]
    pub const fn asked_bytes(&self) -> u32 {
        self.asked_bytes
    }

    /// Whether all data was asked for. A controller that says success before has not had it, as
    /// nothing else brings it data that is not in the capsule (section 3.6.2, R2T).
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.asked_bytes >= self.total_bytes
    }

    /// Looks whether `r2t` asks for what is due (each byte once and in order), and gives what
    /// answers it.
    ///
    /// # Errors
    /// Data Transfer Out of Range beyond the command's data, PDU Sequence Error in another order,
    /// R2T Limit Exceeded where more than MAXR2T are outstanding.
    pub fn receive(&mut self, r2t: &R2t, agreed: &Agreed) -> Result<H2cPlan, Fault> {
        let pdu = PduType::R2T;
        let end_bytes = r2t
            .offset_bytes
            .checked_add(r2t.length_bytes)
            .filter(|end| *end <= self.total_bytes);
        let Some(end_bytes) = end_bytes else {
            return Err(Fault::out_of_range(
                pdu,
                "R2TL",
                r2t.length_bytes,
                "data that the command has",
            ));
        };
        if r2t.offset_bytes != self.asked_bytes {
            return Err(Fault::sequence(
                pdu,
                "R2TO",
                r2t.offset_bytes,
                "the byte behind what was asked for before",
            ));
        }
        let outstanding = self.outstanding.saturating_add(1);
        if outstanding > self.outstanding_max {
            return Err(Fault::limit(
                pdu,
                "outstanding R2Ts",
                outstanding,
                "at most MAXR2T",
            ));
        }
        self.outstanding = outstanding;
        self.asked_bytes = end_bytes;
        Ok(H2cPlan::new(r2t, agreed))
    }

    /// An R2T is answered: to be called before the last byte of it can reach the controller,
    /// because the next R2T may be there at once.
    pub const fn answered(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}
