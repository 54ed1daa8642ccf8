//! Frontends that are left alone (semantics 36): a NodeLocal DNSCache, for
//! example, serves the DNS Service's ClusterIP itself, on this node.

use proxy_common::Protocol;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// `ADDRESS`, `ADDRESS:PORT` or `ADDRESS:PORT/PROTOCOL`; IPv6 with a port in
/// brackets. The address 0.0.0.0 or :: stands for the NodePorts of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Skip {
    /// The address.
    pub address: IpAddr,
    /// The port; all without one.
    pub port: Option<u16>,
    /// The protocol; all without one.
    pub protocol: Option<Protocol>,
}

impl Skip {
    /// Whether a frontend is to be left alone.
    pub fn covers(&self, address: IpAddr, port: u16, protocol: Protocol) -> bool {
        self.address == address
            && self.port.is_none_or(|it| it == port)
            && self.protocol.is_none_or(|it| it == protocol)
    }
}

/// Why a text is no [`Skip`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not ADDRESS, ADDRESS:PORT or ADDRESS:PORT/TCP, /UDP or /SCTP")]
pub struct NoSkip(String);

impl FromStr for Skip {
    type Err = NoSkip;

    fn from_str(text: &str) -> Result<Self, NoSkip> {
        let error = || NoSkip(text.to_owned());
        if let Ok(address) = text.parse() {
            return Ok(Self {
                address,
                port: None,
                protocol: None,
            });
        }
        let (socket, protocol) = match text.split_once('/') {
            Some((socket, name)) => {
                let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
                    .into_iter()
                    .find(|it| it.as_str().eq_ignore_ascii_case(name));
                (socket, Some(protocol.ok_or_else(error)?))
            }
            None => (text, None),
        };
        let socket: SocketAddr = socket.parse().map_err(|_| error())?;
        Ok(Self {
            address: socket.ip(),
            port: Some(socket.port()),
            protocol,
        })
    }
}

impl TryFrom<String> for Skip {
    type Error = NoSkip;

    fn try_from(text: String) -> Result<Self, NoSkip> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_covers_what_it_names_and_nothing_else() {
        let covers = |skip: &str, frontend: &str, protocol| {
            let frontend: SocketAddr = frontend.parse().unwrap();
            skip.parse::<Skip>()
                .unwrap()
                .covers(frontend.ip(), frontend.port(), protocol)
        };
        assert!(covers("10.96.0.10", "10.96.0.10:53", Protocol::Udp));
        assert!(covers("10.96.0.10:53", "10.96.0.10:53", Protocol::Tcp));
        assert!(covers("[fd00::10]:53/udp", "[fd00::10]:53", Protocol::Udp));
        assert!(!covers("10.96.0.10:53/UDP", "10.96.0.10:53", Protocol::Tcp));
        assert!(!covers("10.96.0.10:53", "10.96.0.10:9153", Protocol::Tcp));
        assert!(!covers("10.96.0.10", "10.96.0.11:53", Protocol::Udp));
    }

    #[test]
    fn what_is_no_skip_is_refused() {
        for text in [
            "",
            "dns",
            "10.96.0.10:",
            "10.96.0.10:53/ICMP",
            "10.96.0.0/16",
            "fd00::10:53x",
        ] {
            assert!(text.parse::<Skip>().is_err(), "{text}");
        }
    }
}
