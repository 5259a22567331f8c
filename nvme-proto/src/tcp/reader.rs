//! Bytes to PDUs. Headers, digests and padding pass through [`PduReader`]; data does not: the
//! reader says how much of it is due, and its user moves it to where it belongs.
//!
//! ```
//! use capstan_nvme_proto::tcp::Role;
//! use capstan_nvme_proto::tcp::reader::{Event, Pdu, PduReader};
//! use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, IcResponse};
//! # use capstan_nvme_proto::tcp::setup::{Digests, IcRequest};
//! # use zerocopy::IntoBytes;
//! # let (hpda, digests) = (DataAlignment::DWORD, Digests::empty());
//! # let icreq = IcRequest { hpda, digests, maxr2t: 1 }.encode();
//! # let mut stream = icreq.as_bytes();
//! let mut reader = PduReader::controller(8192);
//! while !stream.is_empty() {
//!     let due = usize::try_from(reader.data_due_bytes()).unwrap_or(usize::MAX);
//!     if due > 0 {
//!         // From the stream, or from the socket straight into the command's buffer.
//!         let moved = due.min(stream.len());
//!         stream = &stream[moved..];
//!         reader.data_moved(moved);
//!     }
//!     let (used, event) = reader.read(stream)?;
//!     stream = &stream[used..];
//!     match event {
//!         Some(Event::Pdu(Pdu::IcReq(request))) => {
//!             let response = IcResponse {
//!                 cpda: DataAlignment::DWORD,
//!                 digests: request.digests,
//!                 maxh2cdata_bytes: 0x2_0000,
//!             };
//!             reader.agree(&Agreed::new(&request, &response));
//!         }
//!         Some(Event::Pdu(_command_or_data)) => {}
//!         Some(Event::DataEnd { .. }) => {}
//!         None => {}
//!     }
//! }
//! # Ok::<(), capstan_nvme_proto::tcp::fault::Fault>(())
//! ```
//!
//! Source: NVMe over TCP Transport 1.1, section 3.6.2. Of several faults of a header the one at the
//! lowest offset is reported. Two wait for what tells whether they are faults: a PDO is looked at
//! where PLEN has room for the header, and DDGSTF where HLEN, PDO and PLEN say that data follows or
//! that none does. Reserved fields and flags are not looked at.

mod bare_capsule;
mod lengths;

use lengths::{data_bytes, head_bytes};
use zerocopy::FromBytes;

use super::Role;
use super::c2h::C2hData;
use super::digest::{DIGEST_BYTES, crc32c};
use super::fault::{FatalErrorStatus, Fault};
use super::h2c::H2cData;
use super::pdu::{
    CapsuleCmd, CapsuleResp, CommonHeader, IcReq, IcResp, PduFlags, PduType, TermReq,
    TransferHeader,
};
use super::r2t::R2t;
use super::setup::{Agreed, Digests, IcRequest, IcResponse};
use crate::cqe::Cqe;
use crate::sqe::Sqe;

/// The largest header, and as much as any header with its digest.
const HEADER_MAX_BYTES: usize = 128;

/// What FLAGS should say of digests.
const AGREED_DIGESTS: &str = "the digests that were agreed on";

/// The header of a PDU, understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pdu {
    /// To a controller, first of all. [`PduReader::agree`] has to follow before anything is read.
    IcReq(IcRequest),
    /// To a host, first of all. [`PduReader::agree`] has to follow before anything is read.
    IcResp(IcResponse),
    /// To a controller: a command, with so many bytes of in-capsule data behind it.
    CapsuleCmd {
        /// The command.
        sqe: Sqe,
        /// Bytes of data in the capsule.
        in_capsule_bytes: u32,
    },
    /// To a host: a response.
    CapsuleResp(Cqe),
    /// To a controller: data of a command, for [`super::r2t::R2tLedger::receive`].
    H2cData(H2cData),
    /// To a host: data of a command, for [`super::c2h::C2hWindow::receive`].
    C2hData(C2hData),
    /// To a host: data is asked for, for [`super::r2t::R2tWindow::receive`].
    R2t(R2t),
    /// The peer ends the connection. Nothing is read after it.
    TermReq {
        /// FES.
        status: FatalErrorStatus,
        /// FEI.
        information: u32,
    },
}

/// What was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A header. [`PduReader::data_due_bytes`] says how much data follows.
    Pdu(Pdu),
    /// All data of the PDU has been moved.
    DataEnd {
        /// The data digest that came, for comparing with the CRC32C of the data. Where it differs
        /// only the command fails, with Transient Transport Error.
        digest: Option<u32>,
    },
}

/// How far the setup of the connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// ICReq, or the ICResp to the request, is due.
    Setup(Option<IcRequest>),
    /// It was read; [`PduReader::agree`] is due.
    Agreeing,
    /// Capsules and data.
    Open(Agreed),
    /// A TermReq was read, or a fault found: nothing counts any more.
    Ended,
}

/// Where in a PDU the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// In the common header.
    Common,
    /// In the rest of the header, its digest and the padding behind it, `head_bytes` in all.
    Head {
        common: CommonHeader,
        head_bytes: usize,
    },
    /// In the data.
    Data { left_bytes: u32, digest: bool },
    /// Behind the data, in its digest.
    DataDigest,
}

/// Reads what one side of a connection is sent.
///
/// It keeps nothing but one header (128 bytes) and can be left and taken up at any byte.
#[derive(Clone, Debug)]
pub struct PduReader {
    role: Role,
    stage: Stage,
    in_capsule_max_bytes: u32,
    at: At,
    /// Bytes of the current head or data digest that have been read.
    have_bytes: usize,
    header: [u8; HEADER_MAX_BYTES],
    /// Bytes of `header` that are those of the last header.
    header_bytes: usize,
}

impl PduReader {
    /// Of a controller's connection, whose capsules may bring `in_capsule_max_bytes` of data.
    #[must_use]
    pub const fn controller(in_capsule_max_bytes: u32) -> Self {
        Self::new(Role::Controller, None, in_capsule_max_bytes)
    }

    /// Of the connection of a host that has sent `request`.
    #[must_use]
    pub const fn host(request: IcRequest) -> Self {
        Self::new(Role::Host, Some(request), 0)
    }

    const fn new(role: Role, request: Option<IcRequest>, in_capsule_max_bytes: u32) -> Self {
        Self {
            role,
            stage: Stage::Setup(request),
            in_capsule_max_bytes,
            at: At::Common,
            have_bytes: 0,
            header: [0; HEADER_MAX_BYTES],
            header_bytes: 0,
        }
    }

    /// What ICReq and ICResp agree on, which holds from the next PDU on.
    pub fn agree(&mut self, agreed: &Agreed) {
        if self.stage == Stage::Agreeing {
            self.stage = Stage::Open(*agreed);
        }
    }

    /// Another limit of in-capsule data, from the next capsule on: that of the queue which Connect
    /// has named.
    pub const fn allow_in_capsule(&mut self, max_bytes: u32) {
        self.in_capsule_max_bytes = max_bytes;
    }

    /// Bytes of data that come next. They do not go through [`PduReader::read`], which takes
    /// nothing while there are any.
    #[must_use]
    pub const fn data_due_bytes(&self) -> u32 {
        match self.at {
            At::Data { left_bytes, .. } => left_bytes,
            At::Common | At::Head { .. } | At::DataDigest => 0,
        }
    }

    /// So many bytes of the data that is due were taken from the stream. More than are due count
    /// as all of them.
    pub fn data_moved(&mut self, moved_bytes: usize) {
        if let At::Data { left_bytes, .. } = &mut self.at {
            let moved_bytes = u32::try_from(moved_bytes).unwrap_or(u32::MAX);
            *left_bytes = left_bytes.saturating_sub(moved_bytes);
        }
    }

    /// Bytes that the next event needs at least, data not counted: a header is known after 8, and
    /// then in full.
    #[must_use]
    pub const fn wanted_bytes(&self) -> usize {
        let whole = match self.at {
            At::Common => CommonHeader::SIZE_BYTES,
            At::Head { head_bytes, .. } => head_bytes,
            At::Data {
                left_bytes: 0,
                digest: false,
            } => 0,
            At::Data { .. } | At::DataDigest => DIGEST_BYTES,
        };
        whole.saturating_sub(self.have_bytes)
    }

    /// Whether no byte of a PDU has been read that is not complete.
    #[must_use]
    pub const fn is_between_pdus(&self) -> bool {
        matches!(self.at, At::Common) && self.have_bytes == 0
    }

    /// What has been read of a PDU whose header is not complete.
    #[must_use]
    pub fn begun(&self) -> &[u8] {
        let is_header = matches!(self.at, At::Common | At::Head { .. });
        let read = self.header.get(..self.have_bytes).filter(|_| is_header);
        read.unwrap_or_default()
    }

    /// The last header, as much of it as was read and looked at: what a TermReq about a fault in it
    /// brings.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.header_bytes).unwrap_or_default()
    }

    /// Reads from `input`, which goes on where it was left, up to the next event. Gives how many
    /// bytes it took and the event, or `None` when it needs more (or data is due first).
    ///
    /// # Errors
    /// The fault, for [`Fault::term_req`]. After it, as after a TermReq, all input is taken and
    /// dropped.
    pub fn read(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), Fault> {
        let mut used = 0;
        loop {
            if self.stage == Stage::Ended {
                return Ok((input.len(), None));
            }
            if let At::Data { left_bytes, digest } = self.at {
                if left_bytes > 0 {
                    return Ok((used, None));
                }
                self.have_bytes = 0;
                if !digest {
                    self.at = At::Common;
                    return Ok((used, Some(Event::DataEnd { digest: None })));
                }
                self.at = At::DataDigest;
            }
            let rest = input.get(used..).unwrap_or_default();
            if let Some((bytes, pdu)) = self.bare_capsule(rest) {
                return Ok((used.saturating_add(bytes), Some(Event::Pdu(pdu))));
            }
            let wanted = self.wanted_bytes();
            let taken = wanted.min(rest.len());
            self.keep(rest.get(..taken).unwrap_or_default());
            used = used.saturating_add(taken);
            if taken < wanted {
                return Ok((used, None));
            }
            match self.advance() {
                Ok(None) => {}
                Ok(Some(event)) => return Ok((used, Some(event))),
                Err(fault) => {
                    self.stage = Stage::Ended;
                    return Err(fault);
                }
            }
        }
    }

    /// Padding, which is behind the header and its digest, is counted and not kept.
    fn keep(&mut self, bytes: &[u8]) {
        let places = self.header.get_mut(self.have_bytes..).unwrap_or_default();
        let kept = bytes.len().min(places.len());
        if let (Some(places), Some(bytes)) = (places.get_mut(..kept), bytes.get(..kept)) {
            places.copy_from_slice(bytes);
        }
        self.have_bytes = self.have_bytes.saturating_add(bytes.len());
    }

    /// What was wanted is there.
    fn advance(&mut self) -> Result<Option<Event>, Fault> {
        match self.at {
            At::Common => {
                let common = header_as::<CommonHeader>(&self.header);
                self.header_bytes = CommonHeader::SIZE_BYTES;
                let head_bytes = self.check_common(&common)?;
                self.at = At::Head { common, head_bytes };
                Ok(None)
            }
            At::Head { common, .. } => {
                self.header_bytes = usize::from(common.hlen);
                let pdu = self.understand(&common)?;
                let flags = PduFlags::from_bits_retain(common.flags);
                self.have_bytes = 0;
                self.at = match data_bytes(&common, self.digests(common.pdu_type)) {
                    0 => At::Common,
                    left_bytes => At::Data {
                        left_bytes,
                        digest: flags.contains(PduFlags::DATA_DIGEST),
                    },
                };
                Ok(Some(Event::Pdu(pdu)))
            }
            At::DataDigest => {
                let digest = header_as::<zerocopy::little_endian::U32>(&self.header);
                (self.have_bytes, self.header_bytes) = (0, 0);
                self.at = At::Common;
                Ok(Some(Event::DataEnd {
                    digest: Some(digest.get()),
                }))
            }
            At::Data { .. } => Ok(None),
        }
    }

    /// The digests that a PDU of this type has.
    fn digests(&self, pdu_type: PduType) -> Digests {
        match self.stage {
            Stage::Open(agreed) if pdu_type.has_header_digest() => agreed.digests,
            Stage::Open(_) | Stage::Setup(_) | Stage::Agreeing | Stage::Ended => Digests::empty(),
        }
    }

    /// Checks the common header, field by field, and gives the bytes up to the data (or to the end,
    /// where there is none).
    fn check_common(&self, common: &CommonHeader) -> Result<usize, Fault> {
        let pdu = common.pdu_type;
        let invalid = |field, offset, value, expected| {
            Err(Fault::header_field(pdu, field, offset, value, expected))
        };
        let hlen = self.check_type(pdu)?;
        let plen = common.plen.get();
        if is_term_req(pdu) {
            check_term_req(common)?;
        }
        let digests = self.digests(pdu);
        let flags = PduFlags::from_bits_retain(common.flags);
        if pdu.has_header_digest()
            && flags.contains(PduFlags::HEADER_DIGEST) != digests.contains(Digests::HEADER)
        {
            return invalid("FLAGS", 1, u32::from(common.flags), AGREED_DIGESTS);
        }
        if pdu == PduType::C2H_DATA
            && flags.contains(PduFlags::SUCCESS)
            && !flags.contains(PduFlags::LAST)
        {
            let expected = "LAST_PDU where SUCCESS is set";
            return invalid("FLAGS", 1, u32::from(common.flags), expected);
        }
        if common.hlen != hlen {
            let expected = "the bytes of this PDU's header";
            return invalid("HLEN", 2, u32::from(common.hlen), expected);
        }
        let head_bytes = head_bytes(common, digests);
        if !pdu.has_data() {
            if plen != head_bytes && !is_term_req(pdu) {
                return invalid("PLEN", 4, plen, "a header and no data");
            }
            return Ok(usize::try_from(head_bytes).unwrap_or(usize::MAX));
        }
        if plen < head_bytes {
            return invalid("PLEN", 4, plen, "at least the bytes of the header");
        }
        self.check_data_place(common, head_bytes, digests)
    }

    /// PDO, PLEN and the data digest of a PDU that can have data and is not shorter than its
    /// header.
    fn check_data_place(
        &self,
        common: &CommonHeader,
        head_bytes: u32,
        digests: Digests,
    ) -> Result<usize, Fault> {
        let pdu = common.pdu_type;
        let plen = common.plen.get();
        let data_bytes = data_bytes(common, digests);
        let has_digest = PduFlags::from_bits_retain(common.flags).contains(PduFlags::DATA_DIGEST);
        let wrong_digest = || {
            let flags = u32::from(common.flags);
            Err(Fault::header_field(pdu, "FLAGS", 1, flags, AGREED_DIGESTS))
        };
        if plen == head_bytes {
            if has_digest {
                return wrong_digest();
            }
            if pdu == PduType::CAPSULE_CMD {
                return Ok(usize::try_from(head_bytes).unwrap_or(usize::MAX));
            }
            let expected = "a header and at least a byte of data";
            return Err(Fault::header_field(pdu, "PLEN", 4, plen, expected));
        }
        let alignment = match self.stage {
            Stage::Open(agreed) => agreed.alignment_from(pdu.sender()).bytes(),
            Stage::Setup(_) | Stage::Agreeing | Stage::Ended => 1,
        };
        let pdo = u32::from(common.pdo);
        if pdo < head_bytes || common.pdo.checked_rem(alignment) != Some(0) {
            let expected = "a multiple of the alignment that was agreed on, behind the header";
            return Err(Fault::header_field(pdu, "PDO", 3, pdo, expected));
        }
        if has_digest != digests.contains(Digests::DATA) && plen > pdo {
            return wrong_digest();
        }
        let (most_bytes, expected) = if pdu == PduType::CAPSULE_CMD {
            (
                self.in_capsule_max_bytes,
                "no more data than the capsules of this queue have room for",
            )
        } else {
            (u32::MAX, "a PDU that ends behind its data and digest")
        };
        if data_bytes == 0 || data_bytes > most_bytes {
            return Err(Fault::header_field(pdu, "PLEN", 4, plen, expected));
        }
        Ok(usize::from(common.pdo))
    }

    /// Whether a PDU of this type may come now; gives its HLEN.
    fn check_type(&self, pdu: PduType) -> Result<u8, Fault> {
        let value = u32::from(pdu.0);
        let Some(hlen) = pdu.hlen().filter(|_| pdu.sender() != self.role) else {
            let expected = match self.role {
                Role::Host => "a PDU that a controller sends",
                Role::Controller => "a PDU that a host sends",
            };
            return Err(Fault::header_field(pdu, "PDU-Type", 0, value, expected));
        };
        let is_setup = matches!(pdu, PduType::IC_REQ | PduType::IC_RESP);
        let expected = match self.stage {
            Stage::Setup(_) if is_setup => return Ok(hlen),
            // A peer may end what has not begun.
            Stage::Setup(_) if !pdu.has_header_digest() => return Ok(hlen),
            Stage::Open(_) if !is_setup => return Ok(hlen),
            Stage::Setup(None) => "00h, ICReq",
            Stage::Setup(Some(_)) => "01h, ICResp",
            Stage::Agreeing => "nothing before ICResp is sent",
            Stage::Open(_) | Stage::Ended => "a capsule or data, as the connection is set up",
        };
        Err(Fault::sequence(pdu, "PDU-Type", value, expected))
    }

    /// The whole header is there.
    fn understand(&mut self, common: &CommonHeader) -> Result<Pdu, Fault> {
        let pdu = common.pdu_type;
        let digests = self.digests(pdu);
        if digests.contains(Digests::HEADER) {
            let (header, rest) = self
                .header
                .split_at_checked(usize::from(common.hlen))
                .unwrap_or_default();
            let received = rest.first_chunk().copied().map(u32::from_le_bytes);
            if received != Some(crc32c(header)) {
                return Err(Fault::header_digest(pdu, received.unwrap_or_default()));
            }
        }
        match pdu {
            PduType::IC_REQ => {
                let request = IcRequest::parse(&header_as::<IcReq>(&self.header))?;
                self.stage = Stage::Agreeing;
                Ok(Pdu::IcReq(request))
            }
            PduType::IC_RESP => {
                let Stage::Setup(Some(request)) = self.stage else {
                    return Err(Fault::sequence(pdu, "PDU-Type", 1, "another PDU"));
                };
                let response = IcResponse::parse(&header_as::<IcResp>(&self.header), &request)?;
                self.stage = Stage::Agreeing;
                Ok(Pdu::IcResp(response))
            }
            PduType::CAPSULE_CMD => Ok(Pdu::CapsuleCmd {
                sqe: header_as::<CapsuleCmd>(&self.header).sqe,
                in_capsule_bytes: data_bytes(common, digests),
            }),
            PduType::CAPSULE_RESP => {
                Ok(Pdu::CapsuleResp(header_as::<CapsuleResp>(&self.header).cqe))
            }
            PduType::H2C_DATA | PduType::C2H_DATA | PduType::R2T => self.transfer(common, digests),
            _ => {
                let term = header_as::<TermReq>(&self.header);
                self.stage = Stage::Ended;
                Ok(Pdu::TermReq {
                    status: FatalErrorStatus(term.fes.get()),
                    information: term.fei.get(),
                })
            }
        }
    }

    /// H2CData, C2HData and R2T.
    fn transfer(&self, common: &CommonHeader, digests: Digests) -> Result<Pdu, Fault> {
        let pdu = common.pdu_type;
        let header = header_as::<TransferHeader>(&self.header);
        let length_bytes = header.length_bytes.get();
        let (cid, ttag) = (header.cccid.get(), header.ttag.get());
        let offset_bytes = header.offset_bytes.get();
        if pdu == PduType::R2T {
            if length_bytes == 0 {
                let expected = "at least a byte";
                return Err(Fault::header_field(pdu, "R2TL", 16, 0, expected));
            }
            return Ok(Pdu::R2t(R2t {
                cid,
                ttag,
                offset_bytes,
                length_bytes,
            }));
        }
        if length_bytes != data_bytes(common, digests) {
            let expected = "the bytes of data that PLEN leaves";
            return Err(Fault::header_field(
                pdu,
                "DATAL",
                16,
                length_bytes,
                expected,
            ));
        }
        let flags = PduFlags::from_bits_retain(common.flags);
        let last = flags.contains(PduFlags::LAST);
        if pdu == PduType::C2H_DATA {
            return Ok(Pdu::C2hData(C2hData {
                cid,
                offset_bytes,
                length_bytes,
                last,
                success: flags.contains(PduFlags::SUCCESS),
            }));
        }
        match self.stage {
            Stage::Open(agreed) if length_bytes > agreed.maxh2cdata_bytes => Err(Fault::limit(
                pdu,
                "DATAL",
                length_bytes,
                "at most MAXH2CDATA",
            )),
            Stage::Open(_) | Stage::Setup(_) | Stage::Agreeing | Stage::Ended => {
                Ok(Pdu::H2cData(H2cData {
                    cid,
                    ttag,
                    offset_bytes,
                    length_bytes,
                    last,
                }))
            }
        }
    }
}

fn is_term_req(pdu: PduType) -> bool {
    matches!(pdu, PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ)
}

/// A TermReq is not answered with another, whatever is wrong with it.
fn check_term_req(common: &CommonHeader) -> Result<(), Fault> {
    let pdu = common.pdu_type;
    let plen = common.plen.get();
    let length = usize::try_from(plen).unwrap_or(usize::MAX);
    if usize::from(common.hlen) != size_of::<TermReq>() {
        let hlen = u32::from(common.hlen);
        return Err(Fault::of_term_req(pdu, "HLEN", hlen, "18h"));
    }
    if length < size_of::<TermReq>() || length > TermReq::PLEN_MAX_BYTES {
        return Err(Fault::of_term_req(pdu, "PLEN", plen, "18h to 98h"));
    }
    Ok(())
}

/// The structure at the start of the header, every one of which is smaller than the buffer.
fn header_as<T: FromBytes>(header: &[u8; HEADER_MAX_BYTES]) -> T {
    const { assert!(size_of::<T>() <= HEADER_MAX_BYTES) };
    match T::read_from_prefix(header) {
        Ok((value, _rest)) => value,
        Err(_) => T::new_zeroed(),
    }
}
