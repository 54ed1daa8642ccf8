//! The Service API's rules as outcomes that anyone can see from outside, tried
//! on Fairlead and on the real kube-proxy, in the same lab and from the same
//! real API server.
//!
//! A [row](row::Row) is one rule's outcome: what the API text or a KEP says,
//! written down before any proxy ran, and a story that finds out. Rows know
//! nothing of a proxy but what clients see. `--break` runs them in a lab that
//! is wrong in one way each, and then every row must fail: proof that it can.

mod alike;
mod check;
mod fault;
mod pending;
mod props;
mod proxy;
mod report;
mod row;
mod rows;
mod run;
mod stage;
mod troupe;
mod world;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use proxy::Proxy;
use row::Row;
use std::path::PathBuf;
use std::process::ExitCode;

/// The Service API's rules, tried on Fairlead and on kube-proxy.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask conformance")]
struct Options {
    /// Run this proxy only (repeatable); all of them when none is named
    #[arg(long = "proxy", value_name = "PROXY")]
    proxies: Vec<Proxy>,
    /// Run only rows whose name contains this, or `rule=N`, or `case=KNN`
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Make the lab wrong for the rows of this rule (a number, or `all`), which must then fail
    #[arg(long = "break", value_name = "RULE")]
    break_rule: Option<String>,
    /// Only rows that Fairlead does not meet yet
    #[arg(long)]
    pending: bool,
    /// Print the rows, and run none
    #[arg(long)]
    list: bool,
    /// Rows at a time
    #[arg(long, value_name = "N", default_value_t = 6)]
    jobs: usize,
    /// Where the outcomes go as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match conform(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every outcome is as it must be.
fn conform(options: &Options) -> Result<bool> {
    let all = rows::all();
    pending::check(&all)?;
    let rows = chosen(&all, options)?;
    if options.list {
        println!("{}", report::list(&rows));
        return Ok(true);
    }
    ensure!(options.jobs > 0, "--jobs 0 runs nothing");
    let proxies = if options.proxies.is_empty() {
        Proxy::ALL.to_vec()
    } else {
        options.proxies.clone()
    };
    let mut columns = Vec::new();
    for proxy in proxies {
        columns.push(run::column(
            proxy,
            &rows,
            options.break_rule.is_some(),
            options.jobs,
        )?);
    }
    println!("{}", report::table(&rows, &columns));
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report::json(&rows, &columns))?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(report::conclude(&columns))
}

fn chosen<'r>(all: &'r [Row], options: &Options) -> Result<Vec<&'r Row>> {
    let rule = match options.break_rule.as_deref() {
        None | Some("all") => None,
        Some(number) => Some(
            number
                .parse::<u8>()
                .with_context(|| format!("--break {number}: a rule's number, or `all`"))?,
        ),
    };
    let rows: Vec<&Row> = all
        .iter()
        .filter(|row| rule.is_none_or(|rule| row.rule == rule))
        .filter(|row| {
            options
                .filter
                .as_deref()
                .is_none_or(|text| row.matches(text))
        })
        .filter(|row| !options.pending || pending::reason(row).is_some())
        .collect();
    if rows.is_empty() {
        bail!("there is no such row; `--list` prints them");
    }
    Ok(rows)
}
