//! TCP handshakes of translated connections: those that fail are counted.

use crate::maps;
use aya_ebpf::{
    bindings::{BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB},
    programs::SockOpsContext,
};
use proxy_common::decide::BackendRef;

// include/net/tcp_states.h
const TCP_SYN_SENT: u32 = 2;
const TCP_CLOSE: u32 = 7;

/// Asks for state changes of translated connections as they start, and counts
/// those that go from SYN_SENT to CLOSE. All others pay for one comparison.
#[inline(always)]
pub fn watch_handshake(ctx: &SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => {
            if backend(ctx).id != 0 {
                // Without it this connection is not counted, and works.
                let _ = ctx.set_cb_flags((ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG) as i32);
            }
        }
        BPF_SOCK_OPS_STATE_CB => {
            if ctx.arg(0) == TCP_SYN_SENT && ctx.arg(1) == TCP_CLOSE {
                let backend = backend(ctx);
                if backend.id != 0 {
                    maps::count_failed(backend);
                }
            }
        }
        _ => {}
    }
    1
}

/// The backend that the socket was translated to, or none.
#[inline(always)]
fn backend(ctx: &SockOpsContext) -> BackendRef {
    // SAFETY: the kernel hands a valid context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sk.is_null() {
        return BackendRef::NONE;
    }
    maps::backend_of(sk)
}
