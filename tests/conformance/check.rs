//! Telling an outcome that is not the expected one from trouble on the way.

use anyhow::{Error, Result, anyhow};
use std::fmt;

/// What was seen is not what was expected. Any other error says that nothing
/// was seen: it never counts as proof.
#[derive(Debug)]
pub(crate) struct Mismatch(String);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mismatch {}

/// Whether an error is about an outcome.
pub(crate) fn is_mismatch(error: &Error) -> bool {
    error.downcast_ref::<Mismatch>().is_some()
}

/// A verdict on something that was seen.
pub(crate) fn judged<T>(verdict: Result<T>) -> Result<T> {
    verdict.map_err(|error| anyhow!(Mismatch(format!("{error:#}"))))
}

/// The same with what the story wants to say about it.
pub(crate) fn holds(condition: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if condition {
        Ok(())
    } else {
        Err(anyhow!(Mismatch(otherwise())))
    }
}

/// A mismatch in these words.
pub(crate) fn mismatch(text: String) -> Error {
    anyhow!(Mismatch(text))
}
