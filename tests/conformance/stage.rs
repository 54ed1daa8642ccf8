//! What one row works with: an API namespace and addresses of its own, a troupe
//! of clients, and the sentences in which outcomes are told.
//!
//! Writes go through the row's [`Fault`], if the lab is to be wrong. The first
//! look after a write waits until every proxy follows the API, so that what is
//! seen is the outcome and not the way there.

mod alone;
mod ports;
mod sees;

pub(crate) use alone::then_restore;

use crate::fault::{Fault, History};
use crate::row::Family;
use crate::troupe::{Troupe, address};
use crate::world::{Numbers, World};
use anyhow::{Result, bail};
use control_plane::Kind;
use lab::manifests::{Manifest, ObjectId, Service, Slice, service, slice};
use lab::{BACKEND_PORT, Peer};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// How long nothing may come back before it counts as silence: it covers the
/// first retransmission of a SYN.
pub(crate) const SILENCE_MS: u64 = 1500;

/// How long a refusal may take: a veth answers within the call that sends the
/// SYN, while the socket is locked, and the kernel then acts on an ICMP error at
/// the retransmission only.
pub(crate) const REFUSAL_MS: u64 = 3500;

/// See the module.
pub(crate) struct Stage<'w> {
    pub(crate) world: &'w World,
    pub(crate) family: Family,
    /// The API namespace.
    pub(crate) space: String,
    /// Addresses of the row's first Service.
    pub(crate) own: Numbers,
    troupe: &'w Troupe,
    fault: Option<Fault>,
    history: RefCell<History>,
    /// Whether there is a second API namespace.
    has_neighbour: Cell<bool>,
    /// Ports that the row leaves to chance, by Service and port.
    drawn: RefCell<HashMap<(String, String), u16>>,
    unsettled: Cell<bool>,
}

impl std::ops::Deref for Stage<'_> {
    type Target = Troupe;

    fn deref(&self) -> &Troupe {
        self.troupe
    }
}

// The objects.
impl<'w> Stage<'w> {
    /// Makes the API namespace.
    pub(crate) fn new(
        world: &'w World,
        troupe: &'w Troupe,
        family: Family,
        space: String,
        fault: Option<Fault>,
    ) -> Result<Self> {
        let namespace = json!({ "metadata": { "name": space } });
        world.api.create(Kind::Namespace, "", &namespace)?;
        Ok(Self {
            world,
            family,
            space,
            own: world.numbers(),
            drawn: RefCell::default(),
            troupe,
            fault,
            history: RefCell::default(),
            has_neighbour: Cell::new(false),
            unsettled: Cell::new(false),
        })
    }

    /// Removes what the row wrote, so that the proxies do not carry it on.
    pub(crate) fn clear(&self) -> Result<()> {
        let neighbour = self.has_neighbour.get().then(|| self.neighbour());
        for space in [self.space.clone()].into_iter().chain(neighbour) {
            for kind in [Kind::Service, Kind::Slice] {
                for object in self.world.api.list(kind, &space)? {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    self.world.api.delete(kind, &space, name, None)?;
                }
            }
        }
        Ok(())
    }

    /// Name of the row's second API namespace.
    fn neighbour(&self) -> String {
        format!("{}-next", self.space)
    }

    /// A ClusterIP Service in the row's family with the row's own address:
    /// port 80, TCP (`http`) and UDP (`udp`), which have one
    /// number so that they can share a NodePort.
    pub(crate) fn service(&self, name: &str) -> Service {
        self.service_at(name, &self.own)
    }

    /// The same with other addresses, for a row's second Service.
    pub(crate) fn service_at(&self, name: &str, at: &Numbers) -> Service {
        service(name)
            .cluster_ip(&at.cluster_ip(self.family))
            .port("http", 80, BACKEND_PORT)
            .udp_port("udp", 80, BACKEND_PORT)
    }

    /// A NodePort Service: both ports have the row's NodePort.
    pub(crate) fn node_port_service(&self, name: &str) -> Service {
        self.node_port_service_at(name, &self.own)
    }

    /// The same with other addresses.
    pub(crate) fn node_port_service_at(&self, name: &str, at: &Numbers) -> Service {
        service(name)
            .cluster_ip(&at.cluster_ip(self.family))
            .port("http", 80, BACKEND_PORT)
            .node_port(at.node_port())
            .udp_port("udp", 80, BACKEND_PORT)
            .node_port(at.node_port())
    }

    /// A LoadBalancer Service with the row's LoadBalancer IP and NodePort.
    pub(crate) fn load_balancer(&self, name: &str) -> Service {
        self.node_port_service(name)
            .lb_ip(&self.own.lb_ip(self.family))
    }

    /// A Service with every kind of frontend, each of them the row's own.
    pub(crate) fn full_service(&self, name: &str) -> Service {
        self.load_balancer(name)
            .external_ips(&[&self.own.external_ip(self.family)])
    }

    /// A slice of a Service, named for it, in the row's family, with the ports
    /// `http` and `udp`, still without endpoints.
    pub(crate) fn slice(&self, service: &str) -> Slice {
        self.named_slice(service, service)
    }

    /// The same with a name of its own.
    pub(crate) fn named_slice(&self, name: &str, service: &str) -> Slice {
        self.bare_slice(name, service)
            .port("http", BACKEND_PORT)
            .udp_port("udp", BACKEND_PORT)
    }

    /// The same without ports.
    pub(crate) fn bare_slice(&self, name: &str, service: &str) -> Slice {
        let new = slice(name, service);
        match self.family {
            Family::V4 => new,
            Family::V6 => new.v6(),
        }
    }

    /// A slice of a Service with these endpoints, all ready.
    pub(crate) fn ready(&self, service: &str, backends: &[&Peer]) -> Slice {
        self.slice(service)
            .ready_endpoints(backends.iter().copied())
    }

    /// Creates an object in a second API namespace.
    pub(crate) fn apply_next_door(&self, manifest: &impl Manifest) -> Result<()> {
        if self.fault == Some(Fault::NamespacesIgnored) {
            return self.apply(manifest);
        }
        let (api, space) = (&self.world.api, self.neighbour());
        if !self.has_neighbour.replace(true) {
            api.create(
                Kind::Namespace,
                "",
                &json!({ "metadata": { "name": space } }),
            )?;
        }
        let mut object = manifest.to_json();
        object["metadata"]["namespace"] = space.as_str().into();
        self.unsettled.set(true);
        api.create(kind(&manifest.id())?, &space, &object).map(drop)
    }

    /// Writes an object, or replaces it.
    pub(crate) fn apply(&self, manifest: &impl Manifest) -> Result<()> {
        self.apply_with(manifest, |_| {})
    }

    /// The same with a change that no builder makes.
    pub(crate) fn apply_with(
        &self,
        manifest: &impl Manifest,
        change: impl FnOnce(&mut Value),
    ) -> Result<()> {
        let id = manifest.id();
        let mut object = manifest.to_json();
        change(&mut object);
        object["metadata"]["namespace"] = self.space.as_str().into();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            // The API server's own.
            metadata.remove("uid");
        }
        self.write(&id, object)
    }

    /// Writes an object of which no builder makes such a one.
    pub(crate) fn write(&self, id: &ObjectId, mut object: Value) -> Result<()> {
        let kind = kind(id)?;
        let is_change = self.history.borrow_mut().write(&id.file_name());
        if let Some(fault) = self.fault {
            if fault.swallows(kind, is_change, false)
                || fault.overlooks(kind, &object, &mut self.history.borrow_mut())
            {
                return Ok(());
            }
            fault.distort(kind, &mut object, &self.world.strangers);
        }
        if kind == Kind::Service {
            self.number_ports(&mut object);
        }
        self.unsettled.set(true);
        if is_change {
            self.cut()?;
        }
        let api = &self.world.api;
        let status = object.as_object_mut().and_then(|it| it.remove("status"));
        if is_change {
            api.replace(kind, &self.space, &object)?;
        } else {
            api.create(kind, &self.space, &object)?;
        }
        match (kind, status) {
            (Kind::Service, Some(status)) if is_change || has_ingress(&status) => {
                api.patch_status(kind, &self.space, &id.name, &status)
            }
            _ => Ok(()),
        }
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, manifest: &impl Manifest) -> Result<()> {
        let id = manifest.id();
        let kind = kind(&id)?;
        let mut history = self.history.borrow_mut();
        if self.fault.is_some_and(|it| it.swallows(kind, false, true)) {
            // It stays noted: a new one of that name would be an error and no proof.
            return Ok(());
        }
        history.delete(&id.file_name());
        if history.is_overlooked(&id.file_name()) {
            return Ok(());
        }
        self.unsettled.set(true);
        self.cut()?;
        self.world.api.delete(kind, &self.space, &id.name, None)
    }

    /// Changes a node's zone; `None` takes the label away. Proxies follow `soon`.
    pub(crate) fn label_zone(&self, node: &str, zone: Option<&str>) -> Result<()> {
        if self
            .fault
            .is_some_and(|it| it.swallows(Kind::Node, true, false))
        {
            return Ok(());
        }
        self.world.label_zone(node, zone)
    }

    /// Runs a node's proxy with other options for a while. Fairlead takes flags,
    /// kube-proxy fields of its configuration.
    pub(crate) fn with_options<T>(
        &self,
        node: &str,
        fairlead: &[&str],
        kube_proxy: &Value,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let world = self.world;
        world.kill_proxy(node)?;
        if self.fault == Some(Fault::OptionsIgnored) {
            world.start_proxy(node)?;
        } else {
            world.start_proxy_with(node, fairlead, kube_proxy)?;
        }
        // A proxy is healthy while it starts.
        let started = world.wait_healthy(node);
        let settled = started.and_then(|()| world.settle(self.troupe, &self.space, self.family));
        let outcome = settled.and_then(|()| meanwhile());
        world.kill_proxy(node)?;
        world.start_proxy(node)?;
        world.wait_healthy(node)?;
        world.settle(self.troupe, &self.space, self.family)?;
        outcome
    }

    /// Waits until every proxy follows the API.
    pub(crate) fn settle(&self) -> Result<()> {
        if self.unsettled.replace(false) {
            self.world.settle(self.troupe, &self.space, self.family)?;
        }
        Ok(())
    }
}

// Where frontends are.
impl Stage<'_> {
    /// The row's ClusterIP with its port.
    pub(crate) fn cluster_ip(&self) -> String {
        self.cluster_ip_of(&self.own)
    }

    /// The ClusterIP of another of the row's Services, with its port.
    pub(crate) fn cluster_ip_of(&self, numbers: &Numbers) -> String {
        join(&numbers.cluster_ip(self.family), 80)
    }

    /// A ClusterIP of this row in the other family, with its port.
    pub(crate) fn other_cluster_ip(&self) -> String {
        join(&self.own.cluster_ip(self.family.other()), 80)
    }

    /// The row's LoadBalancer IP with its port.
    pub(crate) fn lb_ip(&self) -> String {
        join(&self.own.lb_ip(self.family), 80)
    }

    /// The row's externalIP with its port.
    pub(crate) fn external_ip(&self) -> String {
        join(&self.own.external_ip(self.family), 80)
    }

    /// The row's NodePort on a node's LAN address.
    pub(crate) fn node_port(&self, node: &str) -> String {
        join(&self.node_address(node), self.own.node_port())
    }

    /// The row's external frontends as a client meets them that comes by a node:
    /// its NodePort, the LoadBalancer IP, the externalIP.
    pub(crate) fn external(&self, node: &str) -> [String; 3] {
        [self.node_port(node), self.lb_ip(), self.external_ip()]
    }

    /// A node's LAN address.
    pub(crate) fn node_address(&self, node: &str) -> String {
        address(self.world.node(node).host(), self.family).to_string()
    }

    /// No address in particular.
    pub(crate) fn any_address(&self) -> &'static str {
        match self.family {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        }
    }

    /// A peer's address.
    pub(crate) fn address_of(&self, peer: &Peer) -> String {
        address(peer, self.family).to_string()
    }

    /// A port of a peer.
    pub(crate) fn port_of(&self, peer: &Peer, port: u16) -> String {
        join(&self.address_of(peer), port)
    }
}

fn kind(id: &ObjectId) -> Result<Kind> {
    match id.kind {
        "service" => Ok(Kind::Service),
        "endpointslice" => Ok(Kind::Slice),
        other => bail!("rows write no {other}"),
    }
}

fn has_ingress(status: &Value) -> bool {
    let ingress = status["loadBalancer"]["ingress"].as_array();
    ingress.is_some_and(|it| !it.is_empty())
}

/// `ADDRESS:PORT`, with brackets where IPv6 needs them.
pub(crate) fn join(ip: &str, port: u16) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}
