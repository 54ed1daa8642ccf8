//! Clients of this node: translation at the socket, once per connection.

mod address;
mod connect;
mod connected;
mod egress;
mod lifetime;
mod peername;
mod recvmsg;
mod refuse;
mod release;
mod sendmsg;
mod udp_flows;

pub use address::{V4, V6};
pub use connect::connect;
pub use egress::guard;
pub use lifetime::watch_connections;
pub use peername::getpeername;
pub use recvmsg::recvmsg;
pub use release::release;
pub use sendmsg::sendmsg;

use address::Family;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::{
    Address, Protocol, Scope, SocketFlow,
    decide::{self, BackendRef, Decision, Request, Target},
};

use crate::maps::{self, Client, KernelMaps};

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

/// The client that a socket belongs to.
struct SocketClient<'a>(&'a SockAddrContext);

impl Client for SocketClient<'_> {
    #[inline(always)]
    fn address(&self, v4: bool) -> Option<Address> {
        maps::netns_address(maps::netns_cookie(self.0), v4)
    }

    #[inline(always)]
    fn identity(&self) -> u64 {
        maps::netns_cookie(self.0)
    }

    #[inline(always)]
    fn is_host(&self) -> bool {
        maps::is_host(self.0)
    }

    #[inline(always)]
    fn number(&self, _of_client: bool) -> u32 {
        maps::random()
    }

    #[inline(always)]
    fn is_handed_over(&self) -> bool {
        false
    }
}

/// Where a socket's traffic goes.
#[inline(always)]
fn decide(ctx: &SockAddrContext, request: &Request, kept: BackendRef) -> Decision {
    decide::decide(&KernelMaps(SocketClient(ctx)), request, kept)
}

/// The record of one translation.
#[inline(always)]
fn flow(request: &Request, target: &Target) -> SocketFlow {
    SocketFlow {
        frontend: request.key(),
        backend_address: target.address,
        backend_port: target.port,
        used: 1,
        counted: 0,
        backend: target.backend.id,
        generation: target.backend.generation,
    }
}
