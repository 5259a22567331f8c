//! The `capstan-target` command.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use capstan_config::{Config, LbaSize, ProviderChoice, QuickExport};
use capstan_target::cli::{Cli, Command, Provider, Serve};
use capstan_target::{log, serve};
use clap::Parser as _;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(options) => run(&options),
        Command::Check { config } => check(&config),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("capstan-target: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Serve) -> anyhow::Result<()> {
    let config = match &options.config {
        Some(file) => Config::from_file(file)?,
        None => quick(options)?,
    };
    log::start(config.target.log.as_str());
    for warning in config.check_machine()? {
        tracing::warn!("{warning}");
    }
    serve::serve(&config)
}

fn quick(options: &Serve) -> anyhow::Result<Config> {
    let export = options
        .export
        .as_deref()
        .context("--export or --config is needed")?;
    let lba = options.lba.map(|bytes| {
        LbaSize::from_bytes(u64::from(bytes))
            .with_context(|| format!("--lba {bytes}: expected 512 or 4096"))
    });
    let export = QuickExport {
        backing: export.parse()?,
        lba: lba.transpose()?,
        listen: options.listen.context("--listen is needed with --export")?,
        nqn: options.nqn.clone(),
        provider: match options.provider {
            Provider::Auto => ProviderChoice::Auto,
            Provider::Verbs => ProviderChoice::Verbs,
            Provider::Iwarp => ProviderChoice::Iwarp,
        },
        allow_any_host: options.allow_any_host,
        read_only: options.read_only,
    };
    Ok(Config::quick(&export, &Config::machine_id())?)
}

#[expect(clippy::print_stdout, reason = "the answer of `check` is its output")]
fn check(file: &Path) -> anyhow::Result<()> {
    let config = Config::from_file(file)?;
    let warnings = config.check_machine()?;
    for warning in &warnings {
        println!("warning: {warning}");
    }
    println!("{}: ok, {} warning(s)", file.display(), warnings.len());
    Ok(())
}
