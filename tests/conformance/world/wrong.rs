//! How a lab becomes wrong.

use super::{World, run};
use crate::fault::Fault;
use anyhow::Result;
use lab::{BACKEND_PORT, Peer};

/// The table of [`World::go_wrong`].
const WRONG_LAB: &str = "inet wrong_lab";

impl World {
    /// Makes the lab wrong, if the fault is one of the lab.
    pub(crate) fn go_wrong(&self, fault: Fault) -> Result<()> {
        match fault.rules() {
            _ if fault == Fault::Masquerade => self.masquerade(true),
            _ if fault == Fault::OneSourcePort => self.hide_ports(true),
            Some(rules) => self.add_wrong_rules(&rules),
            None => Ok(()),
        }
    }

    /// Puts it right again.
    pub(crate) fn put_right(&self, fault: Fault) -> Result<()> {
        match fault.rules() {
            _ if fault == Fault::Masquerade => self.masquerade(false),
            _ if fault == Fault::OneSourcePort => self.hide_ports(false),
            Some(_) => self.remove_wrong_rules(),
            None => Ok(()),
        }
    }

    /// The fault by which backends see other addresses: every node hides whoever
    /// talks to a backend, itself included, behind one more address of its own.
    fn masquerade(&self, on: bool) -> Result<()> {
        for (number, node) in (1..).zip(self.lab.nodes()) {
            let (v4, v6) = (
                format!("192.0.2.6{number}"),
                format!("2001:db8:2::6{number}"),
            );
            let change = if on { "replace" } else { "delete" };
            // Never the source of the node's own choice.
            let lifetime = if on { " nodad preferred_lft 0" } else { "" };
            node.host().ip(&format!(
                "addr {change} {v4}/32 dev eth0\naddr {change} {v6}/128 dev eth0{lifetime}"
            ))?;
            let rules = if on {
                format!(
                    "table {WRONG_LAB} {{ chain post {{ type nat hook postrouting priority 90; \
                     meta nfproto ipv4 th dport {BACKEND_PORT} snat to {v4}; \
                     meta nfproto ipv6 th dport {BACKEND_PORT} snat to {v6}; }}; }}"
                )
            } else {
                format!("delete table {WRONG_LAB}")
            };
            run(node.host(), "nft", &[&rules])?;
        }
        Ok(())
    }

    /// The fault by which all clients of a backend have one port, in the backend's
    /// own namespace: two of one address cannot be told apart there.
    fn hide_ports(&self, on: bool) -> Result<()> {
        let rules = ["ip", "ip6"].map(|family| {
            if on {
                let hide = ["tcp", "udp"].map(|protocol| {
                    format!("meta l4proto {protocol} th dport {BACKEND_PORT} snat to :4000;")
                });
                format!(
                    "table {family} wrong_lab {{ chain wrong {{ \
                     type nat hook input priority 100; {} }}; }}\n",
                    hide.concat()
                )
            } else {
                format!("delete table {family} wrong_lab\n")
            }
        });
        let rules = rules.concat();
        let mut backends = [&self.b1, &self.b2, &self.b3].into_iter();
        backends.try_for_each(|backend| run(backend, "nft", &[&rules]))
    }

    /// Adds a chain to the firewall of every node.
    fn add_wrong_rules(&self, chain: &str) -> Result<()> {
        let table = format!("table {WRONG_LAB} {{ chain wrong {{ {chain} }}; }}");
        let mut nodes = self.lab.nodes().iter();
        nodes.try_for_each(|node| run(node.host(), "nft", &[&table]))
    }

    /// Removes it again.
    fn remove_wrong_rules(&self) -> Result<()> {
        let command = format!("delete table {WRONG_LAB}");
        let mut nodes = self.lab.nodes().iter();
        nodes.try_for_each(|node| run(node.host(), "nft", &[&command]))
    }

    /// Ends what is connected to a backend.
    pub(crate) fn cut_connections(&self, clients: &[&Peer]) -> Result<()> {
        let backend = format!("sport = :{BACKEND_PORT}");
        for peer in [&self.b1, &self.b2, &self.b3] {
            run(peer, "ss", &["-K", "-t", "state", "established", &backend])?;
        }
        // A backend's UDP socket is connected to nobody: the clients' are.
        let frontend = format!("( dport = :80 or dport = :{BACKEND_PORT} )");
        for client in clients {
            run(
                client,
                "ss",
                &["-K", "-u", "state", "established", &frontend],
            )?;
        }
        Ok(())
    }
}
