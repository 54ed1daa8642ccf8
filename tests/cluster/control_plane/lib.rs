//! A real control plane on a host of the lab: etcd, kube-apiserver and
//! kube-controller-manager, a client of their API, and kube-proxy on nodes.

mod api;
mod kube_proxy;
mod plane;

pub use api::{Api, Kind};
pub use kube_proxy::{KubeProxy, Mode};
pub use plane::{
    AGENTS, API_SERVER, API_SERVER_V6, ControlPlane, NO_API_SERVER, SECOND_API_SERVER, Second,
};
