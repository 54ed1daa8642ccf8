//! Small bar charts on a terminal.

use lab::Counts;
use std::collections::BTreeMap;

/// Longest bar in cells.
const WIDTH: u64 = 36;

/// One bar a pod: `shop-1 n1 ████████ 1003`. Pods in `expected` that got nothing get a line as well.
pub(crate) fn print(counts: &Counts, nodes: &BTreeMap<String, String>) {
    let largest = counts
        .answered
        .values()
        .copied()
        .max()
        .unwrap_or_default()
        .max(1);
    for (pod, node) in nodes {
        let count = counts.by(pod);
        println!("     {pod}  {node}  {:<38} {count:>6}", bar(count, largest));
    }
    for (what, count) in &counts.failed {
        println!("     failed, {what}: {count}");
    }
}

/// In eighths of a cell, so that close numbers look close and not equal.
fn bar(count: u64, largest: u64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = count * WIDTH * 8 / largest;
    let full = usize::try_from(eighths / 8).unwrap_or_default();
    let part = usize::try_from(eighths % 8).unwrap_or_default();
    if count == 0 {
        "·".to_owned()
    } else {
        "█".repeat(full) + PARTS[part]
    }
}
