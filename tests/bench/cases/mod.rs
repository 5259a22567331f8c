//! The cases: each measures rows of the table.

mod connections;
mod counts;
mod fairness;
mod file;
mod idle;
mod lines;
mod nfs;
mod nvmet;
mod spdk;
mod verbs_device;
mod wire;

use anyhow::Result;
pub(crate) use counts::play_host;

use crate::Setting;
use crate::figure::Findings;

/// A part of the table that can be run by itself.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Not of the table: runs only when it is asked for.
    pub(crate) extra: bool,
    pub(crate) run: fn(&Setting) -> Result<Findings>,
}

const fn case(
    name: &'static str,
    what: &'static str,
    run: fn(&Setting) -> Result<Findings>,
) -> Case {
    Case {
        name,
        what,
        extra: false,
        run,
    }
}

/// All of them, in the order of the table.
pub(crate) const CASES: [Case; 21] = [
    case("wire", "null and RAM against plain TCP", wire::wire),
    case(
        "wire-crc32c",
        "the same with CRC32c, as between two machines",
        wire::wire_crc32c,
    ),
    case(
        "same-host",
        "the same through shared memory",
        wire::same_host,
    ),
    case(
        "wire-nvme-tcp",
        "the same by NVMe/TCP, without digests",
        wire::wire_nvme_tcp,
    ),
    case(
        "spdk",
        "NVMe/TCP, iWARP and shared memory beside SPDK over NVMe/TCP, where it is installed",
        spdk::run,
    ),
    case("file", "a file against fio io_uring on it", file::run),
    case(
        "instructions",
        "target and host instructions per command (gated)",
        counts::instructions,
    ),
    case(
        "syscalls",
        "target system calls per command (gated)",
        counts::syscalls,
    ),
    case("idle", "CPU time with 64 idle hosts", idle::idle),
    case("wake", "the first command after idle", idle::wake),
    case(
        "connections",
        "2,000 connections against 10",
        connections::connections,
    ),
    case(
        "memory",
        "before the first host, and per connection",
        idle::memory,
    ),
    case(
        "fairness",
        "depth 1 beside 1 MiB writes at depth 128",
        fairness::run,
    ),
    case(
        "lines",
        "words and cache lines that two reactors share (gated)",
        lines::run,
    ),
    case(
        "reactors",
        "two reactors against one (four cores)",
        connections::reactors,
    ),
    case(
        "soft-roce",
        "verbs on Soft-RoCE against Linux nvmet, in the lab",
        nvmet::soft_roce,
    ),
    case(
        "nvmet-tcp",
        "NVMe/TCP against Linux nvmet-tcp, in the lab",
        nvmet::tcp,
    ),
    Case {
        extra: true,
        ..case(
            "nfs-tcp",
            "NFS over TCP against knfsd, in the lab",
            nfs::tcp,
        )
    },
    Case {
        extra: true,
        ..case(
            "nfs-rdma",
            "NFS over Soft-RoCE against knfsd, in the lab",
            nfs::rdma,
        )
    },
    Case {
        extra: true,
        ..case(
            "nfs-counted",
            "both in instructions of one processor, client and server and all",
            nfs::counted,
        )
    },
    Case {
        extra: true,
        ..case(
            "soft-roce-counted",
            "the same in instructions of one processor, host and device and all",
            nvmet::counted,
        )
    },
];
