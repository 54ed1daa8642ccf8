//! Patterns for names, where `*` stands for any text.

/// Whether a name matches a pattern.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    (0..=name.len()).any(|at| {
        name.get(at..)
            .is_some_and(|remaining| matches(rest, remaining))
    })
}
