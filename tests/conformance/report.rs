//! What people and programs read of a run.

use crate::pending;
use crate::row::{Family, Row, Why};
use crate::run::{Column, Outcome, Verdict};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

/// The rows as they are written down.
pub(crate) fn list(rows: &[&Row]) -> Table {
    let mut table = new_table(&["rule", "row", "cases", "expected", "source"]);
    for row in rows {
        table.add_row([
            row.rule.to_string(),
            row.name.to_owned(),
            row.cases.join(" "),
            row.expected.to_owned(),
            row.source.to_owned(),
        ]);
    }
    table
}

/// Rows down, proxies across.
pub(crate) fn table(rows: &[&Row], columns: &[Column]) -> Table {
    let mut titles = vec!["rule", "row", "expected"];
    titles.extend(columns.iter().map(|column| column.proxy.as_str()));
    let mut table = new_table(&titles);
    for (index, row) in rows.iter().enumerate() {
        for &family in row.families {
            let mut cells = vec![
                row.rule.to_string(),
                format!("{} {}", row.name, family.as_str()),
                row.expected.to_owned(),
            ];
            cells.extend(columns.iter().map(|column| cell(column, index, family)));
            table.add_row(cells);
        }
    }
    table
}

fn cell(column: &Column, row: usize, family: Family) -> String {
    let found = column
        .outcomes
        .iter()
        .find(|it| it.row == row && it.family == family);
    found.map_or("–".to_owned(), short)
}

fn short(outcome: &Outcome) -> String {
    let text = match &outcome.verdict {
        Verdict::Met => "as expected".to_owned(),
        Verdict::Differs(Why::Ours(why), _) => format!("differs: ours: {why}"),
        Verdict::Differs(Why::Fault(why), _) => format!("differs: {why}"),
        Verdict::NotYet(reason, _) => format!("not yet: {reason}"),
        Verdict::Failed(what) => format!("FAILED: {what}"),
        Verdict::OutOfDate(what) => format!("FAILED: {what}"),
        Verdict::Noticed(_) => "noticed".to_owned(),
        Verdict::Blind => "FAILED: passes in the wrong lab".to_owned(),
        Verdict::NotJudged => "not judged".to_owned(),
    };
    format!("{text} ({:.1} s)", outcome.time.as_secs_f32())
}

/// A line as soon as a row is done.
pub(crate) fn progress(row: &Row, outcome: &Outcome) {
    let detail = match &outcome.verdict {
        Verdict::Met | Verdict::NotJudged => String::new(),
        Verdict::Differs(_, seen) | Verdict::NotYet(_, seen) | Verdict::Noticed(seen) => {
            format!(": {seen}")
        }
        Verdict::Failed(_) | Verdict::OutOfDate(_) | Verdict::Blind => String::new(),
    };
    eprintln!(
        "    {:>2} {} {}: {}{detail}",
        row.rule,
        row.name,
        outcome.family.as_str(),
        short(outcome)
    );
}

/// The same as [`table`], whole, for programs.
pub(crate) fn json(rows: &[&Row], columns: &[Column]) -> Value {
    let rows = rows.iter().enumerate().map(|(index, row)| {
        let outcomes = columns.iter().flat_map(|column| {
            let of_row = column.outcomes.iter().filter(move |it| it.row == index);
            of_row.map(|outcome| one(column, outcome))
        });
        json!({
            "rule": row.rule,
            "name": row.name,
            "cases": row.cases,
            "expected": row.expected,
            "source": row.source,
            "pending": pending::reason(row),
            "outcomes": outcomes.collect::<Vec<_>>(),
        })
    });
    let times = columns
        .iter()
        .map(|column| json!({ "proxy": column.proxy, "seconds": column.time.as_secs_f32() }));
    json!({ "rows": rows.collect::<Vec<_>>(), "columns": times.collect::<Vec<_>>() })
}

fn one(column: &Column, outcome: &Outcome) -> Value {
    let (verdict, why, seen) = match &outcome.verdict {
        Verdict::Met => ("met", None, None),
        Verdict::Differs(Why::Ours(why), seen) => ("differs-ours", Some(*why), Some(seen.as_str())),
        Verdict::Differs(Why::Fault(why), seen) => {
            ("differs-fault", Some(*why), Some(seen.as_str()))
        }
        Verdict::NotYet(reason, seen) => ("not-yet", Some(*reason), Some(seen.as_str())),
        Verdict::Failed(seen) => ("failed", None, Some(seen.as_str())),
        Verdict::OutOfDate(what) => ("out-of-date", Some(*what), None),
        Verdict::Noticed(seen) => ("noticed", None, Some(seen.as_str())),
        Verdict::Blind => ("blind", None, None),
        Verdict::NotJudged => ("not-judged", None, None),
    };
    json!({
        "proxy": column.proxy,
        "family": outcome.family,
        "verdict": verdict,
        "why": why,
        "seen": seen,
        "seconds": outcome.time.as_secs_f32(),
    })
}

/// Prints a line per column, and whether all of it is good.
pub(crate) fn conclude(columns: &[Column]) -> bool {
    let mut good = true;
    for column in columns {
        let count = |of: fn(&Verdict) -> bool| {
            let all = column.outcomes.iter();
            all.filter(|it| of(&it.verdict)).count()
        };
        let failed = count(|it| !it.is_good());
        let open = count(|it| matches!(it, Verdict::NotYet(..) | Verdict::NotJudged));
        let passed = column.outcomes.len() - failed - open;
        good &= failed == 0;
        println!(
            "{}: {} rows, {} of them explained differences, {} not met yet; {:.0} s",
            column.proxy.as_str(),
            column.outcomes.len(),
            count(|it| matches!(it, Verdict::Differs(..))),
            open,
            column.time.as_secs_f32()
        );
        // In the words of Rust's own tests, for whoever adds them up.
        println!(
            "test result: {}. {passed} passed; {failed} failed; {open} ignored; 0 measured",
            if failed == 0 { "ok" } else { "FAILED" },
        );
    }
    good
}

fn new_table(titles: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles.to_vec());
    table
}
