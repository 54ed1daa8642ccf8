//! Which devices are uplinks by name: `--devices`.

use anyhow::{Result, bail};

/// The most bytes in the name of a device (IFNAMSIZ - 1).
const NAME_MAX: usize = 15;

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
    pub fn parse(list: Option<Vec<String>>) -> Result<Self> {
        let list = list.unwrap_or_default();
        match list.as_slice() {
            [] => return Ok(Self::Found),
            [one] if one == "none" => return Ok(Self::None),
            _ => {}
        }
        for pattern in &list {
            let is_name = !pattern.is_empty()
                && pattern.trim_matches('*').len() <= NAME_MAX
                && !pattern.contains(['/', ' ']);
            if !is_name {
                bail!("--devices: {pattern:?} is no name of a device, nor a pattern like eth*");
            }
        }
        Ok(Self::Patterns(list))
    }
}
