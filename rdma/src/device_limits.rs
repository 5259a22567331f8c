//! How much of everything an RDMA device has.

use std::io;

/// Most of each thing that a device has (`ibv_query_device(3)`), for all programs together where it
/// is not per queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes of one memory region.
    pub mr_bytes: u64,
    /// Memory windows.
    pub mws: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Work requests of one send or receive queue.
    pub qp_wrs: u32,
    /// Entries of one completion queue.
    pub cqes: u32,
    /// Receives of one shared receive queue.
    pub srq_wrs: u32,
    /// SGEs of one work request.
    pub sges: u32,
    /// RDMA READs that one queue pair serves at once.
    pub reads: u32,
}

/// The limits of the RDMA device called `name`. `None` when libibverbs knows no such device, or
/// this program was built without the feature `verbs`.
///
/// # Errors
/// The devices cannot be listed, or this one cannot be opened or queried.
pub fn device_limits(name: &str) -> io::Result<Option<DeviceLimits>> {
    #[cfg(feature = "verbs")]
    return crate::verbs::device_limits(name);
    #[cfg(not(feature = "verbs"))]
    {
        let _ = name;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::device_limits;

    /// Every device of the machine can be queried, however many there are.
    #[test]
    fn every_device_has_room_for_something() {
        let names = std::fs::read_dir("/sys/class/infiniband")
            .into_iter()
            .flatten();
        for name in names {
            let name = name.unwrap().file_name().into_string().unwrap();
            if let Some(limits) = device_limits(&name).unwrap() {
                assert!(
                    limits.qps > 0 && limits.cqes > 0 && limits.mrs > 0,
                    "{name}"
                );
            }
        }
        // An error where the machine cannot list devices at all.
        assert_eq!(device_limits("no such device").ok().flatten(), None);
    }
}
