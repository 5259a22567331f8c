//! The Admin queue of a discovery controller. Any host may have one, so it takes nothing of the
//! queues of permitted hosts: it keeps the place that its connection had among strangers. One page
//! of that carries the data it returns; the other has its responses and, behind them, the SQEs of
//! its commands. These bring no data: what may follow them is a list of SGL descriptors, for which
//! there are two pages more.

use capstan_transport::Memory;
use capstan_transport::limits::{SGL_LIST_PAGE_BYTES, SGL_LIST_PAGES, STRANGER_RECEIVES};
use capstan_transport::rdma::DevicePort;

use super::accept::Refusal;
use super::connection::Connection;
use crate::limits::ADMIN_PIECE_BYTES;

/// Makes a connection the queue of a discovery controller, with a receive for each entry: a host
/// sends that many commands as soon as it has the response to its Connect, and some devices end the
/// connection of a message that finds none. Where receives are shared it goes without.
pub(super) fn keep_place(
    port: &mut DevicePort,
    memory: &Memory,
    connection: &mut Connection,
) -> Result<(), Refusal> {
    let entries = connection.identity.sizes.entries;
    connection.completions_beside_place = port.keep_place(entries)?;
    // The page of its Connect's data, or the one for it where the data came in the capsule.
    let page = memory.strangers.take(ADMIN_PIECE_BYTES);
    let lists = (0..SGL_LIST_PAGES).map(|_| memory.strangers.take(SGL_LIST_PAGE_BYTES));
    let lists = lists.collect::<Option<_>>().ok_or(Refusal::Strangers)?;
    connection.keep_place(page.ok_or(Refusal::Strangers)?, lists);
    if port.wire.receives().are_shared() {
        return Ok(());
    }
    // The two of its place are as good: one of them has the Connect.
    let others = u32::from(entries).saturating_sub(STRANGER_RECEIVES);
    let Some(queue) = connection.transport.rdma() else {
        return Ok(());
    };
    for at in 0..u16::try_from(others).unwrap_or(u16::MAX) {
        queue
            .post_in_place(at)
            .map_err(|error| Refusal::Budget(format!("posting a receive failed: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::rc::Rc;

    use capstan_config::Config;
    use capstan_memory::{PAGE_BYTES, Pages, Pool};
    use capstan_rdma::contract::CmEvent;
    use capstan_rdma::contract::{
        Access, CmId, CompletionQueue, ConnectParam, ConnectionManager, MemoryRegion, PrivateData,
        ProtectionDomain, QpConfig, QueuePair, ReceiveSource, SendOp, SendWr, Sge,
    };
    use capstan_rdma::loopback::{Network, attributes};
    use capstan_subsystem::{ConnId, PortId, QueueSizes, Transport};
    use capstan_transport::limits::{
        PLACE_RESPONSE_BYTES, SGL_LIST_BYTES, SQE_BYTES, STRANGER_COMPLETIONS,
    };
    use capstan_transport::manager::ConnectionId;
    use capstan_transport::rdma::Queue;
    use capstan_transport::{Capsule, CapsuleData, Event, QueueId, Queues};
    use zerocopy::IntoBytes;

    use super::super::connection::{Carrier, Identity, OnDevice};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// Memory with two places, of two receives each.
    fn memory() -> Memory {
        let pool = |bytes| Pool::new(bytes, Pages::Ordinary).unwrap();
        Memory {
            data: pool(4 << 20),
            queues: pool(4 << 20),
            strangers: pool(4 * PAGE_BYTES),
            places: 2,
            zeroes: None,
        }
    }

    /// The next event of one of two ends of a network.
    fn next(network: &Network, cm: &mut dyn ConnectionManager) -> CmEvent {
        loop {
            if let Some(event) = cm.poll(network.now_us()) {
                return event;
            }
            network.advance_to(network.next_deadline_us().expect("something happens"));
        }
    }

    const ENTRIES: u16 = 32;
    /// An SQE, and the longest list.
    const CAPSULE_BYTES: u32 = SQE_BYTES + SGL_LIST_BYTES;

    fn queue_pair(
        (cm, id): (&mut dyn ConnectionManager, CmId),
        (pd, cq): (&Rc<dyn ProtectionDomain>, &Rc<dyn CompletionQueue>),
        receives: ReceiveSource,
    ) -> Box<dyn QueuePair> {
        let config = QpConfig {
            send_cq: Rc::clone(cq),
            recv_cq: Rc::clone(cq),
            send_wr_max: ENTRIES.into(),
            receives,
            send_sge_max: 1,
            recv_sge_max: 2,
            inline_bytes: 0,
        };
        cm.create_qp(id, pd, &config).unwrap()
    }

    /// A connection that was accepted with the default configuration, and its other end, which
    /// waits for no receive.
    struct Accepted {
        network: Network,
        host: Box<dyn QueuePair>,
        /// A capsule of the host for each command, of one byte again and again.
        capsules: (capstan_memory::Buffer, Rc<dyn MemoryRegion>),
        connection: Connection,
        port: DevicePort,
        memory: Memory,
        _ends: [Box<dyn ConnectionManager>; 2],
    }

    impl Accepted {
        fn new() -> Self {
            let network = Network::new(1);
            let there = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
            let [mut cm, mut host_cm] = [HERE, there].map(|address| {
                let provider = network.provider(&[address], attributes()).unwrap();
                provider.manager().unwrap()
            });
            let (_, at) = cm.listen(SocketAddr::new(HERE, 4420), 1).unwrap();
            let from = host_cm.resolve(at, None, 1_000_000, 0).unwrap();
            next(&network, &mut host_cm);
            let device = host_cm.device(from).unwrap();
            let (pd, cq) = (device.allocate_pd().unwrap(), device.create_cq(64).unwrap());
            let receives = ReceiveSource::Own(ENTRIES.into());
            let host = queue_pair((&mut host_cm, from), (&pd, &cq), receives);
            let host_memory = memory();
            let slab = host_memory.data.slab();
            let region = pd.register(slab, 0, slab.len_bytes(), Access::LOCAL_WRITE);
            let capsules = host_memory.data.take(u32::from(ENTRIES) * CAPSULE_BYTES);
            let param = ConnectParam {
                private_data: PrivateData::EMPTY,
                responder_resources: 1,
                initiator_depth: 1,
                rnr_retry_count: 0,
            };
            host_cm.connect(from, &param, 1_000_000, 0).unwrap();
            let id = next(&network, &mut cm).id;

            let toml = "[[listener]]\naddress = \"127.0.0.1\"\n\
                        [[subsystem]]\nnqn = \"nqn.2026-11.org.example:volume\"\nallow_any_host = true\n\
                        [[subsystem.namespace]]\nram = \"1MiB\"\n";
            let shared = Config::from_toml(toml).unwrap().target.shared_receive_queue;
            let memory = memory();
            let device = cm.device(id).unwrap();
            let mut port = DevicePort::open(&device, &memory, shared).unwrap();
            // A queue of a permitted host is there already.
            port.reserve(ENTRIES, 0, &memory.queues).unwrap();
            let slots = port.wire.receives().take_place().unwrap();
            let receives = port.wire.receives().source(ENTRIES);
            let qp = queue_pair((&mut cm, id), (&port.pd, port.wire.cq()), receives);
            let response = memory.strangers.take(PLACE_RESPONSE_BYTES).unwrap();
            let keys = port.place_keys(&memory);
            let shared = port.wire.shared();
            let mut queue = Queue::new(qp.into(), response, keys, shared);
            queue.post_receives(&slots).unwrap();
            cm.accept(id, &param).unwrap();
            next(&network, &mut host_cm);

            let sizes = QueueSizes {
                transport: Transport::Rdma,
                qid: 0,
                entries: ENTRIES,
                host_receives: ENTRIES,
                cntlid: 0,
            };
            let identity = Identity {
                id: ConnId(1),
                index: 0,
                carrier: Carrier::Rdma(OnDevice {
                    fabric: 0,
                    port: 0,
                    id: ConnectionId(id),
                }),
                listener: PortId(1),
                local: at,
                peer: at,
                sizes,
                known: false,
            };
            port.wire.add(identity.queue_id(), &mut queue);
            let queue = capstan_transport::Queue::Rdma(queue);
            let connection = Connection::new(identity, queue, slots, 0);
            Self {
                network,
                host,
                capsules: (capsules.unwrap(), region.unwrap()),
                connection,
                port,
                memory,
                _ends: [Box::new(cm), Box::new(host_cm)],
            }
        }

        /// The host sends as many capsules as its queue has entries before this side looks; returns
        /// those that have found a receive.
        fn flood(&mut self) -> Vec<Capsule> {
            let (capsules, region) = &mut self.capsules;
            for nth in 0..ENTRIES {
                let at = u32::from(nth) * CAPSULE_BYTES;
                capsules.copy_from(at as usize, &capsule(nth));
                let op = SendOp::Send {
                    invalidate: None,
                    solicited: false,
                };
                let sge = Sge {
                    addr: capsules.addr() + u64::from(at),
                    len_bytes: CAPSULE_BYTES,
                    lkey: region.lkey(),
                };
                self.host
                    .post_send(&SendWr {
                        wr_id: 0,
                        op,
                        sges: &[sge],
                        signaled: false,
                        fence: false,
                    })
                    .unwrap();
            }
            self.host.ring_doorbell();
            while let Some(then_us) = self.network.next_deadline_us() {
                self.network.advance_to(then_us);
            }
            let (wire, mut queues) = (&mut self.port.wire, One(&mut self.connection));
            assert!(wire.poll(&mut queues) > 0);
            let events = std::iter::from_fn(|| wire.next_event(&mut queues));
            let capsules = events.filter_map(|(id, event)| match event {
                Event::Capsule(capsule) if id == QueueId(0) => Some(capsule),
                _ => None,
            });
            capsules.collect()
        }
    }

    /// The queue of the connection.
    struct One<'a>(&'a mut Connection);

    impl Queues<Queue> for One<'_> {
        fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
            let queue = self.0.transport.rdma();
            queue.filter(|_| id == QueueId(0))
        }
    }

    fn bytes(capsule: &Capsule) -> Vec<u8> {
        let data = match &capsule.data {
            CapsuleData::Landed(landed) => landed.bytes(),
            CapsuleData::Copied(bytes) => bytes,
            CapsuleData::None => &[],
            CapsuleData::InPlace(_) => panic!("{capsule:?}"),
        };
        [capsule.sqe.as_bytes(), data].concat()
    }

    /// The `nth` capsule that the host sends.
    fn capsule(nth: u16) -> Vec<u8> {
        vec![u8::try_from(nth).unwrap(); CAPSULE_BYTES as usize]
    }

    #[test]
    fn a_stranger_takes_no_receive_but_those_of_its_place() {
        let mut accepted = Accepted::new();
        assert_eq!(accepted.flood().len(), STRANGER_RECEIVES as usize);
    }

    #[test]
    fn a_discovery_controllers_queue_has_a_receive_for_each_entry() {
        let mut accepted = Accepted::new();
        let queues_bytes = accepted.memory.queues.free_bytes();
        let Accepted {
            port,
            memory,
            connection,
            ..
        } = &mut accepted;
        keep_place(port, memory, connection).unwrap();
        let taken = accepted.flood();
        assert_eq!(taken.len(), usize::from(ENTRIES));
        assert_eq!(accepted.memory.queues.free_bytes(), queues_bytes);
        // None is where another one has arrived.
        let capsules: BTreeSet<_> = taken.iter().map(bytes).collect();
        assert_eq!(capsules, (0..ENTRIES).map(capsule).collect());
    }

    #[test]
    fn the_completions_of_a_discovery_controllers_queue_are_promised_to_it() {
        let Accepted {
            mut port,
            memory,
            mut connection,
            ..
        } = Accepted::new();
        keep_place(&mut port, &memory, &mut connection).unwrap();
        let kept = connection.completions_beside_place;
        // 32 receives, 71 responses, and the data of one command in 16 pieces and a request.
        assert_eq!(kept + STRANGER_COMPLETIONS, 32 + 71 + 16 + 1);
        let left = |port: &DevicePort| port.completions_left();
        let before = left(&port);
        port.leave_place(Vec::new(), kept);
        assert_eq!(left(&port), before + kept);
    }
}
