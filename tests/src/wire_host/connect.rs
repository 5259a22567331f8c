//! How a connection becomes a queue.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::FabricsCommand;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::{Cattr, Connect, ConnectParameters};
use capstan_nvme_proto::rdma_cm::CmRequest;
use capstan_nvme_proto::sgl::Sgl;
use capstan_rdma::contract::{
    CmEventKind, CmId, ConnectParam, PrivateData, QpConfig, ReceiveSource,
};
use capstan_reactor::Clock;
use zerocopy::IntoBytes;

use super::wire::RECV;
use super::{CQE_BYTES, ConnectedQueue, Data, PATIENCE, Queue, WireHost};

impl WireHost {
    pub(super) fn connect_queue(
        &mut self,
        address: SocketAddr,
        queue: Queue,
        parameters: &ConnectParameters,
    ) -> Cqe {
        let cntlid = match queue {
            Queue::Admin => 0,
            Queue::Io => parameters.cntlid,
        };
        self.establish(address, queue, queue.qid(), cntlid);
        self.connect_established(queue, parameters)
    }

    /// Makes the connection that is to be a queue.
    pub(super) fn establish(&mut self, address: SocketAddr, queue: Queue, qid: u16, cntlid: u16) {
        let id = self
            .wire
            .cm
            .borrow_mut()
            .resolve(address, self.wire.source, 5_000_000, Clock.now_us())
            .expect("resolving begins");
        self.wait_for(id, "resolving", |kind| {
            matches!(kind, CmEventKind::Resolved)
        });
        let entries = self.entries(queue);
        let config = QpConfig {
            send_cq: Rc::clone(&self.wire.cq),
            recv_cq: Rc::clone(&self.wire.cq),
            send_wr_max: u32::from(entries),
            receives: ReceiveSource::Own(u32::from(entries)),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        let mut qp = self
            .wire
            .cm
            .borrow_mut()
            .create_qp(id, &self.wire.pd, &config)
            .expect("a queue pair");
        let receives = self.wire.take(u32::from(entries) * CQE_BYTES);
        for at in 0..u32::from(entries) {
            let sge = self.wire.sge(&receives, at * CQE_BYTES, CQE_BYTES);
            qp.post_recv(RECV | u64::from(at), &[sge])
                .expect("a receive");
        }
        let request = CmRequest {
            qid,
            hrqsize: entries,
            hsqsize: entries.into(),
            cntlid,
        };
        let request = request.encode().expect("a size that can be encoded");
        let param = ConnectParam {
            private_data: PrivateData::new(request.as_bytes()).expect("32 bytes"),
            responder_resources: 16,
            initiator_depth: 0,
            rnr_retry_count: 7,
        };
        self.wire
            .cm
            .borrow_mut()
            .connect(id, &param, 5_000_000, Clock.now_us())
            .expect("connecting begins");
        self.wait_for(id, "connecting", |kind| {
            matches!(kind, CmEventKind::Established { .. })
        });
        self.queues
            .insert(queue, ConnectedQueue { qp, receives, id });
    }

    pub(super) fn connect_established(
        &mut self,
        queue: Queue,
        parameters: &ConnectParameters,
    ) -> Cqe {
        let connect = Connect {
            qid: queue.qid(),
            sqsize: self.entries(queue).into(),
            cattr: Cattr(0),
            kato_ms: self.manner.kato_ms,
        };
        let sqe = FabricsCommand::Connect(connect).encode(0, Sgl::EMPTY);
        let data = parameters.encode();
        self.run(queue, sqe, Data::InCapsule(data.as_bytes())).0
    }

    pub(super) fn wait_for(&mut self, id: CmId, what: &str, done: impl Fn(&CmEventKind) -> bool) {
        let start = Instant::now();
        loop {
            while let Some(event) = self.wire.event() {
                if event.id == id && done(&event.kind) {
                    return;
                }
                assert!(
                    !matches!(
                        event.kind,
                        CmEventKind::Rejected { .. }
                            | CmEventKind::Failed(_)
                            | CmEventKind::Disconnected { .. }
                    ),
                    "{what}: {:?}",
                    event.kind
                );
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not end");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
