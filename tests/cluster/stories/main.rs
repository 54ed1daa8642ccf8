//! The agent against a real control plane.
//!
//! etcd, kube-apiserver and kube-controller-manager run on a host of the lab's
//! LAN, and the agents on the lab's nodes read the API as they do when
//! installed, with no more rights than they need. Stories write Services and
//! Pods; the real controller makes the slices; the lab's pods answer. Pods need
//! no kubelet: a story says that they run.
//!
//! All stories share one control plane, one at a time, each in an API namespace
//! of its own. `FAIRLEAD_CONTROL_PLANE` names the folder with the programs:
//! `cargo xtask test --tier cluster` builds them and sets it.

mod events;
mod opt_outs;
mod outages;
mod services;
mod slices;
mod space;
mod verify;
mod world;
