//! `spdk`: the rows of `wire` beside SPDK's NVMe/TCP target and SPDK's own load, both of the user's
//! installation, in turn.

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
    /// Capstan over TCP, and SPDK.
    tcp: Vec<Turns>,
    /// Capstan through shared memory, and SPDK.
    shared: Vec<Turns>,
}

/// Measures every row, `rounds` times each: the limit, SPDK, Capstan over TCP, Capstan through
/// shared memory.
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
            beside(row, "beside-spdk", "over TCP", &runs.tcp),
            beside(
                row,
                "same-host-beside-spdk",
                "through shared memory",
                &runs.shared,
            ),
        ]
    });
    Ok(figures.collect::<Vec<_>>().into())
}

/// One run of a row. Whoever is not measured is stopped: it would spin on the core of who is.
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
    runs.tcp.push(turn(rate(Link::Tcp)?, theirs));
    runs.shared.push(turn(rate(Link::SharedMemory)?, theirs));
    Ok(())
}

/// Capstan's figure of a row: how many times as fast as SPDK.
fn beside(row: &Row, name: &str, link: &str, runs: &[Turns]) -> Figure {
    let unit = row.unit();
    let better = row.better();
    Figure::in_turn(
        &format!("{name}-{}", row.name),
        &format!("Capstan {link}: {}", row.what),
        runs,
        unit,
        ("SPDK", unit),
        ("times SPDK", move |ours, theirs| better.part(ours, theirs)),
        Bounds {
            now: Some(1.0),
            ..Bounds::none(Better::Higher)
        },
    )
}

/// The path of one of SPDK's programs.
fn find(program: &str) -> Option<PathBuf> {
    let folders = match std::env::var_os(FOLDER) {
        Some(folder) => folder,
        None => std::env::var_os("PATH")?,
    };
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
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
    /// that the system lets everybody have, which often leaves Reno; a route may name any.
    fn start(program: &Path, perf: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let control = congestion_control()?;
        let config = folder.path().join("spdk.json");
        let log = folder.path().join("log");
        fs::write(&config, configuration().to_string())?;
        let output = File::create(&log)?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sh", "-ec"])
            .arg(
                "ip link set lo up
                ip route replace local $1 dev lo table local proto kernel scope host congctl $2
                shift 2
                exec \"$@\"",
            )
            .arg("sh")
            .args([ADDRESS.to_string(), control])
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
            .arg(format!("--net=/proc/{}/ns/net", self.child.id()))
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

/// What the user-space iWARP provider's sockets have: the system's, unless that is BBR.
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
