//! NFS: `nfs-tcp`, `nfs-rdma` and `nfs-counted`, beside the kernel's server in the lab; and what a
//! READ costs the target in instructions and system calls.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use capstan_nfs_client::client::Client;
use capstan_nfs_client::tcp;
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args::{Open, OpenClaim, OpenHow, Read, ShareAccess, ShareDeny};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::types::{ClientId, Component, StateOwner};
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
        handle = look_up(address);
    })?;
    // No client has anything to reclaim, so there is no grace period to wait for.
    std::fs::remove_file(state.join("nfs-clients"))?;
    serve(&tool, config, || read(address, &handle, reads))
}

/// Runs a target by `tool` for as long as `work` takes.
fn serve(tool: &[&str], config: &str, work: impl FnOnce()) -> Result<()> {
    let daemon = Daemon::serve_nfs_under(tool, &["--config", config]);
    work();
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

/// The handle of the file.
fn look_up(address: SocketAddr) -> Vec<u8> {
    let mut client = Client::mount(tcp::connect(address), b"looks up", 2, DEPTH);
    let [folder, file] = ["export", "data"].map(|name| Op::Lookup(Component(name.as_bytes())));
    let ops = [Op::PutRootFh, folder, file, Op::GetFh];
    client.run(0, &ops, |results| match results.last() {
        Some(OpResult::GetFh(handle)) => handle.0.to_vec(),
        other => panic!("{other:?}"),
    })
}

/// Reads so many times, always as many at once.
fn read(address: SocketAddr, handle: &[u8], reads: u64) {
    let mut client = Client::mount(tcp::connect(address), b"reads", 2, DEPTH);
    let put = Op::PutFh(Opaque(handle));
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
    let stateid = client.run(0, &[put, open], |results| match results {
        [_, OpResult::Open(ok)] => ok.stateid,
        other => panic!("{other:?}"),
    });
    let mut offset = 0;
    for _ in 0..reads.div_ceil(DEPTH.into()) {
        let requests = (0..DEPTH).map(|_slot| {
            let read = Op::Read(Read {
                stateid,
                offset,
                count: BYTES,
            });
            // Here and there.
            offset = (offset + 37 * u64::from(BYTES)) % u64::from(FILE_BYTES);
            [put, read]
        });
        let requests: Vec<_> = requests.collect();
        let by_slot: Vec<_> = (0..).zip(requests.iter().map(|ops| &ops[..])).collect();
        client.send(&by_slot);
        for _ in &requests {
            client.receive(|results| assert!(matches!(results, [_, OpResult::Read(_)])));
        }
    }
}

/// A tenth more than a release had; and less than a dev build had when all READs went to the pool,
/// 21,711.
const READ_RELEASE: f64 = 1.1 * 12_049.0;
const READ_DEV: f64 = 21_500.0;
/// A tenth more than a release had: preadv2 and lseek, and what sixteen READs have together.
const SYSCALLS_PER_READ: f64 = 1.1 * 2.30;
