//! The Fairlead agent: from Services and EndpointSlices to BPF maps.
//!
//! The path of the data is the order of the modules: [`source`] → [`store`] →
//! [`resolve`] → [`publish`]. [`attach`] puts the programs in place,
//! [`observe`] tells what happens, [`agent`] is the one loop that moves it all.

pub mod agent;
pub mod attach;
pub mod cli;
pub mod compile;
pub mod config;
mod crash;
pub mod devices;
pub mod flows;
pub mod model;
mod netlink;
pub mod observe;
mod pattern;
mod pretend;
pub mod publish;
pub mod resolve;
pub mod sockets;
pub mod source;
pub mod store;
pub mod sys;
pub mod take_over;
pub mod verify;
