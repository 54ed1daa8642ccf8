//! Tables of iptables (legacy), by its socket options. They need CAP_NET_ADMIN.

use crate::sys;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

/// Where the tables are listed that this namespace has, and the level of their options.
/// Asking for a table that it has not would make it.
const TABLES: [(&str, &str, libc::c_int); 2] = [
    ("/proc/net/ip_tables_names", "0.0.0.0:0", libc::IPPROTO_IP),
    ("/proc/net/ip6_tables_names", "[::]:0", libc::IPPROTO_IPV6),
];

// include/uapi/linux/netfilter_ipv4/ip_tables.h; ip6_tables.h has the same.
const IPT_SO_GET_INFO: libc::c_int = 64;
const IPT_SO_GET_ENTRIES: libc::c_int = 65;
/// `struct ipt_getinfo`: the name, 12 numbers, and the bytes of all entries.
const INFO_BYTES: usize = 84;
/// `struct ipt_get_entries`: the name, the bytes of all entries, and then those.
const ENTRIES_START: usize = 40;
/// Bytes of a table's name.
const NAME_BYTES: usize = 32;

/// A larger table is not searched. Nobody but kube-proxy has thousands of rules for
/// translation; should somebody have, strays pass instead of being dropped.
const SEARCHED_MAX: u32 = 1 << 20;

/// Whether the table has the chain in any family, or is too large to tell.
pub(super) fn has_chain(table: &str, chain: &str) -> io::Result<bool> {
    for (names, any, level) in TABLES {
        let is_there = fs::read_to_string(names).is_ok_and(|it| it.lines().any(|it| it == table));
        if is_there && is_in(table, chain, &UdpSocket::bind(any)?, level)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_in(table: &str, chain: &str, socket: &UdpSocket, level: libc::c_int) -> io::Result<bool> {
    let mut info = [0; INFO_BYTES];
    info[..table.len()].copy_from_slice(table.as_bytes());
    sys::read_socket_option(socket.as_fd(), level, IPT_SO_GET_INFO, &mut info)?;
    let size = info.last_chunk().map_or(0, |it| u32::from_ne_bytes(*it));
    if size > SEARCHED_MAX {
        return Ok(true);
    }
    let mut entries = vec![0; ENTRIES_START + size as usize];
    entries[..table.len()].copy_from_slice(table.as_bytes());
    entries[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&size.to_ne_bytes());
    match sys::read_socket_option(socket.as_fd(), level, IPT_SO_GET_ENTRIES, &mut entries) {
        Ok(()) => Ok(names(&entries, chain)),
        // It was changed meanwhile: somebody is at work.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether entries name a chain. The name stands in the chain's first entry; rules lead
/// to a chain by its place.
fn names(entries: &[u8], chain: &str) -> bool {
    let bytes = [chain.as_bytes(), &[0]].concat();
    entries.windows(bytes.len()).any(|it| it == bytes)
}
