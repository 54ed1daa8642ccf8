//! kube-proxy on a node of the lab: the reference.

use crate::plane::ControlPlane;
use anyhow::{Context, Result, ensure};
use lab::{Node, eventually, tail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// User of every kube-proxy; Kubernetes itself gives it its rights.
pub(crate) const USER: &str = "system:kube-proxy";

/// Where kube-proxy answers `/healthz`, as by default.
const HEALTHZ: &str = "0.0.0.0:10256";
const METRICS: &str = "127.0.0.1:10249";

/// The metric that a family has from its first sync on.
const SYNCED: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{";

/// The programs of iptables mode. Debian's are iptables-nft, which takes
/// minutes for what the legacy ones do in seconds.
const IPTABLES: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// How kube-proxy programs the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// nf_tables.
    Nftables,
    /// iptables (legacy).
    Iptables,
}

impl Mode {
    /// As in kube-proxy's configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// A running kube-proxy. It ends with this; its rules end with the node.
#[derive(Debug)]
pub struct KubeProxy {
    child: Child,
    node: String,
    log: PathBuf,
}

impl KubeProxy {
    /// Starts kube-proxy on a node. Fields in `config` are laid over its
    /// KubeProxyConfiguration, which else has the defaults, but for how fast it
    /// may follow changes.
    pub fn start(plane: &ControlPlane, node: &Node, mode: Mode, config: &Value) -> Result<Self> {
        let program = plane.program_path("kube-proxy");
        let kubeconfig = plane.kubeconfig(USER);
        Self::start_program(&program, plane.dir(), &kubeconfig, node, mode, config)
    }

    /// The same with any API server. Configuration and log go into a folder
    /// below `dir`.
    pub fn start_program(
        program: &Path,
        dir: &Path,
        kubeconfig: &Path,
        node: &Node,
        mode: Mode,
        config: &Value,
    ) -> Result<Self> {
        let dir = dir.join(format!("kube-proxy-{}", node.name()));
        fs::create_dir_all(&dir)?;
        let path = dir.join("config.json");
        let text = configuration(kubeconfig, node, mode, config);
        fs::write(&path, serde_json::to_string_pretty(&text)?)?;
        let log = dir.join("log");
        let file = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(&path)
            .env("PATH", search_path(&dir)?)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = node.host().spawn(command).context("start kube-proxy")?;
        Ok(Self {
            child,
            node: node.name().to_owned(),
            log,
        })
    }

    /// Waits until it is healthy: it has programmed what the API server told at first.
    pub fn wait_healthy(&mut self, node: &Node) -> Result<()> {
        self.wait_healthy_for(node, Duration::from_secs(30))
    }

    /// The same where the first sync may take long.
    pub fn wait_healthy_for(&mut self, node: &Node, patience: Duration) -> Result<()> {
        let healthy = eventually(patience, || {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Err(anyhow::anyhow!("it ended: {status}")));
            }
            let answer = node.http_get("http://127.0.0.1:10256/healthz")?;
            ensure!(answer.status == 200, "/healthz says {}", answer.status);
            // It says so as well before it has done anything.
            let metrics = node.http_get(&format!("http://{METRICS}/metrics"))?.body;
            let synced = metrics.lines().filter(|line| line.starts_with(SYNCED));
            ensure!(synced.count() == 2, "a family is not programmed yet");
            Ok(Ok(()))
        });
        healthy.flatten().with_context(|| {
            let log = self.log();
            format!("wait for kube-proxy of {}; its log ends:\n{log}", self.node)
        })
    }

    /// The last lines of its log.
    pub fn log(&self) -> String {
        tail(&self.log, 20)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        // It is a child of ours and not waited for yet, so the id is still its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(kubeconfig: &Path, node: &Node, mode: Mode, config: &Value) -> Value {
    // The pause between two syncs is a second by default; in the lab the
    // questions are about outcomes, and many rows wait for them.
    let pace = json!({ "minSyncPeriod": "50ms" });
    let mut all = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": kubeconfig },
        "hostnameOverride": node.name(),
        "mode": mode.as_str(),
        "clusterCIDR": "10.244.0.0/16,fd00:244::/32",
        "healthzBindAddress": HEALTHZ,
        "metricsBindAddress": METRICS,
        // The limits belong to the machine.
        "conntrack": { "maxPerCore": 0 },
        mode.as_str(): pace,
    });
    if let (Some(all), Some(more)) = (all.as_object_mut(), config.as_object()) {
        all.extend(more.clone());
    }
    all
}

/// PATH with a folder in front where iptables is iptables-legacy.
fn search_path(dir: &Path) -> Result<std::ffi::OsString> {
    let programs = dir.join("bin");
    fs::create_dir_all(&programs)?;
    for name in IPTABLES {
        let link = programs.join(name);
        if !link.exists() {
            let (family, rest) = name.split_once("tables").unwrap_or((name, ""));
            let target = format!("/usr/sbin/{family}tables-legacy{rest}");
            ensure!(Path::new(&target).exists(), "{target} is missing");
            symlink(&target, &link)?;
        }
    }
    let old = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(programs).chain(std::env::split_paths(&old));
    Ok(std::env::join_paths(all)?)
}
