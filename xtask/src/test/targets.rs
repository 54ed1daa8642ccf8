//! Which test targets belong to which tier: their names tell.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Tier;
use crate::command;

/// A test target of the workspace (what a `[[test]]` section or a file in a
/// crate's `tests/` names).
pub(super) struct Target {
    pub(super) name: String,
}

impl Target {
    /// `lab…`, `packet…` and `cluster…` name their tiers; every other one is a unit test,
    /// so that none is forgotten.
    pub(super) fn tier(&self) -> Tier {
        match self.name.as_str() {
            name if name.starts_with("lab") => Tier::Lab,
            name if name.starts_with("packet") => Tier::Packet,
            name if name.starts_with("cluster") => Tier::Cluster,
            _ => Tier::Unit,
        }
    }
}

/// Every test target of the workspace.
pub(super) fn list() -> Result<Vec<Target>> {
    let metadata =
        command::output(command::cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    parse(&metadata)
}

fn parse(metadata: &str) -> Result<Vec<Target>> {
    let metadata: Value =
        serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let mut found = Vec::new();
    for package in list_at(&metadata, "packages")? {
        for target in list_at(package, "targets")? {
            if list_at(target, "kind")?.iter().any(|kind| kind == "test") {
                found.push(Target {
                    name: text_at(target, "name")?,
                });
            }
        }
    }
    Ok(found)
}

fn list_at<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value
        .get(key)
        .and_then(Value::as_array)
        .with_context(|| format!("cargo metadata has no list '{key}'"))
}

fn text_at(value: &Value, key: &str) -> Result<String> {
    let text = value.get(key).and_then(Value::as_str);
    Ok(text
        .with_context(|| format!("cargo metadata has no text '{key}'"))?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_sorted_into_tiers_by_name() {
        let metadata = r#"{"packages": [{"name": "p", "targets": [
            {"kind": ["lib"], "name": "lab"}, {"kind": ["test"], "name": "lab_udp"},
            {"kind": ["test"], "name": "packet"}, {"kind": ["test"], "name": "cluster_watch"},
            {"kind": ["test"], "name": "model"}]}]}"#;
        let targets = parse(metadata).expect("valid metadata");
        let tiers: Vec<_> = targets
            .iter()
            .map(|target| (target.name.as_str(), target.tier()))
            .collect();
        assert_eq!(
            tiers,
            [
                ("lab_udp", Tier::Lab),
                ("packet", Tier::Packet),
                ("cluster_watch", Tier::Cluster),
                ("model", Tier::Unit)
            ]
        );
    }
}
