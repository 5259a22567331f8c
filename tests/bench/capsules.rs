//! Many hosts on one thread that only send capsules and look at the status of their answers: what
//! is measured is the target, and not the thousand hosts that one core has to play.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use capstan_memory::Buffer;
use capstan_nvme_proto::command::{IoCommand, LbaRange, Read};
use capstan_nvme_proto::fabrics::{CNTLID_DYNAMIC, ConnectParameters};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_rdma::contract::{QpNum, WorkCompletion};
use capstan_rdma::iwarp::Config;
use capstan_tests::target::SUBNQN;
use capstan_tests::wire_host::{Queue, Wire, WireHost};
use zerocopy::IntoBytes as _;

use crate::load::{LBA_BYTES, VOLUME_BYTES};
use crate::slices::Slices;

/// Commands in progress of every host.
pub(crate) const DEPTH: u16 = 16;
/// Completions taken at once.
const BATCH: usize = 64;
/// A page for its capsules, one for the receives of each of its queues, and one for a Connect.
const BYTES_PER_HOST: usize = 16 << 10;
/// Where an SQE has its first LBA (NVM Command Set 1.0c §3.2.4: CDW10 and CDW11).
const SLBA_AT: u32 = 40;
const SQE_BYTES: u32 = 64;

/// Hosts that read 4 KiB at random from namespace 1, all of them into the same memory.
pub(crate) struct Readers {
    /// Each with its capsules.
    hosts: Vec<(WireHost, Buffer)>,
    by_qp: HashMap<QpNum, usize>,
    wire: Rc<Wire>,
    completions: Box<[WorkCompletion]>,
    /// Hosts with capsules posted since their last doorbell.
    unrung: Vec<usize>,
    random: u64,
    landing: Buffer,
}

impl Readers {
    /// Connects `count` hosts to a target.
    pub(crate) fn connect(address: SocketAddr, count: u16) -> Result<Self> {
        let config = Config {
            same_host: false,
            ..Config::default()
        };
        let bytes = (usize::from(count) * BYTES_PER_HOST).next_power_of_two();
        let wire = Wire::new(config, 1 << 17, bytes.max(1 << 20));
        let landing = wire.take(LBA_BYTES);
        let mut readers = Self {
            hosts: Vec::new(),
            by_qp: HashMap::new(),
            completions: vec![WorkCompletion::EMPTY; BATCH].into(),
            unrung: Vec::new(),
            random: 0x9E37_79B9_7F4A_7C15,
            landing,
            wire,
        };
        for number in 0..count {
            let parameters = parameters(number)?;
            let host = WireHost::connect_through(Rc::clone(&readers.wire), address, parameters);
            readers
                .by_qp
                .insert(host.qp_num(Queue::Io), readers.hosts.len());
            let capsules = readers.capsules();
            readers.hosts.push((host, capsules));
        }
        Ok(readers)
    }

    fn capsules(&self) -> Buffer {
        let read = IoCommand::Read(Read::new(1, LbaRange { slba: 0, nlb: 1 }));
        let mut capsules = self.wire.take(u32::from(DEPTH) * SQE_BYTES);
        for cid in 0..DEPTH {
            let sqe = read.encode(cid, self.wire.keyed(&self.landing));
            capsules.copy_from(usize::from(cid) * SQE_BYTES as usize, sqe.as_bytes());
        }
        capsules
    }

    /// Posts a command of a host at another address.
    fn again(&mut self, at: usize, cid: u16) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let slba = self.random % (VOLUME_BYTES / u64::from(LBA_BYTES));
        let (host, capsules) = &mut self.hosts[at];
        let offset = u32::from(cid) * SQE_BYTES;
        capsules.copy_from((offset + SLBA_AT) as usize, &slba.to_le_bytes());
        let capsule = self.wire.sge(capsules, offset, SQE_BYTES);
        // One completion says that all sends before it are done.
        host.post(Queue::Io, capsule, cid == 0);
        if self.unrung.last() != Some(&at) {
            self.unrung.push(at);
        }
    }

    fn ring(&mut self) {
        for at in self.unrung.drain(..) {
            self.hosts[at].0.ring_doorbell(Queue::Io);
        }
    }

    /// Commands a second of all hosts, for a time. None is in progress afterwards.
    pub(crate) fn rate(&mut self, time: Duration) -> Result<f64> {
        for at in 0..self.hosts.len() {
            for cid in 0..DEPTH {
                self.again(at, cid);
            }
        }
        self.ring();
        let mut slices = Slices::new();
        while !slices.over(time) {
            let count = self.turn(true)?;
            slices.add(count);
        }
        let mut left = self.hosts.len() as u64 * u64::from(DEPTH);
        while left > 0 {
            left -= self.turn(false)?;
        }
        Ok(slices.mean())
    }

    /// Takes the responses that have come, and sends the same commands again or not.
    fn turn(&mut self, again: bool) -> Result<u64> {
        let mut count = 0;
        let wire = Rc::clone(&self.wire);
        let mut completions = std::mem::take(&mut self.completions);
        for completion in wire.poll(&mut completions) {
            let at = self.by_qp[&completion.qp];
            let cqe = self.hosts[at].0.take_response(Queue::Io, completion);
            if !cqe.status().is_success() {
                bail!("a read of host {at}: {:?}", cqe.status());
            }
            if again {
                self.again(at, cqe.cid.get());
            }
            count += 1;
        }
        self.ring();
        self.completions = completions;
        Ok(count)
    }
}

fn parameters(number: u16) -> Result<ConnectParameters> {
    let mut hostid = [0x5A; 16];
    hostid[14..].copy_from_slice(&number.to_be_bytes());
    let nqn = |text: &str| Nqn::new(text).map_err(|error| anyhow::anyhow!("{text}: {error:?}"));
    Ok(ConnectParameters {
        hostid: HostId(hostid),
        cntlid: CNTLID_DYNAMIC,
        subnqn: nqn(SUBNQN)?,
        hostnqn: nqn(&format!("nqn.2026-11.org.example:load-{number}"))?,
    })
}
