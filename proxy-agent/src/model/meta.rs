//! `metadata`, of which we read a few fields.

use crate::model::{Interner, ObjectName};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct NarrowMeta {
    name: Option<String>,
    namespace: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
}

/// Reads `metadata` without what we never look at (managedFields are half of a
/// Service's bytes) into the type that the kube crate asks for.
pub(super) fn narrow<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = Option::<NarrowMeta>::deserialize(deserializer)?.unwrap_or_default();
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        labels: meta.labels,
        annotations: meta.annotations,
        resource_version: meta.resource_version,
        creation_timestamp: meta
            .creation_timestamp
            .and_then(|text| text.parse().ok())
            .map(Time),
        deletion_timestamp: meta
            .deletion_timestamp
            .and_then(|text| text.parse().ok())
            .map(Time),
        ..ObjectMeta::default()
    })
}

/// The name of a namespaced object; a manifest without a namespace is in
/// `default`, as with kubectl. `None` without a name, or with one that no API
/// server would take: `namespace/name:port` must stay readable in map `services`.
pub(crate) fn namespaced_name(meta: &ObjectMeta, interner: &mut Interner) -> Option<ObjectName> {
    let is_name = |text: &str| !text.contains(['/', ':', '\0']);
    let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
    let namespace = meta
        .namespace
        .as_deref()
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or("default");
    (is_name(name) && is_name(namespace)).then(|| ObjectName::new(interner.intern(namespace), name))
}

/// The name of an object in no namespace; `None` if it has none.
pub(crate) fn cluster_name(meta: &ObjectMeta) -> Option<ObjectName> {
    let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
    Some(ObjectName::new("", name))
}

/// A label that is set and not empty.
pub(super) fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels
        .as_ref()?
        .get(key)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

/// Whether a label is set, even to "".
pub(super) fn has_label(meta: &ObjectMeta, key: &str) -> bool {
    meta.labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(key))
}

/// Seconds of `creationTimestamp` since the epoch; an object without one counts
/// as younger than all that have it.
pub(super) fn created_s(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp
        .as_ref()
        .map_or(i64::MAX, |time| time.0.as_second())
}

/// An annotation that is a time (RFC 3339), in milliseconds since the epoch.
pub(super) fn annotated_ms(meta: &ObjectMeta, key: &str) -> Option<i64> {
    let text = meta.annotations.as_ref()?.get(key)?;
    text.parse()
        .ok()
        .map(|time: Timestamp| time.as_millisecond())
}

/// Makes a raw object one that the kube crate can list and watch, with the
/// names of the full type.
macro_rules! resource {
    ($raw:ty, $full:ty, $scope:ty) => {
        impl kube::Resource for $raw {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$full as k8s_openapi::Resource>::KIND.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$full as k8s_openapi::Resource>::GROUP.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$full as k8s_openapi::Resource>::VERSION.into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$full as k8s_openapi::Resource>::URL_PATH_SEGMENT.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(
                &mut self,
            ) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(super) use resource;
