//! The rows that Fairlead does not meet yet. The list only shrinks: a row in it
//! that passes fails the suite, as does one that is not in it and fails.

use crate::row::Row;
use anyhow::{Result, ensure};

/// What is missing, and the rows that wait for it.
const PENDING: &[(&str, &[&str])] = &[];

/// What a row waits for.
pub(crate) fn reason(row: &Row) -> Option<&'static str> {
    PENDING
        .iter()
        .find(|(_, rows)| rows.contains(&row.name))
        .map(|&(reason, _)| reason)
}

/// Fails if the list names a row that there is not.
pub(crate) fn check(rows: &[Row]) -> Result<()> {
    for name in PENDING.iter().flat_map(|(_, names)| *names) {
        let known = rows.iter().any(|row| row.name == *name);
        ensure!(known, "pending.rs lists {name}, and no row has that name");
    }
    Ok(())
}
