//! Packets of a given size, their answers, and the ICMP errors about them.

use crate::dial::timed_out;
use crate::socket::{failure, open, set_option, set_timeouts};
use lab::wire::{Echo, Failure, IcmpError, Probe, ProbeKind, filler};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn,
    SockaddrIn6, SockaddrStorage, connect, recv, recvmsg, send, setsockopt, socket, sockopt,
};
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Before the bytes of an ICMP echo: type, code, checksum, identifier, number.
const ICMP_HEADER: usize = 8;

/// Sends a packet and waits for its answer.
pub(crate) fn probe(probe: &Probe) -> Echo {
    let mut echo = Echo::default();
    if let Err(failure) = exchange(probe, &mut echo) {
        echo.failure = Some(failure);
    }
    echo
}

fn exchange(probe: &Probe, echo: &mut Echo) -> Result<(), Failure> {
    let fd = open_for(probe).map_err(failure("socket"))?;
    set_timeouts(&fd, probe.timeout_ms).map_err(failure("SO_RCVTIMEO"))?;
    set_fragmentation(&fd, probe.to, probe.dont_fragment).map_err(failure("IP_MTU_DISCOVER"))?;
    report_errors(&fd, probe.to).map_err(failure("IP_RECVERR"))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(probe.to)).map_err(failure("connect"))?;
    let sent = packet(probe);
    send(fd.as_raw_fd(), &sent, MsgFlags::empty()).map_err(failure("send"))?;
    let mut answer = vec![0; usize::from(u16::MAX)];
    loop {
        match recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            Ok(length) => {
                judge(probe.kind, &sent, &answer[..length], echo);
                return Ok(());
            }
            Err(Errno::EAGAIN) => return Err(timed_out("recv")),
            // A redirect: the packet itself went on.
            Err(Errno::EREMOTEIO) => {}
            Err(errno) => {
                echo.icmp = icmp_error(&fd);
                return Err(failure("recv")(errno));
            }
        }
    }
}

fn open_for(probe: &Probe) -> Result<OwnedFd, Errno> {
    let (family, protocol) = match (probe.kind, probe.to) {
        (ProbeKind::Datagram, _) => return open(probe.to, SockType::Datagram),
        (ProbeKind::Ping, SocketAddr::V4(_)) => (AddressFamily::Inet, SockProtocol::Icmp),
        (ProbeKind::Ping, SocketAddr::V6(_)) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)
}

/// Fragments nothing, not even to what was learnt of the path, or lets
/// everybody on the way fragment.
pub(crate) fn set_fragmentation(
    fd: &impl AsRawFd,
    family_of: SocketAddr,
    dont_fragment: bool,
) -> Result<(), Errno> {
    // The values of both families are the same.
    let discover = if dont_fragment {
        libc::IP_PMTUDISC_PROBE
    } else {
        libc::IP_PMTUDISC_DONT
    };
    match family_of {
        SocketAddr::V4(_) => set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover),
        SocketAddr::V6(_) => {
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discover)?;
            let dont = i32::from(dont_fragment);
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, dont)
        }
    }
}

fn report_errors(fd: &OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    match to {
        SocketAddr::V4(_) => setsockopt(fd, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(fd, sockopt::Ipv6RecvErr, &true),
    }
}

fn packet(probe: &Probe) -> Vec<u8> {
    let size = usize::from(probe.size);
    match probe.kind {
        ProbeKind::Ping => {
            let request = match probe.to {
                SocketAddr::V4(_) => 8,
                SocketAddr::V6(_) => 128,
            };
            // The kernel fills in the identifier and the checksum.
            let mut packet = vec![request, 0, 0, 0, 0, 0, 0, 1];
            fill(&mut packet, ICMP_HEADER + size);
            packet
        }
        ProbeKind::Datagram => {
            let way = if probe.dont_fragment { "whole" } else { "any" };
            let mut packet = format!("echo {} {way}\n", probe.answer).into_bytes();
            fill(&mut packet, size);
            packet
        }
    }
}

/// Appends filler up to a length.
pub(crate) fn fill(packet: &mut Vec<u8>, length: usize) {
    packet.extend((packet.len()..length).map(filler));
}

/// Whether all bytes from `start` on are filler.
pub(crate) fn is_filled(packet: &[u8], start: usize) -> bool {
    let rest = packet.iter().enumerate().skip(start);
    rest.into_iter().all(|(at, &byte)| byte == filler(at))
}

fn judge(kind: ProbeKind, sent: &[u8], answer: &[u8], echo: &mut Echo) {
    match kind {
        ProbeKind::Ping => {
            echo.size = Some(answer.len().saturating_sub(ICMP_HEADER));
            echo.intact = answer.get(ICMP_HEADER..) == sent.get(ICMP_HEADER..);
        }
        ProbeKind::Datagram => {
            let end = answer.iter().position(|&byte| byte == b'\n');
            let end = end.unwrap_or(answer.len());
            let line = String::from_utf8_lossy(&answer[..end]).into_owned();
            echo.size = Some(answer.len());
            echo.intact = is_filled(answer, end + 1) && !line.ends_with(" damaged");
            echo.line = Some(line);
        }
    }
}

/// The first ICMP error in the socket's queue.
fn icmp_error(fd: &OwnedFd) -> Option<IcmpError> {
    let mut data = [0_u8; 64];
    let mut parts = [IoSliceMut::new(&mut data)];
    let mut space = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(fd.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
    let (error, from): (_, Option<IpAddr>) = message.cmsgs().ok()?.find_map(|cmsg| match cmsg {
        ControlMessageOwned::Ipv4RecvErr(error, from) => {
            Some((error, from.map(|from| SockaddrIn::from(from).ip().into())))
        }
        ControlMessageOwned::Ipv6RecvErr(error, from) => {
            Some((error, from.map(|from| SockaddrIn6::from(from).ip().into())))
        }
        _ => None,
    })?;
    let of_network = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6];
    of_network.contains(&error.ee_origin).then_some(IcmpError {
        from,
        kind: error.ee_type,
        code: error.ee_code,
        mtu: error.ee_info,
    })
}
