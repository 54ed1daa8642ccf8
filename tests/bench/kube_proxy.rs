//! kube-proxy, by the side of which Fairlead is measured.

use crate::api_server::ApiServer;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use control_plane::{KubeProxy, Mode};
use lab::{Lab, Node};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Its first sync of 10,000 Services takes minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where the program is; `None` if nobody built it.
pub(crate) fn program() -> Option<PathBuf> {
    let dir = std::env::var_os("FAIRLEAD_CONTROL_PLANE")?;
    let path = Path::new(&dir).join("kube-proxy");
    path.is_file().then_some(path)
}

/// Has kube-proxy (nftables) program a node for what the lab's agents read. It
/// ends then: its rules stay, and nothing of it runs while others are measured.
pub(crate) fn program_rules(
    program: &Path,
    lab: &Lab,
    node: &Node,
    report: &mut Report,
) -> Result<()> {
    let server = ApiServer::start(lab, node)?;
    let [_, _, dir] = lab.traces();
    let kubeconfig = dir.join(format!("{}.kubeconfig", node.name()));
    fs::write(&kubeconfig, server.kubeconfig()).context("write a kubeconfig")?;
    let start = Instant::now();
    let client = json!({ "kubeconfig": kubeconfig, "contentType": "application/json" });
    let mut proxy = KubeProxy::start_program(
        program,
        dir,
        &kubeconfig,
        node,
        Mode::Nftables,
        &json!({ "clientConnection": client }),
    )?;
    proxy.wait_healthy_for(node, PATIENCE)?;
    let took = start.elapsed().as_secs_f64();
    let services = server.services();
    let programmed = cluster_ip_ports(node)?;
    ensure!(
        programmed >= services,
        "kube-proxy has programmed {programmed} of {services} Services; its log ends:\n{}",
        proxy.log()
    );
    report.note(format!(
        "kube-proxy was ready {took:.1} s after its start with {services} Services to list"
    ));
    Ok(())
}

/// How many ports of ClusterIPs its rules know, at least one of each Service.
fn cluster_ip_ports(node: &Node) -> Result<usize> {
    let mut nft = Command::new("nft");
    nft.args(["--json", "list", "map", "ip", "kube-proxy", "service-ips"])
        .stdout(Stdio::piped());
    let output = node.host().spawn(nft)?.wait_with_output()?;
    ensure!(output.status.success(), "nft: {}", output.status);
    let listed: Value = serde_json::from_slice(&output.stdout)?;
    let objects = listed["nftables"].as_array().context("no objects")?;
    let elements = objects.iter().find_map(|it| it["map"]["elem"].as_array());
    Ok(elements.map_or(0, Vec::len))
}
