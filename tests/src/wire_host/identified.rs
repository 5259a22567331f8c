//! What a host reads of a namespace.

use capstan_nvme_proto::command::{AdminCommand, Identify};
use capstan_nvme_proto::identify::Cns;
use capstan_nvme_proto::sgl::Sgl;

use super::{Data, Queue, WireHost};

impl WireHost {
    /// Reads one data structure of a namespace.
    ///
    /// # Panics
    /// When that fails.
    pub fn identify(&mut self, nsid: u32, cns: Cns) {
        let sqe = AdminCommand::Identify(Identify::new(cns, nsid)).encode(0, Sgl::EMPTY);
        let (cqe, _) = self.run(Queue::Admin, sqe, Data::Pushed(4096));
        assert!(cqe.status().is_success(), "{cqe:?}");
    }

    /// Reads what Linux reads of a namespace that it takes for its own.
    ///
    /// # Panics
    /// When that fails.
    pub fn accept(&mut self, nsid: u32) {
        for cns in [
            Cns::NAMESPACE_ID_DESCRIPTORS,
            Cns::NAMESPACE,
            Cns::NAMESPACE,
        ] {
            self.identify(nsid, cns);
        }
    }
}
