//! The proxies of the nodes.

use super::{START, World, ZONES, output, run};
use crate::proxy::Proxy;
use anyhow::{Context, Result, ensure};
use control_plane::{Kind, KubeProxy, Mode};
use lab::{SERVICE_CIDRS, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

impl World {
    /// Starts a node's proxy.
    pub(crate) fn start_proxy(&self, node: &str) -> Result<()> {
        self.start_proxy_with(node, &[], &json!({}))
    }

    /// The same with these flags if it is Fairlead, or with this configuration
    /// if it is kube-proxy.
    pub(crate) fn start_proxy_with(
        &self,
        node: &str,
        fairlead: &[&str],
        kube_proxy: &Value,
    ) -> Result<()> {
        let node = self.lab.node(node);
        match self.proxy.mode() {
            None => {
                let kubeconfig = self.plane.kubeconfig("fairlead");
                let kubeconfig = kubeconfig.to_str().context("a path of text")?;
                let mut flags = vec!["--kubeconfig", kubeconfig, "--service-cidrs", SERVICE_CIDRS];
                flags.extend(fairlead);
                node.agent_flags(flags);
                node.start_agent()
            }
            Some(mode) => {
                // Labels that the Node has by now may be lost on it: in server.go
                // the handler registers when their event may be over.
                self.label_zone(node.name(), None)?;
                let started = KubeProxy::start(&self.plane, node, mode, kube_proxy)?;
                self.kube_proxies().insert(node.name().to_owned(), started);
                Ok(())
            }
        }
    }

    /// SIGKILL to a node's proxy. What it programmed stays.
    pub(crate) fn kill_proxy(&self, node: &str) -> Result<()> {
        match self.proxy.mode() {
            None => self.lab.node(node).kill_agent(),
            Some(_) => {
                let killed = self.kube_proxies().remove(node);
                killed
                    .map(drop)
                    .with_context(|| format!("{node} has no kube-proxy"))
            }
        }
    }

    /// SIGSTOP to a node's proxy.
    pub(crate) fn pause_proxy(&self, node: &str) -> Result<()> {
        self.signal_proxy(node, Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub(crate) fn resume_proxy(&self, node: &str) -> Result<()> {
        self.signal_proxy(node, Signal::SIGCONT)
    }

    /// Whatever happens meanwhile, no proxy sees it before the end.
    pub(crate) fn while_asleep<T>(&self, meanwhile: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut nodes = self.lab.nodes().iter();
        nodes.try_for_each(|node| self.pause_proxy(node.name()))?;
        let outcome = meanwhile();
        let mut nodes = self.lab.nodes().iter();
        nodes.try_for_each(|node| self.resume_proxy(node.name()))?;
        outcome
    }

    fn signal_proxy(&self, node: &str, signal: Signal) -> Result<()> {
        let pid = match self.proxy.mode() {
            None => self.lab.node(node).agent_pid()?,
            Some(_) => {
                let proxies = self.kube_proxies();
                let proxy = proxies.get(node);
                proxy
                    .with_context(|| format!("{node} has no kube-proxy"))?
                    .pid()
            }
        };
        kill(Pid::from_raw(pid.try_into()?), signal)
            .with_context(|| format!("{signal} to the proxy of {node}"))
    }

    /// Waits until a node's proxy has a connection to the API server.
    pub(crate) fn wait_until_it_asks(&self, node: &str) -> Result<()> {
        let server = self.plane.host().v4();
        let filter = ["-Htn", "state", "established", "dst", &server.to_string()];
        eventually(START, || {
            let found = output(self.lab.node(node).host(), "ss", &filter)?;
            ensure!(
                !found.trim().is_empty(),
                "{node} is not connected to {server}"
            );
            Ok(())
        })
    }

    /// Whether a node's proxy runs.
    pub(crate) fn has_proxy(&self, node: &str) -> bool {
        match self.proxy.mode() {
            None => self.lab.node(node).has_agent(),
            Some(_) => self.kube_proxies().contains_key(node),
        }
    }

    /// Waits until a node's proxy says that it is healthy.
    pub(crate) fn wait_healthy(&self, node: &str) -> Result<()> {
        let node = self.lab.node(node);
        match self.proxy.mode() {
            None => node.wait_healthy(),
            Some(_) => {
                self.kube_proxies()
                    .get_mut(node.name())
                    .with_context(|| format!("{} has no kube-proxy", node.name()))?
                    .wait_healthy(node)?;
                let zone = ZONES.iter().find(|(of, _)| *of == node.name());
                self.label_zone(node.name(), zone.map(|it| it.1))
            }
        }
    }

    /// Changes a node's zone; `None` takes the label away.
    pub(crate) fn label_zone(&self, node: &str, zone: Option<&str>) -> Result<()> {
        let labels = json!({ "topology.kubernetes.io/zone": zone });
        let patch = json!({ "metadata": { "labels": labels } });
        match self.api.patch(Kind::Node, "", node, &patch) {
            // A row may start the proxy first.
            Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
            other => other.map(drop),
        }
    }

    fn kube_proxies(&self) -> MutexGuard<'_, BTreeMap<String, KubeProxy>> {
        self.kube_proxies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The last lines of every proxy's log.
    pub(crate) fn logs(&self) -> String {
        if self.proxy == Proxy::Fairlead {
            return self.lab.logs();
        }
        let proxies = self.kube_proxies();
        let logs = proxies
            .iter()
            .map(|(node, proxy)| format!("--- kube-proxy of {node} ends ---\n{}\n", proxy.log()));
        logs.collect()
    }

    /// Removes what a node's proxy programmed, as a reboot does. It must not run.
    pub(crate) fn forget_programmed(&self, node: &str) -> Result<()> {
        let node = self.lab.node(node);
        match self.proxy.mode() {
            None => std::fs::remove_dir_all(node.pins()).context("remove the pins"),
            Some(Mode::Nftables) => run(node.host(), "nft", &["flush ruleset"]),
            Some(Mode::Iptables) => {
                for program in ["iptables-legacy", "ip6tables-legacy"] {
                    for table in ["nat", "filter", "mangle"] {
                        run(node.host(), program, &["-t", table, "-F"])?;
                        run(node.host(), program, &["-t", table, "-X"])?;
                    }
                }
                Ok(())
            }
        }
    }
}
