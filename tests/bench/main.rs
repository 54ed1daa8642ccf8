//! `bench [--filter ROW] [--quick] [--full] [--json FILE]`: measures what the design
//! promises, each figure against a baseline of the same run. `cargo xtask
//! bench` builds everything and calls it.

mod api_server;
mod exchange;
mod kube_proxy;
mod maglev;
mod north_south;
mod pinned;
mod programming;
mod programs;
mod report;
mod scenery;
mod sockets;
mod stats;
mod worker;

use anyhow::{Context, Result, bail};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to do.
#[derive(Debug, Default)]
struct Options {
    /// Only rows whose name contains one of these.
    filters: Vec<String>,
    /// Fewer samples: to see that it works.
    quick: bool,
    /// kube-proxy with as many Services as Fairlead.
    full: bool,
    json: Option<PathBuf>,
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| row.contains(&**filter))
    }

    /// Whether a row may be wanted whose name begins with one of these.
    fn wants_any(&self, rows: &[&str]) -> bool {
        let fits = |filter: &String| {
            let mut rows = rows.iter();
            rows.any(|row| filter.contains(row) || row.contains(&**filter))
        };
        self.filters.is_empty() || self.filters.iter().any(fits)
    }
}

fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match &*arg {
            "worker" => {
                worker::work(&value()?, &args.collect::<Vec<_>>())?;
                return Ok(ExitCode::SUCCESS);
            }
            "--filter" => options.filters.push(value()?),
            "--json" => options.json = Some(value()?.into()),
            "--quick" => options.quick = true,
            "--full" => options.full = true,
            _ => bail!("usage: bench [--filter ROW]… [--quick] [--full] [--json FILE]"),
        }
    }
    ahead_of_others();
    let mut report = Report::new(options.quick);
    sockets::run(&options, &mut report)?;
    north_south::run(&options, &mut report)?;
    maglev::run(&options, &mut report)?;
    programming::one_more(&options, &mut report)?;
    programming::first(&options, &mut report)?;
    Ok(if report.conclude(options.json.as_deref())? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Before the machine's other work, with everything that is started later.
fn ahead_of_others() {
    // SAFETY: takes numbers; a failure leaves the priority as it was.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) };
}
