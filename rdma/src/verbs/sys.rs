//! Everything taken from `rdma-sys`, named in this one file so that the binding can be replaced.

pub(super) use rdma_sys::{
    ibv_device, ibv_free_device_list, ibv_get_device_list, ibv_get_device_name,
};
