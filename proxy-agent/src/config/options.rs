//! Options as given, by flags or by the file.

use crate::model::ForwardingMode;
use crate::resolve::Skip;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use std::net::IpAddr;
use std::path::PathBuf;

/// Options as given: everything optional.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// YAML file with these options under the same names
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Kubeconfig with the address of the API server and credentials; in a pod the service account serves
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Addresses of API servers, tried in turn; they win over the kubeconfig's
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub master: Option<Vec<String>>,
    /// Take objects from the manifests in this directory instead of an API server
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Name of this node as slices call it [default: $NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// This node's address, which `--nodeport-addresses primary` means [default: the Node's InternalIPs]
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<IpAddr>,
    /// Where /healthz and /livez are served; "" for nowhere [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP:PORT")]
    pub healthz_bind_address: Option<String>,
    /// Where /metrics is served; "" for nowhere [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_bind_address: Option<String>,
    /// Ranges of this node's addresses that serve NodePorts, or `primary` [default: all but loopback]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub nodeport_addresses: Option<Vec<String>>,
    /// Pod address ranges; accepted for kube-proxy's sake, sockets need no such hint
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub cluster_cidr: Option<Vec<IpNet>>,
    /// Service address ranges: connections to an unassigned address are refused
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub service_cidrs: Option<Vec<IpNet>>,
    /// Uplinks by name, `*` for any text, or `none` for no programs on devices [default: devices of default routes and of the Node's addresses]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub devices: Option<Vec<String>>,
    /// Devices, by name, of clients whose sockets the programs for sockets do not see (Kata, gVisor, KubeVirt, docker, VPN tunnels): their packets are translated, to ClusterIPs too
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub pod_devices: Option<Vec<String>>,
    /// What Maglev tables are seeded with, the same on every node [default: the UID of Namespace kube-system, or a fixed text with --manifests]
    #[arg(long, value_name = "TEXT")]
    pub maglev_seed: Option<String>,
    /// Source ports of connections to backends on other nodes [default: the largest range outside of ip_local_port_range and NodePorts]
    #[arg(long, value_name = "FIRST-LAST")]
    pub snat_ports: Option<String>,
    /// How packets of clients outside get to backends on other nodes [default: snat]
    #[arg(long, value_enum, value_name = "MODE")]
    pub forwarding_mode: Option<ForwardingMode>,
    /// UDP port by which Nodes hand each other packets for DSR, the same on every node; 0 for none [default: 6089]
    #[arg(long, value_name = "PORT")]
    pub dsr_port: Option<u16>,
    /// Cgroup v2 directory whose processes are served [default: the root of the hierarchy]
    #[arg(long, value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// Directory on a BPF file system for maps and links [default: /sys/fs/bpf/fairlead]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
    /// Translate only sockets of the host's network namespace (sidecar meshes) [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub host_namespace_only: Option<bool>,
    /// Serve spec.externalIPs (anyone who may write a Service can claim an address: CVE-2020-8554) [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub external_ips: Option<bool>,
    /// Listen on spec.healthCheckNodePort of Services; `false` beside a kube-proxy that does [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub health_check_node_ports: Option<bool>,
    /// Frontends to leave alone, as ADDRESS, ADDRESS:PORT or ADDRESS:PORT/PROTOCOL (NodeLocal DNSCache)
    #[arg(long, value_name = "FRONTEND", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_many")]
    pub skip_frontends: Option<Vec<Skip>>,
    /// Value of the label service.kubernetes.io/service-proxy-name that means this proxy
    #[arg(long, value_name = "NAME")]
    pub service_proxy_name: Option<String>,
    /// What is logged, such as `debug` or `proxy_agent=debug` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of the log [default: text]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Room in map frontends, 144 bytes each, two for each address and port [default: 262144]
    #[arg(long, value_name = "N")]
    pub frontends_max: Option<u32>,
    /// Room in map backends, 32 bytes each [default: 262144]
    #[arg(long, value_name = "N")]
    pub backends_max: Option<u32>,
    /// Room in map services (service ports), 264 bytes each [default: 65536]
    #[arg(long, value_name = "N")]
    pub services_max: Option<u32>,
    /// Room in map affinity (clients with session affinity), 96 bytes each [default: 65536]
    #[arg(long, value_name = "N")]
    pub affinity_max: Option<u32>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// An object a line, for machines.
    Json,
}

/// A list in the file may be a single value, as a flag may.
fn one_or_many<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
    }
    let list = Option::<OneOrMany<T>>::deserialize(deserializer)?;
    Ok(list.map(|list| match list {
        OneOrMany::Many(many) => many,
        OneOrMany::One(one) => vec![one],
    }))
}

/// Takes the first that is set, field by field, without forgetting one.
macro_rules! first_set {
    ($flags:expr, $file:expr, [$($field:ident),* $(,)?]) => {{
        let (Options { config, $($field),* }, file) = ($flags, $file);
        Options { config, $($field: $field.or(file.$field)),* }
    }};
}

impl Options {
    /// Flags over the file that they name.
    pub fn merged(self) -> Result<Self> {
        let Some(path) = &self.config else {
            return Ok(self);
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let file: Self = serde_saphyr::from_str(&text)
            .with_context(|| format!("{} is no valid configuration", path.display()))?;
        Ok(first_set!(
            self,
            file,
            [
                kubeconfig,
                master,
                manifests,
                hostname_override,
                bind_address,
                healthz_bind_address,
                metrics_bind_address,
                nodeport_addresses,
                cluster_cidr,
                service_cidrs,
                devices,
                pod_devices,
                maglev_seed,
                snat_ports,
                forwarding_mode,
                dsr_port,
                cgroup_root,
                pin_dir,
                host_namespace_only,
                external_ips,
                health_check_node_ports,
                skip_frontends,
                service_proxy_name,
                log,
                log_format,
                frontends_max,
                backends_max,
                services_max,
                affinity_max,
            ]
        ))
    }
}
