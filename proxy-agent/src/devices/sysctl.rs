//! Settings of this host without which packets do not get through.

use proxy_common::Device;
use std::path::Path;

const NET: &str = "/proc/sys/net";

/// What stands in the way of packets by these devices, for people.
pub fn obstacles<'a>(devices: impl IntoIterator<Item = (&'a str, &'a Device)>) -> Vec<String> {
    obstacles_in(Path::new(NET), devices)
}

fn obstacles_in<'a>(
    net: &Path,
    devices: impl IntoIterator<Item = (&'a str, &'a Device)>,
) -> Vec<String> {
    let devices: Vec<_> = devices.into_iter().collect();
    let mut obstacles = Vec::new();
    if devices.is_empty() {
        return obstacles;
    }
    for (setting, family) in [
        ("ipv4/ip_forward", "IPv4"),
        ("ipv6/conf/all/forwarding", "IPv6"),
    ] {
        if read(net, setting) == Some(0) {
            obstacles.push(format!(
                "{family} is not forwarded: set net.{}=1, or {family} clients elsewhere reach no pod",
                setting.replace('/', ".")
            ));
        }
    }
    let all = read(net, "ipv4/conf/all/rp_filter").unwrap_or(0);
    for (name, _) in devices {
        let own = read(net, &format!("ipv4/conf/{name}/rp_filter")).unwrap_or(0);
        // The larger one counts (Documentation/networking/ip-sysctl.rst); 1 is strict.
        if own.max(all) == 1 {
            obstacles.push(format!(
                "{name} has a strict reverse path filter (rp_filter=1), which drops packets of clients \
                 whose way back is by another device: set net.ipv4.conf.{name}.rp_filter=2"
            ));
        }
    }
    obstacles
}

/// `None` where the setting does not exist, as without IPv6.
fn read(net: &Path, setting: &str) -> Option<u32> {
    let text = std::fs::read_to_string(net.join(setting)).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn found(settings: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (setting, value) in settings {
            let path = dir.path().join(setting);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        obstacles_in(dir.path(), [("eth0", &Device::new_zeroed())])
    }

    #[test]
    fn forwarding_and_strict_filters_are_named() {
        assert_eq!(found(&[("ipv4/ip_forward", "1")]), [""; 0]);
        let off = found(&[("ipv4/ip_forward", "0"), ("ipv6/conf/all/forwarding", "0")]);
        assert!(off[0].contains("net.ipv4.ip_forward=1"), "{off:?}");
        assert!(off[1].contains("net.ipv6.conf.all.forwarding=1"), "{off:?}");
        for (all, own, strict) in [("0", "1", true), ("1", "0", true), ("1", "2", false)] {
            let found = found(&[
                ("ipv4/conf/all/rp_filter", all),
                ("ipv4/conf/eth0/rp_filter", own),
            ]);
            assert_eq!(!found.is_empty(), strict, "{all} {own} {found:?}");
        }
    }
}
