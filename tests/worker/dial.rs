//! Connecting, and what is said on a connection.

use crate::socket::{
    bind_to, failure, local_name, open, peer_name, set_option, set_timeouts, to_std,
};
use lab::wire::{Dial, Dialed, Failure, Transport};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    MsgFlags, SockType, SockaddrStorage, connect, getsockopt, recv, recvfrom, send, sendto,
    setsockopt, sockopt,
};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// What a dialer says first on UDP and fast open; the answer does not depend on it.
const HELLO: &str = "hello\n";

type Attempt<T> = Result<T, Failure>;

/// Opens a socket and dials. The socket comes back even if the dial failed.
pub(crate) fn dial(how: &Dial) -> Attempt<(OwnedFd, Dialed)> {
    let kind = match how.transport {
        Transport::Tcp => SockType::Stream,
        Transport::Udp => SockType::Datagram,
    };
    let how = &Dial {
        to: if how.mapped { mapped(how.to) } else { how.to },
        ..how.clone()
    };
    let fd = open(how.to, kind).map_err(failure("socket"))?;
    if how.mapped {
        setsockopt(&fd, sockopt::Ipv6V6Only, &false).map_err(failure("IPV6_V6ONLY"))?;
    }
    if let Some(from) = how.from {
        let from = if how.mapped { mapped(from) } else { from };
        bind_to(&fd, from).map_err(failure("bind"))?;
    }
    if how.no_checksum {
        set_option(&fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).map_err(failure("SO_NO_CHECK"))?;
    }
    let dialed = dial_on(&fd, how);
    if kind == SockType::Stream && !how.hold {
        // A reset instead of TIME_WAIT: thousands of dials would use up the ports.
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&fd, sockopt::Linger, &linger).map_err(failure("SO_LINGER"))?;
    }
    Ok((fd, dialed))
}

/// Dials with a socket that exists.
pub(crate) fn dial_on(fd: &OwnedFd, how: &Dial) -> Dialed {
    let start = Instant::now();
    let mut dialed = Dialed::default();
    match converse(fd, how, &mut dialed) {
        Ok(line) => dialed.line = Some(line),
        Err(failure) => dialed.failure = Some(failure),
    }
    dialed.elapsed_ms = millis_since(start);
    dialed
}

fn converse(fd: &OwnedFd, how: &Dial, dialed: &mut Dialed) -> Attempt<String> {
    set_timeouts(fd, how.timeout_ms).map_err(failure("SO_SNDTIMEO"))?;
    connect_to(fd, how, dialed)?;
    dialed.peer_name = peer_name(fd).ok();
    dialed.local_name = local_name(fd).ok();
    if how.transport == Transport::Udp {
        send(fd.as_raw_fd(), HELLO.as_bytes(), MsgFlags::empty()).map_err(failure("send"))?;
    }
    read_line(fd, how.transport)
}

fn connect_to(fd: &OwnedFd, how: &Dial, dialed: &mut Dialed) -> Attempt<()> {
    let to = SockaddrStorage::from(how.to);
    if how.fast_open {
        sendto(
            fd.as_raw_fd(),
            HELLO.as_bytes(),
            &to,
            MsgFlags::from_bits_retain(libc::MSG_FASTOPEN),
        )
        .map_err(failure("sendto"))?;
        return Ok(());
    }
    if how.nonblocking {
        return connect_nonblocking(fd, &to, how.timeout_ms, dialed);
    }
    match connect(fd.as_raw_fd(), &to) {
        // What a blocking connect says when SO_SNDTIMEO is over (socket(7)).
        Err(Errno::EINPROGRESS) => Err(timed_out("connect")),
        result => result.map_err(failure("connect")),
    }
}

fn connect_nonblocking(
    fd: &OwnedFd,
    to: &SockaddrStorage,
    timeout_ms: u64,
    dialed: &mut Dialed,
) -> Attempt<()> {
    set_flags(fd, OFlag::O_NONBLOCK)?;
    let first = connect(fd.as_raw_fd(), to);
    dialed.first_errno = first.err().map(crate::socket::name_of);
    let connected = match first {
        Err(Errno::EINPROGRESS) => wait_connected(fd, timeout_ms),
        other => other.map_err(failure("connect")),
    };
    // Also after a time-out: a held socket goes on connecting, and `Redial` waits for it.
    set_flags(fd, OFlag::empty())?;
    connected
}

fn wait_connected(fd: &OwnedFd, timeout_ms: u64) -> Attempt<()> {
    let mut waiting = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    let timeout = PollTimeout::try_from(timeout_ms).unwrap_or(PollTimeout::MAX);
    if poll(&mut waiting, timeout).map_err(failure("poll"))? == 0 {
        return Err(timed_out("connect"));
    }
    match getsockopt(fd, sockopt::SocketError).map_err(failure("SO_ERROR"))? {
        0 => Ok(()),
        raw => Err(failure("connect")(Errno::from_raw(raw))),
    }
}

fn set_flags(fd: &OwnedFd, flags: OFlag) -> Attempt<()> {
    fcntl(fd, FcntlArg::F_SETFL(flags))
        .map(drop)
        .map_err(failure("fcntl"))
}

/// Byte by byte: what comes after the line is for the next read.
fn read_line(fd: &OwnedFd, transport: Transport) -> Attempt<String> {
    if transport == Transport::Udp {
        return receive_from_now(fd).map(|(line, _)| line);
    }
    let mut line = Vec::new();
    let mut byte = [0_u8];
    loop {
        match recv(fd.as_raw_fd(), &mut byte, MsgFlags::empty()) {
            Ok(0) => {
                return Err(Failure {
                    call: "recv".to_owned(),
                    errno: "EOF".to_owned(),
                });
            }
            Ok(_) if byte == *b"\n" => return Ok(String::from_utf8_lossy(&line).into_owned()),
            Ok(_) => line.push(byte[0]),
            Err(Errno::EAGAIN) => return Err(timed_out("recv")),
            Err(errno) => return Err(failure("recv")(errno)),
        }
    }
}

/// A line there, a line back, on a connected socket.
pub(crate) fn talk(fd: &OwnedFd, line: &str, timeout_ms: u64) -> Dialed {
    let start = Instant::now();
    let mut dialed = Dialed::default();
    match try_talk(fd, line, timeout_ms) {
        Ok(answer) => dialed.line = Some(answer),
        Err(failure) => dialed.failure = Some(failure),
    }
    dialed.elapsed_ms = millis_since(start);
    dialed
}

fn try_talk(fd: &OwnedFd, line: &str, timeout_ms: u64) -> Attempt<String> {
    let kind = getsockopt(fd, sockopt::SockType).map_err(failure("SO_TYPE"))?;
    let transport = if kind == SockType::Stream {
        Transport::Tcp
    } else {
        Transport::Udp
    };
    set_timeouts(fd, timeout_ms).map_err(failure("SO_RCVTIMEO"))?;
    send(
        fd.as_raw_fd(),
        format!("{line}\n").as_bytes(),
        MsgFlags::MSG_NOSIGNAL,
    )
    .map_err(failure("send"))?;
    read_line(fd, transport)
}

/// `sendto`.
pub(crate) fn send_to(fd: &OwnedFd, to: SocketAddr, line: &str) -> Attempt<()> {
    // An IPv6 socket reaches an IPv4 address by its mapped form.
    let v6_socket = local_name(fd).map_err(failure("getsockname"))?.is_ipv6();
    let to = if v6_socket { mapped(to) } else { to };
    sendto(
        fd.as_raw_fd(),
        line.as_bytes(),
        &SockaddrStorage::from(to),
        MsgFlags::empty(),
    )
    .map(drop)
    .map_err(failure("sendto"))
}

/// `recvfrom`, and the source that it reports.
pub(crate) fn receive_from(fd: &OwnedFd, timeout_ms: u64) -> Attempt<(String, Option<SocketAddr>)> {
    set_timeouts(fd, timeout_ms).map_err(failure("SO_RCVTIMEO"))?;
    receive_from_now(fd)
}

fn receive_from_now(fd: &OwnedFd) -> Attempt<(String, Option<SocketAddr>)> {
    let mut data = [0_u8; 2048];
    match recvfrom::<SockaddrStorage>(fd.as_raw_fd(), &mut data) {
        Ok((length, from)) => {
            let line = String::from_utf8_lossy(&data[..length])
                .trim_end()
                .to_owned();
            Ok((line, from.and_then(|from| to_std(&from).ok())))
        }
        Err(Errno::EAGAIN) => Err(timed_out("recvfrom")),
        Err(errno) => Err(failure("recvfrom")(errno)),
    }
}

/// `connect(AF_UNSPEC)`.
pub(crate) fn dissolve(fd: &OwnedFd) -> Attempt<()> {
    let unspecified = libc::sockaddr {
        sa_family: 0,
        sa_data: [0; 14],
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr>()).unwrap_or_default();
    // SAFETY: the address outlives the call and the length is its own.
    let result = unsafe { libc::connect(fd.as_raw_fd(), &raw const unspecified, length) };
    Errno::result(result)
        .map(drop)
        .map_err(failure("connect(AF_UNSPEC)"))
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

pub(crate) fn timed_out(call: &str) -> Failure {
    Failure {
        call: call.to_owned(),
        errno: "TIMEOUT".to_owned(),
    }
}

pub(crate) fn millis_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}
