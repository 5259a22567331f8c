//! What carries the queues of an association: what was asked for, what was taken, what is in use.

use std::time::Duration;

use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::ProviderKind;

use super::engine::AssociationEngine;
use crate::transports::TakenTransport;
use crate::wire::Wire;

impl AssociationEngine {
    /// The transport was to be found, and this one was; from now on each step of a connection may
    /// take `connect_timeout`.
    pub(crate) fn set_taken(&mut self, taken: TakenTransport, connect_timeout: Duration) {
        let timeout_us = u64::try_from(connect_timeout.as_micros()).unwrap_or(u64::MAX);
        self.config.host.connect_timeout_us = timeout_us;
        self.host.set_connect_timeout_us(timeout_us);
        self.taken = Some(taken);
    }

    /// The transport, where it was to be found.
    pub(crate) fn taken(&self) -> Option<&TakenTransport> {
        self.taken.as_ref()
    }

    /// The provider of RDMA, where this library has chosen it.
    pub(crate) fn set_provider(&mut self, provider: Option<ProviderKind>) {
        self.provider = provider;
    }

    /// What carries the queues, or did when the association was last live; `None` before.
    pub(crate) fn went_by(&self) -> Option<&Wire> {
        self.went_by.as_ref()
    }

    /// The association is live: what carries its queues is known, and a line of the log.
    pub(super) fn note_wire(&mut self, again: bool) {
        let Some(wire) = Wire::of(&self.wire, self.provider) else {
            return;
        };
        let destination = self.config.destination;
        let subnqn = self.config.host.subnqn.as_str();
        let begin = match again {
            true => "connected again",
            false => "connected",
        };
        let lacks = self.lacks(&wire).unwrap_or_default();
        tracing::info!(%destination, subnqn, "{begin} over {wire}{lacks}");
        self.went_by = Some(wire);
    }

    /// Of the digests that were asked for, those that the target does not have, in words.
    fn lacks(&self, wire: &Wire) -> Option<&'static str> {
        let &Wire::Tcp {
            header_digest,
            data_digest,
        } = wire
        else {
            return None;
        };
        let asked = self.asked_digests;
        let lacks_header = asked.contains(Digests::HEADER) && !header_digest;
        let lacks_data = asked.contains(Digests::DATA) && !data_digest;
        match (lacks_header, lacks_data) {
            (false, false) => None,
            (true, false) => {
                Some("; header digests were asked for, which the target does not have")
            }
            (false, true) => Some("; data digests were asked for, which the target does not have"),
            (true, true) => Some("; digests were asked for, which the target does not have"),
        }
    }
}
