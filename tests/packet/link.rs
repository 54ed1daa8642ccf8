//! The node's devices, addresses and routes.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use proxy_common::Device;

const MTU: u32 = 1_500;
const OVERLAY_MTU: u32 = 1_450;

/// The node's devices; they exist from the first story on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    /// The uplink.
    Up0,
    /// Another uplink.
    Up1,
    /// An uplink without link header.
    L3,
    /// The overlay, on which replies come back.
    Ov0,
    /// Of local pods; the packet path does not know it.
    Cni0,
    /// Of guests whose sockets nobody sees.
    Guests,
}

impl Link {
    pub(crate) const ALL: [Self; 6] = [
        Self::Up0,
        Self::Up1,
        Self::L3,
        Self::Ov0,
        Self::Cni0,
        Self::Guests,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Up0 => "up0",
            Self::Up1 => "up1",
            Self::L3 => "l3",
            Self::Ov0 => "ov0",
            Self::Cni0 => "cni0",
            Self::Guests => "guests",
        }
    }

    pub(crate) fn addresses(self) -> [&'static str; 2] {
        match self {
            Self::Up0 => ["192.0.2.11", "2001:db8:2::11"],
            Self::Up1 => ["192.0.3.11", "2001:db8:3::11"],
            Self::L3 => ["192.0.4.11", "2001:db8:4::11"],
            Self::Ov0 => ["10.244.0.11", "fd00:244::11"],
            Self::Cni0 => ["10.244.1.1", "fd00:244:1::1"],
            Self::Guests => ["10.244.5.1", "fd00:244:5::1"],
        }
    }

    /// The node's address on it in the family of `like`.
    pub(crate) fn address(self, like: SocketAddr) -> IpAddr {
        let [v4, v6] = self.addresses();
        let text = if like.is_ipv4() { v4 } else { v6 };
        text.parse().expect("an address")
    }

    /// Index of the device in the node's namespace.
    pub(crate) fn index(self) -> u32 {
        nix::net::if_::if_nametoindex(self.name()).expect("the device exists")
    }

    pub(crate) fn role(self) -> u32 {
        match self {
            Self::Up0 | Self::Up1 | Self::L3 => Device::UPLINK,
            Self::Ov0 => Device::RETURN,
            Self::Cni0 => 0,
            Self::Guests => Device::PODS,
        }
    }
}

/// The routes behind the devices' own ones.
const ROUTES: &str = "\
route add default via 192.0.2.1 dev up0
route add default via 192.0.3.1 dev up1 metric 5000
route add 10.244.2.0/24 via 10.244.0.12 dev ov0
route add 10.244.3.0/24 via 192.0.2.13 dev up0
route add blackhole 10.244.4.0/24
route add ::/0 via 2001:db8:2::1 dev up0
route add ::/0 via 2001:db8:3::1 dev up1 metric 5000
route add fd00:244:2::/64 via fd00:244::12 dev ov0
route add fd00:244:3::/64 via 2001:db8:2::13 dev up0
route add blackhole fd00:244:4::/64
";

/// Their MAC address, as packets have it.
const HERE: &str = "02:00:00:00:00:11";

/// Gives the namespace of this thread its devices.
pub(crate) fn set_up() -> Result<()> {
    for (file, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
    ] {
        std::fs::write(Path::new("/proc/sys").join(file), value).context(file)?;
    }
    let mut commands = String::from("link set lo up\n");
    for link in Link::ALL {
        let (name, [v4, v6]) = (link.name(), link.addresses());
        let mtu = if link == Link::Ov0 { OVERLAY_MTU } else { MTU };
        commands += &format!(
            "link add {name} address {HERE} mtu {mtu} type veth peer name {name}-far\n\
             link set {name} up\nlink set {name}-far up\n\
             addr add {v4}/24 dev {name}\naddr add {v6}/64 dev {name} nodad\n"
        );
    }
    ip(&(commands + ROUTES))
}

/// Runs `ip` in this thread's namespace.
fn ip(commands: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("starting ip")?;
    let mut input = child.stdin.take().context("ip has no input")?;
    input.write_all(commands.as_bytes())?;
    drop(input);
    ensure!(child.wait()?.success(), "ip failed on:\n{commands}");
    Ok(())
}

/// Whether a pod is on the node.
pub(crate) fn is_local(address: SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.octets()[..3] == [10, 244, 1],
        IpAddr::V6(ip) => ip.segments()[..4] == [0xfd00, 0x244, 1, 0],
    }
}

/// What the packet path is told of a device.
pub(crate) fn device(link: Link) -> Device {
    let [v4, v6] = link
        .addresses()
        .map(|it| it.parse::<IpAddr>().expect("an address"));
    Device {
        role: link.role(),
        header_bytes: if link == Link::L3 { 0 } else { 14 },
        mtu: if link == Link::Ov0 { OVERLAY_MTU } else { MTU },
        default_v6: matches!(link, Link::Up0 | Link::Up1).into(),
        v4: v4.into(),
        v6: v6.into(),
    }
}
