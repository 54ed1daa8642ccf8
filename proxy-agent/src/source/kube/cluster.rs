//! What tells this cluster from every other one.

use super::{ConfigError, KubeOptions, server::Servers};
use ::kube::Api;
use k8s_openapi::api::core::v1::Namespace;

/// The Namespace that every cluster has and nobody recreates.
const NAMESPACE: &str = "kube-system";

/// Why the cluster's UID is not known.
#[derive(Debug, thiserror::Error)]
pub enum UidError {
    /// Asking again soon is in vain.
    #[error(
        "the API server refuses `get` of Namespace {NAMESPACE} ({0}): grant it, see README.md, or set --maglev-seed"
    )]
    Refused(String),
    /// Asking again may help.
    #[error("asking for Namespace {NAMESPACE}: {0}")]
    Failed(String),
    /// No server can be asked.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The UID of Namespace kube-system. Waits until an API server answers.
pub async fn uid(options: &KubeOptions) -> Result<String, UidError> {
    let server = Servers::load(options).await?.connect().await;
    let namespaces: Api<Namespace> = Api::all(server.client);
    match namespaces.get_metadata(NAMESPACE).await {
        Ok(namespace) => namespace
            .metadata
            .uid
            .ok_or_else(|| UidError::Refused("it has no UID".to_owned())),
        Err(::kube::Error::Api(status)) if (400..500).contains(&status.code) => {
            Err(UidError::Refused(status.message))
        }
        Err(error) => Err(UidError::Failed(error.to_string())),
    }
}
