//! NVMe over TCP: what a host sends to a controller, and what a controller sends to a host.

use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hWindow;
use capstan_nvme_proto::tcp::command::CommandData;
use capstan_nvme_proto::tcp::fault::Fault;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::pdu::PduType;
use capstan_nvme_proto::tcp::r2t::{R2tLedger, R2tPlan, R2tWindow};
use capstan_nvme_proto::tcp::reader::{Event, Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcRequest, IcResponse};
use capstan_nvme_proto::transfer::DataTransfer;

/// In-capsule data that the controller takes.
const IN_CAPSULE_MAX_BYTES: u32 = 8192;
/// The least there may be, so that short inputs reach it.
const MAXH2CDATA_BYTES: u32 = 4096;
const COMMANDS: usize = 8;
const TRANSFER_MAX_BYTES: u32 = 16_384;

/// One end of a connection, behind its reader.
trait End {
    /// A header has come.
    fn pdu(&mut self, reader: &mut PduReader, pdu: &Pdu) -> Result<(), Fault>;
    /// All data of the last header has come.
    fn data_end(&mut self);
}

/// Bytes of a transfer that have come.
struct Landed(Vec<bool>);

impl Landed {
    fn new(bytes: u32) -> Self {
        Self(vec![false; usize::try_from(bytes).expect("usize")])
    }

    /// Each byte lies within the transfer and comes once.
    fn land(&mut self, offset_bytes: u32, length_bytes: u32) {
        let start = usize::try_from(offset_bytes).expect("usize");
        let end = start + usize::try_from(length_bytes).expect("usize");
        for byte in &mut self.0[start..end] {
            assert!(!*byte, "a byte came twice");
            *byte = true;
        }
    }

    fn all(&self) -> bool {
        self.0.iter().all(|byte| *byte)
    }
}

/// A controller that answers each command with data of the host's by R2Ts.
struct Controller {
    agreed: Option<Agreed>,
    ledger: R2tLedger<4>,
    commands: [Option<(R2tPlan, Landed)>; COMMANDS],
    landing: Option<H2cData>,
}

impl Controller {
    fn ask(&mut self) {
        for (plan, _) in self.commands.iter_mut().flatten() {
            while let Some(r2t) = self.ledger.ask(plan) {
                assert!(r2t.length_bytes > 0 && r2t.cid == plan.cid());
            }
        }
        assert!(self.ledger.outstanding() <= 4);
    }

    fn command_of(&mut self, cid: u16) -> &mut (R2tPlan, Landed) {
        self.commands
            .iter_mut()
            .flatten()
            .find(|(plan, _)| plan.cid() == cid)
            .expect("a command whose data was asked for")
    }
}

impl End for Controller {
    fn pdu(&mut self, reader: &mut PduReader, pdu: &Pdu) -> Result<(), Fault> {
        match pdu {
            Pdu::IcReq(request) => {
                let response = IcResponse {
                    cpda: request.hpda,
                    digests: request.digests,
                    maxh2cdata_bytes: MAXH2CDATA_BYTES,
                };
                let agreed = Agreed::new(request, &response);
                reader.agree(&agreed);
                self.agreed = Some(agreed);
            }
            Pdu::CapsuleCmd {
                sqe,
                in_capsule_bytes,
            } => {
                let agreed = self.agreed.as_ref().expect("ICReq comes first");
                assert!(*in_capsule_bytes <= IN_CAPSULE_MAX_BYTES);
                let sgl = sqe.sgl().unwrap_or(Sgl::EMPTY);
                let transfer = DataTransfer::HostToController {
                    bytes: u64::from(sgl.length_bytes()),
                };
                match CommandData::of(transfer, &sgl, *in_capsule_bytes) {
                    Ok(CommandData::InCapsule(range)) => {
                        assert!(range.end <= usize::try_from(*in_capsule_bytes).expect("usize"));
                    }
                    Ok(CommandData::Transport { length_bytes })
                        if length_bytes <= TRANSFER_MAX_BYTES =>
                    {
                        let cid = sqe.cid.get();
                        let outstanding = self.commands.iter().flatten();
                        let mut same = outstanding.filter(|(plan, _)| plan.cid() == cid);
                        if same.next().is_none() {
                            let free = self.commands.iter_mut().find(|slot| slot.is_none());
                            if let Some(slot) = free {
                                let plan = R2tPlan::new(cid, length_bytes, 5000, agreed);
                                *slot = Some((plan, Landed::new(length_bytes)));
                            }
                        }
                    }
                    Ok(CommandData::Transport { .. } | CommandData::None) => {}
                    Err(error) => assert!(error.status.is_dnr()),
                }
                self.ask();
            }
            Pdu::H2cData(data) => {
                assert!(data.length_bytes <= MAXH2CDATA_BYTES);
                self.ledger.receive(data)?;
                let command = self.command_of(data.cid);
                command.1.land(data.offset_bytes, data.length_bytes);
                self.landing = Some(*data);
            }
            Pdu::TermReq { .. } => {}
            Pdu::IcResp(_) | Pdu::CapsuleResp(_) | Pdu::C2hData(_) | Pdu::R2t(_) => {
                panic!("a host does not send {pdu:?}");
            }
        }
        Ok(())
    }

    fn data_end(&mut self) {
        let Some(data) = self.landing.take() else {
            return;
        };
        let (plan, landed) = self.command_of(data.cid);
        plan.landed(&data);
        let complete = plan.is_complete();
        assert_eq!(complete, landed.all());
        if complete {
            let done = self
                .commands
                .iter_mut()
                .find(|slot| matches!(slot, Some((plan, _)) if plan.cid() == data.cid));
            *done.expect("the command") = None;
        }
        self.ask();
    }
}

/// A host with commands outstanding: those with an even CID bring data, the others take it.
struct Host {
    request: IcRequest,
    agreed: Option<Agreed>,
    reads: Vec<(C2hWindow, Landed)>,
    writes: Vec<(R2tWindow, Landed)>,
}

impl Host {
    fn new(request: IcRequest) -> Self {
        let reads = (0..4).map(|cid| {
            let bytes = 2000 * cid;
            (C2hWindow::new(bytes), Landed::new(bytes))
        });
        Self {
            request,
            agreed: None,
            reads: reads.collect(),
            writes: Vec::new(),
        }
    }
}

impl End for Host {
    fn pdu(&mut self, reader: &mut PduReader, pdu: &Pdu) -> Result<(), Fault> {
        let place = |cid: u16| usize::from(cid / 2);
        match pdu {
            Pdu::IcResp(response) => {
                assert!(self.request.digests.contains(response.digests));
                let agreed = Agreed::new(&self.request, response);
                reader.agree(&agreed);
                self.agreed = Some(agreed);
                let windows = (0..4).map(|cid| {
                    let bytes = 5000 * cid;
                    (R2tWindow::new(bytes, &agreed), Landed::new(bytes))
                });
                self.writes = windows.collect();
            }
            Pdu::C2hData(data) => {
                let unknown = Fault::unknown_command(PduType::C2H_DATA, data.cid);
                let read = self.reads.get_mut(place(data.cid));
                let (window, landed) = read.filter(|_| data.cid % 2 == 0).ok_or(unknown)?;
                window.receive(data)?;
                landed.land(data.offset_bytes, data.length_bytes);
                assert_eq!(window.is_complete(), landed.all());
                assert!(data.last || !data.success);
            }
            Pdu::R2t(r2t) => {
                let agreed = self.agreed.as_ref().expect("ICResp comes first");
                let unknown = Fault::unknown_command(PduType::R2T, r2t.cid);
                let write = self.writes.get_mut(place(r2t.cid));
                let (window, landed) = write.filter(|_| r2t.cid % 2 == 1).ok_or(unknown)?;
                for data in window.receive(r2t, agreed)? {
                    assert!(data.length_bytes <= agreed.maxh2cdata_bytes);
                    landed.land(data.offset_bytes, data.length_bytes);
                    if data.last && r2t.ttag % 2 == 0 {
                        window.answered();
                    }
                }
            }
            Pdu::CapsuleResp(cqe) => {
                if cqe.cid.get() >= 8 {
                    return Err(Fault::unknown_command(PduType::CAPSULE_RESP, cqe.cid.get()));
                }
            }
            Pdu::TermReq { .. } => {}
            Pdu::IcReq(_) | Pdu::CapsuleCmd { .. } | Pdu::H2cData(_) => {
                panic!("a controller does not send {pdu:?}");
            }
        }
        Ok(())
    }

    fn data_end(&mut self) {}
}

/// Reads `stream` in pieces of `piece_bytes`; gives what was read and how it ended.
fn drive(
    mut reader: PduReader,
    end: &mut impl End,
    role: Role,
    stream: &[u8],
    piece_bytes: usize,
) -> (Vec<Event>, Option<Fault>) {
    let mut seen = Vec::new();
    for mut piece in stream.chunks(piece_bytes) {
        loop {
            let due = usize::try_from(reader.data_due_bytes()).expect("usize");
            let moved = due.min(piece.len());
            reader.data_moved(moved);
            piece = &piece[moved..];
            let wanted = reader.wanted_bytes();
            let result = reader.read(piece).and_then(|(used, event)| {
                assert!(used <= piece.len());
                assert!(event.is_some() || used == piece.len() || reader.data_due_bytes() > 0);
                assert!(event.is_some() || wanted > 0);
                piece = &piece[used..];
                match &event {
                    Some(Event::Pdu(pdu)) => end.pdu(&mut reader, pdu)?,
                    Some(Event::DataEnd { .. }) => end.data_end(),
                    None => {}
                }
                Ok(event)
            });
            match result {
                Ok(Some(event)) => seen.push(event),
                Ok(None) if piece.is_empty() => break,
                Ok(None) => {}
                Err(fault) => {
                    answered(&fault, role, &reader);
                    return (seen, Some(fault));
                }
            }
        }
    }
    (seen, None)
}

/// The TermReq of a fault is one that the peer reads.
fn answered(fault: &Fault, role: Role, reader: &PduReader) {
    assert!(!fault.to_string().chars().any(char::is_control));
    let Some(term) = fault.term_req(role, reader.header()) else {
        return;
    };
    let mut peer = match role {
        Role::Host => PduReader::controller(0),
        Role::Controller => PduReader::host(request(0)),
    };
    let read = peer.read(term.as_bytes()).expect("a TermReq");
    assert!(matches!(read.1, Some(Event::Pdu(Pdu::TermReq { .. }))));
}

fn request(config: u8) -> IcRequest {
    IcRequest {
        hpda: DataAlignment::from_wire(config >> 2 & 0x1F).expect("5 bits"),
        digests: Digests::from_bits_truncate(config),
        maxr2t: u32::from(config >> 7) + 1,
    }
}

/// What a host may send, from ICReq on. However it is cut, the same is read of it; no byte of a
/// transfer comes twice or outside it; and each fault has a TermReq.
///
/// # Panics
/// When it does not.
pub fn tcp_from_host(data: &[u8]) {
    let read = [data.len().max(1), 1, 7].map(|piece_bytes| {
        let mut end = Controller {
            agreed: None,
            ledger: R2tLedger::new(),
            commands: [const { None }; COMMANDS],
            landing: None,
        };
        let reader = PduReader::controller(IN_CAPSULE_MAX_BYTES);
        drive(reader, &mut end, Role::Controller, data, piece_bytes)
    });
    assert_eq!(read[0], read[1]);
    assert_eq!(read[0], read[2]);
}

/// What a controller may send, from ICResp on, to a host that asked for what the first byte says.
/// As `tcp_from_host`.
///
/// # Panics
/// When it does not.
pub fn tcp_from_controller(data: &[u8]) {
    let Some((config, stream)) = data.split_first() else {
        return;
    };
    let request = request(*config);
    let read = [stream.len().max(1), 1, 7].map(|piece_bytes| {
        let mut end = Host::new(request);
        let reader = PduReader::host(request);
        drive(reader, &mut end, Role::Host, stream, piece_bytes)
    });
    assert_eq!(read[0], read[1]);
    assert_eq!(read[0], read[2]);
}
