//! What is timed: socket calls of a client, and a server's part in them.
//!
//! One thread plays both ends. The kernel delivers between namespaces within
//! the sender's own call, so nothing is ever waited for and no wake-up is in
//! the figures: only the work of the calls and of the stack. A real exchange
//! costs more on both sides of a comparison, and its ratio is nearer to 1.

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exchange {
    /// socket(), connect() and close() of TCP. The call is connect(), with the
    /// handshake in it.
    TcpConnect,
    /// The same of UDP, which sends nothing: hook and route.
    UdpConnect,
    /// A request and its answer on one connection.
    TcpRequest,
    /// A block of [`BLOCK`] bytes on one connection.
    TcpBlock,
    /// A request and its answer on a connected UDP socket.
    UdpRequest,
    /// The same by sendto() and recvfrom().
    UdpUnconnected,
    /// One datagram that nobody answers, from a port that has sent none to this
    /// target yet: each is a new flow.
    UdpFlow,
}

/// Time per exchange of one batch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Of the system call that is looked at, ns.
    pub(crate) call_ns: f64,
    /// Of everything, ns.
    pub(crate) whole_ns: f64,
}

/// Bytes of a request and of an answer.
const MESSAGE: usize = 64;
/// Bytes that are sent at once where the throughput counts.
pub(crate) const BLOCK: usize = 65_536;
/// Blocks before the congestion window is open.
const WARM_UP: u32 = 32;
/// Where the servers listen.
pub(crate) const PORT: u16 = 8080;
/// The first port that new flows come from.
const PORT_MIN: u16 = 1024;
/// Nothing may take that long; a lost datagram must not hang the bench.
const PATIENCE: Duration = Duration::from_secs(5);

/// The listening sockets.
pub(crate) struct Servers {
    tcp: [TcpListener; 2],
    udp: [UdpSocket; 2],
    /// By target, the port that the last [`Exchange::UdpFlow`] came from.
    flow_ports: RefCell<HashMap<SocketAddr, u16>>,
}

impl Servers {
    /// Listens in the namespace and cgroup of the calling thread.
    pub(crate) fn new() -> Result<Self> {
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
        let udp = |at| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(at).with_context(|| format!("bind {at}"))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let tcp = |at| TcpListener::bind(at).with_context(|| format!("listen on {at}"));
        Ok(Self {
            tcp: [tcp(v4)?, tcp(v6)?],
            udp: [udp(v4)?, udp(v6)?],
            flow_ports: RefCell::default(),
        })
    }

    fn tcp(&self, client: SocketAddr) -> &TcpListener {
        &self.tcp[usize::from(client.is_ipv6())]
    }

    fn udp(&self, client: SocketAddr) -> &UdpSocket {
        &self.udp[usize::from(client.is_ipv6())]
    }

    /// Runs `count` exchanges with the next of `targets`.
    pub(crate) fn batch(
        &self,
        exchange: Exchange,
        targets: &mut impl Iterator<Item = SocketAddr>,
        count: u32,
    ) -> Result<Sample> {
        let per = |total: Duration| total.as_nanos() as f64 / f64::from(count);
        match exchange {
            Exchange::TcpConnect | Exchange::UdpConnect => {
                let start = Instant::now();
                let mut calls = Duration::ZERO;
                for target in targets.take(count as usize) {
                    calls += match exchange {
                        Exchange::UdpConnect => udp_connect(target)?,
                        _ => self.tcp_connect(target)?,
                    };
                }
                Ok(Sample {
                    call_ns: per(calls),
                    whole_ns: per(start.elapsed()),
                })
            }
            Exchange::TcpRequest | Exchange::TcpBlock => {
                let target = targets.next().context("no target")?;
                let (mut client, mut server) = self.tcp_pair(target)?;
                let mut block = vec![0x5a_u8; BLOCK];
                let once = |client: &mut TcpStream, server: &mut TcpStream, block: &mut [u8]| {
                    if exchange == Exchange::TcpBlock {
                        client.write_all(block)?;
                        return server.read_exact(block);
                    }
                    client.write_all(&block[..MESSAGE])?;
                    server.read_exact(&mut block[..MESSAGE])?;
                    server.write_all(&block[..MESSAGE])?;
                    client.read_exact(&mut block[..MESSAGE])
                };
                for _ in 0..WARM_UP {
                    once(&mut client, &mut server, &mut block)?;
                }
                let start = Instant::now();
                for _ in 0..count {
                    once(&mut client, &mut server, &mut block)?;
                }
                let whole_ns = per(start.elapsed());
                reset_at_close(&client)?;
                Ok(Sample {
                    call_ns: whole_ns,
                    whole_ns,
                })
            }
            Exchange::UdpRequest | Exchange::UdpUnconnected => {
                let target = targets.next().context("no target")?;
                let connected = exchange == Exchange::UdpRequest;
                let whole_ns = per(self.udp_exchanges(target, connected, count)?);
                Ok(Sample {
                    call_ns: whole_ns,
                    whole_ns,
                })
            }
            Exchange::UdpFlow => {
                let target = targets.next().context("no target")?;
                let whole_ns = per(self.udp_flows(target, count)?);
                Ok(Sample {
                    call_ns: whole_ns,
                    whole_ns,
                })
            }
        }
    }

    /// The time of connect().
    fn tcp_connect(&self, target: SocketAddr) -> Result<Duration> {
        let fd = open(target, SockType::Stream)?;
        let to = SockaddrStorage::from(target);
        let start = Instant::now();
        connect(fd.as_raw_fd(), &to).with_context(|| format!("connect to {target}"))?;
        let took = start.elapsed();
        let (server, _) = self.tcp(target).accept().context("accept")?;
        // A reset at close(): no port stays in TIME_WAIT.
        reset_at_close(&fd)?;
        drop((fd, server));
        Ok(took)
    }

    fn tcp_pair(&self, target: SocketAddr) -> Result<(TcpStream, TcpStream)> {
        let client = TcpStream::connect(target).with_context(|| format!("connect to {target}"))?;
        let (server, _) = self.tcp(target).accept().context("accept")?;
        for stream in [&client, &server] {
            // Pacing by estimates of the bandwidth makes figures unsteady.
            setsockopt(stream, sockopt::TcpCongestion, &"cubic".into())
                .context("set TCP_CONGESTION")?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        Ok((client, server))
    }

    fn udp_exchanges(&self, target: SocketAddr, connected: bool, count: u32) -> Result<Duration> {
        let client = UdpSocket::bind((any(target), 0)).context("bind")?;
        client.set_read_timeout(Some(PATIENCE))?;
        if connected {
            client
                .connect(target)
                .with_context(|| format!("connect to {target}"))?;
        }
        let server = self.udp(target);
        let mut data = [0x5a_u8; MESSAGE];
        let mut once = || -> Result<()> {
            if connected {
                client.send(&data)?;
            } else {
                client.send_to(&data, target)?;
            }
            let (_, from) = server
                .recv_from(&mut data)
                .context("the server's receive")?;
            server.send_to(&data, from)?;
            if connected {
                client.recv(&mut data).context("the client's receive")?;
            } else {
                client
                    .recv_from(&mut data)
                    .context("the client's receive")?;
            }
            Ok(())
        };
        for _ in 0..WARM_UP {
            once()?;
        }
        let start = Instant::now();
        for _ in 0..count {
            once()?;
        }
        Ok(start.elapsed())
    }

    /// The time from sendto() to recvfrom().
    fn udp_flows(&self, target: SocketAddr, count: u32) -> Result<Duration> {
        let server = self.udp(target);
        let mut ports = self.flow_ports.borrow_mut();
        let port = ports.entry(target).or_default();
        let mut data = [0x5a_u8; MESSAGE];
        let mut took = Duration::ZERO;
        for _ in 0..count {
            *port = port.checked_add(1).map_or(PORT_MIN, |it| it.max(PORT_MIN));
            let client = UdpSocket::bind((any(target), *port))
                .with_context(|| format!("bind port {port}"))?;
            let start = Instant::now();
            client.send_to(&data, target)?;
            server
                .recv_from(&mut data)
                .with_context(|| format!("a datagram from port {port} to {target}"))?;
            took += start.elapsed();
        }
        Ok(took)
    }
}

/// The unspecified address of the target's family.
fn any(target: SocketAddr) -> IpAddr {
    if target.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    }
}

fn udp_connect(target: SocketAddr) -> Result<Duration> {
    let fd = open(target, SockType::Datagram)?;
    let to = SockaddrStorage::from(target);
    let start = Instant::now();
    connect(fd.as_raw_fd(), &to).with_context(|| format!("connect to {target}"))?;
    Ok(start.elapsed())
}

fn open(target: SocketAddr, kind: SockType) -> Result<OwnedFd> {
    let family = if target.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    socket(family, kind, SockFlag::SOCK_CLOEXEC, None).context("open a socket")
}

fn reset_at_close(fd: &impl std::os::fd::AsFd) -> Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(fd, sockopt::Linger, &linger).context("set SO_LINGER")
}
