//! Listeners: every one answers `<pod> peer=<ip:port> local=<ip:port>`.
//!
//! A datagram `echo N whole` (or `echo N any`) and filler asks for an answer of
//! N bytes that must not (or may) be fragmented.

use crate::probe::{fill, is_filled, set_fragmentation};
use crate::socket::{datagram_socket, stream_listener};
use anyhow::{Context, Result, ensure};
use lab::wire::Transport;
use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a listener notices that it shall end.
pub(crate) const TICK: Duration = Duration::from_millis(20);

type Received = Arc<Mutex<BTreeMap<SocketAddr, u64>>>;

/// All listeners of a worker.
#[derive(Default)]
pub(crate) struct Listeners {
    running: Vec<Listener>,
}

struct Listener {
    transport: Transport,
    port: u16,
    stop: Arc<AtomicBool>,
    received: Received,
    thread: JoinHandle<()>,
}

impl Listeners {
    pub(crate) fn listen(
        &mut self,
        name: &str,
        transport: Transport,
        address: SocketAddr,
    ) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let received = Received::default();
        let name = name.to_owned();
        let thread = match transport {
            Transport::Tcp => {
                let listener =
                    stream_listener(address).with_context(|| format!("listen on TCP {address}"))?;
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || accept(&name, &listener, &stop))
            }
            Transport::Udp => {
                let socket =
                    datagram_socket(address).with_context(|| format!("listen on UDP {address}"))?;
                prepare(address, &socket)?;
                let (stop, received) = (Arc::clone(&stop), Arc::clone(&received));
                std::thread::spawn(move || answer_datagrams(&name, &socket, &stop, &received))
            }
        };
        self.running.push(Listener {
            transport,
            port: address.port(),
            stop,
            received,
            thread,
        });
        Ok(())
    }

    /// Receives datagrams and never answers.
    pub(crate) fn collect(&mut self, address: SocketAddr) -> Result<()> {
        let socket =
            datagram_socket(address).with_context(|| format!("listen on UDP {address}"))?;
        socket.set_read_timeout(Some(TICK))?;
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Received::default());
        let thread = {
            let (stop, received) = (Arc::clone(&stop), Arc::clone(&received));
            std::thread::spawn(move || {
                let mut data = [0_u8; 2048];
                while !stop.load(Ordering::Relaxed) {
                    // Nothing came within a tick, or something did.
                    if let Ok((_, from)) = socket.recv_from(&mut data) {
                        count(&received, from);
                    }
                }
            })
        };
        self.running.push(Listener {
            transport: Transport::Udp,
            port: address.port(),
            stop,
            received,
            thread,
        });
        Ok(())
    }

    /// Returns when the ports are free again.
    pub(crate) fn unlisten(&mut self, transport: Transport, port: u16) {
        let ends =
            |listener: &mut Listener| listener.transport == transport && listener.port == port;
        for listener in self.running.extract_if(.., ends) {
            listener.stop.store(true, Ordering::Relaxed);
            // A listener that panicked is over, too.
            let _ = listener.thread.join();
        }
    }

    pub(crate) fn received(&self, port: u16) -> BTreeMap<SocketAddr, u64> {
        let mut all = BTreeMap::new();
        for listener in self.running.iter().filter(|listener| listener.port == port) {
            let counts = listener
                .received
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for (&from, count) in counts.iter() {
                *all.entry(from).or_default() += count;
            }
        }
        all
    }
}

fn accept(name: &str, listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, peer)) => {
                let name = name.to_owned();
                std::thread::spawn(move || converse(&name, stream, peer));
            }
            // Nobody came within a tick, or one came and went.
            Err(_) => continue,
        }
    }
}

/// One connection. Its end, however it comes, is the client's business.
fn converse(name: &str, stream: TcpStream, peer: SocketAddr) -> Option<()> {
    // Accepted sockets inherit the listener's time-out.
    stream.set_read_timeout(None).ok()?;
    let local = stream.local_addr().ok()?;
    let mut writer = stream.try_clone().ok()?;
    writer
        .write_all(format!("{name} peer={peer} local={local}\n").as_bytes())
        .ok()?;
    for line in BufReader::new(stream).lines() {
        writer
            .write_all(format!("{name} {}\n", line.ok()?).as_bytes())
            .ok()?;
    }
    Some(())
}

fn answer_datagrams(name: &str, socket: &UdpSocket, stop: &AtomicBool, received: &Received) {
    while !stop.load(Ordering::Relaxed) {
        // A tick without a datagram, or an ICMP error about an earlier answer.
        let _ = answer_datagram(name, socket, received);
    }
}

fn count(received: &Received, from: SocketAddr) {
    let mut counts = received.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(from).or_default() += 1;
}

/// Answers from the address to which the datagram was sent: a host has several.
fn answer_datagram(name: &str, socket: &UdpSocket, received: &Received) -> Result<()> {
    let mut data = vec![0; usize::from(u16::MAX)];
    let mut parts = [IoSliceMut::new(&mut data)];
    let mut space = cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::empty(),
    )?;
    let from = message.address.context("a datagram from nowhere")?;
    let mut to: Option<ControlMessageOwned> = None;
    for cmsg in message.cmsgs()? {
        to = Some(cmsg);
    }
    let length = message.bytes;
    let peer = crate::socket::to_std(&from)?;
    count(received, peer);

    let port = socket.local_addr()?.port();
    let wish = Wish::read(&data[..length]);
    if let Some(wish) = &wish {
        set_fragmentation(socket, peer, wish.whole)?;
    }
    let answer = |local: IpAddr| {
        let local = SocketAddr::new(local, port);
        let line = format!("{name} peer={peer} local={local}");
        match &wish {
            Some(wish) => wish.answer(line),
            None => (line + "\n").into_bytes(),
        }
    };
    let send = |bytes: Vec<u8>, cmsg: ControlMessage<'_>| {
        sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[cmsg],
            MsgFlags::empty(),
            Some(&from),
        )
    };
    match to {
        Some(ControlMessageOwned::Ipv4PacketInfo(mut info)) => {
            let local = IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes());
            // The way back is the routing table's choice.
            info.ipi_ifindex = 0;
            info.ipi_spec_dst = info.ipi_addr;
            send(answer(local), ControlMessage::Ipv4PacketInfo(&info))?;
        }
        Some(ControlMessageOwned::Ipv6PacketInfo(mut info)) => {
            let local = IpAddr::from(info.ipi6_addr.s6_addr);
            info.ipi6_ifindex = 0;
            send(answer(local), ControlMessage::Ipv6PacketInfo(&info))?;
        }
        other => ensure!(false, "no destination address: {other:?}"),
    }
    Ok(())
}

/// What a datagram asks for besides an answer.
struct Wish {
    length: usize,
    whole: bool,
    /// Whether the datagram arrived as it was sent.
    intact: bool,
}

impl Wish {
    fn read(datagram: &[u8]) -> Option<Self> {
        let end = datagram.iter().position(|&byte| byte == b'\n')?;
        let line = std::str::from_utf8(&datagram[..end]).ok()?;
        let (length, way) = line.strip_prefix("echo ")?.split_once(' ')?;
        Some(Self {
            length: length.parse().ok()?,
            whole: way == "whole",
            intact: is_filled(datagram, end + 1),
        })
    }

    fn answer(&self, mut line: String) -> Vec<u8> {
        if !self.intact {
            line += " damaged";
        }
        let mut answer = (line + "\n").into_bytes();
        fill(&mut answer, self.length);
        answer
    }
}

/// Asks the kernel for each datagram's destination, and for a time-out.
fn prepare(address: SocketAddr, socket: &UdpSocket) -> Result<()> {
    match address {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    socket.set_read_timeout(Some(TICK))?;
    Ok(())
}
