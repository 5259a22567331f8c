//! What connections cost that are idle.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use capstan_memory::{Pages, Pool};
use capstan_rdma::contract::{
    Access, CmEventKind, CmId, ConnectParam, ConnectionManager, PrivateData, QpConfig, QueuePair,
    ReceiveSource, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use capstan_rdma::iwarp::{Config, Provider};
use capstan_rpc_server::Program;

use super::{null, rdma};
use crate::harness::{Running, message};
use crate::program::{NULL, PATIENCE, Tester};
use crate::rdma_client::{CallOf, OFFER, RdmaClient};

/// Clients, each of which has had a call answered.
const CLIENTS: usize = 1000;
/// What the issue of the NFS server allows for them, in bytes.
const ALLOWED_BYTES: usize = 64 << 20;
const PAGE_BYTES: u32 = 4096;

/// Memory of this process that is there, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_ascii_whitespace().nth(1).unwrap();
    pages.parse::<usize>().unwrap() * 4096
}

/// Many connections of one client, each with one receive and one call.
struct Many {
    // Dropped first.
    qps: Vec<(CmId, Box<dyn QueuePair>)>,
    cm: Box<dyn ConnectionManager>,
}

fn param() -> ConnectParam {
    ConnectParam {
        private_data: PrivateData::new(&OFFER.encode().unwrap()).unwrap(),
        responder_resources: 4,
        initiator_depth: 0,
        rnr_retry_count: 7,
    }
}

fn connect_many(address: SocketAddr) -> Many {
    let provider = Provider::new(Config {
        same_host: false,
        ..Config::default()
    });
    let provider = provider.unwrap();
    let device = provider.device();
    let pd = device.allocate_pd().unwrap();
    let pool = Pool::new(16 << 20, Pages::Ordinary).unwrap();
    let slab = pool.slab();
    let region = pd
        .register(slab, 0, slab.len_bytes(), Access::LOCAL_WRITE)
        .unwrap();
    let cq = device.create_cq(4096).unwrap();
    let mut cm = provider.connection_manager().unwrap();
    let call = CallOf::inline(1, &message(1, NULL, |_| {})).bytes();
    let len_bytes = u32::try_from(call.len()).unwrap();
    let mut page = pool.take(PAGE_BYTES).unwrap();
    page.copy_from(0, &call);
    let send = Sge {
        addr: page.addr(),
        len_bytes,
        lkey: region.lkey(),
    };
    let mut qps = Vec::new();
    // All answers may land in one page: nothing looks at them.
    let receive = pool.take(PAGE_BYTES).unwrap();
    let receive = Sge {
        addr: receive.addr(),
        len_bytes: PAGE_BYTES,
        lkey: region.lkey(),
    };
    let start = Instant::now();
    let (mut begun, mut answered) = (0, 0);
    while answered < CLIENTS {
        assert!(
            start.elapsed() < 3 * PATIENCE,
            "{begun} begun, {answered} answered"
        );
        if begun < CLIENTS && begun < answered + 32 {
            cm.resolve(address, None, 5_000_000, 0).unwrap();
            begun += 1;
        }
        while let Some(event) = cm.poll(0) {
            match event.kind {
                CmEventKind::Resolved => {
                    let config = QpConfig {
                        send_cq: Rc::clone(&cq),
                        recv_cq: Rc::clone(&cq),
                        send_wr_max: 4,
                        receives: ReceiveSource::Own(4),
                        send_sge_max: 1,
                        recv_sge_max: 1,
                        inline_bytes: 0,
                    };
                    let mut qp = cm.create_qp(event.id, &pd, &config).unwrap();
                    qp.post_recv(1, &[receive]).unwrap();
                    qps.push((event.id, qp));
                    cm.connect(event.id, &param(), 5_000_000, 0).unwrap();
                }
                CmEventKind::Established { .. } => {
                    let (_, qp) = qps.iter_mut().find(|(id, _)| *id == event.id).unwrap();
                    let op = SendOp::Send {
                        invalidate: None,
                        solicited: false,
                    };
                    let wr = SendWr {
                        wr_id: 2,
                        op,
                        sges: &[send],
                        signaled: true,
                        fence: false,
                    };
                    qp.post_send(&wr).unwrap();
                    qp.ring_doorbell();
                }
                other => panic!("{other:?}"),
            }
        }
        let mut completions = [WorkCompletion::EMPTY; 64];
        let count = cq.poll(&mut completions);
        for completion in &completions[..count] {
            assert_eq!(completion.status, WcStatus::Success);
            answered += usize::from(completion.opcode == WcOpcode::Recv);
        }
        std::thread::yield_now();
    }
    Many { qps, cm }
}

#[test]
fn a_thousand_idle_connections_take_little_memory() {
    capstan_reactor::raise_descriptor_limit().unwrap();
    let program = Tester::new();
    let server = Running::start_alone(rdma(), Arc::clone(&program) as Arc<dyn Program>);
    let mut client = RdmaClient::connect(server.address(), super::SOCKETS);
    null(&mut client, 1);
    let before = resident_bytes();
    let mut many = connect_many(server.address());
    // With the memory of the clients, which are in this process too.
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < ALLOWED_BYTES, "{} KiB", taken >> 10);
    assert_eq!(program.ended(), 0);
    null(&mut client, 2);
    for (id, qp) in many.qps.drain(..) {
        drop(qp);
        many.cm.destroy(id);
    }
    program.until_ended(CLIENTS);
}
