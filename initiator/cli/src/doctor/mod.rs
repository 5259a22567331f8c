//! `capstan doctor`: what this machine lacks, and what keeps it from a target.

mod attached;
mod connection;
mod exercise;
mod health;
mod measure;
mod reach;

use anyhow::{Result, bail};
use capstan_doctor::{Check, Machine, Role, Summary, json, machine_checks, text};
use clap::Args;

use super::args::{ConnectArgs, OutputArgs};
use super::output;
use super::values::parse_nsid;

/// Arguments of `doctor`.
#[derive(Args, Debug)]
#[command(mut_arg("traddr", |arg| arg.required(false).help(
    "Address of a target to try, too: IPv4, IPv6 or a host name"
)), mut_arg("nqn", |arg| arg.help(
    "Subsystem to connect to and read from; nothing is written [default: discovery only]"
)))]
pub(crate) struct Doctor {
    #[command(flatten)]
    connect: Option<ConnectArgs>,
    /// Namespace to read from.
    #[arg(
        short = 'N',
        long,
        value_name = "NSID",
        default_value_t = 1,
        value_parser = parse_nsid(),
        requires = "nqn"
    )]
    namespace_id: u32,
    #[command(flatten)]
    output: OutputArgs,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<()> {
        let machine = Machine::here();
        let mut checks = machine_checks(&machine, &Role::Host);
        checks.extend(attached::attached());
        match &self.connect {
            Some(connect) => checks.extend(self.try_target(connect)),
            None => checks.extend(reach::this_host()),
        }
        if self.output.is_json() {
            output::json(&json(&checks))?;
        } else {
            for line in text(&checks).lines() {
                output::line(line)?;
            }
        }
        match Summary::of(&checks).errors {
            0 => Ok(()),
            errors => bail!("{errors} of {} checks failed", checks.len()),
        }
    }

    /// Step by step until one fails that the next ones need.
    fn try_target(&self, connect: &ConnectArgs) -> Vec<Check> {
        let mut checks = Vec::new();
        let Some(mut reached) = reach::reach(connect, &mut checks) else {
            return checks;
        };
        if connection::discover(&mut reached, &mut checks)
            && let Some(mut queue) = connection::connect(&mut reached, &mut checks)
        {
            checks.push(health::health(&mut queue));
            let nsid = self.namespace_id;
            if let Some(namespace) = exercise::exercise(queue, nsid, &mut checks) {
                measure::measure(&reached.connect, &namespace, &mut checks);
            }
        }
        checks
    }
}
