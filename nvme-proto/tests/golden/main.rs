//! Golden bytes: what the Linux host and target really send must parse, and encode back to the
//! same bytes. `README.md` beside them says how each file was captured.
//!
//! Here every file is checked by the structure its name starts with; the modules know the
//! structures, and assert named fields of particular files.

mod commands;
mod data;

use std::collections::BTreeMap;
use std::path::Path;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::{Status, StatusCodeType};
use zerocopy::IntoBytes;

/// One golden file.
struct Golden {
    /// Name without `.hex`.
    name: String,
    /// The queue, when the first comment says `qid N`.
    qid: Option<u16>,
    bytes: Vec<u8>,
}

impl Golden {
    fn parse(name: &str, text: &str) -> Self {
        let (comments, hex): (Vec<_>, Vec<_>) = text
            .lines()
            .map(str::trim)
            .partition(|line| line.starts_with('#'));
        let hex: String = hex.concat().split_whitespace().collect();
        assert!(
            hex.len().is_multiple_of(2),
            "{name}: an odd number of hex digits"
        );
        let bytes = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
            .collect();
        let mut words = comments
            .first()
            .map(|line| line.split_whitespace())
            .expect("a comment");
        let qid = words
            .find(|word| *word == "qid")
            .and_then(|_| words.next())
            .and_then(|qid| qid.parse().ok());
        Self {
            name: name.to_owned(),
            qid,
            bytes,
        }
    }

    fn load(name: &str) -> Self {
        let path = folder().join(format!("{name}.hex"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(name, &text)
    }

    /// The status a name ending in `-sctN-scXX` gives; success for any other name.
    fn named_status(&self) -> Status {
        let Some((_, rest)) = self.name.split_once("-sct") else {
            return Status::SUCCESS;
        };
        let (sct, sc) = rest.split_once("-sc").expect("sct is followed by sc");
        let sc = u8::from_str_radix(&sc[..2], 16).expect("two hex digits");
        Status::new(StatusCodeType(sct.parse().expect("a digit")), sc)
    }

    fn sqe(&self) -> Sqe {
        let (sqe, _data) = Sqe::from_capsule(&self.bytes).expect("a whole SQE");
        *sqe
    }

    fn cqe(&self) -> Cqe {
        *Cqe::from_capsule(&self.bytes).expect("16 bytes")
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

fn all() -> Vec<Golden> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of golden files")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .filter_map(|name| name.strip_suffix(".hex").map(str::to_owned))
        .collect();
    names.sort();
    names.iter().map(|name| Golden::load(name)).collect()
}

#[test]
fn every_file_parses_and_encodes_back() {
    let mut checked = BTreeMap::<&str, usize>::new();
    for golden in all() {
        let name = golden.name.clone();
        let kind = [
            "sqe",
            "cqe",
            "capsule",
            "connect-data",
            "cm",
            "identify",
            "log",
            "dsm-ranges",
            "reservation-report",
        ]
        .into_iter()
        .find(|kind| name.starts_with(&format!("{kind}-")) || name == *kind)
        .unwrap_or_else(|| panic!("{name}: no structure has this name"));
        match kind {
            "sqe" => commands::check_sqe(&golden),
            "cqe" => commands::check_cqe(&golden),
            "capsule" => commands::check_capsule(&golden),
            "connect-data" => commands::check_connect_data(&name, &golden.bytes),
            "cm" => commands::check_private_data(&golden),
            "identify" => data::check_identify(&golden),
            "log" => data::check_log(&golden),
            "reservation-report" => data::check_reservation_report(&golden),
            _ => {
                let count = u16::try_from(golden.bytes.len() / DsmRange::SIZE_BYTES).expect("u16");
                let ranges = DsmRange::parse_all(&golden.bytes, count).expect(&name);
                assert_eq!(ranges.as_bytes(), golden.bytes, "{name}");
            }
        }
        *checked.entry(kind).or_default() += 1;
    }
    // Every structure is there; the counts only grow.
    let at_least = [
        ("capsule", 11),
        ("cm", 10),
        ("connect-data", 5),
        ("cqe", 83),
        ("dsm-ranges", 2),
        ("identify", 22),
        ("log", 13),
        ("reservation-report", 3),
        ("sqe", 83),
    ];
    for (kind, least) in at_least {
        let count = checked.get(kind).copied().unwrap_or(0);
        assert!(
            count >= least,
            "{kind}: {count} files, expected at least {least}"
        );
    }
}

#[test]
fn the_format_is_comments_then_hex() {
    let golden = Golden::parse(
        "x-sct1-sc82",
        "# qid 3 cid 0x0000 Connect\n# 4 bytes\n0a 0B\nff00\n",
    );
    assert_eq!(golden.bytes, [0x0A, 0x0B, 0xFF, 0x00]);
    assert_eq!(golden.qid, Some(3));
    assert_eq!(golden.named_status(), Status::CONNECT_INVALID_PARAMETERS);
}
