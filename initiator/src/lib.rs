//! capstan: the NVMe over RDMA host library and command line.
