//! The one binary.

use clap::Parser;
use proxy_agent::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            ExitCode::FAILURE
        }
    }
}
