//! What is tried.

use clap::ValueEnum;
use control_plane::Mode;
use serde::Serialize;

/// A service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Proxy {
    /// Ours.
    Fairlead,
    /// kube-proxy in its newest mode.
    KubeProxyNftables,
    /// kube-proxy in the mode that most clusters run.
    KubeProxyIptables,
}

impl Proxy {
    /// In the order of the table's columns.
    pub(crate) const ALL: [Self; 3] = [
        Self::Fairlead,
        Self::KubeProxyNftables,
        Self::KubeProxyIptables,
    ];

    /// As on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fairlead => "fairlead",
            Self::KubeProxyNftables => "kube-proxy-nftables",
            Self::KubeProxyIptables => "kube-proxy-iptables",
        }
    }

    /// kube-proxy's mode, if it is kube-proxy.
    pub(crate) fn mode(self) -> Option<Mode> {
        match self {
            Self::Fairlead => None,
            Self::KubeProxyNftables => Some(Mode::Nftables),
            Self::KubeProxyIptables => Some(Mode::Iptables),
        }
    }
}
