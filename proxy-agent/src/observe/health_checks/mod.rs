//! The ports on which load balancers ask whether this node serves a Service
//! (`spec.healthCheckNodePort`; semantics 31).
//!
//! `resolve` says which Service has one and how many endpoints count. Here are
//! the sockets: one for each address of the node that serves NodePorts, or one
//! for each family if all do. Answers are found by port, so that a port that
//! passes from one Service to another stays open.

mod plan;
#[cfg(test)]
mod tests;

pub use plan::Claim;

use super::{Health, server};
use crate::model::{Family, ObjectName, Warning};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use nix::sys::socket::{setsockopt, sockopt};
use plan::{Answer, Site, not_served, plan, sockets};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pause before a port that could not be opened is tried again. Only what fails
/// for so long is told: an address may be new and not yet confirmed (IPv6), and
/// a port that was closed a moment ago is free a moment later.
const RETRY: Duration = Duration::from_millis(500);

/// Connections of all ports at a time: descriptors must remain for the API server.
const CONNECTIONS_MAX: usize = 1024;

const BACKLOG: u32 = 128;

/// As kube-proxy names it (KEP-3836).
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

type Answers = Arc<RwLock<BTreeMap<Site, Answer>>>;

/// The health check ports of this node.
pub struct HealthChecks {
    health: Arc<Health>,
    claims: BTreeMap<ObjectName, Claim>,
    addresses: BTreeSet<IpAddr>,
    answers: Answers,
    open: BTreeMap<SocketAddr, Listening>,
    /// Since when.
    failing: BTreeMap<SocketAddr, Instant>,
    /// What was told and still holds.
    told: BTreeSet<Warning>,
    connections: Arc<Semaphore>,
    due: Option<Instant>,
}

/// Closes the socket and all of its connections when it goes.
struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl HealthChecks {
    /// No ports yet; they will tell of this health.
    pub fn new(health: Arc<Health>) -> Self {
        Self {
            health,
            claims: BTreeMap::new(),
            addresses: BTreeSet::new(),
            answers: Answers::default(),
            open: BTreeMap::new(),
            failing: BTreeMap::new(),
            told: BTreeSet::new(),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            due: None,
        }
    }

    /// What a Service asks for now. The number of its endpoints is told at once,
    /// and costs the same however many ports there are; all else waits for
    /// [`Self::follow`].
    pub fn set(&mut self, service: ObjectName, claim: Option<Claim>) {
        let old = self.claims.get(&service);
        if old == claim.as_ref() {
            return;
        }
        match claim {
            Some(claim) => {
                if old.is_some_and(|old| old.stays(&claim)) {
                    self.tell(&service, &claim);
                } else {
                    self.due = Some(Instant::now());
                }
                self.claims.insert(service, claim);
            }
            None => {
                self.claims.remove(&service);
                self.due = Some(Instant::now());
            }
        }
    }

    fn tell(&self, service: &ObjectName, claim: &Claim) {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        for (family, local_endpoints) in claim.check.local_endpoints() {
            if let Some(answer) = answers.get_mut(&(family, claim.check.port))
                && answer.service == *service
            {
                answer.local_endpoints = local_endpoints;
            }
        }
    }

    /// Whether a Service has asked for a port.
    pub fn has(&self, service: &ObjectName) -> bool {
        self.claims.contains_key(service)
    }

    /// The addresses to listen on; unspecified ones stand for all of their family.
    pub fn set_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        if self.addresses != addresses {
            self.addresses = addresses;
            self.due = Some(Instant::now());
        }
    }

    /// Opens and closes ports, if there is something to do; what newly fails
    /// comes back.
    pub fn follow(&mut self, now: Instant) -> Vec<Warning> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let (answers, mut troubles) = plan(&self.claims);
        let wanted = sockets(answers.keys(), &self.addresses);
        self.open.retain(|socket, _| wanted.contains(socket));
        self.failing.retain(|socket, _| wanted.contains(socket));
        for socket in wanted {
            if self.open.contains_key(&socket) {
                continue;
            }
            let site = (Family::of(socket.ip()), socket.port());
            match listen(socket) {
                Ok(listener) => {
                    self.failing.remove(&socket);
                    self.open.insert(socket, self.serve(listener, site));
                }
                Err(error) => {
                    tracing::debug!(%socket, "health check port not opened: {error}");
                    let since = *self.failing.entry(socket).or_insert(now);
                    if let Some(answer) = answers.get(&site)
                        && now.duration_since(since) >= RETRY
                    {
                        let why = format!(
                            "cannot be listened on: {error}; end what does, or give it to that with --health-check-node-ports=false"
                        );
                        troubles.insert(not_served(&answer.service, site.1, &why));
                    }
                }
            }
        }
        *self.answers.write().unwrap_or_else(PoisonError::into_inner) = answers;
        self.due = (!self.failing.is_empty()).then_some(now + RETRY);
        let news = troubles.difference(&self.told).cloned().collect();
        self.told = troubles;
        news
    }

    /// When [`Self::follow`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// How many sockets listen, and how many should and do not.
    pub fn counts(&self) -> (usize, usize) {
        (self.open.len(), self.failing.len())
    }

    fn serve(&self, listener: TcpListener, site: Site) -> Listening {
        let (answers, health) = (self.answers.clone(), self.health.clone());
        // Any path and method, as kube-proxy.
        let router =
            Router::new().fallback(move || async move { respond(&answers, site, &health) });
        let accepting = server::accept(listener, router, self.connections.clone());
        Listening(tokio::spawn(accepting))
    }
}

fn listen(socket: SocketAddr) -> io::Result<TcpListener> {
    let listener = if socket.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // After a restart connections of the last agent may linger.
    listener.set_reuseaddr(true)?;
    if socket.is_ipv6() {
        // Each family tells of its own endpoints.
        setsockopt(&listener, sockopt::Ipv6V6Only, &true)?;
    }
    listener.bind(socket)?;
    listener.listen(BACKLOG)
}

fn respond(answers: &Answers, site: Site, health: &Health) -> Response {
    let answers = answers.read().unwrap_or_else(PoisonError::into_inner);
    let Some(answer) = answers.get(&site) else {
        // The port is about to be closed.
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let healthy = health.is_healthy();
    let status = if answer.is_good(healthy) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (WEIGHT, answer.local_endpoints.to_string()),
    ];
    (status, headers, Json(answer.body(healthy))).into_response()
}
