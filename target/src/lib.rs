//! capstan-target: an NVMe over RDMA target.
