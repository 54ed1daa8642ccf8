//! Running tests: a story is a closure that returns a `Result`; its failure
//! comes with what the agents logged.

use crate::lab::Lab;
use anyhow::{Context, Result};
use std::sync::OnceLock;

/// A lab that the tests of one target share, built by the first that needs it.
///
/// It is a static, so nothing drops it: its reaper cleans up when the process ends.
pub struct SharedLab {
    build: fn() -> Result<Lab>,
    lab: OnceLock<Result<Lab, String>>,
}

impl SharedLab {
    /// A lab that `build` makes.
    pub const fn new(build: fn() -> Result<Lab>) -> Self {
        Self {
            build,
            lab: OnceLock::new(),
        }
    }

    /// Runs a story in the lab.
    ///
    /// # Panics
    /// If the lab cannot be built or the story fails.
    pub fn story(&self, tell: impl FnOnce(&Lab) -> Result<()>) {
        match self
            .lab
            .get_or_init(|| (self.build)().map_err(|error| format!("{error:#}")))
        {
            Ok(lab) => judge(lab, tell),
            Err(error) => panic!("cannot build the lab: {error}"),
        }
    }
}

/// Runs a story in a lab of its own.
///
/// # Panics
/// If the lab cannot be built, the story fails, or something stays behind.
pub fn story(build: impl FnOnce() -> Result<Lab>, tell: impl FnOnce(&Lab) -> Result<()>) {
    match build() {
        Ok(lab) => {
            judge(&lab, tell);
            lab.close()
                .context("clean up")
                .unwrap_or_else(|error| panic!("{error:#}"));
        }
        Err(error) => panic!("cannot build the lab: {error:#}"),
    }
}

fn judge(lab: &Lab, tell: impl FnOnce(&Lab) -> Result<()>) {
    if let Err(error) = tell(lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}
