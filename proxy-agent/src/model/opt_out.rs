//! Pods and Namespaces, of which only the opt-out matters (semantics 36).

use crate::model::{Kind, ObjectName, Reason, Warning};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of a Pod or a Namespace: `disabled` leaves the connections of the Pod,
/// or of all Pods of the Namespace, alone. A Pod's own label wins.
pub const SOCKET_TRANSLATION: &str = "fairlead.io/socket-translation";

/// In the cgroup of a static Pod is not the UID of its object at the API server
/// but that of its manifest (pkg/kubelet/types, `ConfigHashAnnotationKey`).
const STATIC_POD_UID: &str = "kubernetes.io/config.hash";

/// The value of label [`SOCKET_TRANSLATION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketTranslation {
    /// As without the label, whatever the Namespace says.
    Enabled,
    /// Connections are left alone.
    Disabled,
}

/// What we keep of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Its name.
    pub name: ObjectName,
    /// Its UID, as its processes' cgroups have it.
    pub uid: Box<str>,
    /// Its own label.
    pub translation: Option<SocketTranslation>,
}

/// What we keep of a Namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Its name, in no namespace.
    pub name: ObjectName,
    /// Its label.
    pub translation: Option<SocketTranslation>,
}

impl Pod {
    /// The Pod with this metadata as we keep it; `None` without a UID, which the
    /// API always gives.
    pub fn new(name: ObjectName, metadata: &ObjectMeta) -> (Option<Self>, Option<Warning>) {
        let annotations = metadata.annotations.as_ref();
        let uid = annotations
            .and_then(|it| it.get(STATIC_POD_UID))
            .or(metadata.uid.as_ref());
        let Some(uid) = uid.filter(|uid| !uid.is_empty()) else {
            let message = "metadata.uid is missing, so its processes cannot be found".to_owned();
            let warning = Warning::new(Kind::Pod, &name, Reason::UnreadableObject, message);
            return (None, Some(warning));
        };
        let (translation, warning) = translation(Kind::Pod, &name, metadata);
        let uid = uid.as_str().into();
        let pod = Self {
            name,
            uid,
            translation,
        };
        (Some(pod), warning)
    }
}

impl Namespace {
    /// The Namespace with this metadata as we keep it.
    pub fn new(name: ObjectName, metadata: &ObjectMeta) -> (Self, Option<Warning>) {
        let (translation, warning) = translation(Kind::Namespace, &name, metadata);
        (Self { name, translation }, warning)
    }
}

fn translation(
    kind: Kind,
    name: &ObjectName,
    metadata: &ObjectMeta,
) -> (Option<SocketTranslation>, Option<Warning>) {
    let labels = metadata.labels.as_ref();
    match labels.and_then(|it| it.get(SOCKET_TRANSLATION)) {
        None => (None, None),
        Some(value) if value == "disabled" => (Some(SocketTranslation::Disabled), None),
        Some(value) if value == "enabled" => (Some(SocketTranslation::Enabled), None),
        Some(value) => {
            let message = format!(
                "label {SOCKET_TRANSLATION} is {value:?} and counts for nothing; write disabled or enabled"
            );
            let warning = Warning::new(kind, name, Reason::UnknownValue, message);
            (None, Some(warning))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(uid: &str, label: Option<&str>) -> ObjectMeta {
        let label = label.map(|it| (SOCKET_TRANSLATION.to_owned(), it.to_owned()));
        ObjectMeta {
            uid: Some(uid.to_owned()),
            labels: Some(label.into_iter().collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn only_the_two_values_count() {
        for (label, translation, warned) in [
            (None, None, false),
            (Some("disabled"), Some(SocketTranslation::Disabled), false),
            (Some("enabled"), Some(SocketTranslation::Enabled), false),
            (Some("off"), None, true),
            (Some(""), None, true),
        ] {
            let name = ObjectName::new("shop", "web");
            let (pod, warning) = Pod::new(name.clone(), &metadata("u", label));
            assert_eq!(pod.unwrap().translation, translation, "{label:?}");
            assert_eq!(warning.is_some(), warned, "{label:?}");
            let (namespace, warning) = Namespace::new(name, &metadata("u", label));
            assert_eq!(namespace.translation, translation, "{label:?}");
            assert_eq!(warning.is_some(), warned, "{label:?}");
        }
    }

    #[test]
    fn a_static_pod_has_the_uid_of_its_manifest() {
        let mut metadata = metadata("of-the-mirror", None);
        let hash = (STATIC_POD_UID.to_owned(), "of-the-manifest".to_owned());
        metadata.annotations = Some([hash].into());
        let (pod, _) = Pod::new(ObjectName::new("kube-system", "etcd"), &metadata);
        assert_eq!(&*pod.unwrap().uid, "of-the-manifest");
        metadata = self::metadata("", None);
        let (pod, warning) = Pod::new(ObjectName::new("shop", "web"), &metadata);
        assert!(pod.is_none() && warning.is_some());
    }
}
