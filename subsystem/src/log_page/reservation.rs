//! Reservation Notification (LID 80h). NVMe Base 2.1, section 5.1.12.1.32.

use alloc::collections::{BTreeMap, VecDeque};

use capstan_nvme_proto::features::ReservationNotificationMask;
use capstan_nvme_proto::log::{
    ReservationNotificationLog, ReservationNotificationType as Notification,
};
use zerocopy::FromZeros;

use crate::bounds::RESERVATION_NOTIFICATIONS;

/// The notifications of one controller that its host has not read, and what it does not want to
/// be told.
#[derive(Default, Debug)]
pub(crate) struct Notifications {
    pages: VecDeque<(u64, Notification, u32)>,
    /// Notifications so far.
    count: u64,
    masks: BTreeMap<u32, ReservationNotificationMask>,
}

impl Notifications {
    /// Adds a notification, over the oldest when there are too many. Returns whether the host
    /// wants to be told.
    pub(crate) fn add(&mut self, nsid: u32, what: Notification) -> bool {
        let masked = match what {
            Notification::REGISTRATION_PREEMPTED => {
                ReservationNotificationMask::REGISTRATION_PREEMPTED
            }
            Notification::RESERVATION_RELEASED => ReservationNotificationMask::RESERVATION_RELEASED,
            _ => ReservationNotificationMask::RESERVATION_PREEMPTED,
        };
        if self.mask(nsid).contains(masked) {
            return false;
        }
        self.count = self.count.wrapping_add(1).max(1);
        if self.pages.len() >= RESERVATION_NOTIFICATIONS {
            self.pages.pop_front();
        }
        self.pages.push_back((self.count, what, nsid));
        true
    }

    /// The oldest notification as a log page; an empty page when there is none.
    pub(crate) fn page(&self) -> ReservationNotificationLog {
        let Some((count, what, nsid)) = self.pages.front() else {
            return ReservationNotificationLog::new_zeroed();
        };
        let more = self.pages.len().saturating_sub(1);
        let more = u8::try_from(more).unwrap_or(u8::MAX);
        ReservationNotificationLog::new(*count, *what, more, *nsid)
    }

    /// The host has read the oldest notification. Returns whether there are more.
    pub(crate) fn advance(&mut self) -> bool {
        self.pages.pop_front();
        !self.pages.is_empty()
    }

    pub(crate) fn mask(&self, nsid: u32) -> ReservationNotificationMask {
        self.masks
            .get(&nsid)
            .copied()
            .unwrap_or(ReservationNotificationMask::empty())
    }

    /// The namespace is gone; one that gets its NSID later starts with nothing masked.
    pub(crate) fn forget(&mut self, nsid: u32) {
        self.masks.remove(&nsid);
        self.pages.retain(|(_, _, other)| *other != nsid);
    }

    pub(crate) fn set_mask(&mut self, nsid: u32, mask: ReservationNotificationMask) {
        self.masks.insert(nsid, mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_page_is_read_first_and_gaps_show_what_was_lost() {
        let mut log = Notifications::default();
        assert_eq!(log.page(), ReservationNotificationLog::new_zeroed());
        for nsid in 1..=70 {
            assert!(log.add(nsid, Notification::RESERVATION_RELEASED));
        }
        let page = log.page();
        assert_eq!((page.log_page_count.get(), page.nsid.get()), (7, 7));
        assert_eq!(page.available_log_pages, 63);
        for _ in 0..63 {
            assert!(log.advance());
        }
        assert!(!log.advance());
        log.set_mask(1, ReservationNotificationMask::RESERVATION_RELEASED);
        assert!(!log.add(1, Notification::RESERVATION_RELEASED));
        assert!(log.add(1, Notification::RESERVATION_PREEMPTED));
        assert!(log.add(2, Notification::RESERVATION_RELEASED));
        log.forget(1);
        assert_eq!(log.page().nsid.get(), 2);
        assert!(log.add(1, Notification::RESERVATION_RELEASED));
    }
}
