//! Clients of this node: translation at the socket, once per connection.

mod address;
mod connect;
mod connected;
mod egress;
mod handshake;
mod peername;
mod recvmsg;
mod refuse;
mod release;
mod sendmsg;
mod udp_flows;

pub use address::{V4, V6};
pub use connect::connect;
pub use egress::guard;
pub use handshake::watch_handshake;
pub use peername::getpeername;
pub use recvmsg::recvmsg;
pub use release::release;
pub use sendmsg::sendmsg;

use address::Family;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::{Protocol, Scope, SocketFlow, decide::Request, decide::Target};

use crate::maps;

/// The socket call goes on.
const ALLOW: i32 = 1;
/// The socket call ends with an error: the one set by `bpf_set_retval`.
const DENY: i32 = 0;

/// What the socket asks for; `None` if it is not translated: not TCP or UDP, in a
/// namespace that opts out, or outside the host's while only that is served.
#[inline(always)]
fn request<F: Family>(ctx: &SockAddrContext) -> Option<Request> {
    // SAFETY: the kernel hands a valid context.
    let protocol = match Protocol::from_number(unsafe { (*ctx.sock_addr).protocol })? {
        Protocol::Sctp => return None,
        protocol => protocol,
    };
    let settings = maps::settings()?;
    // SAFETY: the element of an array map is always valid.
    if unsafe { (*settings).host_only } != 0 && !maps::is_host(ctx) {
        return None;
    }
    if maps::opts_out(ctx) {
        return None;
    }
    Some(Request {
        destination: F::address(ctx),
        port: address::port(ctx),
        protocol,
        scope: Scope::Internal,
    })
}

/// The record of one translation.
#[inline(always)]
fn flow(request: &Request, target: &Target) -> SocketFlow {
    SocketFlow {
        frontend: request.key(),
        backend_address: target.address,
        backend_port: target.port,
        used: 1,
        _reserved: 0,
        backend: target.backend.id,
        generation: target.backend.generation,
    }
}
