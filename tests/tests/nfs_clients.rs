//! How much of a target's memory clients of NFS take that do nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::{DataItem, List, Opaque};
use capstan_nfs_proto::v4::args::{
    self, ChannelAttributes, CreateSession, CreateSessionFlags, ExchangeId, ExchangeIdFlags,
    Sequence, StateProtect,
};
use capstan_nfs_proto::v4::client::{CompoundEncoder, Reply as CompoundReply};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{
    ClientOwner, Component, SessionId, StableHow, Stateid, Verifier,
};
use capstan_nfs_proto::v4::{NFS_V4, PROC_COMPOUND};
use capstan_rpcrdma::rpc::{AuthSys, Call, Credentials, Gids, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};
use capstan_tests::process::{allow_many_descriptors, resident_bytes_of};
use capstan_tests::program::{Daemon, utf8};

const CLIENTS: u32 = 1000;
/// What each client has written once: too much, were it kept for all of them.
const WRITTEN_BYTES: usize = 96 << 10;
/// Requests that a client may have under way, and replies that are kept for it.
const SLOTS: u32 = 4;

/// A client on a connection of its own.
struct Client {
    stream: TcpStream,
    session: SessionId,
    xid: u32,
}

impl Client {
    /// One with a session and nothing to reclaim, as it is when it has mounted.
    fn mounted(at: SocketAddr, number: u32) -> Self {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self {
            stream,
            session: SessionId([0; 16]),
            xid: 0,
        };
        let owner = format!("{number:01000}");
        let exchange = Op::ExchangeId(ExchangeId {
            clientowner: ClientOwner {
                verifier: Verifier([1; 8]),
                ownerid: Opaque(owner.as_bytes()),
            },
            flags: ExchangeIdFlags::empty(),
            state_protect: StateProtect::None,
            client_impl_id: None,
        });
        let (clientid, sequence) = client.run(&[exchange], |result| match result {
            OpResult::ExchangeId(ok) => (ok.clientid, ok.sequenceid),
            other => panic!("{other:?}"),
        });
        let channel = ChannelAttributes {
            headerpadsize: 0,
            maxrequestsize: 1 << 20,
            maxresponsesize: 1 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 8,
            maxrequests: SLOTS,
            rdma_ird: None,
        };
        let create = Op::CreateSession(CreateSession {
            clientid,
            sequence,
            flags: CreateSessionFlags::empty(),
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 0,
            sec_parms: List::of(&[]),
        });
        client.session = client.run(&[create], |result| match result {
            OpResult::CreateSession(ok) => ok.sessionid,
            other => panic!("{other:?}"),
        });
        client.run(&[client.sequence(0, 1), Op::ReclaimComplete(false)], |_| ());
        client
    }

    fn sequence(&self, slotid: u32, sequenceid: u32) -> Op<'static> {
        Op::Sequence(Sequence {
            sessionid: self.session,
            sequenceid,
            slotid,
            highest_slotid: SLOTS - 1,
            cachethis: true,
        })
    }

    /// Uses each slot, and writes with the last.
    fn work(&mut self) {
        let data = vec![7; WRITTEN_BYTES];
        let to_file = ["exported", "f"].map(|name| Op::Lookup(Component(name.as_bytes())));
        for slot in 1..SLOTS {
            let [folder, file] = to_file;
            let last = if slot + 1 == SLOTS {
                Op::Write(args::Write {
                    stateid: Stateid {
                        seqid: 0,
                        other: [0; 12],
                    },
                    offset: 0,
                    stable: StableHow::FileSync,
                    data: DataItem::Inline(&data),
                })
            } else {
                Op::GetFh
            };
            let ops = [self.sequence(slot, 1), Op::PutRootFh, folder, file, last];
            self.run(&ops, |_| ());
        }
    }

    /// Carries out operations that all succeed, and has a look at the last result.
    fn run<T>(&mut self, ops: &[Op<'_>], look: impl FnOnce(&OpResult<'_>) -> T) -> T {
        self.xid += 1;
        let mut buffer = vec![0; WRITTEN_BYTES + 4096];
        let mut writer = Writer::new(&mut buffer);
        let header = Call {
            xid: self.xid,
            program: NFS_PROGRAM,
            version: NFS_V4,
            procedure: PROC_COMPOUND,
            credentials: Credentials::Sys(AuthSys {
                stamp: 0,
                machine_name: b"client",
                uid: 0,
                gid: 0,
                gids: Gids::default(),
            }),
        };
        header.write(&mut writer).unwrap();
        let mut compound = CompoundEncoder::new(&mut writer, Opaque(b""), 1).unwrap();
        for op in ops {
            compound.push(op).unwrap();
        }
        let call = writer.written();
        // The header of a record that is one fragment (RFC 5531, section 11).
        let mark = 1 << 31 | u32::try_from(call.len()).unwrap();
        self.stream.write_all(&mark.to_be_bytes()).unwrap();
        self.stream.write_all(call).unwrap();

        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let length = u32::from_be_bytes(mark) & !(1 << 31);
        let mut reply = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut reply).unwrap();
        let mut reader = Reader::new(&reply);
        assert_eq!(Reply::read(&mut reader).unwrap(), Reply::success(self.xid));
        let mut compound = CompoundReply::decode(reader).unwrap();
        let results: Vec<_> = compound.by_ref().map(Result::unwrap).collect();
        assert_eq!(compound.status, Status::OK, "{results:?}");
        look(results.last().unwrap())
    }
}

#[test]
fn root_a_thousand_idle_clients_take_less_than_64_mib() {
    allow_many_descriptors();
    // A tmpfs has handles, whatever the machine is on.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "exported"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::write(folder.join("exported/f"), b"").unwrap();
    let file = folder.join("target.toml");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
         [nfs]\naddresses = [\"127.0.0.1\"]\nport = 0\ntransports = [\"tcp\"]\n\
         lease_time = \"1h\"\ngrace_time = \"1h\"\n\
         [[export]]\npath = {:?}\npseudo = \"/exported\"\naccess = \"read-write\"\n\
         squash = \"none\"\nfile_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n\
         clients = [\"127.0.0.1\"]\n",
        folder.join("exported")
    );
    fs::write(&file, text).unwrap();
    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::begin_under(&["env", &state], &["--config", utf8(&file)]);
    daemon.wait_for_log(&["listening for NFS at "]);
    let log = daemon.log();
    let address = log
        .iter()
        .find_map(|line| line.split_once("listening for NFS at "))
        .unwrap()
        .1;
    let address: SocketAddr = address.trim().parse().unwrap();

    // What is taken once is none of theirs.
    let mut clients: Vec<_> = (0..16).map(|n| Client::mounted(address, n)).collect();
    for client in &mut clients {
        client.work();
    }
    let before = resident_bytes_of(daemon.pid());
    for number in 16..16 + CLIENTS {
        let mut client = Client::mounted(address, number);
        client.work();
        clients.push(client);
    }
    let taken = resident_bytes_of(daemon.pid()).saturating_sub(before);
    eprintln!("{CLIENTS} clients take {} KiB", taken >> 10);
    assert!(taken < 64 << 20, "{taken} bytes");
    // All are still there.
    for client in &mut clients {
        client.run(&[client.sequence(0, 2)], |_| ());
    }
    assert!(daemon.stop().success());
}
