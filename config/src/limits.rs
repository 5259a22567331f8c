//! Every bound and default of the configuration, in one place.

use std::ops::RangeInclusive;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The registered NVMe over RDMA port (IANA, `nvme-rdma`/`nvmf` 4420).
pub const DEFAULT_PORT: u16 = 4420;
/// Largest configuration file that is read, in bytes.
pub const CONFIG_BYTES_MAX: u64 = MIB;

/// Files of the folder beside a configuration file.
pub(crate) const CONFIG_FILES_MAX: usize = 64;
/// Most `[[listener]]` tables; each is one port of the discovery log.
pub const LISTENERS_MAX: usize = 64;
/// Most `[[subsystem]]` tables.
pub const SUBSYSTEMS_MAX: usize = 1024;
/// Most namespaces of one subsystem, and the largest NSID: one Active Namespace ID list
/// (CNS 02h, 4096 bytes of 32-bit NSIDs) holds them all.
pub const NAMESPACES_MAX: u32 = 1024;
/// ANA groups of a subsystem: as many as Linux has, so that a configuration can move.
pub(crate) const ANA_GROUP: RangeInclusive<u64> = 1..=128;
/// Most `[[subsystem.ana]]` tables of a subsystem: one for each group and listener.
pub(crate) const ANA_TABLES_MAX: usize = 128 * LISTENERS_MAX;
/// Most entries of one `allowed_hosts`.
pub const ALLOWED_HOSTS_MAX: usize = 4096;

/// The port of NFS (IANA, `nfs`).
pub const DEFAULT_NFS_PORT: u16 = 2049;
/// The port of NFS over RDMA (IANA, `nfsrdma`; RFC 8267, section 7).
pub const DEFAULT_NFS_RDMA_PORT: u16 = 20049;
/// Where metrics are told, where an address alone is written.
pub const DEFAULT_METRICS_PORT: u16 = 9899;
/// Of so many commands the stages of one are timed. Six looks at the clock are some 500
/// instructions: of one command in 64, less than ten for each.
pub(crate) const DEFAULT_METRICS_SAMPLE: u32 = 64;
pub(crate) const METRICS_SAMPLE: RangeInclusive<u64> = 0..=1_000_000;
/// Most addresses of `[nfs]`, as many as listeners.
pub const NFS_ADDRESSES_MAX: usize = LISTENERS_MAX;
/// Most `[[export]]` tables: each is a directory that is kept open.
pub const EXPORTS_MAX: usize = capstan_exports::limits::EXPORTS;
/// Most entries of `clients` of one export: all are compared with the address of a call.
pub const CLIENTS_MAX: usize = 256;
/// Threads that carry out what clients ask for. Each waits for one file at a time.
pub(crate) const NFS_THREADS: RangeInclusive<u64> = 1..=256;
/// Of the default, two for each core.
pub(crate) const DEFAULT_NFS_THREADS: RangeInclusive<usize> = 4..=32;
/// Memory for data that NFS moves by RDMA: what the server itself asks for at least, and the memory
/// of a large machine.
pub(crate) const NFS_MEMORY_BYTES: RangeInclusive<u64> = 32 * MIB..=64 * GIB;
/// 64 transfers of the longest kind at a time.
pub(crate) const DEFAULT_NFS_MEMORY_BYTES: u64 = 64 * MIB;
/// A client that is idle renews its lease before two thirds of it are over, and each renewal may
/// take seconds; a client that is gone keeps what it has locked for as long.
pub(crate) const LEASE_TIME: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// What Linux has.
pub(crate) const DEFAULT_LEASE_TIME: Duration = Duration::from_secs(90);
/// The kernel takes 2^32 - 1 for no ID.
pub(crate) const ANONYMOUS_ID: RangeInclusive<u64> = 0..=u32::MAX as u64 - 1;
pub(crate) const EXPORT_ID: RangeInclusive<u64> = 0..=u32::MAX as u64;

pub(crate) const REACTORS: RangeInclusive<u64> = 1..=256;
pub(crate) const CORE: RangeInclusive<u64> = 0..=4095;
pub(crate) const MEMORY_BUDGET_BYTES: RangeInclusive<u64> = 4 * MIB..=1024 * GIB;
/// As many controllers as the target has identifiers (CNTLID) for.
pub(crate) const HOSTS_MAX: RangeInclusive<u64> = 1..=4096;
/// What PCI-SIG assigns has 16 bits; all ones stand for no device.
pub(crate) const VENDOR_ID: RangeInclusive<u64> = 0..=0xFFFE;
pub(crate) const SPIN: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(100);

pub(crate) const IO_QUEUES_MAX: RangeInclusive<u64> = 1..=128;
pub(crate) const DEPTH_MAX: RangeInclusive<u64> = 16..=1024;
/// In-capsule data of an I/O queue. Fixed: two pages, so that it can go to disk from where it was
/// received.
pub const IN_CAPSULE_DATA_BYTES: u64 = 8 * KIB;
/// Largest data transfer of one command. Fixed: MDTS 8 in units of CAP.MPSMIN, 4 KiB.
pub const TRANSFER_BYTES_MAX: u64 = MIB;

/// Identify Controller SN and MN are 20 and 40 bytes of ASCII (NVMe Base 2.1, Identify Controller
/// data structure).
pub(crate) const SERIAL_BYTES_MAX: usize = 20;
pub(crate) const MODEL_BYTES_MAX: usize = 40;
/// Leaves at least 12 hexadecimal digits (48 bits) of a derived serial number.
pub(crate) const SERIAL_PREFIX_BYTES_MAX: usize = 8;

pub(crate) const DEFAULT_MODEL: &str = "Capstan";
pub(crate) const DEFAULT_SERIAL_PREFIX: &str = "CAP";
pub(crate) const DEFAULT_MEMORY_BUDGET_BYTES: u64 = 256 * MIB;
pub(crate) const DEFAULT_HOSTS_MAX: u32 = 1024;
pub(crate) const DEFAULT_SPIN: Duration = Duration::from_micros(50);
pub(crate) const DEFAULT_IO_QUEUES_MAX: u16 = 128;
pub(crate) const DEFAULT_DEPTH_MAX: u16 = 128;
