//! Golden bytes: what Linux siw really sends must be read as what it is, and be built again to the
//! same bytes. `golden/README.md` says how each file was captured.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use capstan_rdma::iwarp::wire::crc::crc32c;
use capstan_rdma::iwarp::wire::ddp::{
    Control, Opcode, ReadRequest, Segment, TaggedHeader, UNTAGGED_BYTES, UntaggedHeader, fpdu_bytes,
};
use capstan_rdma::iwarp::wire::mpa::{FRAME_BYTES, Frame, FrameError, FrameHeader, FrameKind, Rtr};
use capstan_rdma::iwarp::wire::terminate::{ErrorCode, Terminate};
use zerocopy::{FromBytes, IntoBytes};

/// One file: its name without `.hex`, the words of its first line, its bytes.
struct Golden {
    name: String,
    words: Vec<String>,
    bytes: Vec<u8>,
}

impl Golden {
    /// The word behind `key` in the first line.
    fn word(&self, key: &str) -> &str {
        let at = self.words.iter().position(|w| w == key);
        let at = at.unwrap_or_else(|| panic!("{}: no {key} in {:?}", self.name, self.words));
        &self.words[at + 1]
    }

    fn number(&self, key: &str) -> u32 {
        self.word(key).parse().unwrap()
    }

    fn hex(&self, key: &str) -> u64 {
        u64::from_str_radix(self.word(key), 16).unwrap()
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }
}

fn golden(prefix: &str) -> Vec<Golden> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_none_or(|e| e != "hex") || !name.starts_with(prefix) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap().trim_start_matches("# ");
        let words = first
            .split([' ', '[', ']', '(', ')'])
            .filter(|w| !w.is_empty());
        let hex: String = text.lines().filter(|l| !l.starts_with('#')).collect();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        all.push(Golden {
            name,
            words: words.map(str::to_owned).collect(),
            bytes: (0..hex.len()).step_by(2).map(byte).collect(),
        });
    }
    all
}

/// Checks length, pad and CRC, and gives the FPDU without them.
fn unframed(golden: &Golden) -> &[u8] {
    let bytes = &golden.bytes;
    let ulpdu = u16::from_be_bytes([bytes[0], bytes[1]]);
    assert_eq!(fpdu_bytes(ulpdu), bytes.len(), "{}", golden.name);
    let (framed, crc) = bytes.split_at(bytes.len() - 4);
    let expected = if golden.name.ends_with("-crc") {
        crc32c(framed)
    } else {
        0
    };
    assert_eq!(crc, expected.to_le_bytes(), "{}: CRC", golden.name);
    let (ulpdu, pad) = framed.split_at(2 + usize::from(ulpdu));
    assert!(pad.iter().all(|b| *b == 0), "{}: pad", golden.name);
    ulpdu
}

#[test]
fn every_fpdu_is_read_and_built_again() {
    let all = golden("fpdu-");
    assert!(all.len() >= 48, "{} files", all.len());
    for golden in &all {
        let name = &golden.name;
        let ulpdu = unframed(golden);
        let segment = Segment::read(ulpdu).unwrap();
        let payload = &ulpdu[segment.header_bytes()..];
        let opcode = match golden.words[0].as_str() {
            "RDMA_WRITE" => Opcode::RDMA_WRITE,
            "READ_REQUEST" => Opcode::READ_REQUEST,
            "READ_RESPONSE" => Opcode::READ_RESPONSE,
            "SEND" => Opcode::SEND,
            "SEND_INV" => Opcode::SEND_INVALIDATE,
            "TERMINATE" => Opcode::TERMINATE,
            other => panic!("{name}: {other}"),
        };
        assert_eq!(segment.control().opcode(), opcode, "{name}");
        assert_eq!(segment.control().last(), !golden.has("more"), "{name}");
        let control = Control::new(segment.control().tagged(), !golden.has("more"), opcode);
        let ulpdu_length = u16::try_from(ulpdu.len() - 2).unwrap().into();
        let rebuilt = match segment {
            Segment::Tagged(_) => {
                assert_eq!(golden.number("payload") as usize, payload.len(), "{name}");
                let header = TaggedHeader {
                    ulpdu_length,
                    control,
                    stag: u32::try_from(golden.hex("STag")).unwrap().into(),
                    to: golden.hex("TO").into(),
                };
                header.as_bytes().to_vec()
            }
            Segment::Untagged(header) => {
                let invalidates = golden.has("invalidate");
                let header = UntaggedHeader {
                    ulpdu_length,
                    control,
                    invalidate_stag: if invalidates {
                        u32::try_from(golden.hex("invalidate")).unwrap().into()
                    } else {
                        0.into()
                    },
                    qn: match opcode {
                        Opcode::READ_REQUEST => 1.into(),
                        Opcode::TERMINATE => 2.into(),
                        _ => golden.number("qn").into(),
                    },
                    msn: match opcode {
                        Opcode::TERMINATE => 1.into(),
                        _ => golden.number("msn").into(),
                    },
                    mo: header.mo,
                };
                if opcode.is_send() {
                    assert_eq!(header.mo.get(), golden.number("mo"), "{name}");
                    assert_eq!(golden.number("payload") as usize, payload.len(), "{name}");
                }
                header.as_bytes().to_vec()
            }
        };
        assert!(
            ulpdu.starts_with(&rebuilt),
            "{name}: {rebuilt:02x?} differs"
        );
    }
}

#[test]
fn read_requests_name_source_and_sink() {
    for golden in golden("fpdu-read-request") {
        let ulpdu = unframed(&golden);
        let request = ReadRequest::read_from_bytes(&ulpdu[UNTAGGED_BYTES..]).unwrap();
        let words: Vec<_> = golden.words.iter().map(String::as_str).collect();
        let from = words.iter().position(|w| *w == "from").unwrap();
        let hex = |at: usize| u64::from_str_radix(words[at], 16).unwrap();
        let length = u64::from(request.length_bytes.get());
        assert_eq!(length, words[from - 2].parse::<u64>().unwrap());
        assert_eq!(u64::from(request.source_stag.get()), hex(from + 2));
        assert_eq!(request.source_to.get(), hex(from + 4));
        assert_eq!(u64::from(request.sink_stag.get()), hex(from + 7));
        assert_eq!(request.sink_to.get(), hex(from + 9));
    }
}

#[test]
fn terminates_of_siw_are_understood() {
    // The file's name is what siw sends; its notes say what it means.
    let meaning: HashMap<&str, ErrorCode> = [
        ("0100", ErrorCode::DDP_LOCAL_CATASTROPHIC),
        ("0202-crc", ErrorCode::MPA_CRC),
        ("0203", ErrorCode::MPA_FPDU),
        ("1000", ErrorCode::RDMAP_INVALID_STAG),
        ("1100", ErrorCode::DDP_INVALID_STAG),
        ("2007", ErrorCode::RDMAP_STREAM_CATASTROPHIC),
        ("2009", ErrorCode::RDMAP_OPERATION_CANNOT_INVALIDATE),
        ("2101", ErrorCode::DDP_INVALID_QN),
        ("2102", ErrorCode::DDP_NO_BUFFER),
        ("2103", ErrorCode::DDP_MSN_RANGE),
        ("2104", ErrorCode::DDP_INVALID_MO),
        ("2106", ErrorCode::DDP_UNTAGGED_VERSION),
        // Without a header nothing tells siw's order from the RFC's, and both exist.
        ("2005", ErrorCode::MPA_LOCAL_CATASTROPHIC),
        ("2006", ErrorCode::MPA_INSUFFICIENT_IRD),
    ]
    .into();
    for golden in golden("fpdu-terminate-") {
        let ulpdu = unframed(&golden);
        let terminate = Terminate::parse(&ulpdu[UNTAGGED_BYTES..]).unwrap();
        let code = golden.name.trim_start_matches("fpdu-terminate-");
        assert_eq!(Some(&terminate.error), meaning.get(code), "{}", golden.name);
        let with_header = golden.word("header") != "-";
        assert_eq!(terminate.opcode.is_some(), with_header, "{}", golden.name);
    }
}

#[test]
fn every_mpa_frame_is_read_and_built_again() {
    let all = golden("mpa-");
    assert!(all.len() >= 13, "{} files", all.len());
    for golden in &all {
        let name = &golden.name;
        let header = FrameHeader::parse(golden.bytes.first_chunk().unwrap());
        if golden.number("rev") == 0 {
            // Older than RFC 5044: nothing sends it unasked.
            assert_eq!(header, Err(FrameError::Revision(0)), "{name}");
            continue;
        }
        let (header, length) = header.unwrap();
        assert_eq!(length, golden.bytes.len() - FRAME_BYTES, "{name}");
        let (frame, private) = header
            .with_private_data(&golden.bytes[FRAME_BYTES..])
            .unwrap();
        let flag = |flag: char| golden.word("flags").contains(flag);
        assert_eq!(
            frame.kind == FrameKind::Request,
            golden.words[1] == "request",
            "{name}"
        );
        assert_eq!((frame.crc, frame.markers), (flag('C'), flag('M')), "{name}");
        assert_eq!(frame.reject, flag('R'), "{name}");
        assert_eq!(u32::from(frame.revision), golden.number("rev"), "{name}");
        assert_eq!(frame.enhanced.is_some(), flag('S'), "{name}");
        if let Some(enhanced) = frame.enhanced {
            assert_eq!(u32::from(enhanced.ird), golden.number("IRD"), "{name}");
            assert_eq!(u32::from(enhanced.ord), golden.number("ORD"), "{name}");
            let rtr = |flag: char| golden.word("RTR").contains(flag);
            let expected = rtr('A').then_some(Rtr {
                empty_fpdu: rtr('B'),
                write: rtr('C'),
                read: rtr('D'),
            });
            assert_eq!(enhanced.peer_to_peer, expected, "{name}");
        }
        assert_eq!(
            Frame::encode(&frame, private).unwrap(),
            golden.bytes,
            "{name}"
        );
    }
}
