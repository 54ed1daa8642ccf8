//! `fairlead status --verify`: whatever somebody does to the maps and hooks by
//! hand is named, nothing is repaired by it, and the agent puts it right.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Lab, Node, Peer, SERVICE_CIDRS, other_fairlead, story};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the agent needs to notice that a program of the cgroup is gone: five
/// seconds, and some for a busy machine.
const NOTICED: Duration = Duration::from_secs(10);

/// One node, whose agent the stories start.
fn one_node() -> Result<Lab> {
    let lab = Lab::new(1)?;
    // Small maps are dumped soon.
    lab.agent_flags(["--service-cidrs", SERVICE_CIDRS, "--backends-max", "256"]);
    Ok(lab)
}

/// A load balancer of both families with source ranges, and a Service with affinity.
fn apply(lab: &Lab) -> Result<[Peer; 2]> {
    let n1 = lab.node("n1");
    let pods = [n1.pod("b1")?.serve(8080)?, n1.pod("b2")?.serve(8080)?];
    let lb = service("lb")
        .cluster_ip("10.96.30.1")
        .cluster_ip("fd00:96::3001")
        .port("http", 80, 8080)
        .node_port(30300)
        .lb_ip("198.51.100.30")
        .source_ranges(&["192.0.2.0/24", "10.244.0.0/16"]);
    lab.apply(&lb)?;
    let web = service("web").cluster_ip("10.96.30.2").affinity(60);
    lab.apply(&web.port("http", 80, 8080))?;
    for (name, of) in [("lb-v4", "lb"), ("web-v4", "web")] {
        lab.apply(&slice(name, of).port("http", 8080).ready_endpoints(&pods))?;
    }
    let v6 = slice("lb-v6", "lb").v6().port("http", 8080);
    lab.apply(&v6.ready_endpoints(&pods))?;
    Ok(pods)
}

fn is_content(node: &Node) -> Result<()> {
    let said = node.verify()?;
    ensure!(said.code == 0, "{said:?}");
    let [last] = said.lines.as_slice() else {
        anyhow::bail!("more than a line: {said:?}");
    };
    ensure!(last.starts_with("nothing differs: "), "{last}");
    Ok(())
}

/// There is a line for each of the beginnings, and no other.
fn names(node: &Node, beginnings: &[&str]) -> Result<()> {
    let said = node.verify()?;
    ensure!(said.code == 1, "{said:?}");
    let count = said.lines.len() - 1;
    for beginning in beginnings {
        let found = said.lines.iter().filter(|it| it.starts_with(beginning));
        ensure!(found.count() == 1, "no line {beginning:?}: {said:#?}");
    }
    ensure!(count == beginnings.len(), "{count} lines: {said:#?}");
    Ok(())
}

/// A new agent, which has published.
fn restart(lab: &Lab) -> Result<()> {
    lab.node("n1").kill_agent()?;
    start(lab)
}

fn start(lab: &Lab) -> Result<()> {
    let n1 = lab.node("n1");
    n1.start_agent()?;
    n1.wait_healthy()?;
    lab.settle()
}

/// An element of a map, as bytes and as `bpftool` prints it.
struct Element {
    key: Vec<String>,
    value: Vec<String>,
    printed: Value,
}

fn bytes(value: &Value) -> Result<Vec<String>> {
    let bytes = value.as_array().context("no bytes")?.iter();
    bytes
        .map(|it| it.as_str().map(str::to_owned).context("no byte"))
        .collect()
}

fn elements(node: &Node, map: &str) -> Result<Vec<Element>> {
    let path = pin(node, map)?;
    let dump = node.bpftool(&["-j", "map", "dump", "pinned", &path])?;
    let dump: Value = serde_json::from_str(&dump)?;
    let element = |it: &Value| {
        Ok(Element {
            key: bytes(&it["key"])?,
            value: bytes(&it["value"])?,
            printed: it["formatted"].clone(),
        })
    };
    dump.as_array()
        .context("no list")?
        .iter()
        .map(element)
        .collect()
}

fn pin(node: &Node, name: &str) -> Result<String> {
    let path = node.pins().join(name);
    Ok(path.to_str().context("a path of text")?.to_owned())
}

/// The value of one element, as bytes.
fn lookup(node: &Node, map: &str, key: &[String]) -> Result<Vec<String>> {
    let path = pin(node, map)?;
    let mut args = vec!["-j", "map", "lookup", "pinned", &path, "key"];
    args.extend(key.iter().map(String::as_str));
    let element: Value = serde_json::from_str(&node.bpftool(&args)?)?;
    bytes(&element["value"])
}

/// The only element of which `is_it` holds.
fn element(node: &Node, map: &str, is_it: impl Fn(&Element) -> bool) -> Result<Element> {
    let mut found = elements(node, map)?;
    found.retain(is_it);
    ensure!(found.len() == 1, "{} such elements in {map}", found.len());
    found.pop().context("none")
}

fn delete(node: &Node, map: &str, key: &[String]) -> Result<()> {
    let path = pin(node, map)?;
    let mut args = vec!["map", "delete", "pinned", &path, "key"];
    args.extend(key.iter().map(String::as_str));
    node.bpftool(&args).map(drop)
}

fn update(node: &Node, map: &str, key: &[String], value: &[String]) -> Result<()> {
    let path = pin(node, map)?;
    let mut args = vec!["map", "update", "pinned", &path, "key"];
    args.extend(key.iter().map(String::as_str));
    args.push("value");
    args.extend(value.iter().map(String::as_str));
    node.bpftool(&args).map(drop)
}

/// Whether a printed address is this one of IPv4.
fn is_v4(address: &Value, wanted: [u8; 4]) -> bool {
    let bytes = address["bytes"].as_array();
    let bytes: Vec<u64> = bytes
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    bytes.len() == 16 && bytes[10..12] == [255, 255] && bytes[12..] == wanted.map(u64::from)
}

fn frontend(node: &Node, address: [u8; 4], scope: &str) -> Result<Element> {
    element(node, "frontends", |it| {
        let key = &it.printed["key"];
        is_v4(&key["address"], address) && key["scope"] == scope
    })
}

fn backend(node: &Node, service: &Value, address: [u8; 4]) -> Result<Element> {
    element(node, "backends", |it| {
        let value = &it.printed["value"];
        is_v4(&value["address"], address) && value["service"] == *service
    })
}

/// One of these bytes becomes another.
fn changed(bytes: &[String], at: usize) -> Vec<String> {
    let mut bytes = bytes.to_vec();
    bytes[at] = if bytes[at] == "0x01" { "0x00" } else { "0x01" }.to_owned();
    bytes
}

#[test]
fn what_is_done_to_the_maps_by_hand_is_named_and_a_restart_heals_it() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let [b1, b2] = apply(lab)?;
        start(lab)?;
        lab.eventually(|| is_content(n1))?;
        let web = frontend(n1, [10, 96, 30, 2], "Internal")?;
        let outside = frontend(n1, [10, 96, 30, 2], "External")?;
        let lb = frontend(n1, [198, 51, 100, 30], "Internal")?;
        let service_id = &web.printed["value"]["service"];

        // A frontend that is missing, one whose affinity is another, and one of nobody.
        delete(n1, "frontends", &web.key)?;
        // key 20, generation 4, service 4, table 12: then the timeout.
        update(n1, "frontends", &outside.key, &changed(&outside.value, 40))?;
        let mut stranger = (lb.key.clone(), lb.value.clone());
        for bytes in [&mut stranger.0, &mut stranger.1] {
            bytes[15] = "0x63".to_owned();
        }
        update(n1, "frontends", &stranger.0, &stranger.1)?;
        // One backend without its state, one with another address.
        let first = backend(n1, service_id, b1.v4().octets())?;
        update(n1, "backends", &first.key, &changed(&first.value, 19))?;
        let elsewhere = backend(n1, &lb.printed["value"]["service"], b2.v4().octets())?;
        update(
            n1,
            "backends",
            &elsewhere.key,
            &changed(&elsewhere.value, 15),
        )?;
        // A node address that is missing, a ClusterIP, and a source range.
        for (map, address) in [
            ("node_addresses", n1.v4().octets()),
            ("vips", [10, 96, 30, 1]),
        ] {
            let it = element(n1, map, |it| is_v4(&it.printed["key"], address))?;
            delete(n1, map, &it.key)?;
        }
        let range = element(n1, "source_ranges", |it| it.key[20..22] == ["0xc0", "0x00"])?;
        delete(n1, "source_ranges", &range.key)?;
        // A range of Services, and a device of nobody.
        let cidr = element(n1, "service_cidrs", |it| it.key[16..18] == ["0x0a", "0x60"])?;
        delete(n1, "service_cidrs", &cidr.key)?;
        let device = &elements(n1, "devices")?[0];
        let none = ["0xff", "0x00", "0x00", "0x00"].map(str::to_owned);
        update(n1, "devices", &none, &device.value)?;
        let lines = [
            "frontends: 10.96.30.2:80/TCP for clients on this node: wanted ClusterIP of default/web:http with cluster set, affinity 60 s, found nothing;",
            "frontends: 10.96.30.2:80/TCP for clients outside: wanted ClusterIP of default/web:http with cluster set, affinity 60 s, found ClusterIP of default/web:http with cluster set, affinity 1 s;",
            "frontends: 198.51.100.99:80/TCP for clients on this node: wanted nothing, found LoadBalancer of default/lb:http",
            &format!(
                "backends: {}:8080 of default/web:http: wanted cluster set, local set, serving, on this node, found cluster set, on this node;",
                b1.v4()
            ),
            &format!(
                "backends: {}:8080 of default/lb:http: wanted cluster set, local set, serving, on this node, found nothing;",
                b2.v4()
            ),
            "backends: 10.244.1.1:8080 of default/lb:http: wanted nothing, found cluster set,",
            "tables: 10.96.30.1:80/TCP for clients on this node: wanted 2 slots, slot 1",
            "tables: 198.51.100.30:80/TCP for clients outside: wanted 2039 slots, slot",
            "node_addresses: 192.0.2.11: wanted an element, found nothing;",
            "vips: 10.96.30.1: wanted an element, found nothing;",
            "source_ranges: default/lb:http: wanted 10.244.0.0/16 192.0.2.0/24, found 10.244.0.0/16;",
            "service_cidrs: 10.96.0.0/16: wanted refused, found nothing;",
            "devices: device 255: wanted nothing, found uplink",
        ];
        names(n1, &lines)?;
        restart(lab)?;
        lab.eventually(|| is_content(n1))
    });
}

#[test]
fn a_table_with_another_backend_is_named_and_the_next_publish_heals_it() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let [b1, b2] = apply(lab)?;
        start(lab)?;
        is_content(n1)?;
        let web = frontend(n1, [10, 96, 30, 2], "Internal")?;
        let table = &web.printed["value"]["table"];
        ensure!(table["chunk"] == 0 && table["length"] == 2, "{table}");
        let line = table["first_line"].as_u64().context("no line")?;
        let key: Vec<String> = (line as u32)
            .to_ne_bytes()
            .map(|it| format!("{it:#04x}"))
            .into();
        // Id after id: the first one twice.
        let mut ids = lookup(n1, "tables_0", &key)?;
        let first = ids[..4].to_vec();
        ids.splice(4..8, first);
        update(n1, "tables_0", &key, &ids)?;
        let line = format!(
            "tables: 10.96.30.2:80/TCP for clients on this node: wanted 2 slots, slot 1 {}:8080, found 2 slots, slot 1 {}:8080;",
            b2.v4(),
            b1.v4()
        );
        names(n1, &[&line])?;
        // The same endpoints in another slice: the Service is published anew.
        lab.apply(
            &slice("web-more", "web")
                .port("http", 8080)
                .ready_endpoints([&b1]),
        )?;
        lab.settle()?;
        lab.eventually(|| is_content(n1))
    });
}

fn log_says(node: &Node, text: &str) -> Result<()> {
    let log = std::fs::read_to_string(node.log())?;
    ensure!(log.contains(text), "the log does not say {text:?}");
    Ok(())
}

fn restored(node: &Node) -> Result<u64> {
    let metrics = node.metrics()?;
    let line = metrics
        .lines()
        .find_map(|it| it.strip_prefix("fairlead_restored_total "));
    Ok(line.context("no such metric")?.parse()?)
}

#[test]
fn links_that_somebody_takes_off_are_named_and_put_back_by_the_agent_which_says_so() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let [b1, _b2] = apply(lab)?;
        start(lab)?;
        lab.eventually(|| is_content(n1))?;
        n1.pause_agent()?;
        n1.bpftool(&["link", "detach", "pinned", &pin(n1, "links/connect4")?])?;
        std::fs::remove_file(n1.pins().join("links/recvmsg6"))?;
        let links = std::fs::read_dir(n1.pins().join("links"))?;
        let files: Vec<_> = links.collect::<Result<_, _>>()?;
        let ingress = files
            .iter()
            .map(|it| it.file_name().to_string_lossy().into_owned());
        let ingress = ingress.filter(|it| it.starts_with("ingress_") && it.ends_with("_eth0"));
        let [ingress] = ingress
            .collect::<Vec<_>>()
            .try_into()
            .ok()
            .context("one pin")?;
        n1.bpftool(&[
            "link",
            "detach",
            "pinned",
            &pin(n1, &format!("links/{ingress}"))?,
        ])?;
        names(
            n1,
            &[
                "hooks: connect4 of the cgroup: wanted one program of ours, found a link that was detached;",
                "hooks: recvmsg6 of the cgroup: wanted one program of ours, found nothing;",
                "hooks: ingress of eth0: wanted one program of ours, found a link or filter that is gone;",
            ],
        )?;
        n1.resume_agent()?;
        // Any change of the node's devices is a reason to look at once.
        n1.host()
            .ip("link add spare type veth peer name spare-peer\n")?;
        lab.within(NOTICED, || is_content(n1))?;
        n1.host().tcp("10.96.30.2:80")?.pod()?;
        for hook in [
            "connect4 of the cgroup",
            "recvmsg6 of the cgroup",
            "ingress of eth0",
        ] {
            log_says(
                n1,
                &format!(
                    "somebody took it away or changed it; it is as it was again what=\"{hook}\""
                ),
            )?;
        }
        ensure!(
            restored(n1)? == 3,
            "fairlead_restored_total is {}",
            restored(n1)?
        );
        drop(b1);
        Ok(())
    });
}

#[test]
fn a_filter_that_somebody_deletes_is_named_and_put_back() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        n1.agent_program(Some(other_fairlead()?));
        n1.agent_environment(&[("FAIRLEAD_TEST_WITHOUT_TCX", "1".to_owned())]);
        start(lab)?;
        lab.eventually(|| is_content(n1))?;
        n1.pause_agent()?;
        let mut command = Command::new("tc");
        command
            .args(["filter", "del", "dev", "eth0", "egress"])
            .stdout(Stdio::null());
        ensure!(n1.host().spawn(command)?.wait()?.success(), "tc failed");
        names(
            n1,
            &[
                "hooks: egress of eth0: wanted one program of ours, found a link or filter that is gone;",
            ],
        )?;
        n1.resume_agent()?;
        n1.host()
            .ip("link add spare type veth peer name spare-peer\n")?;
        lab.within(NOTICED, || is_content(n1))?;
        log_says(
            n1,
            "somebody took it away or changed it; it is as it was again what=\"egress of eth0\"",
        )
    });
}

#[test]
fn a_change_that_arrives_meanwhile_is_no_difference_and_what_the_agent_misses_is_one() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let [b1, b2] = apply(lab)?;
        start(lab)?;
        lab.eventually(|| is_content(n1))?;
        for round in 0..40 {
            let pods: &[&Peer] = if round % 2 == 0 { &[&b1] } else { &[&b1, &b2] };
            let changed = slice("web-v4", "web").port("http", 8080);
            lab.apply(&changed.ready_endpoints(pods.iter().copied()))?;
            if round % 4 == 0 {
                is_content(n1)?;
            }
        }
        lab.settle()?;
        n1.pause_agent()?;
        lab.apply(
            &service("late")
                .cluster_ip("10.96.30.3")
                .port("http", 80, 8080),
        )?;
        names(
            n1,
            &[
                "services: default/late:http/TCP: wanted internal policy Cluster, external policy Cluster, found nothing;",
                "frontends: 10.96.30.3:80/TCP for clients on this node: wanted ClusterIP of default/late:http with cluster set, found nothing;",
                "frontends: 10.96.30.3:80/TCP for clients outside: wanted ClusterIP of default/late:http with cluster set, found nothing;",
                "vips: 10.96.30.3: wanted an element, found nothing;",
            ],
        )?;
        let said = n1.verify_as("json")?;
        let report: Value = serde_json::from_str(&said.lines.concat())?;
        let first = &report["differences"][0];
        ensure!(said.code == 1 && first["part"] == "vips", "{report}");
        ensure!(first["object"] == "10.96.30.3", "{report}");
        n1.resume_agent()?;
        lab.settle()?;
        is_content(n1)
    });
}

#[test]
fn what_cannot_be_looked_at_is_neither_content_nor_a_difference() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let said = n1.verify()?;
        ensure!(said.code == 2 && said.lines.is_empty(), "{said:?}");
        ensure!(
            said.errors.contains("does an agent pin them there?"),
            "{said:?}"
        );
        Ok(())
    });
}
