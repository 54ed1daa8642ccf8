//! What objects are made of.

/// Services by namespace and name. The last ones can only come from a manifest.
pub(super) const SERVICES: &[(&str, &str)] = &[
    ("shop", "web"),
    ("shop", "web"),
    ("shop", "api"),
    ("shop", "api"),
    ("shop", "db"),
    ("shop", "db"),
    ("default", "web"),
    ("default", "kubernetes"),
    ("shop", "a:b"),
    ("s:hop", "web"),
    ("shop", "a/b"),
    ("shop", "a\0b"),
];

/// Slices by namespace and name.
pub(super) const SLICES: &[(&str, &str)] = &[
    ("shop", "web-1"),
    ("shop", "web-2"),
    ("shop", "web-3"),
    ("shop", "api-1"),
    ("shop", "api-2"),
    ("shop", "db-1"),
    ("default", "web-1"),
    ("default", "web-2"),
    ("s:hop", "web-1"),
];

pub(super) const CLUSTER_IPS_V4: &[&str] = &["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4"];
pub(super) const CLUSTER_IPS_V6: &[&str] = &["fd00:96::1", "fd00:96::2", "fd00:96::3"];

/// For external and load balancer addresses: also a ClusterIP and a node's.
pub(super) const OUTSIDE_IPS: &[&str] = &[
    "203.0.113.5",
    "203.0.113.6",
    "2001:db8::5",
    "10.96.0.2",
    "192.168.7.1",
];

pub(super) const NODE_IPS: &[&str] = &["192.168.7.1", "192.168.7.2", "fd00:7::1"];

/// Also a ClusterIP, a node's address, and a load balancer's.
pub(super) const ENDPOINTS_V4: &[&str] = &[
    "10.1.0.1",
    "10.1.0.2",
    "10.1.0.3",
    "10.1.0.4",
    "10.1.0.5",
    "192.168.7.1",
    "203.0.113.5",
    "10.96.0.3",
];
pub(super) const ENDPOINTS_V6: &[&str] = &["fd00:1::1", "fd00:1::2", "fd00:1::3", "fd00:96::2"];

pub(super) const HOSTILE_IPS: &[&str] = &[
    "",
    "banana",
    "10.1.0",
    "10.1.0.256",
    "010.001.000.002",
    "10.96.000.001",
    "::ffff:10.1.0.1",
    "::ffff:10.96.0.1",
    "0.0.0.0",
    "::",
    "127.0.0.1",
    "127.3.2.1",
    "::1",
    "169.254.1.1",
    "fe80::1",
    "fe80::1%eth0",
    "224.0.0.1",
    "ff02::1",
    "10.1.0.1/32",
    " 10.1.0.1",
];

/// Destinations of clients: everything above that can be asked for, and neighbours.
pub(crate) const ADDRESSES: &[&str] = &[
    "10.96.0.1",
    "10.96.0.2",
    "10.96.0.3",
    "10.96.0.4",
    "10.96.0.5",
    "10.96.1.1",
    "fd00:96::1",
    "fd00:96::2",
    "fd00:96::3",
    "fd00:96::4",
    "203.0.113.5",
    "203.0.113.6",
    "203.0.113.7",
    "2001:db8::5",
    "2001:db8::6",
    "192.168.7.1",
    "192.168.7.2",
    "192.168.7.3",
    "fd00:7::1",
    "10.1.0.1",
    "fd00:1::1",
    "127.0.0.1",
    "::1",
    "0.0.0.0",
    "::",
    "224.0.0.1",
];

/// Ranges with the host, the node, a client outside, a pod, nobody and everybody in them, and none.
pub(super) const SOURCE_RANGES: &[&str] = &[
    "192.168.7.0/24",
    "192.168.7.2/32",
    "10.1.0.0/16",
    " 10.1.0.9/32 ",
    "198.51.100.0/24",
    "fd00:7::/64",
    "2001:db8::/32",
    "0.0.0.0/0",
    "::/0",
    "::/1",
    "::ffff:10.1.0.0/112",
    "10.1.0.9/33",
    "everybody",
];

pub(super) const SERVICE_PORTS: &[i64] = &[80, 80, 443, 53];
pub(super) const NODE_PORTS: &[i64] = &[30080, 30443, 0];

/// Ports that clients ask for: the above, and neighbours.
pub(crate) const PORTS: &[u16] = &[80, 443, 53, 81, 30080, 30443, 30081];

/// Weights of 0 and 1, so that shares stay even, and lists that count for nothing.
pub(super) const WEIGHTS: &[&str] = &[
    "10.1.0.1=0",
    "10.1.0.1=0,10.1.0.2=0,fd00:1::1=0",
    "web-0=0",
    "web-*=0",
    "10.1.0.1=1,fd00:1::2=1,*=0",
    "",
    "web-0",
    "web-*=0,",
    "web-0=0,10.1.0.2=many",
    "*=0,10.1.0=0",
];

/// Few, so that a Node takes another's; and what other Nodes cannot reach.
pub(super) const NODE_INTERNAL_IPS: &[&str] = &[
    "192.0.2.1",
    "192.0.2.2",
    "192.0.2.3",
    "2001:db8:1::1",
    "2001:db8:1::2",
    "127.0.0.1",
    "fe80::1",
    "nowhere",
];
