//! `fairlead status --verify`

use super::{Output, StatusOptions, start_log};
use crate::config::LogFormat;
use crate::verify::{Report, verify};
use anyhow::{Context, Result};
use std::process::ExitCode;

/// Exit codes, as diff(1) has them.
const THEY_DIFFER: u8 = 1;
const CANNOT_TELL: u8 = 2;

pub(super) fn run(options: StatusOptions) -> ExitCode {
    let output = options.output;
    match look(options).and_then(|report| print(&report, output).map(|()| report)) {
        Ok(report) if report.differences.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(THEY_DIFFER),
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            ExitCode::from(CANNOT_TELL)
        }
    }
}

fn look(options: StatusOptions) -> Result<Report> {
    let agent = options.agent.merged()?;
    let format = agent.log_format.unwrap_or(LogFormat::Text);
    // Of an API server that cannot be reached the log tells first.
    start_log(format, agent.log.as_deref().unwrap_or("warn"))?;
    let config = agent.resolve()?;
    tokio::runtime::Runtime::new()
        .context("starting the runtime")?
        .block_on(verify(&config))
}

fn print(report: &Report, output: Output) -> Result<()> {
    if let Output::Json = output {
        println!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    for difference in &report.differences {
        println!("{difference}");
    }
    let Report {
        differences,
        service_ports,
        frontends,
        devices,
        upgrade_under_way,
    } = report;
    let count = match differences.len() {
        0 => "nothing differs".to_owned(),
        1 => "1 difference".to_owned(),
        count => format!("{count} differences"),
    };
    println!("{count}: {service_ports} service ports, {frontends} frontends, {devices} devices");
    if *upgrade_under_way {
        println!("An agent is making new maps; those that are still in force were looked at.");
    }
    Ok(())
}
