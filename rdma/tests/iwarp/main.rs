//! The iWARP provider against itself, over loopback TCP.

mod side;

mod data;
mod setup;
mod wire;
