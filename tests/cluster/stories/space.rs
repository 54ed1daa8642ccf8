//! An API namespace of one story, with its Services and Pods.

use crate::world::{CONTROLLERS, World};
use anyhow::{Context, Result, ensure};
use control_plane::Kind;
use lab::manifests::{Manifest, Service, service};
use lab::{BACKEND_PORT, Peer};
use serde_json::{Value, json};

/// An API namespace.
pub(crate) struct Space<'w> {
    world: &'w World,
    name: String,
}

impl<'w> Space<'w> {
    /// Makes the namespace.
    pub(crate) fn new(world: &'w World, name: &str) -> Result<Self> {
        let namespace = json!({ "metadata": { "name": name } });
        world.api.create(Kind::Namespace, "", &namespace)?;
        Ok(Self::existing(world, name))
    }

    /// A namespace that is there already.
    pub(crate) fn existing(world: &'w World, name: &str) -> Self {
        Self {
            world,
            name: name.to_owned(),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Creates what a builder describes, in this namespace.
    pub(crate) fn create(&self, manifest: &impl Manifest) -> Result<Created> {
        let kind = match manifest.id().kind {
            "service" => Kind::Service,
            "endpointslice" => Kind::Slice,
            other => anyhow::bail!("{other} is in no namespace"),
        };
        let mut object = manifest.to_json();
        object["metadata"]["namespace"] = self.name.as_str().into();
        let object = self.world.api.create(kind, &self.name, &object)?;
        Ok(Created { object })
    }

    /// Replaces what a builder describes: the last writer wins.
    pub(crate) fn replace(&self, manifest: &impl Manifest) -> Result<()> {
        let mut object = manifest.to_json();
        let name = manifest.id().name;
        object["metadata"] = json!({});
        self.world
            .api
            .patch(Kind::Slice, &self.name, &name, &object)
            .map(drop)
    }

    /// A JSON merge patch on a Service.
    pub(crate) fn patch_service(&self, name: &str, patch: Value) -> Result<Created> {
        let object = self
            .world
            .api
            .patch(Kind::Service, &self.name, name, &patch)?;
        Ok(Created { object })
    }

    /// `status.loadBalancer.ingress`, as a load balancer's controller writes it.
    pub(crate) fn ingress(&self, service: &str, ingress: Value) -> Result<()> {
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        self.world
            .api
            .patch_status(Kind::Service, &self.name, service, &status)
    }

    /// Deletes a Service.
    pub(crate) fn delete_service(&self, name: &str) -> Result<()> {
        self.world.api.delete(Kind::Service, &self.name, name, None)
    }

    /// Deletes a slice.
    pub(crate) fn delete_slice(&self, name: &str) -> Result<()> {
        self.world.api.delete(Kind::Slice, &self.name, name, None)
    }

    /// A Pod with the label `app`, which runs and is ready: its addresses and
    /// its node are those of `at`.
    pub(crate) fn run(&self, pod: &str, app: &str, at: &Peer) -> Result<()> {
        let object = json!({
            "metadata": { "name": pod, "labels": { "app": app } },
            "spec": {
                "nodeName": at.node_name().context("pods run on nodes")?,
                "containers": [{ "name": "main", "image": "registry.test/main" }],
            },
        });
        let api = &self.world.api;
        api.create(Kind::Pod, &self.name, &object)?;
        let (v4, v6) = (at.v4().to_string(), at.v6().to_string());
        let status = json!({
            "phase": "Running",
            "podIP": v4,
            "podIPs": [{ "ip": v4 }, { "ip": v6 }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        });
        api.patch_status(Kind::Pod, &self.name, pod, &status)
    }

    /// The kubelet's word on whether a Pod is ready.
    pub(crate) fn ready(&self, pod: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let conditions = json!({ "conditions": [{ "type": "Ready", "status": status }] });
        self.world
            .api
            .patch_status(Kind::Pod, &self.name, pod, &conditions)
    }

    /// Asks a Pod to end; it stays until [`Self::remove`], as its kubelet would say.
    pub(crate) fn terminate(&self, pod: &str) -> Result<()> {
        self.world.api.delete(Kind::Pod, &self.name, pod, Some(300))
    }

    /// The Pod is gone.
    pub(crate) fn remove(&self, pod: &str) -> Result<()> {
        self.world.api.delete(Kind::Pod, &self.name, pod, Some(0))
    }

    /// Waits until the controller's slices of a Service have endpoints that
    /// `condition` holds for, all of them, and at least one.
    pub(crate) fn wait_for_endpoints(
        &self,
        service: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        lab::eventually(CONTROLLERS, || {
            let slices = self.world.api.list(Kind::Slice, &self.name)?;
            let mut endpoints = slices
                .iter()
                .filter(|slice| {
                    slice["metadata"]["labels"]["kubernetes.io/service-name"] == service
                })
                .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
                .peekable();
            ensure!(endpoints.peek().is_some(), "{service} has no endpoint");
            ensure!(
                endpoints.all(&condition),
                "not yet so in the slices: {slices:?}"
            );
            Ok(())
        })
    }
}

/// An object with what the API server added.
pub(crate) struct Created {
    object: Value,
}

impl Created {
    /// `ADDRESS:PORT` of the first ClusterIP of a family.
    fn at(&self, v6: bool, port: u16) -> Result<String> {
        self.object["spec"]["clusterIPs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .find(|ip| ip.contains(':') == v6)
            .map(|ip| join(ip, port))
            .with_context(|| format!("no such ClusterIP in {}", self.object))
    }

    /// `ADDRESS:PORT` with the IPv4 ClusterIP.
    pub(crate) fn v4(&self, port: u16) -> Result<String> {
        self.at(false, port)
    }

    /// `[ADDRESS]:PORT` with the IPv6 ClusterIP.
    pub(crate) fn v6(&self, port: u16) -> Result<String> {
        self.at(true, port)
    }

    /// NodePort of the port of this name.
    pub(crate) fn node_port(&self, port: &str) -> Result<u16> {
        let ports = self.object["spec"]["ports"].as_array();
        let port = ports
            .into_iter()
            .flatten()
            .find(|entry| entry["name"] == port)
            .and_then(|entry| entry["nodePort"].as_u64());
        port.with_context(|| format!("no such NodePort in {}", self.object))?
            .try_into()
            .context("a NodePort is a port")
    }
}

/// `ADDRESS:PORT`, with brackets where IPv6 needs them.
pub(crate) fn join(ip: &str, port: u16) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

/// A Service without selector: TCP port `http` 80 and UDP port `dns` 53.
pub(crate) fn bare(name: &str) -> Service {
    service(name)
        .port("http", 80, BACKEND_PORT)
        .udp_port("dns", 53, BACKEND_PORT)
}

/// The same for the Pods with `app: NAME`, in both families.
pub(crate) fn selecting(name: &str) -> Service {
    bare(name)
        .field("selector", json!({ "app": name }))
        .field("ipFamilyPolicy", "RequireDualStack".into())
}

/// A slice for such a Service, named for it, still without endpoints.
pub(crate) fn by_hand(service: &str) -> lab::manifests::Slice {
    lab::manifests::slice(service, service)
        .port("http", BACKEND_PORT)
        .udp_port("dns", BACKEND_PORT)
}
