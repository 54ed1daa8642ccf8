//! Sockets as system calls: what std cannot do or hides.

use crate::dial;
use crate::serve::TICK;
use anyhow::{Context, Result};
use lab::wire::{Dial, Dialed, Failure, Names, Transport};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrLike, SockaddrStorage, bind, getpeername,
    getsockname, listen, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

/// Sockets that the lab holds by number.
#[derive(Default)]
pub(crate) struct Sockets {
    open: BTreeMap<u32, OwnedFd>,
    last: u32,
}

impl Sockets {
    pub(crate) fn dial(&mut self, how: &Dial) -> Dialed {
        match dial::dial(how) {
            Ok((fd, mut dialed)) => {
                if how.hold {
                    dialed.socket = Some(self.keep(fd));
                }
                dialed
            }
            Err(failure) => Dialed {
                failure: Some(failure),
                ..Dialed::default()
            },
        }
    }

    pub(crate) fn redial(&self, id: u32, to: SocketAddr, timeout_ms: u64) -> Result<Dialed> {
        let fd = self.get(id)?;
        let transport = match nix::sys::socket::getsockopt(fd, sockopt::SockType)? {
            SockType::Stream => Transport::Tcp,
            _ => Transport::Udp,
        };
        let mut how = Dial::new(transport, to);
        how.timeout_ms = timeout_ms;
        Ok(dial::dial_on(fd, &how))
    }

    pub(crate) fn dissolve(&self, id: u32) -> Result<Dialed> {
        let fd = self.get(id)?;
        Ok(Dialed {
            failure: dial::dissolve(fd).err(),
            ..Dialed::default()
        })
    }

    pub(crate) fn names(&self, id: u32) -> Result<Names> {
        let fd = self.get(id)?;
        Ok(Names {
            peer: peer_name(fd).map_err(name_of),
            local: local_name(fd).map_err(name_of),
        })
    }

    pub(crate) fn talk(&self, id: u32, line: &str, timeout_ms: u64) -> Result<Dialed> {
        Ok(dial::talk(self.get(id)?, line, timeout_ms))
    }

    pub(crate) fn unconnected(&mut self, from: SocketAddr) -> Result<u32> {
        let fd = open(from, SockType::Datagram)?;
        bind_to(&fd, from).with_context(|| format!("bind {from}"))?;
        Ok(self.keep(fd))
    }

    pub(crate) fn send_to(&self, id: u32, to: SocketAddr, line: &str) -> Result<Dialed> {
        let fd = self.get(id)?;
        Ok(Dialed {
            failure: dial::send_to(fd, to, line).err(),
            ..Dialed::default()
        })
    }

    pub(crate) fn receive_from(&self, id: u32, timeout_ms: u64) -> Result<Dialed> {
        let fd = self.get(id)?;
        let start = Instant::now();
        let mut dialed = match dial::receive_from(fd, timeout_ms) {
            Ok((line, from)) => Dialed {
                line: Some(line),
                from,
                ..Dialed::default()
            },
            Err(failure) => Dialed {
                failure: Some(failure),
                ..Dialed::default()
            },
        };
        dialed.elapsed_ms = dial::millis_since(start);
        Ok(dialed)
    }

    pub(crate) fn close(&mut self, id: u32) {
        self.open.remove(&id);
    }

    fn keep(&mut self, fd: OwnedFd) -> u32 {
        self.last += 1;
        self.open.insert(self.last, fd);
        self.last
    }

    pub(crate) fn get(&self, id: u32) -> Result<&OwnedFd> {
        self.open
            .get(&id)
            .with_context(|| format!("no socket {id}"))
    }
}

/// A socket of the family of `address`.
pub(crate) fn open(address: SocketAddr, kind: SockType) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    socket(family, kind, SockFlag::SOCK_CLOEXEC, None)
}

pub(crate) fn bind_to(fd: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    setsockopt(fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

pub(crate) fn peer_name(fd: &OwnedFd) -> Result<SocketAddr, Errno> {
    to_std(&getpeername::<SockaddrStorage>(fd.as_raw_fd())?)
}

pub(crate) fn local_name(fd: &OwnedFd) -> Result<SocketAddr, Errno> {
    to_std(&getsockname::<SockaddrStorage>(fd.as_raw_fd())?)
}

/// The address as std has it.
pub(crate) fn to_std(address: &SockaddrStorage) -> Result<SocketAddr, Errno> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Ok(SocketAddr::V4((*v4).into()));
    }
    if let Some(v6) = address.as_sockaddr_in6() {
        return Ok(SocketAddr::V6((*v6).into()));
    }
    debug_assert!(address.len() > 0);
    Err(Errno::EAFNOSUPPORT)
}

/// `ECONNREFUSED` and the like.
pub(crate) fn name_of(errno: Errno) -> String {
    format!("{errno:?}")
}

pub(crate) fn failure(call: &str) -> impl Fn(Errno) -> Failure + '_ {
    move |errno| Failure {
        call: call.to_owned(),
        errno: name_of(errno),
    }
}

/// Bounds blocking calls of a socket.
pub(crate) fn set_timeouts(fd: &OwnedFd, timeout_ms: u64) -> Result<(), Errno> {
    let bound = TimeVal::milliseconds(i64::try_from(timeout_ms).unwrap_or(i64::MAX / 1_000_000));
    setsockopt(fd, sockopt::SendTimeout, &bound)?;
    setsockopt(fd, sockopt::ReceiveTimeout, &bound)
}

/// A listening TCP socket of exactly one family.
pub(crate) fn stream_listener(address: SocketAddr) -> Result<TcpListener> {
    let fd = one_family(address, SockType::Stream)?;
    bind_to(&fd, address)?;
    // Takes data in the SYN; the length is the queue of such connections.
    set_option(&fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 64)?;
    listen(&fd, Backlog::new(1024)?)?;
    setsockopt(
        &fd,
        sockopt::ReceiveTimeout,
        &TimeVal::milliseconds(TICK.as_millis().try_into()?),
    )?;
    Ok(fd.into())
}

/// Options that nix does not know, all of type int.
pub(crate) fn set_option(
    fd: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    let value = (&raw const value).cast::<libc::c_void>();
    // SAFETY: the value outlives the call and the length is its own.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, length) };
    Errno::result(result).map(drop)
}

/// A bound UDP socket of exactly one family. Without `SO_REUSEADDR`, which
/// would let two listeners share a port.
pub(crate) fn datagram_socket(address: SocketAddr) -> Result<UdpSocket> {
    let fd = one_family(address, SockType::Datagram)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(fd.into())
}

fn one_family(address: SocketAddr, kind: SockType) -> Result<OwnedFd> {
    let fd = open(address, kind)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(fd)
}
