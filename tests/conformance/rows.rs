//! The rows, a file per chapter of semantics.md. Each says what the text says;
//! no row is written after what a proxy does.

mod addresses;
mod affinity;
mod beside;
mod connections;
mod devices;
mod endpoints;
mod external;
mod families;
mod frontends;
mod health;
mod metrics;
mod objects;
mod packets;
mod policies;
mod refusals;
mod restart;
mod reuse;
mod slices;
mod sockets;
mod source_ranges;
mod topology;
mod udp;

use crate::row::Row;

/// All rows, in the order of the rules.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = [
        objects::rows(),
        slices::rows(),
        families::rows(),
        frontends::rows(),
        external::rows(),
        reuse::rows(),
        sockets::rows(),
        endpoints::rows(),
        topology::rows(),
        policies::rows(),
        refusals::rows(),
        addresses::rows(),
        source_ranges::rows(),
        affinity::rows(),
        connections::rows(),
        udp::rows(),
        packets::rows(),
        health::rows(),
        metrics::rows(),
        restart::rows(),
        beside::rows(),
        devices::rows(),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    rows.sort_by_key(|row| row.rule);
    rows
}
