//! A volume as a disk of the machine: FUSE file, loop device, and a process that serves them.

pub(crate) mod clearing;
pub(crate) mod control;
pub(crate) mod file_users;
mod going;
mod health;
pub(crate) mod kept;
pub(crate) mod links;
pub(crate) mod loop_device;
pub(crate) mod loop_process;
mod making;
pub(crate) mod mounts;
pub(crate) mod process;
pub(crate) mod record;
pub(crate) mod serve;
pub(crate) mod serving;
mod set_up;
mod status;
pub(crate) mod users;
pub(crate) mod uses;
pub(crate) mod waiting;
