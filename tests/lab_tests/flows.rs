//! Flows by hand: what the agent removes, keeps and shows. Flows of real packets
//! are in the tests of the packet path.

use anyhow::{Context, Result, ensure};
use lab::{Lab, Node, story};
use proxy_common::{Address, Flow, FlowKey};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

const TCP: u32 = 6;
const UDP: u32 = 17;

const ANSWERED: u8 = Flow::ANSWERED;

/// Walks are five seconds apart.
const COLLECTED: Duration = Duration::from_secs(15);

fn one_node() -> Result<Lab> {
    Lab::new(1)
}

/// Seconds since boot, as programs see it.
fn now_s() -> Result<u32> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    Ok(u32::try_from(now.tv_sec())?)
}

/// The two halves of a flow of the client with this port, seen so long ago.
fn halves(protocol: u32, port: u16, state: u8, silent_s: u32) -> Result<[(FlowKey, Flow); 2]> {
    let address = |last| Address::from_v4(Ipv4Addr::new(203, 0, 113, last));
    let seen_s = now_s()? - silent_s;
    let key = FlowKey {
        source: address(1),
        destination: address(2),
        source_port: port,
        destination_port: 80,
        protocol,
    };
    let request = Flow {
        tag: key.tag(),
        kind: Flow::SNAT,
        state,
        packets: 5,
        bytes: 500,
        source: address(3),
        destination: address(4),
        source_port: port,
        destination_port: 8080,
        last_seen_s: seen_s,
        created_s: seen_s - 100,
        ..Flow::new_zeroed()
    };
    let other = request.other_key(protocol);
    let replies = if state & ANSWERED == 0 { 0 } else { 4 };
    let reply = Flow {
        tag: other.tag(),
        kind: Flow::SNAT | Flow::REPLY,
        packets: replies,
        bytes: replies * 1000,
        source: key.destination,
        destination: key.source,
        source_port: key.destination_port,
        destination_port: key.source_port,
        ..request
    };
    Ok([(key, request), (other, reply)])
}

fn insert(node: &Node, map: &str, (key, flow): &(FlowKey, Flow)) -> Result<()> {
    let pin = node.pins().join(map);
    let hex =
        |bytes: &[u8]| -> Vec<String> { bytes.iter().map(|it| format!("{it:02x}")).collect() };
    let (key, value) = (hex(key.as_bytes()), hex(flow.as_bytes()));
    let mut args = vec![
        "map",
        "update",
        "pinned",
        pin.to_str().context("a path of text")?,
    ];
    args.extend(["key", "hex"]);
    args.extend(key.iter().map(String::as_str));
    args.extend(["value", "hex"]);
    args.extend(value.iter().map(String::as_str));
    node.bpftool(&args).map(drop)
}

fn flows(node: &Node, options: &[&str]) -> Result<Vec<Value>> {
    let args = [&["flows", "-o", "json"], options].concat();
    let shown: Value = serde_json::from_str(&node.fairlead(&args)?)?;
    Ok(shown.as_array().context("no list")?.clone())
}

fn elements(node: &Node, map: &str) -> Result<usize> {
    let pin = node.pins().join(map);
    let dump = node.bpftool(&["-j", "map", "dump", "pinned", pin.to_str().context("text")?])?;
    let dump: Value = serde_json::from_str(&dump)?;
    Ok(dump.as_array().context("no list")?.len())
}

#[test]
fn what_is_over_goes_and_what_lives_is_shown_on_one_line() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        lab.start_agents()?;
        let living = halves(TCP, 1001, ANSWERED, 3)?;
        let idle = halves(TCP, 1002, ANSWERED, 3600)?;
        let beginning = halves(TCP, 1003, 0, 100)?;
        for half in living.iter().chain(&idle) {
            insert(n1, "flows", half)?;
        }
        for half in &beginning {
            insert(n1, "flows_new", half)?;
        }
        // The backend's answer is not acknowledged.
        let [half_open, mut answer] = halves(TCP, 1004, 0, 100)?;
        answer.1.packets = 1;
        insert(n1, "flows_new", &half_open)?;
        insert(n1, "flows_new", &answer)?;
        for half in halves(TCP, 2001, ANSWERED | Flow::RST, 20)? {
            insert(n1, "flows", &half)?;
        }
        for half in halves(TCP, 2002, 0, 130)? {
            insert(n1, "flows_new", &half)?;
        }
        // The backend is nobody's.
        for half in halves(UDP, 2003, ANSWERED, 1)? {
            insert(n1, "flows", &half)?;
        }
        let [lone_request, _] = halves(TCP, 2004, ANSWERED, 20)?;
        let [_, lone_reply] = halves(TCP, 2005, ANSWERED, 20)?;
        insert(n1, "flows", &lone_request)?;
        insert(n1, "flows", &lone_reply)?;
        lab.within(COLLECTED, || {
            let counts = (elements(n1, "flows")?, elements(n1, "flows_new")?);
            ensure!(counts == (4, 2), "{counts:?} elements");
            Ok(())
        })?;
        let shown = flows(n1, &[])?;
        ensure!(shown.len() == 3, "{shown:?}");
        let row = shown
            .iter()
            .find(|it| it["client"] == "203.0.113.1:1001")
            .context("the living flow is not shown")?;
        for (field, wanted) in [
            ("protocol", Value::from("TCP")),
            ("frontend", "203.0.113.2:80".into()),
            ("source", "203.0.113.3:1001".into()),
            ("backend", "203.0.113.4:8080".into()),
            ("state", "established".into()),
            ("packets_to", 5.into()),
            ("packets_from", 4.into()),
            ("bytes_to", 500.into()),
            ("bytes_from", 4000.into()),
        ] {
            ensure!(row[field] == wanted, "{field} is {}", row[field]);
        }
        ensure!(flows(n1, &["--client", "203.0.113.0/24"])?.len() == 3);
        ensure!(flows(n1, &["--client", "203.0.113.9"])?.is_empty());
        ensure!(flows(n1, &["--service", "default/web"])?.is_empty());
        lab.within(COLLECTED, || {
            let metrics = n1.metrics()?;
            for line in [
                r#"fairlead_flows{protocol="TCP",state="established"} 2"#,
                r#"fairlead_flows{protocol="TCP",state="new"} 1"#,
                r#"fairlead_flows_removed_total{reason="silent"} 3"#,
                r#"fairlead_flows_removed_total{reason="backend_gone"} 1"#,
                r#"fairlead_flows_removed_total{reason="half"} 2"#,
                r#"fairlead_map_entries{map="flows"} 4"#,
            ] {
                ensure!(metrics.contains(line), "no {line}");
            }
            Ok(())
        })?;
        let status: Value = serde_json::from_str(&n1.fairlead(&["status", "-o", "json"])?)?;
        ensure!(status["flows"]["answered"] == 2 && status["flows"]["new"] == 1);
        Ok(())
    });
}

/// A flow of which the backend's node sends the answers.
fn by_dsr(protocol: u32, port: u16, state: u8, silent_s: u32) -> Result<(FlowKey, Flow)> {
    let [(key, request), _] = halves(protocol, port, state, silent_s)?;
    let kind = Flow::DSR;
    Ok((key, Flow { kind, ..request }))
}

#[test]
fn a_flow_by_dsr_is_no_half_and_ends_by_what_the_client_has_sent() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        lab.start_agents()?;
        let fin = ANSWERED | Flow::FIN;
        for flow in [
            by_dsr(TCP, 1001, ANSWERED, 3600)?,
            by_dsr(TCP, 1002, fin, 100)?,
            by_dsr(TCP, 2001, fin, 130)?,
            by_dsr(TCP, 2002, ANSWERED | Flow::RST, 20)?,
        ] {
            insert(n1, "flows", &flow)?;
        }
        insert(n1, "flows_new", &by_dsr(TCP, 1003, 0, 100)?)?;
        insert(n1, "flows_new", &by_dsr(TCP, 2003, 0, 130)?)?;
        // From another node, by its tunnel: two halves, and no device for the answers.
        for (key, flow) in halves(TCP, 1004, ANSWERED, 3)? {
            let kind = flow.kind ^ Flow::SNAT | Flow::TUNNELLED;
            insert(n1, "flows", &(key, Flow { kind, ..flow }))?;
        }
        lab.within(COLLECTED, || {
            let counts = (elements(n1, "flows")?, elements(n1, "flows_new")?);
            ensure!(counts == (4, 1), "{counts:?} elements");
            Ok(())
        })?;
        let shown = flows(n1, &[])?;
        for (port, mode, node, state, packets_from) in [
            (1001, "dsr", Value::from("203.0.113.3"), "established", 0),
            (1002, "dsr", "203.0.113.3".into(), "closed", 0),
            (1003, "dsr", "203.0.113.3".into(), "new", 0),
            (1004, "tunnel", Value::Null, "established", 4),
        ] {
            let client = format!("203.0.113.1:{port}");
            let row = shown.iter().find(|it| it["client"] == client);
            let row = row.with_context(|| format!("{client} is not shown"))?;
            ensure!(row["mode"] == mode && row["node"] == node, "{row}");
            ensure!(
                row["state"] == state && row["source"] == Value::Null,
                "{row}"
            );
            ensure!(
                row["packets_to"] == 5 && row["packets_from"] == packets_from,
                "{row}"
            );
        }
        ensure!(shown.len() == 4, "{shown:?}");
        let status: Value = serde_json::from_str(&n1.fairlead(&["status", "-o", "json"])?)?;
        ensure!(
            status["flows"]["answered"] == 3 && status["flows"]["new"] == 1,
            "{status}"
        );
        lab.within(COLLECTED, || {
            let metrics = n1.metrics()?;
            for line in [
                r#"fairlead_flows_removed_total{reason="silent"} 3"#,
                r#"fairlead_flows_removed_total{reason="half"} 0"#,
            ] {
                ensure!(metrics.contains(line), "no {line}");
            }
            Ok(())
        })
    });
}
