//! Options of the agent: flags, and a file with the same names.
//!
//! A flag wins over the file, the file over the default. Names are kube-proxy's
//! where it has the option.

mod options;
mod snat;
mod source;

pub use options::{LogFormat, Options};

use crate::attach::{AttachOptions, MapSizes};
use crate::devices::DeviceNames;
use crate::resolve::ResolveOptions;
use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use proxy_common::limits;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where maps and links are pinned unless `--pin-dir` says otherwise.
pub const PIN_DIR: &str = "/sys/fs/bpf/fairlead";

/// Where Nodes take packets for DSR unless `--dsr-port` says otherwise: not 6081, the
/// port of Geneve, which CNIs use.
const DSR_PORT: u16 = 6089;

impl Options {
    /// The configuration of merged options, with defaults and after checks.
    pub fn resolve(self) -> Result<Config> {
        let options = self;
        if options.manifests.is_some() && (options.kubeconfig.is_some() || options.master.is_some())
        {
            bail!("--manifests excludes --kubeconfig and --master: there is one source of objects");
        }
        if let Some(path) = options.manifests.as_deref().filter(|path| path.is_file()) {
            bail!(
                "--manifests {} is a file: name its directory",
                path.display()
            );
        }
        let ranges = options.service_cidrs.as_ref().map_or(0, Vec::len)
            + options.skip_frontends.as_ref().map_or(0, Vec::len);
        if ranges > limits::SERVICE_CIDRS_MAX as usize {
            bail!(
                "--service-cidrs and --skip-frontends name {ranges} ranges and addresses, more than {}",
                limits::SERVICE_CIDRS_MAX
            );
        }
        if options.maglev_seed.as_deref() == Some("") {
            bail!("--maglev-seed is empty: give a text, the same on every node");
        }
        let cgroup_root = match options.cgroup_root {
            Some(path) => path,
            None => cgroup_root()?,
        };
        let sizes = MapSizes {
            frontends: options.frontends_max.unwrap_or(limits::FRONTENDS_MAX),
            backends: options.backends_max.unwrap_or(limits::BACKENDS_MAX),
            services: options.services_max.unwrap_or(limits::SERVICES_MAX),
            affinity: options.affinity_max.unwrap_or(limits::AFFINITY_MAX),
        };
        for (flag, size) in [
            ("frontends-max", sizes.frontends),
            ("backends-max", sizes.backends),
            ("services-max", sizes.services),
            ("affinity-max", sizes.affinity),
        ] {
            if !(2..=1 << 26).contains(&size) {
                bail!("--{flag} {size} is not between 2 and {}", 1 << 26);
            }
        }
        let skip = options.skip_frontends.unwrap_or_default();
        Ok(Config {
            node_name: node_name(options.hostname_override)?,
            source: match options.manifests {
                Some(directory) => SourceConfig::Manifests(directory),
                None => SourceConfig::Kubernetes {
                    kubeconfig: options.kubeconfig,
                    servers: options.master.unwrap_or_default(),
                },
            },
            healthz: listen(
                "healthz-bind-address",
                options.healthz_bind_address,
                "0.0.0.0:10256",
            )?,
            metrics: listen(
                "metrics-bind-address",
                options.metrics_bind_address,
                "127.0.0.1:10249",
            )?,
            node_port_addresses: NodePortAddresses::parse(
                options.nodeport_addresses,
                options.bind_address,
            )?,
            maglev_seed: options.maglev_seed,
            devices: DeviceNames::parse(options.devices, options.pod_devices.unwrap_or_default())?,
            unused: [("cluster-cidr", options.cluster_cidr.is_some())]
                .into_iter()
                .filter_map(|(flag, set)| set.then_some(flag))
                .collect(),
            attach: AttachOptions {
                pin_dir: options.pin_dir.unwrap_or_else(|| PIN_DIR.into()),
                cgroup_root,
                sizes,
                host_only: options.host_namespace_only.unwrap_or(false),
                service_cidrs: options.service_cidrs.unwrap_or_default(),
                snat_ports: snat::ports(options.snat_ports.as_deref())?,
                dsr_port: options.dsr_port.unwrap_or(DSR_PORT),
                left_alone: skip.iter().map(|it| it.address).collect(),
            },
            resolve: ResolveOptions {
                service_proxy_name: options.service_proxy_name.map(Into::into),
                external_ips: options.external_ips.unwrap_or(true),
                health_check_node_ports: options.health_check_node_ports.unwrap_or(true),
                skip,
                forwarding: options.forwarding_mode.unwrap_or_default(),
            },
        })
    }
}

/// What the agent runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node, as slices call it.
    pub node_name: String,
    /// Where objects come from.
    pub source: SourceConfig,
    /// Where /healthz and /livez are served.
    pub healthz: Option<SocketAddr>,
    /// Where /metrics is served.
    pub metrics: Option<SocketAddr>,
    /// Which local addresses serve NodePorts.
    pub node_port_addresses: NodePortAddresses,
    /// What Maglev tables are seeded with; `None` for the cluster's UID.
    pub maglev_seed: Option<String>,
    /// Which devices the operator names, and for what.
    pub devices: DeviceNames,
    /// Options that were given and do nothing in this version.
    pub unused: Vec<&'static str>,
    /// Programs and maps.
    pub attach: AttachOptions,
    /// Which Services and fields are served.
    pub resolve: ResolveOptions,
}

/// Where objects come from.
#[derive(Clone, Debug)]
pub enum SourceConfig {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// An API server.
    Kubernetes {
        /// Kubeconfig; in-cluster configuration without one.
        kubeconfig: Option<PathBuf>,
        /// API servers to try in turn, instead of the configured one.
        servers: Vec<String>,
    },
}

/// Which local addresses serve NodePorts (semantics 8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Every address but loopback and IPv6 link-local.
    All,
    /// `--bind-address`, or else the Node's InternalIPs.
    Primary(Option<IpAddr>),
    /// Those in these ranges.
    Ranges(Vec<IpNet>),
}

impl NodePortAddresses {
    fn parse(list: Option<Vec<String>>, bind_address: Option<IpAddr>) -> Result<Self> {
        let list = list.unwrap_or_default();
        match list.as_slice() {
            [] => Ok(Self::All),
            [one] if one == "primary" => Ok(Self::Primary(
                bind_address.filter(|ip| !ip.is_unspecified()),
            )),
            ranges => ranges
                .iter()
                .map(|range| {
                    range.parse().with_context(|| {
                        format!(
                            "--nodeport-addresses: {range:?} is neither a CIDR nor `primary` alone"
                        )
                    })
                })
                .collect::<Result<_>>()
                .map(Self::Ranges),
        }
    }

    /// Those of `local` that serve NodePorts; `node` are the Node's InternalIPs.
    /// `None` while the Node is not known and decides.
    pub fn select(&self, local: &[IpAddr], node: &[IpAddr]) -> Option<BTreeSet<IpAddr>> {
        if *self == Self::Primary(None) && node.is_empty() {
            return None;
        }
        let serves = |ip: &IpAddr| match self {
            Self::All => true,
            Self::Primary(Some(primary)) => ip == primary,
            Self::Primary(None) => node.contains(ip),
            Self::Ranges(ranges) => ranges.iter().any(|range| range.contains(ip)),
        };
        let eligible = local.iter().filter(|ip| eligible(ip) && serves(ip));
        Some(eligible.copied().collect())
    }

    /// Where to listen so as to be heard on the addresses that serve NodePorts:
    /// if all do, then on any, loopback too, as kube-proxy does.
    pub fn listening(&self, serving: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        if *self != Self::All {
            return serving.clone();
        }
        serving.iter().map(unspecified).collect()
    }
}

/// Loopback is served by another rule; an IPv6 link-local address may stand on
/// several links at once and names no node.
fn eligible(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    }
}

fn unspecified(ip: &IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn listen(flag: &str, given: Option<String>, default: &str) -> Result<Option<SocketAddr>> {
    let text = given.as_deref().unwrap_or(default);
    if text.is_empty() {
        return Ok(None);
    }
    let address = text
        .parse()
        .with_context(|| format!("--{flag} {text:?} is no IP:PORT, such as {default}"))?;
    Ok(Some(address))
}

/// kube-proxy trims and lowers the name too (pkg/util/node `GetHostname`).
fn node_name(given: Option<String>) -> Result<String> {
    let name = match given.or_else(|| std::env::var("NODE_NAME").ok()) {
        Some(name) => name,
        None => nix::unistd::gethostname()
            .context("reading the host's name")?
            .to_string_lossy()
            .into_owned(),
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("this node has no name: set --hostname-override");
    }
    Ok(name)
}

/// The cgroup v2 hierarchy: alone on /sys/fs/cgroup, or beside v1 controllers.
fn cgroup_root() -> Result<PathBuf> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(Path::new)
        .find(|path| {
            statfs(*path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
        })
        .map(Path::to_path_buf)
        .context("no cgroup v2 hierarchy at /sys/fs/cgroup: mount one and set --cgroup-root")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Write;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(flags: &[&str]) -> Options {
        Cli::parse_from(["test"].iter().chain(flags)).options
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(
            file,
            "hostname-override: from-file\npin-dir: /sys/fs/bpf/x\nservice-cidrs: [10.96.0.0/16]\n"
        )
        .unwrap();
        let path = file.path().to_str().unwrap();
        let merged = options(&["--config", path, "--hostname-override", "from-flag"])
            .merged()
            .unwrap();
        assert_eq!(merged.hostname_override.as_deref(), Some("from-flag"));
        assert_eq!(merged.pin_dir.as_deref(), Some(Path::new("/sys/fs/bpf/x")));
        assert_eq!(merged.service_cidrs.unwrap().len(), 1);
        assert_eq!(merged.metrics_bind_address, None);
    }

    #[test]
    fn a_list_in_the_file_may_be_one_value() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(
            file,
            "nodeport-addresses: primary\nlog: debug\nlog-format: json\n"
        )
        .unwrap();
        let merged = options(&["--config", file.path().to_str().unwrap()])
            .merged()
            .unwrap();
        assert_eq!(merged.nodeport_addresses, Some(vec!["primary".to_owned()]));
        assert_eq!(merged.log_format, Some(LogFormat::Json));
    }

    #[test]
    fn an_unknown_name_in_the_file_is_an_error_that_names_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nodeport-adresses: [10.0.0.0/8]").unwrap();
        let error = options(&["--config", file.path().to_str().unwrap()])
            .merged()
            .unwrap_err();
        assert!(
            format!("{error:#}").contains("nodeport-adresses"),
            "{error:#}"
        );
    }

    #[test]
    fn node_port_addresses_follow_their_selector() {
        let local: Vec<IpAddr> = [
            "127.0.0.1",
            "192.0.2.11",
            "10.50.0.11",
            "::1",
            "fe80::1",
            "2001:db8::11",
        ]
        .map(|ip| ip.parse().unwrap())
        .into();
        let node: Vec<IpAddr> = vec!["192.0.2.11".parse().unwrap()];
        let select = |list: Option<&str>| {
            let parsed =
                NodePortAddresses::parse(list.map(|it| vec![it.to_owned()]), None).unwrap();
            parsed
                .select(&local, &node)
                .unwrap()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(select(None), ["10.50.0.11", "192.0.2.11", "2001:db8::11"]);
        assert_eq!(select(Some("primary")), ["192.0.2.11"]);
        assert_eq!(select(Some("10.50.0.0/16")), ["10.50.0.11"]);
        assert_eq!(
            select(Some("127.0.0.0/8")),
            [""; 0],
            "loopback is never a NodePort address"
        );
    }
}
