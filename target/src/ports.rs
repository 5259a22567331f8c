//! Which port (PORTID) each listener is. A number is never used again: hosts may know it.

use std::collections::BTreeSet;

use anyhow::Context as _;
use capstan_config::Listener;
use capstan_subsystem::PortId;

/// The ports of the listeners that there are.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    of: Vec<(Listener, PortId)>,
    /// Never used before. PORTID 0 is avoided: some hosts take it for "none".
    next: u16,
}

impl Ports {
    /// Of a target that starts.
    pub(crate) fn new(listeners: &[Listener]) -> Self {
        let numbers = (1..=u16::MAX).map(PortId);
        let of: Vec<_> = listeners.iter().copied().zip(numbers).collect();
        let next = u16::try_from(of.len() + 1).unwrap_or(u16::MAX);
        Self { of, next }
    }

    pub(crate) fn ids(&self) -> BTreeSet<PortId> {
        self.of.iter().map(|(_, id)| *id).collect()
    }

    /// The port of each of these listeners, which are all that there are, in their order.
    pub(crate) fn in_order(&self, listeners: &[Listener]) -> Vec<PortId> {
        let mut left = self.of.clone();
        let each = listeners.iter().filter_map(|listener| {
            let at = left.iter().position(|(of, _)| of == listener)?;
            Some(left.remove(at).1)
        });
        each.collect()
    }

    /// The listeners that are not wanted any more, with their ports, and those that are new.
    pub(crate) fn compare(&self, wanted: &[Listener]) -> (Vec<PortId>, Vec<Listener>) {
        let mut left = self.of.clone();
        let come = wanted.iter().filter(|listener| {
            let at = left.iter().position(|(of, _)| of == *listener);
            at.map(|at| left.remove(at)).is_none()
        });
        let come = come.copied().collect();
        (left.into_iter().map(|(_, id)| id).collect(), come)
    }

    /// The listener that has this port.
    pub(crate) fn listener(&self, id: PortId) -> Option<Listener> {
        let of = self.of.iter().find(|(_, other)| *other == id);
        of.map(|(listener, _)| *listener)
    }

    /// A number for one that comes.
    ///
    /// # Errors
    /// All have been used.
    pub(crate) fn next(&mut self) -> anyhow::Result<PortId> {
        let id = PortId(self.next);
        let next = self.next.checked_add(1);
        self.next = next.context("65535 listeners have come and gone: restart the target")?;
        Ok(id)
    }

    /// It listens.
    pub(crate) fn add(&mut self, listener: Listener, id: PortId) {
        self.of.push((listener, id));
    }

    /// It does not listen any more.
    pub(crate) fn remove(&mut self, id: PortId) {
        self.of.retain(|(_, other)| *other != id);
    }
}

#[cfg(test)]
mod tests {
    use capstan_config::{Listener, ProviderChoice, Transports};
    use capstan_subsystem::PortId;

    use super::Ports;

    fn listener(port: u16) -> Listener {
        Listener {
            address: ([127, 0, 0, 1], port).into(),
            provider: ProviderChoice::Auto,
            transports: Transports::default(),
        }
    }

    #[test]
    fn a_number_is_used_once_and_stays_with_its_listener() {
        let mut ports = Ports::new(&[listener(1), listener(2), listener(2)]);
        assert_eq!(
            ports.in_order(&[listener(2), listener(1), listener(2)]),
            [PortId(2), PortId(1), PortId(3)]
        );
        let wanted = [listener(2), listener(4)];
        let (gone, come) = ports.compare(&wanted);
        assert_eq!(
            (gone.as_slice(), come.as_slice()),
            (&[PortId(1), PortId(3)][..], &[listener(4)][..])
        );
        gone.into_iter().for_each(|id| ports.remove(id));
        let id = ports.next().unwrap();
        ports.add(listener(4), id);
        assert_eq!(id, PortId(4));
        assert_eq!(ports.in_order(&wanted), [PortId(2), PortId(4)]);
        assert_eq!(ports.ids().len(), 2);
    }
}
