//! The engine against a target over the loopback provider, in virtual time.

mod buffers;
mod commands;
mod device;
mod life;
mod losses;
mod peer;
mod replay;
pub(crate) mod tcp;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use capstan_memory::Buffer;
use capstan_nvme_proto::nqn::Nqn;
use capstan_rdma::contract::{ConnectionManager, DeviceAttributes};
use capstan_rdma::loopback::{Network, attributes};

use crate::driver::engine::{AssociationConfig, AssociationEngine};
use crate::driver::io::{Completion, Io, Op, Source};
use crate::host::{Event, HostConfig};
use crate::options::{ReplayWrites, Transport};
use crate::scripted::{HOSTID, LBA_BYTES};
use capstan_transport::host::HostTransport;
use peer::Peer;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Virtual time a test may take.
const TIME_MAX_US: u64 = 3_600_000_000;

struct World {
    engine: AssociationEngine,
    peer: Peer,
    network: Network,
    /// Of the host's machine on the network.
    host: u32,
    events: Vec<String>,
}

fn config() -> AssociationConfig {
    AssociationConfig {
        host: HostConfig {
            subnqn: Nqn::new("nqn.2026-11.io.capstan:s").unwrap(),
            hostnqn: Nqn::new("nqn.2026-11.io.capstan:h").unwrap(),
            hostid: HOSTID,
            nr_io_queues: 2,
            queue_size: 8,
            kato_ms: 5000,
            connect_timeout_us: 3_000_000,
            admin_timeout_us: 10_000_000,
            reconnect_delay_ms: 10_000,
            ctrl_loss_tmo_us: Some(60_000_000),
            replay_writes: ReplayWrites::Fenced,
            scan_namespaces: true,
            transport: Transport::Rdma,
            disable_sq_flow_control: false,
        },
        destination: SocketAddr::new(TARGET, 4420),
        source: None,
        io_timeout_us: 5_000_000,
        data_bytes: 16 << 20,
        seed: 1,
    }
}

impl World {
    fn with(config: AssociationConfig, host: DeviceAttributes) -> Self {
        let network = Network::new(1);
        let target = network.provider(&[TARGET], attributes()).unwrap();
        let mut target_cm = target.manager().unwrap();
        target_cm.listen(config.destination, 16).unwrap();
        let host = network.provider(&[HOST], host).unwrap();
        let cm = Box::new(host.manager().unwrap());
        Self {
            engine: AssociationEngine::new(config, HostTransport::Rdma(cm), 0).unwrap(),
            peer: Peer::new(Box::new(target_cm)),
            network,
            host: host.index(),
            events: Vec::new(),
        }
    }

    fn live() -> Self {
        let mut world = Self::with(config(), attributes());
        world.until_live();
        world
    }

    fn until_live(&mut self) {
        self.until(|world| world.engine.host().is_live());
    }

    fn now_us(&self) -> u64 {
        self.network.now_us()
    }

    /// One step: both sides turn, or time jumps to what comes next.
    fn step(&mut self) {
        let now_us = self.now_us();
        let busy = self.engine.turn(now_us) | self.peer.turn(now_us);
        while let Some(event) = self.engine.poll_event() {
            self.events.push(match event {
                Event::Live { again } => format!("live {again}"),
                Event::Lost { cause } => format!("lost: {cause}"),
                Event::AttemptFailed { .. } => continue,
                Event::Failed { cause } => format!("failed: {cause}"),
                Event::CommandDone { token, result } => match result {
                    Ok(reply) => format!("done {token}: {}", reply.cqe.status()),
                    Err(error) => format!("done {token}: {error}"),
                },
                other => format!("{other:?}"),
            });
        }
        if !busy {
            let next = [
                self.engine.next_deadline_us(),
                self.network.next_deadline_us(),
                self.peer.cm.next_deadline_us(),
            ];
            let next = next.into_iter().flatten().filter(|&at| at > now_us).min();
            self.network.advance_to(next.unwrap_or(now_us + 1000));
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            self.step();
            assert!(
                self.now_us() < TIME_MAX_US,
                "{}, {:?}",
                self.engine.status(self.now_us()),
                self.events
            );
        }
    }

    fn pass(&mut self, us: u64) {
        let end = self.now_us() + us;
        self.until(|world| world.now_us() >= end);
    }

    fn attention(&self, nsid: u32) -> Option<String> {
        self.engine.attention(nsid, self.now_us())
    }

    fn buffer(&self, blocks: usize, fill: u8) -> Buffer {
        let len = blocks * LBA_BYTES;
        let mut buffer = self
            .engine
            .data_pool()
            .take(u32::try_from(len).unwrap())
            .unwrap();
        buffer.copy_from(0, &vec![fill; len]);
        buffer
    }

    fn submit(&mut self, token: u64, op: Op, buffer: Option<Buffer>) {
        let io = Io { nsid: 1, op };
        self.engine
            .submit(Source::default(), token, io, buffer)
            .unwrap();
    }

    fn next(&mut self) -> Completion {
        let mut found = None;
        self.until(|world| {
            found = world.engine.poll_completion();
            found.is_some()
        });
        found.unwrap()
    }

    fn write(&mut self, slba: u64, nlb: u32, fill: u8) -> Completion {
        let buffer = self.buffer(nlb as usize, fill);
        let op = Op::Write {
            slba,
            nlb,
            fua: false,
        };
        self.submit(slba, op, Some(buffer));
        self.next()
    }

    fn read(&mut self, slba: u64, nlb: u32) -> Vec<u8> {
        let buffer = self.buffer(nlb as usize, 0xEE);
        self.submit(slba, Op::Read { slba, nlb }, Some(buffer));
        let completion = self.next();
        assert!(completion.result.is_ok(), "{:?}", completion.result);
        bytes(&completion)
    }
}

fn bytes(completion: &Completion) -> Vec<u8> {
    let buffer = completion.buffer.as_ref().unwrap();
    let mut bytes = vec![0; buffer.len_bytes() as usize];
    buffer.copy_to(0, &mut bytes);
    bytes
}
