//! `--snat-ports`: source ports that this node puts on connections to backends
//! on other nodes.
//!
//! By default the largest range of ports that nobody else picks from: neither
//! sockets of this host that did not choose a port (`ip_local_port_range`) nor
//! NodePorts. With the kernel's defaults that is 1024 to 29999. A service that
//! listens on a port of the range is not disturbed: only packets that come from
//! a backend, and answer a flow, are taken.

use anyhow::{Context, Result, bail};
use std::ops::RangeInclusive;

type Ports = RangeInclusive<u16>;

/// The API server's default `--service-node-port-range`.
const NODE_PORTS: Ports = 30_000..=32_767;

/// Below are the ports that only root may bind.
const FIRST: u16 = 1024;

/// Where host sockets without a port of their own get one.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The kernel's default of that.
const LOCAL_DEFAULT: Ports = 32_768..=60_999;

/// The ports as given, or the default.
pub(super) fn ports(given: Option<&str>) -> Result<Ports> {
    let local = local_ports().unwrap_or_else(|error| {
        tracing::warn!("the kernel's default range is assumed: {error:#}");
        LOCAL_DEFAULT
    });
    let Some(text) = given else {
        return Ok(default(&local));
    };
    let ports = parse(text, '-').with_context(|| {
        format!("--snat-ports {text:?} is no range of ports such as 61000-65535")
    })?;
    for (taken, by) in [
        (&local, "sockets of this host"),
        (&NODE_PORTS, "NodePorts, by default"),
    ] {
        if overlap(&ports, taken) {
            tracing::warn!(
                "--snat-ports {text} overlaps with {}-{}, from which {by} are taken: connections can collide",
                taken.start(),
                taken.end()
            );
        }
    }
    Ok(ports)
}

fn local_ports() -> Result<Ports> {
    let text =
        std::fs::read_to_string(LOCAL_PORTS).with_context(|| format!("reading {LOCAL_PORTS}"))?;
    parse(text.trim(), '\t').with_context(|| format!("{LOCAL_PORTS} holds {text:?}"))
}

fn parse(text: &str, separator: char) -> Result<Ports> {
    let (first, last) = text
        .split_once(separator)
        .context("there is one number only")?;
    let ports = first.trim().parse()?..=last.trim().parse()?;
    if ports.is_empty() || *ports.start() == 0 {
        bail!("the first is 0 or larger than the last");
    }
    Ok(ports)
}

/// The largest range beside the local ports and NodePorts; the upper ports, which
/// host sockets get last, if there is none.
fn default(local: &Ports) -> Ports {
    let mut taken = [local.clone(), NODE_PORTS];
    taken.sort_by_key(|it| *it.start());
    let mut free = Vec::new();
    let mut next = u32::from(FIRST);
    for range in &taken {
        free.push(next..u32::from(*range.start()));
        next = next.max(u32::from(*range.end()) + 1);
    }
    free.push(next..u32::from(u16::MAX) + 1);
    let largest = free.into_iter().max_by_key(ExactSizeIterator::len);
    let largest = largest.filter(|it| !it.is_empty()).and_then(|it| {
        let first = u16::try_from(it.start).ok()?;
        Some(first..=u16::try_from(it.end - 1).ok()?)
    });
    largest.unwrap_or(61_000..=u16::MAX)
}

fn overlap(a: &Ports, b: &Ports) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_largest_range_that_nobody_else_uses() {
        for (local, wanted) in [
            (LOCAL_DEFAULT, 1024..=29_999),
            (1024..=49_999, 50_000..=65_535),
            (1024..=60_999, 61_000..=65_535),
            (10_000..=20_000, 32_768..=65_535),
            (1024..=29_999, 32_768..=65_535),
            (40_000..=65_535, 1024..=29_999),
            (1024..=65_535, 61_000..=65_535),
            (1..=65_535, 61_000..=65_535),
        ] {
            assert_eq!(default(&local), wanted, "{local:?}");
        }
    }

    #[test]
    fn a_range_is_two_ports_in_order() {
        assert_eq!(parse("61000-65535", '-').unwrap(), 61_000..=65_535);
        assert_eq!(parse("7-7", '-').unwrap(), 7..=7);
        for text in ["", "1", "-", "2-1", "0-5", "1-65536", "a-b"] {
            assert!(parse(text, '-').is_err(), "{text}");
        }
    }
}
