//! Where objects come from, as configured.

use super::{Config, SourceConfig};
use crate::source::kube::KubeOptions;
use crate::source::{self, Event};
use anyhow::{Context, Result};
use kube::Client;
use tokio::sync::{mpsc, watch};

impl Config {
    /// How to reach the API server, if objects come from one.
    pub fn kube_options(&self) -> Option<KubeOptions> {
        let SourceConfig::Kubernetes {
            kubeconfig,
            servers,
        } = &self.source
        else {
            return None;
        };
        Some(KubeOptions {
            kubeconfig: kubeconfig.clone(),
            servers: servers.clone(),
            node_name: self.node_name.as_str().into(),
            service_proxy_name: self.resolve.service_proxy_name.clone(),
        })
    }

    /// Sends the objects and their changes until the receiver is gone; `client`
    /// has that of the API server in use.
    pub async fn run_source(
        &self,
        events: mpsc::Sender<Event>,
        client: &watch::Sender<Option<Client>>,
    ) -> Result<()> {
        if let SourceConfig::Manifests(directory) = &self.source {
            tracing::info!(directory = %directory.display(), "objects come from manifests");
            let run = source::manifests::run(directory.clone(), events);
            return run.await.context("watching the manifests");
        }
        let Some(options) = self.kube_options() else {
            return Ok(());
        };
        let run = source::kube::run(&options, events, client);
        run.await.context("connecting to the API server")
    }
}
