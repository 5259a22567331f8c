//! A volume as a disk of the machine: FUSE file, loop device, and a process that serves them.

pub mod clearing;
pub mod control;
mod going;
mod health;
pub mod kept;
pub mod loop_device;
pub mod loop_process;
mod making;
pub mod mounts;
pub mod process;
pub mod record;
pub mod serve;
pub mod serving;
mod set_up;
pub mod users;
pub mod uses;
