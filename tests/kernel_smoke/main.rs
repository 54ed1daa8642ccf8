//! What `cargo xtask kernels` runs inside a virtual machine with an old kernel:
//! every program is loaded and attached by a real agent, and connections go
//! through ClusterIPs of both families. Prints each check; the exit code counts
//! the failures.

use anyhow::{Context, Result, ensure};
use lab::manifests::Manifest;
use lab::{Dial, Lab, Node, Peer, Transport, manifests, other_fairlead};
use serde_json::Value;
use std::process::ExitCode;

const SERVED: [&str; 2] = ["10.96.0.20", "[fd00:96::20]"];
const EMPTY: [&str; 2] = ["10.96.0.30", "[fd00:96::30]"];

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            println!("{failures} checks failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("the lab cannot be built here: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<u32> {
    let release = nix::sys::utsname::uname().context("asking for the kernel's release")?;
    println!("kernel {}", release.release().to_string_lossy());
    let lab = Lab::new(1)?;
    let node = lab.node("n1");
    let web = node.pod("web")?.serve(8080)?;
    let client = node.pod("client")?;
    for (name, [v4, v6]) in [("web", SERVED), ("empty", EMPTY)] {
        let v6 = v6.trim_matches(['[', ']']);
        let service = manifests::service(name).cluster_ip(v4).cluster_ip(v6);
        lab.apply(&service.port("http", 80, 8080).udp_port("dns", 53, 8080))?;
    }
    let slice = |name| {
        manifests::slice(name, "web")
            .port("http", 8080)
            .udp_port("dns", 8080)
    };
    lab.apply(&slice("web-v4").endpoint(&web).ready())?;
    lab.apply(&slice("web-v6").v6().endpoint(&web).ready())?;
    if let Err(error) = lab.start_agents() {
        println!("{}", lab.logs());
        return Err(error.context("the agent does not start"));
    }
    let mut failures = 0;
    for from in [&client, node.host()] {
        for vip in SERVED {
            failures += check(&format!("{} reaches {vip}", from.name()), || {
                reaches(from, vip)
            });
        }
        for vip in EMPTY {
            failures += check(&format!("{} is refused by {vip}", from.name()), || {
                from.tcp(&format!("{vip}:80"))?.refused()?;
                from.udp(&format!("{vip}:53"))?.refused()
            });
        }
    }
    failures += check("an IPv4-mapped socket reaches 10.96.0.20", || {
        let to = "[::ffff:10.96.0.20]:80".parse()?;
        client
            .dial(Dial::new(Transport::Tcp, to))?
            .answered_by("web")
    });
    failures += check("`fairlead status` finds every hook in place", || {
        node.fairlead(&["status"])
            .map(|status| println!("{status}"))
    });
    failures += check("programs are on the uplink", || on_the_uplink(node));
    failures += check("maps of another size take over", || upgraded(&lab, &client));
    failures += check("a kernel that cannot end sockets is made up for", || {
        guarded(&lab, &client)
    });
    lab.close()?;
    Ok(failures)
}

/// Another size means other maps and programs: what was connected goes on, and
/// what comes is served.
fn upgraded(lab: &Lab, client: &Peer) -> Result<()> {
    let node = lab.node("n1");
    let to = format!("{}:80", SERVED[0]);
    let held = client.hold_tcp(&to)?;
    // Few: an emulated machine has no time for more.
    let load = client.load(Transport::Tcp, &to, 5)?;
    node.terminate_agent()?;
    node.agent_flags(["--backends-max", "4096"]);
    lab.start_agents()?;
    load.stop()?.none_failed()?;
    held.talk("on")?.answered_by("web")?;
    held.peer_name_is(&to)?;
    for from in [client, node.host()] {
        for vip in SERVED {
            reaches(from, vip)?;
        }
    }
    on_the_uplink(node)
}

/// Both programs, by TCX links or by filters.
fn on_the_uplink(node: &Node) -> Result<()> {
    let status: Value = serde_json::from_str(&node.fairlead(&["status", "-o", "json"])?)?;
    let devices = &status["devices"];
    let is_served = |it: &Value| {
        it["device"] == "eth0"
            && it["role"] == "uplink"
            && it["ingress"] == "in place"
            && it["egress"] == "in place"
    };
    let devices = devices.as_array().context("status lists no devices")?;
    ensure!(devices.iter().any(is_served), "{devices:?}");
    Ok(())
}

/// By the program for kernels without CONFIG_INET_DIAG_DESTROY, which these have.
fn guarded(lab: &Lab, client: &Peer) -> Result<()> {
    let node = lab.node("n1");
    node.terminate_agent()?;
    node.agent_program(Some(other_fairlead()?));
    node.agent_environment(&[("FAIRLEAD_TEST_NO_SOCK_DESTROY", "1".to_owned())]);
    lab.start_agents()?;
    let sockets = SERVED.map(|vip| client.hold_udp(&format!("{vip}:53")));
    for name in ["web-v4", "web-v6"] {
        lab.delete_id(&manifests::slice(name, "web").id())?;
    }
    for socket in sockets {
        let socket = socket?;
        lab.eventually(|| socket.talk("are you there")?.failed_with("EPERM"))?;
    }
    Ok(())
}

/// TCP, connected and unconnected UDP, and the name of the peer.
fn reaches(from: &Peer, vip: &str) -> Result<()> {
    let tcp = from.tcp(&format!("{vip}:80"))?;
    tcp.answered_by("web")?;
    tcp.peer_name_is(&format!("{vip}:80"))?;
    from.reach(Transport::Udp, &format!("{vip}:53"))?
        .answered_by("web")?;
    let any = if vip.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let answer = from.udp_socket(any)?.ask(&format!("{vip}:53"), "hello")?;
    answer.answered_by("web")?;
    answer.came_from(&format!("{vip}:53"))
}

fn check(what: &str, story: impl FnOnce() -> Result<()>) -> u32 {
    match story() {
        Ok(()) => {
            println!("ok      {what}");
            0
        }
        Err(error) => {
            println!("FAILED  {what}: {error:#}");
            1
        }
    }
}
