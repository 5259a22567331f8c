//! Byte streams made of choices.

use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32, U64};

use super::scene::Scene;
use crate::iwarp::wire::crc::crc32c;
use crate::iwarp::wire::ddp::{
    Control, Opcode, ReadRequest, TaggedHeader, UntaggedHeader, pad_bytes,
};

/// Bytes that decide; zeros when they are used up.
pub(super) struct Choices<'d>(pub(super) &'d [u8]);

impl Choices<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an even number of bytes is left.
    pub(super) fn is_even(&self) -> bool {
        self.0.len().is_multiple_of(2)
    }

    pub(super) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(super) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Mostly one of the interesting values, sometimes anything.
    fn pick(&mut self, values: &[u32]) -> u32 {
        let choice = self.byte();
        match values.get(usize::from(choice) % (values.len() + 1)) {
            Some(value) => *value,
            None => u32::from_be_bytes([choice, self.byte(), self.byte(), self.byte()]),
        }
    }
}

/// A peer's half of a connection: FPDUs, well-formed and not.
pub(super) struct Composer {
    /// STags and addresses that mean something to the other end.
    stags: Vec<u32>,
    addresses: Vec<u64>,
    crc: bool,
    send_msn: u32,
    read_msn: u32,
    mo: u32,
}

impl Composer {
    pub(super) fn new(scene: &Scene, crc: bool) -> Self {
        Self {
            stags: scene.stags.clone(),
            addresses: scene.addresses.clone(),
            crc,
            send_msn: 1,
            read_msn: 1,
            mo: 0,
        }
    }

    /// Adds the next FPDU, or anything at all, to `bytes`.
    pub(super) fn next(&mut self, choices: &mut Choices<'_>, bytes: &mut Vec<u8>) {
        let kind = choices.byte();
        if kind >= 0xf0 {
            let length = usize::from(kind & 0x0f) * 4;
            bytes.extend((0..length).map(|_| choices.byte()));
            return;
        }
        let last = !choices.byte().is_multiple_of(4);
        let length = match choices.byte() % 8 {
            0 => 0,
            1 => 700,
            2 => 6000,
            3 => choices.word() % 9500,
            4 => 40_000,
            n => u16::from(n) * 40 + u16::from(choices.byte()),
        };
        let opcode = Opcode(kind % 8);
        let stag = choices.pick(&self.stags);
        let at = self.addresses[usize::from(choices.byte()) % self.addresses.len()];
        let to = at
            .wrapping_add(u64::from(choices.word() % 9000))
            .wrapping_sub(500);
        let tagged = opcode == Opcode::RDMA_WRITE || opcode == Opcode::READ_RESPONSE;
        let odd = kind & 0x40 != 0 && choices.byte().is_multiple_of(16);
        let control = Control::new(tagged != odd, last, opcode);
        let start = bytes.len();
        let mut payload = 0_usize;
        if tagged {
            let to = if opcode == Opcode::READ_RESPONSE && !choices.byte().is_multiple_of(8) {
                u64::from(self.mo)
            } else {
                to
            };
            let header = TaggedHeader {
                ulpdu_length: U16::ZERO,
                control,
                stag: U32::new(stag),
                to: U64::new(to),
            };
            bytes.extend_from_slice(header.as_bytes());
            payload += usize::from(length);
        } else {
            let (qn, msn) = match opcode {
                Opcode::READ_REQUEST => (1, self.read_msn),
                Opcode::TERMINATE => (2, 1),
                _ => (0, self.send_msn),
            };
            let mo = self.mo;
            let header = UntaggedHeader {
                ulpdu_length: U16::ZERO,
                control,
                invalidate_stag: U32::new(stag),
                qn: U32::new(choices.pick(&[qn, qn, qn, qn, qn, qn, qn])),
                msn: U32::new(choices.pick(&[msn, msn, msn, msn, msn, msn, msn])),
                mo: U32::new(choices.pick(&[mo, mo, mo, 0, 0, 0, 0])),
            };
            bytes.extend_from_slice(header.as_bytes());
            if opcode == Opcode::READ_REQUEST {
                let request = ReadRequest {
                    sink_stag: U32::new(stag),
                    sink_to: U64::new(to),
                    length_bytes: U32::new(u32::from(length)),
                    source_stag: U32::new(choices.pick(&self.stags)),
                    source_to: U64::new(to),
                };
                bytes.extend_from_slice(request.as_bytes());
                self.read_msn += 1;
            } else if opcode == Opcode::TERMINATE {
                payload += usize::from(length % 60);
            } else {
                payload += usize::from(length);
                self.send_msn += u32::from(last);
            }
        }
        self.mo = if last || opcode == Opcode::READ_REQUEST {
            0
        } else {
            self.mo + u32::from(length)
        };
        bytes.resize(bytes.len() + payload, kind);
        let length = u16::try_from(bytes.len() - start - 2).unwrap_or(u16::MAX);
        bytes[start..start + 2].copy_from_slice(&length.to_be_bytes());
        bytes.resize(bytes.len() + pad_bytes(bytes.len() - start), 0);
        let value = if self.crc { crc32c(&bytes[start..]) } else { 0 };
        bytes.extend_from_slice(&value.to_le_bytes());
    }
}
