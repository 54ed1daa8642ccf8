//! Waiting for a condition, never for a time.

use anyhow::{Result, anyhow};
use std::time::{Duration, Instant};

/// Tries `condition` until it holds; after `deadline` its last failure is the error.
pub fn eventually<T>(deadline: Duration, mut condition: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = deadline * slowness();
    let start = Instant::now();
    let mut tries = 0_u32;
    loop {
        tries += 1;
        match condition() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() >= deadline => {
                let took = start.elapsed().as_secs_f32();
                return Err(
                    error.context(anyhow!("still not so after {took:.1} s and {tries} tries"))
                );
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// How many times slower than usual this machine is: an emulated one is.
fn slowness() -> u32 {
    let given = std::env::var("FAIRLEAD_SLOWNESS").ok();
    given.and_then(|times| times.parse().ok()).unwrap_or(1)
}
