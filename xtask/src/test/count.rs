//! Counts tests while their output passes by.

use std::io::{self, Read, Write};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) ignored: u32,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        let Self {
            passed,
            failed,
            ignored,
        } = other;
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
    }
}

/// Runs `cargo test`, passing its output on as it comes; returns the sum of
/// its test binaries' results and whether it succeeded.
pub(super) fn run(command: &mut Command) -> Result<(Count, bool)> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let count =
        pass_on(output, io::stdout().lock()).context("cannot pass on the output of cargo test")?;
    let status = child.wait().context("cannot wait for cargo test")?;
    Ok((count, status.success()))
}

/// Copies a stream byte for byte (not line for line: the name of a running
/// test comes before its end of line) and adds up the results in it.
fn pass_on(mut from: impl Read, mut to: impl Write) -> io::Result<Count> {
    let mut count = Count::default();
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let bytes = &buffer[..read];
        to.write_all(bytes)?;
        to.flush()?;
        for &byte in bytes {
            if byte == b'\n' {
                count += result(&String::from_utf8_lossy(&line)).unwrap_or_default();
                line.clear();
            } else {
                line.push(byte);
            }
        }
    }
    count += result(&String::from_utf8_lossy(&line)).unwrap_or_default();
    Ok(count)
}

/// What a line says of a test binary's run, if it is libtest's closing line:
/// `test result: ok. 8 passed; 0 failed; 1 ignored; 0 measured; …`. A test that
/// writes without an end of line may stand before it.
fn result(line: &str) -> Option<Count> {
    let (_, rest) = line.split_once("test result: ")?;
    let (_, numbers) = rest.split_once(". ")?;
    let of = |what: &str| {
        let part = numbers.split("; ").find(|part| part.ends_with(what))?;
        part.split(' ').next()?.parse().ok()
    };
    Some(Count {
        passed: of(" passed")?,
        failed: of(" failed")?,
        ignored: of(" ignored")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_binaries_are_added_up_and_the_text_passed_on() {
        let text = "running 2 tests\ntest a ... ok\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            noise test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";
        let mut copy = Vec::new();
        let count = pass_on(text.as_bytes(), &mut copy).expect("no input or output fails");
        assert_eq!(
            count,
            Count {
                passed: 5,
                failed: 4,
                ignored: 1
            }
        );
        assert_eq!(copy, text.as_bytes());
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in ["test a ... ok", "test result: who knows", ""] {
            assert_eq!(result(line), None, "{line}");
        }
    }
}
