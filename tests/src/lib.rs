//! What the end-to-end tests share: a target and hosts in this process, over real sockets; and the
//! two programs as processes.

pub mod attack;
pub mod container;
pub mod disks;
pub mod fio;
pub mod host;
pub mod lossy;
pub mod one_image;
pub mod open_metrics;
pub mod place;
pub mod process;
pub mod program;
pub mod proxy;
pub mod raw_tcp;
pub mod running;
pub mod scene;
pub mod steered;
pub mod steered_volume;
pub mod target;
pub mod tcp_host;
pub mod wait;
pub mod wire_host;
