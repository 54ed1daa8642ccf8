//! Single TCP segments, made by hand.

use crate::socket::set_option;
use anyhow::{Context, Result, bail};
use lab::wire::{Segment, Sequences};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, sendto,
    socket,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Flags in the header's 14th byte.
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

/// TCP_RECV_QUEUE and TCP_SEND_QUEUE of linux/tcp.h, which libc does not have.
const RECEIVE_QUEUE: libc::c_int = 1;
const SEND_QUEUE: libc::c_int = 2;

/// Where a connection is, by the socket's own account.
pub(crate) fn sequences(fd: &OwnedFd) -> Result<Sequences> {
    repair(fd, libc::TCP_REPAIR, 1)?;
    let sequences = queues(fd);
    // Without the probe that would tell the other side.
    repair(fd, libc::TCP_REPAIR, -1)?;
    sequences
}

fn queues(fd: &OwnedFd) -> Result<Sequences> {
    let [next_expected, next_sent] = [RECEIVE_QUEUE, SEND_QUEUE].map(|queue| {
        repair(fd, libc::TCP_REPAIR_QUEUE, queue)?;
        queue_sequence(fd)
    });
    Ok(Sequences {
        next_sent: next_sent?,
        next_expected: next_expected?,
    })
}

fn repair(fd: &OwnedFd, option: libc::c_int, value: libc::c_int) -> Result<()> {
    set_option(fd, libc::IPPROTO_TCP, option, value).context("TCP_REPAIR")
}

fn queue_sequence(fd: &OwnedFd) -> Result<u32> {
    let mut value = 0_u32;
    let mut length = libc::socklen_t::try_from(size_of_val(&value))?;
    let room = (&raw mut value).cast::<libc::c_void>();
    // SAFETY: the value outlives the call and the length is its own.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_QUEUE_SEQ,
            room,
            &raw mut length,
        )
    };
    Errno::result(result).context("TCP_QUEUE_SEQ")?;
    Ok(value)
}

/// Sends a reset. The kernel adds the IP header.
pub(crate) fn send_reset(segment: &Segment) -> Result<()> {
    let fd = raw_socket(segment.from.ip())?;
    let from = portless(segment.from.ip());
    bind(fd.as_raw_fd(), &from).with_context(|| format!("bind {}", segment.from))?;
    let header = tcp_header(segment, RST)?;
    let to = portless(segment.to.ip());
    sendto(fd.as_raw_fd(), &header, &to, MsgFlags::empty()).context("send a reset")?;
    Ok(())
}

/// Sends SYNs from so many addresses and ports.
pub(crate) fn flood(first: IpAddr, to: SocketAddr, count: u32) -> Result<()> {
    let fd = raw_socket(first)?;
    match first {
        IpAddr::V4(_) => set_option(&fd, libc::IPPROTO_IP, libc::IP_HDRINCL, 1)?,
        IpAddr::V6(_) => set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, 1)?,
    }
    let address = portless(to.ip());
    for number in 0..count {
        // A few thousand ports of each address.
        let port = u16::try_from(1024 + number % 4096)?;
        let segment = Segment {
            from: SocketAddr::new(successor(first, number / 4096), port),
            to,
            sequence: number,
        };
        let mut packet = ip_header(segment.from.ip(), to.ip())?;
        packet.extend(tcp_header(&segment, SYN)?);
        match sendto(fd.as_raw_fd(), &packet, &address, MsgFlags::empty()) {
            // The queue is full: as good as lost on its way.
            Ok(_) | Err(Errno::ENOBUFS) => {}
            Err(errno) => return Err(errno).context("send a SYN"),
        }
    }
    Ok(())
}

fn raw_socket(family_of: IpAddr) -> Result<OwnedFd> {
    let family = match family_of {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(family, SockType::Raw, flags, SockProtocol::Tcp).context("a raw socket")
}

/// Ports are the protocol's business.
fn portless(ip: IpAddr) -> SockaddrStorage {
    SockaddrStorage::from(SocketAddr::new(ip, 0))
}

fn successor(first: IpAddr, number: u32) -> IpAddr {
    match first {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() + number).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() + u128::from(number)).into(),
    }
}

/// Before a TCP header without options or data. The kernel fills in IPv4's checksum.
fn ip_header(from: IpAddr, to: IpAddr) -> Result<Vec<u8>> {
    let mut header = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        _ => bail!("{from} and {to} are of two families"),
    }
    Ok(header)
}

fn tcp_header(segment: &Segment, flags: u8) -> Result<[u8; 20]> {
    let Segment { from, to, sequence } = *segment;
    let mut header = [0_u8; 20];
    header[0..2].copy_from_slice(&from.port().to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    // Five words without options.
    header[12] = 5 << 4;
    header[13] = flags;
    let sum = checksum(from.ip(), to.ip(), &header)?;
    header[16..18].copy_from_slice(&sum.to_be_bytes());
    Ok(header)
}

/// RFC 9293, 3.1, with the pseudo header of either family.
fn checksum(from: IpAddr, to: IpAddr, header: &[u8; 20]) -> Result<u16> {
    let mut bytes = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        _ => bail!("{from} and {to} are of two families"),
    }
    // Protocol and length; IPv6's have more zeros, which add nothing.
    bytes.extend([0, 6, 0, 20]);
    bytes.extend(header);
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    Ok(!u16::try_from(folded)?)
}
