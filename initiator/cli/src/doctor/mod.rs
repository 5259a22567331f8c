//! `capstan doctor`: what this machine lacks, and what keeps it from a target.

mod attached;
mod connection;
mod exercise;
mod health;
mod measure;
mod reach;

use anyhow::{Result, bail};
use capstan_doctor::{Check, Machine, Role, Summary, json, machine_checks, text};
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

use super::args::{ConnectArgs, OutputArgs, Transport};
use super::values::parse_nsid;
use super::{idle, output};

/// Arguments of `doctor`.
#[derive(Args, Debug)]
#[command(mut_arg("traddr", |arg| arg.required(false).help(
    "Address of a target to try, too: IPv4, IPv6 or a host name"
)), mut_arg("nqn", |arg| arg.help(
    "Subsystem to connect to and read from; nothing is written [default: the first that the target \
     offers which takes this host and has a namespace for it]"
)))]
pub(crate) struct Doctor {
    #[command(flatten)]
    way: Way,
    /// Namespace to read from [default: the first that can be read].
    #[arg(
        short = 'N',
        long,
        value_name = "NSID",
        value_parser = parse_nsid(),
        requires = "traddr"
    )]
    namespace_id: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The transport that matters, and the target to try, if any.
#[derive(Debug)]
struct Way {
    transport: Transport,
    connect: Option<ConnectArgs>,
}

impl FromArgMatches for Way {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let has_target = matches.contains_id("traddr");
        let connect = has_target.then(|| ConnectArgs::from_arg_matches(matches));
        Ok(Self {
            transport: idle::value(matches, "transport").unwrap_or(Transport::Auto),
            connect: connect.transpose()?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Way {
    fn augment_args(command: Command) -> Command {
        ConnectArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        ConnectArgs::augment_args_for_update(command)
    }
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<()> {
        let machine = Machine::here();
        let role = match self.way.transport {
            Transport::Tcp => Role::TcpHost,
            Transport::Auto | Transport::Rdma => Role::Host,
        };
        let mut checks = machine_checks(&machine, &role);
        checks.extend(attached::attached());
        match &self.way.connect {
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
            && let Some(mut queue) =
                connection::connect(&mut reached, self.namespace_id, &mut checks)
        {
            let way = reached.connect.way();
            checks.push(health::health(&mut queue, &way));
            match exercise::namespace_to_read(&queue, self.namespace_id) {
                Ok(namespace) => {
                    if exercise::exercise(queue, &namespace, &mut checks) {
                        measure::measure(&reached.connect, &namespace, &mut checks);
                    }
                }
                Err(error) => {
                    checks.push(exercise::nothing_to_read(&error, &way));
                    queue.close();
                }
            }
        }
        checks
    }
}
