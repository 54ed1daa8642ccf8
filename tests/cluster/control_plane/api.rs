//! The test's own client of the API.
//!
//! Its connections begin on a thread that stands in the control plane's
//! namespace: every request runs there.

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use lab::Peer;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    Slice,
    /// v1 Pod.
    Pod,
    /// v1 Node.
    Node,
    /// v1 Namespace.
    Namespace,
    /// events.k8s.io/v1 Event.
    Event,
    /// rbac.authorization.k8s.io/v1 ClusterRole.
    ClusterRole,
    /// rbac.authorization.k8s.io/v1 ClusterRoleBinding.
    ClusterRoleBinding,
}

impl Kind {
    fn resource(self) -> ApiResource {
        let (group, kind, plural) = match self {
            Self::Service => ("", "Service", "services"),
            Self::Slice => ("discovery.k8s.io", "EndpointSlice", "endpointslices"),
            Self::Pod => ("", "Pod", "pods"),
            Self::Node => ("", "Node", "nodes"),
            Self::Namespace => ("", "Namespace", "namespaces"),
            Self::Event => ("events.k8s.io", "Event", "events"),
            Self::ClusterRole => ("rbac.authorization.k8s.io", "ClusterRole", "clusterroles"),
            Self::ClusterRoleBinding => (
                "rbac.authorization.k8s.io",
                "ClusterRoleBinding",
                "clusterrolebindings",
            ),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
    }

    fn in_namespaces(self) -> bool {
        matches!(self, Self::Service | Self::Slice | Self::Pod | Self::Event)
    }
}

/// A client with all rights. Objects are JSON, as in manifests.
pub struct Api {
    runtime: Handle,
    client: Client,
    last_write: Mutex<Instant>,
    last_slice: Arc<Mutex<Instant>>,
}

impl Api {
    /// A client on `host` with the credentials of this kubeconfig.
    pub fn new(host: &Peer, kubeconfig: &Path) -> Result<Self> {
        Self::with(host, Kubeconfig::read_from(kubeconfig)?)
    }

    /// The same, of another API server than the kubeconfig's.
    pub fn of_server(host: &Peer, kubeconfig: &Path, server: &str) -> Result<Self> {
        let mut kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        for cluster in &mut kubeconfig.clusters {
            if let Some(cluster) = &mut cluster.cluster {
                cluster.server = Some(server.to_owned());
            }
        }
        Self::with(host, kubeconfig)
    }

    fn with(host: &Peer, kubeconfig: Kubeconfig) -> Result<Self> {
        let netns = host.netns().as_fd().try_clone_to_owned()?;
        let (sender, started) = channel();
        let last_slice = Arc::new(Mutex::new(Instant::now()));
        let slices = last_slice.clone();
        std::thread::spawn(move || serve(&netns, kubeconfig, &sender, &slices));
        let (runtime, client) = started.recv().context("the client's thread ended")??;
        Ok(Self {
            runtime,
            client,
            last_write: Mutex::new(Instant::now()),
            last_slice,
        })
    }

    /// When the last write began.
    pub fn last_write(&self) -> Instant {
        *lock(&self.last_write)
    }

    /// When the last change of a slice, by whomever, was seen.
    pub fn last_slice(&self) -> Instant {
        *lock(&self.last_slice)
    }

    /// Creates an object; the answer is the object as the server completed it.
    pub fn create(&self, kind: Kind, namespace: &str, object: &Value) -> Result<Value> {
        let what = format!("create {kind:?} {}", object["metadata"]["name"]);
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let api = self.of(kind, namespace);
        self.write(what, async move {
            Ok(serde_json::to_value(
                api.create(&PostParams::default(), &object).await?,
            )?)
        })
    }

    /// All objects of a kind, in a namespace or (empty) in all of them.
    pub fn list(&self, kind: Kind, namespace: &str) -> Result<Vec<Value>> {
        let api = self.of(kind, namespace);
        self.ask(format!("list {kind:?}"), async move {
            let list = api.list(&Default::default()).await?;
            let objects = list.items.iter().map(serde_json::to_value);
            Ok(objects.collect::<Result<_, _>>()?)
        })
    }

    /// Replaces an object, whatever it was: the last writer wins.
    pub fn replace(&self, kind: Kind, namespace: &str, object: &Value) -> Result<Value> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let (owned, what) = (name.to_owned(), format!("replace {kind:?} {name}"));
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let api = self.of(kind, namespace);
        self.write(what, async move {
            let answer = api.replace(&owned, &PostParams::default(), &object).await?;
            Ok(serde_json::to_value(answer)?)
        })
    }

    /// A JSON merge patch (RFC 7386).
    pub fn patch(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) -> Result<Value> {
        let api = self.of(kind, namespace);
        let (owned, patch) = (name.to_owned(), Patch::Merge(patch.clone()));
        self.write(format!("patch {kind:?} {name}"), async move {
            let answer = api.patch(&owned, &PatchParams::default(), &patch).await?;
            Ok(serde_json::to_value(answer)?)
        })
    }

    /// The same for `status`, as controllers and kubelets do it.
    pub fn patch_status(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        status: &Value,
    ) -> Result<()> {
        let api = self.of(kind, namespace);
        let patch = Patch::Merge(serde_json::json!({ "status": status }));
        let owned = name.to_owned();
        self.write(format!("patch status of {kind:?} {name}"), async move {
            api.patch_status(&owned, &PatchParams::default(), &patch)
                .await?;
            Ok(())
        })
    }

    /// Deletes an object, with a grace period in seconds where the kind has one.
    pub fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        grace_s: Option<u32>,
    ) -> Result<()> {
        let api = self.of(kind, namespace);
        let owned = name.to_owned();
        let how = DeleteParams {
            grace_period_seconds: grace_s,
            ..DeleteParams::default()
        };
        self.write(format!("delete {kind:?} {name}"), async move {
            api.delete(&owned, &how).await?;
            Ok(())
        })
    }

    fn of(&self, kind: Kind, namespace: &str) -> kube::Api<DynamicObject> {
        let client = self.client.clone();
        let resource = kind.resource();
        if kind.in_namespaces() && !namespace.is_empty() {
            kube::Api::namespaced_with(client, namespace, &resource)
        } else {
            kube::Api::all_with(client, &resource)
        }
    }

    fn write<T: Send + 'static>(
        &self,
        what: String,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        *lock(&self.last_write) = Instant::now();
        self.ask(what, request)
    }

    /// Runs a request on the client's thread and waits for it.
    fn ask<T: Send + 'static>(
        &self,
        what: String,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, answer) = channel();
        self.runtime.spawn(async move {
            // The asker may have lost patience.
            let _ = sender.send(request.await);
        });
        let answer = answer
            .recv_timeout(PATIENCE)
            .with_context(|| format!("{what}: no answer"))?;
        answer.context(what)
    }
}

type Started = Result<(Handle, Client)>;

/// What the client's thread does, for ever.
fn serve(
    netns: &OwnedFd,
    kubeconfig: Kubeconfig,
    started: &Sender<Started>,
    last_slice: &Mutex<Instant>,
) {
    let prepared = setns(netns, CloneFlags::CLONE_NEWNET)
        .context("enter the namespace")
        .and_then(|()| Ok(Builder::new_current_thread().enable_all().build()?));
    match prepared {
        Ok(runtime) => runtime.block_on(async {
            let client = match connect(kubeconfig).await {
                Ok(client) => client,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let _ = started.send(Ok((Handle::current(), client.clone())));
            follow_slices(client, last_slice).await;
        }),
        Err(error) => {
            let _ = started.send(Err(error));
        }
    }
}

async fn connect(kubeconfig: Kubeconfig) -> Result<Client> {
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(2));
    config.read_timeout = Some(PATIENCE);
    Ok(Client::try_from(config)?)
}

/// Notes when slices change. It never ends: a watch that fails begins anew.
async fn follow_slices(client: Client, last_slice: &Mutex<Instant>) {
    let api: kube::Api<DynamicObject> = kube::Api::all_with(client, &Kind::Slice.resource());
    let mut watch = pin!(watcher(api, Config::default()).default_backoff());
    while let Some(event) = watch.next().await {
        if matches!(event, Ok(Event::Apply(_) | Event::Delete(_))) {
            *lock(last_slice) = Instant::now();
        }
    }
}

fn lock(time: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    time.lock().unwrap_or_else(PoisonError::into_inner)
}
