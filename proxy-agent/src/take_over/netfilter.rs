//! Questions to nfnetlink, one at a time. The answers are those for the network
//! namespace of the caller, who needs CAP_NET_ADMIN.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use std::convert::Infallible;
use std::io;

/// Room for one answer; the kernel sends at most 32 KiB at once.
const ANSWER_BYTES: usize = 64 * 1024;

/// Bytes of `struct nfgenmsg` (include/uapi/linux/netfilter/nfnetlink.h): family,
/// version 0, resource id.
const HEADER_BYTES: usize = 4;

/// A question, or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    kind: u16,
    /// `struct nfgenmsg` and the attributes.
    bytes: Vec<u8>,
}

impl Message {
    /// Message `kind` of a subsystem, about a family; 0 is all of them.
    pub(super) fn new(subsystem: u8, kind: u8, family: u8) -> Self {
        Self {
            kind: u16::from_be_bytes([subsystem, kind]),
            bytes: vec![family, 0, 0, 0],
        }
    }

    /// Adds an attribute, `struct nlattr`.
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// The attributes.
    pub(super) fn attributes(&self) -> &[u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self {
            kind: header.message_type,
            bytes: payload.to_owned(),
        })
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> Self {
        Self::InnerMessage(message)
    }
}

/// Whether the object that is asked for is there.
pub(super) fn exists(question: Message) -> io::Result<bool> {
    match ask(question, 0, |_| true) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        answer => answer,
    }
}

/// Whether any of the objects that are asked for is as wanted; no more are listed then.
pub(super) fn any(question: Message, is_wanted: impl Fn(&Message) -> bool) -> io::Result<bool> {
    ask(question, NLM_F_DUMP, is_wanted)
}

fn ask(question: Message, flags: u16, is_wanted: impl Fn(&Message) -> bool) -> io::Result<bool> {
    let netlink = Socket::new(NETLINK_NETFILTER)?;
    netlink.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, question.into());
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    netlink.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    loop {
        answer.clear();
        netlink.recv(&mut answer, 0)?;
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<Message>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::InnerMessage(message) if is_wanted(&message) => return Ok(true),
                NetlinkPayload::InnerMessage(_) if flags == 0 => return Ok(false),
                NetlinkPayload::Done(_) => return Ok(false),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                _ => {}
            }
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = &rest[length.clamp(1, rest.len())..];
        }
    }
}
