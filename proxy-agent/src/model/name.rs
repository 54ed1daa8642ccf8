//! Names of objects, and strings that are stored once.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Namespace and name of an object; the namespace of a Node is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The name of an object in a namespace.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Strings that many objects share (nodes, namespaces, zones, port names),
/// each stored once.
#[derive(Debug, Default)]
pub struct Interner {
    strings: HashSet<Arc<str>>,
    /// Strings that nobody uses any more are dropped when the set grows to this.
    sweep_at: usize,
}

impl Interner {
    /// Sets smaller than this are not swept.
    const SWEEP_MIN: usize = 1024;

    /// The shared copy of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.strings.get(text) {
            return known.clone();
        }
        if self.strings.len() >= self.sweep_at {
            self.strings.retain(|known| Arc::strong_count(known) > 1);
            self.sweep_at = (2 * self.strings.len()).max(Self::SWEEP_MIN);
        }
        let shared: Arc<str> = text.into();
        self.strings.insert(shared.clone());
        shared
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.strings.len()
    }
}
