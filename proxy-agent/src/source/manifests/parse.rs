//! One file: documents, lists, and the objects in them.

use super::claims::Key;
use crate::model::{
    Interner, Kind, ObjectName, RawEndpointSlice, RawNode, RawService, Reason, Warning,
};
use crate::source::{Object, Raw};
use ::kube::core::PartialObjectMeta;
use k8s_openapi::api::core::v1 as core;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// Objects in the file's order.
    pub(super) objects: Vec<Object>,
    /// Objects with a name that cannot be read otherwise.
    pub(super) unreadable: Vec<Key>,
    pub(super) warnings: Vec<Warning>,
}

/// Reads a file; an error if its text is broken anywhere, since it may be half
/// written and what is missing then must not count as deleted.
pub(super) fn parse(file: &str, text: &str, interner: &mut Interner) -> Result<Parsed, String> {
    let documents: Vec<Value> = if file.ends_with(".json") {
        let documents = serde_json::Deserializer::from_str(text).into_iter();
        documents
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?
    } else {
        // The limits on size guard against strangers; a directory of 10,000
        // Services in one file is fine.
        let options = serde_saphyr::options! { budget: None };
        serde_saphyr::from_multiple_with_options(text, options)
            .map_err(|error| error.to_string())?
    };
    let mut reader = Reader {
        file,
        interner,
        parsed: Parsed::default(),
    };
    for document in documents {
        reader.document(document);
    }
    Ok(reader.parsed)
}

struct Reader<'a> {
    file: &'a str,
    interner: &'a mut Interner,
    parsed: Parsed,
}

impl Reader<'_> {
    fn document(&mut self, mut document: Value) {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&document, "apiVersion"), text(&document, "kind"));
        let Some(item_kind) = kind.strip_suffix("List") else {
            return self.object(&version, &kind, document);
        };
        let Value::Array(items) = document["items"].take() else {
            return;
        };
        for item in items {
            // Items of a typed list have neither field.
            match (text(&item, "apiVersion"), text(&item, "kind")) {
                (_, kind) if kind.is_empty() => self.object(&version, item_kind, item),
                (version, kind) => self.object(&version, &kind, item),
            }
        }
    }

    fn object(&mut self, version: &str, kind: &str, value: Value) {
        match (version, kind) {
            ("v1", "Service") => self.read::<RawService>(value),
            ("discovery.k8s.io/v1", "EndpointSlice") => self.read::<RawEndpointSlice>(value),
            ("v1", "Node") => self.read::<RawNode>(value),
            ("v1", "Pod") => self.read::<PartialObjectMeta<core::Pod>>(value),
            ("v1", "Namespace") => self.read::<PartialObjectMeta<core::Namespace>>(value),
            _ => tracing::debug!(file = self.file, version, kind, "not a kind that is served"),
        }
    }

    fn read<R: Raw + DeserializeOwned>(&mut self, value: Value) {
        let named = name_of(R::KIND, &value);
        let raw: R = match serde_json::from_value(value) {
            Ok(raw) => raw,
            Err(error) => return self.reject(R::KIND, named, &error.to_string()),
        };
        let Some(name) = raw.name(self.interner) else {
            return self.reject(
                R::KIND,
                None,
                "metadata.name or its namespace is missing or no valid name",
            );
        };
        let (object, warnings) = raw.into_object(name, self.interner);
        self.parsed.objects.extend(object);
        self.parsed.warnings.extend(warnings);
    }

    fn reject(&mut self, kind: Kind, name: Option<ObjectName>, why: &str) {
        let message = format!(
            "in {}: {why}; what was there before stays, correct the object",
            self.file
        );
        let unknown = ObjectName::new("", "(no name)");
        let named = name.as_ref().unwrap_or(&unknown);
        self.parsed
            .warnings
            .push(Warning::new(kind, named, Reason::UnreadableObject, message));
        self.parsed.unreadable.extend(name.map(|name| (kind, name)));
    }
}

/// The name of an object that may be unreadable otherwise.
fn name_of(kind: Kind, value: &Value) -> Option<ObjectName> {
    let name = value["metadata"]["name"]
        .as_str()
        .filter(|name| !name.is_empty())?;
    let namespace = match kind {
        Kind::Service | Kind::EndpointSlice | Kind::Pod => {
            value["metadata"]["namespace"].as_str().unwrap_or("default")
        }
        Kind::Node | Kind::Namespace => "",
    };
    Some(ObjectName::new(namespace, name))
}
