//! `spdk`: the rows of `wire` beside SPDK's NVMe/TCP target and SPDK's own load, both of the user's
//! installation, in turn: Capstan's by NVMe/TCP as well, by iWARP over TCP, and through shared
//! memory.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use capstan_tests::program::signal;
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::wire::{self, NSID_RAM, Row};
use crate::figure::{Better, Bounds, Figure, Findings};
use crate::load::{self, LBA_BYTES, Link, Load, NULL, RAM, Target, VOLUME_BYTES};
use crate::turns::Turns;
use crate::{HOST_CORE, Setting, TARGET_CORE};

/// Where SPDK's programs are, if not in `PATH`.
const FOLDER: &str = "CAPSTAN_BENCH_SPDK";
const TARGET: &str = "nvmf_tgt";
const LOAD: &str = "spdk_nvme_perf";
/// Its loopback is that of a network namespace of its own.
const ADDRESS: Ipv4Addr = Ipv4Addr::LOCALHOST;
const NQN: &str = "nqn.2026-11.org.example:spdk";
/// For namespaces and buffers.
const MEMORY_MIB: u64 = 1792;
/// With the load's.
const PAGES_MIB: u64 = MEMORY_MIB + 1024;
/// DPDK clears its memory first.
const START: Duration = Duration::from_secs(60);

/// What one row has found, run by run.
#[derive(Default)]
struct Runs {
    /// SPDK, and its limit.
    theirs: Vec<Turns>,
    /// Capstan by NVMe/TCP, and SPDK.
    nvme_tcp: Vec<Turns>,
    /// Capstan by iWARP over TCP, and SPDK.
    iwarp: Vec<Turns>,
    /// Capstan through shared memory, and SPDK.
    shared: Vec<Turns>,
}

/// What Capstan should have of SPDK where both speak NVMe/TCP.
const AIM: f64 = 1.2;

/// Measures every row, `rounds` times each: the limit, SPDK, and Capstan in three ways.
pub(crate) fn run(setting: &Setting) -> Result<Findings> {
    let (Some(target), Some(perf)) = (find(TARGET), find(LOAD)) else {
        return Ok(Findings::skipped(format!(
            "spdk: it takes SPDK's {TARGET} and {LOAD}, which are not in {}; let {FOLDER} name the folder they are in",
            std::env::var(FOLDER).unwrap_or_else(|_| "PATH".to_owned())
        )));
    };
    if let Some(why) = pages_missing()? {
        return Ok(Findings::skipped(why));
    }
    // First, because it takes all its pages at once.
    let peer = Peer::start(&target, perf)?;
    let ours = Target::spinning(&[NULL, RAM])?;
    load::fill(ours.address, NSID_RAM)?;
    let rows = wire::rows(setting);
    let mut runs: Vec<Runs> = rows.iter().map(|_| Runs::default()).collect();
    for _ in 0..setting.rounds {
        for (row, runs) in rows.iter().zip(&mut runs) {
            measure(row, &ours, &peer, setting.runtime, runs)?;
        }
    }
    let figures = rows.iter().zip(&runs).flat_map(|(row, runs)| {
        let theirs = wire::beside_limit(row, &runs.theirs, Bounds::none(row.better()));
        [
            Figure {
                name: format!("spdk-{}", row.name),
                what: format!("SPDK, NVMe/TCP: {}", row.what),
                ..theirs
            },
            beside(row, Link::NvmeTcp, &runs.nvme_tcp),
            beside(row, Link::Tcp, &runs.iwarp),
            beside(row, Link::SharedMemory, &runs.shared),
        ]
    });
    Ok(figures.collect::<Vec<_>>().into())
}

/// One run of a row. A target that is not measured is stopped: it would spin on the core of the
/// one that is. SPDK is beside what speaks the same protocol.
fn measure(row: &Row, ours: &Target, peer: &Peer, time: Duration, runs: &mut Runs) -> Result<()> {
    let limit = ours.aside(|| row.limit(time / 4))?;
    let theirs = row.value(ours.aside(|| peer.rate(row.load, time))?);
    let rate = |link| -> Result<f64> {
        let load = Load { link, ..row.load };
        // As SPDK counts: altogether.
        Ok(row.value(load::rate(ours.address, load, time)?.mean()))
    };
    let turn = |value, reference| Turns(vec![(value, reference)]);
    runs.theirs.push(turn(theirs, limit));
    runs.nvme_tcp.push(turn(rate(Link::NvmeTcp)?, theirs));
    runs.iwarp.push(turn(rate(Link::Tcp)?, theirs));
    runs.shared.push(turn(rate(Link::SharedMemory)?, theirs));
    Ok(())
}

/// Capstan's figure of a row: how many times as fast as SPDK.
fn beside(row: &Row, link: Link, runs: &[Turns]) -> Figure {
    let unit = row.unit();
    let better = row.better();
    let (name, link, aim) = match link {
        Link::NvmeTcp => ("tcp-beside-spdk", "by NVMe/TCP", Some(AIM)),
        Link::Tcp | Link::TcpCrc32c | Link::VerbsDevice => {
            ("beside-spdk", "by iWARP over TCP", None)
        }
        Link::SharedMemory => ("same-host-beside-spdk", "through shared memory", None),
    };
    Figure::in_turn(
        &format!("{name}-{}", row.name),
        &format!("Capstan {link}: {}", row.what),
        runs,
        unit,
        ("SPDK", unit),
        ("times SPDK", move |ours, theirs| better.part(ours, theirs)),
        Bounds {
            now: Some(1.0),
            aim,
            ..Bounds::none(Better::Higher)
        },
    )
}

/// The absolute path of one of SPDK's programs.
fn find(program: &str) -> Option<PathBuf> {
    let folders = match std::env::var_os(FOLDER) {
        Some(folder) => folder,
        None => std::env::var_os("PATH")?,
    };
    let path = std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())?;
    // The load starts in another folder.
    std::path::absolute(path).ok()
}

/// SPDK's target on the target's core, stopped but while it is measured. It ends with this.
struct Peer {
    child: Child,
    perf: PathBuf,
    /// Its configuration and what it says.
    _folder: TempDir,
}

impl Peer {
    /// In a network namespace whose route gives both ends the congestion control that Capstan's
    /// sockets have: SPDK's take what they are given. The default of a namespace may only be one
    /// that the system lets everybody have, which often leaves Reno; a route may name any. The huge
    /// pages of the system are mounted for it and its load alone, as some systems mount them
    /// nowhere.
    fn start(program: &Path, perf: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let control = congestion_control()?;
        let config = folder.path().join("spdk.json");
        let log = folder.path().join("log");
        let pages = folder.path().join("pages");
        fs::create_dir(&pages)?;
        fs::write(&config, configuration().to_string())?;
        let output = File::create(&log)?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(["unshare", "--net", "--mount", "sh", "-ec"])
            .arg(
                "mount -t hugetlbfs pages $3
                ip link set lo up
                ip route replace local $1 dev lo table local proto kernel scope host congctl $2
                shift 3
                exec \"$@\"",
            )
            .arg("sh")
            .args([ADDRESS.to_string(), control])
            .arg(&pages)
            .arg(program)
            .arg("-m")
            .arg(format!("{:#x}", 1 << TARGET_CORE))
            .arg("-s")
            .arg(MEMORY_MIB.to_string())
            .args(["--no-pci", "--no-rpc-server", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("setpriv does not start; apt-get install util-linux")?;
        let mut peer = Self {
            child,
            perf,
            _folder: folder,
        };
        let start = Instant::now();
        loop {
            let said = fs::read_to_string(&log)?;
            if said.contains("Target Listening on") {
                break;
            }
            if let Some(status) = peer.child.try_wait()? {
                bail!("{} ended with {status}:\n{said}", program.display());
            }
            if start.elapsed() > START {
                bail!(
                    "{} has not said \"Target Listening on\" within {START:?}; is it SPDK's target, of this release? It said:\n{said}",
                    program.display()
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
        signal(peer.child.id(), Signal::SIGSTOP);
        Ok(peer)
    }

    /// I/Os a second of SPDK's load on the host's core, for `time` in whole seconds.
    fn rate(&self, load: Load, time: Duration) -> Result<f64> {
        signal(self.child.id(), Signal::SIGCONT);
        let rate = self.perf(load, time);
        signal(self.child.id(), Signal::SIGSTOP);
        rate
    }

    fn perf(&self, load: Load, time: Duration) -> Result<f64> {
        let output = Command::new("nsenter")
            .args(["--net", "--mount", "--target"])
            .arg(self.child.id().to_string())
            .arg(&self.perf)
            .arg("-c")
            .arg(format!("{:#x}", 1 << HOST_CORE))
            .args(["-w", if load.write { "randwrite" } else { "randread" }])
            .args(["-q", &load.depth.to_string()])
            .args(["-o", &load.bytes.to_string()])
            .args(["-t", &time.as_secs_f64().ceil().max(1.0).to_string()])
            .arg("-r")
            .arg(format!(
                "trtype:TCP adrfam:IPv4 traddr:{ADDRESS} trsvcid:4420 subnqn:{NQN} ns:{}",
                load.nsid
            ))
            .output()
            .context("nsenter does not start; apt-get install util-linux")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let total = said.lines().find_map(|line| line.strip_prefix("Total"));
        let iops = total.and_then(|line| line.split_whitespace().nth(1));
        match iops.and_then(|iops| iops.parse::<f64>().ok()) {
            Some(iops) if output.status.success() && iops > 0.0 => Ok(iops),
            _ => bail!(
                "{} ended with {}:\n{said}{}",
                self.perf.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A process that is stopped dies of it as well. It may have ended already.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// What Capstan's sockets have (`capstan_rdma::pacing`): the system's, unless that is BBR.
fn congestion_control() -> Result<String> {
    let control = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
    Ok(match control.trim() {
        bbr if bbr.starts_with("bbr") => "cubic".to_owned(),
        other => other.to_owned(),
    })
}

/// What to do when the huge pages are not there that SPDK does not start without.
fn pages_missing() -> Result<Option<String>> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let number = |key| -> Result<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
        let number = line.and_then(|rest| rest.split_whitespace().next());
        let number = number.with_context(|| format!("/proc/meminfo has no line {key}"))?;
        Ok(number.parse()?)
    };
    let (kib, free) = (number("Hugepagesize:")?, number("HugePages_Free:")?);
    let needed = (PAGES_MIB << 10).div_ceil(kib);
    Ok((free < needed).then(|| {
        format!(
            "spdk: it takes {needed} huge pages of {kib} KiB, and {free} are free; `sysctl vm.nr_hugepages={needed}` reserves them, \
             `=0` gives them back"
        )
    }))
}

/// Namespaces as ours, and what makes SPDK fastest over loopback: its RAM lends its own pages to
/// the transport. Sends that lend pages to the kernel as well wait for the other side's ACK, which
/// it delays by 40 ms at depth 1.
fn configuration() -> serde_json::Value {
    let blocks = VOLUME_BYTES / u64::from(LBA_BYTES);
    let method = |method: &str, params| json!({ "method": method, "params": params });
    let bdev = |name: &str| json!({ "name": name, "num_blocks": blocks, "block_size": LBA_BYTES });
    let namespace = |bdev: &str| {
        let params = json!({ "nqn": NQN, "namespace": { "bdev_name": bdev } });
        method("nvmf_subsystem_add_ns", params)
    };
    let address = json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": ADDRESS.to_string(), "trsvcid": "4420"
    });
    json!({ "subsystems": [
        { "subsystem": "sock", "config": [method("sock_impl_set_options", json!({
            "impl_name": "posix",
            "enable_zerocopy_send_server": false,
            "enable_zerocopy_send_client": false,
        }))] },
        { "subsystem": "bdev", "config": [
            method("bdev_null_create", bdev("null")),
            method("bdev_malloc_create", bdev("ram")),
        ] },
        { "subsystem": "nvmf", "config": [
            method("nvmf_create_transport", json!({
                "trtype": "TCP", "zcopy": true, "max_queue_depth": 256
            })),
            method("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
            namespace("null"),
            namespace("ram"),
            method("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": address })),
        ] },
    ] })
}
