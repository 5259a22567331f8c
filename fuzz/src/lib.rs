//! Fuzz targets for every parser that sees bytes from the network.
//!
//! Each target is a plain function from bytes to nothing that panics when a property does not
//! hold, so that a stable test can replay what a fuzzer found. [`TARGETS`] lists them all. To add
//! one: write the function in a module here, list it, and give it a `[[bin]]` in `Cargo.toml`, a
//! file in `fuzz_targets/` and some seeds in `seeds/NAME/`.

mod config;
mod host;
mod input;
mod iwarp;
mod nfs_proto;
mod nvme_proto;
mod rpcrdma;
mod subsystem;
mod tcp;
mod tcp_controller;
mod tcp_host;
mod tcp_queue;

pub use config::{config_toml, import_nvmet};
pub use host::{host, host_discovery};
pub use iwarp::{iwarp_receive, iwarp_setup, same_host};
pub use nfs_proto::{nfs_compound, nfs3_call};
pub use nvme_proto::{
    capsule, command_data, completion, connect_data, discovery_log, features, identify, log_pages,
    private_data, sgl,
};
pub use rpcrdma::{rpcrdma_header, rpcrdma_records, rpcrdma_rpc};
pub use subsystem::controller_ops;
pub use tcp::{tcp_from_controller, tcp_from_host};
pub use tcp_controller::tcp_controller_queue;
pub use tcp_host::tcp_host_queue;

/// A fuzz target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("capsule", capsule),
    ("sgl", sgl),
    ("private_data", private_data),
    ("connect_data", connect_data),
    ("command_data", command_data),
    ("completion", completion),
    ("identify", identify),
    ("log_pages", log_pages),
    ("discovery_log", discovery_log),
    ("features", features),
    ("controller_ops", controller_ops),
    ("iwarp_receive", iwarp_receive),
    ("iwarp_setup", iwarp_setup),
    ("same_host", same_host),
    ("tcp_from_host", tcp_from_host),
    ("tcp_from_controller", tcp_from_controller),
    ("tcp_controller_queue", tcp_controller_queue),
    ("tcp_host_queue", tcp_host_queue),
    ("rpcrdma_header", rpcrdma_header),
    ("rpcrdma_rpc", rpcrdma_rpc),
    ("rpcrdma_records", rpcrdma_records),
    ("config_toml", config_toml),
    ("import_nvmet", import_nvmet),
    ("host", host),
    ("host_discovery", host_discovery),
    ("nfs_compound", nfs_compound),
    ("nfs3_call", nfs3_call),
];

/// The entry point of a target's binary: libFuzzer's when cargo-fuzz builds it, else a `main`
/// that runs the body on each file named on the command line.
#[macro_export]
macro_rules! fuzz_target {
    ($target:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$target(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            for path in std::env::args_os().skip(1) {
                eprintln!("{}", path.display());
                $crate::$target(&std::fs::read(path)?);
            }
            Ok(())
        }
    };
}
