//! What the lab and a worker say to each other: one JSON line each way.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// A transport that the workers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Both, for tests that treat them alike.
    pub const BOTH: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The name that the Service API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// How a socket is opened and connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dial {
    /// TCP or UDP.
    pub transport: Transport,
    /// Where to.
    pub to: SocketAddr,
    /// Source to bind first.
    pub from: Option<SocketAddr>,
    /// Use an `AF_INET6` socket and `::ffff:a.b.c.d` for an IPv4 target.
    pub mapped: bool,
    /// Connect without blocking, then poll.
    pub nonblocking: bool,
    /// TCP: open with `MSG_FASTOPEN` data instead of `connect`.
    pub fast_open: bool,
    /// UDP over IPv4: send without a checksum.
    pub no_checksum: bool,
    /// Keep the socket open afterwards, also when the dial failed.
    pub hold: bool,
    /// Bound of the connect and of the wait for an answer, each.
    pub timeout_ms: u64,
}

impl Dial {
    /// A plain blocking dial that closes its socket again.
    pub fn new(transport: Transport, to: SocketAddr) -> Self {
        Self {
            transport,
            to,
            from: None,
            mapped: false,
            nonblocking: false,
            fast_open: false,
            no_checksum: false,
            hold: false,
            timeout_ms: 3000,
        }
    }
}

/// What a [`Probe`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// An ICMP echo request; any host answers it with the same bytes.
    Ping,
    /// A UDP datagram; a worker's listener answers with as many bytes as it is asked for.
    Datagram,
}

/// A packet of a given size, to see what comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Ping or datagram.
    pub kind: ProbeKind,
    /// Where to; a ping has port 0.
    pub to: SocketAddr,
    /// Bytes after the ICMP or UDP header.
    pub size: u16,
    /// Bytes of the answer, at least 100; of a ping the same as `size`.
    pub answer: u16,
    /// Neither the packet nor its answer may be fragmented, whatever the hosts
    /// have learnt of the path. Otherwise, both may be, also on their way.
    pub dont_fragment: bool,
    /// Bound of the wait for an answer.
    pub timeout_ms: u64,
}

impl Probe {
    /// A small ping.
    pub fn ping(to: IpAddr) -> Self {
        Self {
            kind: ProbeKind::Ping,
            to: SocketAddr::new(to, 0),
            size: 56,
            answer: 56,
            dont_fragment: true,
            timeout_ms: 2000,
        }
    }

    /// A datagram that must not be fragmented, and an answer of the same size.
    pub fn datagram(to: SocketAddr, size: u16) -> Self {
        Self {
            kind: ProbeKind::Datagram,
            to,
            size,
            answer: size,
            dont_fragment: true,
            timeout_ms: 2000,
        }
    }
}

/// Byte number `at` of a packet that is filled up to its size.
pub fn filler(at: usize) -> u8 {
    // 251 is a prime: no part of a packet looks like another, shifted by a power of two.
    u8::try_from(at % 251).unwrap_or_default()
}

/// What came of a [`Probe`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// Bytes of the answer.
    pub size: Option<usize>,
    /// Whether all bytes were as sent, both ways.
    pub intact: bool,
    /// First line of a datagram's answer.
    pub line: Option<String>,
    /// What failed.
    pub failure: Option<Failure>,
    /// The ICMP error that came back.
    pub icmp: Option<IcmpError>,
}

/// An ICMP error as a socket's error queue reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmpError {
    /// Who sent it.
    pub from: Option<IpAddr>,
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// The MTU that a "too big" names.
    pub mtu: u32,
}

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Write below `/proc/sys` of the worker's network namespace.
    Sysctl {
        /// Path below `/proc/sys`.
        path: String,
        /// What to write.
        value: String,
    },
    /// Listen, and answer as `name`.
    Listen {
        /// Pod name in the answers.
        name: String,
        /// TCP or UDP.
        transport: Transport,
        /// Address, possibly a wildcard.
        address: IpAddr,
        /// Port.
        port: u16,
    },
    /// Receive datagrams and never answer.
    Collect {
        /// Address, possibly a wildcard.
        address: IpAddr,
        /// Port.
        port: u16,
    },
    /// End all listeners on a port of a transport.
    Unlisten {
        /// TCP or UDP.
        transport: Transport,
        /// Port.
        port: u16,
    },
    /// Datagrams that listeners got so far, by sender.
    Received {
        /// Port of the UDP listener.
        port: u16,
    },
    /// Open a socket, connect it, read the answer.
    Dial(Dial),
    /// Send a packet of a given size and wait for its answer.
    Probe(Probe),
    /// Connect an open socket again.
    Redial {
        /// The socket.
        socket: u32,
        /// Where to.
        to: SocketAddr,
        /// Bound of the connect and of the wait for an answer, each.
        timeout_ms: u64,
    },
    /// `connect(AF_UNSPEC)`.
    Dissolve {
        /// The socket.
        socket: u32,
    },
    /// Sequence numbers of a connected TCP socket.
    Sequences {
        /// The socket.
        socket: u32,
    },
    /// Send a TCP reset that belongs to no socket.
    Reset(Segment),
    /// Send many TCP SYNs, each from another address and port.
    Flood {
        /// The first source; others follow in the same subnet.
        from: IpAddr,
        /// Where to.
        to: SocketAddr,
        /// How many.
        count: u32,
    },
    /// Switch what the kernel leaves to a device on or off: checksums and segments.
    Offloads {
        /// Name of the device.
        device: String,
        /// Whether it shall do it.
        on: bool,
    },
    /// `getpeername` and `getsockname`.
    Names {
        /// The socket.
        socket: u32,
    },
    /// Send a line on a connected socket and read one.
    Talk {
        /// The socket.
        socket: u32,
        /// What to send.
        line: String,
        /// Bound of the wait for the answer.
        timeout_ms: u64,
    },
    /// Open an unconnected UDP socket.
    UdpSocket {
        /// Bound to this; its family is the socket's.
        from: SocketAddr,
    },
    /// `sendto` on an unconnected socket.
    SendTo {
        /// The socket.
        socket: u32,
        /// Where to.
        to: SocketAddr,
        /// What to send.
        line: String,
    },
    /// `recvfrom` on an unconnected socket.
    ReceiveFrom {
        /// The socket.
        socket: u32,
        /// Bound of the wait.
        timeout_ms: u64,
    },
    /// Close a socket.
    Close {
        /// The socket.
        socket: u32,
    },
    /// Dial `count` times as fast as possible and count the outcomes.
    Many {
        /// How.
        dial: Dial,
        /// How often.
        count: u32,
    },
    /// Dial again and again in the background until `StopLoad`.
    StartLoad {
        /// How.
        dial: Dial,
        /// Pause between dials.
        every_us: u64,
    },
    /// Send datagrams from one unconnected socket, and read nothing, until `StopLoad`.
    StartSender {
        /// Source to bind.
        from: SocketAddr,
        /// Where to.
        to: SocketAddr,
        /// Pause between datagrams.
        every_us: u64,
    },
    /// Counts of a background load so far; it goes on.
    LoadSoFar {
        /// The load.
        load: u32,
    },
    /// End a background load.
    StopLoad {
        /// The load.
        load: u32,
    },
    /// `GET` over HTTP/1.1.
    Http {
        /// Server.
        to: SocketAddr,
        /// Path.
        path: String,
    },
}

/// An error of a system call, as data: tests assert on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The call.
    pub call: String,
    /// `ECONNREFUSED` and the like; `TIMEOUT` if the bound of the request was hit.
    pub errno: String,
}

/// What came of a dial or an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dialed {
    /// The socket, if it is held.
    pub socket: Option<u32>,
    /// The line that came back.
    pub line: Option<String>,
    /// What failed.
    pub failure: Option<Failure>,
    /// What a non-blocking connect said at first.
    pub first_errno: Option<String>,
    /// `getpeername` after the connect.
    pub peer_name: Option<SocketAddr>,
    /// `getsockname` after the connect.
    pub local_name: Option<SocketAddr>,
    /// Source that `recvfrom` reported.
    pub from: Option<SocketAddr>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Outcomes of many dials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Answers by pod.
    pub answered: BTreeMap<String, u64>,
    /// Failures by `call: errno`.
    pub failed: BTreeMap<String, u64>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Where a TCP connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequences {
    /// Of the next byte that this side sends.
    pub next_sent: u32,
    /// Of the next byte that this side expects.
    pub next_expected: u32,
}

/// A TCP segment without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Sequence number.
    pub sequence: u32,
}

/// `getpeername` and `getsockname`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// `getpeername`, or its errno.
    pub peer: Result<SocketAddr, String>,
    /// `getsockname`, or its errno.
    pub local: Result<SocketAddr, String>,
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: String,
}

/// A worker's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Nothing to tell.
    Done,
    /// Id of a socket or a load.
    Id(u32),
    /// Of a dial or an exchange.
    Dialed(Dialed),
    /// Of `Probe`.
    Echo(Echo),
    /// Of many dials.
    Counts(Counts),
    /// Of `Sequences`.
    Sequences(Sequences),
    /// Of `Names`.
    Names(Names),
    /// Of `Received`: datagrams by sender.
    Received(BTreeMap<SocketAddr, u64>),
    /// Of `Http`.
    Http(HttpAnswer),
    /// The request could not be carried out at all.
    Error(String),
}
