//! Reservation Notification (LID 80h).

use core::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::open_enum;

open_enum! {
    /// Reservation Notification Log Page Type.
    #[derive(Unaligned)]
    pub struct ReservationNotificationType(u8) {
        EMPTY = 0 => "Empty Log Page",
        REGISTRATION_PREEMPTED = 1 => "Registration Preempted",
        RESERVATION_RELEASED = 2 => "Reservation Released",
        RESERVATION_PREEMPTED = 3 => "Reservation Preempted",
    }
}

/// Reservation Notification log page, 64 bytes. NVMe Base 2.1, section 5.1.12.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct ReservationNotificationLog {
    /// Log Page Count: increases with each notification; 0 in an empty log page.
    pub log_page_count: U64,
    /// What happened.
    pub notification_type: ReservationNotificationType,
    /// Number of Available Log Pages after this one; 255 for that many or more.
    pub available_log_pages: u8,
    reserved10: [u8; 2],
    /// Namespace.
    pub nsid: U32,
    reserved16: [u8; 48],
}

const _: () = {
    assert!(size_of::<ReservationNotificationLog>() == 64);
    assert!(align_of::<ReservationNotificationLog>() == 1);
    assert!(offset_of!(ReservationNotificationLog, notification_type) == 8);
    assert!(offset_of!(ReservationNotificationLog, available_log_pages) == 9);
    assert!(offset_of!(ReservationNotificationLog, nsid) == 12);
};

impl ReservationNotificationLog {
    /// A notification, its reserved bytes zero.
    #[must_use]
    pub fn new(
        log_page_count: u64,
        notification_type: ReservationNotificationType,
        available_log_pages: u8,
        nsid: u32,
    ) -> Self {
        Self {
            log_page_count: log_page_count.into(),
            notification_type,
            available_log_pages,
            nsid: nsid.into(),
            ..Self::new_zeroed()
        }
    }

    /// From the data of the command; `None` when there are fewer than 64 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(data).ok().map(|(log, _rest)| log)
    }
}
