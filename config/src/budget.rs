//! Memory arithmetic: what the queue bounds cost, and what a budget buys.

use std::fmt;

use crate::{IN_CAPSULE_DATA_BYTES, QueueBounds, Size, TRANSFER_BYTES_MAX};

/// Entries of an Admin Queue: the 32 that the Linux host asks for (`NVME_AQ_DEPTH`) and the
/// smallest that a host may expect of a fabrics controller.
pub const ADMIN_QUEUE_DEPTH: u16 = 32;

const MIB: u64 = 1 << 20;
/// Bytes of a submission queue entry and of a response capsule (NVMe over Fabrics, capsules).
const SQE_BYTES: u64 = 64;
const CQE_BYTES: u64 = 16;
/// Data buffers of the largest transfer that each reactor needs so that one command can be on the
/// disk while another is on the wire: of two hosts, as one has its share with the first.
const TRANSFERS_IN_FLIGHT_MIN: u64 = 2;
/// A data buffer of each queue's own, for a small command while other hosts have the others.
const SPARE_BYTES: u64 = IN_CAPSULE_DATA_BYTES;
/// Share of the budget set aside for data buffers; the rest is receive and response slots.
const DATA_SHARE: u64 = 4;
/// Share of these set aside for connections that are no queue of a permitted host, or not yet.
const STRANGERS_SHARE: u64 = 8;
/// Share of these set aside for data that is copied to be sent over NVMe/TCP: of the default
/// budget, pieces of 32 KiB for 174 queues at once on each of two reactors. Where they are used up
/// data is sent from its buffer, so none is needed.
const STAGING_SHARE: u64 = 16;
/// Memory of a connection until its host is known, in bytes: two receives with in-capsule data, of
/// which the second one shows that more than a Connect was sent, a page for the data of its
/// Connect, and a page for the response; and its part of two pages for each that is a discovery
/// controller's, which are fewer than a quarter.
pub const STRANGER_BYTES: u64 = 2 * (IN_CAPSULE_DATA_BYTES + 4096) + 2 * 4096 / 4;
/// Most connections of one reactor that are no queue of a permitted host: 128 whose host is not
/// known, 128 more queues of hosts that are (the Linux host makes the connections of all its queues
/// before it connects the first), 64 discovery controllers, and 32 that are ending.
pub const STRANGERS_MAX: u64 = 352;

/// How a memory budget is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The whole budget.
    pub budget_bytes: u64,
    /// Reactors it is divided among.
    pub reactors: u64,
    /// Data buffers of each reactor, a multiple of the largest transfer.
    pub data_bytes_per_reactor: u64,
    /// Slots of one Admin Queue.
    pub admin_queue_bytes: u64,
    /// Slots of one I/O queue of the largest depth.
    pub io_queue_bytes: u64,
    /// What is left for queues.
    pub queue_bytes: u64,
    /// Connections of each reactor, of [`STRANGER_BYTES`] each, that are no queue of a permitted
    /// host.
    pub strangers_per_reactor: u64,
    /// Memory of each reactor for what is copied to be sent over NVMe/TCP.
    pub staging_bytes_per_reactor: u64,
}

impl QueueBounds {
    /// Memory of one queue of `depth` entries: a command capsule with its in-capsule data to
    /// receive into and a response capsule to send from, for every entry, and a spare data buffer.
    pub fn queue_bytes(&self, depth: u16) -> u64 {
        u64::from(depth) * (SQE_BYTES + IN_CAPSULE_DATA_BYTES + CQE_BYTES) + SPARE_BYTES
    }
}

impl MemoryPlan {
    /// Divides `budget_bytes` among `reactors`. `tcp`: whether NVMe/TCP is served.
    ///
    /// # Errors
    /// The arithmetic in words, when not even one host with one I/O queue can be served.
    pub(crate) fn new(
        budget_bytes: u64,
        reactors: usize,
        queues: &QueueBounds,
        tcp: bool,
    ) -> Result<Self, String> {
        let reactors = u64::try_from(reactors).unwrap_or(u64::MAX).max(1);
        let data_bytes_min = TRANSFERS_IN_FLIGHT_MIN * TRANSFER_BYTES_MAX;
        let admin_queue_bytes = queues.queue_bytes(ADMIN_QUEUE_DEPTH);
        let io_queue_bytes = queues.queue_bytes(queues.depth_max);

        let strangers_bytes_min = (admin_queue_bytes + io_queue_bytes) / (STRANGERS_SHARE - 1) + 1;
        let needed_bytes = reactors
            .saturating_mul(data_bytes_min)
            .saturating_add(admin_queue_bytes)
            .saturating_add(io_queue_bytes)
            .saturating_add(strangers_bytes_min);
        if budget_bytes < needed_bytes {
            return Err(format!(
                "{} is too small: {} needed for one host ({reactors} reactor(s) × \
                 {TRANSFERS_IN_FLIGHT_MIN} transfers × {} + Admin Queue {} + I/O queue {} + hosts not \
                 known yet {})",
                Size(budget_bytes),
                // What is written as it is read here is enough.
                Size(needed_bytes.next_multiple_of(MIB)),
                Size(TRANSFER_BYTES_MAX),
                Size(admin_queue_bytes),
                Size(io_queue_bytes),
                Size(strangers_bytes_min),
            ));
        }
        let share = budget_bytes / DATA_SHARE / reactors;
        let data_bytes_per_reactor = (share - share % TRANSFER_BYTES_MAX).max(data_bytes_min);
        let rest_bytes = budget_bytes - reactors * data_bytes_per_reactor;
        let strangers_per_reactor =
            (rest_bytes / STRANGERS_SHARE / reactors / STRANGER_BYTES).min(STRANGERS_MAX);
        let rest_bytes = rest_bytes - reactors * strangers_per_reactor * STRANGER_BYTES;
        // Of a small budget, what the queues of one host leave.
        let spare_bytes = rest_bytes.saturating_sub(admin_queue_bytes + io_queue_bytes);
        let staging_bytes = match tcp {
            true => (rest_bytes / STAGING_SHARE).min(spare_bytes),
            false => 0,
        };
        let staging_bytes_per_reactor = staging_bytes / reactors;
        Ok(Self {
            budget_bytes,
            reactors,
            data_bytes_per_reactor,
            admin_queue_bytes,
            io_queue_bytes,
            queue_bytes: rest_bytes - reactors * staging_bytes_per_reactor,
            strangers_per_reactor,
            staging_bytes_per_reactor,
        })
    }

    /// Hosts that fit with an Admin Queue and `io_queues` I/O queues of the largest depth each.
    pub fn hosts(&self, io_queues: u16) -> u64 {
        self.queue_bytes / (self.admin_queue_bytes + u64::from(io_queues) * self.io_queue_bytes)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} budget: {} data buffers on each of {} reactor(s), {} for queues, {} for hosts that \
             are not known yet, {} to copy to for NVMe/TCP; room for {} host(s) with 1 I/O queue of full depth, {} with 4",
            Size(self.budget_bytes),
            Size(self.data_bytes_per_reactor),
            self.reactors,
            Size(self.queue_bytes),
            Size(self.reactors * self.strangers_per_reactor * STRANGER_BYTES),
            Size(self.reactors * self.staging_bytes_per_reactor),
            self.hosts(1),
            self.hosts(4),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUEUES: QueueBounds = QueueBounds {
        io_queues_max: 128,
        depth_max: 128,
    };

    #[test]
    fn the_default_budget_serves_a_hundred_hosts() {
        let plan = MemoryPlan::new(256 << 20, 2, &QUEUES, true).unwrap();
        assert_eq!(plan.data_bytes_per_reactor, 32 << 20);
        assert_eq!(plan.io_queue_bytes, 128 * (64 + 8192 + 16) + 8192);
        assert!(plan.hosts(1) >= 100, "{plan}");
    }

    #[test]
    fn a_budget_too_small_for_one_host_shows_the_sum() {
        assert_eq!(
            MemoryPlan::new(4 << 20, 2, &QUEUES, true).unwrap_err(),
            "4 MiB is too small: 6 MiB needed for one host (2 reactor(s) × 2 transfers × 1 MiB + \
             Admin Queue 266.5 KiB + I/O queue 1042 KiB + hosts not known yet 186.9 KiB)"
        );
    }

    #[test]
    fn what_is_copied_for_nvme_tcp_comes_off_the_memory_for_queues() {
        let [without, with] =
            [false, true].map(|tcp| MemoryPlan::new(256 << 20, 2, &QUEUES, tcp).unwrap());
        assert_eq!(without.staging_bytes_per_reactor, 0);
        let staging_bytes = without.queue_bytes / 16;
        assert_eq!(with.staging_bytes_per_reactor, staging_bytes / 2);
        assert_eq!(with.queue_bytes, without.queue_bytes - staging_bytes);
        assert!(
            with.to_string().contains("MiB to copy to for NVMe/TCP"),
            "{with}"
        );
    }

    proptest! {
        #[test]
        fn the_budget_that_is_said_to_be_needed_is_enough(
            reactors in 1_usize..300,
            depth_max in 16_u16..=1024,
        ) {
            let queues = QueueBounds { depth_max, ..QUEUES };
            let words = MemoryPlan::new(1 << 20, reactors, &queues, true).unwrap_err();
            let (_, rest) = words.split_once(": ").unwrap();
            let (needed, _) = rest.split_once(" needed").unwrap();
            let Size(bytes) = needed.parse().unwrap();
            prop_assert!(MemoryPlan::new(bytes, reactors, &queues, true).is_ok(), "{}", words);
        }

        #[test]
        fn a_plan_never_exceeds_its_budget_and_serves_a_host(
            budget_bytes in 0_u64..1 << 41,
            reactors in 0_usize..300,
            depth_max in 16_u16..=1024,
            tcp: bool,
        ) {
            let queues = QueueBounds { depth_max, ..QUEUES };
            if let Ok(plan) = MemoryPlan::new(budget_bytes, reactors, &queues, tcp) {
                prop_assert!(plan.hosts(1) >= 1, "{}", plan);
                prop_assert_eq!(
                    plan.queue_bytes
                        + plan.reactors
                            * (plan.data_bytes_per_reactor
                                + plan.staging_bytes_per_reactor
                                + plan.strangers_per_reactor * STRANGER_BYTES),
                    budget_bytes
                );
                prop_assert!(tcp || plan.staging_bytes_per_reactor == 0);
                prop_assert_eq!(plan.data_bytes_per_reactor % TRANSFER_BYTES_MAX, 0);
            }
        }
    }
}
