//! `main.rs` once more, built with another layout of the maps (see Cargo.toml).

use clap::Parser;
use proxy_agent::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            ExitCode::FAILURE
        }
    }
}
