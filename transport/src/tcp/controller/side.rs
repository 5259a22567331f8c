//! What a controller does with the PDUs that come, and the R2Ts it sends.

use capstan_memory::Buffer;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::fault::Fault;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::pdu::PduType;
use capstan_nvme_proto::tcp::r2t::R2tLedger;
use capstan_nvme_proto::tcp::reader::Pdu;
use capstan_nvme_proto::tcp::setup::{Agreed, Digests, IcRequest, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use zerocopy::IntoBytes;

use super::super::limits::{DIRECT_MIN_BYTES, HELD_MIN_BYTES, R2TS_MAX};
use super::super::outgoing::{Mark, crc32c};
use super::super::stream::{Side, SocketPlace, Stream, is_intact};
use super::{ControllerSide, Landing, R2ts, Slot};
use crate::data::{CapsuleData, Landed, Receive};
use crate::queue::{Capsule, EndReason, Event, Pulled, Tag};

impl ControllerSide {
    pub(super) fn slot(&mut self, Tag(slot): Tag) -> &mut Slot {
        let slot = usize::from(slot);
        if slot >= self.slots.len() {
            self.slots
                .resize_with(slot.saturating_add(1), Slot::default);
        }
        &mut self.slots[slot]
    }

    /// The source of a push has left.
    pub(super) fn release(&mut self, slot: u16) {
        let place = self.slots.get_mut(usize::from(slot));
        if let Some(buffer) = place.and_then(|place| place.source.take()) {
            self.events.push_back(Event::Returned(Tag(slot), buffer));
        }
    }

    /// Sends the R2Ts of a pull that may be sent now. The pull waits where the commands of the
    /// queue have as many outstanding as are allowed.
    pub(super) fn ask(&mut self, stream: &mut Stream, writer: &PduWriter, slot: u16) {
        let place = self.slots.get_mut(usize::from(slot));
        let Some(pull) = place.and_then(|place| place.pull.as_mut()) else {
            return;
        };
        let r2ts = self.r2ts.get_or_insert_with(|| {
            Box::new(R2ts {
                ledger: R2tLedger::new(),
                slots: [0; R2TS_MAX],
            })
        });
        while let Some(r2t) = r2ts.ledger.ask(&mut pull.plan) {
            if let Some(place) = r2ts.slots.get_mut(usize::from(r2t.ttag)) {
                *place = slot;
            }
            stream.out.stage(writer.r2t(&r2t).as_bytes());
        }
        if pull.plan.has_r2t() {
            self.waiting.push_back(slot);
        }
    }

    /// An R2T is answered: sends R2Ts of waiting pulls, oldest first. A pull is queued at most
    /// once, and leaves the queue before it can complete.
    fn ask_waiting(&mut self, stream: &mut Stream, writer: &PduWriter) {
        let is_full = |r2ts: &R2ts| r2ts.ledger.outstanding() == R2TS_MAX;
        while !self.r2ts.as_deref().is_none_or(is_full)
            && let Some(next) = self.waiting.pop_front()
        {
            self.ask(stream, writer, next);
        }
    }

    pub(super) fn place(&mut self, due: u32) -> Option<SocketPlace> {
        let Landing::Pull { slot, data } = &self.landing else {
            return None;
        };
        let at = data.offset_bytes.saturating_add(self.landed_bytes);
        let pull = self.slots.get_mut(usize::from(*slot))?.pull.as_mut()?;
        SocketPlace::of(&mut pull.sink, at, due)
    }

    pub(super) fn moved(&mut self, bytes: usize) {
        if let Landing::Pull { slot, .. } = self.landing
            && let Some(place) = self.slots.get_mut(usize::from(slot))
            && let Some(pull) = &mut place.pull
        {
            pull.arrived_bytes += bytes as u64;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.landed_bytes = self.landed_bytes.saturating_add(bytes);
    }

    fn ic_req(&mut self, stream: &mut Stream, request: &IcRequest) {
        let response = IcResponse {
            cpda: self.settings.cpda,
            digests: self.settings.digests & request.digests,
            maxh2cdata_bytes: self.settings.maxh2cdata_bytes,
        };
        let agreed = Agreed::new(request, &response);
        stream.out.stage(response.encode().as_bytes());
        stream.reader.agree(&agreed);
        self.agreed = Some((agreed, PduWriter::new(Role::Controller, &agreed)));
    }

    /// As [`ControllerQueue::holds`](super::ControllerQueue::holds).
    #[inline]
    pub(super) fn holds(&self, len_bytes: usize) -> bool {
        let has_digest = |agreed: &Agreed| agreed.digests.contains(Digests::DATA);
        len_bytes >= HELD_MIN_BYTES
            && !(self.agreed.as_ref()).is_some_and(|(agreed, _)| has_digest(agreed))
    }

    /// Responses that have left make room for commands.
    pub(super) fn responses_left(&mut self, left: Mark) {
        while self.leaving.front().is_some_and(|end| *end <= left) {
            self.leaving.pop_front();
            self.outstanding = self.outstanding.saturating_sub(1);
        }
    }

    /// Parts of data that have left: their buffers come back.
    pub(super) fn parts_left(&mut self, left: Mark) {
        while self.parts.front().is_some_and(|(end, ..)| *end <= left)
            && let Some((_, tag, source)) = self.parts.pop_front()
        {
            self.events.push_back(Event::Returned(tag, source));
        }
    }

    fn capsule(&mut self, stream: &mut Stream, sqe: Sqe, bytes: u32) -> Result<(), Fault> {
        let entries = self.connected.map_or(1, |settled| settled.entries);
        let outstanding = self.outstanding.saturating_add(1);
        if outstanding > u32::from(entries) {
            return Err(Fault::sequence(
                PduType::CAPSULE_CMD,
                "outstanding commands",
                outstanding,
                "no more than the queue has entries (one before Connect is answered), with those \
                 whose response was not read",
            ));
        }
        self.outstanding = outstanding;
        stream.set_up();
        if bytes == 0 {
            self.capsule_whole(sqe, CapsuleData::None, true);
            return Ok(());
        }
        let fits = |buffer: &mut Buffer| buffer.len_bytes() >= bytes;
        let data = match self.free.pop_if(fits) {
            Some(buffer) => CapsuleData::Landed(Landed {
                buffer,
                offset_bytes: 0,
                len_bytes: bytes,
                receive: Receive(None),
            }),
            None => CapsuleData::Copied(vec![0; bytes as usize].into_boxed_slice()),
        };
        self.landed_bytes = 0;
        self.landing = Landing::Capsule(sqe, data);
        Ok(())
    }

    fn capsule_whole(&mut self, sqe: Sqe, data: CapsuleData, intact: bool) {
        let capsule = Capsule { sqe, data, intact };
        self.events.push_back(Event::Capsule(capsule));
    }

    fn h2c_data(&mut self, data: H2cData) -> Result<(), Fault> {
        let ttag = usize::from(data.ttag);
        let Some(r2ts) = &mut self.r2ts else {
            // No R2T was ever sent.
            return R2tLedger::<0>::new().receive(&data);
        };
        r2ts.ledger.receive(&data)?;
        let slot = r2ts.slots.get(ttag).copied().unwrap_or_default();
        self.landed_bytes = 0;
        self.landing = Landing::Pull { slot, data };
        Ok(())
    }

    /// All data of an H2CData PDU has come.
    fn pulled(&mut self, stream: &mut Stream, slot: u16, data: &H2cData, digest: Option<u32>) {
        let place = self.slots.get_mut(usize::from(slot));
        let Some(mut pull) = place.and_then(|place| place.pull.take()) else {
            return;
        };
        pull.intact &= is_intact(&pull.sink, data.offset_bytes, data.length_bytes, digest);
        let waited = pull.plan.has_r2t();
        pull.plan.landed(data);
        let Some((_, writer)) = self.agreed else {
            return;
        };
        if pull.plan.is_complete() {
            self.pulls = self.pulls.saturating_sub(1);
            if pull.plan.total_bytes() >= DIRECT_MIN_BYTES {
                self.large_pulls = self.large_pulls.saturating_sub(1);
            }
            let pulled = Pulled {
                tag: Tag(slot),
                sink: pull.sink,
                intact: pull.intact,
            };
            self.events.push_back(Event::Pulled(pulled));
        } else {
            // A pull that waits already has an R2T to send, without this answer.
            if data.last && pull.plan.has_r2t() && !waited {
                self.waiting.push_back(slot);
            }
            self.slot(Tag(slot)).pull = Some(pull);
        }
        if data.last {
            self.ask_waiting(stream, &writer);
        }
    }
}

impl Side for ControllerSide {
    fn pdu(&mut self, stream: &mut Stream, pdu: Pdu) -> Result<(), Fault> {
        match pdu {
            Pdu::IcReq(request) => self.ic_req(stream, &request),
            Pdu::CapsuleCmd {
                sqe,
                in_capsule_bytes,
            } => self.capsule(stream, sqe, in_capsule_bytes)?,
            Pdu::H2cData(data) => self.h2c_data(data)?,
            // The reader takes nothing else from a host, and ends with a TermReq.
            Pdu::IcResp(_)
            | Pdu::CapsuleResp(_)
            | Pdu::C2hData(_)
            | Pdu::R2t(_)
            | Pdu::TermReq { .. } => {}
        }
        Ok(())
    }

    fn land(&mut self, bytes: &[u8]) {
        let landed = self.landed_bytes as usize;
        match &mut self.landing {
            Landing::None => {}
            Landing::Capsule(_, CapsuleData::Copied(to)) => {
                let end = landed.saturating_add(bytes.len());
                if let Some(to) = to.get_mut(landed..end) {
                    to.copy_from_slice(bytes);
                }
            }
            Landing::Capsule(_, CapsuleData::Landed(to)) => to.buffer.copy_from(landed, bytes),
            Landing::Capsule(_, CapsuleData::None | CapsuleData::InPlace(_)) => {}
            Landing::Pull { slot, data } => {
                let at = (data.offset_bytes as usize).saturating_add(landed);
                let place = self.slots.get_mut(usize::from(*slot));
                if let Some(pull) = place.and_then(|place| place.pull.as_mut()) {
                    pull.sink.copy_from(at, bytes);
                }
            }
        }
        self.moved(bytes.len());
    }

    fn data_end(&mut self, stream: &mut Stream, digest: Option<u32>) -> Result<(), Fault> {
        match std::mem::replace(&mut self.landing, Landing::None) {
            Landing::None => {}
            Landing::Capsule(sqe, data) => {
                let intact = match &data {
                    CapsuleData::Copied(bytes) => digest.is_none_or(|d| crc32c(bytes) == d),
                    CapsuleData::Landed(landed) => {
                        is_intact(&landed.buffer, 0, landed.len_bytes, digest)
                    }
                    CapsuleData::None | CapsuleData::InPlace(_) => true,
                };
                self.capsule_whole(sqe, data, intact);
            }
            Landing::Pull { slot, data } => self.pulled(stream, slot, &data, digest),
        }
        Ok(())
    }

    fn ended(&mut self, reason: EndReason) {
        self.landing = Landing::None;
        self.free.clear();
        self.waiting.clear();
        self.leaving.clear();
        (self.pulls, self.large_pulls) = (0, 0);
        self.events.push_back(Event::Ended(reason));
        let parts = self.parts.drain(..);
        let copied = parts.map(|(_, tag, source)| Event::Returned(tag, source));
        self.events.extend(copied);
        for (slot, place) in (0..=u16::MAX).zip(&mut self.slots) {
            if let Some(pull) = place.pull.take() {
                self.events.push_back(Event::Returned(Tag(slot), pull.sink));
            }
        }
    }
}
