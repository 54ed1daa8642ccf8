//! A map type does not change without its layout version.

use proxy_common::{LAYOUT_VERSION, SOCKET_LAYOUT_VERSION};

/// The sources of a version's map types, and what they hash to.
struct Recorded {
    version: u16,
    current: u16,
    sources: &'static [&'static str],
    /// Only these types and constants; all if none is named.
    names: &'static [&'static str],
    hash: u64,
}

const MAPS: Recorded = Recorded {
    version: 3,
    current: LAYOUT_VERSION,
    sources: &[
        include_str!("../src/address.rs"),
        include_str!("../src/affinity.rs"),
        include_str!("../src/backend.rs"),
        include_str!("../src/device.rs"),
        include_str!("../src/flow.rs"),
        include_str!("../src/fragment.rs"),
        include_str!("../src/frontend.rs"),
        include_str!("../src/service.rs"),
        include_str!("../src/settings.rs"),
        include_str!("../src/source_range.rs"),
        include_str!("../src/stats.rs"),
        include_str!("../src/table.rs"),
        include_str!("../src/udp_socket.rs"),
    ],
    names: &[],
    hash: 0x0566_3192_b091_fa12,
};

const SOCKETS: Recorded = Recorded {
    version: 1,
    current: SOCKET_LAYOUT_VERSION,
    sources: &[
        include_str!("../src/address.rs"),
        include_str!("../src/frontend.rs"),
        include_str!("../src/socket_flow.rs"),
    ],
    names: &[
        "Address",
        "Protocol",
        "Scope",
        "FrontendKey",
        "SocketFlow",
        "UdpFlows",
        "UDP_FLOWS_PER_SOCKET",
    ],
    hash: 0xa0ab_de01_3910_9022,
};

/// FNV-1a over structs, enums and constants; comments and blanks do not count.
fn hash(recorded: &Recorded) -> u64 {
    let Recorded { sources, names, .. } = recorded;
    let code = sources.iter().flat_map(|it| definitions(it, names));
    let bytes = code.flat_map(|line| line.bytes().collect::<Vec<_>>());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The lines that make a layout: fields, variants, and the names around them.
fn definitions(source: &str, names: &[&str]) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in source.lines().map(str::trim) {
        let name = ["pub struct ", "pub enum ", "pub type ", "pub const "]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        let name = name.and_then(|it| it.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        let opens = name.is_some_and(|name| names.is_empty() || names.contains(&name));
        if (opens || inside) && !line.starts_with("//") && !line.starts_with("#[") {
            lines.push(line.split_whitespace().collect());
        }
        if opens {
            inside = line.ends_with('{');
        } else if line == "}" {
            inside = false;
        }
    }
    lines
}

fn check(recorded: &Recorded, constant: &str) {
    let hash = hash(recorded);
    assert!(
        (recorded.version, recorded.hash) == (recorded.current, hash),
        "the map types changed: raise {constant}, unless old pins may be read as new ones, \
         and record version {} with hash {hash:#018x} here",
        recorded.current
    );
}

#[test]
fn a_change_of_a_map_type_changes_the_layout_version() {
    check(&MAPS, "LAYOUT_VERSION");
}

#[test]
fn a_change_of_what_sockets_remember_changes_its_version() {
    check(&SOCKETS, "SOCKET_LAYOUT_VERSION");
}
