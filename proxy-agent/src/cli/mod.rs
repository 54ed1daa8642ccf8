//! The command line: one file per command.

mod backends;
mod flows;
mod services;
mod status;
mod tables;
mod verify;

use crate::agent;
use crate::config::{LogFormat, Options, PIN_DIR};
use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Services for Kubernetes nodes, in eBPF.
#[derive(Debug, Parser)]
#[command(name = "fairlead", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch Services and program the kernel of this node
    Agent(Box<Options>),
    /// List service ports, their frontends and how many backends each has, from the pinned maps
    Services(Inspect),
    /// List the backends of service ports, from the pinned maps
    Backends(Inspect),
    /// List translated connections of clients elsewhere, from the pinned maps
    Flows(flows::FlowsOptions),
    /// Show the tables of a service port: sizes, shares, and what a change would move
    Tables(tables::Tables),
    /// Show hooks, devices, flows, maps and drops, from the kernel; or compare it with the API
    Status(Box<StatusOptions>),
}

/// Options of the commands that read the maps.
#[derive(Args, Debug)]
struct Inspect {
    /// Directory where the agent pins its maps
    #[arg(long, value_name = "DIR", default_value = PIN_DIR)]
    pin_dir: PathBuf,
    /// Form of the output
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Options of `fairlead status`.
#[derive(Args, Debug)]
struct StatusOptions {
    /// Compare the pinned maps, the hooks and the devices with what the API says, and change
    /// nothing: exit code 1 if they differ, 2 if that cannot be told. Takes the agent's options
    #[arg(long)]
    verify: bool,
    /// Form of the output
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten, next_help_heading = "The agent's options, for --verify")]
    agent: Options,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Table,
    Json,
}

impl Cli {
    /// Runs the command; says with which code to exit.
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Status(options) if options.verify => return Ok(verify::run(*options)),
            Command::Status(options) => {
                let agent = options.agent.merged()?;
                status::run(&Inspect {
                    pin_dir: agent.pin_dir.unwrap_or_else(|| PIN_DIR.into()),
                    output: options.output,
                })
            }
            Command::Agent(options) => {
                let options = options.merged()?;
                start_log(
                    options.log_format.unwrap_or(LogFormat::Text),
                    options.log.as_deref().unwrap_or("info"),
                )?;
                let config = options.resolve()?;
                tokio::runtime::Runtime::new()
                    .context("starting the runtime")?
                    .block_on(agent::run(config))
            }
            Command::Services(inspect) => services::run(&inspect),
            Command::Backends(inspect) => backends::run(&inspect),
            Command::Flows(options) => flows::run(&options),
            Command::Tables(tables) => tables::run(&tables),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

fn start_log(format: LogFormat, filter: &str) -> Result<()> {
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("--log {filter:?} is no filter"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// Prints rows as a table, or what they were made from as JSON.
fn print<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce() -> comfy_table::Table,
) -> Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(value)?),
        Output::Table => println!("{}", table()),
    }
    Ok(())
}

fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_header(header);
    table
}
