//! The command line of `capstan-target`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Exports block devices, files and RAM as NVMe namespaces over RDMA.
#[derive(Debug, Parser)]
#[command(name = "capstan-target", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve namespaces until SIGTERM or SIGINT.
    Serve(Serve),
    /// Check a configuration: exit 0 when `serve` would take it.
    Check {
        /// The TOML file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// `serve`: from a configuration file, or one export given here.
#[derive(Args, Debug)]
pub struct Serve {
    /// The TOML configuration file.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "export",
        required_unless_present = "export"
    )]
    pub config: Option<PathBuf>,
    /// Export one thing: a block device, a file, `ram:SIZE` or `null:SIZE`.
    #[arg(long, value_name = "PATH|ram:SIZE|null:SIZE", requires = "listen")]
    pub export: Option<String>,
    /// Bytes per LBA: 512 or 4096 [default: what the device has, 4096 otherwise].
    #[arg(long, value_name = "BYTES", requires = "export")]
    pub lba: Option<u32>,
    /// Address to listen at.
    #[arg(long, value_name = "ADDR:PORT", requires = "export")]
    pub listen: Option<SocketAddr>,
    /// NQN of the subsystem [default: derived from the export].
    #[arg(long, value_name = "NQN", requires = "export")]
    pub nqn: Option<String>,
    /// RDMA provider.
    #[arg(long, value_enum, default_value_t = Provider::Auto, requires = "export")]
    pub provider: Provider,
    /// Let any host connect, also at an address that is not loopback.
    #[arg(long, requires = "export")]
    pub allow_any_host: bool,
    /// Refuse writes.
    #[arg(long, requires = "export")]
    pub read_only: bool,
}

/// Which RDMA provider a listener uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Verbs where an RDMA device has the address, iwarp otherwise.
    Auto,
    /// Hardware or kernel RDMA devices.
    Verbs,
    /// User-space iWARP over TCP.
    Iwarp,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
