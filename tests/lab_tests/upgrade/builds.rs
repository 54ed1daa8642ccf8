//! From one build to another and back. `FAIRLEAD_OTHER_BIN` names the agent of
//! another commit, say one from before there were opt-outs.

use crate::world::{SIZES, TCP, World, two_nodes};
use lab::{IN_FORCE, Transport, other_fairlead, story};
use std::io::Write;
use std::net::IpAddr;
use std::time::Instant;

/// Of a Pod that no other lab on this machine has.
fn uid() -> String {
    format!("1c9d2a44-70b1-4f0e-8c55-0000{:08x}", std::process::id())
}

#[test]
fn builds_replace_each_other_under_load() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        let uid = uid();
        let opted_out = world.n1.pod(&format!("pod{uid}"))?;
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: { name: quiet, namespace: shop, labels: \
                   { fairlead.io/socket-translation: disabled }";
        lab.apply_yaml("pod", &format!("{pod}, uid: {uid} }}\n"))?;
        // Who is left alone is answered by the switch.
        let address: IpAddr = "10.96.13.1".parse()?;
        lab.switch().ip("addr add 10.96.13.1/32 dev br0")?;
        lab.switch().listen(Transport::Tcp, address, 80)?;
        world.n1.agent_program(Some(other_fairlead()?));
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        let mut rounds = Vec::new();
        for other in [false, true, false, true, false] {
            world.n1.terminate_agent()?;
            let program = other.then(other_fairlead).transpose()?;
            world.n1.agent_program(program);
            let begun = Instant::now();
            // One program per hook and one set of maps, it says.
            world.start(&SIZES)?;
            rounds.push(begun.elapsed().as_millis());
            sockets.go_on()?;
            if !other {
                lab.within(IN_FORCE, || opted_out.tcp(TCP)?.answered_by("switch"))?;
            }
        }
        let answers = loads.none_failed()?;
        // Not eprintln!, which the test harness swallows.
        writeln!(
            std::io::stderr(),
            "    {answers} connections and datagrams, none failed; starts took {rounds:?} ms"
        )?;
        Ok(())
    });
}
