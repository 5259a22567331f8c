//! NFS: `nfs-tcp`, `nfs-rdma` and `nfs-counted`, beside the kernel's server in the lab; and what a
//! READ costs the target in instructions and system calls.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::{List, Opaque};
use capstan_nfs_proto::v4::args::{
    ChannelAttributes, CreateSession, CreateSessionFlags, ExchangeId, ExchangeIdFlags, Open,
    OpenClaim, OpenHow, Read, Sequence, ShareAccess, ShareDeny, StateProtect,
};
use capstan_nfs_proto::v4::client::{CompoundEncoder, Reply as CompoundReply};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{
    ClientId, ClientOwner, Component, SessionId, StateOwner, Stateid, Verifier,
};
use capstan_nfs_proto::v4::{NFS_V4, PROC_COMPOUND};
use capstan_rpcrdma::record::record_mark;
use capstan_rpcrdma::rpc::{AuthSys, Call, Credentials, Gids, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};
use capstan_tests::program::{Daemon, own_address};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::counts::{self, VALGRIND, per_command, strace, system_calls, total, wait_for};
use super::nvmet::{Boot, in_turn, measure};
use crate::Setting;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity};

/// The rows of `tests/lab/guest/compare_nfs.py`: its name, and what it is.
const ROWS: [(&str, &str); 20] = [
    ("tmpfs-read-128k-qd1", "128 KiB READ, depth 1, tmpfs"),
    ("tmpfs-read-128k-qd8", "128 KiB READ, depth 8, tmpfs"),
    ("tmpfs-write-128k-qd1", "128 KiB WRITE, depth 1, tmpfs"),
    ("tmpfs-write-128k-qd8", "128 KiB WRITE, depth 8, tmpfs"),
    (
        "tmpfs-randread-4k-qd16",
        "4 KiB random READ, depth 16, tmpfs",
    ),
    (
        "tmpfs-randwrite-4k-qd16",
        "4 KiB random WRITE, depth 16, tmpfs",
    ),
    ("tmpfs-create", "files made, tmpfs"),
    ("tmpfs-stat", "files looked at, tmpfs"),
    ("tmpfs-unlink", "files removed, tmpfs"),
    ("tmpfs-readdir-10k", "directories of 10,000 entries, tmpfs"),
    ("ext4-read-128k-qd1", "128 KiB READ, depth 1, ext4"),
    ("ext4-read-128k-qd8", "128 KiB READ, depth 8, ext4"),
    ("ext4-write-128k-qd1", "128 KiB WRITE, depth 1, ext4"),
    ("ext4-write-128k-qd8", "128 KiB WRITE, depth 8, ext4"),
    ("ext4-randread-4k-qd16", "4 KiB random READ, depth 16, ext4"),
    (
        "ext4-randwrite-4k-qd16",
        "4 KiB random WRITE, depth 16, ext4",
    ),
    ("ext4-create", "files made, ext4"),
    ("ext4-stat", "files looked at, ext4"),
    ("ext4-unlink", "files removed, ext4"),
    ("ext4-readdir-10k", "directories of 10,000 entries, ext4"),
];

/// Boots the lab once for each round, and runs all rows on both servers in turn.
pub(crate) fn tcp(setting: &Setting) -> Result<Findings> {
    in_turn(setting, &TCP, setting.rounds)
}

/// The same over Soft-RoCE.
pub(crate) fn rdma(setting: &Setting) -> Result<Findings> {
    in_turn(setting, &RDMA, setting.rounds)
}

/// Both once, on one emulated processor whose time is its instructions: what the client, the
/// transport and the server take together.
pub(crate) fn counted(setting: &Setting) -> Result<Findings> {
    let boots = [
        Boot {
            name: "nfs-tcp-counted",
            what: "NFS over TCP, instructions of one processor for all",
            ..COUNTED
        },
        Boot {
            name: "nfs-rdma-counted",
            what: "NFS over Soft-RoCE, instructions of one processor for all",
            transport: "rdma",
            ..COUNTED
        },
    ];
    let arguments = ["3", "1", "0.3"].map(str::to_owned);
    let mut all = Findings::default();
    for boot in &boots {
        let found = measure(setting, boot, 1, &arguments)?;
        all.figures.extend(found.figures);
        all.skipped.extend(found.skipped);
    }
    Ok(all)
}

const TCP: Boot = Boot {
    name: "nfs-tcp",
    what: "NFS over TCP",
    option: "-p",
    seconds: "1800",
    script: "compare-nfs.sh",
    transport: "tcp",
    rows: &ROWS,
    beside: "knfsd",
    unit: "a second",
    bounds: |_row| Bounds {
        aim: Some(1.0),
        ..Bounds::none(Better::Higher)
    },
};
const RDMA: Boot = Boot {
    name: "nfs-rdma",
    what: "NFS over Soft-RoCE",
    transport: "rdma",
    ..TCP
};
const COUNTED: Boot = Boot {
    option: "-i",
    ..TCP
};

/// Requests that a client has outstanding.
const DEPTH: u32 = 16;
const BYTES: u32 = 4096;
/// Of the file.
const FILE_BYTES: u32 = 4 << 20;
/// READs of a short run and of what a long one has more.
const SHORT: u64 = 512;
const MORE: u64 = 8192;

/// What a READ costs the target in instructions, by callgrind.
pub(super) fn instructions(setting: &Setting) -> Result<Figure> {
    let file = setting
        .folder
        .join("callgrind.instructions-nfs-read-4k.out");
    let out = format!("--callgrind-out-file={}", file.display());
    let counted = per_command(SHORT, MORE, |reads| {
        under(&[&VALGRIND[..], &[&out]].concat(), setting, reads)?;
        total(&file, None)
    })?;
    Ok(Figure::plain(
        "instructions-nfs-read-4k",
        "target instructions per 4 KiB READ, NFS version 4.2 over TCP, tmpfs, depth 16",
        Quantity::new("instructions", vec![counted]),
        Bounds::none(Better::Lower).gate(counts::gate(READ_RELEASE, READ_DEV)),
    ))
}

/// The same in system calls, by strace.
pub(super) fn syscalls(setting: &Setting) -> Result<Figure> {
    let counted = per_command(SHORT, MORE, |reads| {
        let (file, tool) = strace(&setting.folder)?;
        under(&tool.each_ref().map(String::as_str), setting, reads)?;
        // strace writes when the target has ended.
        wait_for(&file, system_calls)
    })?;
    Ok(Figure::plain(
        "syscalls-nfs-read-4k",
        "target system calls per 4 KiB READ, NFS version 4.2 over TCP, tmpfs, depth 16",
        Quantity::new("system calls", vec![counted]),
        Bounds::none(Better::Lower).gate(SYSCALLS_PER_READ),
    ))
}

/// Runs a target under a tool, and reads so many times from it.
fn under(tool: &[&str], setting: &Setting, reads: u64) -> Result<()> {
    let folder = setting.folder.join("nfs");
    std::fs::create_dir_all(&folder)?;
    // Mounts of a thread of its own go with it and with the target.
    let counted =
        std::thread::scope(|scope| scope.spawn(|| with_own_tmpfs(tool, &folder, reads)).join());
    counted.map_err(|_| anyhow!("the client of NFS panicked; its message is above"))?
}

fn with_own_tmpfs(tool: &[&str], folder: &Path, reads: u64) -> Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .and_then(|()| mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), none))
        .context("no mounts of its own: run this as root")?;
    let (export, state) = (folder.join("export"), folder.join("state"));
    std::fs::create_dir_all(&export)?;
    std::fs::create_dir_all(&state)?;
    let bytes = usize::try_from(FILE_BYTES)?;
    std::fs::write(export.join("data"), vec![0x5a; bytes])?;
    let address = SocketAddr::new(own_address().ip(), 2049);
    let config = config(folder, &export, address)?;
    let variable = format!("STATE_DIRECTORY={}", state.display());
    let tool = [&["env", &variable][..], tool].concat();
    let config = config.to_str().context("a path of text")?;
    // By name it is found without the tool: valgrind knows openat2(2) from 3.20 on.
    let mut handle = Vec::new();
    serve(&tool[..2], config, || {
        handle = Client::connect(address)?.look_up()?;
        Ok(())
    })?;
    // No client has anything to reclaim, so there is no grace period to wait for.
    std::fs::remove_file(state.join("nfs-clients"))?;
    serve(&tool, config, || {
        Client::connect(address)?.read(&handle, reads)
    })
}

/// Runs a target by `tool` for as long as `work` takes.
fn serve(tool: &[&str], config: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let daemon = Daemon::serve_nfs_under(tool, &["--config", config]);
    work()?;
    let status = daemon.stop();
    if !status.success() {
        bail!("the target ended with {status} under {tool:?}");
    }
    Ok(())
}

fn config(folder: &Path, export: &Path, address: SocketAddr) -> Result<PathBuf> {
    let toml = format!(
        "[nfs]\naddresses = [\"{}\"]\nport = {}\ntransports = [\"tcp\"]\n\
         [[export]]\npath = \"{}\"\npseudo = \"/export\"\nclients = [\"127.0.0.0/8\"]\n\
         file_system = \"5f0d3c6e-0a4b-4b53-9d1c-6f1f2f9f3a10\"\n",
        address.ip(),
        address.port(),
        export.display(),
    );
    let path = folder.join("target.toml");
    std::fs::write(&path, toml)?;
    Ok(path)
}

/// A client of version 4.2 that does one thing: it reads.
struct Client {
    stream: TcpStream,
    xid: u32,
    message: Vec<u8>,
    reply: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let message = vec![0; 64 << 10];
        let reply = Vec::new();
        Ok(Self {
            stream,
            xid: 0,
            message,
            reply,
        })
    }

    /// A COMPOUND as a record.
    fn record(&mut self, ops: &[Op<'_>]) -> Result<Vec<u8>> {
        self.xid += 1;
        let mut writer = Writer::new(&mut self.message);
        let header = Call {
            xid: self.xid,
            program: NFS_PROGRAM,
            version: NFS_V4,
            procedure: PROC_COMPOUND,
            credentials: Credentials::Sys(AuthSys {
                stamp: 0,
                machine_name: b"bench",
                uid: 0,
                gid: 0,
                gids: Gids::default(),
            }),
        };
        header.write(&mut writer)?;
        let mut compound = CompoundEncoder::new(&mut writer, Opaque(b""), 2)?;
        for op in ops {
            compound.push(op)?;
        }
        let bytes = writer.written();
        let mark = record_mark(bytes.len()).context("a short record")?;
        Ok([&mark, bytes].concat())
    }

    /// Receives a reply, and gives its results to `look`.
    fn receive<T>(&mut self, look: impl FnOnce(&[OpResult<'_>]) -> Option<T>) -> Result<T> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let length = u32::from_be_bytes(mark) & !(1 << 31);
        self.reply.resize(usize::try_from(length)?, 0);
        self.stream.read_exact(&mut self.reply)?;
        let mut reader = Reader::new(&self.reply);
        Reply::read(&mut reader).map_err(|error| anyhow!("no reply: {error}"))?;
        let reply = CompoundReply::decode(reader)?;
        let status = reply.status;
        let results = reply.collect::<Result<Vec<_>, _>>()?;
        let found = (status == Status::OK).then(|| look(&results)).flatten();
        found.with_context(|| format!("{status}: {results:?}"))
    }

    fn run<T>(
        &mut self,
        ops: &[Op<'_>],
        look: impl FnOnce(&[OpResult<'_>]) -> Option<T>,
    ) -> Result<T> {
        let record = self.record(ops)?;
        self.stream.write_all(&record)?;
        self.receive(look)
    }

    fn begin(&mut self, name: &str) -> Result<SessionId> {
        let exchange = Op::ExchangeId(ExchangeId {
            clientowner: ClientOwner {
                verifier: Verifier([1; 8]),
                ownerid: Opaque(name.as_bytes()),
            },
            flags: ExchangeIdFlags::empty(),
            state_protect: StateProtect::None,
            client_impl_id: None,
        });
        let (client, sequence) = self.run(&[exchange], |results| match results {
            [OpResult::ExchangeId(ok)] => Some((ok.clientid, ok.sequenceid)),
            _ => None,
        })?;
        let channel = ChannelAttributes {
            headerpadsize: 0,
            maxrequestsize: 1 << 20,
            maxresponsesize: 1 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 16,
            maxrequests: DEPTH,
            rdma_ird: None,
        };
        let create = Op::CreateSession(CreateSession {
            clientid: client,
            sequence,
            flags: CreateSessionFlags::empty(),
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 0,
            sec_parms: List::of(&[]),
        });
        let session = self.run(&[create], |results| match results {
            [OpResult::CreateSession(ok)] => Some(ok.sessionid),
            _ => None,
        })?;
        let done = [sequence_of(session, 0, 1), Op::ReclaimComplete(false)];
        self.run(&done, |_results| Some(()))?;
        Ok(session)
    }

    /// The handle of the file.
    fn look_up(&mut self) -> Result<Vec<u8>> {
        let session = self.begin("looks up")?;
        let ops = [
            sequence_of(session, 0, 2),
            Op::PutRootFh,
            Op::Lookup(Component(b"export")),
            Op::Lookup(Component(b"data")),
            Op::GetFh,
        ];
        self.run(&ops, |results| match results.last() {
            Some(OpResult::GetFh(handle)) => Some(handle.0.to_vec()),
            _ => None,
        })
    }

    fn open(&mut self, handle: &[u8]) -> Result<(SessionId, Stateid)> {
        let session = self.begin("reads")?;
        let open = Op::Open(Open {
            seqid: 0,
            share_access: ShareAccess(1),
            share_deny: ShareDeny(0),
            owner: StateOwner {
                clientid: ClientId(0),
                owner: Opaque(b"owner"),
            },
            openhow: OpenHow::NoCreate,
            claim: OpenClaim::Fh,
        });
        let ops = [sequence_of(session, 0, 2), Op::PutFh(Opaque(handle)), open];
        self.run(&ops, |results| match results {
            [.., OpResult::Open(ok)] => Some((session, ok.stateid)),
            _ => None,
        })
    }

    /// Reads so many times, always as many at once.
    fn read(&mut self, handle: &[u8], reads: u64) -> Result<()> {
        let (session, stateid) = self.open(handle)?;
        let mut sequences = vec![0_u32; usize::try_from(DEPTH)?];
        // The first slot has had two requests.
        sequences[0] = 2;
        let mut offset = 0;
        for _ in 0..reads.div_ceil(DEPTH.into()) {
            let mut records = Vec::new();
            for (slot, sequence) in (0..).zip(&mut sequences) {
                *sequence += 1;
                let ops = [
                    sequence_of(session, slot, *sequence),
                    Op::PutFh(Opaque(handle)),
                    Op::Read(Read {
                        stateid,
                        offset,
                        count: BYTES,
                    }),
                ];
                // Here and there.
                offset = (offset + 37 * u64::from(BYTES)) % u64::from(FILE_BYTES);
                records.extend(self.record(&ops)?);
            }
            self.stream.write_all(&records)?;
            for _ in &sequences {
                self.receive(|results| matches!(results, [_, _, OpResult::Read(_)]).then_some(()))?;
            }
        }
        Ok(())
    }
}

fn sequence_of(session: SessionId, slot: u32, sequence: u32) -> Op<'static> {
    Op::Sequence(Sequence {
        sessionid: session,
        sequenceid: sequence,
        slotid: slot,
        highest_slotid: DEPTH - 1,
        cachethis: false,
    })
}

/// A tenth more than a release had; and less than a dev build had when all READs went to the pool,
/// 21,711.
const READ_RELEASE: f64 = 1.1 * 12_049.0;
const READ_DEV: f64 = 21_500.0;
/// A tenth more than a release had: preadv2 and lseek, and what sixteen READs have together.
const SYSCALLS_PER_READ: f64 = 1.1 * 2.30;
