//! sock_diag(7) in the calling thread's network namespace.

use super::Sockets;
use crate::pretend;
use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{SockDiagDestroy, SockDiagMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use proxy_common::{Address, UdpSocket};

/// Room for one answer of a dump; the kernel sends at most 32 KiB at once.
const ANSWER_BYTES: usize = 64 * 1024;

/// Destroys those of `sockets` that are connected here; `is_still` is asked just
/// before, since a socket may have been connected elsewhere meanwhile.
///
/// The kernel looks the socket up by the addresses of the dump and compares the
/// cookie, so a socket that moves even after that question is not hit.
pub(super) fn destroy(
    sockets: &Sockets,
    is_still: impl Fn(u64, &UdpSocket) -> Result<bool>,
) -> Result<Destroyed> {
    let netlink = Socket::new(NETLINK_SOCK_DIAG).context("opening a sock_diag socket")?;
    netlink
        .connect(&SocketAddr::new(0, 0))
        .context("connecting the sock_diag socket")?;
    let mut destroyed = Destroyed::default();
    for family in [AF_INET, AF_INET6] {
        let Some(ids) = connected(&netlink, family)? else {
            destroyed.unsupported = true;
            return Ok(destroyed);
        };
        for id in ids {
            let cookie = u64::from_ne_bytes(id.cookie);
            if let Some(socket) = sockets.get(&cookie)
                && points_at(&id, socket)
                && is_still(cookie, socket)?
            {
                match destroy_one(&netlink, family, id)? {
                    Answer::Destroyed => destroyed.count += 1,
                    Answer::NotThere => {}
                    Answer::Unsupported => {
                        destroyed.unsupported = true;
                        return Ok(destroyed);
                    }
                }
            }
        }
    }
    Ok(destroyed)
}

/// What became of the sockets of one namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Destroyed {
    pub(super) count: usize,
    /// The kernel lacks CONFIG_INET_DIAG_DESTROY, or module udp_diag.
    pub(super) unsupported: bool,
}

/// The kernel's answer to SOCK_DESTROY.
enum Answer {
    Destroyed,
    /// Closed, or connected elsewhere, since the dump.
    NotThere,
    Unsupported,
}

/// Whether a socket of the dump is connected to the backend that the programs noted.
fn points_at(id: &SocketId, socket: &UdpSocket) -> bool {
    Address::from(id.destination_address) == socket.address
        && u32::from(id.destination_port) == socket.port
}

/// The connected UDP sockets of a family; `None` if the kernel has no udp_diag,
/// which is a module in many.
fn connected(netlink: &Socket, family: u8) -> Result<Option<Vec<SocketId>>> {
    let any = if family == AF_INET {
        SocketId::new_v4()
    } else {
        SocketId::new_v6()
    };
    send(
        netlink,
        NLM_F_REQUEST | NLM_F_DUMP,
        SockDiagMessage::InetRequest(request(family, any)),
    )?;
    let mut ids = Vec::new();
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    loop {
        answer.clear();
        netlink
            .recv(&mut answer, 0)
            .context("reading a sock_diag answer")?;
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .context("reading a sock_diag answer")?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    ids.push(response.header.socket_id);
                }
                NetlinkPayload::Done(_) => return Ok(Some(ids)),
                NetlinkPayload::Error(error) => {
                    let error = error.to_io();
                    if error.raw_os_error() == Some(libc::ENOENT) {
                        return Ok(None);
                    }
                    return Err(error).context("listing UDP sockets");
                }
                _ => {}
            }
            let length = (message.header.length as usize)
                .next_multiple_of(4)
                .clamp(1, rest.len());
            rest = &rest[length..];
        }
    }
}

fn destroy_one(netlink: &Socket, family: u8, id: SocketId) -> Result<Answer> {
    if pretend::lacks_sock_destroy() {
        return Ok(Answer::Unsupported);
    }
    let destroy = SockDiagDestroy::new(SockDiagMessage::InetRequest(request(family, id)));
    send(netlink, NLM_F_REQUEST | NLM_F_ACK, destroy)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    netlink
        .recv(&mut answer, 0)
        .context("reading a sock_diag answer")?;
    let message = NetlinkMessage::<SockDiagMessage>::deserialize(&answer)
        .context("reading a sock_diag answer")?;
    let NetlinkPayload::Error(answer) = message.payload else {
        bail!("the kernel answers SOCK_DESTROY with {:?}", message.payload);
    };
    if answer.code.is_none() {
        return Ok(Answer::Destroyed);
    }
    let error = answer.to_io();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESTALE) => Ok(Answer::NotThere),
        Some(libc::EOPNOTSUPP) => Ok(Answer::Unsupported),
        _ => Err(error).context("destroying a UDP socket"),
    }
}

fn request(family: u8, socket_id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol: IPPROTO_UDP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::ESTABLISHED,
        socket_id,
    }
}

fn send<T>(netlink: &Socket, flags: u16, message: T) -> Result<()>
where
    T: NetlinkSerializable + Into<NetlinkPayload<T>>,
{
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut packet = NetlinkMessage::new(header, message.into());
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    netlink
        .send(&bytes, 0)
        .context("sending a sock_diag request")?;
    Ok(())
}
