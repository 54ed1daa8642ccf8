//! What a test can make the agent believe of its kernel. Nothing in a build
//! without feature `crash-points`, as releases are.

/// Whether the kernel shall count as one that cannot end sockets
/// (`FAIRLEAD_TEST_NO_SOCK_DESTROY`).
#[cfg(feature = "crash-points")]
pub(crate) fn lacks_sock_destroy() -> bool {
    std::env::var_os("FAIRLEAD_TEST_NO_SOCK_DESTROY").is_some()
}

/// Never in this build.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub(crate) fn lacks_sock_destroy() -> bool {
    false
}
