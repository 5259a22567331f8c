//! What the connection managers of all providers have in common.

use std::collections::hash_map::Iter;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::address_words::source_address;
use crate::contract::{
    CmError, CmEvent, CmEventKind, CmId, DeviceAttributes, QpConfig, RdmaError, ReceiveSource,
};

/// The error of a call with an id that does not exist.
pub(crate) const UNKNOWN: &str = "unknown connection id";

/// A manager's ids with what belongs to each (`E`), and the events that the program has not taken.
pub(crate) struct Ids<E> {
    entries: HashMap<CmId, E>,
    events: VecDeque<CmEvent>,
    next: u64,
}

impl<E> Ids<E> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            events: VecDeque::new(),
            next: 1,
        }
    }

    /// An id that was never used, for an entry that is added later.
    pub(crate) fn reserve(&mut self) -> CmId {
        let id = CmId(self.next);
        self.next += 1;
        id
    }

    pub(crate) fn put(&mut self, id: CmId, entry: E) {
        self.entries.insert(id, entry);
    }

    pub(crate) fn get(&self, id: CmId) -> Option<&E> {
        self.entries.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: CmId) -> Option<&mut E> {
        self.entries.get_mut(&id)
    }

    /// The entry a call is about.
    pub(crate) fn known(&mut self, id: CmId) -> Result<&mut E, CmError> {
        self.get_mut(id).ok_or(CmError::Invalid(UNKNOWN))
    }

    /// Takes an entry out. Events of it that were queued before are still delivered.
    pub(crate) fn remove(&mut self, id: CmId) -> Option<E> {
        self.entries.remove(&id)
    }

    pub(crate) fn iter(&self) -> Iter<'_, CmId, E> {
        self.entries.iter()
    }

    /// The ids whose entries satisfy `so`.
    pub(crate) fn which(&self, so: impl Fn(&E) -> bool) -> Vec<CmId> {
        let entries = self.iter().filter(|(_, entry)| so(entry));
        entries.map(|(id, _)| *id).collect()
    }

    pub(crate) fn tell(&mut self, id: CmId, kind: CmEventKind) {
        self.events.push_back(CmEvent { id, kind });
    }

    /// The oldest event.
    pub(crate) fn take_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The program has destroyed `id`: its events are dropped.
    pub(crate) fn forget_events(&mut self, id: CmId) {
        self.events.retain(|event| event.id != id);
    }
}

/// Whether a queue pair can be made for an id: it waits for one, and has none.
pub(crate) fn may_make_qp(waits: bool, has_qp: bool) -> Result<(), RdmaError> {
    match (waits, has_qp) {
        (false, _) => Err(RdmaError::Invalid(
            "a queue pair is made after resolve or a connection request",
        )),
        (true, true) => Err(RdmaError::Invalid("the connection id has a queue pair")),
        (true, false) => Ok(()),
    }
}

/// Whether an id can connect.
pub(crate) fn may_connect(resolved: bool, has_qp: bool) -> Result<(), CmError> {
    match (resolved, has_qp) {
        (false, _) => Err(CmError::Invalid("connect comes after resolve, once")),
        (true, false) => Err(CmError::Invalid(
            "connect needs a queue pair; make one first",
        )),
        (true, true) => Ok(()),
    }
}

/// Whether an id can be accepted.
pub(crate) fn may_accept(requested: bool, has_qp: bool) -> Result<(), CmError> {
    match (requested, has_qp) {
        (false, _) => Err(CmError::Invalid(
            "there is no connection request to accept, or its peer has given up",
        )),
        (true, false) => Err(CmError::Invalid(
            "accept needs a queue pair; make one first",
        )),
        (true, true) => Ok(()),
    }
}

/// Whether an id can go to another manager.
pub(crate) fn may_migrate(requested: bool, has_qp: bool) -> Result<(), CmError> {
    match (requested, has_qp) {
        (false, _) => Err(CmError::Invalid("only a connection request can migrate")),
        (true, true) => Err(CmError::Invalid(
            "a connection request with a queue pair cannot migrate",
        )),
        (true, false) => Ok(()),
    }
}

/// Why an id of another provider cannot be adopted.
pub(crate) fn foreign() -> CmError {
    CmError::Invalid("the connection request is of another provider")
}

/// Refuses more than `max`.
pub(crate) fn check_limit(what: &'static str, value: u32, max: u32) -> Result<(), RdmaError> {
    if value > max {
        return Err(RdmaError::Limit {
            what,
            value: u64::from(value),
            max: u64::from(max),
        });
    }
    Ok(())
}

/// Checks a queue pair's sizes against its device; returns how deep its own receive queue is.
pub(crate) fn check_qp(attributes: &DeviceAttributes, config: &QpConfig) -> Result<u32, RdmaError> {
    let own = match config.receives {
        ReceiveSource::Own(depth) => depth,
        ReceiveSource::Shared(_) => 0,
    };
    let (wr, sge) = (attributes.qp_wr_max, attributes.sge_max);
    check_limit("send work requests of a queue pair", config.send_wr_max, wr)?;
    check_limit("receives of a queue pair", own, wr)?;
    check_limit("SGEs of a send", config.send_sge_max, sge)?;
    check_limit("SGEs of a receive", config.recv_sge_max, sge)?;
    Ok(own)
}

/// The local address, without a port, from which `destination` is reached: itself when it is local.
/// Connecting a UDP socket asks the routing table and sends nothing.
pub(crate) fn local_address(
    destination: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<SocketAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(source_address(source.unwrap_or(any), destination))?;
    socket.connect(destination)?;
    let mut local = socket.local_addr()?;
    local.set_port(0);
    Ok(local)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::{Ids, local_address};
    use crate::contract::CmEventKind;

    #[test]
    fn a_local_address_is_reached_from_itself() {
        let addr = (Ipv4Addr::new(127, 0, 0, 1), 9).into();
        let local = local_address(addr, None).unwrap();
        assert_eq!((local.ip(), local.port()), (addr.ip(), 0));
    }

    #[test]
    fn ids_are_used_once_and_their_events_end_with_them() {
        let mut ids = Ids::new();
        let (first, second) = (ids.reserve(), ids.reserve());
        ids.put(first, 'a');
        ids.put(second, 'b');
        assert_eq!(ids.which(|entry| *entry == 'b'), [second]);
        ids.tell(first, CmEventKind::Resolved);
        ids.tell(second, CmEventKind::DeviceRemoved);
        assert_eq!(ids.remove(first), Some('a'));
        assert!(ids.known(first).is_err() && ids.known(second).is_ok());
        ids.forget_events(first);
        assert_eq!(ids.take_event().map(|event| event.id), Some(second));
        assert!(!ids.has_events() && ids.reserve() != first);
    }
}
