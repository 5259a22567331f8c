//! `capstan-target`: exports block devices, files and RAM as NVMe namespaces over RDMA and TCP, and
//! directories to NFS clients (`nfs`).
//!
//! The I/O path is in `io_path/`, in the order the data walks. Around it: [`serve`] starts and
//! stops the reactors, `reload` carries out a changed configuration, `plan` turns the configuration
//! into volumes and subsystems, `control_plane` holds the controllers behind the one lock that no
//! I/O command takes.

pub mod absent;
mod allocation;
pub mod answers;
pub mod cli;
mod control_plane;
pub mod device_access;
pub mod doctor;
mod handover;
pub mod identities;
pub mod import;
mod instance;
mod io_path;
pub mod lba_size;
mod limits;
mod listen_error;
mod listening;
pub mod log;
pub mod lost;
mod media;
pub mod metrics;
mod nfs;
pub mod operate;
mod overlaps;
mod plan;
mod ports;
mod providers;
mod reload;
mod reservations;
mod rings;
pub mod room;
mod scheduling;
pub mod serve;
pub mod signals;
pub mod space;
pub mod state;
mod steering;
mod tcp_port;
mod unended;
mod unfinished;
mod upgrade;
