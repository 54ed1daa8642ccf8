//! The lab: network namespaces that play nodes, pods and outside clients.
//!
//! ```no_run
//! use lab::{Lab, manifests};
//!
//! # fn main() -> anyhow::Result<()> {
//! let lab = Lab::new(3)?;
//! let web1 = lab.node("n2").pod("web-1")?.serve(8080)?;
//! let client = lab.node("n1").pod("client")?;
//! lab.apply(&manifests::service("web").cluster_ip("10.96.0.20").port("http", 80, 8080))?;
//! lab.apply(&manifests::slice("web-a", "web").port("http", 8080).endpoint(&web1).ready())?;
//! lab.start_agents()?;
//! client.tcp("10.96.0.20:80")?.answered_by("web-1")
//! # }
//! ```
//!
//! Everything happens in namespaces that the lab makes, and none has a way out:
//! the only link between them is a switch in a namespace of its own, which
//! forwards nothing. Namespaces are anonymous and live as long as a process of
//! the lab; see [`Lab`] for the members and `reaper` for how all of it goes away
//! again, also when a test is killed.

mod agent;
mod cast;
mod cgroup;
mod held;
mod hooks;
mod lab;
pub mod manifests;
mod network;
mod node;
mod outcome;
mod outside;
mod peer;
mod probed;
mod program;
mod reaper;
mod retry;
mod spawn;
mod story;
pub mod wire;

pub use agent::{HEALTHZ, METRICS, tail};
pub use cast::{BACKEND_PORT, Cast, IN_FORCE, SERVICE_CIDRS};
pub use held::{Held, Load};
pub use hooks::{DeviceHook, Foreign, device_programs};
pub use lab::{Lab, SWITCH_PORT};
pub use network::{FRONTENDS, PodNetwork, SWITCH_V4, SWITCH_V6};
pub use node::{Node, Verified};
pub use outcome::Outcome;
pub use outside::Router;
pub use peer::Peer;
pub use probed::Probed;
pub use program::{fairlead, other_fairlead};
pub use reaper::reap_when_stdin_ends;
pub use retry::eventually;
pub use story::{SharedLab, story};
pub use wire::{Counts, Dial, Probe, ProbeKind, Transport};
