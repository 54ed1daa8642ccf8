//! What flannel does in iptables, for the networks that are built on it.

use super::Family;

/// Rules of table `nat`: what leaves the pods' addresses is masqueraded, and so
/// is what comes from elsewhere for pods of other nodes. Pods that talk to each
/// other, and what is for pods of this node, keep their addresses.
pub(super) fn nat(family: Family, node: u8) -> String {
    let all = family.all_pods();
    let own = family.pods_of(node);
    let multicast = family.multicast();
    format!(
        "*nat\n\
         :FLANNEL-POSTRTG - [0:0]\n\
         -A POSTROUTING -j FLANNEL-POSTRTG\n\
         -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN\n\
         -A FLANNEL-POSTRTG -s {own} -d {all} -j RETURN\n\
         -A FLANNEL-POSTRTG -s {all} -d {own} -j RETURN\n\
         -A FLANNEL-POSTRTG ! -s {all} -d {own} -j RETURN\n\
         -A FLANNEL-POSTRTG -s {all} ! -d {multicast} -j MASQUERADE --random-fully\n\
         -A FLANNEL-POSTRTG ! -s {all} -d {all} -j MASQUERADE --random-fully\n\
         COMMIT\n"
    )
}

/// Rules of table `filter`: a node with Docker forwards nothing but what is
/// from pods or for pods. `before` are lines that somebody else put first.
pub(super) fn filter(family: Family, before: &str) -> String {
    let all = family.all_pods();
    format!(
        "*filter\n\
         :FORWARD DROP [0:0]\n\
         :FLANNEL-FWD - [0:0]\n\
         {before}\
         -A FORWARD -j FLANNEL-FWD\n\
         -A FLANNEL-FWD -s {all} -j ACCEPT\n\
         -A FLANNEL-FWD -d {all} -j ACCEPT\n\
         COMMIT\n"
    )
}
