//! Fairlead's developer commands: `cargo xtask VERB`. Each verb installs what
//! it misses and says so, one line per step.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bpf;
mod build;
mod command;
mod paths;
mod setup;

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
    /// Build the BPF object that the agent embeds
    Bpf,
    /// Build the BPF object and every crate
    Build,
}

fn main() -> ExitCode {
    let outcome = match Options::parse().verb {
        Verb::Bpf => bpf::run(),
        Verb::Build => build::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
