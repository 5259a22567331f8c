//! Listeners, which outlive their device.

use std::net::SocketAddr;

use super::super::error::step;
use super::super::raw::cm::Id;
use super::{Entry, Manager, State};
use crate::contract::{CmError, CmId};

/// How often a listener whose device is gone tries again.
const RETRY_US: u64 = 1_000_000;

/// What to listen at.
#[derive(Clone, Copy)]
pub(super) struct Listening {
    addr: SocketAddr,
    backlog: u32,
}

impl Manager {
    fn bind(&self, addr: SocketAddr, backlog: u32) -> Result<(Id, SocketAddr), CmError> {
        let failed = |error| step(format!("listening at {addr}"), &error);
        let raw = Id::new(&self.channel).map_err(failed)?;
        raw.bind(addr).map_err(failed)?;
        raw.listen(backlog).map_err(failed)?;
        let bound = raw.addresses().0.unwrap_or(addr);
        Ok((raw, bound))
    }

    pub(super) fn start_listening(
        &mut self,
        addr: SocketAddr,
        backlog: u32,
    ) -> Result<(CmId, SocketAddr), CmError> {
        let (raw, bound) = self.bind(addr, backlog)?;
        let listening = Listening {
            addr: bound,
            backlog,
        };
        let entry = Entry::new(State::Listening(listening), raw);
        Ok((self.insert(entry), bound))
    }

    /// The listener's device is gone: it listens again when the device returns.
    pub(super) fn listener_lost(&mut self, id: CmId) {
        let now_us = self.now_us;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let State::Listening(listening) = entry.state {
            tracing::warn!(addr = %listening.addr,
                "the RDMA device of a listener was removed; listening again when it returns");
        }
        entry.wait(RETRY_US, now_us);
        if let Some(raw) = entry.id.take() {
            self.by_key.remove(&raw.key());
        }
    }

    pub(super) fn listen_again(&mut self, id: CmId) {
        let Some(State::Listening(listening)) = self.entries.get(&id).map(|entry| &entry.state)
        else {
            return;
        };
        let Listening { addr, backlog } = *listening;
        let bound = self.bind(addr, backlog);
        let now_us = self.now_us;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        match bound {
            Ok((raw, _)) => {
                tracing::info!(%addr, "listening again");
                self.by_key.insert(raw.key(), id);
                entry.id = Some(std::rc::Rc::new(raw));
            }
            Err(error) => {
                tracing::debug!("{error}");
                entry.wait(RETRY_US, now_us);
            }
        }
    }
}
