//! The iWARP provider against itself, over loopback TCP and shared memory.

mod side;

mod connecting;
mod data;
mod same_host;
mod setup;
mod wire;
