//! What the kernel has against what the API says: `fairlead status --verify`.
//!
//! Nothing is asked of the agent, and nothing is repaired. The objects come anew
//! from where the agent has them, as complete lists; the pure functions that the
//! agent uses say what follows from them ([`Wanted`]); and that is compared with
//! what is pinned, by names and addresses and not by ids. So neither what an
//! agent has missed nor what somebody has done to its maps can hide.
//!
//! Objects change while one looks at them. A [`Difference`] counts only if it is
//! there twice, a moment apart, word for word.

mod look;
mod node;
mod services;
#[cfg(test)]
mod tests;
mod wanted;

pub use look::{Report, verify};
pub use services::compare;
pub use wanted::Wanted;

use serde::Serialize;
use std::fmt;

/// What a difference is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Programs on hooks.
    Hooks,
    /// Map `devices`.
    Devices,
    /// Map `device_settings`.
    DeviceSettings,
    /// Map `settings`.
    Settings,
    /// Map `service_cidrs`.
    ServiceCidrs,
    /// Map `node_addresses`.
    NodeAddresses,
    /// Map `vips`.
    Vips,
    /// Map `services`.
    Services,
    /// Map `frontends`.
    Frontends,
    /// The tables of frontends.
    Tables,
    /// Map `backends`.
    Backends,
    /// Map `source_ranges`.
    SourceRanges,
}

impl Part {
    /// The map's name, or `hooks`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hooks => "hooks",
            Self::Devices => "devices",
            Self::DeviceSettings => "device_settings",
            Self::Settings => "settings",
            Self::ServiceCidrs => "service_cidrs",
            Self::NodeAddresses => "node_addresses",
            Self::Vips => "vips",
            Self::Services => "services",
            Self::Frontends => "frontends",
            Self::Tables => "tables",
            Self::Backends => "backends",
            Self::SourceRanges => "source_ranges",
        }
    }

    /// What to do about a difference.
    fn advice(self) -> &'static str {
        match self {
            Self::Hooks | Self::Devices => {
                "a running agent puts it right within 30 s and says so in its log"
            }
            Self::DeviceSettings | Self::Settings | Self::ServiceCidrs => {
                "give this command the agent's options, or restart the agent"
            }
            Self::NodeAddresses
            | Self::Vips
            | Self::Services
            | Self::Frontends
            | Self::Tables
            | Self::Backends
            | Self::SourceRanges => {
                "restart the agent, which compares all of it at start; its log tells what found no room"
            }
        }
    }
}

/// One thing in which the kernel differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// What it is about.
    pub part: Part,
    /// Whose it is: a frontend, a backend, a device.
    pub object: String,
    /// What follows from the API and the node.
    pub wanted: String,
    /// What the kernel has.
    pub found: String,
    /// What to do.
    pub advice: &'static str,
}

/// For what should not be there, or is not.
const NOTHING: &str = "nothing";

impl Difference {
    fn new(
        part: Part,
        object: impl Into<String>,
        wanted: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            part,
            object: object.into(),
            wanted: wanted.into(),
            found: found.into(),
            advice: part.advice(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            part,
            object,
            wanted,
            found,
            advice,
        } = self;
        let part = part.as_str();
        write!(
            f,
            "{part}: {object}: wanted {wanted}, found {found}; {advice}"
        )
    }
}

/// Those differences that were there at both looks.
fn at_both(first: Vec<Difference>, second: &[Difference]) -> Vec<Difference> {
    let second: std::collections::BTreeSet<&Difference> = second.iter().collect();
    let mut both = first;
    both.retain(|it| second.contains(it));
    both
}
