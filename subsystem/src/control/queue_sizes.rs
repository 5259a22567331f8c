//! Sizes of a queue: what a connection request announces, or a Connect where none came before it.

use capstan_nvme_proto::fabrics::FabricsCommand;
use capstan_nvme_proto::rdma_cm::{CmRequest, PrivateDataError, RejectStatus};
use capstan_nvme_proto::sqe::Sqe;

use super::Target;
use crate::config::{PortId, Transport};

/// Sizes of a queue, agreed on before it is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSizes {
    /// What it is reached by.
    pub transport: Transport,
    /// Queue Identifier the host announces; 0 is an Admin queue.
    pub qid: u16,
    /// Entries of the submission queue: how many receives to post at least.
    pub entries: u16,
    /// Receives the host posts: how many responses it can take at once.
    pub host_receives: u16,
    /// Controller Identifier the host announces for an I/O queue, 0 if none.
    pub cntlid: u16,
}

/// Why a connection request is rejected: [`CmRefusal::reject_status`] goes into the private data
/// of the reject, the message into the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmRefusal {
    /// The private data is malformed.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// There is no such port (any more).
    #[error("its listener was taken out of the configuration")]
    UnknownPort,
    /// A Queue Identifier no controller here has.
    #[error("QID is {qid}, expected 0 to {queues}")]
    Qid {
        /// What the host asked for.
        qid: u16,
        /// I/O queues of a controller.
        queues: u16,
    },
    /// A queue that is too large.
    #[error("HSQSIZE asks for {entries} entries, expected at most {max}; ask for smaller queues")]
    TooLarge {
        /// Entries asked for.
        entries: u32,
        /// Entries there may be.
        max: u16,
    },
}

impl CmRefusal {
    /// The status of the reject. NVMe/RDMA Transport 1.1, section 3.1.
    #[must_use]
    pub fn reject_status(&self) -> RejectStatus {
        match self {
            Self::PrivateData(error) => error.reject_status(),
            Self::UnknownPort => RejectStatus::NO_RESOURCES,
            Self::Qid { .. } => RejectStatus::INVALID_QID,
            Self::TooLarge { .. } => RejectStatus::INVALID_HSQSIZE,
        }
    }
}

impl Target {
    /// Looks at the private data of a connection request on `port`.
    ///
    /// # Errors
    /// Why, and with what status, to reject it.
    pub fn handle_cm_request(
        &self,
        port: PortId,
        private_data: &[u8],
    ) -> Result<QueueSizes, CmRefusal> {
        if !self.ports.contains_key(&port) {
            return Err(CmRefusal::UnknownPort);
        }
        let request = CmRequest::parse(private_data)?;
        if request.qid > self.config.io_queues {
            return Err(CmRefusal::Qid {
                qid: request.qid,
                queues: self.config.io_queues,
            });
        }
        let max = self.entries_max(request.qid);
        let entries = u16::try_from(request.hsqsize)
            .ok()
            .filter(|entries| *entries <= max)
            .ok_or(CmRefusal::TooLarge {
                entries: request.hsqsize,
                max,
            })?;
        Ok(QueueSizes {
            transport: Transport::Rdma,
            qid: request.qid,
            entries,
            host_receives: request.hrqsize,
            cntlid: request.cntlid,
        })
    }

    /// What is known of a queue over NVMe/TCP from its Connect alone, as no connection request
    /// announces it: as large as it asks for, or as it may be. What is wrong with a Connect is said
    /// by [`Target::handle_connect`].
    #[must_use]
    pub fn sizes_of_connect(&self, sqe: &Sqe) -> QueueSizes {
        let (qid, asked) = match FabricsCommand::parse(sqe) {
            Ok(FabricsCommand::Connect(connect)) => (connect.qid, connect.sqsize),
            _ => (0, 1),
        };
        let max = self.entries_max(qid);
        let entries = u16::try_from(asked).unwrap_or(max).min(max);
        QueueSizes {
            transport: Transport::Tcp,
            qid,
            entries,
            host_receives: entries,
            cntlid: 0,
        }
    }

    /// Entries that a queue may have.
    pub(super) fn entries_max(&self, qid: u16) -> u16 {
        if qid == 0 {
            self.config.admin_queue_entries
        } else {
            self.config.io_queue_entries
        }
    }
}
