//! NVMe over TCP: bytes of real peers, streams cut anywhere, every fault of a PDU, and whole
//! transfers between the two ends.

mod faults;
mod golden;
mod streams;
mod transfers;

use capstan_nvme_proto::tcp::fault::Fault;
use capstan_nvme_proto::tcp::reader::{Event, Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcRequest, IcResponse};
use zerocopy::IntoBytes;

/// In-capsule data that the readers here take.
const IN_CAPSULE_MAX_BYTES: u32 = 8192;

/// What was read of one PDU.
#[derive(Clone, PartialEq, Debug)]
struct Read {
    pdu: Pdu,
    data: Vec<u8>,
    digest: Option<u32>,
}

fn request(digests: Digests, hpda_z: u8) -> IcRequest {
    IcRequest {
        hpda: DataAlignment::from_wire(hpda_z).expect("an alignment"),
        digests,
        maxr2t: 2,
    }
}

fn response(digests: Digests, cpda_z: u8) -> IcResponse {
    IcResponse {
        cpda: DataAlignment::from_wire(cpda_z).expect("an alignment"),
        digests,
        maxh2cdata_bytes: 8192,
    }
}

/// A controller's reader that has read an ICReq.
fn controller(request: &IcRequest, response: &IcResponse) -> (PduReader, Agreed) {
    let mut reader = PduReader::controller(IN_CAPSULE_MAX_BYTES);
    let wire = request.encode();
    assert_eq!(
        reader.read(wire.as_bytes()),
        Ok((128, Some(Event::Pdu(Pdu::IcReq(*request)))))
    );
    let agreed = Agreed::new(request, response);
    reader.agree(&agreed);
    (reader, agreed)
}

/// A host's reader that has read an ICResp.
fn host(request: &IcRequest, response: &IcResponse) -> (PduReader, Agreed) {
    let mut reader = PduReader::host(*request);
    let wire = response.encode();
    assert_eq!(
        reader.read(wire.as_bytes()),
        Ok((128, Some(Event::Pdu(Pdu::IcResp(*response)))))
    );
    let agreed = Agreed::new(request, response);
    reader.agree(&agreed);
    (reader, agreed)
}

/// Reads a stream that comes in `pieces`, as a user of the reader does.
fn read_all<'a>(
    reader: &mut PduReader,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Read>, Fault> {
    let mut all: Vec<Read> = Vec::new();
    for mut piece in pieces {
        loop {
            let due = usize::try_from(reader.data_due_bytes()).expect("usize");
            if due > 0 {
                let moved = due.min(piece.len());
                let data = &mut all.last_mut().expect("a PDU before its data").data;
                data.extend_from_slice(&piece[..moved]);
                reader.data_moved(moved);
                piece = &piece[moved..];
            }
            let (used, event) = reader.read(piece)?;
            piece = &piece[used..];
            match event {
                Some(Event::Pdu(pdu)) => all.push(Read {
                    pdu,
                    data: Vec::new(),
                    digest: None,
                }),
                Some(Event::DataEnd { digest }) => {
                    all.last_mut().expect("a PDU before its end").digest = digest;
                }
                None if piece.is_empty() => break,
                None => {}
            }
        }
    }
    Ok(all)
}
