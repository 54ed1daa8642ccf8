//! Devices by name: uplinks (`--devices`), and those of pods (`--pod-devices`).

use anyhow::{Result, bail};

/// The most bytes in the name of a device (IFNAMSIZ - 1).
const NAME_MAX: usize = 15;

/// Which devices the operator names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNames {
    /// Which ones are uplinks.
    pub uplinks: UplinkNames,
    /// Patterns of those with clients of this node behind them whose sockets the
    /// programs for sockets do not see.
    pub pods: Vec<String>,
}

impl DeviceNames {
    /// From the values of `--devices` and `--pod-devices`.
    pub fn parse(uplinks: Option<Vec<String>>, pods: Vec<String>) -> Result<Self> {
        check("--pod-devices", &pods)?;
        Ok(Self {
            uplinks: UplinkNames::parse(uplinks)?,
            pods,
        })
    }
}

/// Which devices are uplinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UplinkNames {
    /// Those of the default routes, with an InternalIP of the Node, or with an
    /// address in a subnet that may have clients.
    #[default]
    Found,
    /// Those whose name matches one of these patterns; `*` stands for any text.
    Patterns(Vec<String>),
    /// No programs on devices at all.
    None,
}

impl UplinkNames {
    /// From the values of `--devices`.
    fn parse(list: Option<Vec<String>>) -> Result<Self> {
        let list = list.unwrap_or_default();
        match list.as_slice() {
            [] => return Ok(Self::Found),
            [one] if one == "none" => return Ok(Self::None),
            _ => {}
        }
        check("--devices", &list)?;
        Ok(Self::Patterns(list))
    }
}

/// Whether what an option lists can be names of devices.
fn check(option: &str, patterns: &[String]) -> Result<()> {
    for pattern in patterns {
        let is_name = !pattern.is_empty()
            && pattern.trim_matches('*').len() <= NAME_MAX
            && !pattern.contains(['/', ' ']);
        if !is_name {
            bail!("{option}: {pattern:?} is no name of a device, nor a pattern like eth*");
        }
    }
    Ok(())
}
