//! The rows, a file per chapter of semantics.md. Each says what the text says;
//! no row is written after what a proxy does.

mod endpoints;

use crate::row::Row;

/// All rows, in the order of the rules.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = [endpoints::rows()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    rows.sort_by_key(|row| row.rule);
    rows
}
