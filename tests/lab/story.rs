//! Running tests: a story is a closure that returns a `Result`; its failure
//! comes with what the agents logged.

use crate::lab::Lab;
use anyhow::{Context, Result};
use std::sync::OnceLock;

/// A lab that the tests of one target share, built by the first that needs it.
///
/// It is a static, so nothing drops it: its reaper cleans up when the process ends.
pub struct SharedLab<W: 'static = Lab> {
    build: fn() -> Result<W>,
    world: OnceLock<Result<W, String>>,
}

impl<W: AsRef<Lab>> SharedLab<W> {
    /// A lab, or what stands in it, that `build` makes.
    pub const fn new(build: fn() -> Result<W>) -> Self {
        Self {
            build,
            world: OnceLock::new(),
        }
    }

    /// Runs a story in the lab.
    ///
    /// # Panics
    /// If the lab cannot be built or the story fails.
    pub fn story(&self, tell: impl FnOnce(&W) -> Result<()>) {
        match self
            .world
            .get_or_init(|| (self.build)().map_err(|error| format!("{error:#}")))
        {
            Ok(world) => judge(world, tell),
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

fn judge<W: AsRef<Lab>>(world: &W, tell: impl FnOnce(&W) -> Result<()>) {
    if let Err(error) = tell(world) {
        panic!("{error:#}\n{}", world.as_ref().logs());
    }
}
