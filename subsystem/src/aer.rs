//! Asynchronous Event Requests: requests that wait for an event, and events that wait for a
//! request. NVMe Base 2.1, section 5.1.2.

use alloc::collections::VecDeque;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::features::AsyncEventConfiguration;
use capstan_nvme_proto::log::LogPageId;

use crate::bounds::AER_MAX;
use crate::queue::Permit;

/// The events this controller sends, in the order they are sent when several wait.
const EVENTS: [(AsyncEvent, Option<AsyncEventConfiguration>); 6] = [
    (
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED,
        Some(AsyncEventConfiguration::NAMESPACE_ATTRIBUTE),
    ),
    (
        AsyncEvent::ANA_CHANGE,
        Some(AsyncEventConfiguration::ANA_CHANGE),
    ),
    (
        AsyncEvent::DISCOVERY_LOG_CHANGE,
        Some(AsyncEventConfiguration::DISCOVERY_LOG_CHANGE),
    ),
    (
        AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED,
        Some(AsyncEventConfiguration::CROSS_CONTROLLER_RESET_COMPLETED),
    ),
    (
        AsyncEvent::NVM_SUBSYSTEM_RELIABILITY,
        Some(AsyncEventConfiguration::RELIABILITY),
    ),
    // Masked per namespace, by Reservation Notification Mask.
    (AsyncEvent::RESERVATION_LOG_AVAILABLE, None),
];

/// Requests and events of one controller. Bounded: [`AER_MAX`] requests, and of each event one.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    requests: VecDeque<Permit>,
    configuration: AsyncEventConfiguration,
    /// Per entry of [`EVENTS`].
    states: [EventState; EVENTS.len()],
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum EventState {
    #[default]
    Quiet,
    /// Waits for a request.
    Pending,
    /// Sent; the next one waits until the host has read the log page.
    Masked,
}

impl AsyncEvents {
    pub(crate) fn new(configuration: AsyncEventConfiguration) -> Self {
        Self {
            requests: VecDeque::with_capacity(AER_MAX),
            configuration,
            states: [EventState::Quiet; EVENTS.len()],
        }
    }

    pub(crate) fn configuration(&self) -> AsyncEventConfiguration {
        self.configuration
    }

    /// Sets which events the host wants. An event that waits for a request and is no longer
    /// wanted is forgotten.
    pub(crate) fn configure(&mut self, configuration: AsyncEventConfiguration) {
        self.configuration = configuration;
        for ((_, enable), state) in EVENTS.iter().zip(&mut self.states) {
            let wanted = enable.is_none_or(|enable| configuration.contains(enable));
            if !wanted && *state == EventState::Pending {
                *state = EventState::Quiet;
            }
        }
    }

    /// Keeps a request until there is an event.
    ///
    /// # Errors
    /// Gives the permit back when [`AER_MAX`] requests wait already.
    pub(crate) fn request(&mut self, permit: Permit) -> Result<(), Permit> {
        if self.requests.len() >= AER_MAX {
            return Err(permit);
        }
        self.requests.push_back(permit);
        Ok(())
    }

    /// Notes an event, unless the host does not want it or has still to look at the last one.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        for ((known, enable), state) in EVENTS.iter().zip(&mut self.states) {
            let wanted = enable.is_none_or(|enable| self.configuration.contains(enable));
            if *known == event && wanted && *state == EventState::Quiet {
                *state = EventState::Pending;
            }
        }
    }

    /// The host read `log_page` without Retain Asynchronous Event: it knows everything so far.
    pub(crate) fn clear(&mut self, log_page: LogPageId) {
        for ((event, _), state) in EVENTS.iter().zip(&mut self.states) {
            if event.log_page == log_page {
                *state = EventState::Quiet;
            }
        }
    }

    /// A request and the event to complete it with, while there are both.
    pub(crate) fn next_completion(&mut self) -> Option<(Permit, AsyncEvent)> {
        let (state, (event, _)) = self
            .states
            .iter_mut()
            .zip(&EVENTS)
            .find(|(state, _)| **state == EventState::Pending)?;
        let permit = self.requests.pop_front()?;
        *state = EventState::Masked;
        Some((permit, *event))
    }

    /// Takes out the request `cid`, to abort it.
    pub(crate) fn take_request(&mut self, cid: u16) -> Option<Permit> {
        let at = self
            .requests
            .iter()
            .position(|permit| permit.cid() == cid)?;
        self.requests.remove(at)
    }

    /// Takes out every request and forgets every event: the controller was reset.
    pub(crate) fn reset(&mut self, configuration: AsyncEventConfiguration) -> VecDeque<Permit> {
        let fresh = Self::new(configuration);
        core::mem::replace(self, fresh).requests
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::ConnId;
    use crate::queue::Accounting;

    fn permits() -> impl Iterator<Item = Permit> {
        let mut queue = Accounting::new(ConnId(1), 32, true);
        (0..).map_while(move |cid| queue.accept(cid).ok())
    }

    fn all() -> AsyncEvents {
        AsyncEvents::new(AsyncEventConfiguration::all())
    }

    #[test]
    fn four_requests_wait_and_a_fifth_is_given_back() {
        let mut events = all();
        let mut permits = permits();
        for permit in permits.by_ref().take(AER_MAX) {
            assert_eq!(events.request(permit), Ok(()));
        }
        let fifth = permits.next().unwrap();
        assert_eq!(events.request(fifth).unwrap_err().cid(), 4);
        assert_eq!(events.take_request(2).unwrap().cid(), 2);
        assert!(events.take_request(2).is_none());
        assert_eq!(events.reset(AsyncEventConfiguration::empty()).len(), 3);
    }

    #[test]
    fn an_event_is_sent_once_until_its_log_page_is_read() {
        let mut events = all();
        let mut permits = permits();
        events.raise(AsyncEvent::ANA_CHANGE);
        assert!(events.next_completion().is_none());
        events.request(permits.next().unwrap()).unwrap();
        events.request(permits.next().unwrap()).unwrap();
        let (permit, event) = events.next_completion().unwrap();
        assert_eq!((permit.cid(), event), (0, AsyncEvent::ANA_CHANGE));
        events.raise(AsyncEvent::ANA_CHANGE);
        assert!(events.next_completion().is_none());
        events.clear(LogPageId::CHANGED_NAMESPACES);
        events.raise(AsyncEvent::ANA_CHANGE);
        assert!(events.next_completion().is_none());
        events.clear(LogPageId::ANA);
        assert!(events.next_completion().is_none());
        events.raise(AsyncEvent::ANA_CHANGE);
        assert_eq!(events.next_completion().unwrap().0.cid(), 1);
    }

    #[test]
    fn unwanted_events_are_not_sent() {
        let mut events = AsyncEvents::new(AsyncEventConfiguration::empty());
        let mut permits = permits();
        events.request(permits.next().unwrap()).unwrap();
        events.raise(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
        assert!(events.next_completion().is_none());
        events.raise(AsyncEvent::RESERVATION_LOG_AVAILABLE);
        assert!(events.next_completion().is_some());
        events.configure(AsyncEventConfiguration::NAMESPACE_ATTRIBUTE);
        events.raise(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
        events.configure(AsyncEventConfiguration::empty());
        events.request(permits.next().unwrap()).unwrap();
        assert!(events.next_completion().is_none());
    }
}
