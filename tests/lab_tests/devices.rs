//! Programs on network devices: where they are, and beside whom (semantics 38).

use anyhow::{Context, Result, ensure};
use lab::{DeviceHook, Foreign, IN_FORCE, Lab, Node, device_programs, other_fairlead, story};
use serde_json::Value;
use std::process::{Command, Stdio};

/// One node, whose agent the stories start.
fn one_node() -> Result<Lab> {
    Lab::new(1)
}

/// Names of the programs on a device's hook, in the order in which they run.
fn names(node: &Node, device: &str, hook: DeviceHook) -> Result<Vec<String>> {
    let programs = device_programs(node.host(), device, hook)?;
    Ok(programs.into_iter().map(|(_, name)| name).collect())
}

/// One program of ours on each hook of the device, and no other.
fn is_served(node: &Node, device: &str) -> Result<()> {
    has(node, device, &["ingress"], &["egress"])
}

fn is_not_served(node: &Node, device: &str) -> Result<()> {
    has(node, device, &[], &[])
}

fn has(node: &Node, device: &str, ingress: &[&str], egress: &[&str]) -> Result<()> {
    for (hook, wanted) in [(DeviceHook::Ingress, ingress), (DeviceHook::Egress, egress)] {
        let found = names(node, device, hook)?;
        ensure!(found == wanted, "{device} has {found:?} on {hook:?}");
    }
    Ok(())
}

/// Role and hooks of a device as `fairlead status` has them, if it has the device.
fn shown(node: &Node, device: &str) -> Result<Option<(String, String)>> {
    let status: Value = serde_json::from_str(&node.fairlead(&["status", "-o", "json"])?)?;
    let devices = status["devices"].as_array().context("no devices")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(devices.iter().find(|it| it["device"] == device).map(|it| {
        (
            text(&it["role"]),
            format!("{}, {}", text(&it["ingress"]), text(&it["egress"])),
        )
    }))
}

fn is_shown(node: &Node, device: &str, role: &str) -> Result<()> {
    let found = shown(node, device)?;
    let wanted = Some((role.to_owned(), "in place, in place".to_owned()));
    ensure!(found == wanted, "status shows {found:?} of {device}");
    Ok(())
}

/// The agent has published, so that SIGTERM finds it listening.
fn start(lab: &Lab) -> Result<()> {
    let n1 = lab.node("n1");
    n1.start_agent()?;
    n1.wait_healthy()?;
    lab.settle()
}

#[test]
fn programs_are_on_the_uplink_and_only_there_and_once_after_twenty_restarts() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let _pod = n1.pod("pod")?;
        start(lab)?;
        for round in 0..20 {
            lab.eventually(|| is_served(n1, "eth0"))?;
            for device in ["lo", "pod2"] {
                is_not_served(n1, device)?;
            }
            if round % 2 == 0 {
                n1.kill_agent()?;
            } else {
                n1.terminate_agent()?;
            }
            is_served(n1, "eth0").context("without the agent")?;
            start(lab)?;
        }
        is_shown(n1, "eth0", "uplink")
    });
}

#[test]
fn devices_are_followed_as_they_come_go_and_come_again() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        start(lab)?;
        let host = n1.host();
        host.ip("link add lan1 type veth peer name lan1-peer\nlink set lan1 up\nlink set lan1-peer up\n")?;
        lab.settle()?;
        is_not_served(n1, "lan1")?;
        for _ in 0..3 {
            // A route to a subnet, a default route, neither, an address in a subnet.
            host.ip("addr add 198.51.100.1/32 dev lan1\nroute add 198.51.100.0/24 dev lan1\n")?;
            lab.within(IN_FORCE, || is_served(n1, "lan1"))?;
            is_shown(n1, "lan1", "return")?;
            host.ip("route add default via 198.51.100.2 dev lan1 metric 500\n")?;
            lab.within(IN_FORCE, || is_shown(n1, "lan1", "uplink"))?;
            is_served(n1, "lan1")?;
            host.ip("link set lan1 down\nlink set lan1 name lan.1\nlink set lan.1 up\n")?;
            lab.within(IN_FORCE, || is_not_served(n1, "lan.1"))?;
            host.ip("addr add 198.51.100.3/24 dev lan.1\n")?;
            lab.within(IN_FORCE, || is_shown(n1, "lan.1", "uplink"))?;
            is_served(n1, "lan.1")?;
            host.ip("addr flush dev lan.1\n")?;
            lab.within(IN_FORCE, || is_not_served(n1, "lan.1"))?;
            lab.within(IN_FORCE, || {
                ensure!(shown(n1, "lan.1")?.is_none(), "status still shows it");
                Ok(())
            })?;
            // The same names again, of other devices.
            host.ip("addr add 198.51.100.1/24 dev lan.1\n")?;
            lab.within(IN_FORCE, || is_served(n1, "lan.1"))?;
            host.ip("link del lan.1\nlink add lan1 type veth peer name lan1-peer\nlink set lan1 up\nlink set lan1-peer up\n")?;
        }
        is_served(n1, "eth0")
    });
}

#[test]
fn an_address_of_the_node_makes_an_uplink_and_its_device_stays_one_across_restarts() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        n1.host().ip(
            "link add lan1 type veth peer name lan1-peer\nlink set lan1 up\nlink set lan1-peer up\naddr add 198.51.100.1/32 dev lan1\nroute add 198.51.100.0/24 dev lan1\n",
        )?;
        start(lab)?;
        lab.within(IN_FORCE, || is_shown(n1, "lan1", "return"))?;
        lab.apply(&lab.node_manifest("n1").internal_ip("198.51.100.1"))?;
        lab.within(IN_FORCE, || is_shown(n1, "lan1", "uplink"))?;
        let before = device_programs(n1.host(), "lan1", DeviceHook::Ingress)?;
        n1.kill_agent()?;
        start(lab)?;
        is_shown(n1, "lan1", "uplink")?;
        let after = device_programs(n1.host(), "lan1", DeviceHook::Ingress)?;
        ensure!(before != after, "the new agent's program is not there");
        is_served(n1, "lan1")
    });
}

#[test]
fn names_choose_the_uplinks_and_none_takes_every_program_away() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        n1.agent_flags(["--devices", "wan*,lan0"]);
        n1.host()
            .ip("link add lan0 type veth peer name wan7\nlink set lan0 up\nlink set wan7 up\n")?;
        start(lab)?;
        for (device, role) in [("lan0", "uplink"), ("wan7", "uplink"), ("eth0", "return")] {
            lab.within(IN_FORCE, || is_shown(n1, device, role))?;
            is_served(n1, device)?;
        }
        n1.terminate_agent()?;
        n1.agent_flags(["--devices", "none"]);
        start(lab)?;
        for device in ["eth0", "lan0", "wan7"] {
            lab.within(IN_FORCE, || is_not_served(n1, device))?;
        }
        ensure!(shown(n1, "eth0")?.is_none(), "status shows a device");
        Ok(())
    });
}

/// Whether the pair of devices is there by which large packets reach the stack,
/// and the programs know it.
fn has_slow_path(node: &Node, wanted: bool) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["-br", "link"]).stdout(Stdio::piped());
    let output = node.host().spawn(command)?.wait_with_output()?;
    let links = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in ["fairlead0@fairlead1", "fairlead1@fairlead0"] {
        ensure!(links.contains(name) == wanted, "links: {links}");
    }
    for device in ["fairlead0", "fairlead1"] {
        if wanted {
            is_not_served(node, device)?;
        }
        ensure!(shown(node, device)?.is_none(), "status shows {device}");
    }
    Ok(())
}

#[test]
fn the_slow_path_stays_across_restarts_is_mended_and_goes_with_the_programs() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        start(lab)?;
        lab.within(IN_FORCE, || has_slow_path(n1, true))?;
        let settings = n1.dump_map("device_settings")?;
        n1.kill_agent()?;
        start(lab)?;
        lab.within(IN_FORCE, || is_served(n1, "eth0"))?;
        has_slow_path(n1, true)?;
        ensure!(n1.dump_map("device_settings")? == settings, "another pair");
        n1.terminate_agent()?;
        // As something that cleans up might leave it.
        n1.host().ip("link del fairlead0\n")?;
        start(lab)?;
        lab.within(IN_FORCE, || has_slow_path(n1, true))?;
        n1.terminate_agent()?;
        n1.agent_flags(["--devices", "none"]);
        start(lab)?;
        lab.within(IN_FORCE, || has_slow_path(n1, false))
    });
}

#[test]
fn foreign_programs_run_behind_ours_and_stay() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let c1 = lab.client("c1");
        let web = n1.process("web")?.serve(8080)?;
        let at = format!("{}:8080", n1.v4());
        let passing = Foreign::passing()?;
        let earlier: Vec<_> = DeviceHook::ALL
            .into_iter()
            .map(|hook| passing.attach(n1.host(), "eth0", hook, true))
            .collect::<Result<_>>()?;
        start(lab)?;
        let beside = |ingress: &[&str], egress: &[&str]| {
            lab.within(IN_FORCE, || has(n1, "eth0", ingress, egress))
        };
        beside(&["ingress", "foreign"], &["foreign", "egress"])?;
        c1.tcp(&at)?.answered_by(web.name())?;
        let dropping = Foreign::dropping()?;
        for hook in DeviceHook::ALL {
            let late = dropping.attach(n1.host(), "eth0", hook, hook == DeviceHook::Egress)?;
            c1.tcp(&at)?
                .unanswered()
                .context("a foreign program drops")?;
            drop(late);
            c1.tcp(&at)?.answered_by(web.name())?;
        }
        n1.kill_agent()?;
        start(lab)?;
        beside(&["ingress", "foreign"], &["foreign", "egress"])?;
        n1.terminate_agent()?;
        n1.agent_flags(["--devices", "none"]);
        start(lab)?;
        beside(&["foreign"], &["foreign"])?;
        drop(earlier);
        Ok(())
    });
}

#[test]
fn foreign_clsact_filters_run_behind_ours_and_stay() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let c1 = lab.client("c1");
        let web = n1.process("web")?.serve(8080)?;
        let at = format!("{}:8080", n1.v4());
        start(lab)?;
        lab.within(IN_FORCE, || is_served(n1, "eth0"))?;
        tc(n1, "qdisc add dev eth0 clsact")?;
        let pin = n1.pins().with_file_name("foreign");
        Foreign::dropping()?.pin(&pin)?;
        let pin = pin.to_str().context("a path of text")?;
        tc(
            n1,
            &format!("filter add dev eth0 ingress bpf da pinned {pin}"),
        )?;
        std::fs::remove_file(pin)?;
        c1.tcp(&at)?
            .unanswered()
            .context("a foreign filter drops")?;
        let before = device_programs(n1.host(), "eth0", DeviceHook::Ingress)?;
        n1.kill_agent()?;
        // It drops the lab's own markers, too.
        n1.start_agent()?;
        n1.wait_healthy()?;
        lab.eventually(|| {
            is_served(n1, "eth0")?;
            let after = device_programs(n1.host(), "eth0", DeviceHook::Ingress)?;
            ensure!(before != after, "the new agent's program is not there");
            Ok(())
        })?;
        c1.tcp(&at)?.unanswered().context("after a restart")?;
        tc(n1, "filter del dev eth0 ingress")?;
        c1.tcp(&at)?.answered_by(web.name())
    });
}

#[test]
fn an_upgrade_changes_the_programs_of_devices_over_and_back() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        start(lab)?;
        let ids = || -> Result<Vec<u32>> {
            is_served(n1, "eth0")?;
            let of = |hook| device_programs(n1.host(), "eth0", hook);
            let [ingress, egress] = [of(DeviceHook::Ingress)?, of(DeviceHook::Egress)?];
            Ok(ingress.iter().chain(&egress).map(|it| it.0).collect())
        };
        let mut before = ids()?;
        for program in [Some(other_fairlead()?), None] {
            n1.terminate_agent()?;
            n1.agent_program(program);
            start(lab)?;
            lab.within(IN_FORCE, || {
                let after = ids()?;
                ensure!(after.iter().all(|id| !before.contains(id)), "{after:?}");
                Ok(())
            })?;
            before = ids()?;
        }
        is_shown(n1, "eth0", "uplink")
    });
}

#[test]
fn what_is_in_the_way_of_packets_is_named() {
    // K52
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        n1.host().sysctl("net/ipv4/conf/eth0/rp_filter", "1")?;
        n1.host().sysctl("net/ipv4/ip_forward", "0")?;
        start(lab)?;
        lab.within(IN_FORCE, || is_served(n1, "eth0"))?;
        let log = std::fs::read_to_string(n1.log())?;
        let status = n1.fairlead(&["status"])?;
        for setting in ["net.ipv4.conf.eth0.rp_filter=2", "net.ipv4.ip_forward=1"] {
            ensure!(log.contains(setting), "the log lacks {setting}");
            ensure!(status.contains(setting), "status lacks {setting}");
        }
        Ok(())
    });
}

fn tc(node: &Node, args: &str) -> Result<()> {
    let mut command = Command::new("tc");
    command.args(args.split_whitespace());
    let output = node.host().spawn(command)?.wait_with_output()?;
    ensure!(output.status.success(), "tc {args}: {}", output.status);
    Ok(())
}

/// Filters on a hook as `tc` lists them.
fn filters(node: &Node, hook: &str) -> Result<String> {
    output(node, &format!("filter show dev eth0 {hook}"))
}

fn output(node: &Node, args: &str) -> Result<String> {
    let mut command = Command::new("tc");
    command.args(args.split_whitespace()).stdout(Stdio::piped());
    let output = node.host().spawn(command)?.wait_with_output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One filter of ours on each hook, and so many others behind the first and before the second.
fn is_filtered(node: &Node, foreign: [usize; 2]) -> Result<()> {
    for (hook, foreign) in ["ingress", "egress"].into_iter().zip(foreign) {
        let shown = filters(node, hook)?;
        let ours = format!("fairlead_{hook}");
        let order: Vec<&str> = shown.lines().filter(|it| it.contains(" handle ")).collect();
        let count = order.iter().filter(|it| it.contains(&ours)).count();
        ensure!(count == 1 && order.len() == 1 + foreign, "{hook}: {shown}");
        let at = if hook == "ingress" {
            order.first()
        } else {
            order.last()
        };
        ensure!(at.is_some_and(|it| it.contains(&ours)), "{hook}: {shown}");
    }
    Ok(())
}

#[test]
fn before_tcx_filters_are_replaced_beside_foreign_ones_and_our_qdisc_goes_with_them() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        n1.agent_program(Some(other_fairlead()?));
        n1.agent_environment(&[("FAIRLEAD_TEST_WITHOUT_TCX", "1".to_owned())]);
        let pin = n1.pins().with_file_name("foreign");
        let foreign = format!("bpf da pinned {}", pin.display());
        start(lab)?;
        lab.within(IN_FORCE, || is_filtered(n1, [0, 0]))?;
        is_not_served(n1, "eth0")?;
        Foreign::passing()?.pin(&pin)?;
        tc(n1, &format!("filter add dev eth0 ingress {foreign}"))?;
        tc(n1, &format!("filter add dev eth0 egress {foreign}"))?;
        std::fs::remove_file(&pin)?;
        for round in 0..4 {
            let before = filters(n1, "ingress")?;
            if round % 2 == 0 {
                n1.kill_agent()?;
            } else {
                n1.terminate_agent()?;
            }
            is_filtered(n1, [1, 1]).context("without the agent")?;
            start(lab)?;
            lab.within(IN_FORCE, || is_filtered(n1, [1, 1]))?;
            ensure!(
                filters(n1, "ingress")? != before,
                "the old program is still there"
            );
        }
        let none = |lab: &Lab| -> Result<()> {
            n1.terminate_agent()?;
            n1.agent_flags(["--devices", "none"]);
            start(lab)
        };
        none(lab)?;
        lab.within(IN_FORCE, || {
            let [ingress, egress] = [filters(n1, "ingress")?, filters(n1, "egress")?];
            let all = format!("{ingress}{egress}");
            ensure!(
                !all.contains("fairlead") && all.matches(" handle ").count() == 2,
                "{all}"
            );
            Ok(())
        })?;
        tc(n1, "qdisc del dev eth0 clsact")?;
        // Nobody else's: the qdisc goes, too.
        n1.terminate_agent()?;
        n1.agent_flags([]);
        start(lab)?;
        lab.within(IN_FORCE, || is_filtered(n1, [0, 0]))?;
        none(lab)?;
        lab.within(IN_FORCE, || {
            let qdiscs = output(n1, "qdisc show dev eth0")?;
            ensure!(!qdiscs.contains("clsact"), "{qdiscs}");
            Ok(())
        })?;
        Ok(())
    });
}
