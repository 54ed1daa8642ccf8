//! Points where a test can make the agent die: before each single write to the
//! kernel. Nothing in a build without feature `crash-points`, as releases are.

/// Dies here if this is the point that `FAIRLEAD_TEST_DIE_AT` counts to.
#[cfg(feature = "crash-points")]
pub(crate) fn point() {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    static DIE_AT: LazyLock<Option<u32>> =
        LazyLock::new(|| std::env::var("FAIRLEAD_TEST_DIE_AT").ok()?.parse().ok());
    static PASSED: AtomicU32 = AtomicU32::new(0);
    if let Some(die_at) = *DIE_AT
        && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == die_at
        && let Err(error) = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)
    {
        tracing::error!(%error, "cannot die");
    }
}

/// Whether a test asks for the way of kernels before Linux 6.6.
#[cfg(feature = "crash-points")]
pub(crate) fn without_tcx() -> bool {
    std::env::var_os("FAIRLEAD_TEST_WITHOUT_TCX").is_some()
}

/// Never in this build.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn without_tcx() -> bool {
    false
}

/// Does nothing in this build.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub(crate) fn point() {}
