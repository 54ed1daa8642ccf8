//! Refusal: the caller gets ECONNREFUSED, never EPERM (which makes kernel NFS spin).

use super::{
    ALLOW, DENY,
    address::{self, Family},
};
use crate::maps::HAS_SET_RETVAL;
use aya_ebpf::{helpers::generated::bpf_set_retval, programs::SockAddrContext};
use core::net::Ipv4Addr;
use proxy_common::{Address, decide::Request};

const ECONNREFUSED: i32 = 111;

/// A port where nobody listens (RFC 6335 assigns it to tcpmux, gone for decades).
const CLOSED_PORT: u16 = 1;

/// Refuses a connect(). Before Linux 6.1 no error can be chosen, so the socket
/// is pointed at port 0 of loopback, which the kernel itself refuses.
///
/// With an error the socket stays as it was: a UDP socket keeps the connection,
/// and the record, that it had.
#[inline(always)]
pub fn connect<F: Family>(ctx: &SockAddrContext, request: &Request) -> i32 {
    if HAS_SET_RETVAL.load() == 0 {
        super::connect::forget(ctx);
    }
    refuse::<F>(ctx, request, 0)
}

/// Refuses a datagram. Before Linux 6.1 it goes to a closed loopback port and
/// the send succeeds into nothing, as with kube-proxy (a send to port 0 would
/// be EINVAL).
#[inline(always)]
pub fn sendmsg<F: Family>(ctx: &SockAddrContext, request: &Request) -> i32 {
    refuse::<F>(ctx, request, CLOSED_PORT)
}

#[inline(always)]
fn refuse<F: Family>(ctx: &SockAddrContext, request: &Request, loopback_port: u16) -> i32 {
    if HAS_SET_RETVAL.load() != 0 {
        // SAFETY: takes a number; exists here, as the agent found out.
        unsafe { bpf_set_retval(-ECONNREFUSED) };
        return DENY;
    }
    let loopback = if request.destination.is_v4() {
        Address::from_v4(Ipv4Addr::LOCALHOST)
    } else {
        Address::from_words([0, 0, 0, 1_u32.to_be()])
    };
    address::set::<F>(ctx, loopback, loopback_port);
    ALLOW
}
