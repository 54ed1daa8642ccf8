//! List and watch at an API server.
//!
//! Five watches run at a time: Services, EndpointSlices, Nodes, and for
//! opt-outs Pods and Namespaces ([`opt_outs`]), without which all else goes on.
//! Objects are converted as they arrive; a page of 500 is the most that is held
//! in full. The way to the API server never depends on the data path that we
//! program (semantics 35): give node-real addresses, several where there are
//! several API servers.
//!
//! [`server`] chooses a server and notices when it is lost, [`watch`] follows
//! one kind.

mod cluster;
mod opt_outs;
mod server;
#[cfg(test)]
mod tests;
mod watch;

use crate::model::{RawEndpointSlice, RawNode, RawService};
use crate::source::Event;
use ::kube::runtime::watcher;
use ::kube::{Api, Client};
use opt_outs::OptOuts;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use watch::Watch;

pub use cluster::{UidError, uid};
pub use server::ConfigError;

/// How to reach the API, and what to ask it for.
#[derive(Clone, Debug)]
pub struct KubeOptions {
    /// A kubeconfig file; without one, the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// Addresses of API servers, `https://` unless they say otherwise, tried in
    /// turn. Empty: the one that the configuration names.
    pub servers: Vec<String>,
    /// Name of our Node.
    pub node_name: Arc<str>,
    /// As `ResolveOptions::service_proxy_name`: with a name of our own we must
    /// see Services with the label and without it.
    pub service_proxy_name: Option<Box<str>>,
}

/// Whether the configuration can be used at all; asks no server.
pub async fn check(options: &KubeOptions) -> Result<(), ConfigError> {
    server::Servers::load(options).await.map(drop)
}

/// Sends the objects of the API and their changes until the receiver is gone.
/// Fails only if the configuration is unusable; servers that cannot be reached
/// are tried for ever.
/// `client` has that of the server in use.
pub async fn run(
    options: &KubeOptions,
    events: mpsc::Sender<Event>,
    client: &tokio::sync::watch::Sender<Option<Client>>,
) -> Result<(), ConfigError> {
    let mut servers = server::Servers::load(options).await?;
    loop {
        let server = tokio::select! {
            () = events.closed() => return Ok(()),
            server = servers.connect() => server,
        };
        let trouble = Notify::new();
        client.send_replace(Some(server.client.clone()));
        tokio::select! {
            () = events.closed() => return Ok(()),
            () = follow(options, &server, &events, &trouble) => return Ok(()),
            () = server.lost(&trouble) => {}
        }
        client.send_replace(None);
        tracing::warn!(server = %server.address, "API server lost, trying the next one");
        servers.advance();
    }
}

/// Runs the watches; returns when the receiver is gone.
async fn follow(
    options: &KubeOptions,
    server: &server::Server,
    events: &mpsc::Sender<Event>,
    trouble: &Notify,
) {
    let watch = |config: watcher::Config| Watch {
        config,
        streaming: server.streaming,
        events,
        trouble,
    };
    let services = watch(watcher::Config::default().labels(&service_selector(options)));
    let slices = watch(watcher::Config::default().labels(NOT_HEADLESS));
    let nodes = watch(watcher::Config::default());
    let opt_outs = OptOuts {
        client: &server.client,
        streaming: server.streaming,
        node_name: &options.node_name,
        events,
        trouble,
    };
    tokio::join!(
        services.run(Api::<RawService>::all(server.client.clone())),
        slices.run(Api::<RawEndpointSlice>::all(server.client.clone())),
        nodes.run(Api::<RawNode>::all(server.client.clone())),
        opt_outs.run(),
    );
}

/// An object that gets the label later is told as deleted, which is right.
const NOT_HEADLESS: &str = "!service.kubernetes.io/headless";

/// Of slices only the headless label counts: which proxy serves them is decided
/// by their Service's label, whatever theirs says.
fn service_selector(options: &KubeOptions) -> String {
    match options.service_proxy_name {
        None => format!("{NOT_HEADLESS},!service.kubernetes.io/service-proxy-name"),
        // No selector says "absent or this value": the rest is decided here.
        Some(_) => NOT_HEADLESS.to_owned(),
    }
}
