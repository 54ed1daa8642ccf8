//! Rules of a kube-proxy, in whichever of its modes.

use super::iptables;
use super::netfilter::{self, Message};
use anyhow::{Context, Result};
use std::ffi::CString;
use std::io;
use std::path::Path;

// include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h
const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NFT_MSG_GETCHAIN: u8 = 4;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;

/// NFPROTO_IPV4 and NFPROTO_IPV6, include/uapi/linux/netfilter.h
const FAMILIES: [u8; 2] = [2, 10];

/// Tables and chains that kube-proxy makes: in nftables mode (pkg/proxy/nftables/
/// proxier.go), and in the others by an iptables that writes nf_tables (pkg/proxy/
/// iptables/proxier.go). Base chains that somebody left, empty, decide nothing.
const CHAINS: [(&str, &str); 2] = [("kube-proxy", "services"), ("nat", SERVICES)];
const SERVICES: &str = "KUBE-SERVICES";

/// The device with every address of a Service in IPVS mode (pkg/proxy/ipvs/proxier.go).
const IPVS_DEVICE: &str = "/proc/sys/net/ipv4/conf/kube-ipvs0";

/// Whether a kube-proxy's rules are in force here.
pub(super) fn are_there() -> Result<bool> {
    if Path::new(IPVS_DEVICE).exists() {
        return Ok(true);
    }
    for (table, chain) in CHAINS {
        for family in FAMILIES {
            if has_chain(family, table, chain)
                .with_context(|| format!("asking for chain {chain} of table {table}"))?
            {
                return Ok(true);
            }
        }
    }
    iptables::has_chain("nat", SERVICES).context("reading table nat of iptables")
}

/// Whether nf_tables has a chain; not if there is no nf_tables.
fn has_chain(family: u8, table: &str, chain: &str) -> io::Result<bool> {
    let name = |text: &str| CString::new(text).map(CString::into_bytes_with_nul);
    let question = Message::new(NFNL_SUBSYS_NFTABLES, NFT_MSG_GETCHAIN, family)
        .with(NFTA_CHAIN_TABLE, &name(table)?)
        .with(NFTA_CHAIN_NAME, &name(chain)?);
    match netfilter::exists(question) {
        // The subsystem is unknown, or the family.
        Err(error)
            if [
                Some(libc::EINVAL),
                Some(libc::EOPNOTSUPP),
                Some(libc::EAFNOSUPPORT),
            ]
            .contains(&error.raw_os_error()) =>
        {
            Ok(false)
        }
        answer => answer,
    }
}
