//! The addresses of this node, followed as they come and go (semantics 8).
//!
//! Any change leads to a new dump, so a notification that the kernel had to
//! drop (ENOBUFS) costs nothing but the next one; a slow re-read covers even that.

use futures::StreamExt;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;

/// How long a lost notification can hide a change.
const REREAD: Duration = Duration::from_secs(30);

/// Addresses that change together are read together.
const COALESCE: Duration = Duration::from_millis(20);

/// Sends every address of this network namespace, anew at each change, until
/// nobody listens any more.
pub async fn run(sender: watch::Sender<Option<Vec<IpAddr>>>) -> io::Result<()> {
    let (connection, handle, mut changes) =
        new_multicast_connection(&[MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr])?;
    let connection = tokio::spawn(connection);
    while !sender.is_closed() {
        let addresses = dump(&handle).await?;
        sender.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&addresses);
            *current = Some(addresses);
            changed
        });
        tokio::select! {
            change = changes.next() => if change.is_none() { break },
            () = tokio::time::sleep(REREAD) => {}
            () = sender.closed() => break,
        }
        tokio::time::sleep(COALESCE).await;
        while let Some(Some(_)) = futures::FutureExt::now_or_never(changes.next()) {}
    }
    connection.abort();
    Ok(())
}

async fn dump(handle: &Handle) -> io::Result<Vec<IpAddr>> {
    let mut messages = handle.address().get().execute();
    let mut addresses = BTreeSet::new();
    while let Some(message) = messages.next().await {
        let message = message.map_err(io::Error::other)?;
        // On a point-to-point link IFA_ADDRESS is the peer and IFA_LOCAL ours.
        let local = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(ip) => Some(*ip),
                _ => None,
            });
        let address = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
        addresses.extend(local.or(address));
    }
    Ok(addresses.into_iter().collect())
}
