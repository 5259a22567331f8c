//! Page-aligned slabs and buffers shared with the kernel and RDMA providers.
