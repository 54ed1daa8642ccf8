//! Which addresses can be a frontend or a backend at all.

use std::net::IpAddr;

/// Why an address can be neither, if so (semantics 5; as `ValidateNonSpecialIP`
/// of pkg/apis/core/validation does for Endpoints and externalIPs).
pub(super) fn unusable(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    match address {
        _ if address.is_unspecified() => Some("unspecified"),
        _ if address.is_loopback() => Some("loopback"),
        _ if address.is_multicast() => Some("multicast"),
        _ if link_local => Some("link-local"),
        _ if broadcast => Some("the broadcast address"),
        _ => None,
    }
}
