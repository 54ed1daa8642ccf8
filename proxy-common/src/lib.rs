//! What the BPF programs and the agent share: map types, reasons and the decision.
//!
//! One file per map type. Nothing here does I/O; everything compiles for the
//! kernel and for the host, so that tests run the very code that the kernel runs.
//!
//! Conventions of every map type:
//! - addresses are 16 bytes in network byte order, IPv4 as `::ffff:a.b.c.d`
//!   (see [`Address`]); one set of maps serves both families;
//! - ports are in **host** byte order, so that `bpftool map dump` prints the
//!   number that an operator knows; the programs swap at the packet's edge;
//! - no padding (zerocopy proves it), 4-byte aligned words (a copy in BPF is a
//!   loop over aligned units), and enums are read from maps as bytes and
//!   checked on the host, since a map is outside the type system.
#![no_std]

mod address;
mod affinity;
mod backend;
pub mod decide;
mod device;
pub mod flow;
mod fragment;
mod frontend;
mod layout;
pub mod limits;
mod node;
mod reason;
mod service;
mod settings;
mod socket_flow;
mod source_range;
mod stats;
mod table;
mod udp_socket;

pub use address::{Address, mapped_prefix_length};
pub use affinity::{Affinity, AffinityKey};
pub use backend::{Backend, BackendId};
pub use device::{Device, DeviceSettings};
pub use flow::{Flow, FlowKey};
pub use fragment::{FragmentKey, FragmentPorts};
pub use frontend::{
    Algorithm, EndpointSet, Forwarding, Frontend, FrontendKey, FrontendKind, Protocol, Scope,
    SourceFilter,
};
pub use layout::{LAYOUT_VERSION, Layout, SOCKET_LAYOUT_VERSION};
pub use node::{LocalBackendKey, NodeAddresses, NodeId, PathMtu};
pub use reason::DropReason;
pub use service::{ServiceId, ServiceRecord};
pub use settings::Settings;
pub use socket_flow::{SocketFlow, UDP_FLOWS_PER_SOCKET, UdpFlows};
pub use source_range::{NetnsAddresses, SourceRange};
pub use stats::{BackendStats, ServiceStats};
pub use table::{IDS_PER_LINE, TableLine, TableRef};
pub use udp_socket::UdpSocket;
