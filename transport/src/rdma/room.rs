//! How deep the shared queues of a device are made, and how much of them is promised.

use capstan_rdma::contract::DeviceAttributes;

use crate::limits::{RECEIVES_MAX, STRANGER_COMPLETIONS, STRANGER_RECEIVES, cq_depth};
use crate::resources::NoResources;

/// How deep a device's shared queues are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) receives: u32,
    pub(super) completions: u32,
}

impl Depths {
    /// How many of `wanted` connections that are no queue yet there may be: what they may have
    /// waiting is at most a quarter of what the device has.
    pub(super) fn places(self, wanted: u32) -> u32 {
        let receives = self.receives / (4 * STRANGER_RECEIVES);
        let completions = self.completions / (4 * STRANGER_COMPLETIONS);
        wanted.min(receives).min(completions).max(1)
    }

    /// For memory of `affordable` receives. Where the device has fewer of something, that is
    /// logged.
    pub(super) fn new(attributes: &DeviceAttributes, affordable: u32, shared: bool) -> Self {
        let wanted = affordable.clamp(1, RECEIVES_MAX);
        let receives = if shared {
            wanted.min(attributes.srq_wr_max).max(1)
        } else {
            wanted
        };
        let completions = cq_depth(wanted).min(attributes.cqe_max);
        for (what, wanted, has) in [
            ("receives of a shared receive queue", wanted, receives),
            (
                "entries of a completion queue",
                cq_depth(wanted),
                completions,
            ),
        ] {
            if has < wanted {
                let device = &attributes.name;
                tracing::warn!(
                    device,
                    "the device has at most {has} {what}, the memory budget has room for {wanted}: \
                     connections that do not fit are refused"
                );
            }
        }
        Self {
            receives,
            completions,
        }
    }
}

/// How much a device has of something, and how much of it is promised to connections.
pub(super) struct Room {
    what: &'static str,
    has: u32,
    promised: u32,
}

impl Room {
    pub(super) fn new(what: &'static str, has: u32) -> Self {
        Self {
            what,
            has,
            promised: 0,
        }
    }

    pub(super) fn take(&mut self, count: u32) -> Result<(), NoResources> {
        self.check(count)?;
        self.promised += count;
        Ok(())
    }

    pub(super) fn check(&self, count: u32) -> Result<(), NoResources> {
        let left = self.left();
        if count > left {
            let Self { what, has, .. } = self;
            return Err(NoResources::Device(format!(
                "a queue can have {count} {what} waiting, {left} of the device's {has} are left"
            )));
        }
        Ok(())
    }

    pub(super) fn left(&self) -> u32 {
        self.has.saturating_sub(self.promised)
    }

    pub(super) fn give_back(&mut self, count: u32) {
        self.promised = self.promised.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use capstan_rdma::loopback::attributes;

    use super::*;

    #[test]
    fn queues_are_as_deep_as_the_memory_and_no_deeper_than_the_device() {
        let depths = Depths::new(&attributes(), 12_192, true);
        assert_eq!(
            (depths.receives, depths.completions),
            (12_192, 381 * 190 + 64 * 101)
        );
        // Soft-RoCE of Linux 6.12 has completion queues of 32,767 entries.
        let soft = DeviceAttributes {
            cqe_max: 32_767,
            srq_wr_max: 10_000,
            ..attributes()
        };
        let depths = Depths::new(&soft, 12_192, true);
        assert_eq!((depths.receives, depths.completions), (10_000, 32_767));
        let all = Depths::new(&attributes(), u32::MAX, true);
        assert_eq!(all.receives, 32_768, "what the loopback device has");
        let own = Depths::new(&soft, 12_192, false);
        assert_eq!((own.receives, own.completions), (12_192, 32_767));
    }

    #[test]
    fn what_strangers_may_have_waiting_is_a_part_of_what_the_device_has() {
        let depths = Depths {
            receives: 1000,
            completions: 40_000,
        };
        assert_eq!(depths.places(352), 125);
        assert_eq!(depths.places(100), 100);
        let small = Depths {
            receives: 4,
            completions: 4,
        };
        assert_eq!(small.places(352), 1);
    }
}
