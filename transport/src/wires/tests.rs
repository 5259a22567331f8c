use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use capstan_nvme_proto::rdma_cm::CmReject;
use capstan_rdma::contract::{
    CmEvent, CmEventKind, CmId, ConnectParam, ConnectionManager, PrivateData, QpConfig, QueuePair,
    ReceiveSource,
};
use capstan_rdma::loopback::{Network, attributes};
use zerocopy::IntoBytes;

use super::*;
use crate::rdma::tests::{HERE, memory};
use crate::tcp::staging::Staging;

const ENTRIES: u16 = 32;

/// The wires of a reactor with memory for two places, and a host.
struct Scene {
    network: Network,
    wires: Wires,
    memory: Memory,
    at: SocketAddr,
    host: Box<dyn ConnectionManager>,
    /// What the host has of each connection.
    host_qps: Vec<Box<dyn QueuePair>>,
}

impl Scene {
    fn new() -> Self {
        let network = Network::new(1);
        let there = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        let [manager, host] = [HERE, there].map(|address| {
            let provider = network.provider(&[address], attributes()).unwrap();
            provider.manager().unwrap()
        });
        let mut wires = Wires::new(Parts {
            managers: vec![("loopback", (Box::new(manager), None))],
            shared_receive_queue: false,
            sockets: tcp::wire::TcpWire::new(Staging::new(1 << 20)).unwrap(),
            closing_sockets_max: 1,
        });
        let (_, at) = wires.listen(0, SocketAddr::new(HERE, 4420), 4).unwrap();
        Self {
            network,
            wires,
            memory: memory(),
            at,
            host: Box::new(host),
            host_qps: Vec::new(),
        }
    }

    fn until<T>(&mut self, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let then_us = self.network.next_deadline_us();
            self.network.advance_to(then_us.expect("something happens"));
        }
    }

    fn host_event(&mut self) -> CmEvent {
        self.until(|scene| scene.host.poll(scene.network.now_us()))
    }

    fn happened(&mut self) -> Happened {
        self.until(|scene| scene.wires.poll_connections(0, scene.network.now_us()))
    }

    /// Nothing more happens to connections.
    fn assert_quiet(&mut self) {
        while let Some(then_us) = self.network.next_deadline_us() {
            self.network.advance_to(then_us);
        }
        let happened = self.wires.poll_connections(0, self.network.now_us());
        assert!(happened.is_none(), "{happened:?}");
    }

    /// The host asks for a connection.
    fn ask(&mut self) -> (CmId, Request) {
        let now_us = self.network.now_us();
        let id = self.host.resolve(self.at, None, 1_000_000, now_us).unwrap();
        self.host_event();
        let device = self.host.device(id).unwrap();
        let (pd, cq) = (device.allocate_pd().unwrap(), device.create_cq(8).unwrap());
        let config = QpConfig {
            send_cq: Rc::clone(&cq),
            recv_cq: cq,
            send_wr_max: 4,
            receives: ReceiveSource::Own(4),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        self.host_qps
            .push(self.host.create_qp(id, &pd, &config).unwrap());
        let param = ConnectParam {
            private_data: PrivateData::new(b"a queue").unwrap(),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 0,
        };
        let now_us = self.network.now_us();
        self.host.connect(id, &param, 1_000_000, now_us).unwrap();
        let happened = self.happened();
        let Happened::Request(request) = happened else {
            panic!("{happened:?}");
        };
        assert_eq!(self.wires.carrier_name(&request), "loopback");
        (id, request)
    }

    fn accept(&mut self, id: QueueId, request: Request) -> Result<Queue, AcceptError> {
        (self.wires).accept(id, request, ENTRIES, &self.memory, self.network.now_us())
    }

    /// A connection that the host has taken up.
    fn connected(&mut self, id: QueueId) -> (CmId, Queue) {
        let (host_id, request) = self.ask();
        let queue = self.accept(id, request).unwrap();
        // Earlier connections may have ended.
        while self.host_event().id != host_id {}
        let happened = self.happened();
        assert!(
            matches!(happened, Happened::Established(of) if of == id),
            "{happened:?}"
        );
        (host_id, queue)
    }
}

/// The queues of a reactor, by their names.
struct All(Vec<Option<Queue>>);

impl Queues<Queue> for All {
    fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.0.get_mut(id.0 as usize)?.as_mut()
    }
}

#[test]
fn events_of_a_connection_name_its_queue_until_that_is_released() {
    let mut scene = Scene::new();
    for round in 0..3 {
        let (host_id, queue) = scene.connected(QueueId(0));
        let (_, other) = scene.connected(QueueId(1));
        scene.host.disconnect(host_id);
        let happened = scene.happened();
        let is_of_it = matches!(happened, Happened::Ended(QueueId(0), _));
        assert!(is_of_it, "round {round}: {happened:?}");
        let mut all = All(vec![Some(queue), Some(other)]);
        for id in [0, 1].map(QueueId) {
            scene.wires.end(id, &mut all, End::Now);
        }
        for queue in all.0.into_iter().flatten() {
            scene.wires.release(queue);
        }
        // Both places are there again for the next round.
        scene.assert_quiet();
    }
}

#[test]
fn a_request_that_finds_no_place_is_refused_and_another_one_accepted_once_there_is_one() {
    let mut scene = Scene::new();
    let (_, first) = scene.connected(QueueId(0));
    let (_, _second) = scene.connected(QueueId(1));
    let (_, request) = scene.ask();
    let refused = scene.accept(QueueId(2), request);
    assert!(matches!(
        refused,
        Err(AcceptError::Resources(NoResources::Places))
    ));
    let event = scene.host_event();
    let CmEventKind::Rejected { private_data, .. } = event.kind else {
        panic!("{event:?}");
    };
    let told = CmReject {
        status: RejectStatus::NO_RESOURCES,
    };
    let bytes = told.encode();
    assert!(private_data.as_bytes().starts_with(bytes.as_bytes()));
    scene.wires.release(first);
    scene.connected(QueueId(2));
}

#[test]
fn a_host_that_goes_before_it_is_accepted_leaves_its_place() {
    let mut scene = Scene::new();
    let (host_id, request) = scene.ask();
    scene.host.disconnect(host_id);
    scene.host.destroy(host_id);
    scene.host_qps.clear();
    scene.assert_quiet();
    let refused = scene.accept(QueueId(0), request).err();
    let why = refused.expect("its host is gone").to_string();
    assert!(why.contains("its peer has given up"), "{why}");
    // Both places are there.
    scene.connected(QueueId(0));
    scene.connected(QueueId(1));
}

#[test]
fn the_socket_that_has_been_ending_longest_is_closed_where_too_many_are() {
    let mut scene = Scene::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let mut hosts = Vec::new();
    let (_, Request { listener: of, .. }) = scene.ask();
    let mut all = All((0..2)
        .map(|number| {
            hosts.push(TcpStream::connect(at).unwrap());
            let (stream, peer) = listener.accept().unwrap();
            let request = Request {
                listener: of,
                local: at,
                peer,
                // No PDU: it is told so by a TermReq, and has time to read that.
                over: Over::Tcp(TcpRequest::new(stream, vec![0xFF; 16])),
            };
            assert_eq!(scene.wires.carrier_name(&request), "tcp");
            Some(scene.accept(QueueId(number), request).unwrap())
        })
        .collect());
    let is_closed = |all: &mut All, id| {
        let queue = all.queue(id).and_then(Queue::tcp).unwrap();
        queue.is_closed()
    };
    scene.wires.end(QueueId(0), &mut all, End::Drained);
    assert!(
        !is_closed(&mut all, QueueId(0)),
        "its host may read the TermReq"
    );
    scene.wires.end(QueueId(1), &mut all, End::Drained);
    assert!(is_closed(&mut all, QueueId(0)));
    assert!(!is_closed(&mut all, QueueId(1)));
    for queue in all.0.into_iter().flatten() {
        scene.wires.release(queue);
    }
}
