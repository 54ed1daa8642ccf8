//! The one binary.

use clap::Parser;
use proxy_agent::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    give_memory_back();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A list of everything and a scrape of all metrics need much memory for a
/// moment. glibc would keep it: its thresholds grow with what is freed, and
/// every thread has a heap of its own that only shrinks at its end.
#[cfg(target_env = "gnu")]
fn give_memory_back() {
    const THRESHOLD: libc::c_int = 128 * 1024;
    // SAFETY: takes numbers, before there is another thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, THRESHOLD);
    }
}

#[cfg(not(target_env = "gnu"))]
fn give_memory_back() {}
