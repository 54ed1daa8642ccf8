//! How packets of clients outside get to backends on other nodes: of a Service by
//! annotation, else as the node's option says. `docs/dsr.md` tells what for.

use super::annotation::{quoted, value};
use crate::model::Reason;
use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proxy_common::{Forwarding, Protocol};
use serde::Deserialize;

/// Annotation of a Service: its mode.
pub const FORWARDING_MODE: &str = "fairlead.io/forwarding-mode";

/// Cilium's annotation for the same; ours wins.
pub const CILIUM_FORWARDING_MODE: &str = "service.cilium.io/forwarding-mode";

/// Which service ports are forwarded in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardingMode {
    /// All by SNAT.
    #[default]
    Snat,
    /// All by DSR.
    Dsr,
    /// TCP by DSR, all else by SNAT.
    Hybrid,
}

impl ForwardingMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Snat, Self::Dsr, Self::Hybrid];

    /// The name that options and annotations use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Dsr => "dsr",
            Self::Hybrid => "hybrid",
        }
    }

    /// What it means for a protocol.
    pub fn of(self, protocol: Protocol) -> Forwarding {
        match (self, protocol) {
            (Self::Dsr, _) | (Self::Hybrid, Protocol::Tcp) => Forwarding::Dsr,
            (Self::Snat, _) | (Self::Hybrid, Protocol::Udp | Protocol::Sctp) => Forwarding::Snat,
        }
    }
}

/// What a Service asks for; `None` for the node's own mode.
pub(super) fn forwarding(
    meta: &ObjectMeta,
    warn: &mut impl FnMut(Reason, String),
) -> Option<ForwardingMode> {
    let keys = [FORWARDING_MODE, CILIUM_FORWARDING_MODE];
    let (key, text) = keys
        .into_iter()
        .find_map(|key| Some((key, value(meta, key)?)))?;
    let known = ForwardingMode::ALL
        .into_iter()
        .find(|it| it.as_str() == text);
    if known.is_none() {
        let names = ForwardingMode::ALL.map(ForwardingMode::as_str).join(", ");
        let message = format!(
            "annotation {key} {:?} is unknown, --forwarding-mode of the node counts; write one of: {names}",
            quoted(text)
        );
        warn(Reason::UnknownValue, message);
    }
    known
}
