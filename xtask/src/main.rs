//! Fairlead's developer commands: `cargo xtask VERB`. Each verb installs what
//! it misses and says so, one line per step.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod bench;
mod bpf;
mod build;
mod command;
mod conformance;
mod demo;
mod kernels;
mod lint;
mod paths;
mod setup;
mod test;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Fairlead's developer commands"
)]
struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Get all that the other verbs need, which they else get when they need it
    Setup,
    /// Build the BPF object that the agent embeds
    Bpf,
    /// Build the BPF object and every crate
    Build,
    /// Build everything and run the tests
    Test(test::Options),
    /// Build everything and run the demo
    Demo {
        /// Arguments of the demo
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Build everything and try the Service API's rules on Fairlead and on kube-proxy
    #[command(disable_help_flag = true)]
    Conformance {
        /// Arguments of the suite; `--help` tells them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Measure what the design promises, and name each bound that is missed
    Bench(bench::Options),
    /// Check formatting, lints and dependencies
    Lint,
    /// Run a smoke test on older kernels, in virtual machines
    Kernels(kernels::Options),
}

fn main() -> ExitCode {
    match run(Options::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A verb that judges something answers with its verdict; others succeed or
/// fail.
fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Test(options) => return test::run(&options),
        Verb::Bench(options) => return bench::run(&options),
        Verb::Kernels(options) => return kernels::run(&options),
        Verb::Setup => setup::run()?,
        Verb::Bpf => bpf::run()?,
        Verb::Build => build::run()?,
        Verb::Demo { arguments } => demo::run(&arguments)?,
        Verb::Conformance { arguments } => conformance::run(&arguments)?,
        Verb::Lint => lint::run()?,
    }
    Ok(ExitCode::SUCCESS)
}
