//! Golden bytes: RPC messages of the Linux client and of the Linux server, which must be decoded
//! and encoded back to the same bytes. `README.md` beside them says where they are from.

use std::path::Path;

use capstan_nfs_proto::codec::{Decode, Encode, Reader, Writer};
use capstan_nfs_proto::mount::{MountCall, MountResult};
use capstan_nfs_proto::v3;
use capstan_nfs_proto::v3::results::{
    AccessResult, CommitResult, CreateResult, FsInfoResult, FsStatResult, GetAttrResult,
    LinkResult, LookupResult, PathConfResult, ReadDirPlusResult, ReadDirResult, ReadLinkResult,
    ReadResult, RenameResult, WccResult, WriteResult,
};
use capstan_nfs_proto::v4::attr::{Attributes, SetAttributes};
use capstan_nfs_proto::v4::client::{CompoundEncoder, Reply as CompoundReply};
use capstan_nfs_proto::v4::compound::Compound;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::reply::ReplyEncoder;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_rpcrdma::rpc::{Accepted, Call, Credentials, Reply};

/// No message of the captures is longer.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Where OPEN has set no attribute, knfsd sends a bitmap of one word that is zero, and we one of no
/// words: the values are the same.
const LONG_BITMAPS: [&str; 4] = [
    "reply-v41-open-2",
    "reply-v41-open-3",
    "reply-v42-open-2",
    "reply-v42-open-3",
];

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn load(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let hex: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(hex.len().is_multiple_of(2), "{name}: half a byte");
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
        .collect()
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder")
        .filter_map(|entry| {
            let name = entry.expect("an entry").file_name();
            Some(name.to_str()?.strip_suffix(".hex")?.to_owned())
        })
        .collect();
    names.sort();
    names
}

/// The words of a name behind `call-` or `reply-`: what is spoken, and what of it.
fn spoken(name: &str) -> (&str, &str) {
    name.split_once('-')
        .and_then(|(_kind, rest)| rest.split_once('-'))
        .unwrap_or_else(|| panic!("{name}: no protocol"))
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut writer = Writer::new(&mut buffer);
    value.encode(&mut writer).unwrap();
    writer.written().to_vec()
}

fn operations_of<'a>(name: &str, arguments: &'a [u8]) -> (Compound<'a>, Vec<Op<'a>>) {
    let compound = Compound::parse(Reader::new(arguments)).expect(name);
    let mut operations = compound.operations().expect(name);
    let parsed = operations
        .by_ref()
        .collect::<Result<Vec<_>, _>>()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    operations
        .finish()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    (compound, parsed)
}

fn check_compound(name: &str, arguments: &[u8]) {
    let (compound, operations) = operations_of(name, arguments);
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut writer = Writer::new(&mut buffer);
    let mut encoder =
        CompoundEncoder::new(&mut writer, compound.tag, compound.minor_version).unwrap();
    for operation in &operations {
        encoder.push(operation).unwrap();
        if let Op::SetAttr(set) = operation {
            let parsed = SetAttributes::parse(&set.obj_attributes, &SetAttributes::known());
            parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    assert_eq!(writer.written(), arguments, "{name}: {operations:?}");
}

fn check_compound_reply(name: &str, results: &[u8]) {
    let mut reply = CompoundReply::decode(Reader::new(results)).expect(name);
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut writer = Writer::new(&mut buffer);
    let mut encoder = ReplyEncoder::new(&mut writer, reply.tag).unwrap();
    for result in reply.by_ref() {
        let result = result.unwrap_or_else(|error| panic!("{name}: {error}"));
        encoder.push(&result).unwrap();
        // knfsd tells of pNFS as well (layout_blksize), of which there is no type here.
        if let OpResult::GetAttr(attributes) = result
            && attributes.mask.without(&Attributes::known()).is_empty()
        {
            let decoded = Attributes::decode_values(&attributes)
                .unwrap_or_else(|error| panic!("{name}: {error}: {attributes:?}"));
            let mut buffer = vec![0; MESSAGE_BYTES_MAX];
            let mut writer = Writer::new(&mut buffer);
            let mask = decoded.present();
            decoded.encode_requested(&mask, &mut writer).unwrap();
            assert_eq!(
                writer.written(),
                encoded(&attributes),
                "{name}: {decoded:?}"
            );
        }
    }
    reply
        .finish()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(encoder.finish(), reply.status, "{name}");
    if LONG_BITMAPS.contains(&name) {
        assert_eq!(writer.written().len() + 4, results.len(), "{name}");
        let values = |bytes| {
            CompoundReply::decode(Reader::new(bytes))
                .unwrap()
                .collect::<Vec<_>>()
        };
        assert_eq!(values(writer.written()), values(results), "{name}");
    } else {
        assert_eq!(writer.written(), results, "{name}");
    }
}

fn check_result<'a, T: Decode<'a> + Encode>(name: &str, results: &'a [u8]) {
    let mut reader = Reader::new(results);
    let value = T::decode(&mut reader, "res").unwrap_or_else(|error| panic!("{name}: {error}"));
    reader
        .finish()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(encoded(&value), results, "{name}");
}

fn check_v3_result(name: &str, procedure: &str, results: &[u8]) {
    // A number tells messages of one procedure apart.
    let procedure = procedure.split('-').next().unwrap_or_default();
    match procedure {
        "null" => assert_eq!(results, b"", "{name}"),
        "getattr" => check_result::<GetAttrResult>(name, results),
        "setattr" | "remove" | "rmdir" => check_result::<WccResult>(name, results),
        "lookup" => check_result::<LookupResult<'_>>(name, results),
        "access" => check_result::<AccessResult>(name, results),
        "readlink" => check_result::<ReadLinkResult<'_>>(name, results),
        "read" => check_result::<ReadResult<'_>>(name, results),
        "write" => check_result::<WriteResult>(name, results),
        "create" | "mkdir" | "symlink" | "mknod" => check_result::<CreateResult<'_>>(name, results),
        "rename" => check_result::<RenameResult>(name, results),
        "link" => check_result::<LinkResult>(name, results),
        "readdir" => check_result::<ReadDirResult<'_>>(name, results),
        "readdirplus" => check_result::<ReadDirPlusResult<'_>>(name, results),
        "fsstat" => check_result::<FsStatResult>(name, results),
        "fsinfo" => check_result::<FsInfoResult>(name, results),
        "pathconf" => check_result::<PathConfResult>(name, results),
        "commit" => check_result::<CommitResult>(name, results),
        _ => panic!("{name}: a procedure that is not checked"),
    }
}

fn check_call(name: &str, bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let call = Call::read(&mut reader).unwrap_or_else(|error| panic!("{name}: {error}"));
    let arguments = &bytes[reader.offset()..];
    match (spoken(name).0, call.program, call.version, call.procedure) {
        ("v42" | "v41", 100_003, 4, 0) => assert_eq!(arguments, b"", "{name}"),
        ("v42" | "v41", 100_003, 4, 1) => check_compound(name, arguments),
        ("v3", 100_003, 3, procedure) => {
            let parsed = v3::call::Call::parse(procedure, &mut reader).expect(name);
            assert_eq!(encoded(&parsed.expect(name)), arguments, "{name}");
        }
        ("mount", 100_005, 3, procedure) => {
            let parsed = MountCall::parse(procedure, &mut reader).expect(name);
            assert_eq!(encoded(&parsed.expect(name)), arguments, "{name}");
        }
        other => panic!("{name}: {other:?}"),
    }
}

fn check_reply(name: &str, bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let reply = Reply::read(&mut reader).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(reply.outcome, Ok(Accepted::Success), "{name}");
    let results = &bytes[reader.offset()..];
    match spoken(name) {
        ("v42" | "v41", "null") | ("mount", "null" | "umnt") => assert_eq!(results, b"", "{name}"),
        ("v42" | "v41", _) => check_compound_reply(name, results),
        ("v3", procedure) => check_v3_result(name, procedure, results),
        ("mount", "mnt") => check_result::<MountResult<'_>>(name, results),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn every_file_is_decoded_and_encoded_back() {
    let names = names();
    for name in &names {
        let bytes = load(name);
        match name.split('-').next() {
            Some("call") => check_call(name, &bytes),
            Some("reply") => check_reply(name, &bytes),
            _ => panic!("{name}: neither a call nor a reply"),
        }
    }
    let of = |spoken: &str| names.iter().filter(|name| name.contains(spoken)).count();
    for (protocol, least) in [("-v42-", 80), ("-v41-", 15), ("-v3-", 45), ("-mount-", 4)] {
        let files = of(protocol);
        assert!(files >= least, "{files} files of {protocol}");
    }
}

#[test]
fn what_a_linux_client_says_of_itself() {
    let bytes = load("call-v42-exchange-id");
    let mut reader = Reader::new(&bytes);
    let call = Call::read(&mut reader).unwrap();
    let Credentials::Sys(credentials) = call.credentials else {
        panic!("{:?}", call.credentials);
    };
    assert_eq!(credentials.uid, 0);
    let (compound, operations) = operations_of("call-v42-exchange-id", &bytes[reader.offset()..]);
    assert_eq!(compound.minor_version, 2);
    let [Op::ExchangeId(exchange)] = operations[..] else {
        panic!("{operations:?}");
    };
    assert_eq!(exchange.clientowner.ownerid.0, b"Linux NFSv4.2 lab");
    assert_eq!(exchange.client_impl_id.unwrap().domain.0, b"kernel.org");
}
