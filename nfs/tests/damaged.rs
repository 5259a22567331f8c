//! Requests of a Linux client that were damaged on their way: each is answered or ends its
//! connection, and whatever it said, the service goes on.

mod support;

use std::fs;
use std::path::Path;

use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::compound::Compound;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_rpc_server::{Arguments, Call, ConnectionNumber, Outcome, Program, Results, Wire};
use capstan_rpcrdma::rpc::{Call as Header, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};

use support::{Client, MESSAGE_BYTES, Served, path_ops, put};

/// Damaged copies of each request.
const COPIES: u64 = 60;

/// A generator whose numbers are the same in each run (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }
}

/// The calls that a Linux client has sent, as they were captured.
fn captured() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nfs-proto/tests/golden");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("call-v4")
        })
        .collect();
    paths.sort();
    let digits = |path| -> Vec<u8> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .flat_map(str::bytes)
            .filter(u8::is_ascii_hexdigit)
            .collect()
    };
    let value = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    paths
        .into_iter()
        .map(|path| digits(path).chunks(2).map(value).collect())
        .collect()
}

fn handle_of(client: &mut Client, names: &[&'static str]) -> Vec<u8> {
    let mut ops = path_ops(names);
    ops.push(Op::GetFh);
    client.run(&ops, |results| match results.last() {
        Some(OpResult::GetFh(handle)) => handle.0.to_vec(),
        other => panic!("{other:?}"),
    })
}

/// What is behind the SEQUENCE of a captured COMPOUND, with other filehandles.
fn operations<'m>(message: &'m [u8], handle: &'m [u8]) -> Vec<Op<'m>> {
    let mut reader = Reader::new(message);
    Header::read(&mut reader).unwrap();
    let Ok(compound) = Compound::parse(reader) else {
        return Vec::new();
    };
    let ops = compound.operations().unwrap().map(Result::unwrap);
    ops.filter(|op| !matches!(op, Op::Sequence(_)))
        .map(|op| match op {
            Op::PutFh(_) => Op::PutFh(Opaque(handle)),
            other => other,
        })
        .collect()
}

/// Carries out a call; whether its SEQUENCE was taken.
fn call(served: &Served, message: &[u8]) -> bool {
    let call = Call {
        connection: ConnectionNumber(1),
        wire: Wire::Tcp,
        peer: "192.0.2.1:700".parse().unwrap(),
        message,
        reader: Reader::new(message),
        arguments: Arguments(&[]),
        results: Results(&[]),
    };
    let mut buffer = vec![0; MESSAGE_BYTES];
    let mut writer = Writer::new(&mut buffer);
    if served.service.call(&call, &mut writer) != Outcome::Reply {
        return false;
    }
    let mut reader = Reader::new(writer.written());
    let reply = Reply::read(&mut reader).unwrap();
    if reply != Reply::success(reply.xid) {
        return false;
    }
    let mut reply = capstan_nfs_proto::v4::client::Reply::decode(reader).unwrap();
    matches!(reply.next(), Some(Ok(OpResult::Sequence(_))))
}

#[test]
fn root_damaged_requests_of_linux_are_answered_and_the_service_goes_on() {
    let served = Served::new();
    fs::create_dir(served.path().join("d")).unwrap();
    put(&served.path().join("d/f"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let handles = [
        handle_of(&mut client, &[]),
        handle_of(&mut client, &["d"]),
        handle_of(&mut client, &["d", "f"]),
    ];
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let mut taken = 0;
    let captured = captured();
    assert!(captured.len() > 40, "{}", captured.len());
    for message in &captured {
        for copy in 0..COPIES {
            let handle = &handles[numbers.below(handles.len())];
            let ops = operations(message, handle);
            let ops: Vec<_> = [client.sequence_op()].into_iter().chain(ops).collect();
            let mut bytes = client.compound_bytes(&ops);
            // Behind the header of RPC, COMPOUND's own and SEQUENCE: the first 140 bytes.
            let start = 140.min(bytes.len());
            for _ in 0..copy % 8 {
                if start == bytes.len() {
                    break;
                }
                let at = start + numbers.below(bytes.len() - start);
                match numbers.next() % 3 {
                    0 => bytes[at] = numbers.next().to_le_bytes()[0],
                    1 => bytes[at] ^= 1 << (numbers.next() % 8),
                    _ => bytes.truncate(at),
                }
            }
            if call(&served, &bytes) {
                client.sequence += 1;
                taken += 1;
            }
        }
    }
    assert!(taken > 1000, "{taken}");
    let mut ops = path_ops(&[]);
    ops.push(Op::GetFh);
    client.try_run(&ops, |status, results| {
        assert_eq!(status, Status::OK, "{results:?}");
    });
}
