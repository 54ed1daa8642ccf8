//! `cargo xtask test`: the tiers of tests, and one verdict over them.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};

use self::count::Count;
use self::targets::Target;
use crate::setup::{control_plane, lab};
use crate::{build, command, conformance};

mod count;
mod targets;

/// Options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only this tier (repeatable); all of them when none is named
    #[arg(long = "tier", value_name = "TIER")]
    tiers: Vec<Tier>,
    /// Run only tests whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Run the long tests (marked `#[ignore]`) too, and more random cases
    #[arg(long)]
    long: bool,
}

/// A kind of tests, by what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// The crates' own tests: no privilege, no kernel
    Unit,
    /// Black-box tests between network namespaces of this machine: root
    Lab,
    /// The programs on devices by test runs: root
    Packet,
    /// Tests against a real API server: root, and a long first build
    Cluster,
    /// The rules of the Service API, tried as on kube-proxy: as for the cluster tier
    Conformance,
}

/// How a tier went.
struct Report {
    tier: Tier,
    count: Count,
    time: Duration,
    /// Why it failed, if it did.
    failure: Option<String>,
}

/// Runs the chosen tiers; the exit code is their verdict.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    build::run()?;
    let targets = targets::list()?;
    let mut reports = Vec::new();
    for tier in Tier::value_variants() {
        if options.tiers.is_empty() || options.tiers.contains(tier) {
            reports.push(report(*tier, options, &targets));
        }
    }
    Ok(conclude(&reports))
}

fn report(tier: Tier, options: &Options, targets: &[Target]) -> Report {
    eprintln!("test: {tier} tier");
    let begun = Instant::now();
    let mut count = Count::default();
    let outcome = run_tier(tier, options, targets, &mut count);
    let failure = outcome.err().map(|error| format!("{error:#}"));
    if failure.is_some() && count.failed == 0 {
        // No test said so: the tier itself is what failed.
        count.failed = 1;
    }
    Report {
        tier,
        count,
        time: begun.elapsed(),
        failure,
    }
}

/// Prepares and runs a tier. An error is why it failed.
fn run_tier(tier: Tier, options: &Options, targets: &[Target], count: &mut Count) -> Result<()> {
    let mut commands = match tier {
        Tier::Unit => unit(options, targets),
        Tier::Lab => {
            lab::prepare()?;
            build::other_layout()?;
            vec![serial(tier, options, targets)?]
        }
        Tier::Packet => {
            lab::prepare()?;
            let mut command = serial(tier, options, targets)?;
            if options.long {
                command.env("FAIRLEAD_LONG", "1");
            }
            vec![command]
        }
        Tier::Cluster => {
            let mut command = serial(tier, options, targets)?;
            lab::prepare()?;
            command.env("FAIRLEAD_CONTROL_PLANE", control_plane::control_plane()?);
            vec![command]
        }
        Tier::Conformance => conformance::of_the_tier(options.filter.as_deref())?,
    };
    let mut complete = true;
    for command in &mut commands {
        let (counted, success) = count::run(command)?;
        *count += counted;
        complete &= success;
    }
    if count.failed > 0 {
        bail!("tests failed");
    }
    ensure!(complete, "it failed outside of a test: see its output");
    // With a filter, the other tiers may well have no such test.
    ensure!(
        count.passed > 0 || options.filter.is_some(),
        "it ran no test"
    );
    Ok(())
}

/// The unit tier: libraries, programs and test targets of no other tier, and
/// the examples in the documentation.
fn unit(options: &Options, targets: &[Target]) -> Vec<Command> {
    let mut code = cargo_test();
    code.args(["--workspace", "--lib", "--bins"]);
    for target in targets.iter().filter(|target| target.tier() == Tier::Unit) {
        code.args(["--test", &target.name]);
    }
    if options.long {
        // Histories of objects are the same tests with more cases.
        code.env("FAIRLEAD_LONG", "1");
    }
    pass_to_tests(&mut code, options, &[]);
    let mut examples = cargo_test();
    examples.args(["--workspace", "--doc"]);
    // Examples are ignored for good reasons, not for their length.
    pass_to_tests(
        &mut examples,
        &Options {
            long: false,
            tiers: Vec::new(),
            filter: options.filter.clone(),
        },
        &[],
    );
    vec![code, examples]
}

/// A tier of tests that share the machine: one after the other.
fn serial(tier: Tier, options: &Options, targets: &[Target]) -> Result<Command> {
    let mut command = cargo_test();
    // One package alone would get its dependencies with fewer features, and
    // so compile them, and the lab's programs, once more.
    command.arg("--workspace");
    let mut found = false;
    for Target { name } in targets.iter().filter(|target| target.tier() == tier) {
        command.args(["--test", name]);
        found = true;
    }
    ensure!(found, "no test target's name begins with '{tier}'");
    pass_to_tests(&mut command, options, &["--test-threads=1"]);
    Ok(command)
}

fn cargo_test() -> Command {
    let mut command = command::cargo();
    command.args(["test", "--no-fail-fast"]);
    command
}

/// Adds the arguments that are for the tests themselves, after `--`.
fn pass_to_tests(command: &mut Command, options: &Options, more: &[&str]) {
    command.arg("--").args(more).args(&options.filter);
    if options.long {
        command.arg("--include-ignored");
    }
}

/// Prints the closing table and the closing line.
fn conclude(reports: &[Report]) -> ExitCode {
    let mut total = Count::default();
    println!(
        "\n{:<12}{:<9}{:>8}{:>8}{:>9}{:>11}",
        "tier", "outcome", "passed", "failed", "ignored", "time"
    );
    for Report {
        tier,
        count,
        time,
        failure,
    } in reports
    {
        let Count {
            passed,
            failed,
            ignored,
        } = count;
        let outcome = if failure.is_some() { "failed" } else { "ok" };
        let reason = failure
            .as_ref()
            .map(|reason| format!("  {reason}"))
            .unwrap_or_default();
        let time = time.as_secs_f32();
        println!("{tier:<12}{outcome:<9}{passed:>8}{failed:>8}{ignored:>9}{time:>9.1} s{reason}");
        total += *count;
    }
    if total.passed == 0 && total.failed == 0 {
        println!("\nno test ran");
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    let success = total.failed == 0 && total.passed > 0;
    if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Unit => "unit",
            Self::Packet => "packet",
            Self::Lab => "lab",
            Self::Cluster => "cluster",
            Self::Conformance => "conformance",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(command: &Command) -> Vec<String> {
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    fn options(filter: Option<&str>, long: bool) -> Options {
        Options {
            tiers: Vec::new(),
            filter: filter.map(str::to_owned),
            long,
        }
    }

    fn target(name: &str) -> Target {
        Target { name: name.into() }
    }

    #[test]
    fn a_lab_run_is_serial_and_takes_only_its_targets() {
        let targets = [
            target("lab_tcp"),
            target("cluster_watch"),
            target("lab_udp"),
        ];
        let command = serial(Tier::Lab, &options(Some("v6"), true), &targets).expect("two targets");
        let words = arguments(&command).join(" ");
        assert!(
            words.contains("--test lab_tcp") && words.contains("--test lab_udp"),
            "{words}"
        );
        assert!(!words.contains("cluster"), "{words}");
        assert!(
            words.ends_with("-- --test-threads=1 v6 --include-ignored"),
            "{words}"
        );
    }

    #[test]
    fn a_tier_without_targets_says_so() {
        let error = serial(Tier::Cluster, &options(None, false), &[target("lab_tcp")])
            .expect_err("no target");
        assert!(error.to_string().contains("'cluster'"), "{error}");
    }

    #[test]
    fn test_targets_of_no_other_tier_run_with_the_unit_tests() {
        let commands = unit(&options(None, false), &[target("lab_tcp"), target("model")]);
        let words = arguments(&commands[0]).join(" ");
        assert!(
            words.contains("--test model") && !words.contains("lab_tcp"),
            "{words}"
        );
    }
}
