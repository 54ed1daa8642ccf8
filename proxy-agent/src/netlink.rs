//! Requests to the kernel about devices, one at a time.

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use std::io;

/// Room for one answer; the kernel sends at most 32 KiB at once.
const ANSWER_BYTES: usize = 64 * 1024;

/// Sends one request, and collects the answers until the last one.
pub(crate) fn request(
    message: RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let netlink = Socket::new(NETLINK_ROUTE)?;
    netlink.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    netlink.send(&bytes, 0)?;
    let mut answers = Vec::new();
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    loop {
        answer.clear();
        netlink.recv(&mut answer, 0)?;
        let mut rest = &answer[..];
        while let Some(length) = rest.first_chunk().map(|it| u32::from_ne_bytes(*it)) {
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map(|it| it.payload) {
                Ok(NetlinkPayload::InnerMessage(message)) => answers.push(message),
                Ok(NetlinkPayload::Done(_)) => return Ok(answers),
                Ok(NetlinkPayload::Error(error)) => {
                    return match error.code {
                        None => Ok(answers),
                        Some(_) => Err(error.to_io()),
                    };
                }
                // Something foreign that is not understood: not ours.
                Ok(_) | Err(_) => {}
            }
            let next = (length as usize).next_multiple_of(4).clamp(1, rest.len());
            rest = &rest[next..];
        }
    }
}
