//! Listeners, which outlive their device.

use std::net::SocketAddr;

use super::super::error::step;
use super::super::raw::cm::Id;
use super::{Entry, Manager, State};
use crate::contract::{CmError, CmEventKind, CmId};

/// How often a listener whose device is gone tries again.
const RETRY_US: u64 = 1_000_000;

/// The address to listen at, and its backlog.
#[derive(Clone, Copy)]
pub(super) struct Listening {
    addr: SocketAddr,
    backlog: u32,
    /// The log knows why it does not listen now.
    is_told: bool,
}

impl Manager {
    /// A listener and its address. One at a single address opens that address's device, to be
    /// notified of its removal.
    fn bind(&self, addr: SocketAddr, backlog: u32) -> Result<(Entry, SocketAddr), CmError> {
        let what = || format!("listening at {addr}");
        let failed = |error| step(what(), &error);
        let raw = Id::new(&self.channel).map_err(failed)?;
        raw.bind(addr).map_err(failed)?;
        let device = raw.device_key().map(|_| self.shared.device(&raw));
        let device = device.transpose().map_err(|error| CmError::System {
            what: what(),
            message: error.to_string(),
            errno: None,
        })?;
        raw.listen(backlog).map_err(failed)?;
        let addr = raw.addresses().0.unwrap_or(addr);
        let listening = Listening {
            addr,
            backlog,
            is_told: false,
        };
        let mut entry = Entry::new(State::Listening(listening), raw);
        entry.device = device;
        Ok((entry, addr))
    }

    pub(super) fn start_listening(
        &mut self,
        addr: SocketAddr,
        backlog: u32,
    ) -> Result<(CmId, SocketAddr), CmError> {
        let (entry, bound) = self.bind(addr, backlog)?;
        Ok((self.insert(entry), bound))
    }

    /// The listener's device is gone: it listens again when the device returns.
    pub(super) fn listener_lost(&mut self, id: CmId) {
        let now_us = self.now_us;
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        entry.wait(RETRY_US, now_us);
        entry.device = None;
        if let Some(raw) = entry.id.take() {
            self.by_key.remove(&raw.key());
        }
        self.ids.tell(id, CmEventKind::DeviceRemoved);
    }

    pub(super) fn listen_again(&mut self, id: CmId) {
        let Some(State::Listening(listening)) = self.ids.get(id).map(|entry| &entry.state) else {
            return;
        };
        let listening = *listening;
        let Listening { addr, backlog, .. } = listening;
        let bound = self.bind(addr, backlog);
        let now_us = self.now_us;
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        match bound {
            Ok((again, _)) => {
                tracing::info!(%addr, "listening again");
                if let Some(raw) = &again.id {
                    self.by_key.insert(raw.key(), id);
                }
                *entry = again;
            }
            Err(error) => {
                if !listening.is_told {
                    tracing::warn!(
                        "cannot listen again: {error}; it is tried each second until the device is back, which `rdma link` shows"
                    );
                }
                let is_told = true;
                entry.state = State::Listening(Listening {
                    is_told,
                    ..listening
                });
                entry.wait(RETRY_US, now_us);
            }
        }
    }
}
