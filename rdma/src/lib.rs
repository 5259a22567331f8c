//! RDMA contract in verbs terms and its providers.
